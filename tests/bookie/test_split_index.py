"""One key-value store for each ledger directory: its formats, what stays in memory, and the commands that make it."""

from __future__ import annotations

import errno
import itertools
import os
import threading
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from bkspark.errors import ConfigurationError, StorageDamaged
from bkspark.wire.status import Status
from bookie_service.admin.check import BookieCheck
from bookie_service.admin.conversion import Conversion
from bookie_service.admin.rebuild import Rebuild
from bookie_service.formats import key_value_index as index_format
from bookie_service.formats.kept_changes import KeptChanges
from bookie_service.formats.key_value_index import StoreCommit
from bookie_service.storage import layout
from bookie_service.storage.index.key_value_index import ENTRIES_PER_BLOCK
from bookie_service.storage.index.split_index import share_of
from bookie_service.storage.index.split_layout import find_layout
from bookie_service.storage.io import kept_key_values
from bookie_service.storage.io.files import ReadOnlyFiles
from bookie_service.storage.io.kept_key_values import KeptKeyValues
from bookie_service.storage.io.key_values import KeyValueOptions, KeyValues
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.bookie.serving import Serving, service_options, stopped_in, stored
from tests.crash.audit import audit
from tests.crash.doubts import stopped_bookie
from tests.crash.history import History
from tests.crash.images import Loss, crash_image, images_of_crashes
from tests.crash.simulated_files import Fault, SimulatedDisk, SimulatedFiles, os_error
from tests.crash.simulated_key_values import SimulatedKeyValues
from tests.crash.split_stores import LEDGERS, filled, put, split_setup
from tests.crash.twins import BookieTwin
from tests.planting import around, changed

SETUP = split_setup(2)
EVERY = 11
"""One of this many images is tried: neighbours differ little."""


# ---- formats ----


@pytest.mark.parametrize(
    "commit", [StoreCommit(0, 2, 0, True), StoreCommit(7, 3, 2), StoreCommit((1 << 40) - 1, 255, 254)]
)
def test_record_of_one_of_several_stores_is_read_as_it_was_written(commit: StoreCommit) -> None:
    assert index_format.decode_store_commit(index_format.encode_store_commit(commit)) == commit


def test_record_of_the_only_store_is_read_with_the_others() -> None:
    assert index_format.decode_store_commit(index_format.encode_commit(6)) == StoreCommit(6)


def test_bookie_that_knows_one_store_refuses_the_record_of_several() -> None:
    """It reads 20 bytes with this magic and a right checksum, and refuses what is not version 1."""
    data = index_format.encode_store_commit(StoreCommit(3, 2, 1))
    assert len(data) == len(index_format.encode_commit(3))
    with pytest.raises(ValueError, match="version 2, this bookie reads 1: run the bookie that wrote it"):
        index_format.decode_commit(data)


@pytest.mark.parametrize("commit", [StoreCommit(1, 1, 0), StoreCommit(1, 2, 2), StoreCommit(1, 0, 0)])
def test_record_of_a_store_that_cannot_be_is_refused(commit: StoreCommit) -> None:
    with pytest.raises(ValueError, match="which cannot be"):
        index_format.decode_store_commit(index_format.encode_store_commit(commit))


@pytest.mark.parametrize("at", range(20))
def test_damaged_record_is_not_read(at: int) -> None:
    data = bytearray(index_format.encode_store_commit(StoreCommit(3, 2, 1)))
    data[at] ^= 1
    assert index_format.decode_store_commit(bytes(data)) is None


@pytest.mark.parametrize("stores", [2, 12, 255])
def test_share_of_each_store_has_room_for_more_than_one_write(stores: int) -> None:
    share = share_of(KeyValueOptions(), stores)
    one_write = 1024 * (8 * ENTRIES_PER_BLOCK + 17)
    assert share.write_buffer_bytes // 2 > one_write
    assert share.cache_bytes * stores <= KeyValueOptions().cache_bytes


# ---- what stays in memory ----


def _store(**options: int) -> tuple[SimulatedDisk, KeptKeyValues]:
    disk = SimulatedDisk()
    files = SimulatedFiles(disk)
    files.make_directory("/positions")
    return disk, KeptKeyValues(SimulatedKeyValues(files, "/positions"), "/positions", options.get("bytes_max", 1000), 1)


