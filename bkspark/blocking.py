"""The ledger client, blocking: the calls of `bkspark.client`, name for name.

    with Client("zk://127.0.0.1:2181/ledgers") as client:
        with client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
            writer.append_many([b"one", b"two"])
        for batch in client.open(writer.ledger_id).batches():
            ...
        with client.log("clicks").open_for_writing() as log:
            log.append_many([b"one", b"two"])
        for batch in client.log("clicks").read(start="earliest"):
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
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Self, TypeVar

from bkspark import client as aio
from bkspark import log as aio_log
from bkspark.client.bookies import PlacementOptions
from bkspark.client.range_reader import BATCH_BYTES
from bkspark.client.writer_options import WriterOptions
from bkspark.core.add_pipeline import WriterLimits
from bkspark.core.metadata import LedgerMetadata
from bkspark.core.relaxed import RelaxedDurability
from bkspark.entries import EntryBatch
from bkspark.log.log import VACUUM_AGE_S
from bkspark.log.positions import LogBatch, Place, Position, PositionRange
from bkspark.log.writer import ROLL_BYTES
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


class _Leaving(ABC):
    """What ends any writer. As a context manager it is closed, or abandoned when an error leaves the block."""

    _writer: aio.LedgerWriter | aio.AdvancedLedgerWriter | aio_log.LogWriter

    @abstractmethod
    def close(self) -> object:
        """Wait for what is pending and close."""

    def abandon(self) -> None:
        """Stop without closing anything: whoever opens the ledger or log next finds the end."""

        async def abandon() -> None:
            self._writer.abandon()

        run(abandon)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


class LedgerWriter(_Leaving):
    """Appends to one open ledger; see `bkspark.client.LedgerWriter`."""

    _writer: aio.LedgerWriter

    def __init__(self, writer: aio.LedgerWriter) -> None:
        self._writer = writer

    @property
    def asynchronous(self) -> aio.LedgerWriter:
        """The asyncio writer behind this one; use it only on this module's loop (`run`, `iterate`)."""
        return self._writer

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
        return _submitted(lambda: self._writer.submit(entries))

    def sync(self) -> int:
        """Wait until everything appended so far is durable; return the last synced entry id."""
        return run(self._writer.sync)

    def close(self) -> LedgerMetadata:
        """Wait for what is pending and close the ledger."""
        return run(self._writer.close)


class AdvancedLedgerWriter(_Leaving):
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
        """The last acknowledged entry (LAC); -1 when there is none."""
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
        """Give entries under consecutive ids; return a future of the last id, done when it is acknowledged."""
        return _submitted(lambda: self._writer.submit(first_entry, entries))

    def sync(self) -> int:
        """Wait until everything below the first gap is acknowledged; return the last synced entry id."""
        return run(self._writer.sync)

    def close(self) -> LedgerMetadata:
        """Close the ledger in front of the first gap; entries above it fail."""
        return run(self._writer.close)


def _submitted(submit: Callable[[], Awaitable[asyncio.Future[_T]]]) -> concurrent.futures.Future[_T]:
    """Run `submit()` and return a future, for any thread, of what its future becomes."""
    result: concurrent.futures.Future[_T] = concurrent.futures.Future()

    async def start() -> None:
        (await submit()).add_done_callback(lambda done: _copy_outcome(done, result))

    run(start)
    return result


def _copy_outcome(done: asyncio.Future[_T], result: concurrent.futures.Future[_T]) -> None:
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

    @property
    def length(self) -> int:
        """Payload bytes up to `last_entry`; an estimate while the ledger is open."""
        return self._reader.length

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


class LogWriter(_Leaving):
    """Appends to a log until it is closed or somebody else opens the log; see `bkspark.log.LogWriter`."""

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
        return _submitted(lambda: self._writer.submit(entries))

    def roll(self) -> None:
        """Go on in a new ledger: what was appended so far is closed, and readers get past it."""
        run(self._writer.roll)

    def close(self) -> None:
        """Wait for what is pending, close the ledger and give the log back."""
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
        """Leave the queue, or give the leadership up."""
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
        """The asyncio log behind this one; use it only on this module's loop (`run`, `iterate`)."""
        return self._log

    def create(self, *, exist_ok: bool = False) -> None:
        """Create the log, empty."""
        run(lambda: self._log.create(exist_ok=exist_ok))

    def election(self, identity: str) -> Election:
        """Return a contender for the log's leadership; `with` waits until it leads. Nobody has to elect one."""
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
        """Take the log for writing, creating it if it does not exist; whoever wrote before is fenced."""
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

    def follow(self, start: Place = "earliest", *, batch_bytes: int = BATCH_BYTES) -> Iterator[LogBatch]:
        """Yield the entries from a place on, and go on as more are confirmed, without end."""
        return iterate(lambda: self._log.follow(start, batch_bytes=batch_bytes))

    def earliest(self) -> Position:
        """Return the position of the first entry still in the log."""
        return run(self._log.earliest)

    def latest(self) -> Position:
        """Return the position behind the last entry that can be read now."""
        return run(self._log.latest)

    def at_time(self, moment: datetime) -> Position:
        """Return where the first ledger begins that was not closed before a time (UTC if it names no zone)."""
        return run(lambda: self._log.at_time(moment))

    def show(self) -> dict[str, Any]:
        """Return the facts of the log: its name, ledgers and version."""
        return run(self._log.show)

    def truncate(self, before: Place) -> int:
        """Let the log begin at a position; delete the ledgers in front of it and return how many they were."""
        return run(lambda: self._log.truncate(before))

    def recover(self) -> list[int]:
        """Fence and close every ledger that a writer left open; return their ids."""
        return run(self._log.recover)

    def vacuum(self, *, older_than_s: float = VACUUM_AGE_S) -> int:
        """Delete the ledgers of attempts that died, and what interrupted changes left; return how many ledgers."""
        return run(lambda: self._log.vacuum(older_than_s=older_than_s))

    def delete(self) -> None:
        """Delete the log and all its ledgers; who writes to it is fenced first."""
        run(self._log.delete)


class Client:
    """A connection to one cluster; see `bkspark.client.Client`. Connects when made."""

    def __init__(
        self,
        uri: str,
        *,
        digest: str = "crc32c",
        password: bytes = b"",
        wire_protocol: str = "v2",
        net: NetOptions = NetOptions(),
        writer: WriterOptions = WriterOptions(),
        limits: WriterLimits = WriterLimits(),
        placement: PlacementOptions = PlacementOptions(),
    ) -> None:
        self._client = aio.Client(
            uri,
            digest=digest,
            password=password,
            wire_protocol=wire_protocol,
            net=net,
            writer=writer,
            limits=limits,
            placement=placement,
        )
        run(self._client.connect)

    @property
    def asynchronous(self) -> aio.Client:
        """The asyncio client behind this one; use it only on this module's loop (`run`, `iterate`)."""
        return self._client

    def log(self, name: str) -> Log:
        """Return the log of that name, whether or not it exists yet."""
        return Log(self._client.log(name))

    def logs(self) -> list[str]:
        """Return the names of all logs at the metadata store, sorted."""
        return run(self._client.logs)

    def create(
        self,
        *,
        ensemble: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        ledger_type: str = "PD_JOURNAL",
        relaxed: RelaxedDurability = RelaxedDurability(),
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
                    relaxed=relaxed,
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
