"""A bookie that follows the plan which operators store for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bkspark.errors import MetadataError
from bkspark.metadata.bookie_plans import MAINTENANCE, BookiePlan, BookiePlans, DamagedPlan
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.tree import Stat
from bkspark.metadata.uri import MetadataUri
from bookie_service.cluster.plan_follower import PlanFollower
from tests.simulation.virtual_loop import run_in_virtual_time

URI = MetadataUri.parse("zk://h/ledgers")
ID = "b-1"
PLAN = BookiePlan(ID, MAINTENANCE, "operator", since_ms=0)
START_MS = 1_700_000_000_000


class Unsteady(MemoryTree):
    """A session that may fail to read, and may lose watches."""

    fails = False
    reads = 0

    async def get(self, path: str) -> tuple[bytes, Stat]:
        self.reads += 1
        if self.fails:
            raise MetadataError("the metadata store does not answer")
        return await super().get(path)

    async def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        if self.fails:
            raise MetadataError("the metadata store does not answer")
        return await super().watch(path, callback)


class Bench:
    """A store of plans, and a follower that notes which plan it got when."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.tree = Unsteady(self.store, 77, 10.0)
        self.plans = BookiePlans(self.store.session(), URI)
        self.seen: list[tuple[float, BookiePlan | DamagedPlan | None]] = []
        self.error: Exception | None = None
        self.follower = PlanFollower(BookiePlans(self.tree, URI), ID, self._follow, now_ms)

    def _follow(self, plan: BookiePlan | DamagedPlan | None) -> None:
        if self.error is not None:
            raise self.error
        self.seen.append((round(now_s(), 1), plan))


def now_s() -> float:
    return asyncio.get_running_loop().time()


def now_ms() -> int:
    return START_MS + int(now_s() * 1000)


def run(test: Callable[[Bench], Awaitable[None]]) -> None:
    async def whole() -> None:
        bench = Bench()
        try:
            await test(bench)
        finally:
            await bench.follower.stop()

    run_in_virtual_time(whole())
