"""What operators read of garbage collection: counts, bytes, times, and why something was kept."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bookie_service.formats.entry_log import HEADER_BYTES
from bookie_service.gc.garbage_collector import GarbageCollector
from bookie_service.gc.gc_policy import OFF, CompactionLevel
from tests.bookie.bench_collectors import SELDOM, BenchCollector, two_ledgers, with_collector
from tests.bookie.collecting import UNLIMITED, Bench
from tests.bookie.items import item

ITEM_BYTES = len(item(1, 0))


def test_pass_counts_what_it_dropped_and_freed(tmp_path: Path) -> None:
    async def test(gc: BenchCollector) -> None:
        status = gc.collector.status
        gc.bench.delete(1)
        for number in (1, 2):
            report = await gc.collector.collect()
            assert status.passes == number
            assert status.last_report == report
            assert not status.is_forced
            assert (status.deleted_ledgers, status.deleted_bytes) == (1, 5 * ITEM_BYTES)
            assert report.freed_bytes == (5 * ITEM_BYTES if number == 1 else 0)
        # What is left is ledger 2, in one log.
        assert (status.ledgers, status.logs) == (1, 1)
        assert status.live_bytes == status.log_bytes == 5 * ITEM_BYTES

    with_collector(two_ledgers(tmp_path), SELDOM, test, starts=True)


@pytest.mark.parametrize("major", [True, False])
def test_compaction_is_counted_by_its_kind_with_its_end_and_its_bytes(tmp_path: Path, major: bool) -> None:
    async def test(gc: BenchCollector) -> None:
        status = gc.collector.status
        gc.bench.put(3, range(2))
        gc.bench.put(4, range(50))
        gc.bench.flush()
        gc.bench.store.seal_logs()
        gc.bench.delete(4)
        before_ms = time.time() * 1000
        report = await gc.collector.collect(major=major)
        assert report.compacted_logs == 1
        assert report.freed_bytes > 50 * 100
        assert (status.major_count, status.minor_count) == ((1, 0) if major else (0, 1))
        ended_ms, other_ms = (status.major_at_ms, status.minor_at_ms)[:: 1 if major else -1]
        assert before_ms - 1000 <= ended_ms <= time.time() * 1000
        assert other_ms == 0
        assert status.compacted_bytes == report.freed_bytes
        assert status.deleted_bytes == 0
        assert status.compacting == ""

    options = replace(SELDOM, minor=CompactionLevel(0.5, 7200.0), major=CompactionLevel(0.8, 86_400.0))
    with_collector(two_ledgers(tmp_path), options, test, starts=True)


def test_kind_of_compaction_is_shown_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(gc: BenchCollector) -> None:
        seen: list[tuple[str, bool]] = []
        status, rewrite = gc.collector.status, gc.bench.compactor.rewrite

        def noting(*arguments: object) -> int | None:
            seen.append((status.compacting, status.is_forced))
            return rewrite(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(gc.bench.compactor, "rewrite", noting)
        for major in (False, True):
            gc.bench.put(5, range(50))
            gc.bench.put(6 + major, range(2))
            gc.bench.flush()
            gc.bench.store.seal_logs()
            gc.bench.delete(5)
            await gc.collector.collect(major=major)
        assert seen == [("minor", True), ("major", True)]

    options = replace(SELDOM, minor=CompactionLevel(0.5, 7200.0), major=CompactionLevel(0.8, 86_400.0))
    with_collector(two_ledgers(tmp_path), options, test, starts=True)


def test_pass_without_a_compaction_counts_none(tmp_path: Path) -> None:
    async def test(gc: BenchCollector) -> None:
        gc.bench.delete(1)
        await gc.collector.collect()
        status = gc.collector.status
        assert (status.minor_count, status.major_count, status.minor_at_ms, status.major_at_ms) == (0, 0, 0, 0)

    with_collector(two_ledgers(tmp_path), replace(SELDOM, minor=OFF, major=OFF), test, starts=True)


def test_shares_of_logs_are_counted_by_tenths(tmp_path: Path) -> None:
    async def test(gc: BenchCollector) -> None:
        for live in (1, 5):
            gc.bench.put(10 + live, range(live), size=200)
            gc.bench.put(20 + live, range(10 - live), size=200)
            gc.bench.flush()
            gc.bench.store.seal_logs()
            gc.bench.delete(20 + live)
        await gc.collector.collect()
        # 29 (ledger 2 is in that log, too), 50 and 100 % of the bytes count. Each tenth has those at or below it.
        counts = gc.collector.status.usage_counts
        assert counts == (0, 0, 1, 1, 2, 2, 2, 2, 2, 3)

    with_collector(two_ledgers(tmp_path), replace(SELDOM, minor=OFF, major=OFF), test, starts=True)


def test_damaged_log_is_counted_in_each_pass_and_named_in_the_log_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(gc: BenchCollector) -> None:
        path = Path(min(gc.bench.log_paths))
        content = bytearray(path.read_bytes())
        content[HEADER_BYTES] ^= 0x80
        # Without its map the log is looked through.
        path.write_bytes(bytes(HEADER_BYTES) + content[HEADER_BYTES:])
        with caplog.at_level(logging.WARNING):
            for number in (1, 2):
                report = await gc.collector.collect()
                assert report.damaged_logs == 1, number
                assert "is left out of garbage collection" in report.kept_because
        assert caplog.text.count("is left out of garbage collection") == 1
        assert path.exists()

    with_collector(two_ledgers(tmp_path), SELDOM, test, starts=True)


def test_interval_of_a_compaction_counts_from_the_last_one(tmp_path: Path) -> None:
    """Passes that come by themselves compact when it is due, and a major one counts as a minor one, too."""
    now_s = 1000.0
    bench = Bench(tmp_path)
    options = replace(UNLIMITED, interval_s=50.0, minor=CompactionLevel(0.2, 100.0), major=CompactionLevel(0.8, 500.0))

    async def test() -> None:
        nonlocal now_s
        collector = GarbageCollector(
            bench.store, bench.compactor, bench.cluster, options, bench.callbacks(), clock_s=lambda: now_s
        )
        counts = []
        for seconds in (99, 100, 199, 200, 299, 350, 449, 500, 599, 600, 999, 1000):
            now_s = 1000.0 + seconds
            await collector.run_pass(is_forced=False)
            counts.append((seconds, collector.status.minor_count, collector.status.major_count))
        await collector.stop()
        assert counts == [
            (99, 0, 0), (100, 1, 0), (199, 1, 0), (200, 2, 0), (299, 2, 0), (350, 3, 0), (449, 3, 0),
            (500, 3, 1), (599, 3, 1), (600, 4, 1), (999, 5, 1), (1000, 5, 2),
        ]  # fmt: skip

    asyncio.run(test())
    bench.store.close()
