"""Apache's ledger storages: what each promises beyond what all promise."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest
from rocksdict import Options, Rdict

from bkspark.errors import ConfigurationError, StorageDamaged
from bookie_service.formats.entry_log import parse_file_name
from bookie_service.formats.index import LedgerHeader
from bookie_service.settings.configuration import configure
from bookie_service.storage.index.index import LedgerUpdate
from bookie_service.storage.index.key_value_index import KeyValueIndex
from bookie_service.storage.io.files import File, LocalFiles, ReadOnlyFiles
from bookie_service.storage.io.framed_entries import FramedEntries
from bookie_service.storage.io.key_values import KeyValueOptions
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.factory import open_ledger_storage
from bookie_service.storage.ledgers.interface import LedgerStorage
from bookie_service.storage.ledgers.read_ahead import ReadAheadCache
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.logs.log_scan import LogScan
from tests.bookie.items import item
from tests.bookie.ledger_stores import KEY, flush, put, read
from tests.crash.simulated_files import SimulatedDisk, SimulatedFiles

ARRIVALS = [(7, 0), (5, 0), (7, 1), (6, 3), (5, 1), (7, 2), (5, 2)]


def open_store(directory: Path, storage_class: StorageClass) -> LedgerStorage:
    return open_ledger_storage(
        LocalFiles(), [str(directory)], StoreOptions(storage_class, cache_half_bytes=8192, open_files_max=8)
    )


def logged(directory: Path) -> list[tuple[int, int]]:
    """Return (ledger, entry) of everything in the entry logs, in the order in which it lies there."""
    found = []
    for path in sorted(directory.glob("*.log")):
        file = LocalFiles().open(str(path))
        for window in LogScan(file, parse_file_name(path.name) or 0):
            found += list(zip(window.ledger_ids.tolist(), window.entry_ids.tolist()))
        file.close()
    return found


def arrive(store: LedgerStorage) -> None:
    for ledger_id, entry_id in ARRIVALS:
        put(store, ledger_id, {entry_id: item(ledger_id, entry_id, 40)})


def check_contents(store: LedgerStorage) -> None:
    for ledger_id in (5, 7):
        assert read(store, ledger_id, 0) == b"".join(item(ledger_id, entry_id, 40) for entry_id in range(3))
    assert read(store, 6, 3) == item(6, 3, 40)


@pytest.mark.parametrize(
    ("storage_class", "order"),
    [(StorageClass.SORTED, sorted(ARRIVALS)), (StorageClass.INTERLEAVED, ARRIVALS)],
)
def test_entries_lie_in_the_log_in_the_order_of_their_storage(
    tmp_path: Path, storage_class: StorageClass, order: list[tuple[int, int]]
) -> None:
    store = open_store(tmp_path, storage_class)
    arrive(store)
    flush(store)
    check_contents(store)
    store.close()
    assert logged(tmp_path) == order


@pytest.mark.parametrize("second", [StorageClass.SORTED, StorageClass.INTERLEAVED])
def test_sorted_and_interleaved_storage_open_what_the_other_wrote(tmp_path: Path, second: StorageClass) -> None:
    first = {StorageClass.SORTED: StorageClass.INTERLEAVED, StorageClass.INTERLEAVED: StorageClass.SORTED}[second]
    store = open_store(tmp_path, first)
    arrive(store)
    flush(store)
    store.close()
    store = open_store(tmp_path, second)
    check_contents(store)
    put(store, 5, {3: item(5, 3, 40)})
    flush(store)
    assert read(store, 5, 3) == item(5, 3, 40)
    store.close()


@pytest.mark.parametrize("storage_class", list(StorageClass))
def test_a_storage_has_apaches_short_and_full_name(storage_class: StorageClass) -> None:
    assert storage_class.value.startswith("org.apache.bookkeeper.bookie.")
    for name in (storage_class.value, storage_class.short_name):
        assert configure({"ledgerStorageClass": name}).service.store.storage_class is storage_class


def test_a_storage_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(ConfigurationError, match=r"ledgerStorageClass=FastStorage: .* SortedLedgerStorage"):
        configure({"ledgerStorageClass": "FastStorage"})


# ---- DbLedgerStorage ----


def filled_db(directory: Path) -> None:
    """Leave what three flushes of a Db storage make."""
    store = open_store(directory, StorageClass.DB)
    for first in range(0, 900, 300):
        put(store, 5, {entry_id: item(5, entry_id, 2) for entry_id in range(first, first + 300)})
        flush(store)
    store.fence(store.create_ledger(6, KEY))
    flush(store)
    store.close()


def expected_db() -> bytes:
    return b"".join(item(5, entry_id, 2) for entry_id in range(900))


def test_db_storage_keeps_no_file_per_ledger(tmp_path: Path) -> None:
    filled_db(tmp_path)
    assert not list(tmp_path.rglob("*.idx"))
    store = open_store(tmp_path, StorageClass.DB)
    assert read(store, 5, 0) == expected_db()
    assert store.index.ledger_ids().tolist() == [5, 6]
    store.close()


@pytest.mark.parametrize("second", [StorageClass.SORTED, StorageClass.INTERLEAVED])
def test_db_storage_and_the_others_refuse_each_others_folders(tmp_path: Path, second: StorageClass) -> None:
    files, db = tmp_path / "files", tmp_path / "db"
    for directory in (files, db):
        directory.mkdir()
    filled_db(db)
    with pytest.raises(ConfigurationError, match=r"positions: written with ledgerStorageClass DbLedgerStorage, .* set"):
        open_store(db, second)
    store = open_store(files, second)
    arrive(store)
    flush(store)
    store.close()
    with pytest.raises(ConfigurationError, match=r"written with .* InterleavedLedgerStorage, which DbLedgerStorage"):
        open_store(files, StorageClass.DB)
    assert not (files / "positions").exists()


def test_key_value_store_that_is_gone_is_never_taken_for_an_empty_one(tmp_path: Path) -> None:
    filled_db(tmp_path)
    shutil.rmtree(tmp_path / "positions")
    with pytest.raises(StorageDamaged, match="positions: the key-value store is missing"):
        open_store(tmp_path, StorageClass.DB)


@pytest.mark.parametrize("directories", [1, 2])
def test_key_value_store_that_is_gone_with_its_commit_is_missed_by_the_entry_logs(
    tmp_path: Path, directories: int
) -> None:
    """An empty one in its place would deny what was acknowledged, and garbage collection would remove all logs."""
    paths = [tmp_path / f"ledgers{number}" for number in range(directories)]
    for path in paths:
        path.mkdir()
    options = StoreOptions(StorageClass.DB, cache_half_bytes=8192)
    store = open_ledger_storage(LocalFiles(), list(map(str, paths)), options)
    # Only in the log of the last directory.
    put(store, directories - 1, {0: item(directories - 1, 0, 2)})
    flush(store)
    store.close()
    shutil.rmtree(paths[0] / "positions")
    (paths[0] / "positions.commit").unlink()
    for _ in range(2):
        with pytest.raises(StorageDamaged, match="positions: the key-value store is missing"):
            open_ledger_storage(LocalFiles(), list(map(str, paths)), options)
        assert not (paths[0] / "positions").exists()


@pytest.mark.parametrize("kind", [StorageClass.SORTED, StorageClass.INTERLEAVED])
def test_bookie_whose_ledgers_are_all_deleted_gets_a_key_value_store_beside_its_logs_and_then_needs_it(
    tmp_path: Path, kind: StorageClass
) -> None:
    """The record of index files says that no ledger has entries. A rebuild would bring the deleted ledgers back."""
    store = open_store(tmp_path, kind)
    put(store, 5, {0: item(5, 0, 2)})
    flush(store)
    store.prepare_drop([5], [], 0)
    store.sync_dropped(store.drop([5]))
    store.close()
    store = open_store(tmp_path, StorageClass.DB)
    assert store.logs.rotated()
    put(store, 6, {0: item(6, 0, 2)})
    flush(store)
    store.close()
    store = open_store(tmp_path, StorageClass.DB)
    assert read(store, 6, 0) == item(6, 0, 2)
    store.close()
    shutil.rmtree(tmp_path / "positions")
    (tmp_path / "positions.commit").unlink()
    with pytest.raises(StorageDamaged, match="positions: the key-value store is missing"):
        open_store(tmp_path, StorageClass.DB)


@pytest.mark.parametrize("is_recorded", [True, False])
def test_logs_whose_index_files_are_gone_get_no_empty_key_value_store(tmp_path: Path, is_recorded: bool) -> None:
    store = open_store(tmp_path, StorageClass.SORTED)
    put(store, 5, {0: item(5, 0, 2)})
    flush(store)
    store.close()
    for path in tmp_path.rglob("*.idx"):
        path.unlink()
    if not is_recorded:
        (tmp_path / "indexFiles").unlink()
    with pytest.raises(StorageDamaged, match="positions: the key-value store is missing"):
        open_store(tmp_path, StorageClass.DB)


def test_key_value_store_of_yesterday_is_refused(tmp_path: Path) -> None:
    filled_db(tmp_path)
    shutil.copytree(tmp_path / "positions", tmp_path / "copy")
    store = open_store(tmp_path, StorageClass.DB)
    put(store, 5, {900: item(5, 900, 2)})
    flush(store)
    store.close()
    shutil.rmtree(tmp_path / "positions")
    (tmp_path / "copy").rename(tmp_path / "positions")
    with pytest.raises(StorageDamaged, match=r"positions: the key-value store is at commit 4, but .* 5 was durable"):
        open_store(tmp_path, StorageClass.DB)


def test_damaged_byte_of_the_key_value_store_gives_an_error_or_the_right_bytes(tmp_path: Path) -> None:
    """Fault D5: never wrong bytes, never a negative, in any of RocksDB's files; a sample of their bytes."""
    whole, damaged = tmp_path / "whole", tmp_path / "damaged"
    whole.mkdir()
    filled_db(whole)
    random = Random(1)
    paths = [path for path in sorted((whole / "positions").iterdir()) if path.stat().st_size]
    outcomes: Counter[str] = Counter()
    for path in [*paths, whole / "positions.commit"]:
        content = path.read_bytes()
        for offset in {0, len(content) - 1, *(random.randrange(len(content)) for _ in range(5))}:
            shutil.rmtree(damaged, ignore_errors=True)
            shutil.copytree(whole, damaged)
            changed = bytearray(content)
            changed[offset] ^= 0xFF
            (damaged / path.relative_to(whole)).write_bytes(changed)
            outcomes[_served(damaged)] += 1
    assert outcomes["right"]
    assert outcomes["refused"]


