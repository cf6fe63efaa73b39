"""One look for many entries of a ledger finds what reads of each one find, wherever the entries are.

Apache's clients spread single reads over the ensemble: a bookie sees every third id of a ledger, in any order.
"""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from bkspark.wire import v2
from bookie_service.storage.index.index import LedgerUpdate
from bookie_service.storage.index.per_ledger import PageOptions
from bookie_service.storage.io.byte_source import CachedSource
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.interface import Ledger, LookResult
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.crash.history import History
from tests.crash.simulated_files import SimulatedFiles
from tests.crash.twins import SILENT, BookieTwin, Setup, add_frame, sealed

KEY = b"k" * 20
LEDGER, OTHER = 7, 8


def entry(ledger_id: int, entry_id: int, size: int) -> bytes:
    return sealed(struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0) + bytes([entry_id % 251]) * size)


class Stored:
    """A bookie with random entries of two ledgers in entry logs, in the half that is flushed and in the active one."""

    def __init__(self, seed: int, storage_class: StorageClass) -> None:
        self.chance = random.Random(seed)
        setup = Setup(store=StoreOptions(storage_class, 64 * 1024, append=AppendOptions(9000), open_files_max=4))
        self.twin = BookieTwin(setup.new_disk(), setup, History())
        self.held: dict[int, dict[int, bytes]] = {LEDGER: {}, OTHER: {}}
        for _ in range(3):
            self._add(60)
            self.twin.checkpoint()
        self._add(30)
        flush = self.twin.store.begin_flush()
        assert flush is not None
        self._add(30)
        self.store = self.twin.store

    def _add(self, count: int) -> None:
        for _ in range(count):
            ledger_id, entry_id = self.chance.choice([LEDGER, LEDGER, OTHER]), self.chance.randrange(150)
            size = self.chance.choice([20, 20, 20, 300])
            # Some come again, with other bytes: the newest counts.
            self.held[ledger_id][entry_id] = entry(ledger_id, entry_id, size)
            self.twin.serve(SILENT, add_frame(KEY, self.held[ledger_id][entry_id]))
        self.twin.settle()

    def look(self, entry_ids: list[int], bytes_max: int) -> LookResult:
        ledger = self.store.ledger(LEDGER)
        assert ledger is not None
        return self.store.read_each([ledger], [len(entry_ids)], np.array(entry_ids), bytes_max, CachedSource(1 << 20))


def check(stored: Stored, asked: list[int], found: LookResult) -> list[int]:
    """Check what was found of the asked entries; return the rows that need another look."""
    held = stored.held[LEDGER]
    rows = [row for piece, _ in found.pieces for row in piece.tolist()]
    for piece_rows, entries in found.pieces:
        for row, entry_id, start, size in zip(
            piece_rows.tolist(), entries.entry_ids.tolist(), entries.starts.tolist(), entries.sizes.tolist()
        ):
            assert entry_id == asked[row]
            assert bytes(entries.octets[start : start + size]) == held[entry_id]
    assert all(asked[row] not in held for row in found.missing.tolist())
    done = [*rows, *found.missing.tolist(), *found.odd.tolist()]
    assert len(set(done)) == len(done)
    return sorted(set(range(len(asked))) - set(done))


@pytest.mark.parametrize("storage_class", StorageClass)
@pytest.mark.parametrize("seed", range(6))
def test_looks_find_all_that_is_held_and_nothing_else(seed: int, storage_class: StorageClass) -> None:
    stored = Stored(seed, storage_class)
    for _ in range(20):
        first, step = stored.chance.randrange(4), stored.chance.choice([1, 3, 7])
        asked = list(range(first, 170, step)) + stored.chance.choices(range(170), k=stored.chance.randrange(4))
        if stored.chance.random() < 0.5:
            stored.chance.shuffle(asked)
        while asked:
            found = stored.look(asked, stored.chance.choice([1, 500, 5000, 100_000]))
            left = check(stored, asked, found)
            assert len(left) < len(asked), "each look ends some"
            # The last entry of a span may be longer than guessed; no more are left to single reads.
            assert len(found.odd) <= 20
            asked = [asked[row] for row in left]


