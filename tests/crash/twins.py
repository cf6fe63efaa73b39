"""A bookie without threads or sockets: the real storage and rules, with journal and checkpoint stepped by hand.

The twins make the same calls in the same order as `JournalThread` and `CheckpointThread`; when, the caller says. What
two threads may do at the same time happens here between two operations of the simulated disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from bkspark.wire import v2
from bkspark.wire.framing import FRAME_BYTES_MAX, scan_frames
from bookie_service import collection
from bookie_service.answers import V2_ANSWERS
from bookie_service.batch_reads import BatchRead
from bookie_service.bookie import Bookie, BookieOptions
from bookie_service.collection import LogUsage
from bookie_service.collector import CollectionOptions, Collector, LedgerCensus, PassReport
from bookie_service.disk_watch import DiskOptions, DiskWatch
from bookie_service.entry_lists import StepReport
from bookie_service.formats.marks import JournalPosition
from bookie_service.lone_adds import decode_lone_add
from bookie_service.outbox import Parts
from bookie_service.reads import ReadOptions, ids_of
from bookie_service.single_reads import SingleReads
from bookie_service.storage import checkpoint as checkpoint_steps
from bookie_service.storage.byte_source import Fetched, Place
from bookie_service.storage.checkpoint import Checkpoint, Marks
from bookie_service.storage.files import is_out_of_space
from bookie_service.storage.journal import Journal, JournalOptions, Record
from bookie_service.storage.ledger_storage import LedgerStorage
from bookie_service.storage.ledger_store import StoreOptions
from bookie_service.storage.log_appender import AppendOptions
from bookie_service.storage.opening import open_storage
from bookie_service.turns import ENDLESS, Turn, Turns
from bookie_service.v2_requests import V2Runs
from tests.crash.history import History
from tests.crash.simulated_files import SimulatedDisk, SimulatedFiles


@dataclass(frozen=True, slots=True)
class Setup:
    """How a bookie is configured. Everything is tiny, so that few steps fill, roll and flush it."""

    journals: int = 1
    ledger_directories: int = 1
    store: StoreOptions = field(
        default_factory=lambda: StoreOptions(cache_half_bytes=6144, append=AppendOptions(2600), open_files_max=4)
    )
    journal: JournalOptions = field(
        default_factory=lambda: JournalOptions(file_bytes_max=2000, preallocate_bytes=1024, backups_max=0)
    )

    reads: ReadOptions = field(default_factory=ReadOptions)

    collection: CollectionOptions = field(
        default_factory=lambda: CollectionOptions(deleted_share_max=1.0, entries_per_s=0, bytes_per_s=0)
    )

    @property
    def journal_paths(self) -> list[str]:
        return [f"/journal{i}" for i in range(self.journals)]

    @property
    def ledger_paths(self) -> list[str]:
        return [f"/ledgers{i}" for i in range(self.ledger_directories)]

    def new_disk(self) -> SimulatedDisk:
        """Return a disk on which the operator made the configured directories."""
        disk = SimulatedDisk()
        files = SimulatedFiles(disk)
        for path in (*self.journal_paths, *self.ledger_paths):
            files.make_directory(path)
        return disk


class _Submission(NamedTuple):
    """Records, which must be synced or may wait; or a wish to have all before it durable, and to know its end."""

    sequence: int
    records: Sequence[Record] = ()
    syncs: bool = False
    forces: bool = False
    mark: Future[JournalPosition] | None = None


class JournalTwin:
    """Stands in for `JournalThread`."""

    def __init__(self, journal: Journal, index: int) -> None:
        self._journal = journal
        self._index = index
        self._queue: deque[_Submission] = deque()
        self._sequence = 0
        self._is_at_work = False
        self.bookie: Bookie
        self.failure: OSError | None = None
        """Why the process ends: a journal that failed once is not used again."""

    @property
    def is_idle(self) -> bool:
        return not self._queue

    def submit(self, records: Sequence[Record], *, deferred: bool = False) -> int:
        self._sequence += 1
        self._queue.append(_Submission(self._sequence, records, syncs=not deferred))
        return self._sequence

    def commit(self, records: list[Record]) -> int:
        if self._queue or self._is_at_work:
            return 0
        self._sequence += 1
        sequence = self._sequence
        with self._working():
            self._journal.append(records)
        return sequence

    def force(self) -> int:
        self._sequence += 1
        self._queue.append(_Submission(self._sequence, forces=True))
        return self._sequence

    def take_mark(self) -> Future[JournalPosition]:
        mark: Future[JournalPosition] = Future()
        self._queue.append(_Submission(self._sequence, mark=mark))
        return mark

    def forget_before(self, mark: JournalPosition) -> None:
        self._journal.forget_before(mark)

    def step(self, submissions_max: int = 1000) -> None:
        """Write one group: up to so many submissions, and no further than a mark. Without deferred ones alone it is
        durable then."""
        group: list[_Submission] = []
        while self._queue and len(group) < submissions_max and not (group and group[-1].mark):
            group.append(self._queue.popleft())
        if not group:
            return
        records = [record for submission in group for record in submission.records]
        mark, syncs = group[-1].mark, any(submission.syncs for submission in group)
        forces = mark is not None or any(submission.forces for submission in group)
        with self._working():
            if records:
                self._journal.append(records, deferred=not syncs)
            if forces:
                self._journal.sync()
        if mark is not None:
            mark.set_result(self._journal.end)
        report = self.bookie.on_durable if syncs or forces else self.bookie.on_written
        report(self._index, group[-1].sequence)

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """A group is being written, in the middle of which requests may come."""
        if self.failure is not None:
            raise self.failure
        self._is_at_work = True
        try:
            yield
        except OSError as error:
            self.failure = error
            raise
        finally:
            self._is_at_work = False

    def settle(self) -> None:
        """Finish what is queued; then nothing comes for a moment."""
        while self._queue:
            self.step()
        with self._working():
            self._journal.settle()

    def close(self) -> None:
        while self._queue:
            self.step()
        self._journal.close()


class CheckpointTwin:
    """Stands in for `CheckpointThread`."""

    def __init__(self, store: LedgerStorage, marks: Marks, journals: Sequence[JournalTwin]) -> None:
        self._store = store
        self._marks = marks
        self._journals = journals
        self._queue: deque[Checkpoint] = deque()
        self.bookie: Bookie

    @property
    def is_idle(self) -> bool:
        return not self._queue

    def submit(self, checkpoint: Checkpoint) -> None:
        self._queue.append(checkpoint)

    def step(self) -> bool:
        """Carry one checkpoint out; return False when there is no space: it stays, to be tried again."""
        checkpoint = self._queue[0]
        for journal, mark in zip(self._journals, checkpoint.marks):
            while not mark.done():
                journal.step()
        try:
            checkpoint_steps.carry_out(checkpoint, self._store, self._marks, self._journals)
        except OSError as error:
            # A journal's step may have come between two of a checkpoint's operations.
            if not is_out_of_space(error) or any(journal.failure for journal in self._journals):
                raise
            self.bookie.on_checkpoint_stuck()
            return False
        self._queue.popleft()
        self.bookie.on_checkpoint_done(checkpoint)
        return True


class TakingClient:
    """A connection whose peer takes everything at once."""

    is_open = is_taking = True
    address = "simulated"

    def give_up(self, why: str) -> None:
        raise AssertionError(f"a connection was closed: {why}")

    def resume(self) -> None:
        """Nothing to do: whoever drives the bookie offers again what it did not take."""

    def when_taking(self, callback: Callable[[], None]) -> None:
        raise AssertionError("there is nothing to wait for")


class RecordingClient(TakingClient):
    """A connection that notes what it was promised."""

    def __init__(self, history: History) -> None:
        self._history = history

    def send(self, parts: Parts) -> None:
        buffer = b"".join(parts)
        replies = v2.decode_replies(buffer, scan_frames(buffer, len(buffer)))
        for opcode, status, ledger_id, entry_id in zip(
            replies.opcodes.tolist(), replies.statuses.tolist(), replies.ledger_ids.tolist(), replies.entry_ids.tolist()
        ):
            if opcode == v2.ADD:
                self._history.add_answered(ledger_id, entry_id, status)
            elif status in (v2.Status.EOK, v2.Status.ENOENTRY, v2.Status.ENOLEDGER):
                self._history.fence_answered(ledger_id)


class _LacClient(TakingClient):
    """A connection that notes the answer to one explicit LAC."""

    def __init__(self, history: History, ledger_id: int, lac: int) -> None:
        self._history = history
        self._ledger_id = ledger_id
        self._lac = lac

    def send(self, parts: Parts) -> None:
        if b"".join(parts)[0] == v2.Status.EOK:
            self._history.lac_answered(self._ledger_id, self._lac)


class Answers(TakingClient):
    """A connection that keeps the reply frames' bytes."""

    def __init__(self) -> None:
        self.buffer = b""

    def send(self, parts: Parts) -> None:
        self.buffer += b"".join(parts)