def _served(directory: Path) -> str:
    try:
        store = open_store(directory, StorageClass.DB)
    except StorageDamaged:
        return "refused"
    try:
        # RocksDB compacts in the background, and may find out only when it is closed.
        with contextlib.closing(store):
            assert read(store, 5, 0, 1000) == expected_db()
            ledger = store.ledger(6)
            assert ledger is not None
            assert ledger.fenced
    except StorageDamaged:
        return "error"
    return "right"


def test_positions_are_read_as_they_were_stored_whatever_the_gaps(tmp_path: Path) -> None:
    files = LocalFiles()
    index = KeyValueIndex(files, str(tmp_path), KeyValueOptions())
    random = np.random.default_rng(3)
    model: dict[int, int] = {}
    for _ in range(30):
        entry_ids = np.unique(random.integers(0, 3000, random.integers(1, 400)))
        positions = random.integers(1, 1 << 60, len(entry_ids))
        index.hold([LedgerUpdate(7, LedgerHeader(7, 1, False, KEY), entry_ids, positions)])
        index.sync()
        model |= dict(zip(entry_ids.tolist(), positions.tolist()))
        first, count = int(random.integers(3100)), int(random.integers(1, 2000))
        last = max(model)
        wanted = [model.get(entry_id, 0) for entry_id in range(first, min(first + count, last + 1))]
        assert index.positions(7, first, count).tolist() == wanted
        assert index.last_entry(7) == last
    index.remove(7)
    index.sync_removed([7])
    assert index.header(7) is None
    assert index.last_entry(7) == -1
    assert not len(index.positions(7, 0, 100))
    index.close()


