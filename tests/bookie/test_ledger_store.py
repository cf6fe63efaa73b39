"""The store against a dictionary: flushes, rolls, restarts and crashes in between must not be visible."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from bkspark.errors import StorageDamaged
from bookie_service.formats import entry_log as log_format
from bookie_service.formats import index as index_format
from bookie_service.formats.index import LAYOUT, LedgerHeader
from bookie_service.storage.index.index import LedgerUpdate
from bookie_service.storage.index.per_ledger import PageOptions, PerLedgerIndex
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.ledgers.interface import LedgerStorage
from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.bookie.items import item
from tests.bookie.ledger_stores import KEY, flush, open_store, put, read


@pytest.mark.parametrize("storage_class", list(StorageClass))
def test_entries_are_found_while_they_move_to_the_disk(tmp_path: Path, storage_class: StorageClass) -> None:
    store = open_store(tmp_path, storage_class=storage_class)
    items = {entry_id: item(5, entry_id, entry_id) for entry_id in range(20)}
    put(store, 5, items)
    taken = store.begin_flush()
    assert taken is not None
    assert store.begin_flush() is None
    put(store, 5, {20: item(5, 20, 3)})
    for step in (lambda: None, lambda: store.write_flush(taken), lambda: store.end_flush(taken)):
        step()
        assert read(store, 5, 0) == b"".join(items.values()) + item(5, 20, 3)
        assert store.ledger(5).last_entry == 20
    store.close()


@pytest.mark.parametrize("directories", [1, 3])
@pytest.mark.parametrize("storage_class", list(StorageClass))
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long(reason="another seed of the same search"))])
def test_store_reads_as_a_dictionary_would(
    tmp_path: Path, seed: int, storage_class: StorageClass, directories: int
) -> None:
    random = np.random.default_rng(seed)
    store = open_store(tmp_path, directories, storage_class)
    model: dict[tuple[int, int], bytes] = {}
    for _ in range(120):
        action = random.random()
        if action < 0.8:
            ledger_id, first = int(random.integers(4)), int(random.integers(2000))
            stride = int(random.choice([1, 1, 1, 3, 700]))
            entry_ids = [first + i * stride for i in range(int(random.integers(1, 12)))]
            items = {entry_id: item(ledger_id, entry_id, int(random.integers(60))) for entry_id in entry_ids}
            if store.active.room < 3000:
                flush(store)
            put(store, ledger_id, items)
            model |= {(ledger_id, entry_id): content for entry_id, content in items.items()}
        elif action < 0.95:
            flush(store)
        else:
            flush(store)
            store.close()
            store = open_store(tmp_path, directories, storage_class)
        _compare(store, model, random)
    store.close()


def _compare(store: LedgerStorage, model: dict[tuple[int, int], bytes], random: np.random.Generator) -> None:
    for ledger_id in {ledger_id for ledger_id, _ in model}:
        entry_ids = sorted(entry_id for ledger, entry_id in model if ledger == ledger_id)
        ledger = store.ledger(ledger_id)
        assert ledger is not None
        assert ledger.last_entry == entry_ids[-1]
        first = int(random.choice(entry_ids))
        expected = b""
        entry_id = first
        while (ledger_id, entry_id) in model:
            expected += model[ledger_id, entry_id]
            entry_id += 1
        assert read(store, ledger_id, first) == expected
        assert read(store, ledger_id, entry_id) == b""


@pytest.mark.parametrize("storage_class", list(StorageClass))
def test_run_of_an_older_place_ends_before_an_entry_that_was_written_again(
    tmp_path: Path, storage_class: StorageClass
) -> None:
    """A recovery add of entry 2 is newer than what a flush or an entry log has of it; runs that begin before it too."""
    store = open_store(tmp_path, storage_class=storage_class)
    old, new = ({entry: item(7, entry, size) for entry in range(5)} for size in (20, 30))
    put(store, 7, old)
    expected = b"".join([old[0], old[1], new[2], old[3], old[4]])
    moving = store.begin_flush()
    assert moving is not None
    put(store, 7, {2: new[2]})
    assert read(store, 7, 0) == expected
    store.write_flush(moving)
    store.end_flush(moving)
    assert read(store, 7, 0) == expected
    flush(store)
    assert read(store, 7, 0) == expected
    store.close()


@pytest.mark.parametrize("storage_class", list(StorageClass))
def test_limits_of_a_read_hold_across_cache_and_logs(tmp_path: Path, storage_class: StorageClass) -> None:
    store = open_store(tmp_path, storage_class=storage_class)
    items = {entry_id: item(5, entry_id, 80) for entry_id in range(30)}
    for part in range(3):
        put(store, 5, {entry_id: items[entry_id] for entry_id in range(part * 10, part * 10 + 10)})
        if part < 2:
            flush(store)
    size = len(items[0])
    for count in (1, 9, 10, 11, 20, 21, 30):
        assert len(read(store, 5, 0, count)) == count * size
        assert len(read(store, 5, 0, 100, count * size)) == count * size
        assert len(read(store, 5, 0, 100, count * size + size - 1)) == count * size
    assert len(read(store, 5, 25, 100, 0)) == size
    store.close()


@pytest.mark.parametrize("storage_class", list(StorageClass))
def test_header_survives_and_changes(tmp_path: Path, storage_class: StorageClass) -> None:
    store = open_store(tmp_path, storage_class=storage_class)
    put(store, 5, {0: item(5, 0, 1)})
    flush(store)
    store.fence(store.ledger(5))
    assert not store.is_clean
    flush(store)
    assert store.is_clean
    store.close()
    store = open_store(tmp_path, storage_class=storage_class)
    ledger = store.ledger(5)
    assert ledger is not None
    assert (ledger.fenced, ledger.master_key, ledger.last_entry) == (True, KEY, 0)
    assert store.ledger(6) is None
    assert store.ledger(-5) is None
    store.close()


@pytest.mark.parametrize("storage_class", list(StorageClass))
def test_ledger_without_entries_keeps_its_header(tmp_path: Path, storage_class: StorageClass) -> None:
    store = open_store(tmp_path, storage_class=storage_class)
    store.fence(store.create_ledger(9, KEY))
    flush(store)
    store.close()
    store = open_store(tmp_path, storage_class=storage_class)
    ledger = store.ledger(9)
    assert ledger is not None
    assert (ledger.fenced, ledger.last_entry) == (True, -1)
    store.close()


def test_flushed_ledger_lies_together_in_apaches_layout(tmp_path: Path) -> None:
    """Reference 6.7: header of 1024 bytes, records `i32 length, entry`, sorted by (ledger, entry)."""
    store = open_store(tmp_path)
    for entry_id in range(3):
        for ledger_id in (8, 7):
            put(store, ledger_id, {entry_id: item(ledger_id, entry_id, 5)})
    flush(store)
    (log,) = (tmp_path / "ledgers0").glob("*.log")
    content = log.read_bytes()
    assert (log.name, content[:20]) == ("1.log", bytes.fromhex("424b4c4f 00000001 0000000000000000 00000000"))
    expected = [item(ledger_id, entry_id, 5) for ledger_id in (7, 8) for entry_id in range(3)]
    assert content[1024:] == b"".join(expected)
    index = (tmp_path / "ledgers0" / "0" / "7" / "7.idx").read_bytes()
    assert struct.unpack_from(">qqq", index, LAYOUT.positions_at) == tuple(1 << 32 | 1028 + 25 * i for i in range(3))
    store.close()


@pytest.mark.parametrize("last_id", [None, b"garbage", b"", b"-5", b"0\n", b"ff\n", b"7fffffff", b"f" * 40])
def test_log_ids_never_collide_whatever_last_id_says(tmp_path: Path, last_id: bytes | None) -> None:
    """Invariant B7, scenarios S09 and S25."""
    for _ in range(3):
        store = open_store(tmp_path)
        put(store, 5, {0: item(5, 0, 1)})
        flush(store)
        store.close()
        path = tmp_path / "ledgers0" / log_format.LAST_ID_NAME
        path.unlink()
        if last_id is not None:
            path.write_bytes(last_id)
    logs = sorted((tmp_path / "ledgers0").glob("*.log"))
    assert len(logs) == 3
    assert all(log.stat().st_size > 1024 for log in logs)


def test_log_ids_that_are_used_up_are_said(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    (tmp_path / "ledgers0" / log_format.LAST_ID_NAME).write_bytes(b"7ffffffe")
    store.close()
    store = open_store(tmp_path)
    put(store, 5, {0: item(5, 0, 1)})
    flush(store)
    store.close()
    store = open_store(tmp_path)
    assert read(store, 5, 0) == item(5, 0, 1)
    put(store, 5, {1: item(5, 1, 1)})
    with pytest.raises(StorageDamaged, match="7fffffff has the highest possible id"):
        flush(store)
    store.close()


def test_position_of_another_entry_is_damage_not_data(tmp_path: Path) -> None:
    """Fault D6."""
    store = open_store(tmp_path)
    put(store, 5, {entry_id: item(5, entry_id, 5) for entry_id in range(3)})
    flush(store)
    store.close()
    path = tmp_path / "ledgers0" / "0" / "5" / "5.idx"
    content = bytearray(path.read_bytes())
    at = LAYOUT.position_at
    content[at(0) : at(2)] = content[at(1) : at(2)] + content[at(0) : at(1)]
    path.write_bytes(content)
    store = open_store(tmp_path)
    for entry_id in range(2):
        with pytest.raises(StorageDamaged, match=f"not entry {entry_id} of ledger 5"):
            read(store, 5, entry_id)
    assert read(store, 5, 2) == item(5, 2, 5)
    store.close()


@pytest.mark.parametrize("offset", [0, 4, 1024])
def test_position_inside_a_logs_header_is_damage(tmp_path: Path, offset: int) -> None:
    """Fault D5: one zeroed byte of a position at 0x500 of a log leaves 0, before which no length word can lie."""
    store = open_store(tmp_path)
    put(store, 5, {0: item(5, 0, 232), 1: item(5, 1, 5)})
    flush(store)
    store.close()
    path = tmp_path / "ledgers0" / "0" / "5" / "5.idx"
    content = bytearray(path.read_bytes())
    at, end = LAYOUT.position_at(1), LAYOUT.position_at(2)
    assert content[at:end] == (1 << 32 | 0x500).to_bytes(8, "big")
    content[at + 4 : end] = offset.to_bytes(4, "big")
    path.write_bytes(content)
    store = open_store(tmp_path)
    with pytest.raises(StorageDamaged, match=f"ledger 5 entry 1: the index names offset {offset} of .*1.log"):
        read(store, 5, 1)
    assert read(store, 5, 0, 1) == item(5, 0, 232)
    store.close()


def test_every_damaged_byte_of_index_or_log_gives_an_error_or_the_right_bytes(tmp_path: Path) -> None:
    """Fault D5: never wrong bytes, never a negative."""
    store = open_store(tmp_path)
    items = {entry_id: item(5, entry_id, 5) for entry_id in range(2)}
    put(store, 5, items)
    flush(store)
    store.close()
    for path, first in ((tmp_path / "ledgers0" / "0" / "5" / "5.idx", 0), (tmp_path / "ledgers0" / "1.log", 1024)):
        content = path.read_bytes()
        # The client's digest, not the bookie, checks the bytes of an entry after its ids. Some of the zeros between the
        # parts of an index file are enough.
        in_log = [i for i in range(1024, len(content)) if (i - 1024) % 25 < 20]
        in_index = [i for i, byte in enumerate(content) if byte or i % 128 == 0]
        positions = in_log if first else in_index
        for position in positions:
            damaged = bytearray(content)
            damaged[position] ^= 0xFF
            path.write_bytes(damaged)
            store = open_store(tmp_path)
            for entry_id in range(2):
                try:
                    assert read(store, 5, entry_id, 1) == items[entry_id]
                except StorageDamaged:
                    continue
            store.close()
        path.write_bytes(content)


def test_golden_index_header() -> None:
    header = LedgerHeader(5, 3, True, bytes(range(20)))
    slot = index_format.encode_slot(header)
    expected = "424b5349 00000003 0000000000000005 0000000000000003 00000001" + bytes(range(20)).hex()
    assert slot[:48] == bytes.fromhex(expected)
    assert len(slot) == 512
    assert index_format.decode_header(slot, 6) is None


@pytest.mark.parametrize(("version", "apart"), [(2, 512), (3, 4096)])
def test_newest_whole_header_counts_in_both_versions_of_the_index(version: int, apart: int) -> None:
    older, newer = (LedgerHeader(5, generation, generation == 3, bytes(range(20))) for generation in (2, 3))
    slots = {each: index_format.encode_slot(each, version).ljust(apart, b"\0") for each in (older, newer)}
    torn = slots[newer][:30].ljust(apart, b"\0")
    for data, expected in (
        (slots[newer] + slots[older], newer),
        (slots[older] + slots[newer], newer),
        (bytes(apart) + slots[newer], newer),
        (torn + slots[older], older),
        (slots[older] + torn, older),
        (torn + torn, None),
    ):
        assert index_format.decode_header(data, 5) == expected
        layout = index_format.layout_of(data)
        assert layout is not None
        assert (layout.version, layout.slots_at) == (version, (0, apart))
    assert index_format.layout_of(bytes(2 * apart)) is None


def test_index_file_of_version_2_is_read_and_written_as_it_is(tmp_path: Path) -> None:
    """A bookie of an earlier version wrote it; its positions begin at 1024."""
    path = tmp_path / "0" / "5" / "5.idx"
    path.parent.mkdir(parents=True)
    slot = index_format.encode_slot(LedgerHeader(5, 1, False, KEY), 2)
    path.write_bytes(slot + slot + np.array([11, 12], ">i8").tobytes())
    for is_new in (False, True):
        index = PerLedgerIndex(LocalFiles(), [str(tmp_path)], PageOptions(), 4)
        fenced = LedgerHeader(5, 2, True, KEY)
        if is_new:
            assert index.header(5) == fenced
        else:
            index.hold([LedgerUpdate(5, fenced, np.array([2]), np.array([13]))])
            index.hold([LedgerUpdate(6, LedgerHeader(6, 1, False, KEY), np.array([0]), np.array([21]))])
            index.sync()
        assert index.positions(5, 0, 9).tolist() == [11, 12, 13]
        assert index.last_entry(5) == 2
        assert [positions.tolist() for _, positions in index.extents(5)] == [[11, 12, 13]]
        index.close()
    assert path.read_bytes() == 2 * index_format.encode_slot(fenced, 2) + np.array([11, 12, 13], ">i8").tobytes()
    assert (tmp_path / "0" / "6" / "6.idx").read_bytes()[4:8] == b"\0\0\0\3"


def test_no_physical_sector_holds_both_headers_or_a_header_and_positions(tmp_path: Path) -> None:
    """A power cut in the middle of a write may take a whole sector, which has 4096 bytes on most disks."""
    index = PerLedgerIndex(LocalFiles(), [str(tmp_path)], PageOptions(), 4)
    header = LedgerHeader(5, 1, True, KEY)
    index.hold([LedgerUpdate(5, header, np.arange(3), np.arange(11, 14))])
    index.sync()
    index.close()
    path = tmp_path / "0" / "5" / "5.idx"
    content = path.read_bytes()
    for sector in (0, 4096):
        torn = bytearray(content)
        torn[sector : sector + 4096] = bytes(4096)
        path.write_bytes(torn)
        index = PerLedgerIndex(LocalFiles(), [str(tmp_path)], PageOptions(), 4)
        assert index.header(5) == header
        assert index.positions(5, 0, 9).tolist() == [11, 12, 13]
        index.close()