def _fill(disk: SimulatedDisk, store: KeptKeyValues) -> None:
    """Let the store find the disk full."""
    disk.fault = lambda operation, path: os_error(errno.ENOSPC, path) if operation == "write" else None
    with pytest.raises(OSError, match="No space"):
        store.sync()


def test_what_a_full_disk_does_not_take_is_read_in_order_and_given_to_it_later() -> None:
    disk, store = _store()
    store.write([(b"a", b"1"), (b"c", b"1"), (b"e", b"1")])
    _fill(disk, store)
    store.write([(b"b", b"2"), (b"c", b"2"), (b"f", b"2")])

    def assert_read() -> None:
        assert store.get([b"a", b"b", b"c", b"d", b"f"]) == [b"1", b"2", b"2", None, b"2"]
        assert list(store.keys(b"a", b"f")) == [b"a", b"b", b"c", b"e"]
        assert store.last(b"a", b"f") == (b"e", b"1")
        assert store.last(b"a", b"z") == (b"f", b"2")
        assert store.last(b"b", b"d") == (b"c", b"2")
        assert store.last(b"g", b"z") is None

    assert store.keeps_any
    assert_read()
    disk.fault = None
    assert not store.give(1 << 20)
    assert not store.keeps_any
    assert_read()
    store.sync()
    again = SimulatedKeyValues(SimulatedFiles(crash_image(disk, Loss.LOST, Random(1))), "/positions")
    assert again.get([b"a", b"b", b"c", b"e", b"f"]) == [b"1", b"2", b"2", b"1", b"2"]


def _prefixed(group: bytes) -> tuple[bytes, bytes]:
    """Return the range of all keys that begin with one byte."""
    return group, bytes([group[0] + 1])


def _give_all(store: KeptKeyValues) -> None:
    while store.give(1) or not store.give_rest(1, (b"N", b"1")):
        pass


def test_removal_that_a_full_disk_does_not_take_is_kept_and_given_to_it_later() -> None:
    disk, store = _store()
    store.write([(b"a1", b"1"), (b"b1", b"1"), (b"b2", b"1"), (b"c", b"1"), (b"d", b"1")])
    store.sync()
    store.write([(b"a1", b"2")])
    _fill(disk, store)
    store.write([(b"c", b"2")])
    store.write([], [_prefixed(b"b"), _prefixed(b"c"), _prefixed(b"d")])
    store.write([(b"b2", b"3")])

    def assert_read(store: KeyValues) -> None:
        assert store.get([b"a1", b"b1", b"b2", b"c", b"d"]) == [b"2", None, b"3", None, None]
        assert list(store.keys(b"a", b"z")) == [b"a1", b"b2"]
        assert store.last(b"a", b"z") == (b"b2", b"3")
        assert store.last(b"b", b"c") == (b"b2", b"3")
        assert store.last(b"c", b"z") is None

    assert store.keeps_any
    assert_read(store)
    disk.fault = None
    _give_all(store)
    assert not store.keeps_any
    assert_read(store)
    store.sync()
    assert_read(SimulatedKeyValues(SimulatedFiles(crash_image(disk, Loss.LOST, Random(1))), "/positions"))


def test_what_is_removed_while_the_store_takes_it_does_not_come_back() -> None:
    """Another thread removes it between the two times that `give` looks at what is kept."""
    disk, store = _store()
    store.write([(b"a", b"1")])
    _fill(disk, store)
    store.write([(b"b", b"1")], [_prefixed(b"a")])
    disk.fault = None
    removals = [_prefixed(b"b"), _prefixed(b"a")]

    def write(old: Any, self: Any, puts: Any, removed: Any = ()) -> None:
        old(self, puts, removed)
        if removals:
            store.keep([(b"c", b"1")], [removals.pop()])

    with around(SimulatedKeyValues, "write", write):
        for _ in range(3):
            _give_all(store)
    assert store.get([b"a", b"b", b"c"]) == [None, None, b"1"]
    assert store._kept_bytes == 0


def test_removals_that_are_kept_take_limited_memory() -> None:
    disk, store = _store(bytes_max=3000)
    store.write([(b"a", b"1")])
    _fill(disk, store)
    for number in range(11):
        store.write([], [_prefixed(bytes([number]))])
    with pytest.raises(OSError, match="takes no more changes"):
        store.write([], [_prefixed(b"z")])


