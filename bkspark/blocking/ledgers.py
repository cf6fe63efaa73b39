"""Writers and readers of one ledger, blocking."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator, Mapping
from typing import Any

from bkspark import client as aio
from bkspark.blocking.leaving import Leaving
from bkspark.blocking.loop import iterate, run, submitted
from bkspark.core.metadata import LedgerMetadata
from bkspark.entries import EntryBatch
from bkspark.ledger.patience import PATIENCE_S
from bkspark.ledger.range_reader import BATCH_BYTES


class LedgerWriter(Leaving):
    """Appends to one open ledger; see `bkspark.client.LedgerWriter`."""

    _writer: aio.LedgerWriter

    def __init__(self, writer: aio.LedgerWriter) -> None:
        self._writer = writer

    @property
    def asynchronous(self) -> aio.LedgerWriter:
        """The asyncio writer that this one uses; call it only on this module's loop (`run`, `iterate`)."""
        return self._writer

    @property
    def ledger_id(self) -> int:
        return self._writer.ledger_id

    @property
    def last_entry(self) -> int:
        """The LAC: the last entry that is acknowledged and durable on Qa bookies; -1 when there is none."""
        return self._writer.last_entry

    @property
    def length(self) -> int:
        """Payload bytes of every entry given to the writer so far."""
        return self._writer.length

    @property
    def metadata(self) -> LedgerMetadata:
        return self._writer.metadata

    def append(self, entry: bytes) -> int:
        """Append one entry; return its id once it is acknowledged."""
        return run(lambda: self._writer.append(entry))

    def append_many(self, entries: Any) -> int:
        """Append entries (bytes, EntryBatch, Arrow binary array); return the last id once all are acknowledged."""
        return run(lambda: self._writer.append_many(entries))

    def submit(self, entries: Any) -> concurrent.futures.Future[int]:
        """Send entries when the window has room; return a future of the last id, done when it is acknowledged."""
        return submitted(lambda: self._writer.submit(entries))

    def sync(self) -> int:
        """Wait until everything appended so far is durable; return the last synced entry id."""
        return run(self._writer.sync)

    def close(self) -> LedgerMetadata:
        """Wait for pending entries and close the ledger."""
        return run(self._writer.close)


class AdvancedLedgerWriter(Leaving):
    """Appends under entry ids that the caller chooses; see `bkspark.client.AdvancedLedgerWriter`."""

    _writer: aio.AdvancedLedgerWriter

    def __init__(self, writer: LedgerWriter) -> None:
        async def make() -> aio.AdvancedLedgerWriter:
            return aio.AdvancedLedgerWriter(writer.asynchronous)

        self._writer = run(make)

    @property
    def ledger_id(self) -> int:
        return self._writer.ledger_id

    @property
    def last_entry(self) -> int:
        """The LAC: the last entry that is acknowledged and durable on Qa bookies; -1 when there is none."""
        return self._writer.last_entry

    @property
    def length(self) -> int:
        """Payload bytes of every entry below the first gap that the writer has taken."""
        return self._writer.length

    @property
    def metadata(self) -> LedgerMetadata:
        return self._writer.metadata

    def append(self, entry_id: int, entry: bytes) -> int:
        """Append one entry; return its id once it and every id below are acknowledged."""
        return run(lambda: self._writer.append(entry_id, entry))

    def append_many(self, first_entry: int, entries: Any) -> int:
        """Append entries under consecutive ids; return the last one's once all are acknowledged."""
        return run(lambda: self._writer.append_many(first_entry, entries))

    def submit(self, first_entry: int, entries: Any) -> concurrent.futures.Future[int]:
        """Submit entries under consecutive ids; return a future of the last id, done when it is acknowledged."""
        return submitted(lambda: self._writer.submit(first_entry, entries))

    def sync(self) -> int:
        """Wait until everything below the first gap is acknowledged; return the last synced entry id."""
        return run(self._writer.sync)

    def close(self) -> LedgerMetadata:
        """Close the ledger before the first gap; entries above it fail."""
        return run(self._writer.close)


class LedgerReader:
    """Reads one ledger; see `bkspark.client.LedgerReader`."""

    def __init__(self, reader: aio.LedgerReader) -> None:
        self._reader = reader

    @property
    def ledger_id(self) -> int:
        return self._reader.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._reader.metadata

    @property
    def is_closed(self) -> bool:
        return self._reader.is_closed

    @property
    def last_entry(self) -> int:
        """The last entry known to be confirmed (LAC); -1 when there is none."""
        return self._reader.last_entry

    @property
    def last_unconfirmed(self) -> int:
        """The last entry that any bookie held when last asked (LAP)."""
        return self._reader.last_unconfirmed

    @property
    def length(self) -> int:
        """Payload bytes up to `last_entry`; an estimate while the ledger is open."""
        return self._reader.length

    def refresh(self) -> int:
        """Read the metadata and the LAC again; return `last_entry`."""
        return run(self._reader.refresh)

    def read(self, first_entry: int, last_entry: int, *, unconfirmed: bool = False) -> EntryBatch:
        """Return entries first_entry .. last_entry, both included, as one batch."""
        return run(lambda: self._reader.read(first_entry, last_entry, unconfirmed=unconfirmed))

    def batches(
        self,
        first_entry: int = 0,
        end_entry: int | None = None,
        *,
        batch_bytes: int = BATCH_BYTES,
        unconfirmed: bool = False,
    ) -> Iterator[EntryBatch]:
        """Yield [first_entry, end_entry) in batches of roughly `batch_bytes`; end None: to the last confirmed entry."""
        return iterate(
            lambda: self._reader.batches(first_entry, end_entry, batch_bytes=batch_bytes, unconfirmed=unconfirmed)
        )

    def follow(
        self, first_entry: int = 0, *, batch_bytes: int = BATCH_BYTES, patience_s: float = PATIENCE_S
    ) -> Iterator[EntryBatch]:
        """Yield entries as they are confirmed; ends when the ledger is closed and read."""
        return iterate(lambda: self._reader.follow(first_entry, batch_bytes=batch_bytes, patience_s=patience_s))


class SnapshotReader:
    """Reads a ledger from a plan, without metadata store; see `bkspark.client.SnapshotReader`."""

    def __init__(
        self,
        *,
        ledger_id: int,
        metadata: LedgerMetadata,
        addresses: Mapping[str, tuple[str, int]],
        password: bytes = b"",
    ) -> None:
        async def make() -> aio.SnapshotReader:
            return aio.SnapshotReader(ledger_id=ledger_id, metadata=metadata, addresses=addresses, password=password)

        self._reader = run(make)

    def batches(self, first_entry: int, end_entry: int, *, batch_bytes: int = BATCH_BYTES) -> Iterator[EntryBatch]:
        """Yield [first_entry, end_entry) in batches of roughly `batch_bytes`."""
        return iterate(lambda: self._reader.batches(first_entry, end_entry, batch_bytes=batch_bytes))

    def close(self) -> None:
        """Drop the connections."""
        run(self._reader.close)

    def __enter__(self) -> SnapshotReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
