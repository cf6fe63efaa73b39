"""A garbage collector whose clock and disks a test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from bookie_service.gc.collection_options import CollectionOptions
from bookie_service.gc.garbage_collector import GarbageCollector
from bookie_service.gc.gc_policy import CompactionLevel
from bookie_service.storage.disks import DiskRoom
from tests.bookie.collecting import UNLIMITED, Bench

MINOR, MAJOR = CompactionLevel(0.2, 10.0), CompactionLevel(0.8, 100.0)
OFTEN = replace(UNLIMITED, interval_s=5.0, minor=MINOR, major=MAJOR)


class Clocked:
    """A collector over a bench, whose clock and disks are what a test says."""

    def __init__(self, bench: Bench, options: CollectionOptions) -> None:
        self.now_s = 0.0
        self.room = DiskRoom.ENOUGH
        self.dropped: list[int] = []
        self.collector = GarbageCollector(
            bench.store,
            bench.compactor,
            bench.cluster,
            options,
            bench.callbacks(room=lambda: self.room, on_dropped=self.dropped.append),
            clock_s=lambda: self.now_s,
        )


def with_collector(bench: Bench, options: CollectionOptions, test: Callable[[Clocked], Awaitable[None]]) -> None:
    async def run() -> None:
        clocked = Clocked(bench, options)
        try:
            await test(clocked)
        finally:
            await clocked.collector.stop()

    asyncio.run(run())
    bench.store.close()
