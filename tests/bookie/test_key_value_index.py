"""The index of `DbLedgerStorage` beside many ledgers, most of which were removed."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
from rocksdict import AccessType, Options, Rdict

from bkspark.errors import StorageDamaged
from bkspark.ids import NO_ENTRY
from bookie_service.formats import key_value_index as index_format
from bookie_service.formats.index import LedgerHeader
from bookie_service.formats.key_value_index import ENTRIES_PER_BLOCK
from bookie_service.storage.index.index import LedgerUpdate
from bookie_service.storage.index.key_value_index import KeyValueIndex, KeyValueView
from bookie_service.storage.io.disk_threads import DiskStalled, DiskThreads
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.io.key_values import KeyValueOptions
from bookie_service.storage.io.rocks import RocksKeyValues
from tests.bookie.faulty_files import FaultyFiles
from tests.bookie.late_directories import LateInTurn
from tests.bookie.stalling_files import StallingFiles
from tests.bookie.stepped_twins import new_disk
from tests.crash.images import Loss, crash_image
from tests.crash.simulated_files import SimulatedDisk, SimulatedFiles
from tests.crash.simulated_key_values import SimulatedKeyValues

LEDGERS = 5000
WAIT_S = 20


def _hold(index: KeyValueIndex, ledger_ids: Iterable[int]) -> None:
    one = np.ones(1, np.int64)
    index.hold(LedgerUpdate(each, LedgerHeader(each, 1, False, bytes(20)), one - 1, one) for each in ledger_ids)
    index.sync()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[KeyValueIndex]:
    index = KeyValueIndex(LocalFiles(), str(tmp_path), KeyValueOptions())
    _hold(index, range(LEDGERS))
    yield index
    index.close()


def _remove(index: KeyValueIndex, ledger_ids: Sequence[int]) -> None:
    for ledger_id in ledger_ids:
        index.remove(ledger_id)
    index.sync_removed(ledger_ids)
    index.forget_removed(ledger_ids)


def _left_marks(directory: Path) -> int:
    """Return how many marks of removed keys the store still has on the disk."""
    store = Rdict(str(directory / "positions"), Options(raw_mode=True), access_type=AccessType.read_only(False))
    try:
        return sum(int(each["num_deletions"]) for each in store.live_files())
    finally:
        store.close()


def test_thousands_of_ledgers_are_listed_once_each_in_order(index: KeyValueIndex) -> None:
    assert index.ledger_ids().tolist() == list(range(LEDGERS))
    index.remove(4096)
    index.remove(LEDGERS - 1)
    left = [each for each in range(LEDGERS - 1) if each != 4096]
    assert index.ledger_ids().tolist() == left
    index.hold(
        [LedgerUpdate(4096, LedgerHeader(4096, 1, False, bytes(20)), np.empty(0, np.int64), np.empty(0, np.int64))]
    )
    assert index.holding_entries(np.arange(LEDGERS)).tolist() == left
    assert index.holding_entries(np.empty(0, np.int64)).tolist() == []


@pytest.mark.parametrize(
    ("removed", "marks"),
    [
        (range(100, 1100), 0),
        (range(100, 4100, 4), 0),
        (range(100, 1099), 2 * 999),
        (range(0, LEDGERS, 5), 2 * 1000),
        (range(LEDGERS), 0),
    ],
    ids=["a run", "every fourth", "too few", "too far from each other", "all"],
)
def test_reads_need_not_step_over_a_long_run_of_removed_ledgers(
    index: KeyValueIndex, tmp_path: Path, removed: Sequence[int], marks: int
) -> None:
    _remove(index, removed)
    assert _left_marks(tmp_path) == marks
    assert index.ledger_ids().tolist() == sorted(set(range(LEDGERS)).difference(removed))
    for ledger_id in (0, 99, 1100, LEDGERS - 1):
        assert index.last_entry(ledger_id) == (NO_ENTRY if ledger_id in removed else 0)


@pytest.mark.parametrize("left", [0, ENTRIES_PER_BLOCK - 1])
def test_block_of_which_all_entries_but_one_are_written_again_keeps_the_one(tmp_path: Path, left: int) -> None:
    index = KeyValueIndex(LocalFiles(), str(tmp_path), KeyValueOptions())
    ids = np.arange(2 * ENTRIES_PER_BLOCK)
    again = np.delete(ids[:ENTRIES_PER_BLOCK], left)
    index.hold([LedgerUpdate(7, LedgerHeader(7, 1, False, bytes(20)), ids, ids + 1)])
    index.hold([LedgerUpdate(7, None, again, again + 5001)])
    wanted = ids + 1
    wanted[again] += 5000
    assert index.positions(7, 0, len(ids)).tolist() == wanted.tolist()
    index.close()


def test_extents_of_a_key_value_store_end_before_the_entry_that_is_named(tmp_path: Path) -> None:
    index = KeyValueIndex(LocalFiles(), str(tmp_path), KeyValueOptions())
    ids = np.arange(ENTRIES_PER_BLOCK + 10)
    index.hold([LedgerUpdate(7, LedgerHeader(7, 1, False, bytes(20)), ids, ids + 1)])
    for first, end in ((0, 1), (3, 6), (3, ENTRIES_PER_BLOCK), (ENTRIES_PER_BLOCK - 1, ENTRIES_PER_BLOCK + 2)):
        found = [(at + number, each) for at, some in index.extents(7, first, end) for number, each in enumerate(some)]
        assert found == [(each, each + 1) for each in range(first, end)]
    index.close()


def test_store_opens_after_a_power_cut_at_any_moment_of_a_commit() -> None:
    """Its commit number must be durable in it before the file beside it says so."""
    disk, random = new_disk("/a"), Random(1)
    index = KeyValueIndex(SimulatedFiles(disk), "/a", KeyValueOptions())
    _hold(index, [1])
    images: list[SimulatedDisk] = []
    disk.before_operation = lambda operation, path: images.extend(crash_image(disk, loss, random) for loss in Loss)
    _hold(index, [2])
    disk.before_operation = None
    assert len(images) > 3 * len(Loss)
    for image in images:
        opened = KeyValueIndex(SimulatedFiles(image), "/a", KeyValueOptions())
        assert opened.ledger_ids().tolist() in ([1], [1, 2])
        opened.close()


@pytest.mark.parametrize(
    ("block_bytes", "bloom_bits", "filter_policy"), [(8192, 10, "bloomfilter"), (16384, 0, "nullptr")]
)
def test_database_has_the_configured_blocks_and_filters_and_its_indexes_count_to_its_cache(
    tmp_path: Path, block_bytes: int, bloom_bits: int, filter_policy: str
) -> None:
    options = KeyValueOptions(block_bytes=block_bytes, bloom_bits_per_key=bloom_bits)
    RocksKeyValues(str(tmp_path), options).close()
    (written,) = tmp_path.glob("OPTIONS-*")
    stored = {line.strip() for line in written.read_text().splitlines()}
    assert {f"block_size={block_bytes}", f"filter_policy={filter_policy}"} <= stored
    assert "cache_index_and_filter_blocks=true" in stored


def test_store_without_space_is_not_rewritten(tmp_path: Path) -> None:
    (tmp_path / "positions").mkdir()
    store = RocksKeyValues(str(tmp_path / "positions"), KeyValueOptions(), has_space=lambda: False)
    keys = [bytes([each]) for each in range(100)]
    store.write([(key, b"value") for key in keys])
    store.sync()
    store.write([], [(key, key + b"\0") for key in keys])
    store.sync()
    store.forget_removed([(keys[0], keys[-1])])
    store.close()
    assert _left_marks(tmp_path) == len(keys)


def test_damage_that_is_found_after_ledgers_were_removed_does_not_fail_their_removal(tmp_path: Path) -> None:
    """To let reads no longer step over removed ledgers, the store merges its files, and so it reads all of them."""
    index = KeyValueIndex(LocalFiles(), str(tmp_path), KeyValueOptions())
    _hold(index, range(LEDGERS))
    index.close()
    (path,) = (tmp_path / "positions").glob("*.sst")
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    index = KeyValueIndex(LocalFiles(), str(tmp_path), KeyValueOptions())
    try:
        with pytest.raises(StorageDamaged, match="the key-value store is damaged"):
            index.header(0)
        removed = range(2000, 4000)
        _remove(index, removed)
        assert [index.last_entry(each) for each in (removed[0], removed[-1])] == [NO_ENTRY, NO_ENTRY]
        _hold(index, [LEDGERS])
        assert index.last_entry(LEDGERS) == 0
    finally:
        # RocksDB writes nothing out after it found damage.
        with contextlib.suppress(StorageDamaged):
            index.close()


class PipedStore:
    """A store whose next files are pipes: what writes one does not end, and cannot sync it."""

    def __init__(self, directory: Path) -> None:
        self.store = RocksKeyValues(str(directory), KeyValueOptions())
        self.keys = [b"key %5d" % number for number in range(3000)]
        for _ in range(2):
            # Otherwise the store moves a file as a whole. What it writes must not fit into a pipe.
            self.store.write([(key, os.urandom(1000)) for key in self.keys])
            self.store.sync()
        self._directory = directory
        self._last = max(int(path.stem) for path in directory.glob("*.sst"))
        self._pipes: dict[Path, int] = {}

    def pipe(self, number: int) -> int:
        """Make the next file but `number` a pipe; return its descriptor for reading."""
        path = self._directory / f"{self._last + 1 + number:06d}.sst"
        os.mkfifo(path)
        self._pipes[path] = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        return self._pipes[path]

    def end(self) -> None:
        """Let what writes a pipe fail."""
        for path, descriptor in self._pipes.items():
            path.unlink(missing_ok=True)
            os.close(descriptor)
        self._pipes.clear()

    @contextlib.contextmanager
    def rewritten(self) -> Iterator[None]:
        """Let the store be rewritten in the context. It does not end before the context does, and then it fails."""
        pipe = self.pipe(0)
        thread = threading.Thread(target=self.store.forget_removed, args=([(self.keys[0], self.keys[-1])],))
        thread.start()
        try:
            assert select.select([pipe], [], [], WAIT_S)[0]
            yield
            assert thread.is_alive()
        finally:
            self.end()
            thread.join(WAIT_S)
            assert not thread.is_alive()


@pytest.fixture
def piped(tmp_path: Path) -> Iterator[PipedStore]:
    made = PipedStore(tmp_path)
    yield made
    made.store.close()


def _write_durably(store: RocksKeyValues, key: bytes) -> None:
    store.write([(key, b"value")])
    store.sync()


def test_writes_and_syncs_do_not_wait_while_a_store_is_rewritten_without_removed_ledgers(piped: PipedStore) -> None:
    """A flush holds `writing` during a sync, and the disk counts as late if the sync lasts long."""
    with piped.rewritten():
        writing = threading.Thread(target=_write_durably, args=(piped.store, b"beside"), daemon=True)
        writing.start()
        writing.join(WAIT_S)
        assert not writing.is_alive()
    _write_durably(piped.store, b"later")
    assert piped.store.get([b"beside", b"later"]) == [b"value", b"value"]


def test_store_is_not_opened_again_while_it_is_rewritten_and_keeps_what_was_not_synced(piped: PipedStore) -> None:
    with piped.rewritten():
        piped.pipe(1)
        with pytest.raises(OSError, match="IO error"):
            _write_durably(piped.store, b"refused sync")
        with pytest.raises(OSError, match="is rewritten first") as refused:
            piped.store.sync()
        assert refused.value.errno == errno.ENOSPC, "the caller tries again later"
    _write_durably(piped.store, b"later")
    assert piped.store.get([b"refused sync", b"later"]) == [b"value", b"value"]


# ---- a disk that stalls ----


HEALTHY_S = 60.0
"""A disk that does not stall has finished by then, also on a busy machine."""


class Stalling:
    """An index whose disk, the first of two, stalls while it writes the number of a commit. Otherwise it is never late,
    however slow the machine is."""

    def __init__(self, directory: Path) -> None:
        self.files = StallingFiles()
        self.disks = DiskThreads([str(directory), "another"], HEALTHY_S)
        self.disks.waits = False
        options = KeyValueOptions(write_buffer_bytes=1 << 20)
        self.index = KeyValueIndex(self.files, str(directory), options, disks=self.disks)

    def hold(self, ledger_ids: Iterable[int]) -> None:
        one = np.ones(1, np.int64)
        self.index.hold(
            LedgerUpdate(each, LedgerHeader(each, 1, False, bytes(20)), one - 1, one) for each in ledger_ids
        )

    def stall(self, ledger_id: int) -> None:
        """Hold a ledger, and begin a sync that is late."""
        self.files.stall(index_format.COMMIT_NAME)
        self.hold([ledger_id])
        self.disks.stall_s = 0.05
        with pytest.raises(DiskStalled):
            self.index.sync()

    def release(self) -> None:
        self.files.release()
        self.disks.settle()
        self.disks.stall_s = HEALTHY_S

    def close(self) -> None:
        self.release()
        self.disks.stop()
        self.index.close()


@pytest.fixture
def stalling(tmp_path: Path) -> Iterator[Stalling]:
    made = Stalling(tmp_path)
    yield made
    made.close()


def test_what_is_held_during_a_late_sync_is_read_at_once_and_durable_after_the_next_one(
    stalling: Stalling, tmp_path: Path
) -> None:
    """A sync makes durable what was held before it began: it must not pass for that of what came later."""
    stalling.stall(1)
    stalling.hold([2])
    assert stalling.index.has(2)
    with pytest.raises(DiskStalled, match="has not finished a sync yet"):
        stalling.index.sync()
    assert not stalling.index.is_clean
    stalling.release()
    stalling.index.sync()
    assert stalling.index.is_clean
    assert index_format.decode_commit((tmp_path / index_format.COMMIT_NAME).read_bytes()) == 2
    store = Rdict(str(tmp_path / "positions"), Options(raw_mode=True), access_type=AccessType.read_only(False))
    assert None not in store.get([index_format.header_key(each) for each in (1, 2)])
    store.close()


def test_late_sync_that_fails_in_the_end_is_an_error_of_the_next_one_and_can_be_repeated(stalling: Stalling) -> None:
    stalling.stall(1)
    stalling.files.code = errno.ENOSPC
    stalling.files.fault = lambda operation, path: operation == "sync_data" and index_format.COMMIT_NAME in path
    stalling.release()
    with pytest.raises(OSError, match="No space left"):
        stalling.index.sync()
    assert not stalling.index.is_clean
    stalling.files.fault = None
    stalling.index.sync()
    assert stalling.index.is_clean


class LateUntilWaitedFor(LateInTurn):
    """Directories that are late until someone waits for them."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_for: list[Collection[int]] = []

    def wait_for_any(self, places: Collection[int]) -> None:
        self.waited_for.append(places)
        self.finish()


