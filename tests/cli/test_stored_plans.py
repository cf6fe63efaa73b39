"""A plan in which a bookie will be stopped stays only if the bookie may be stopped when others can see the plan."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from bkspark.cli.health import DEGRADED
from bkspark.cli.plans import begin, new_plan, store_harmless
from bkspark.cli.restart import Unhealthy, restart_one
from bkspark.client import Client
from bkspark.errors import MetadataError
from bkspark.metadata.bookie_plans import MAINTENANCE
from bkspark.metadata.change_records import ChangeRecords
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.tree import Stat
from tests.ledger.in_process import URI
from tests.metadata.meanwhile import Meanwhile
from tests.replication.paused_workers import EMPTY, AwayTree, play, register
from tests.replication.worker_parts import CLOSED, LOST, SPARE, Bench

OTHERS = f"/ledgers/underreplication/plans/{SPARE}"
"""The plan of another operator, which is of a later version: it may be maintenance."""


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


def maintenance_of(bookie: str, reason: str = "") -> argparse.Namespace:
    options = {"despite": [], "dry_run": False, "json": False}
    return argparse.Namespace(bookie=bookie, reason=reason, **{"for": 60}, **options)


async def maintain(bench: Bench, bookie: str, reason: str = "") -> int:
    return await begin(client_of(bench), maintenance_of(bookie, reason), MAINTENANCE, [])


async def plan_other(bench: Bench) -> None:
    await bench.cluster.tree.create(OTHERS, b"a later format", make_parents=True)


async def planned(bench: Bench) -> dict[str, str]:
    """Return the reasons of all plans that can be read, by bookie."""
    return {plan.bookie: plan.reason async for plan in bench.cluster.plans().all()}


def before_next(bench: Bench, call: str, act: Callable[[], Awaitable[object]]) -> None:
    """Let another operator act before the next such call of the metadata store."""
    assert isinstance(bench.cluster.tree, Meanwhile)
    bench.cluster.tree.before[call] = act


async def register_both(bench: Bench) -> None:
    """Register both bookies as read-only, as after they have followed their plans."""
    for bookie in (LOST, SPARE):
        await register(bench, bookie, read_only=True)


def test_maintenance_is_withdrawn_if_another_operator_has_stored_a_plan_meanwhile() -> None:
    """Both operators have checked before either plan was stored."""

    async def test(bench: Bench) -> None:
        await register_both(bench)
        before_next(bench, "create", lambda: plan_other(bench))
        assert await maintain(bench, LOST) == DEGRADED
        assert await planned(bench) == {}
        (record,) = await ChangeRecords(bench.cluster.tree, client_of(bench).uri).latest(10)
        assert record.change == f"withdraw the maintenance of bookie {LOST}, which may not be stopped"

    play(test, Meanwhile)


def test_two_commands_for_the_maintenance_of_one_bookie_both_succeed() -> None:
    """The second was refused, with the advice to end the plan that its operator wanted."""

    async def test(bench: Bench) -> None:
        await register_both(bench)
        before_next(bench, "create", lambda: maintain(bench, SPARE, "first"))
        assert await maintain(bench, SPARE, "second") == 0
        assert await planned(bench) == {SPARE: "second"}

    play(test, Meanwhile)


def test_second_command_for_one_bookie_looks_at_the_plans_of_others_too() -> None:
    async def test(bench: Bench) -> None:
        await register_both(bench)

        async def both() -> None:
            await bench.cluster.plans().set(new_plan(LOST, MAINTENANCE, "first", 60))
            await plan_other(bench)

        before_next(bench, "create", both)
        assert await maintain(bench, LOST, "second") == DEGRADED
        assert await planned(bench) == {LOST: "first"}

    play(test, Meanwhile)


class ChangedDuringLook(MemoryTree):
    """A session in which another operator acts once when a command has read the plans, and reads the first ledger."""

    def __init__(self, store: MemoryStore) -> None:
        session = store.session()
        super().__init__(store, session.session_id, session.session_timeout_s)
        self.act: Callable[[], Awaitable[None]] | None = None

    async def get(self, path: str) -> tuple[bytes, Stat]:
        if self.act is not None and path.rsplit("/", 1)[-1].startswith("L"):
            act, self.act = self.act, None
            await act()
        return await super().get(path)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_repeated_maintenance_looks_again_if_the_first_one_has_ended(is_replaced: bool) -> None:
    """It was stored without a look. Another operator may have begun since it ended, also if it then began again."""

    async def test(bench: Bench) -> None:
        await register_both(bench)
        await bench.cluster.context.ledgers.create(replace(EMPTY, password=b""))
        plans = bench.cluster.plans()
        assert await maintain(bench, LOST) == 0
        (first,) = [each async for each in plans.all()]

        async def changed() -> None:
            await plans.end(LOST)
            await plan_other(bench)
            if is_replaced:
                await plans.set(replace(first, who="a third operator"))

        tree = bench.cluster.tree
        assert isinstance(tree, ChangedDuringLook)
        tree.act = changed
        assert await maintain(bench, LOST, "again") == DEGRADED
        assert tree.act is None
        assert await planned(bench) == ({LOST: ""} if is_replaced else {})

    play(test, ChangedDuringLook)


def test_repeated_maintenance_of_a_bookie_replaces_the_first_one() -> None:
    async def test(bench: Bench) -> None:
        await register_both(bench)
        assert [await maintain(bench, LOST, reason) for reason in ("first", "again")] == [0, 0]
        assert await planned(bench) == {LOST: "again"}

    play(test, Meanwhile)


def test_plan_that_stays_because_the_metadata_store_is_away_is_named_in_the_error() -> None:
    """The bookie stayed read-only, and its copies were not replaced; the error had no word of the plan."""

    async def test(bench: Bench) -> None:
        await register_both(bench)
        tree, plans = bench.cluster.tree, bench.cluster.plans()
        assert isinstance(tree, AwayAfterCreation)
        tree.is_leaving = True
        with pytest.raises(MetadataError, match=f"do not stop it, and run `bkspark cluster maintenance {LOST} --end`"):
            await maintain(bench, LOST)
        tree.is_away = False
        assert await plans.find(LOST) is not None

    play(test, AwayAfterCreation)


class AwayAfterCreation(AwayTree):
    """A session whose server is away after it has created a node."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.is_leaving = False

    async def create(self, *arguments: object, **named: object) -> tuple[str, Stat]:
        created = await super().create(*arguments, **named)
        self.is_away = self.is_leaving
        return created


def test_restart_that_has_withdrawn_its_plan_ends_at_its_time_limit() -> None:
    async def test(bench: Bench) -> None:
        await register_both(bench)
        before_next(bench, "create", lambda: plan_other(bench))
        # The other operator withdraws, too, so that a restart would be possible.
        before_next(bench, "delete", lambda: bench.cluster.tree.delete(OTHERS))
        despite = ["bookie_unreachable", "bookie_readonly", "no_writable_bookie"]
        arguments = argparse.Namespace(command=None, timeout=0.0, despite=despite)
        with pytest.raises(Unhealthy, match="bookie 1 is not restarted: unreadable_plans: "):
            await restart_one(client_of(bench), LOST, arguments, "bookie 1")
        assert await planned(bench) == {}

    play(test, Meanwhile)
