import asyncio
import pickle
import random

import pytest

from bkspark.errors import ConfigurationError
from bkspark.ledger.reader import LedgerTimes
from bkspark.log.positions import Position
from bkspark.spark import ranges
from bkspark.spark.options import SourceOptions
from bkspark.spark.plan import ReadPlanner
from bkspark.spark.ranges import (
    PARTITION_BYTES_MIN,
    Backlog,
    EntryRange,
    PackedRanges,
    ReadableSegment,
    advance,
    at_least,
    between,
    cut,
    fair_share,
    partition_count,
    share,
    tasks,
)


def at(ordinal: int, entry: int) -> Position:
    return Position(ordinal, 100 + ordinal, entry)


def closed(ordinal: int, entries: int, entry_bytes: int = 10) -> ReadableSegment:
    return ReadableSegment(ordinal, 100 + ordinal, entries, entries * entry_bytes, True)


def open_ledger(ordinal: int, entries: int) -> ReadableSegment:
    return ReadableSegment(ordinal, 100 + ordinal, entries, entries * 10, False)


def test_end_of_a_ledger_has_one_form():
    for ledgers in ([closed(0, 5)], [open_ledger(0, 5)], [closed(0, 5), closed(1, 0), open_ledger(2, 0)]):
        assert advance(ledgers, Position.beginning()) == at(0, 5)


def test_nothing_new_returns_the_start_unchanged():
    assert advance([], at(0, 0)) == at(0, 0)
    assert advance([open_ledger(0, 4)], at(0, 4)) == at(0, 4)
    # The ledger was closed meanwhile, exactly at the reader's position: another text of the same place.
    assert advance([closed(0, 4)], at(0, 4)) == at(0, 4)
    assert advance([closed(0, 4), closed(1, 0), open_ledger(2, 0)], at(0, 4)) == at(0, 4)


def test_limited_reader_looks_at_no_ledger_that_it_does_not_need():
    """A log may have 100,000 of them."""
    ledgers = iter([closed(0, 3), closed(1, 2), closed(2, 9)])
    assert advance(ledgers, at(0, 0), entries_max=3) == at(0, 3)
    assert next(ledgers) == closed(1, 2)


def test_reader_does_not_leave_an_open_ledger():
    assert advance([closed(0, 3), open_ledger(1, 2), closed(2, 9)], at(0, 0)) == at(1, 2)
    assert advance([open_ledger(0, 0), closed(1, 9)], at(0, 0)) == at(0, 0)


def test_reader_follows_over_empty_ledgers():
    assert advance([closed(0, 4), closed(1, 0), closed(2, 1), open_ledger(3, 7)], at(0, 4)) == at(3, 7)


def test_entry_limit_stops_inside_and_across_ledgers():
    ledgers = [closed(0, 5), closed(1, 5)]
    assert advance(ledgers, at(0, 0), entries_max=3) == at(0, 3)
    assert advance(ledgers, at(0, 3), entries_max=3) == at(1, 1)
    assert advance(ledgers, at(0, 0), entries_max=5) == at(0, 5)
    assert advance(ledgers, at(1, 1), entries_max=100) == at(1, 5)


def test_byte_limit_always_lets_one_entry_through():
    ledgers = [closed(0, 5, entry_bytes=100), closed(1, 5, entry_bytes=1)]
    assert advance(ledgers, at(0, 0), bytes_max=1) == at(0, 1)
    assert advance(ledgers, at(0, 0), bytes_max=250) == at(0, 2)
    assert advance(ledgers, at(0, 4), bytes_max=103) == at(1, 3)


def test_limits_reach_the_end_in_steps_that_cover_every_entry_once():
    ledgers = [closed(0, 7), closed(1, 0), closed(2, 3, 1000), open_ledger(3, 4)]
    place, read = at(0, 0), []
    while (following := advance(ledgers, place, entries_max=3, bytes_max=1500)) != place:
        for entries in between(ledgers, place, following):
            read += [(entries.ordinal, entry) for entry in range(entries.first_entry, entries.end_entry)]
        place = following
    assert read == [(ledger.ordinal, entry) for ledger in ledgers for entry in range(ledger.end_entry)]


