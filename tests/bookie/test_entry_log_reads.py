"""Reading entry logs back: which items one read returns, what it refuses, and what a scan finds in a damaged log."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bkspark.errors import StorageDamaged
from bookie_service.formats import entry_log as log_format
from bookie_service.formats.entry_log import HEADER_BYTES, OFFSET_BITS
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.io.framed_entries import FramedEntries
from bookie_service.storage.logs.entry_log import ITEM_BYTES_MAX, EntryLogs
from bookie_service.storage.logs.log_reader import EntryLogReader
from bookie_service.storage.logs.log_scan import LogScan, live_rows, stored_positions
from tests.bookie.items import item

LARGE = 1 << 30
GAP_MAX = 256 * 1024


class OneLog:
    """An entry log with given bytes after its header, and a reader of it."""

    def __init__(self, directory: Path, log_id: int = 1) -> None:
        self.log_id = log_id
        self.path = str(directory / log_format.file_name(log_id))
        self.end = HEADER_BYTES
        self.file = LocalFiles().create(self.path)
        self.file.write([log_format.encode_header(log_id)], 0)
        self.reader = EntryLogReader(EntryLogs(LocalFiles(), [str(directory)]), 2)

    def put(self, *pieces: bytes) -> np.ndarray:
        """Append bytes; return the positions that an index would have of items that begin with each piece."""
        positions = []
        for piece in pieces:
            positions.append((self.log_id << OFFSET_BITS) + self.end + 4)
            self.end += self.file.write([piece], self.end)
        return np.array(positions, np.int64)

    def read(
        self, positions: np.ndarray, first_entry: int = 0, bytes_max: int = LARGE, ledger_id: int = 5
    ) -> FramedEntries:
        return self.reader.read(ledger_id, first_entry, positions, bytes_max)

    def scan(self) -> tuple[list[tuple[int, int]], int]:
        scan = LogScan(self.file, self.log_id)
        found = [pair for it in scan for pair in zip(it.ledger_ids.tolist(), it.entry_ids.tolist())]
        return found, scan.end

    def close(self) -> None:
        self.reader.close()
        self.file.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[OneLog]:
    opened = OneLog(tmp_path)
    yield opened
    opened.close()


def check(items: FramedEntries, expected: list[bytes], first_entry: int, *, is_full: bool) -> None:
    assert (items.first_entry, items.is_full, items.sizes.tolist(), bytes(items.buffer)) == (
        first_entry,
        is_full,
        [len(each) for each in expected],
        b"".join(expected),
    )


# ---- what a read returns ----


@pytest.mark.parametrize("sizes", [(40, 40, 40, 40), (50, 41, 40, 40), (9000, 40, 40, 39)])
def test_read_returns_whole_items_within_the_bytes(log: OneLog, sizes: tuple[int, ...]) -> None:
    items = [item(5, entry, size) for entry, size in enumerate(sizes)]
    positions = log.put(*items)
    ends = np.cumsum([len(each) for each in items]).tolist()
    for first in range(4):
        begin = ends[first] - len(items[first])
        for count in range(1, 5 - first):
            exact = ends[first + count - 1] - begin
            for bytes_max in (exact, exact + 1):
                got = log.read(positions[first:], first, bytes_max)
                check(got, items[first : first + count], first, is_full=first + count < 4)
        check(log.read(positions[first:], first, 1), items[first : first + 1], first, is_full=False)
    check(log.read(positions), items, 0, is_full=False)


def test_last_item_of_a_read_is_left_out_where_it_is_longer_than_the_one_before(log: OneLog) -> None:
    """How long it is, is known only when it is read. The next read begins with it."""
    items = [item(5, 0, 40), item(5, 1, 40), item(5, 2, 9000)]
    positions = log.put(*items)
    check(log.read(positions), items[:2], 0, is_full=False)
    check(log.read(positions[2:], 2), items[2:], 2, is_full=False)


def test_items_of_other_ledgers_between_are_left_out(log: OneLog) -> None:
    mine = [item(5, entry, 30 + entry) for entry in range(4)]
    others = [item(6, entry, 77) for entry in range(4)]
    positions = log.put(*(each for pair in zip(mine, others) for each in pair))
    check(log.read(positions[::2]), mine, 0, is_full=False)
    check(log.read(positions[2::2], 1), mine[1:], 1, is_full=False)


def test_items_of_equal_size_with_others_between_are_left_out_as_well(log: OneLog) -> None:
    mine = [item(5, entry, 30) for entry in range(4)]
    others = [item(6, entry, 30) for entry in range(4)]
    positions = log.put(*(each for pair in zip(mine, others) for each in pair))
    check(log.read(positions[::2]), mine, 0, is_full=False)


def test_one_read_ends_where_the_next_item_lies_far_away_or_before_or_in_another_log(
    log: OneLog, tmp_path: Path
) -> None:
    near = [item(5, 0, 31), item(5, 1, 30)]
    positions = log.put(*near)
    log.end += GAP_MAX
    positions = np.append(positions, log.put(item(5, 2)))
    check(log.read(positions), near, 0, is_full=False)
    back = np.array([positions[1], positions[0]])
    with pytest.raises(StorageDamaged):
        log.read(back, 0)
    later = log.put(item(5, 1, 31))
    earlier = log.put(item(5, 0, 30))
    check(log.read(np.array([earlier[0], later[0]])), [item(5, 0, 30)], 0, is_full=False)
    elsewhere = positions[:2] + np.array([0, 1 << OFFSET_BITS])
    check(log.read(elsewhere), near[:1], 0, is_full=False)


def test_items_as_far_apart_as_a_gap_may_be_come_with_one_read(log: OneLog) -> None:
    first = item(5, 0, 30)
    positions = log.put(first)
    log.end = HEADER_BYTES + GAP_MAX
    positions = np.append(positions, log.put(item(5, 1, 30)))
    log.file.write([bytes(GAP_MAX)], log.end)
    check(log.read(positions), [first, item(5, 1, 30)], 0, is_full=False)


def test_last_item_of_equal_size_is_left_out_where_the_log_ends_within_it(log: OneLog) -> None:
    """Its ids may be whole nevertheless."""
    items = [item(5, entry) for entry in range(3)]
    positions = log.put(*items)
    log.file.truncate(log.end - 5)
    check(log.read(positions), items[:2], 0, is_full=False)


def test_smallest_item_at_the_end_of_a_log_is_read_with_longer_ones(log: OneLog) -> None:
    items = [item(5, 0, 5), item(5, 1, 0)]
    check(log.read(log.put(*items)), items, 0, is_full=False)


# ---- what a read refuses ----


@pytest.mark.parametrize(
    "damaged",
    [
        item(6, 0),  # another ledger's
        item(5, 1),  # another entry
        (15).to_bytes(4, "big") + item(5, 0)[4:],  # shorter than the ids
        (1000).to_bytes(4, "big") + item(5, 0)[4:],  # longer than the log
        (-1).to_bytes(4, "big", signed=True) + item(5, 0)[4:],
        (ITEM_BYTES_MAX + 1).to_bytes(4, "big") + item(5, 0)[4:],
        item(5, 0)[:19],  # the log ends within the ids
        b"",
    ],
)
def test_position_that_leads_to_something_else_is_damage(log: OneLog, damaged: bytes) -> None:
    positions = log.put(damaged)
    with pytest.raises(StorageDamaged) as raised:
        log.read(positions)
    assert (raised.value.ledger_id, raised.value.entry_id) == (5, 0)


@pytest.mark.parametrize("step", [1, 10, 19])
def test_positions_closer_together_than_items_can_lie_lead_to_one_item_at_most(log: OneLog, step: int) -> None:
    first = int(log.put(item(5, 0))[0])
    for count in (2, 3, 5):
        try:
            found = log.read(np.arange(first, first + count * step, step))
        except StorageDamaged:
            pass
        else:
            check(found, [item(5, 0)], 0, is_full=False)


@pytest.mark.parametrize("step", [10, 19])
def test_positions_within_the_last_item_of_a_log_lead_to_that_item_alone(log: OneLog, step: int) -> None:
    smallest = (16).to_bytes(4, "big") + item(5, 0)[4:20]
    for count in (2, 3):
        # The bytes there have exactly the size of this many items of `step` bytes.
        padding = bytes(max(0, count * step - len(smallest)))
        first = int(log.put(smallest + padding)[0])
        os.truncate(log.path, log.end)
        check(log.read(first + step * np.arange(count)), [smallest], 0, is_full=False)


def test_run_ends_before_a_damaged_item(log: OneLog) -> None:
    for size in (30, 31):
        for position, wrong in ((1, item(6, 1, size)), (2, item(5, 3, size)), (1, b"\xff" * len(item(5, 1, size)))):
            items = [item(5, entry, 30 if entry == 0 else size) for entry in range(4)]
            items[position] = wrong
            positions = log.put(*items)
            check(log.read(positions), items[:position], 0, is_full=False)


def test_smallest_item_has_only_its_ids(log: OneLog) -> None:
    smallest = [(16).to_bytes(4, "big") + item(5, entry)[4:20] for entry in range(2)]
    check(log.read(log.put(*smallest)), smallest, 0, is_full=False)


def test_positions_before_the_first_item_and_of_a_missing_log_are_damage(log: OneLog) -> None:
    log.put(item(5, 0))
    for position in (
        (1 << OFFSET_BITS) + HEADER_BYTES + 3,
        (1 << OFFSET_BITS) + 1,
        (9 << OFFSET_BITS) + HEADER_BYTES + 4,
    ):
        with pytest.raises(StorageDamaged) as raised:
            log.read(np.array([position]))
        assert (raised.value.ledger_id, raised.value.entry_id) == (5, 0)
        assert log.reader.locate(np.array([position]), LARGE) is None or position >> OFFSET_BITS == 1


# ---- where items lie ----


def test_locate_returns_where_the_leading_items_begin(log: OneLog) -> None:
    positions = log.put(*(item(5, entry, 40) for entry in range(4)))
    offsets = ((positions & ((1 << OFFSET_BITS) - 1)) - 4).tolist()
    assert offsets[0] == HEADER_BYTES

    def located(some: np.ndarray, bytes_max: int = LARGE) -> list[int]:
        found = log.reader.locate(some, bytes_max)
        assert found is not None
        assert found.path == log.path
        return list(found.offsets)

    assert located(positions) == offsets
    assert located(positions, offsets[2] - offsets[0]) == offsets[:2]
    assert located(positions, offsets[2] - offsets[0] + 1) == offsets[:3]
    assert located(positions[[0, 2, 1]]) == [offsets[0], offsets[2]]
    assert located(positions[[0, 0, 1]]) == offsets[:1]
    assert located(positions + np.array([0, 0, 1 << OFFSET_BITS, 0])) == offsets[:2]


def test_forgotten_log_is_closed(log: OneLog) -> None:
    log.read(log.put(item(5, 0)))
    before = open_paths()
    log.reader.forget(log.path + "x")
    assert open_paths() == before
    log.reader.forget(log.path)
    assert open_paths().count(log.path) == before.count(log.path) - 1


def open_paths() -> list[str]:
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sorted(os.readlink(link) for link in links if os.path.exists(link))


# ---- scans ----


def test_scan_returns_all_items_and_ends_after_them(log: OneLog) -> None:
    expected = [(5, 0), (6, 3), (5, 1)]
    log.put(*(item(ledger, entry, 40 + entry) for ledger, entry in expected))
    assert log.scan() == (expected, log.end)


def test_scan_goes_on_over_items_longer_than_what_it_reads_at_once(log: OneLog) -> None:
    log.put(item(5, 0), item(5, 1, 3 << 20), item(5, 2), item(6, 0, 1 << 20), item(6, 1))
    assert log.scan() == ([(5, 0), (5, 1), (5, 2), (6, 0), (6, 1)], log.end)


@pytest.mark.parametrize(
    "wrong",
    [
        (15).to_bytes(4, "big") + bytes(15),
        (-1).to_bytes(4, "big", signed=True) + bytes(40),
        (1 << 30).to_bytes(4, "big") + bytes(40),
        (41).to_bytes(4, "big") + bytes(40),
        item(5, 7)[:30],
        b"\0\0",
        item(-1, 0),
        item(5, -1),
        item(5, 1 << 62),
    ],
)
def test_scan_ends_where_the_first_thing_begins_that_is_not_an_item(log: OneLog, wrong: bytes) -> None:
    log.put(item(5, 0), item(5, 1))
    end = log.end
    log.put(wrong)
    assert log.scan() == ([(5, 0), (5, 1)], end)


def test_scan_ends_at_damage_that_items_follow(log: OneLog) -> None:
    log.put(item(5, 0))
    end = log.end
    log.put((-1).to_bytes(4, "big", signed=True) + bytes(40), item(5, 1))
    assert log.scan() == ([(5, 0)], end)


def test_scan_of_a_log_without_items_ends_after_the_header(log: OneLog, tmp_path: Path) -> None:
    assert log.scan() == ([], HEADER_BYTES)
    log.file.truncate(10)
    assert log.scan() == ([], 10)


def test_scan_stops_before_a_whole_map_and_passes_over_none_that_is_not(log: OneLog) -> None:
    log.put(item(5, 0), item(5, 1))
    end = log.end
    table = log_format.encode_map(np.array([5]), np.array([99]))
    log.put(table)
    header = log_format.encode_header(1, end, 1, log_format.map_checksum(table))
    log.file.write([header], 0)
    scan = LogScan(log.file, 1)
    assert scan.ledgers_map is not None
    assert (scan.ledgers_map[0].tolist(), scan.ledgers_map[1].tolist(), scan.items_end) == ([5], [99], end)
    assert log.scan() == ([(5, 0), (5, 1)], end)
    log.file.write([b"\xff"], log.end - 1)
    broken = LogScan(log.file, 1)
    assert (broken.ledgers_map, broken.items_end) == (None, log.end)


# ---- what the index says of them ----


class Index:
    """The positions of one ledger: entry e has position e + 1."""

    def __init__(self, held_end: int) -> None:
        self.held_end = held_end
        self.asked: list[tuple[int, int]] = []

    def positions(self, ledger_id: int, first_entry: int, count: int) -> np.ndarray:
        assert ledger_id == 5
        self.asked.append((first_entry, count))
        return np.arange(first_entry, max(first_entry, min(first_entry + count, self.held_end)), dtype=np.int64) + 1


def test_positions_of_entries_far_apart_are_looked_up_one_by_one() -> None:
    """A ledger may hold entry 0 and entry 2^40."""
    index = Index(1 << 41)
    entries = np.array([0, 5, 8197, 16390, 1 << 40])
    assert stored_positions(index, 5, entries).tolist() == (entries + 1).tolist()  # type: ignore[arg-type]
    assert index.asked == [(0, 8198), (16390, 1), (1 << 40, 1)]


def test_entries_that_the_index_lacks_have_position_0() -> None:
    assert stored_positions(Index(7), 5, np.array([3, 6, 7, 8])).tolist() == [4, 7, 0, 0]  # type: ignore[arg-type]
    assert stored_positions(Index(7), 5, np.array([9])).tolist() == [0]  # type: ignore[arg-type]
    assert stored_positions(Index(7), 5, np.empty(0, np.int64)).tolist() == []  # type: ignore[arg-type]


def test_items_that_the_index_points_to_are_live(log: OneLog) -> None:
    """A torn log may hold two copies of an entry; the index names one of them."""
    positions = log.put(item(5, 1), item(5, 0), item(5, 1), item(5, 9))
    (window,) = LogScan(log.file, 1)
    assert window.positions.tolist() == positions.tolist()

    class OneOfTwo(Index):
        def positions(self, ledger_id: int, first_entry: int, count: int) -> np.ndarray:
            held = np.array([positions[1], positions[2]])
            return held[first_entry : first_entry + count]

    live = live_rows(window, OneOfTwo(2))  # type: ignore[arg-type]
    assert live.tolist() == [False, True, True, False]


def test_items_of_several_ledgers_are_looked_up_each_in_its_own(log: OneLog) -> None:
    positions = log.put(item(6, 0), item(5, 0), item(6, 1))
    (window,) = LogScan(log.file, 1)

    class Two(Index):
        def positions(self, ledger_id: int, first_entry: int, count: int) -> np.ndarray:
            held = {5: np.array([positions[1]]), 6: np.array([1, positions[2]])}[ledger_id]
            return held[first_entry : first_entry + count]

    assert live_rows(window, Two(9)).tolist() == [False, True, True]  # type: ignore[arg-type]