@pytest.mark.parametrize("storage_class", StorageClass)
@pytest.mark.parametrize("seed", range(6))
def test_one_look_finds_entries_of_several_ledgers(seed: int, storage_class: StorageClass) -> None:
    stored = Stored(seed, storage_class)
    chance, source = stored.chance, CachedSource(1 << 20)
    ledgers = [stored.store.ledger(ledger_id) for ledger_id in (LEDGER, OTHER)]
    for _ in range(20):
        asked = {each: chance.choices(range(170), k=chance.randrange(1, 60)) for each in (LEDGER, OTHER)}
        while all(asked.values()):
            ids = asked[LEDGER] + asked[OTHER]
            ends = [len(asked[LEDGER]), len(ids)]
            of_each = [LEDGER] * ends[0] + [OTHER] * len(asked[OTHER])
            bytes_max = chance.choice([1, 500, 5000, 100_000])
            found = stored.store.read_each(ledgers, ends, np.array(ids), bytes_max, source)  # type: ignore[arg-type]
            done = set()
            for rows, entries in found.pieces:
                assert rows.tolist() == sorted(rows.tolist())
                for row, start, size in zip(rows.tolist(), entries.starts.tolist(), entries.sizes.tolist()):
                    assert bytes(entries.octets[start : start + size]) == stored.held[of_each[row]][ids[row]]
                    assert row not in done
                    done.add(row)
            assert all(ids[row] not in stored.held[of_each[row]] for row in found.missing.tolist())
            done |= {*found.missing.tolist(), *found.odd.tolist()}
            assert done, "each look ends some"
            assert len(found.odd) <= 20
            left = [row for row in range(len(ids)) if row not in done]
            asked = {each: [ids[row] for row in left if of_each[row] == each] for each in asked}


def test_ids_that_no_entry_has_are_left_to_single_reads() -> None:
    """-1 asks for the last entry (V2), which only `View.last_entry` knows."""
    found = Stored(1, StorageClass.SORTED).look([-1, 3, -(1 << 62), 1 << 62], 1000)
    assert found.odd.tolist()[:2] == [0, 2]
    assert 3 in found.missing.tolist()


def test_entries_far_apart_need_a_look_for_each_stretch_of_ids() -> None:
    setup = Setup()
    twin = BookieTwin(setup.new_disk(), setup, History())
    for entry_id in (0, 3, 20_000, 20_003, 40_000):
        twin.serve(SILENT, add_frame(KEY, entry(LEDGER, entry_id, 20)))
    twin.checkpoint()
    ledger = twin.store.ledger(LEDGER)
    assert ledger is not None
    asked = np.array([40_000, 3, 20_003, 0, 1, 20_000])
    ended = []
    while len(asked):
        found = twin.store.read_each([ledger], [len(asked)], asked, 10_000, CachedSource(1 << 20))
        assert len(found.odd) == 0
        rows = np.concatenate([found.missing, *(rows for rows, _ in found.pieces)])
        ended.append(sorted(asked[rows].tolist()))
        asked = np.delete(asked, rows)
    assert ended == [[0, 1, 3], [20_000, 20_003], [40_000]]


@pytest.mark.parametrize("last", [6, 7, 8, 9])
def test_look_that_passes_the_end_of_a_page_of_the_index_finds_both_sides(last: int) -> None:
    """A page has the positions of entries 0 to 7 here, and stays in memory."""
    setup = Setup(store=StoreOptions(pages=PageOptions(page_bytes=64)))
    twin = BookieTwin(setup.new_disk(), setup, History())
    for entry_id in range(12):
        twin.serve(SILENT, add_frame(KEY, entry(LEDGER, entry_id, 20)))
    twin.checkpoint()
    ledger = twin.store.ledger(LEDGER)
    assert ledger is not None
    asked = np.arange(5, last + 1)
    found = twin.store.read_each([ledger], [len(asked)], asked, 10_000, CachedSource(1 << 20))
    rows = sorted(row for piece, _ in found.pieces for row in piece.tolist())
    assert (rows, found.missing.tolist(), found.odd.tolist()) == (list(range(len(asked))), [], [])