@pytest.mark.parametrize("seed", range(3))
def test_the_simulated_key_value_store_behaves_as_rocksdb_does(tmp_path: Path, seed: int) -> None:
    """The crash campaigns are worth what the model is."""
    simulated = SimulatedFiles(SimulatedDisk())
    simulated.make_directory("/positions")
    stores = [
        LocalFiles().open_key_values(str(tmp_path), KeyValueOptions()),
        simulated.open_key_values("/positions", KeyValueOptions()),
    ]
    random = Random(seed)
    names = [bytes([97 + i, 97 + j]) for i in range(5) for j in range(5)]
    for _ in range(150):
        puts = [(random.choice(names), random.randbytes(3)) for _ in range(random.randrange(4))]
        first, end = sorted(random.sample(names, 2))
        removed = [(first, end)] if random.random() < 0.2 else []
        for store in stores:
            store.write(puts, removed)
        if random.random() < 0.2:
            for store in stores:
                store.sync()
        if random.random() < 0.1:
            for store in stores:
                store.sync()
                store.close()
            stores = [
                LocalFiles().open_key_values(str(tmp_path), KeyValueOptions()),
                simulated.open_key_values("/positions", KeyValueOptions()),
            ]
        first, end = sorted(random.sample(names, 2))
        real, model = ((store.get(names), store.last(first, end), list(store.keys(first, end))) for store in stores)
        assert real == model
    for store in stores:
        store.close()


