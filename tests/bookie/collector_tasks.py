"""A garbage collector that runs as a task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from bookie_service.gc.collection_options import CollectionOptions
from bookie_service.gc.garbage_collector import CollectorCallbacks, GarbageCollector
from bookie_service.storage.disks import DiskRoom
from tests.bookie.collecting import UNLIMITED, Bench

SELDOM = replace(UNLIMITED, interval_s=3600.0)


class Task:
    """A running collector of a bench; `failures` is what it ended the process with."""

    def __init__(self, bench: Bench, options: CollectionOptions = SELDOM) -> None:
        self.bench = bench
        self.failures: list[BaseException] = []
        self.room = DiskRoom.ENOUGH
        self.flushes = 0
        self.dropped: list[int] = []
        self.collector = GarbageCollector(
            bench.store,
            bench.compactor,
            bench.cluster,
            options,
            CollectorCallbacks(self._flush, self.failures.append, lambda: self.room, on_dropped=self.dropped.append),
        )

    async def _flush(self) -> None:
        self.flushes += 1
        await self.bench.flush_all()


def with_task(
    directory: Path, test: Callable[[Task], Awaitable[None]], options: CollectionOptions = SELDOM, *, start: bool = True
) -> Bench:
    """Run a test with a collector of a store that holds ledger 1, in a sealed log of its own, and ledger 2."""
    bench = Bench(directory)
    bench.put(1, range(5))
    bench.flush()
    bench.store.seal_logs()
    bench.put(2, range(5))

    async def run() -> None:
        task = Task(bench, options)
        if start:
            task.collector.start()
        try:
            async with asyncio.timeout(60):
                await test(task)
        finally:
            await task.collector.stop()

    asyncio.run(run())
    bench.store.close()
    return bench
