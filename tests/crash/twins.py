"""A bookie without threads or sockets: the real storage, journal threads and rules, whose steps the caller takes.

`stepped` has the event loop and the threads.
"""

from __future__ import annotations

import asyncio
import functools
import os
import struct
from collections.abc import Callable, Collection, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2
from bkspark.wire.framing import FRAME_BYTES_MAX, scan_frames
from bookie_service.engine.bookie import Bookie
from bookie_service.engine.bookie_environment import BookieOptions
from bookie_service.engine.disk_watch import DiskOptions, DiskWatch
from bookie_service.engine.entry_lists import StepReport
from bookie_service.engine.reads import ReadOptions, ids_of
from bookie_service.engine.single_reads import SingleReads
from bookie_service.engine.turns import ENDLESS, Turn, Turns
from bookie_service.formats import key_value_index
from bookie_service.gc import gc_policy
from bookie_service.gc.collection_options import CollectionOptions
from bookie_service.gc.collection_status import PassReport
from bookie_service.gc.garbage_collector import CollectorCallbacks, GarbageCollector, GarbageView
from bookie_service.gc.gc_policy import LogUsage
from bookie_service.network.response_encoders import V2_RESPONSES
from bookie_service.network.send_buffer import Parts
from bookie_service.network.v2_batch_read import BatchRead
from bookie_service.network.v2_requests import V2RequestStream
from bookie_service.network.v3_lac_reads import LacReads
from bookie_service.storage import layout
from bookie_service.storage.io.byte_source import Fetched, FileRange
from bookie_service.storage.io.files import is_out_of_space, may_be_repeated
from bookie_service.storage.journal import checkpoint as checkpoint_steps
from bookie_service.storage.journal.checkpoint import Checkpoint
from bookie_service.storage.journal.flush_policy import FlushLimits
from bookie_service.storage.journal.journal import JournalOptions
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.opening import open_storage
from bookie_service.storage.logs.compaction import LogInDoubt
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.bookie.collecting import intended_copy
from tests.crash.history import History
from tests.crash.simulated_files import SimulatedDisk, SimulatedFiles
from tests.crash.stepped import Checkpoints, Loop, SteppedJournal


@dataclass(frozen=True, slots=True)
class Setup:
    """How a bookie is configured. Everything is tiny, so that few steps fill, roll and flush it."""

    journals: int = 1
    ledger_directories: int = 1
    has_one_store: bool = False
    """Whether an earlier build made the bookie: with DbLedgerStorage it has one store for all directories then."""
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
    flush: FlushLimits = field(default_factory=FlushLimits)
    serial_writer_after: int = 1
    operation_ns: int = 0
    """How long an operation of the disk takes, as a journal's thread sees it: with 4 ms it counts as slow."""

    @property
    def journal_paths(self) -> list[str]:
        return [f"/journal{i}" for i in range(self.journals)]

    @property
    def ledger_paths(self) -> list[str]:
        return [f"/ledgers{i}" for i in range(self.ledger_directories)]

    @property
    def current_journal_paths(self) -> list[str]:
        return [layout.current(path) for path in self.journal_paths]

    @property
    def current_ledger_paths(self) -> list[str]:
        """The directories that the store uses."""
        return [layout.current(path) for path in self.ledger_paths]

    def new_disk(self) -> SimulatedDisk:
        """Return a disk on which the operator made the configured directories."""
        disk = SimulatedDisk()
        files = SimulatedFiles(disk)
        for path in (*self.journal_paths, *self.ledger_paths):
            files.make_directory(path)
        if self.has_one_store:
            files.make_directory(os.path.join(self.current_ledger_paths[0], key_value_index.DIRECTORY_NAME))
        return disk


class TakingClient:
    """A connection whose peer takes everything at once."""

    is_open = is_taking = True

    @property
    def address(self) -> Hashable:
        """A machine of its own: of one machine, fences of unknown ledgers would wait for each other."""
        return self

    def give_up(self, why: str) -> None:
        raise AssertionError(f"a connection was closed: {why}")

    def resume(self) -> None:
        """Does nothing: the driver of the bookie offers refused requests again."""

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


class _SilentClient(TakingClient):
    """A connection whose answers are not recorded."""

    def send(self, parts: Parts) -> None:
        pass


SILENT = _SilentClient()