def _six_flushed() -> tuple[BookieTwin, Ledger]:
    """Return a bookie with six entries of LEDGER in an entry log, and the ledger."""
    setup = Setup()
    twin = BookieTwin(setup.new_disk(), setup, History())
    for entry_id in range(6):
        twin.serve(SILENT, add_frame(KEY, entry(LEDGER, entry_id, 20)))
    twin.checkpoint()
    ledger = twin.store.ledger(LEDGER)
    assert ledger is not None
    return twin, ledger


@pytest.mark.parametrize("offset", [5, 1 << 20])
@pytest.mark.parametrize("is_there", [True, False], ids=["log", "no log"])
def test_position_that_leads_to_no_entry_is_left_to_a_single_read_and_hurts_no_other(
    is_there: bool, offset: int
) -> None:
    """The single read reports the damage."""
    twin, ledger = _six_flushed()
    log_id = int(twin.store.index.positions(LEDGER, 0, 1)[0]) >> 32
    torn = np.array([((log_id if is_there else 77) << 32) + offset], np.int64)
    with twin.store.writing:
        twin.store.move([LedgerUpdate(LEDGER, None, np.array([3]), torn)])
    asked, found_ids, odd_ids = np.arange(6), [], []
    while len(asked):
        found = twin.store.read_each([ledger], [len(asked)], asked, 10_000, CachedSource(1 << 20))
        rows = [row for piece, _ in found.pieces for row in piece.tolist()]
        found_ids += asked[rows].tolist()
        odd_ids += asked[found.odd].tolist()
        assert len(rows) + len(found.odd) > 0
        asked = np.delete(asked, [*rows, *found.odd.tolist()])
    assert sorted(found_ids + odd_ids) == list(range(6))
    assert 3 in odd_ids
    assert is_there or odd_ids == [3]


@pytest.mark.parametrize("length", [-1, 0, 15, 1 << 20])
def test_entry_whose_length_is_damaged_is_left_to_a_single_read(length: int) -> None:
    twin, ledger = _six_flushed()
    at = int(twin.store.index.positions(LEDGER, 3, 1)[0])
    file = SimulatedFiles(twin.disk).open(str(twin.store.logs.path(at >> 32)))
    file.write([struct.pack(">i", length)], (at & 0xFFFFFFFF) - 4)
    file.close()
    found = twin.store.read_each([ledger], [6], np.arange(6), 10_000, CachedSource(1 << 20))
    rows = sorted(row for piece, _ in found.pieces for row in piece.tolist())
    assert (rows, found.missing.tolist(), found.odd.tolist()) == ([0, 1, 2, 4, 5], [], [3])


def test_order_puts_what_was_found_first() -> None:
    found = LookResult(missing=np.array([2]), odd=np.array([0]))
    order = found.order(4)
    assert order is not None
    assert order.tolist() == [2, 0, 1, 3]
    assert LookResult(missing=np.array([0]), odd=np.array([1])).order(4) is None


def test_reads_count_their_entries_and_bytes_whether_they_come_alone_or_together() -> None:
    """Apache's `bookie_READ_BYTES` counts every entry that was read."""
    counts = []
    for entry_ids in ([[0], [3], [6]], [[0, 3, 6]]):
        setup = Setup()
        twin = BookieTwin(setup.new_disk(), setup, History())
        for entry_id in range(9):
            twin.serve(SILENT, add_frame(KEY, entry(LEDGER, entry_id, 20 + entry_id)))
        for together in entry_ids:
            twin.serve(SILENT, v2.encode_reads(LEDGER, np.array(together)))
        view = twin.bookie.view
        counts.append((view.entries_read, view.bytes_read))
    assert counts[0] == counts[1]
    assert counts[0][0] == 3


def test_entry_that_is_asked_for_many_times_counts_each_time_towards_the_bytes_of_a_look() -> None:
    setup = Setup()
    twin = BookieTwin(setup.new_disk(), setup, History())
    twin.serve(SILENT, add_frame(KEY, entry(LEDGER, 0, 1000)))
    twin.checkpoint()
    ledger = twin.store.ledger(LEDGER)
    assert ledger is not None
    for _ in range(2):  # The second look knows the size of an entry.
        found = twin.store.read_each([ledger], [5000], np.zeros(5000, np.int64), 20_000, CachedSource(1 << 20))
        assert sum(len(entries) for _, entries in found.pieces) <= 20