def test_key_value_store_that_is_only_read_needs_no_file_after_it_was_opened(tmp_path: Path) -> None:
    """The links to its files are gone by then, and the bookie that uses it may remove files."""
    options = Options(raw_mode=True)
    options.set_disable_auto_compactions(True)
    database = Rdict(str(tmp_path), options)
    names = [b"%03d" % number for number in range(60)]
    for name in names:
        database[name] = b"x"
        database.flush(True)
    database.close()
    store = ReadOnlyFiles().open_key_values(str(tmp_path), KeyValueOptions(open_files_max=1))
    tables = list(tmp_path.glob("*.sst"))
    assert len(tables) == len(names)
    for table in tables:
        table.unlink()
    assert store.get(names) == [b"x"] * len(names)
    store.close()


# ---- the read-ahead cache ----


def test_single_reads_in_a_row_go_to_the_disk_once_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled_db(tmp_path)
    store = open_store(tmp_path, StorageClass.DB)
    reads = []
    monkeypatch.setattr(File, "read", lambda file, *span, old=File.read: reads.append(file.path) or old(file, *span))
    for entry_id in range(900):
        assert read(store, 5, entry_id, 1) == item(5, entry_id, 2)
    assert len([path for path in reads if path.endswith(".log")]) <= 12
    store.close()


def test_an_entry_that_was_written_again_is_never_served_from_the_read_ahead_cache(tmp_path: Path) -> None:
    filled_db(tmp_path)
    store = open_store(tmp_path, StorageClass.DB)
    assert read(store, 5, 10, 1) == item(5, 10, 2)
    put(store, 5, {12: item(5, 12, 30)})
    assert read(store, 5, 11, 1) + read(store, 5, 12, 1) == item(5, 11, 2) + item(5, 12, 30)
    # Kept while the newer one is in the write cache only.
    assert read(store, 5, 200, 1) == item(5, 200, 2)
    flush(store)
    assert read(store, 5, 12, 1) == item(5, 12, 30)
    assert read(store, 5, 11, 3) == item(5, 11, 2) + item(5, 12, 30) + item(5, 13, 2)
    store.close()


