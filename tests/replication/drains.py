"""A drain, and another process that takes part in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from bkspark.metadata.bookie_plans import DRAIN, BookiePlan, BookiePlans
from bkspark.metadata.memory import MemoryStore
from bkspark.metadata.underreplication import UnderreplicationStore
from bkspark.metadata.uri import MetadataUri
from bookie_service.replication.drain import Drain, DrainProgress
from tests.ledger.in_process import URI
from tests.replication.paused_workers import OPTIONS, register
from tests.replication.worker_parts import CLOSED, LOST, Bench


async def drain_of(
    bench: Bench,
    report: Callable[[DrainProgress], None] = lambda _: None,
    *,
    closes_open: bool = False,
    **stored: object,
) -> Drain:
    """Return the drain of a bookie that is read-only already. `stored`: the progress that an earlier run stored."""
    await register(bench, LOST, read_only=True)
    await bench.cluster.plans().prepare()
    await bench.cluster.plans().set(BookiePlan(LOST, DRAIN, "an operator", 0, progress=stored))
    return Drain(bench.cluster, LOST, "a process", OPTIONS, report, closes_open=closes_open)


class OtherProcess:
    """A process on another host that drains the same bookie."""

    def __init__(self, store: MemoryStore) -> None:
        uri = MetadataUri.parse(URI)
        self.locks = UnderreplicationStore(store.session(), uri)
        self.plans = BookiePlans(store.session(), uri)

    async def report(self, ledgers: int, bytes_per_s: int, times: int) -> None:
        """Report once a second how many ledgers it has moved."""
        for _ in range(times):
            at_ms = int(asyncio.get_running_loop().time() * 1000)
            facts = {"ledgers": ledgers, "bytes": ledgers * CLOSED.length, "bytes_per_s": bytes_per_s, "at_ms": at_ms}

            def reported(plan: BookiePlan, facts: dict[str, int] = facts) -> BookiePlan:
                others = plan.progress.get("processes")
                assert isinstance(others, dict)
                return replace(plan, progress={**plan.progress, "processes": {**others, "another": facts}})

            assert await self.plans.update(LOST, DRAIN, reported)
            await asyncio.sleep(1)
