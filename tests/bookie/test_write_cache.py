"""The write cache against a dictionary."""

from __future__ import annotations

import numpy as np
import pytest

from bookie_service.storage.io.framed_entries import contiguous_spans, rows_by_ledger
from bookie_service.storage.ledgers.write_cache import LedgerWrites, MemTable
from tests.bookie.items import item


def put(half: MemTable, ledger_id: int, items: dict[int, bytes], gap: int = 0) -> None:
    """Place items as a receive buffer holds them, `gap` bytes apart."""
    buffer = b"".join(bytes(gap) + content for content in items.values())
    sizes = np.array([len(content) for content in items.values()])
    starts = np.cumsum(sizes + gap) - sizes
    addresses = half.place(np.frombuffer(buffer, np.uint8), starts, sizes)
    half.insert(ledger_id, np.array(list(items)), addresses)


@pytest.mark.parametrize("gap", [0, 24])
@pytest.mark.parametrize("sizes", [[10, 10, 10], [10, 0, 35], [7]])
def test_placed_items_are_read_back(gap: int, sizes: list[int]) -> None:
    half = MemTable(4096)
    items = {entry_id: item(5, entry_id, size) for entry_id, size in enumerate(sizes)}
    put(half, 5, items, gap)
    held = half.read(5, 0, 100, 4096)
    assert held is not None
    assert bytes(held.buffer) == b"".join(items.values())
    assert held.sizes.tolist() == [len(content) for content in items.values()]
    assert half.used == len(held.buffer)


def test_reading_stops_at_count_bytes_and_gaps() -> None:
    half = MemTable(4096)
    put(half, 5, {entry_id: item(5, entry_id, 10) for entry_id in (0, 1, 2, 3, 5)})
    size = len(item(5, 0, 10))
    for count_max, bytes_max, expected in (
        (2, 4096, 2),
        (9, 3 * size, 3),
        (9, 3 * size - 1, 2),
        (9, 0, 1),
        (9, 4096, 4),
    ):
        held = half.read(5, 0, count_max, bytes_max)
        assert held is not None
        assert len(held) == expected
    assert half.read(5, 4, 9, 4096) is None
    assert half.read(6, 0, 9, 4096) is None


def test_memory_for_finding_entries_counts_as_used() -> None:
    half = MemTable(4096)
    before = half.room
    put(half, 5, {0: item(5, 0, 10)})
    first = before - half.room - len(item(5, 0, 10))
    put(half, 5, {1: item(5, 1, 10)})
    another = before - half.room - 2 * len(item(5, 0, 10)) - first
    assert another == 16
    assert first == 616, "a ledger costs more than its entries"
    begin = half.room
    octets = np.zeros(10, np.uint8)
    half.add_single(6, 0, octets, 0, 10)
    assert begin - half.room == 616 + 14
    half.add_single(6, 1, octets, 0, 10)
    assert begin - half.room == 632 + 28
    half.clear()
    put(half, 5, {0: item(5, 0, 10), 1: item(5, 1, 10)})
    half.note_header()
    assert half.room == before - first - another - 2 * len(item(5, 0, 10)) - 1024
    half.clear()
    assert (half.room, half.used, half.ledgers) == (before, 0, {})


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_arrival_reads_as_a_dictionary_would(seed: int) -> None:
    random = np.random.default_rng(seed)
    half = MemTable(1 << 20)
    model: dict[tuple[int, int], bytes] = {}
    for _ in range(150):
        ledger_id = int(random.integers(3))
        first = int(random.integers(60))
        entry_ids = random.permutation(np.arange(first, first + random.integers(1, 6)))
        items = {int(entry_id): item(ledger_id, int(entry_id), int(random.integers(30))) for entry_id in entry_ids}
        put(half, ledger_id, items)
        model |= {(ledger_id, entry_id): content for entry_id, content in items.items()}
        probe = int(random.integers(70))
        held = half.read(ledger_id, probe, 1, 4096)
        assert (bytes(held.buffer) if held else None) == model.get((ledger_id, probe))
    for ledger_id in range(3):
        entry_ids, addresses = half.ledgers[ledger_id].sorted()
        assert entry_ids.tolist() == sorted(entry for ledger, entry in model if ledger == ledger_id)
        for entry_id, address in zip(entry_ids.tolist(), addresses.tolist()):
            expected = model[ledger_id, entry_id]
            assert half.memory[address : address + len(expected)].tobytes() == expected
        entry_id = 0
        while (held := half.read(ledger_id, entry_id, 50, 4096)) is not None:
            assert bytes(held.buffer).startswith(model[ledger_id, entry_id])
            entry_id = held.end_entry
        assert (ledger_id, entry_id) not in model