class Sent(TakingClient):
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
        self.loop = Loop()
        self.journals = [
            SteppedJournal(
                journal,
                index,
                self.loop,
                setup.flush,
                lambda: disk.operations * setup.operation_ns,
                commits_inline=setup.journals == 1,
            )
            for index, journal in enumerate(self._storage.journals)
        ]
        self.checkpoints = Checkpoints(self.store, self._storage.marks, self.journals, self.loop)
        self.disks = DiskWatch(files, setup.current_ledger_paths, setup.current_journal_paths, DiskOptions())
        self.bookie = Bookie(
            self.store,
            [journal.thread for journal in self.journals],
            self.checkpoints,
            self.disks,
            AtHand(),
            BookieOptions(serial_writer_after=setup.serial_writer_after, reads=setup.reads),
            AtOnce(),
        )
        self.checkpoints.bookie = self.bookie
        if self._storage.stuck is not None:
            # As BookieService does.
            self.bookie.on_checkpoint_stuck()
            self.checkpoints.submit(Checkpoint(self._storage.stuck, []))
        self.store.disks.waits = False
        self.bookie.look_at_disks()
        for journal in self.journals:
            journal.bookie = self.bookie
        self._client = RecordingClient(history)

    def begin_run(self, suspects: Collection[int]) -> None:
        """Put all ledgers into limbo if something of them may be lost, as `BookieService` does before it serves.

        `suspects`: the ledgers that this bookie has according to the metadata store.
        """
        if self.is_in_doubt:
            self.store.limbo.begin({*self.store.index.ledger_ids().tolist(), *suspects})

    def is_in_limbo(self, ledger_id: int) -> bool:
        return ledger_id in self.store.limbo

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
            frames.append(add_frame(key, content, flags))
        self.serve(self._client, b"".join(frames))

    def serve(self, client: TakingClient, frames: bytes) -> None:
        """Take requests that came at once from a connection; checkpoints run when the write cache is full."""
        octets, runs = self.received(client, frames)
        alone = v2.decode_single_add(octets.data, len(octets), FRAME_BYTES_MAX)
        with self.loop.serving():
            is_served = alone is not None and self.bookie.add_single(client, octets, alone)
        while not is_served:
            with self.loop.serving():
                is_served = runs.serve(octets)
            if not is_served:
                self.make_room()

    def make_room(self) -> None:
        """Do what a connection waits for whose adds found the write cache full."""
        if not self.checkpoints.is_idle:
            self.checkpoints.step()
        else:
            assert not self.loop.is_idle, "adds wait for room that nothing makes"
            self.loop.turn()

    def received(self, client: TakingClient, frames: bytes) -> tuple[np.ndarray, V2RequestStream]:
        """Return a receive buffer, which the bookie may write to, and the requests in it."""
        buffer = bytearray(frames)
        octets = np.frombuffer(buffer, np.uint8)
        return octets, V2RequestStream(self.bookie, client, octets, scan_frames(buffer, len(buffer)))

    def fence(self, ledger_id: int, entry_id: int = v2.LAST_ENTRY, key: bytes | None = None) -> None:
        """Send a fencing read."""
        ledger = self.history.ledger(ledger_id)
        if key is None:
            key = ledger.master_key
            self.history.fence_asked(ledger_id)
        self.serve(RecordingClient(self.history), v2.encode_reads(ledger_id, np.array([entry_id]), v2.DO_FENCING, key))

    def write_lac(self, ledger_id: int, lac: int, key: bytes | None = None) -> None:
        """Send an explicit LAC."""
        if key is None:
            key = self.history.ledger(ledger_id).master_key
            self.history.lac_asked(ledger_id, lac)
        client = _LacClient(self.history, ledger_id, lac)
        self.serve_lac(client, ledger_id, lac, key)

    def serve_lac(self, client: TakingClient, ledger_id: int, lac: int, key: bytes) -> None:
        """Take an explicit LAC, which gets one byte for an answer: its status."""
        packet = lac_packet(ledger_id, lac)
        is_served = False
        while not is_served:
            with self.loop.serving():
                waits = self.bookie.write_lac(client, ledger_id, key, packet, lambda status: (bytes([status]),))
            is_served = waits is None
            if not is_served:
                self.make_room()

    def read(self, ledger_id: int, entry_id: int) -> tuple[int, int, bytes]:
        """Return (status, entry id, entry) of a single read."""
        answers = Sent()
        self.bookie.reads.enqueue(SingleReads(answers, V2_RESPONSES, *ids_of(ledger_id, entry_id)))
        _, _, status, _, _ = struct.unpack_from(">iiiqq", answers.buffer)
        content = answers.buffer[28:]
        return status, struct.unpack_from(">q", content, 8)[0] if content else -1, content

    def read_lac(self, ledger_id: int) -> tuple[int, bytes]:
        """Return (status, explicit LAC packet or b"") of a READ_LAC; the status is V3's."""
        answers = Sent()
        self.bookie.reads.enqueue(LacReads(answers, np.zeros(1, np.int64), np.array([ledger_id])))
        response = protocol.Response.FromString(answers.buffer[4:])
        return response.status, response.readLacResponse.lacBody

    def refuses_adds(self, ledger_id: int, key: bytes) -> bool:
        """Say whether an ordinary add is refused or finds no room; only then the bookie is as before."""
        answers = Sent()
        content = struct.pack(">qqq", ledger_id, 0, -1)
        octets, runs = self.received(answers, add_frame(key, content))
        return not runs.serve(octets) or bool(answers.buffer)

    def header(self, ledger_id: int) -> Known | None:
        """Return what the bookie knows of a ledger, None when it does not know it. Raises StorageDamaged, OSError."""
        ledger = self.store.ledger(ledger_id)
        return None if ledger is None else Known(ledger.fenced, ledger.master_key, ledger.explicit_lac)

    def batch_read(self, ledger_id: int, first_entry: int) -> tuple[int, list[bytes]]:
        """Return (status, entries from `first_entry` on)."""
        answers = Sent()
        self.bookie.reads.enqueue(BatchRead(answers, ledger_id, first_entry, 1, 0, 1 << 20))
        status = struct.unpack_from(">i", answers.buffer, 8)[0]
        body = answers.buffer[4 + v2.BATCH_REPLY_BYTES :]
        contents, at = [], 0
        while at < len(body):
            end = at + 4 + int.from_bytes(body[at : at + 4], "big")
            contents.append(body[at + 4 : end])
            at = end
        return status, contents

    def settle(self) -> None:
        """Let event loop, journals and checkpoints finish what they have."""
        self._settle_journals()
        while not self.checkpoints.is_idle and self.checkpoints.step():
            self._settle_journals()

    def _settle_journals(self) -> None:
        for journal in self.journals:
            while not journal.is_idle:
                journal.step()

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
            intent = intended_copy(compactor, log_id)
        except (OSError, LogInDoubt):
            return  # the collector leaves such a log out
        between()
        try:
            if intent is not None:
                compactor.finish(intent, _at_once)
        except OSError as error:
            if not may_be_repeated(error):
                raise
            return  # it is done again by the next pass of garbage collection
        self.store.forget_log(log_id)
        compactor.remove(log_id)
        if intent is not None:
            compactor.forget_intent()

    def collect(self, metadata_view: GarbageView, *, is_forced: bool = True) -> PassReport:
        """Run the real garbage collection: one requested pass, or two scheduled ones.

        It has an event loop on a thread of its own, for another pass, which a crash image runs, may be inside this one.
        """

        async def flush() -> None:
            self.checkpoint()

        async def run() -> PassReport:
            now_s = 0.0
            collector = GarbageCollector(
                self.store,
                self._storage.compactor,
                metadata_view,
                self.setup.collection,
                CollectorCallbacks(flush, _never),
                clock_s=lambda: now_s,
            )
            try:
                if not is_forced:
                    await collector.run_pass(is_forced=is_forced)
                    now_s += self.setup.collection.interval_s
                return await collector.run_pass(is_forced=is_forced)
            finally:
                await collector.stop()

        with ThreadPoolExecutor(1) as apart:
            return apart.submit(asyncio.run, run()).result()

    def usages(self) -> list[LogUsage]:
        """Return how much of each rotated entry log still counts."""
        held = self.store.index.ledger_ids()
        facts = (self._storage.compactor.facts(log_id, _at_once) for log_id in self.store.logs.rotated())
        return [
            gc_policy.usage(each.log_id, each.log_bytes, each.ledger_ids, each.ledger_bytes, held) for each in facts
        ]

    def stop(self) -> None:
        """Stop cleanly, as `BookieService.stop` does."""
        self.store.disks.waits = True
        self.settle()
        flush = None if self.store.is_clean else self.store.begin_flush()
        if flush is not None:
            threads = [journal.thread for journal in self.journals]
            checkpoint = Checkpoint(flush, [thread.take_mark() for thread in threads])
            self.settle()
            try:
                checkpoint_steps.carry_out(checkpoint, self.store, self._storage.marks, threads)
                self.store.end_flush(flush)
            except checkpoint_steps.JournalFailed as failed:
                raise failed.error from failed
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
        self.is_in_limbo = functools.cache(twin.is_in_limbo)
        self.refuses_adds = functools.cache(twin.refuses_adds)
        self.read_lac = functools.cache(twin.read_lac)
        self.read = functools.cache(twin.read)
        self.batch_read = functools.cache(twin.batch_read)