def test_no_more_is_held_during_a_late_sync_than_the_memory_of_the_store_takes(tmp_path: Path) -> None:
    """With more, RocksDB makes the writer wait for its disk, and every reader with it."""
    disks = LateUntilWaitedFor()
    index = KeyValueIndex(LocalFiles(), str(tmp_path), KeyValueOptions(write_buffer_bytes=1 << 17), disks=disks)
    one = np.ones(1, np.int64)

    def hold(ledger_ids: Iterable[int]) -> None:
        index.hold(LedgerUpdate(each, LedgerHeader(each, 1, False, bytes(20)), one - 1, one) for each in ledger_ids)

    disks.late = {0}
    hold(range(1000))
    with pytest.raises(DiskStalled):
        index.sync()
    hold(range(1000, 1010))
    assert disks.waited_for == []
    hold(range(1010, 3000))
    assert list(disks.waited_for[0]) == [0]
    index.sync()
    assert index.is_clean
    assert index.has(2999)
    index.close()


def test_store_is_made_durable_before_its_memory_is_full_also_without_a_sync(tmp_path: Path) -> None:
    """A store whose memory is full waits for its disk, and Python with it."""
    buffer_bytes = 1 << 17
    index = KeyValueIndex(LocalFiles(), str(tmp_path), KeyValueOptions(write_buffer_bytes=buffer_bytes))
    one = np.ones(1, np.int64)
    commits = []
    for ledger_id in range(3000):
        index.hold([LedgerUpdate(ledger_id, LedgerHeader(ledger_id, 1, False, bytes(20)), one - 1, one)])
        assert not index.is_clean
        path = tmp_path / index_format.COMMIT_NAME
        commits.append(index_format.decode_commit(path.read_bytes()) if path.exists() else 0)
    ledgers_of_a_commit = np.bincount(np.array(commits))
    assert len(ledgers_of_a_commit) > 3
    row_bytes = 9 + len(index_format.encode_header(LedgerHeader(0, 1, False, bytes(20)))) + 17 + 8
    assert ledgers_of_a_commit.max() <= buffer_bytes // 2 // row_bytes
    index.sync()
    assert index.is_clean
    assert index_format.decode_commit(path.read_bytes()) == commits[-1] + 1
    index.close()
    index = KeyValueIndex(LocalFiles(), str(tmp_path), KeyValueOptions())
    assert index.ledger_ids().tolist() == list(range(3000))
    index.close()


