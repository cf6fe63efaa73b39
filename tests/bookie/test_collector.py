"""The collector's task: who asks for a pass, what ends it, and how fast it asks the metadata store."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from bkspark.errors import BookKeeperError, ConfigurationError, MetadataError
from bookie_service.gc.collection_options import CollectionOptions
from bookie_service.gc.collection_status import PassReport
from bookie_service.gc.gc_policy import CompactionLevel
from bookie_service.gc.query_pace import QueryPace
from bookie_service.storage.disks import DiskRoom
from tests.bookie.bench_collectors import SELDOM, BenchCollector, two_ledgers, with_collector
from tests.simulation.virtual_loop import run_in_virtual_time


def test_requested_pass_is_a_forced_one_and_its_report_goes_to_every_caller(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(gc: BenchCollector) -> None:
        gc.bench.delete(1)
        with caplog.at_level(logging.INFO):
            reports = await asyncio.gather(*(gc.collector.collect() for _ in range(3)))
            assert {(it.dropped_ledgers, it.removed_logs) for it in reports} == {(1, 1)}
            assert gc.flushes == 1
            assert gc.dropped == [1]
            assert caplog.text.count("garbage collection: ") == 1
            assert (await gc.collector.collect()) == PassReport()
        assert caplog.text.count("garbage collection: ") == 2, "the caller learns that nothing was to be done"

    with_collector(two_ledgers(tmp_path), SELDOM, test, starts=True)


def test_pass_that_comes_by_itself_says_nothing_where_there_was_nothing_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(gc: BenchCollector) -> None:
        listings = 0
        listed = asyncio.Event()

        def count() -> None:
            nonlocal listings
            listings += 1
            if listings == 2:
                listed.set()

        gc.bench.cluster.before_listing = count
        with caplog.at_level(logging.INFO):
            gc.collector.hurry()
            while listings < 1:
                await asyncio.sleep(0.001)
            gc.collector.hurry()
            await listed.wait()
        assert gc.flushes == 0
        assert "garbage collection: " not in caplog.text

    with_collector(two_ledgers(tmp_path), SELDOM, test, starts=True)


def test_caller_that_went_away_does_not_stop_the_collector(tmp_path: Path) -> None:
    async def test(gc: BenchCollector) -> None:
        gone = asyncio.ensure_future(gc.collector.collect())
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert isinstance(await gc.collector.collect(), PassReport)
        assert gc.failures == []

    with_collector(two_ledgers(tmp_path), SELDOM, test, starts=True)


def test_error_of_a_pass_ends_the_process_and_reaches_waiting_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(gc: BenchCollector) -> None:
        def fail() -> None:
            raise OSError(5, "Input/output error", "an index file")

        monkeypatch.setattr(gc.bench.store, "seal_logs", fail)
        with pytest.raises(BookKeeperError, match="failed, which ends the bookie") as caught:
            await gc.collector.collect()
        assert "an index file" in str(caught.value)
        assert [error.filename for error in gc.failures] == ["an index file"]

    with_collector(two_ledgers(tmp_path), SELDOM, test, starts=True)


def test_stop_fails_the_callers_that_wait_and_is_not_a_failure_of_the_bookie(tmp_path: Path) -> None:
    """It was one when a pass was asked for in the same turn of the event loop: the bookie ended with an error."""

    async def test(gc: BenchCollector) -> None:
        waiting = [asyncio.ensure_future(gc.collector.collect()) for _ in range(2)]
        await asyncio.sleep(0)
        await gc.collector.stop()
        for each in waiting:
            with pytest.raises(BookKeeperError, match="stopped before garbage was collected"):
                await each
        assert gc.failures == []

    with_collector(two_ledgers(tmp_path), SELDOM, test, starts=True)


def test_stop_of_a_collector_that_never_started_returns(tmp_path: Path) -> None:
    async def test(gc: BenchCollector) -> None:
        gc.collector.abandon()

    with_collector(two_ledgers(tmp_path), SELDOM, test)


@pytest.mark.parametrize(("room", "flushes"), [(DiskRoom.ENOUGH, 1), (DiskRoom.SCARCE, 1), (DiskRoom.FULL, 0)])
def test_forced_pass_flushes_and_seals_unless_the_disks_are_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: DiskRoom, flushes: int
) -> None:
    async def test(gc: BenchCollector) -> None:
        gc.room = room
        sealed: list[None] = []
        monkeypatch.setattr(gc.bench.store, "seal_logs", lambda: sealed.append(None))
        await gc.collector.run_pass(is_forced=True)
        assert (gc.flushes, len(sealed)) == (flushes, flushes)
        await gc.collector.run_pass(is_forced=False)
        assert (gc.flushes, len(sealed)) == (flushes, flushes)

    with_collector(two_ledgers(tmp_path), SELDOM, test)


@pytest.mark.parametrize(
    ("may", "counts"),
    [
        ({}, (0, 1)),
        ({"minor": False}, (0, 1)),
        ({"major": False}, (1, 0)),
        ({"major": False, "minor": False}, (0, 0)),
    ],
)
def test_forced_pass_compacts_as_requested(tmp_path: Path, may: dict[str, bool], counts: tuple[int, int]) -> None:
    async def test(gc: BenchCollector) -> None:
        await gc.collector.collect(**may)
        status = gc.collector.status
        assert (status.minor_count, status.major_count) == counts

    with_collector(two_ledgers(tmp_path), SELDOM, test, starts=True)


def test_ledgers_of_other_bookies_are_looked_for_when_it_is_due_or_asked_for(tmp_path: Path) -> None:
    async def test(gc: BenchCollector) -> None:
        gc.bench.cluster.on_other_bookies = {1}
        gc.bench.flush()
        assert (await gc.collector.run_pass(is_forced=False)).dropped_ledgers == 0
        assert (await gc.collector.run_pass(is_forced=True)).dropped_ledgers == 1

    with_collector(two_ledgers(tmp_path / "seldom"), replace(SELDOM, overreplicated_interval_s=3600.0), test)

    async def due(gc: BenchCollector) -> None:
        gc.now_s = 10.0
        gc.bench.cluster.on_other_bookies = {1}
        gc.bench.flush()
        assert (await gc.collector.run_pass(is_forced=False)).dropped_ledgers == 1

    with_collector(two_ledgers(tmp_path / "due"), replace(SELDOM, overreplicated_interval_s=10.0), due)

    async def never(gc: BenchCollector) -> None:
        gc.bench.cluster.on_other_bookies = {1}
        gc.bench.flush()
        assert (await gc.collector.run_pass(is_forced=False)).dropped_ledgers == 0

    with_collector(two_ledgers(tmp_path / "never"), replace(SELDOM, overreplicated_interval_s=0.0), never)


def test_metadata_store_that_fails_drops_nothing_and_dead_logs_still_go(tmp_path: Path) -> None:
    async def test(gc: BenchCollector) -> None:
        gc.bench.drop(1)
        gc.bench.cluster.failure = MetadataError("the metadata store is away")
        report = await gc.collector.run_pass(is_forced=True)
        assert (report.dropped_ledgers, report.removed_logs) == (0, 1)
        assert "the metadata store is away" in report.kept_because

    with_collector(two_ledgers(tmp_path), SELDOM, test)


def test_queries_to_the_metadata_store_keep_to_a_limit_that_may_change() -> None:
    async def ask(per_s: list[int]) -> list[float]:
        """Query as often as there are limits; return when each query was allowed."""
        loop, limits = asyncio.get_running_loop(), iter(per_s)
        pace = QueryPace(lambda: next(limits))
        return [(await pace(), loop.time())[1] for _ in per_s]

    assert run_in_virtual_time(ask([2, 2, 2, 2])) == [0.0, 0.5, 1.0, 1.5]
    assert run_in_virtual_time(ask([2, 2, 0, 0, 4])) == [0.0, 0.5, 0.5, 0.5, 1.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"minor": CompactionLevel(0.2, 5.0)}, "minorCompactionInterval 5 s is shorter than gcWaitTime"),
        ({"major": CompactionLevel(0.8, 5.0)}, "majorCompactionInterval 5 s is shorter than gcWaitTime"),
        ({"major": CompactionLevel(1.0, 90_000.0)}, "majorCompactionThreshold 1 must be below 1"),
        (
            {"minor": CompactionLevel(0.8, 3600.0)},
            "minorCompactionThreshold 0.8 must be below majorCompactionThreshold",
        ),
        ({"minor": CompactionLevel(0.2, 86_400.0)}, "minorCompactionInterval 86400 must be below"),
    ],
)
def test_levels_that_contradict_each_other_are_refused(changes: dict[str, CompactionLevel], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        CollectionOptions(interval_s=10.0, **changes)  # type: ignore[arg-type]


def test_level_that_is_off_is_not_compared_with_others() -> None:
    for off in (CompactionLevel(0.0, 5.0), CompactionLevel(0.2, 0.0), CompactionLevel(-1.0, 100_000.0)):
        assert not off.is_on
        CollectionOptions(interval_s=10.0, minor=off)
    CollectionOptions(interval_s=10.0, minor=CompactionLevel(0.2, 10.0), major=CompactionLevel(0.21, 11.0))