class Known(NamedTuple):
    """What a bookie knows of a ledger beside its entries."""

    fenced: bool
    master_key: bytes
    explicit_lac: bytes


class BookieTwin:
    """One process of a bookie: from opening its storage until it is stopped or simply dropped, which is a crash.

    Raises:
        StorageDamaged, OSError: as `open_storage`; and OSError from any step: the real process ends on it.
    """

    def __init__(self, disk: SimulatedDisk, setup: Setup, history: History) -> None:
        self.setup = setup
        self.disk = disk
        self.history = history
        files = SimulatedFiles(disk)
        self._storage = open_storage(files, setup.journal_paths, setup.ledger_paths, setup.store, setup.journal)
        self.store = self._storage.store
        self.notices = self._storage.notices
        self.is_in_doubt = self._storage.may_have_lost_entries
        """Every ledger is to be put into limbo before anything is served."""
        self.journals = [JournalTwin(journal, index) for index, journal in enumerate(self._storage.journals)]
        self.checkpoints = CheckpointTwin(self.store, self._storage.marks, self.journals)
        self.disks = DiskWatch(files, setup.ledger_paths, setup.journal_paths, DiskOptions())
        self.bookie = Bookie(
            self.store,
            self.journals,
            self.checkpoints,
            self.disks,
            AtHand(),
            BookieOptions(alone_after=1, reads=setup.reads),
            AtOnce(),
        )
        self.bookie.look_at_disks()
        self.checkpoints.bookie = self.bookie
        for journal in self.journals:
            journal.bookie = self.bookie
        self._client = RecordingClient(history)

    def add(
        self, ledger_id: int, entries: Sequence[tuple[int, bytes]], flags: int = 0, key: bytes | None = None
    ) -> None:
        """Send adds of (entry id, payload) as one run; checkpoints run when the write cache is full.

        As any client does, this one ends each entry with a digest. Its entries say that no other is confirmed.
        """
        key = self.history.ledger(ledger_id).master_key if key is None else key
        frames = []
        for entry_id, payload in entries:
            content = sealed(struct.pack(">qqq", ledger_id, entry_id, -1) + payload)
            self.history.add_asked(ledger_id, entry_id, content)
            frames.append(struct.pack(">ii", 24 + len(content), v2.header_word(v2.ADD, flags)) + key + content)
        octets, runs = self._runs(self._client, b"".join(frames))
        alone = decode_lone_add(octets.data, len(octets), FRAME_BYTES_MAX)
        if alone is not None and self.bookie.add_alone(self._client, octets, alone):
            return
        while not runs.serve(octets):
            self.checkpoints.step()

    def _runs(self, client: TakingClient, frames: bytes) -> tuple[np.ndarray, V2Runs]:
        """Return a receive buffer, which the bookie may write to, and the requests in it."""
        buffer = bytearray(frames)
        octets = np.frombuffer(buffer, np.uint8)
        return octets, V2Runs(self.bookie, client, octets, scan_frames(buffer, len(buffer)))

    def fence(self, ledger_id: int, entry_id: int = v2.LAST_ENTRY, key: bytes | None = None) -> None:
        """Send a fencing read."""
        ledger = self.history.ledger(ledger_id)
        if key is None:
            key = ledger.master_key
            self.history.fence_asked(ledger_id)
        octets, runs = self._runs(self._client, v2.encode_reads(ledger_id, np.array([entry_id]), v2.DO_FENCING, key))
        runs.serve(octets)

    def write_lac(self, ledger_id: int, lac: int, key: bytes | None = None) -> None:
        """Send an explicit LAC."""
        if key is None:
            key = self.history.ledger(ledger_id).master_key
            self.history.lac_asked(ledger_id, lac)
        client = _LacClient(self.history, ledger_id, lac)
        self.bookie.write_lac(client, ledger_id, key, lac_packet(ledger_id, lac), lambda status: (bytes([status]),))

    def read(self, ledger_id: int, entry_id: int) -> tuple[int, int, bytes]:
        """Return (status, entry id, entry) of a single read."""
        answers = Answers()
        self.bookie.reads.promise(SingleReads(answers, V2_ANSWERS, *ids_of(ledger_id, entry_id)))
        _, _, status, _, _ = struct.unpack_from(">iiiqq", answers.buffer)
        content = answers.buffer[28:]
        return status, struct.unpack_from(">q", content, 8)[0] if content else -1, content

    def refuses_adds(self, ledger_id: int, key: bytes) -> bool:
        """Say whether an ordinary add is refused; only then the bookie is as before."""
        answers = Answers()
        content = struct.pack(">qq", ledger_id, 0)
        frame = struct.pack(">ii", 24 + len(content), v2.header_word(v2.ADD, 0)) + key + content
        octets, runs = self._runs(answers, frame)
        runs.serve(octets)
        return bool(answers.buffer)

    def header(self, ledger_id: int) -> Known | None:
        """Return what the bookie knows of a ledger, None when it does not know it. Raises StorageDamaged, OSError."""
        ledger = self.store.ledger(ledger_id)
        return None if ledger is None else Known(ledger.fenced, ledger.master_key, ledger.explicit_lac)

    def batch_read(self, ledger_id: int, first_entry: int) -> tuple[int, list[bytes]]:
        """Return (status, entries from `first_entry` on)."""
        answers = Answers()
        self.bookie.reads.promise(BatchRead(answers, ledger_id, first_entry, 1, 0, 1 << 20))
        status = struct.unpack_from(">i", answers.buffer, 8)[0]
        body = answers.buffer[4 + v2.BATCH_REPLY_BYTES :]
        contents, at = [], 0
        while at < len(body):
            end = at + 4 + int.from_bytes(body[at : at + 4], "big")
            contents.append(body[at + 4 : end])
            at = end
        return status, contents

    def settle(self) -> None:
        """Let journals and checkpoints finish what they have."""
        for journal in self.journals:
            while not journal.is_idle:
                journal.step()
        while not self.checkpoints.is_idle and self.checkpoints.step():
            pass

    def checkpoint(self) -> None:
        """Begin a checkpoint and carry it out."""
        self.settle()
        self.bookie.checkpoint()
        self.settle()

    def compact(self, log_id: int, between: Callable[[], None] = lambda: None) -> None:
        """Rewrite one entry log, step by step as the collector does; `between()` comes before positions move."""
        compactor = self._storage.compactor
        if compactor.unfinished is not None:
            return
        try:
            intent = compactor.copy(log_id, _at_once)
        except OSError:
            if any(journal.failure for journal in self.journals):
                raise
            return  # the collector leaves such a log out
        between()
        try:
            if intent is not None:
                compactor.finish(intent, _at_once)
        except OSError as error:
            if not is_out_of_space(error) or any(journal.failure for journal in self.journals):
                raise
            return  # it is done again by the next pass of garbage collection
        self.store.forget_log(log_id)
        compactor.remove(log_id)
        if intent is not None:
            compactor.forget_intent()

    def collect(self, census: LedgerCensus, *, is_forced: bool = True) -> PassReport:
        """Run the real garbage collection: one pass as if somebody asked for it, or two that come by themselves.

        It has an event loop on a thread of its own, for another pass, which a crash image runs, may be inside this one.
        """

        async def flush() -> None:
            self.checkpoint()

        async def run() -> PassReport:
            now_s = 0.0
            collector = Collector(
                self.store,
                self._storage.compactor,
                census,
                self.setup.collection,
                flush,
                _never,
                clock_s=lambda: now_s,
            )
            try:
                if not is_forced:
                    await collector.run_pass(is_forced)
                    now_s += self.setup.collection.interval_s
                return await collector.run_pass(is_forced)
            finally:
                await collector.stop()

        with ThreadPoolExecutor(1) as apart:
            return apart.submit(asyncio.run, run()).result()

    def usages(self) -> list[LogUsage]:
        """Return how much of each settled entry log still counts."""
        held = self.store.index.ledger_ids()
        facts = (self._storage.compactor.facts(log_id, _at_once) for log_id in self.store.logs.settled())
        return [
            collection.usage(each.log_id, each.log_bytes, each.ledger_ids, each.ledger_bytes, held) for each in facts
        ]

    def stop(self) -> None:
        """Stop cleanly, as `BookieService.stop` does."""
        self.settle()
        flush = None if self.store.is_clean else self.store.begin_flush()
        if flush is not None:
            checkpoint = Checkpoint(flush, [journal.take_mark() for journal in self.journals])
            self.settle()
            try:
                checkpoint_steps.carry_out(checkpoint, self.store, self._storage.marks, self.journals)
                self.store.end_flush(flush)
            except OSError as error:
                if not is_out_of_space(error):
                    raise
        for journal in self.journals:
            journal.close()
        self.store.close()