def test_sync_that_fails_before_memory_is_full_is_an_error_of_what_is_held_next_and_can_be_repeated(
    tmp_path: Path,
) -> None:
    files = FaultyFiles()
    index = KeyValueIndex(files, str(tmp_path), KeyValueOptions(write_buffer_bytes=1 << 17))
    one = np.ones(1, np.int64)

    def hold_all() -> None:
        for each in range(3000):
            index.hold([LedgerUpdate(each, LedgerHeader(each, 1, False, bytes(20)), one - 1, one)])

    files.code = errno.ENOSPC
    files.fault = lambda operation, path: index_format.COMMIT_NAME in path
    with pytest.raises(OSError, match="No space left"):
        hold_all()
    assert not index.is_clean
    files.fault = None
    hold_all()
    index.sync()
    assert index.is_clean
    assert index.ledger_ids().tolist() == list(range(3000))
    index.close()


class SearchedKeyValues(SimulatedKeyValues):
    """A store with a list of the searches for last keys."""

    def __init__(self, files: SimulatedFiles, directory: str) -> None:
        super().__init__(files, directory)
        self.searched: list[bytes] = []

    def last(self, first: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        self.searched.append(first)
        return super().last(first, end)


def test_a_removed_ledger_is_known_by_its_header_alone() -> None:
    """To look for its last position would step over all ledgers that were removed beside it."""
    files = SimulatedFiles(SimulatedDisk())
    files.make_directory("/positions")
    store = SearchedKeyValues(files, "/positions")
    block = index_format.encode_block(np.ones(3, np.int64))
    for ledger_id in (7, 8):
        store.write([(index_format.header_key(ledger_id), b""), (index_format.block_key(ledger_id, 0), block)])
    store.write([], [(index_format.header_key(7), index_format.header_key(7) + b"\0"), index_format.blocks_of(7)])
    view = KeyValueView("/positions", store)
    assert view.last_entry(7) == NO_ENTRY
    assert view.positions(7, 0, 3).tolist() == []
    assert store.searched == []
    assert view.last_entry(8) == 2
    assert len(store.searched) == 1