def _never(error: BaseException) -> None:
    """Stand in for what ends the process: a pass that is called directly raises instead."""


class AtHand:
    """Stands in for the fetching threads."""

    def fetch(self, place: FileRange, on_fetched: Callable[[Fetched], None]) -> None:
        raise AssertionError(f"a simulated disk has everything at hand, and {place} too")

    def run(self, task: Callable[[], StepReport], on_done: Callable[[StepReport], None]) -> None:
        on_done(task())


class AtOnce(Turns):
    """Turns of a bookie that has one client: they never end, and a queued owner continues at once."""

    def __init__(self) -> None:
        super().__init__(lambda _, callback: callback(), lambda: 0.0)

    def begin(self, owner: Hashable) -> Turn:
        return ENDLESS


def _at_once(entries: int, size: int) -> None:
    """Copy without a limit."""


def sealed(content: bytes) -> bytes:
    """Return an entry followed by its digest."""
    return content + crc32c(content).to_bytes(4, "big")


def add_frame(key: bytes, content: bytes, flags: int = 0) -> bytes:
    """Return the frame of a V2 add."""
    return struct.pack(">ii", 24 + len(content), v2.header_word(v2.ADD, flags)) + key + content


def lac_packet(ledger_id: int, lac: int) -> bytes:
    """Return an explicit LAC packet as a client with CRC32C makes it."""
    return sealed(struct.pack(">qq", ledger_id, lac))


def is_sealed(content: bytes) -> bool:
    """Say whether a client would take this for an entry as it was written."""
    return sealed(content[:-4]) == content
