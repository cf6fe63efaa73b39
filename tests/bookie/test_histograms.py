"""Histograms, and the times of requests that are recorded in them."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import pytest

from bookie_service.metrics.histograms import BUCKETS, Histograms, bucket_of, buckets_of, counted
from bookie_service.metrics.requests import ADD_STAGES, READ_ENTRY, JournalTimes, RequestTimes

MS = 1_000_000


def test_a_number_has_the_same_bucket_alone_and_in_an_array() -> None:
    powers = 2 ** np.arange(42)
    values = np.concatenate([np.arange(5000), powers, powers - 1, [-1, -(10**15), 1 << 42, 1 << 60]])
    assert buckets_of(values).tolist() == [bucket_of(int(value)) for value in values]
    assert buckets_of(values).max() == BUCKETS - 1


def test_quantiles_are_wrong_by_a_32nd_at_most() -> None:
    values = np.random.default_rng(1).integers(1, 10_000_000, 20_000)
    histograms = Histograms()
    histograms.record_row(0, values, np.ones(len(values), np.int64))
    histograms.roll()
    shares = (0.01, 0.5, 0.99, 0.999, 1.0)
    for share, found in zip(shares, histograms.quantiles(0, shares)):
        right = np.sort(values)[math.ceil(share * len(values)) - 1]
        assert abs(found - right) <= right / 32 + 1


def test_quantiles_are_those_of_the_last_closed_window_and_counts_never_fall() -> None:
    """Apache's quantiles are those of the last finished window, NaN when it saw nothing, and before the first."""
    histograms = Histograms()
    histograms.record(0, 20)
    assert math.isnan(histograms.quantiles(0, [0.5])[0])
    histograms.roll()
    histograms.record(0, 30, 5)
    assert histograms.quantiles(0, [0.5]) == [20]
    histograms.roll()
    assert histograms.quantiles(0, [0.5]) == [30]
    histograms.roll()
    assert math.isnan(histograms.quantiles(0, [0.5])[0])
    assert (histograms.count(0), histograms.sum(0)) == (6, 170)


def test_numbers_recorded_together_count_as_one_by_one() -> None:
    one, together = Histograms(2), Histograms(2)
    values = np.array([[3, 500, 70_000], [1, 2, 3]])
    together.add(0, *counted(values, np.array([1, 10, 100])))
    for which, row in enumerate(values.tolist()):
        for value, weight in zip(row, (1, 10, 100)):
            one.record(which, value, weight)
    for which in range(2):
        assert one.count(which) == together.count(which) == 111
        assert one.sum(which) == together.sum(which)
        buckets = buckets_of(np.array([4, 1024, 1 << 20]))
        assert one.below(which, buckets) == together.below(which, buckets)


def test_quantile_is_the_least_number_that_this_share_does_not_exceed() -> None:
    histograms = Histograms()
    histograms.record_row(0, np.arange(1, 6), np.ones(5, np.int64))
    histograms.roll()
    assert histograms.quantiles(0, [0.0, 0.2, 0.21, 0.5, 0.8, 0.81, 1.0]) == [1, 1, 2, 3, 4, 5, 5]


def test_numbers_below_a_bucket_are_those_of_the_buckets_before_it() -> None:
    histograms = Histograms(2)
    histograms.add(0, *counted(np.array([[0, 1, 1, -7], [5, 5, 5, 5]]), np.array([1, 1, 2, 10])))
    assert histograms.below(0, buckets_of(np.array([0, 1, 2]))) == [0, 11, 14]
    assert (histograms.sum(0), histograms.sum(1)) == (3, 70)


def test_stages_of_a_read_follow_one_another() -> None:
    """Received at 0, looked for from 2 ms on, answered at 5 ms: 3 found, 1 not."""
    times = RequestTimes(lambda: 0)
    times.reads.rows += (READ_ENTRY, 3, 1, 0, 2 * MS, 5 * MS)
    times.reads.note_fetch(1 * MS)
    times.fold()
    assert [times.read_stages.sum(row) for row in range(3)] == [4 * 2000, 1000, 4 * 3000]
    assert (times.succeeded.sum(READ_ENTRY), times.failed.sum(READ_ENTRY)) == (3 * 5000, 5000)


