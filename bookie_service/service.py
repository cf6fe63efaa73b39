"""A running bookie on an event loop: storage, its threads, and the listening socket. Does not know the metadata store.

If a core thread dies, the service ends: `failed` gets the error, and no further reply is sent (S28).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Protocol

from bkspark.errors import DiskFull
from bkspark.security.authorization import READ
from bkspark.security.principal import Principal
from bkspark.wire.local_reads import socket_name
from bookie_service.cluster.limbo_check import LedgerShareView, LimboCheck
from bookie_service.engine.authorization import Authorization
from bookie_service.engine.bookie import Bookie
from bookie_service.engine.disk_watch import DiskWatch
from bookie_service.engine.turns import Turns
from bookie_service.gc.collection_options import CollectionOptions
from bookie_service.gc.collection_status import PassReport
from bookie_service.gc.garbage_collector import CollectorCallbacks, GarbageCollector, GarbageView
from bookie_service.metrics.families import Registry
from bookie_service.metrics.requests import RequestTimes
from bookie_service.network.authentication import ListenerAuthentication
from bookie_service.network.connection import ConnectionParts
from bookie_service.network.connections import Connections
from bookie_service.network.event_loop import turn_began
from bookie_service.network.listener import Acceptor, Listener
from bookie_service.network.local_reads import LocalReadServer
from bookie_service.network.memory_budget import MemoryBudget
from bookie_service.network.tls_handshakes import HandshakeThread, ListenerTls
from bookie_service.settings.service_options import ServiceOptions
from bookie_service.settings.users import user_name
from bookie_service.storage import layout
from bookie_service.storage.io.fetching import FetchThreads
from bookie_service.storage.io.files import LocalFiles, is_out_of_space
from bookie_service.storage.journal.checkpoint import Checkpoint, CheckpointThread, JournalFailed, carry_out
from bookie_service.storage.journal.journal import in_whole_blocks
from bookie_service.storage.journal.journal_thread import JournalEvents, JournalThread
from bookie_service.storage.ledgers.opening import Storage, open_storage

logger = logging.getLogger(__name__)

SLOW_STOP_S = 30.0
_SLOW_STOP = (
    "the bookie has been stopping for %g s: a journal or ledger directory has not made everything durable yet. It "
    "keeps waiting. If you kill the process, because a disk does not answer, %s"
)
_NOTHING_IS_LOST = "nothing that was acknowledged is lost: the next start replays the journal"
_SOME_IS_LOST = "entries that were acknowledged are lost: journalWriteData is false, so the journal lacks them"

_WATCH_INTERVAL_S = 0.1
"""How often some connections are checked. All of them are checked in `connections.LOOKS` times this."""


class BookieMetadataView(GarbageView, LedgerShareView, Protocol):
    """All queries to the metadata store while the bookie serves."""


class BookieService:
    """Serves from `start` to `stop`, or until `failed` is done. For one event loop."""

    def __init__(self, files: LocalFiles, options: ServiceOptions, authorization: Authorization | None = None) -> None:
        """`authorization` None: every request is allowed."""
        self._authorization = authorization
        self._local_principals: dict[int, Principal] = {}
        """The principals of local users, by user id."""
        self._files = files
        self._options = options
        self.connections = Connections(
            options.connections, lambda: self.cluster_addresses(), lambda: self._bookie.owed(), self.fail
        )
        self._loop = asyncio.get_running_loop()
        self.registry = Registry()
        """The metrics of this process."""
        self.times = RequestTimes(time.monotonic_ns if options.statistics else None, self.registry.histograms)
        self._disks = DiskWatch(
            files,
            list(map(layout.current, options.ledger_directories)),
            list(map(layout.current, options.journal_directories)),
            options.disks,
        )
        self._disks.on_change = self._on_disks_change
        self._collector: GarbageCollector | None = None
        """Garbage collection, or None. Set once, by `start_collecting`."""
        self._limbo_check: LimboCheck | None = None
        """The check of ledgers in limbo, or None. Set once, by `start_collecting`."""
        self._flushed: list[asyncio.Future[None]] = []
        """Calls of `flush` that wait until a checkpoint has ended or is known to have no space."""
        self._handshakes = HandshakeThread(self._post, self.fail)
        self._tls = None if options.tls is None else ListenerTls(options.tls, self._handshakes.run)
        self._authentication = (
            None if options.authentication is None else ListenerAuthentication(options.authentication)
        )
        self._memory_budget = MemoryBudget(self._loop, options.received_bytes_max, options.reply_bytes_max)
        # asyncio calls due timers after the callbacks of ready sockets.
        self._turns = Turns(self._loop.call_later, time.monotonic, loop_turn_began=turn_began(self._loop))
        self._fetches = FetchThreads(
            files, options.fetch_threads, self._post, self.fail, list(options.ledger_directories)
        )
        """Reads from disk what is not in the page cache, on threads."""
        self._listener: Listener | None = None
        """Accepts connections; None before `start`."""
        self._local_reads: LocalReadServer | None = None
        """Answers local reads; None: they are not offered."""
        self._timers: list[Repeating] = []
        """What is called at intervals, from `start` to `stop`."""
        self.cluster_addresses: Callable[[], Collection[str]] = lambda: ()
        """Returns the addresses of the cluster's bookies, for which some connections are reserved."""
        self._index_problems: Sequence[str] = ()
        """What the last look found of the index (`LedgerIndex.problems`)."""
        self.on_mode_change: Callable[[], None] = lambda: None
        """Called when `is_read_only` has changed, or what the operator must know of the index."""
        self.failed: asyncio.Future[BaseException] = self._loop.create_future()
        """Done when a thread of the service has died; the process must end."""
        self.full: asyncio.Future[BaseException] = self._loop.create_future()
        """Done when the disks are full and read-only mode is off; the process must stop in order."""

    async def start(self, suspects: Callable[[], Awaitable[Collection[int]]]) -> None:
        """Replay the journals. Connections are accepted from `listen` on.

        Args:
            suspects: returns all ledgers that this bookie may have held. Called if entries may be lost.

        Raises:
            StorageDamaged, OSError: as `open_storage`. Nothing is left running.
            BookKeeperError: `suspects` failed.
        """
        options = self._options
        self._storage = await asyncio.to_thread(self._open)
        for notice in self._storage.notices:
            logger.warning("%s", notice)
        await self._begin_run(self._storage, suspects)
        # From here on one disk may be late, because the journal has what it lacks.
        self._storage.store.disks.waits = False
        self._start_threads(self._storage)
        self._bookie = Bookie(
            self._storage.store,
            self._journals,
            self._checkpoints,
            self._disks,
            self._fetches,
            options.bookie,
            self._turns,
            self.times,
            self._authorization,
        )
        if self._storage.stuck is not None:
            # Handled like a lack of space while serving: reads continue, and the flush is retried.
            self._bookie.on_checkpoint_stuck()
            self._checkpoints.submit(Checkpoint(self._storage.stuck, []))
        self._bookie.look_at_disks()
        self._timers = [
            Repeating(self._loop, options.statistics_window_s, self._roll),
            Repeating(self._loop, _WATCH_INTERVAL_S, self._watch_connections),
            Repeating(self._loop, options.checkpoint_interval_s, partial(self._call, self._bookie.checkpoint)),
            Repeating(self._loop, options.disks.interval_s, partial(self._call, self._look_at_disks)),
        ]

    def _open(self) -> Storage:
        """Open the storage. Raises as `open_storage`."""
        files, options = self._files, self._options
        journals, ledgers = options.journal_directories, options.ledger_directories
        return open_storage(files, journals, ledgers, options.store, in_whole_blocks(options.journal, files, journals))

    def listen(self, listener: socket.socket) -> None:
        """Accept connections on `listener`, which is bound but does not listen yet. Only after `start`."""
        parts = ConnectionParts(
            self._bookie,
            self._memory_budget,
            self._turns,
            self._options.connection,
            self.connections,
            self._tls,
            self._authentication,
            self._authorization,
        )
        acceptor = Acceptor(parts, self.connections)
        self._listener = Listener(listener, acceptor.accept, self.fail, partial(self._turns.accept, self))
        self._listener.start()
        self._served = listener.getsockname()

    async def _begin_run(self, storage: Storage, suspects: Callable[[], Awaitable[Collection[int]]]) -> None:
        """Put ledgers into limbo, durably, if entries may be lost; then mark the directories as in use."""
        limbo = storage.store.limbo
        if storage.may_have_lost_entries:
            held = await asyncio.to_thread(storage.store.index.ledger_ids)
            await asyncio.to_thread(limbo.begin, {*held.tolist(), *await suspects()})
            logger.warning(
                "entries or fences may have been lost: the last run was not stopped in order and its journal is not "
                "complete, or a file is damaged. %d ledgers are in limbo: the bookie gives no certain answer about "
                "entries that are missing in them",
                len(limbo),
            )
        elif len(limbo):
            logger.warning("%d ledgers are still in limbo, because entries may have been lost", len(limbo))
        options = self._options
        is_complete = options.bookie.journals_entries and options.journal.sync_groups
        await asyncio.to_thread(partial(storage.dirty.set, journal_is_complete=is_complete))

    @property
    def is_read_only(self) -> bool:
        """True when ordinary adds are refused."""
        return self._disks.is_read_only

    @property
    def options(self) -> ServiceOptions:
        """The options that the bookie was started with."""
        return self._options

    @property
    def disks(self) -> DiskWatch:
        """How full the disks are, and whether adds are accepted."""
        return self._disks

    @property
    def bookie(self) -> Bookie:
        """The bookie, which serves requests."""
        return self._bookie

    @property
    def storage(self) -> Storage:
        """The open storage."""
        return self._storage

    @property
    def journals(self) -> Sequence[JournalThread]:
        return self._journals

    @property
    def collector(self) -> GarbageCollector | None:
        """Garbage collection; None before `start_collecting`."""
        return self._collector

    @property
    def connection_count(self) -> int:
        return len(self.connections)

    @property
    def fetch_threads(self) -> int:
        """How many threads fetch from disks for reads."""
        return self._fetches.threads

    @property
    def waiting_fetches(self) -> int:
        """How many reads wait for a fetch thread."""
        return self._fetches.waiting

    def set_read_only(self, reason: str) -> None:
        """Refuse ordinary adds for an operator's reason; "": accept them if the disks allow it.

        Raises:
            OSError: a disk cannot be checked.
        """
        self._disks.set_read_only(reason)
        self._bookie.look_at_disks()

    def set_planned(self, reason: str) -> None:
        """Do as `set_read_only` for a plan in the metadata store. Raises OSError."""
        self._disks.set_planned(reason)
        self._bookie.look_at_disks()

    def set_collection(self, options: CollectionOptions) -> None:
        """Use other thresholds and rates of garbage collection from now on."""
        if self._collector is not None:
            self._collector.set_options(options)

    def start_collecting(self, metadata_view: BookieMetadataView) -> None:
        """Begin to collect garbage, and to release ledgers from limbo. Only these query the metadata store."""
        storage = self._storage
        collection = self._options.collection
        self._limbo_check = LimboCheck(
            storage.store, metadata_view, collection.interval_s, collection.metadata_ops_per_s, self.flush
        )
        self._collector = GarbageCollector(
            storage.store,
            storage.compactor,
            metadata_view,
            collection,
            CollectorCallbacks(
                self.flush, self.fail, lambda: self._disks.room, self._look_at_disks, self._forget_facts
            ),
            copies_at_once=len(self._options.ledger_directories),
        )
        self._collector.start()

    def _forget_facts(self, ledger_id: int) -> None:
        if self._authorization is not None:
            self._authorization.forget_ledger(ledger_id)

    def start_local_reads(self, bookie_id: str) -> None:
        """Offer local reads to clients on this host, if they are enabled and possible."""
        options = self._options
        is_closed = options.authentication is not None or (options.tls is not None and options.tls.required)
        if not options.local_reads or is_closed:
            # A descriptor of an entry log would bypass certificates and authentication.
            return
        try:
            self._local_reads = LocalReadServer(
                self._storage.store, bookie_id, self._served, self._options.local_readers, self._may_read_locally
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                name = socket_name(self._served[1])[1:].decode()
                logger.warning(
                    "another process has the socket %s, where clients on this host would look for local reads: they "
                    "read over the network. Find out which it is (ss -xlp)",
                    name,
                )
            else:
                logger.info("clients on this host read over the network only: %s", error)

    def _may_read_locally(self, user_id: int) -> bool:
        """Return whether authorization lets a user of this host read every ledger, because entry logs mix ledgers."""
        if self._authorization is None:
            return True
        principal = self._local_principals.get(user_id)
        if principal is None:
            principal = self._local_principals[user_id] = Principal(user_name(user_id), "local")
        return self._authorization.may(principal, "local reads", READ)

    async def collect_garbage(self, *, major: bool = True, minor: bool = True) -> PassReport:
        """Collect garbage now, with a major compaction, a minor one, or no compaction; return the report.

        Raises:
            BookKeeperError: the bookie stopped before it was done.
        """
        assert self._collector is not None, "start_collecting comes first"
        return await self._collector.collect(major=major, minor=minor)

    async def stop(self, slow_s: float = SLOW_STOP_S) -> None:
        """Stop serving, flush everything into entry logs and index, and end the threads.

        If there is no space for that, the journal keeps the entries, and the next start replays them. It waits for
        every disk, and logs after `slow_s` seconds that it still waits.

        Raises:
            BaseException: the error that made a thread of the service fail, before or meanwhile. The next start replays
                the journal.
        """
        loss = _NOTHING_IS_LOST if self.options.bookie.journals_entries else _SOME_IS_LOST
        slow = self._loop.call_later(slow_s, logger.warning, _SLOW_STOP, slow_s, loss)
        try:
            await self._stop()
        finally:
            slow.cancel()

    async def _stop(self) -> None:
        self.abandon()
        # What is not durable in the end must be in the journal.
        self._storage.store.disks.waits = True
        if self._collector is not None:
            await self._collector.stop()
        await asyncio.to_thread(self._checkpoints.stop)
        # The end of the last checkpoint, or its error, may still be on its way to this loop.
        await asyncio.sleep(0)
        if not self.failed.done():
            await self._flush_at_the_end(self._storage)
        for journal in self._journals:
            journal.stop()
            await asyncio.to_thread(journal.join)
        await asyncio.to_thread(self._fetches.join)
        await asyncio.sleep(0)
        if self.failed.done():
            raise self.failed.result()
        self._storage.store.close()

    async def _flush_at_the_end(self, storage: Storage) -> None:
        try:
            if storage.store.is_flushing:
                logger.warning("stopped while a checkpoint waited for space; the next start replays the journal")
            else:
                await self._flush_all(storage)
                await asyncio.to_thread(storage.dirty.clear)
        except JournalFailed as failed:
            self.fail(failed.error)
        except Exception as error:
            if not is_out_of_space(error):
                self.fail(error)
                return
            logger.warning("stopped without flushing, the next start replays the journal: %s", error)

    async def _flush_all(self, storage: Storage) -> None:
        flush = None if storage.store.is_clean else storage.store.begin_flush()
        if flush is not None:
            checkpoint = Checkpoint(flush, [journal.take_mark() for journal in self._journals])
            await asyncio.to_thread(carry_out, checkpoint, storage.store, storage.marks, self._journals)
            storage.store.end_flush(flush)
        await asyncio.to_thread(storage.store.seal_logs)
        await asyncio.to_thread(storage.store.keep_records)

    def abandon(self) -> None:
        """Close the listening socket and every connection at once; adds in flight get no reply."""
        for timer in self._timers:
            timer.cancel()
        if self._limbo_check is not None:
            self._limbo_check.cancel()
        if self._collector is not None:
            self._collector.abandon()
        if self._listener is not None:
            self._listener.close()
        if self._local_reads is not None:
            self._local_reads.close()
        for connection in self.connections.all():
            connection.close()
        self._memory_budget.close()
        self._handshakes.stop()
        self._fetches.stop()

    def _start_threads(self, storage: Storage) -> None:
        self._journals = [
            JournalThread(
                journal,
                self._options.flush,
                JournalEvents(
                    partial(self._call, self._on_durable, index),
                    partial(self._call, self._on_written, index),
                    self.fail,
                    self._post,
                ),
                self._loop,
                f"journal-{index}",
                commits_inline=len(storage.journals) == 1,
            )
            for index, journal in enumerate(storage.journals)
        ]
        self._checkpoints = CheckpointThread(
            storage.store,
            storage.marks,
            self._journals,
            partial(self._post, self._on_checkpoint_done),
            partial(self._post, self._on_checkpoint_stuck),
            partial(self._post, self.fail),
        )
        self._fetches.start()
        for journal in self._journals:
            journal.start()
        self._checkpoints.start()

    def _post(self, callback: Callable[..., None], *arguments: object) -> None:
        """Call back on the event loop, from a thread."""
        # A closed loop has nothing left to call.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._call, callback, *arguments)

    def _call(self, callback: Callable[..., object], *arguments: object) -> None:
        try:
            callback(*arguments)
        except Exception as error:
            self.fail(error)

    def _on_durable(self, journal_index: int, sequence: int) -> None:
        self._bookie.on_durable(journal_index, sequence)

    def _on_written(self, journal_index: int, sequence: int) -> None:
        self._bookie.on_written(journal_index, sequence)

    def _on_checkpoint_done(self, checkpoint: Checkpoint) -> None:
        self._bookie.on_checkpoint_done(checkpoint)
        self._release_flushed()

    async def flush(self) -> None:
        """Return when everything added before is in entry logs and index, or when there is no space for it."""
        for _ in range(2):  # a checkpoint that is running may have begun before
            self._bookie.checkpoint()
            if not self._storage.store.is_flushing or self._disks.is_stuck:
                return
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._flushed.append(waiter)
            await waiter

    def fail(self, error: BaseException) -> None:
        """End the service: `failed` gets the error, unless there was one before."""
        if not self.failed.done():
            self.failed.set_result(error)
            # At once, because from now on nothing is answered, not even what was durable before the error.
            self.abandon()

    def _on_checkpoint_stuck(self, error: OSError) -> None:
        if not self._disks.is_stuck:
            logger.warning("a checkpoint waits for space; the journal keeps everything that is not flushed: %s", error)
        self._bookie.on_checkpoint_stuck()
        # Garbage collection may free space.
        self._release_flushed()

    def _release_flushed(self) -> None:
        flushed, self._flushed = self._flushed, []
        for waiter in flushed:
            if not waiter.done():
                waiter.set_result(None)

    def _look_at_disks(self) -> None:
        self._bookie.look_at_disks()
        if self._disks.is_stuck:
            self._checkpoints.retry()
        problems = self._storage.store.index.problems
        if problems != self._index_problems:
            self._index_problems = problems
            self.on_mode_change()

    def _on_disks_change(self) -> None:
        if not self._options.disks.read_only_mode and self._disks.verdict.refusal and not self.full.done():
            self.full.set_result(
                DiskFull(
                    f"the bookie ends, because readOnlyModeEnabled is false: {self._disks.verdict.refusal}; free space "
                    "and start it again"
                )
            )
        if self._collector is not None and self._disks.verdict.refusal:
            self._collector.hurry()
        self.on_mode_change()

    def _roll(self) -> None:
        self.times.fold()
        self.registry.roll()

    def _watch_connections(self) -> None:
        self.connections.watch(self._loop.time())


class Repeating:
    """Calls `callback` every `interval_s`, until `cancel`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, interval_s: float, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._interval_s = interval_s
        self._callback = callback
        self._handle = loop.call_later(interval_s, self._run)
        """The next call. Replaced at each call."""

    def cancel(self) -> None:
        self._handle.cancel()

    def _run(self) -> None:
        # Planned before the callback, because the callback may cancel the timer.
        self._handle = self._loop.call_later(self._interval_s, self._run)
        self._callback()