def test_between_is_empty_when_the_end_is_not_later():
    ledgers = [closed(0, 5), closed(1, 5)]
    assert between(ledgers, at(1, 0), at(0, 3)) == []
    assert between(ledgers, at(0, 5), at(1, 0)) == []
    assert between(ledgers, at(0, 2), at(0, 2)) == []


def test_between_takes_part_of_the_first_and_last_ledger():
    ledgers = [closed(0, 5), closed(1, 5), closed(2, 5)]
    assert [(r.ledger_id, r.first_entry, r.end_entry, r.size) for r in between(ledgers, at(0, 4), at(2, 1))] == [
        (100, 4, 5, 10),
        (101, 0, 5, 50),
        (102, 0, 1, 10),
    ]


@pytest.mark.parametrize("seed", range(50))
def test_shares_cover_every_entry_once_in_order(seed):
    chance = random.Random(seed)
    ranges = [
        EntryRange(i, 100 + i, first := chance.randrange(9), first + chance.randrange(1, 50), chance.randrange(1 << 24))
        for i in range(chance.randrange(1, 30))
    ]
    entries = [(r.ledger_id, entry) for r in ranges for entry in range(r.first_entry, r.end_entry)]
    count = chance.randrange(1, len(entries) + 1)
    groups = share(ranges, count)
    assert [(r.ledger_id, entry) for g in groups for r in g for entry in range(r.first_entry, r.end_entry)] == entries
    assert all(groups)
    assert len(groups) <= count


def test_packed_ranges_are_the_same_ranges():
    ranges = [EntryRange(i, (1 << 62) + i, i, i + 5, 1 << 40, "a" if i < 3 else "b") for i in range(7)]
    packed = pickle.loads(pickle.dumps(PackedRanges.of(ranges)))
    assert packed.unpacked() == ranges
    assert PackedRanges.of([]).unpacked() == []


def test_shares_are_of_about_equal_size():
    groups = share([EntryRange(0, 1, 0, 1000, 1000 << 20), EntryRange(1, 2, 0, 10, 10 << 20)], 4)
    sizes = [sum(r.size for r in group) >> 20 for group in groups]
    assert len(sizes) == 4
    assert max(sizes) - min(sizes) <= 2


@pytest.mark.parametrize("seed", range(50))
def test_more_groups_are_made_where_a_large_entry_left_too_few(seed):
    chance = random.Random(seed)
    ranges = [EntryRange(i, 100 + i, 3, 3 + chance.choice((1, 2, 40)), chance.choice((1, 1 << 30))) for i in range(9)]
    entries = [(r.ledger_id, entry) for r in ranges for entry in range(r.first_entry, r.end_entry)]
    count = chance.randrange(1, len(entries) + 5)
    groups = at_least(share(ranges, count), count)
    assert [(r.ledger_id, entry) for g in groups for r in g for entry in range(r.first_entry, r.end_entry)] == entries
    assert all(groups)
    assert len(groups) == min(count, len(entries))


def test_small_ledgers_pack_into_one_task():
    ranges = [EntryRange(i, i, 0, 3, 300) for i in range(500)]
    assert partition_count(ranges, 256 << 20, None, slots=2) == 1
    assert partition_count(ranges * 10, 256 << 20, None, slots=2) == 5


def test_partitions_follow_size_then_slots_then_the_wish():
    big = [EntryRange(0, 1, 0, 1 << 20, 1 << 30)]
    assert partition_count(big, 256 << 20, None, slots=2) == 4
    assert partition_count(big, 256 << 20, 32, slots=2) == 32
    assert partition_count(big, 256 << 20, 5, slots=2) == 5
    assert partition_count([EntryRange(0, 1, 0, 100, 3 * PARTITION_BYTES_MIN)], 256 << 20, None, slots=2) == 2
    assert partition_count([EntryRange(0, 1, 0, 5, 50)], 256 << 20, 32, slots=2) == 5
    assert partition_count([], 256 << 20, 32, slots=2) == 0


def test_no_slot_waits_for_the_last_task():
    """Where the user says nothing: five tasks on two slots take as long as six."""
    big = [EntryRange(0, 1, 0, 1 << 20, 5 << 30)]
    assert partition_count(big, 1 << 30, None, slots=2) == 6
    assert partition_count(big, 1 << 30, None, slots=3) == 6
    assert partition_count(big, 1 << 30, None, slots=8) == 8
    assert partition_count(big, 1 << 30, 3, slots=2) == 5