def test_stages_of_an_add_follow_one_another() -> None:
    """Received at 0, given to the journal at 1 ms, its group begun at 3, written at 6, synced at 10, answered at 15."""
    times = RequestTimes(lambda: 0)
    journal = times.add_journal()
    journal.note(deque([(7, 3 * MS, 6 * MS, 10 * MS, 64, 65_536)]), 7, [64, 0, 1 * MS], 15 * MS)
    times.fold()
    stages = [times.adds.sum(row) // 64 // 1000 for row in range(len(ADD_STAGES))]
    assert stages == [1, 2, 3, 4, 5]
    assert times.adds.sum(len(ADD_STAGES)) == 64 * 15_000
    assert times.adds.count(0) == 64
    assert times.journal_adds[0].sum(0) == 64 * 9_000
    recorded = times.journal_histograms[0]
    assert [recorded.sum(row) for row in (JournalTimes.SYNC, JournalTimes.WRITE)] == [4000, 3000]
    assert [recorded.sum(row) for row in (JournalTimes.BATCH_ENTRIES, JournalTimes.BATCH_BYTES)] == [64, 65_536]


def test_group_that_is_not_synced_counts_as_no_sync() -> None:
    times = RequestTimes(lambda: 0)
    journal = times.add_journal()
    journal.note(deque([(1, 1000, 2000, 0, 1, 100)]), 1, [], 0)
    times.fold()
    assert times.journal_histograms[0].count(JournalTimes.SYNC) == 0
    assert times.journal_histograms[0].count(JournalTimes.WRITE) == 1


def test_adds_of_a_group_that_is_not_synced_are_durable_when_it_is_written() -> None:
    """With journalSyncData=false the operating system's word suffices: no stage may hide the time of the write."""
    times = RequestTimes(lambda: 0)
    journal = times.add_journal()
    journal.note(deque([(1, 2 * MS, 6 * MS, 0, 1, 100)]), 1, [1, 0, 1 * MS], 7 * MS)
    times.fold()
    stages = [times.adds.sum(row) // 1000 for row in range(len(ADD_STAGES))]
    assert stages == [1, 1, 4, 0, 1]
    assert times.journal_adds[0].sum(0) == 5000
    assert journal.written_bytes == 100


def test_no_stage_of_a_late_answer_is_negative() -> None:
    """Its group is not known any more: it was given to the journal after the last group had begun."""
    times = RequestTimes(lambda: 0)
    journal = times.add_journal()
    journal.note(deque([(1, 2 * MS, 3 * MS, 4 * MS, 1, 100)]), 1, [1, 0, 9 * MS], 10 * MS)
    times.fold()
    stages = [times.adds.sum(row) // 1000 for row in range(len(ADD_STAGES))]
    assert (stages, times.adds.sum(len(ADD_STAGES))) == ([9, 0, 0, 0, 1], 10_000)
    assert times.journal_histograms[0].sum(JournalTimes.QUEUE) == 0


def test_times_of_groups_that_are_not_answered_yet_wait() -> None:
    groups = deque([(1, 1 * MS, 2 * MS, 3 * MS, 1, 10), (2, 4 * MS, 5 * MS, 6 * MS, 1, 10)])
    times = RequestTimes(lambda: 0)
    times.add_journal().note(groups, 1, [], 0)
    times.fold()
    assert times.journal_histograms[0].count(JournalTimes.WRITE) == len(groups) == 1


def test_many_batches_are_counted_without_a_scrape() -> None:
    """What waits to be counted is bounded: a bookie that is never scraped must not grow."""
    times = RequestTimes(lambda: 0)
    journal = times.add_journal()
    for sequence in range(1, 2000):
        journal.note(deque([(sequence, 1, 2, 3, 1, 10)]), sequence, [1, 0, 1], 4)
    assert times.adds.count(0) > 1000


@pytest.mark.parametrize("adds", [2, 64])
@pytest.mark.parametrize("synced", [0, 1])
def test_batch_that_is_a_group_alone_counts_as_its_parts_do(adds: int, synced: int) -> None:
    alone, divided = RequestTimes(lambda: 0), RequestTimes(lambda: 0)
    for times, parts in ((alone, 1), (divided, 2)):
        journal = times.add_journal()
        for number in range(1, 40):
            group = (number, 50 * MS, (50 + number) * MS, synced * 10 * number * MS, adds, 100 * number)
            batches = [adds // parts, number, number * MS] * parts
            journal.note(deque([group]), number, batches, 4000 * MS)
        times.fold()
    assert alone.journals[0].written_bytes == divided.journals[0].written_bytes
    for mine, theirs in (
        (alone.adds, divided.adds),
        (alone.journal_adds[0], divided.journal_adds[0]),
        (alone.journal_histograms[0], divided.journal_histograms[0]),
    ):
        bounds = buckets_of(np.arange(0, 4_000_000, 1000))
        for row in range(len(mine)):
            assert (mine.sum(row), mine.below(row, bounds)) == (theirs.sum(row), theirs.below(row, bounds))


def test_adds_that_came_alone_are_groups_and_adds_of_one() -> None:
    times = RequestTimes(lambda: 0)
    journal = times.add_journal()
    for _ in range(3):
        journal.alone += (1, 0, 1 * MS, 2 * MS, 3 * MS, 5 * MS, 1, 100, 6 * MS)
    times.fold()
    assert (journal.alone, journal.written_bytes) == ([], 300)
    assert times.adds.count(ADD_STAGES.index("answered")) == 3
    assert [times.adds.sum(row) // 3000 for row in range(len(ADD_STAGES))] == [1, 1, 1, 2, 1]
    assert times.journal_histograms[0].count(JournalTimes.SYNC) == 3
    assert times.journal_histograms[0].sum(JournalTimes.SYNC) == 3 * 2000


def test_without_a_clock_nothing_is_recorded() -> None:
    times = RequestTimes()
    times.note_refused_adds(5)
    assert not times.is_on
    assert times.failed_adds.count(0) == 0


@pytest.mark.parametrize("value", [-5, 0])
def test_negative_time_counts_as_zero(value: int) -> None:
    histograms = Histograms()
    histograms.record(0, value)
    histograms.record_row(0, np.array([value]), np.array([1]))
    assert (histograms.count(0), histograms.sum(0)) == (2, 0)