class Remembered:
    """The answers of a bookie that nothing changes any more, each asked for once."""

    def __init__(self, twin: BookieTwin) -> None:
        self.header = functools.cache(twin.header)
        self.refuses_adds = functools.cache(twin.refuses_adds)
        self.read = functools.cache(twin.read)
        self.batch_read = functools.cache(twin.batch_read)


def _never(error: BaseException) -> None:
    """Stand in for what ends the process: a pass that is called directly raises instead."""


class AtHand:
    """Stands in for the fetching threads."""

    def fetch(self, place: Place, on_fetched: Callable[[Fetched], None]) -> None:
        raise AssertionError(f"a simulated disk has everything at hand, and {place} too")

    def run(self, task: Callable[[], StepReport], on_done: Callable[[StepReport], None]) -> None:
        on_done(task())


class AtOnce(Turns):
    """Turns of a bookie that has one client: they never end, and whoever is to go on does so at once."""

    def __init__(self) -> None:
        super().__init__(lambda callback: callback(), lambda: 0.0)

    def begin(self) -> Turn:
        return ENDLESS


def _at_once(entries: int, size: int) -> None:
    """Copy without a limit."""


def sealed(content: bytes) -> bytes:
    """Return an entry with its digest behind it."""
    return content + crc32c(content).to_bytes(4, "big")


def lac_packet(ledger_id: int, lac: int) -> bytes:
    """Return an explicit LAC packet as a client with CRC32C makes it."""
    return sealed(struct.pack(">qq", ledger_id, lac))


def is_sealed(content: bytes) -> bool:
    """Say whether a client would take this for an entry as it was written."""
    return sealed(content[:-4]) == content