def test_limit_is_shared_out_evenly_and_wholly():
    assert fair_share([10, 1], 4) == [3, 1]
    assert fair_share([0, 0], 5) == [0, 0]
    assert fair_share([5, 5, 5], 2) == [1, 1, 0]
    assert fair_share([5, 5, 5], 2, turn=1) == [1, 0, 1], "a remainder goes to others in the next turn"
    assert fair_share([5, 5, 5], 2, turn=2) == [0, 1, 1]
    assert fair_share([3, 9, 1], 100) == [3, 9, 1]
    for seed in range(200):
        chance = random.Random(seed)
        wanted = [chance.choice((0, 1, 5, 1000)) for _ in range(chance.randint(1, 6))]
        total = chance.randint(0, 3000)
        given = fair_share(wanted, total)
        assert sum(given) == min(total, sum(wanted))
        assert all(0 <= got <= want for got, want in zip(given, wanted))


@pytest.mark.parametrize(
    ("given", "size"),
    [({}, 1 << 62), ({"maxEntriesPerPartition": "1"}, 9), ({"minPartitions": "1000001"}, 9)],
)
def test_read_of_too_many_tasks_is_refused_before_they_are_made(given, size):
    """A ledger that was closed at a false LAC claims that many entries."""
    options = SourceOptions.parse({"uri": "zk://127.0.0.1:1/ledgers", "ledgers": "7", **given}).for_batch_read()
    planner = ReadPlanner(None, options)
    with pytest.raises(ConfigurationError, match=r"ledger 7 has 4611686018427387904 of them.*raise maxPartitionBytes"):
        asyncio.run(planner.partitions([EntryRange(0, 7, 0, 1 << 62, size)]))


def test_as_many_tasks_as_allowed_are_made(monkeypatch):
    monkeypatch.setattr(ranges, "TASKS_MAX", 3)
    (entries,) = between([closed(0, 10)], at(0, 0), at(0, 10))
    assert len(tasks([entries], 1 << 20, 3, None, 1)) == 3
    with pytest.raises(ConfigurationError, match="the read would have 4 tasks, and 3 are the most"):
        tasks([entries], 1 << 20, 4, None, 1)


def test_part_of_few_bytes_is_not_taken_for_one_without_bytes():
    assert [each.size for each in cut([EntryRange(0, 7, 0, 3, 1)], 0, 2)] == [1]
    assert [each.size for each in cut([EntryRange(0, 7, 0, 3, 0)], 0, 2)] == [0]


@pytest.mark.parametrize(
    ("given", "is_wanted"),
    [
        ({"endingTimestamp": "7"}, False),
        ({"endingTimestamp": "8"}, True),
        ({"startingTimestamp": "9"}, True),
        ({"startingTimestamp": "10"}, False),
        ({"startingTimestamp": "8", "endingTimestamp": "9"}, True),
    ],
)
def test_time_of_a_read_holds_its_beginning_and_not_its_end(given, is_wanted):
    """The ledger was created at 7 and closed at 9."""
    options = SourceOptions.parse({"uri": "zk://127.0.0.1:1/ledgers", "ledgers": "7", **given}).for_batch_read()
    assert ReadPlanner(None, options)._is_in_time(LedgerTimes(7, 9)) == is_wanted


@pytest.mark.parametrize("entries_max", [None, 1, 3, 4, 7])
@pytest.mark.parametrize("bytes_max", [None, 1, 2, 5, 1000])
@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_limits_of_entries_and_bytes_together_always_serve_a_log_and_all_logs_in_turn(
    entries_max: int | None, bytes_max: int | None, count: int
) -> None:
    """A trigger that reads nothing ends a query with Trigger.AvailableNow, although there is something to read."""
    amounts = [Backlog(100, 0 if place % 3 == 2 else 500) for place in range(count)]
    served: set[int] = set()
    for turn in range(3 * count):
        shares = ranges.trigger_shares(amounts, entries_max, bytes_max, turn)
        now = {place for place, share in enumerate(shares) if 0 not in share}
        assert now
        served |= now
        for limit, given in zip((entries_max, bytes_max), zip(*shares)):
            assert given == (None,) * count if limit is None else sum(given) <= limit
    assert served == set(range(count))
