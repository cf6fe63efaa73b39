"""Named logs, their writers and their leadership, blocking."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Self

from bkspark import log as aio_log
from bkspark.blocking.leaving import Leaving
from bkspark.blocking.loop import iterate, run, submitted
from bkspark.ledger.patience import PATIENCE_S
from bkspark.ledger.range_reader import BATCH_BYTES
from bkspark.log.log import VACUUM_AGE_S
from bkspark.log.positions import LogBatch, Place, Position, PositionRange
from bkspark.log.writer import ROLL_BYTES


class LogWriter(Leaving):
    """Appends to a log until it is closed or another process opens the log; see `bkspark.log.LogWriter`."""

    _writer: aio_log.LogWriter

    def __init__(self, writer: aio_log.LogWriter) -> None:
        self._writer = writer

    @property
    def name(self) -> str:
        return self._writer.name

    @property
    def ledger_id(self) -> int | None:
        """The ledger being written; None when the next append will make one."""
        return self._writer.ledger_id

    def append(self, entry: bytes) -> Position:
        """Append one entry; return its position once it is acknowledged."""
        return run(lambda: self._writer.append(entry))

    def append_many(self, entries: Any) -> PositionRange:
        """Append entries (bytes, EntryBatch, Arrow binary array); return their positions once all are acknowledged."""
        return run(lambda: self._writer.append_many(entries))

    def submit(self, entries: Any) -> concurrent.futures.Future[PositionRange]:
        """Send entries when the window has room; return a future of their positions, done when acknowledged."""
        return submitted(lambda: self._writer.submit(entries))

    def roll(self) -> None:
        """Continue in a new ledger: the present one is closed, so readers can pass it."""
        run(self._writer.roll)

    def close(self) -> None:
        """Wait for pending entries, close the ledger and release the log."""
        run(self._writer.close)


class Election:
    """One contender for a log's leadership, entered when this process leads; see `bkspark.log.Election`."""

    def __init__(self, election: aio_log.Election) -> None:
        self._election = election

    @property
    def is_lost(self) -> bool:
        """Whether the leadership, or the place in the queue, is gone: stop acting as the leader."""
        return self._election.is_lost

    def win(self) -> None:
        """Return when this contender leads."""
        run(self._election.win)

    def resign(self) -> None:
        """Leave the queue, or give up the leadership."""
        run(self._election.resign)

    def contenders(self) -> list[str]:
        """Return the identities of all contenders, the leader's first."""
        return run(self._election.contenders)

    def __enter__(self) -> Self:
        self.win()
        return self

    def __exit__(self, *_: object) -> None:
        self.resign()


class Log:
    """One log, whether or not it exists yet; see `bkspark.log.Log`."""

    def __init__(self, log: aio_log.Log) -> None:
        self._log = log

    @property
    def name(self) -> str:
        return self._log.name

    @property
    def asynchronous(self) -> aio_log.Log:
        """The asyncio log that this one uses; call it only on this module's loop (`run`, `iterate`)."""
        return self._log

    def create(self, *, exist_ok: bool = False) -> None:
        """Create the log, empty."""
        run(lambda: self._log.create(exist_ok=exist_ok))

    def election(self, identity: str) -> Election:
        """Return a contender for the log's leadership; `with` waits until it leads. An election is optional."""
        return Election(run(lambda: self._log.election(identity)))

    def open_for_writing(
        self,
        *,
        ensemble: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        ledger_type: str = "PD_JOURNAL",
        metadata: Mapping[str, bytes | str] | None = None,
        roll_bytes: int = ROLL_BYTES,
        roll_seconds: float | None = None,
    ) -> LogWriter:
        """Take the log for writing, creating it if it does not exist; the previous writer is fenced."""
        return LogWriter(
            run(
                lambda: self._log.open_for_writing(
                    ensemble=ensemble,
                    write_quorum=write_quorum,
                    ack_quorum=ack_quorum,
                    ledger_type=ledger_type,
                    metadata=metadata,
                    roll_bytes=roll_bytes,
                    roll_seconds=roll_seconds,
                )
            )
        )

    def read(
        self, start: Place = "earliest", end: Place = "latest", *, batch_bytes: int = BATCH_BYTES
    ) -> Iterator[LogBatch]:
        """Yield the entries between two places (`earliest`, `latest`, a position) in batches of one ledger each."""
        return iterate(lambda: self._log.read(start, end, batch_bytes=batch_bytes))

    def follow(
        self, start: Place = "earliest", *, batch_bytes: int = BATCH_BYTES, patience_s: float = PATIENCE_S
    ) -> Iterator[LogBatch]:
        """Yield the entries from a place on, and continue as more are confirmed, without end."""
        return iterate(lambda: self._log.follow(start, batch_bytes=batch_bytes, patience_s=patience_s))

    def earliest(self) -> Position:
        """Return the position of the first entry still in the log."""
        return run(self._log.earliest)

    def latest(self) -> Position:
        """Return the position after the last entry that can be read now."""
        return run(self._log.latest)

    def at_time(self, moment: datetime) -> Position:
        """Return the beginning of the first ledger that was not closed before a time (UTC if it names no zone)."""
        return run(lambda: self._log.at_time(moment))

    def show(self) -> dict[str, Any]:
        """Return the facts of the log: its name, ledgers and version."""
        return run(self._log.show)

    def truncate(self, before: Place) -> int:
        """Let the log begin at a position; delete the ledgers before it and return their number."""
        return run(lambda: self._log.truncate(before))

    def recover(self) -> list[int]:
        """Fence and close every ledger that a writer left open; return their ids."""
        return run(self._log.recover)

    def vacuum(self, *, older_than_s: float = VACUUM_AGE_S) -> int:
        """Delete the ledgers of dead attempts, and what interrupted changes left; return the number of ledgers."""
        return run(lambda: self._log.vacuum(older_than_s=older_than_s))

    def delete(self) -> None:
        """Delete the log and all its ledgers; its writer is fenced first."""
        run(self._log.delete)
