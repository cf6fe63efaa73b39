"""A plan in which a bookie will be stopped stays only if the bookie may be stopped when others can see the plan."""

from __future__ import annotations

from dataclasses import replace

from bkspark.cli.plans import new_plan, store_harmless
from bkspark.client import Client
from bkspark.metadata.bookie_plans import MAINTENANCE
from tests.ledger.in_process import URI
from tests.replication.paused_workers import EMPTY, play, register
from tests.replication.worker_parts import CLOSED, LOST, SPARE, Bench


def client_of(bench: Bench) -> Client:
    return Client(URI, tree=bench.cluster.tree)


def test_plan_that_would_take_the_last_copy_is_not_kept() -> None:
    async def test(bench: Bench) -> None:
        await register(bench, LOST)
        await bench.cluster.context.ledgers.create(CLOSED)
        plans = bench.cluster.plans()
        plan = new_plan(LOST, MAINTENANCE, "", 60)
        against = await store_harmless(client_of(bench), plans, plan, [])
        assert [each.code for each in against] == ["last_copy"]
        assert await plans.find(LOST) is None
        assert await store_harmless(client_of(bench), plans, plan, ["last_copy"]) == []
        assert await plans.find(LOST) == plan

    play(test)


def test_plan_for_a_bookie_without_entries_is_kept() -> None:
    async def test(bench: Bench) -> None:
        await register(bench, LOST)
        await register(bench, SPARE)
        await bench.cluster.context.ledgers.create(replace(EMPTY, password=b""))
        plan = new_plan(SPARE, MAINTENANCE, "", 60)
        assert await store_harmless(client_of(bench), bench.cluster.plans(), plan, []) == []
        assert await bench.cluster.plans().find(SPARE) == plan

    play(test)