def test_look_up_within_one_group_does_not_depend_on_what_is_kept_of_others() -> None:
    disk, store = _store(bytes_max=1 << 20)
    store.write([(b"a", b"1")])
    _fill(disk, store)
    store.write([(bytes([group, number]), b"1") for group in range(100) for number in range(3)])
    touched = []

    class Touched(dict[bytes, bytes]):
        def items(self) -> Any:
            touched.append(len(self))
            return super().items()

    for group, kept in store._kept.items():
        store._kept[group] = Touched(kept)
    assert store.last(*_prefixed(b"\x05")) == (b"\x05\x02", b"1")
    assert list(store.keys(b"\x05\x01", b"\x06")) == [b"\x05\x01", b"\x05\x02"]
    assert touched == [3, 3]


def test_store_keeps_a_limited_number_of_bytes() -> None:
    disk, store = _store(bytes_max=2000)
    store.write([(b"a", b"1")])
    _fill(disk, store)
    for _ in range(100):
        store.write([(b"k", bytes(900))])
    store.write([(b"l", bytes(900))])
    with pytest.raises(OSError, match="takes no more changes"):
        store.write([(b"m", b"")])


def _memory_of_kept(keep: Callable[[KeptKeyValues, int], None], limit: int) -> int:
    """Call keep(kept, ledger id) until no more is taken; return the memory that was needed for it."""
    files = SimulatedFiles(_store()[0])
    kept = KeptKeyValues(SimulatedKeyValues(files, "/positions"), "/positions", limit, index_format.LEDGER_KEY_BYTES)
    tracemalloc.start()
    try:
        for ledger_id in itertools.count():
            keep(kept, ledger_id)
    except OSError:
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("blocks", "value_bytes"), [(1, 8), (3, 8), (200, 8), (2, 2000)])
def test_memory_of_what_is_kept_has_a_limit_however_small_ledgers_are(blocks: int, value_bytes: int) -> None:
    def keep(kept: KeptKeyValues, ledger_id: int) -> None:
        kept.keep([(index_format.block_key(ledger_id, block), bytes(value_bytes)) for block in range(blocks)])

    limit = 1 << 20
    assert limit // 2 < _memory_of_kept(keep, limit) < 1.1 * limit


def test_memory_of_kept_removals_has_a_limit() -> None:
    limit = 1 << 20
    needed = _memory_of_kept(lambda kept, ledger_id: kept.keep([], [index_format.blocks_of(ledger_id)]), limit)
    assert limit // 2 < needed < 1.1 * limit


def test_what_comes_while_the_store_takes_earlier_changes_is_kept() -> None:
    disk, store = _store(bytes_max=1 << 20)
    store.write([(b"a", b"1")])
    _fill(disk, store)
    store.write([(b"%04d" % number, b"old") for number in range(2000)])
    disk.fault = None
    assert store.give(1), "a part of it"
    store.write([(b"0000", b"new"), (b"1999", b"new")])
    while store.give(1):
        assert store.get([b"0000", b"1999"]) == [b"new", b"new"]
    assert store.get([b"0000", b"0001", b"1999"]) == [b"new", b"old", b"new"]