def late_half(count: int) -> MemTable:
    """Return a half that holds one entry of a ledger, and then `count` earlier ones of it in descending pieces."""
    half = MemTable(1 << 26)
    sizes = np.full(100, 64)
    octets = np.zeros(6400, np.uint8)
    octets[3::64] = 60
    half.insert(9, np.array([10**9]), half.place(octets, np.array([0]), sizes[:1]))
    for first in range(count - 100, -1, -100):
        half.insert(9, np.arange(first, first + 100), half.place(octets, np.arange(0, 6400, 64), sizes))
    return half


def test_entries_out_of_order_lie_in_few_runs() -> None:
    """A look at a ledger must not go through all its entries that came late: 300,000 of them took 4 ms a read."""
    half = late_half(200_000)
    writes = half.ledgers[9]
    assert len(writes.ids()) <= 20
    assert sum(map(len, writes.ids())) == 200_001
    assert half.gap(9, 5 * 10**6, 10) == 10
    assert half.gap(9, 10**9 - 3, 10) == 3
    assert half.gap(9, 199_999, 10) == 0
    held = half.read(9, 0, 500, 1 << 20)
    assert held is not None
    assert len(held) == 500


@pytest.mark.parametrize(
    ("before", "last", "runs"), [(100, 50, 2), (100, 49, 3), (40_000, 25_536, 2), (40_000, 25_537, 3)]
)
def test_late_run_is_merged_once_it_has_half_of_the_one_before_and_no_long_run_is_made(
    before: int, last: int, runs: int
) -> None:
    """This happens on the event loop, so a merged run has 64 K entries at most: about a millisecond."""
    writes = LedgerWrites()
    for first, count in ((10**6, before), (10**5, last), (0, 1)):
        writes.append(np.arange(first, first + count), np.arange(first, first + count))
    assert len(writes.ids()) == runs


def test_memory_that_a_late_disk_still_writes_from_is_not_used_again() -> None:
    half = MemTable(4096)
    put(half, 5, {0: item(5, 0, 10)})
    memory, content = half.memory, half.memory[:10].copy()
    half.clear()
    assert half.memory is memory
    put(half, 5, {0: item(5, 0, 10)})
    half.clear(keeps_memory=False)
    assert (half.used, len(half.memory)) == (0, 4096)
    put(half, 6, {7: item(6, 7, 99)})
    assert np.array_equal(memory[:10], content)


def test_the_newest_of_two_entries_of_one_id_is_read() -> None:
    half = MemTable(1 << 16)
    for version in range(30):
        # Each piece goes to another run than the one before.
        put(half, 5, {entry_id: item(5, entry_id, version) for entry_id in (20 - version % 7, 40 - version % 5)})
    for entry_id, version in ((20, 28), (19, 29), (40, 25), (36, 29)):
        held = half.read(5, entry_id, 1, 4096)
        assert held is not None
        assert bytes(held.buffer) == item(5, entry_id, version)
        several = half.read(5, entry_id, 3, 4096)
        assert several is not None
        assert bytes(several.buffer).startswith(item(5, entry_id, version))


def test_spans_and_rows() -> None:
    assert contiguous_spans(np.array([4, 10, 30]), np.array([6, 5, 1])) == [(4, 15), (30, 31)]
    assert contiguous_spans(np.array([4]), np.array([6])) == [(4, 10)]
    (ledger_id, rows) = rows_by_ledger(np.array([7, 7]))[0]
    assert (ledger_id, np.arange(2)[rows].tolist()) == (7, [0, 1])
    groups = rows_by_ledger(np.array([9, 7, 9, 8, 7]))
    assert [(ledger_id, np.arange(5)[rows].tolist()) for ledger_id, rows in groups] == [
        (7, [1, 4]),
        (8, [3]),
        (9, [0, 2]),
    ]
