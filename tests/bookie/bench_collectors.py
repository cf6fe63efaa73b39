"""A garbage collector over a bench: a test sets its clock and its disks, and sees what it did."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from bookie_service.gc.collection_options import CollectionOptions
from bookie_service.gc.garbage_collector import CollectorCallbacks, GarbageCollector
from bookie_service.gc.gc_policy import CompactionLevel
from bookie_service.storage.disks import DiskRoom
from tests.bookie.collecting import UNLIMITED, Bench

MINOR, MAJOR = CompactionLevel(0.2, 10.0), CompactionLevel(0.8, 100.0)
OFTEN = replace(UNLIMITED, interval_s=5.0, minor=MINOR, major=MAJOR)
SELDOM = replace(UNLIMITED, interval_s=3600.0)


class BenchCollector:
    """A collector of a bench, whose clock and disks are what a test says."""

    def __init__(self, bench: Bench, options: CollectionOptions) -> None:
        self.bench = bench
        self.now_s = 0.0
        self.room = DiskRoom.ENOUGH
        self.failures: list[BaseException] = []
        """What the collector ended the process with."""
        self.flushes = 0
        self.dropped: list[int] = []
        """Ledgers that it reported as dropped, in this order."""
        self.collector = GarbageCollector(
            bench.store,
            bench.compactor,
            bench.cluster,
            options,
            CollectorCallbacks(self._flush, self.failures.append, lambda: self.room, on_dropped=self.dropped.append),
            clock_s=lambda: self.now_s,
        )

    async def _flush(self) -> None:
        self.flushes += 1
        await self.bench.flush_all()


def with_collector(
    bench: Bench,
    options: CollectionOptions,
    test: Callable[[BenchCollector], Awaitable[None]],
    *,
    starts: bool = False,
) -> None:
    """Run a test with a collector, which runs passes by itself if it `starts`; then close the store."""

    async def run() -> None:
        gc = BenchCollector(bench, options)
        if starts:
            gc.collector.start()
        try:
            async with asyncio.timeout(60):
                await test(gc)
        finally:
            await gc.collector.stop()

    asyncio.run(run())
    bench.store.close()


def two_ledgers(directory: Path) -> Bench:
    """Return a store that holds ledger 1, in a sealed log of its own, and ledger 2."""
    bench = Bench(directory)
    bench.put(1, range(5))
    bench.flush()
    bench.store.seal_logs()
    bench.put(2, range(5))
    return bench
