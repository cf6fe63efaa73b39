"""The ledger client, blocking: the calls of `bkspark.client`, name for name.

    with Client("zk://127.0.0.1:2181/ledgers") as client:
        with client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
            writer.append_many([b"one", b"two"])
        for batch in client.open(writer.ledger_id).batches():
            ...

One thread a process runs the event loop of every client in it; calls may come from any thread. A process made by fork
has a loop of its own, and connections made before the fork are not used in it: make clients after forking.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar

from bkspark import client as aio
from bkspark.client.reader import BATCH_BYTES
from bkspark.client.writer import WriterOptions
from bkspark.core.metadata import LedgerMetadata
from bkspark.core.writer import WriterLimits
from bkspark.entries import EntryBatch
from bkspark.net.pool import NetOptions

_T = TypeVar("_T")


class _Loop:
    """The process's event loop and its thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, name="bkspark-client", daemon=True).start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


_lock = threading.Lock()
_current: _Loop | None = None


def _loop() -> asyncio.AbstractEventLoop:
    global _current
    with _lock:
        if _current is None or _current.pid != os.getpid():
            _current = _Loop()
        return _current.loop


def _after_fork() -> None:
    # The lock may have been held by a thread that does not exist in the child.
    global _lock, _current
    _lock, _current = threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork)


def run(work: Callable[[], Awaitable[_T]]) -> _T:
    """Run `work()` on the process's event loop and return its result; Ctrl-C cancels it."""

    async def call() -> _T:
        return await work()

    future = asyncio.run_coroutine_threadsafe(call(), _loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def iterate(make: Callable[[], AsyncIterator[_T]]) -> Iterator[_T]:
    """Yield what the asynchronous iterator `make()` yields; closing the generator closes it."""

    async def start() -> AsyncIterator[_T]:
        return make()

    items = run(start)
    try:
        while True:
            try:
                item = run(items.__anext__)
            except StopAsyncIteration:
                return
            yield item
    finally:
        closing = getattr(items, "aclose", None)
        # At interpreter exit the loop's thread runs no more: waiting for it would never end.
        if closing is not None and not sys.is_finalizing():
            run(closing)


class LedgerWriter:
    """Appends to one open ledger; see `bkspark.client.LedgerWriter`."""

    def __init__(self, writer: aio.LedgerWriter) -> None:
        self._writer = writer

    @property
    def ledger_id(self) -> int:
        return self._writer.ledger_id

    @property
    def last_entry(self) -> int:
        """The last acknowledged entry (LAC); -1 when there is none."""
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
        result: concurrent.futures.Future[int] = concurrent.futures.Future()

        async def submit() -> None:
            waiting = await self._writer.submit(entries)
            waiting.add_done_callback(lambda done: _copy_outcome(done, result))

        run(submit)
        return result

    def sync(self) -> int:
        """Wait until everything appended so far is durable; return the last synced entry id."""
        return run(self._writer.sync)

    def close(self) -> LedgerMetadata:
        """Wait for what is pending and close the ledger."""
        return run(self._writer.close)

    def abandon(self) -> None:
        """Stop without closing the ledger."""

        async def abandon() -> None:
            self._writer.abandon()

        run(abandon)

    def __enter__(self) -> LedgerWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


def _copy_outcome(done: asyncio.Future[int], result: concurrent.futures.Future[int]) -> None:
    error = None if done.cancelled() else done.exception()
    if done.cancelled():
        result.cancel()
    elif error is not None:
        result.set_exception(error)
    else:
        result.set_result(done.result())


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

    def refresh(self) -> int:
        """Look at the metadata and the LAC again; return `last_entry`."""
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

    def follow(self, first_entry: int = 0, *, batch_bytes: int = BATCH_BYTES) -> Iterator[EntryBatch]:
        """Yield entries as they are confirmed; ends when the ledger is closed and read."""
        return iterate(lambda: self._reader.follow(first_entry, batch_bytes=batch_bytes))


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


class Client:
    """A connection to one cluster; see `bkspark.client.Client`. Connects when made."""

    def __init__(
        self,
        uri: str,
        *,
        digest: str = "crc32c",
        password: bytes = b"",
        net: NetOptions = NetOptions(),
        writer: WriterOptions = WriterOptions(),
        limits: WriterLimits = WriterLimits(),
    ) -> None:
        self._client = aio.Client(uri, digest=digest, password=password, net=net, writer=writer, limits=limits)
        run(self._client.connect)

    @property
    def asynchronous(self) -> aio.Client:
        """The asyncio client behind this one; use it only on this module's loop (`run`, `iterate`)."""
        return self._client

    def create(
        self,
        *,
        ensemble: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        ledger_type: str = "PD_JOURNAL",
        metadata: Mapping[str, bytes | str] | None = None,
        ledger_id: int | None = None,
    ) -> LedgerWriter:
        """Create a ledger and return its writer."""
        return LedgerWriter(
            run(
                lambda: self._client.create(
                    ensemble=ensemble,
                    write_quorum=write_quorum,
                    ack_quorum=ack_quorum,
                    ledger_type=ledger_type,
                    metadata=metadata,
                    ledger_id=ledger_id,
                )
            )
        )

    def open(self, ledger_id: int, *, recover: bool = False) -> LedgerReader:
        """Return a reader; `recover=True` fences and closes the ledger first."""
        return LedgerReader(run(lambda: self._client.open(ledger_id, recover=recover)))

    def recover(self, ledger_id: int) -> LedgerMetadata:
        """Fence, find the end of and close a ledger; return its metadata, closed."""
        return run(lambda: self._client.recover(ledger_id))

    def metadata(self, ledger_id: int) -> LedgerMetadata:
        """Return what the metadata store knows of a ledger."""
        return run(lambda: self._client.metadata(ledger_id))

    def ledgers(self) -> Iterator[int]:
        """Yield the id of every ledger, in no particular order."""
        return iterate(self._client.ledgers)

    def delete(self, ledger_id: int) -> None:
        """Delete a ledger's metadata; bookies drop its entries later."""
        run(lambda: self._client.delete(ledger_id))

    def close(self) -> None:
        """Drop every connection. Ledgers left open stay open."""
        run(self._client.close)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