class _Interrupted:
    """A lock; another thread does something whenever it is free during `saved`."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._meanwhile = meanwhile
        self.turns = 0
        self.is_saving = False

    def __enter__(self) -> None:
        if self.is_saving:
            self.is_saving = False
            self.turns += 1
            self._meanwhile()
            self.is_saving = True
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("seed", range(40))
def test_what_is_saved_has_all_that_changes_while_it_is_copied(seed: int) -> None:
    """Look-ups on the event loop do not wait until all is copied."""
    random = Random(seed)
    disk, store = _store(bytes_max=1 << 20)
    expected: dict[bytes, bytes] = {}

    def change() -> None:
        group = bytes([random.randrange(12)])
        if random.random() < 0.3:
            store.write([], [_prefixed(group)])
            for key in [each for each in expected if each[:1] == group]:
                del expected[key]
        else:
            puts = [(group + bytes([random.randrange(3)]), b"%d" % random.randrange(1 << 30)) for _ in range(3)]
            expected.update(puts)
            store.write(puts)

    def meanwhile() -> None:
        what = random.random()
        if what < 0.5:
            change()
        elif what < 0.8:
            store.give(1)
        elif store.give_rest(5, (b"N", b"5")) and random.random() < 0.5:
            store.sync()

    for _ in range(20):
        change()
    if random.random() < 0.7:
        store.sync()
    for _ in range(5):
        change()
    _fill(disk, store)
    for _ in range(20):
        change()
    disk.fault = None
    lock = _Interrupted(meanwhile)
    with changed(kept_key_values, "_GROUPS_AT_ONCE", lambda old: 1), changed(store, "_changing", lambda old: lock):
        lock.is_saving = True
        number, removed, puts = store.saved()
        lock.is_saving = False
    assert lock.turns > 3
    puts.pop(b"N", None)
    image = SimulatedFiles(crash_image(disk, Loss.LOST, Random(1)))
    again = KeptKeyValues(SimulatedKeyValues(image, "/positions"), "/positions", 1 << 20, 1)
    again.begin(number, KeptChanges(2, 0, number, 1, removed, puts))
    assert {key: again.get([key])[0] for key in again.keys(b"\0", b"A")} == expected


# ---- layouts and commands ----


def _is_split(disk: SimulatedDisk) -> bool:
    return find_layout(SimulatedFiles(disk), SETUP.current_ledger_paths) is not None


def _with_one_store() -> tuple[SimulatedDisk, History]:
    """Return the disk of a stopped bookie with two directories and one store, as earlier builds made it."""
    disk = SETUP.new_disk()
    SimulatedFiles(disk).make_directory("/ledgers0/current/positions")
    twin = BookieTwin(disk, SETUP, History())
    put(twin, 0)
    twin.fence(2)
    twin.stop()
    assert not _is_split(disk)
    assert "/ledgers1/current/positions" not in {path.rpartition("/")[0] for path in disk.visible_files()}
    return disk, twin.history.after_crash()


def _convert(disk: SimulatedDisk, storage_class: StorageClass = StorageClass.DB) -> int:
    setup = replace(SETUP, store=replace(SETUP.store, storage_class=storage_class))
    return Conversion(stopped_bookie(disk, setup), lambda line: None).run().ledgers


def _refusing(code: int) -> Fault:
    """Return the fault of a second directory that is full, or whose disk fails."""
    taking = {"write", "create", "create_directory"}

    def fault(operation: str, path: str) -> OSError | None:
        is_meant = path.startswith("/ledgers1/") and (code != errno.ENOSPC or operation in taking)
        return os_error(code, path) if is_meant else None

    return fault


def _is_half_divided(disk: SimulatedDisk) -> bool:
    """Return whether a division was interrupted while it made the new stores."""
    files, path = SimulatedFiles(disk), f"{SETUP.current_journal_paths[0]}/{layout.CONVERSION_NAME}"
    if not files.exists(path) or files.read_all(path).endswith(layout.STORES_COUNT):
        return False
    return files.exists("/ledgers0/current/positions.rebuilt.commit")


@pytest.mark.parametrize("is_interrupted", [False, True])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_division_that_a_disk_does_not_take_is_undone(code: int, is_interrupted: bool) -> None:
    disk, history = _with_one_store()
    if is_interrupted:
        images = [image for _, image in images_of_crashes(disk, lambda: _convert(disk))]
        disk = [image for image in images if _is_half_divided(image)][-1]
    disk.fault = _refusing(code)
    with pytest.raises(OSError, match=os.strerror(code)):
        _convert(disk)
    twin = BookieTwin(crash_image(disk, Loss.LOST, Random(1)), SETUP, history)
    assert {twin.read(ledger_id, entry_id)[0] for ledger_id in LEDGERS for entry_id in range(4)} == {Status.EOK}
    disk.fault = None
    assert _convert(disk) == len(LEDGERS)
    assert _is_split(disk)


def test_bookie_with_one_ledger_directory_has_one_store_in_the_first_version() -> None:
    setup = split_setup(1)
    twin = BookieTwin(setup.new_disk(), setup, History())
    put(twin, 0)
    twin.fence(2)
    twin.stop()
    files = SimulatedFiles(twin.disk)
    record = files.read_all("/ledgers0/current/positions.commit")
    number = index_format.decode_commit(record)
    assert number is not None
    assert record == index_format.encode_commit(number)
    stored = SimulatedKeyValues(files, "/ledgers0/current/positions").get([index_format.COMMIT_KEY])
    assert stored == [number.to_bytes(8)]
    paths = {path.removeprefix("/ledgers0/current/").partition("/")[0] for path in twin.disk.visible_files()}
    assert {path for path in paths if path.startswith("positions")} == {"positions", "positions.commit"}


def test_bookie_with_one_store_keeps_it_until_it_is_converted() -> None:
    disk, history = _with_one_store()
    twin = BookieTwin(disk, SETUP, history)
    put(twin, 4)
    twin.stop()
    assert not _is_split(disk)
    assert _convert(disk) == len(LEDGERS)
    assert _is_split(disk)
    audit(BookieTwin(disk, SETUP, history.after_crash()), history.after_crash())
    assert not _convert_again(disk, history)


def _convert_again(disk: SimulatedDisk, history: History) -> int:
    BookieTwin(disk, SETUP, history.after_crash()).stop()
    return _convert(disk)


@pytest.mark.parametrize("make", [_with_one_store, lambda: _stopped(filled(2))], ids=["divided", "to files"])
def test_crash_at_any_moment_of_a_conversion_leaves_one_whole_index(
    make: Callable[[], tuple[SimulatedDisk, History]],
) -> None:
    disk, history = make()
    new = StorageClass.SORTED if _is_split(disk) else StorageClass.DB
    refused = started = 0
    images = images_of_crashes(disk, lambda: _convert(disk, new))
    for name, image in itertools.islice(images, 0, None, EVERY):
        for storage_class in {StorageClass.DB, new}:
            setup = replace(SETUP, store=replace(SETUP.store, storage_class=storage_class))
            try:
                twin = BookieTwin(crash_image(image, Loss.KEPT, Random(0)), setup, history.after_crash())
            except ConfigurationError:
                refused += 1
            else:
                started += 1
                audit(twin, history.after_crash())
        _convert(image, new)
        setup = replace(SETUP, store=replace(SETUP.store, storage_class=new))
        audit(BookieTwin(image, setup, history.after_crash()), history.after_crash())
        left = [path for path in image.visible_files() if "rebuilt" in path or path.endswith("/conversion")]
        assert not left, name
    assert started
    assert refused > 5


@pytest.mark.parametrize(
    ("old", "new"), [(StorageClass.SORTED, StorageClass.DB), (StorageClass.DB, StorageClass.SORTED)]
)
def test_interrupted_conversion_ends_with_index_files_without_a_disk_that_fails(
    old: StorageClass, new: StorageClass
) -> None:
    """What the disk has of the other index does not count. When the disk is back, a second run removes it."""
    setup = replace(SETUP, store=replace(SETUP.store, storage_class=old))
    twin = BookieTwin(setup.new_disk(), setup, History())
    put(twin, 0)
    disk, history = _stopped(twin)
    with_files = replace(SETUP, store=replace(SETUP.store, storage_class=StorageClass.SORTED))
    ended = 0
    for name, image in images_of_crashes(disk, lambda: _convert(disk, new)):
        files = SimulatedFiles(image)
        has_store = files.is_directory("/ledgers0/current/positions")
        path = f"{SETUP.current_journal_paths[0]}/{layout.CONVERSION_NAME}"
        # Before the new stores count, or after the index files do.
        if files.exists(path) and not has_store and not files.read_all(path).endswith(layout.STORES_COUNT):
            image.fault = _refusing(errno.EIO)
            try:
                _convert(image, StorageClass.SORTED)
            except OSError as error:
                raise AssertionError(name) from error
            ended += 1
            image.fault = None
            _convert(image, StorageClass.SORTED)
            audit(BookieTwin(image, with_files, history.after_crash()), history.after_crash())
            assert not files.is_directory("/ledgers1/current/positions"), name
    assert ended > 5


def _stopped(twin: BookieTwin) -> tuple[SimulatedDisk, History]:
    twin.stop()
    return twin.disk, twin.history.after_crash()


def _rebuild(disk: SimulatedDisk) -> None:
    Rebuild(stopped_bookie(disk, SETUP), lambda line: None).run(None)


@pytest.mark.parametrize(
    ("make", "place"),
    [(lambda: _stopped(filled(2)), 0), (lambda: _stopped(filled(2)), 1), (_with_one_store, 0)],
    ids=["first of two", "second of two", "only one"],
)
def test_crash_at_any_moment_of_the_rebuild_of_a_lost_store_loses_nothing_and_makes_one_for_each_directory(
    make: Callable[[], tuple[SimulatedDisk, History]], place: int
) -> None:
    disk, history = make()
    current = disk.directory(f"/ledgers{place}/current")
    for names in (current.cached, current.durable):
        del names["positions"]
    with pytest.raises(StorageDamaged, match="--rebuild-index"):
        BookieTwin(crash_image(disk, Loss.KEPT, Random(0)), SETUP, history.after_crash())
    tried = 0
    images = images_of_crashes(disk, lambda: _rebuild(disk))
    for name, image in itertools.islice(images, 0, None, EVERY):
        _rebuild(image)
        twin = BookieTwin(image, SETUP, history.after_crash())
        assert twin.is_in_doubt, name
        assert _is_split(image), name
        for ledger_id in LEDGERS:
            assert [twin.read(ledger_id, entry_id)[0] for entry_id in range(4)] == [Status.EOK] * 4, name
        tried += 1
    assert tried > 10


def test_interrupted_rebuild_keeps_bookies_from_starting_and_names_the_command() -> None:
    disk, history = _stopped(filled(2))
    files = SimulatedFiles(disk)
    files.replace("/journal0/current/conversion", layout.REBUILDING + layout.STORES_COUNT)
    with pytest.raises(ConfigurationError, match="--rebuild-index` again"):
        BookieTwin(disk, SETUP, history.after_crash())
    with pytest.raises(ConfigurationError, match="run --rebuild-index again"):
        _convert(disk)
    _rebuild(disk)
    audit(BookieTwin(disk, SETUP, history.after_crash()), history.after_crash())


def test_index_in_rocksdb_is_divided_checked_and_served(tmp_path: Path) -> None:
    options = service_options(
        tmp_path,
        store=StoreOptions(StorageClass.DB),
        ledger_directories=[str(tmp_path / name) for name in ("a", "b", "c")],
    )
    # As an earlier build began.
    (tmp_path / "a" / "current" / "positions").mkdir(parents=True)
    payloads = [b"payload %d" % number for number in range(300)]
    with Serving(options) as serving, serving.connect() as peer:
        for ledger_id in LEDGERS:
            assert set(peer.add(ledger_id, 0, payloads)) == {Status.EOK}
    assert not (tmp_path / "b" / "current" / "positions").exists()
    report = Conversion(stopped_in(options), lambda line: None).run()
    assert (report.ledgers, report.entries) == (len(LEDGERS), 300 * len(LEDGERS))
    check = BookieCheck(ReadOnlyFiles(), options.journal_directories, options.ledger_directories).run()
    assert (check.ledgers, check.positions, check.unindexed_entries) == (len(LEDGERS), 300 * len(LEDGERS), 0)
    assert {Path(each.path).name for each in check.damage} <= {"VERSION"}
    with Serving(options) as serving, serving.connect() as peer:
        for ledger_id, entry_id in itertools.product(LEDGERS, (0, 255, 256, 299)):
            assert peer.read(ledger_id, entry_id).body == stored(ledger_id, entry_id, payloads[entry_id])
        ids = serving.service.storage.store.index.ledger_ids()
        assert np.array_equal(ids, np.array(LEDGERS))
    for name in "abc":
        assert (tmp_path / name / "current" / "positions").is_dir()


def test_check_reports_a_store_that_is_lost(tmp_path: Path) -> None:
    options = service_options(
        tmp_path,
        store=StoreOptions(StorageClass.DB),
        ledger_directories=[str(tmp_path / name) for name in ("a", "b")],
    )
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.add(1, 0, [b"in b"]) == [Status.EOK]
    (tmp_path / "b" / "current" / "positions.commit").unlink()
    check = BookieCheck(ReadOnlyFiles(), options.journal_directories, options.ledger_directories).run()
    assert any("b/current/positions: the key-value store is missing" in each.reason for each in check.damage)
