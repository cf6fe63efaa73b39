"""When a drain tries a ledger again that cannot be moved, and what is left of it; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from bkspark.errors import NotEnoughBookies
from bkspark.metadata.bookie_plans import DRAIN, BookiePlan
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bookie_service.replication.drain import FAILURES_MAX, PAUSE_S, Drain, DrainProgress
from tests.replication.test_worker_pauses import EMPTY, OPTIONS, play, register
from tests.replication.test_worker_steps import LOST, SPARE, Bench


async def drain_of(bench: Bench, report: Callable[[DrainProgress], None] = lambda _: None, **stored: object) -> Drain:
    """Return the drain of a bookie that is read-only already. `stored`: the progress that an earlier run stored."""
    await register(bench, LOST, read_only=True)
    await bench.cluster.plans().prepare()
    await bench.cluster.plans().set(BookiePlan(LOST, DRAIN, "an operator", 0, progress=stored))
    return Drain(bench.cluster, LOST, "a process", OPTIONS, report)


def test_drain_that_cannot_move_a_ledger_waits_longer_each_time_and_leaves_it_unlocked() -> None:
    async def test(bench: Bench) -> None:
        ledger_id, _ = await bench.cluster.context.ledgers.create(EMPTY)
        drain = await drain_of(bench)
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(NotEnoughBookies):
            async with asyncio.timeout(3600):
                await drain.run()
        pauses_s = sum(2**number for number in range(FAILURES_MAX - 1))
        took_s = asyncio.get_running_loop().time() - began_s
        assert pauses_s <= took_s <= pauses_s + FAILURES_MAX * PAUSE_S + 1
        assert await bench.cluster.store.locked() == set()
        assert (await bench.metadata(ledger_id)).last_fragment.bookies == (LOST,)

    play(test)


def test_drain_moves_a_ledger_as_soon_as_there_is_a_bookie_for_it() -> None:
    async def test(bench: Bench) -> None:
        ledger_id, _ = await bench.cluster.context.ledgers.create(EMPTY)
        running = asyncio.ensure_future((await drain_of(bench)).run())
        await asyncio.sleep(0.5)
        await register(bench, SPARE)
        async with asyncio.timeout(3600):
            assert await running == 1
        assert await bench.cluster.store.locked() == set()
        assert (await bench.metadata(ledger_id)).last_fragment.bookies == (SPARE,)

    play(test)


class SlowStore(MemoryTree):
    """A session that takes long to list nodes."""

    def __init__(self, store: MemoryStore) -> None:
        session = store.session()
        super().__init__(store, session.session_id, session.session_timeout_s)

    async def children(self, path: str) -> list[str]:
        await asyncio.sleep(3.0)
        return await super().children(path)


def test_continued_drain_shows_what_was_stored_until_it_has_read_what_is_left() -> None:
    """It showed `5 of 5 ledgers` while it read the metadata."""

    async def test(bench: Bench) -> None:
        await bench.cluster.context.ledgers.create(EMPTY)
        shown: list[DrainProgress] = []
        earlier = {"ledgers": 5, "ledgers_left": 2, "bytes": 900, "bytes_left": 300, "bytes_per_s": 7}
        drain = await drain_of(bench, shown.append, **earlier, seconds_left=42, copied_bytes=600)
        await register(bench, SPARE)
        assert await drain.run() == 1
        assert shown[0] == DrainProgress(5, 2, 900, 300)
        assert (shown[-1].ledgers, shown[-1].ledgers_left, shown[-1].seconds_left) == (5, 0, 0)

    play(test, SlowStore)