def test_a_dropped_ledger_leaves_nothing_in_the_read_ahead_cache(tmp_path: Path) -> None:
    filled_db(tmp_path)
    store = open_store(tmp_path, StorageClass.DB)
    assert read(store, 5, 10, 1) == item(5, 10, 2)
    assert store.drop([5]) == [5]
    assert store.ledger(5) is None
    put(store, 5, {0: item(5, 0, 3), 20: item(5, 20, 3)})
    for _ in range(2):
        assert read(store, 5, 0, 1) == item(5, 0, 3)
        assert read(store, 5, 11, 1) == b""
        flush(store)
    store.close()


@pytest.mark.parametrize("kind", list(StorageClass))
@pytest.mark.parametrize("is_removed_first", [False, True])
def test_a_dropped_ledger_that_is_written_again_has_only_its_new_entries(
    tmp_path: Path, kind: StorageClass, is_removed_first: bool
) -> None:
    """Also when its old index file is still there, because the collector's thread did not get to it yet."""
    store = open_store(tmp_path, kind)
    put(store, 5, {entry_id: item(5, entry_id, 2) for entry_id in range(20)})
    flush(store)
    store.prepare_drop([5], [], 0)
    assert store.drop([5]) == [5]
    assert store.ledger(5) is None
    if is_removed_first:
        store.sync_dropped([5])
    put(store, 5, {3: item(5, 3, 7)})
    assert [read(store, 5, entry_id, 1) for entry_id in (2, 3, 4)] == [b"", item(5, 3, 7), b""]
    flush(store)
    store.sync_dropped([5])
    for _ in range(2):
        assert [read(store, 5, entry_id, 1) for entry_id in (2, 3, 4)] == [b"", item(5, 3, 7), b""]
        store.close()
        store = open_store(tmp_path, kind)
    store.close()


def test_read_ahead_cache_holds_no_more_than_it_may_and_the_latest() -> None:
    cache = ReadAheadCache(10_000)
    for first in range(0, 5000, 10):
        cache.keep(1, FramedEntries(first, bytes(10 * 50), np.full(10, 50)), cache.epoch)
        assert cache.used <= 10_000
    assert cache.find(1, 0, 1, 1000) is None
    found = cache.find(1, 4995, 3, 1000)
    assert found is not None
    assert (found.first_entry, len(found), len(found.buffer)) == (4995, 3, 150)
    found = cache.find(1, 4995, 100, 120)
    assert found is not None
    assert len(found) == 2


def test_run_that_was_read_while_a_flush_ended_is_not_kept() -> None:
    cache = ReadAheadCache(10_000)
    epoch = cache.epoch
    cache.forget({9})
    cache.keep(1, FramedEntries(0, bytes(50), np.full(1, 50)), epoch)
    assert cache.find(1, 0, 1, 1000) is None


# ---- a disk without space ----

_FULL_DISK = """
import os, resource, signal, sys
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.io.key_values import KeyValueOptions

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = LocalFiles().open_key_values(sys.argv[1], KeyValueOptions())
store.write([(b"before", b"1")])
store.sync()
store.write([(b"held", b"2")])
puts = [(b"%06d" % i, os.urandom(1000)) for i in range(500)]
limit(100_000)
for _ in range(3):
    try:
        store.write(puts)
        store.sync()
    except OSError as error:
        assert error.filename == sys.argv[1], error
    else:
        raise AssertionError("the disk was full")
    assert store.get([b"before", b"held"]) == [b"1", b"2"]
limit(resource.RLIM_INFINITY)
store.write(puts)
store.sync()
store.close()
store = LocalFiles().open_key_values(sys.argv[1], KeyValueOptions())
assert store.get([key for key, _ in puts]) == [value for _, value in puts]
assert store.get([b"held"]) == [b"2"], "what was written before the disk was full, and not repeated"
assert len(list(store.keys(b"", b"z"))) == 502
store.close()
"""


def test_a_key_value_store_whose_disk_was_full_goes_on_when_there_is_space(tmp_path: Path) -> None:
    """What a repeated flush relies on; RocksDB by itself refuses every write from then on."""
    done = subprocess.run(
        [sys.executable, "-c", _FULL_DISK, str(tmp_path)], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
