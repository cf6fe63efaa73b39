"""Plans of operators for bookies: their form, and their nodes in a metadata store."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid

import pytest

from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.errors import MetadataError, MetadataFormat
from bkspark.metadata import bookie_plans
from bkspark.metadata.bookie_plans import (
    DRAIN,
    MAINTENANCE,
    PLAN_BYTES_MAX,
    QUARANTINE,
    TIME_MS_MAX,
    BookiePlan,
    BookiePlans,
)
from bkspark.metadata.memory import MemoryStore
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree
from tests.metadata.meanwhile import Meanwhile

URI = MetadataUri.parse("zk://simulated:2181/ledgers")
PLAN = BookiePlan("10.0.0.1:3181", MAINTENANCE, "ada@host", 17, 99, "new disk", "again", 5, {"ledgers": 3})


def test_form_keeps_every_field_and_leaves_out_those_of_later_versions() -> None:
    data = bookie_plans.encode(PLAN)
    assert bookie_plans.decode(data, PLAN.bookie) == PLAN
    later = data[:-1] + b', "colour": "red"}'
    assert bookie_plans.decode(later, PLAN.bookie) == PLAN


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"7", b'{"kind": "drain"}', b'{"kind": "x", "who": "w", "since_ms": 1}', b"\xff",
     b'{"kind": "drain", "who": "w", "since_ms": "1"}', b'{"kind": "drain", "who": "w", "since_ms": true}',
     b"[" * 100_000,
     # Such a time ended whatever shows it, and a bookie that follows the plan.
     b'{"kind": "drain", "who": "w", "since_ms": 1, "until_ms": 9999999999999999999}',
     b'{"kind": "drain", "who": "w", "since_ms": -1}',
     b'{"kind": "drain", "who": "w", "since_ms": 1, "bytes_per_s": 99999999999999999999}'],
)  # fmt: skip
def test_other_bytes_are_an_error_with_the_bookie(data: bytes) -> None:
    with pytest.raises(MetadataFormat, match="the plan for bookie b:1"):
        bookie_plans.decode(data, "b:1")


def test_end_of_a_plan_is_its_time_or_never() -> None:
    assert not PLAN.is_over(98)
    assert PLAN.is_over(99)
    assert not BookiePlan("b:1", DRAIN, "w", 1).is_over(1 << 60)
    kinds = {kind: BookiePlan("b:1", kind, "w", 1).sets_read_only for kind in bookie_plans.KINDS}
    assert kinds == {MAINTENANCE: True, DRAIN: True, QUARANTINE: False}


def with_rate(plan: BookiePlan) -> BookiePlan:
    return dataclasses.replace(plan, bytes_per_s=7)


def test_plans_are_stored_replaced_watched_and_ended(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        store = MemoryStore()
        plans = BookiePlans(store.session(), URI)
        assert [each async for each in plans.all()] == []
        assert await plans.find("b:1") is None
        assert await plans.end("b:1") is False
        await plans.prepare()
        await plans.prepare()
        woken = asyncio.Event()
        await plans.watch_all(woken.set)
        await plans.set(PLAN)
        await asyncio.wait_for(woken.wait(), 10)
        other = BookiePlan("b:1", DRAIN, "w", 1)
        assert await plans.update("b:1", DRAIN, with_rate) is None
        await plans.set(BookiePlan("b:1", QUARANTINE, "w", 1))
        assert await plans.update("b:1", DRAIN, with_rate) is None
        await plans.set(other)
        assert await plans.update("b:1", DRAIN, with_rate) == with_rate(other)
        assert [each async for each in plans.all()] == [PLAN, with_rate(other)]
        assert not caplog.records
        # One that cannot be read does not hide the others, and is reported.
        await store.session().set("/ledgers/underreplication/plans/b:1", b"?", -1)
        assert [each async for each in plans.all()] == [PLAN]
        assert ["the plan for bookie b:1 cannot be read" in record.getMessage() for record in caplog.records] == [True]
        found = await plans.in_force(98)
        assert (found.plans, [each.bookie for each in found.damaged]) == ([PLAN], ["b:1"])
        assert "`bkspark cluster plans --end b:1` removes it" in found.damaged[0].problem
        assert found.as_json()["damaged"] == [{"bookie": "b:1", "problem": found.damaged[0].problem}]
        assert (await plans.in_force(99)).plans == []
        assert await plans.end("b:1") is True
        assert await plans.end(PLAN.bookie) is True

    asyncio.run(run())


def test_change_of_a_plan_keeps_what_another_process_changed_meanwhile() -> None:
    async def run() -> None:
        store = MemoryStore()
        plans = BookiePlans(store.session(), URI)
        await plans.set(BookiePlan("b:1", DRAIN, "w", 1))

        async def another_change() -> None:
            await plans.update("b:1", DRAIN, with_rate)

        def reported(plan: BookiePlan) -> BookiePlan:
            return dataclasses.replace(plan, progress={"ledgers": 3})

        stored = await BookiePlans(Meanwhile(store, set=another_change), URI).update("b:1", DRAIN, reported)
        assert (
            stored
            == await plans.find("b:1")
            == BookiePlan("b:1", DRAIN, "w", 1, bytes_per_s=7, progress={"ledgers": 3})
        )

    asyncio.run(run())


def test_one_operator_is_refused_if_two_plan_at_the_same_time() -> None:
    """Each looked for a plan of the other and found none, and the later plan replaced the earlier one: a maintenance of
    an hour ended with the restart of another operator, and a drain was cancelled by a quarantine."""

    async def run() -> None:
        store = MemoryStore()
        plans = BookiePlans(store.session(), URI)
        drain, quarantine = BookiePlan("b:1", DRAIN, "ada", 1), BookiePlan("b:1", QUARANTINE, "bob", 2)

        def never(there: BookiePlan) -> bool:
            return False

        async def drains() -> None:
            await plans.set(drain)

        for call in ("create", "get", "set"):
            if call != "create":
                await plans.set(BookiePlan("b:1", QUARANTINE, "bob", 1))
            slower = BookiePlans(Meanwhile(store, **{call: drains}), URI)
            assert await slower.set(quarantine, lambda there: there.kind == QUARANTINE) == drain
            assert await plans.find("b:1") == drain
            assert await plans.set(quarantine, never) == drain
            await plans.end("b:1")

        async def ends() -> None:
            await plans.end("b:1")

        # A plan that ends meanwhile is in no one's way.
        for call in ("get", "set"):
            await plans.set(quarantine)
            slower = BookiePlans(Meanwhile(store, **{call: ends}), URI)
            assert await slower.set(drain) is None
            assert await plans.find("b:1") == drain

    asyncio.run(run())


def test_end_of_an_own_plan_leaves_that_of_another_operator() -> None:
    async def run() -> None:
        store = MemoryStore()
        plans = BookiePlans(store.session(), URI)
        own, other = BookiePlan("b:1", MAINTENANCE, "ada", 1), BookiePlan("b:1", MAINTENANCE, "bob", 1)
        assert await plans.end_own(own) is False, "there is none"
        await plans.set(dataclasses.replace(own, restart="a word", progress={"ledgers": 1}))
        assert await plans.end_own(own) is True
        assert await plans.find("b:1") is None
        for there in (other, dataclasses.replace(own, since_ms=2), dataclasses.replace(own, kind=DRAIN)):
            await plans.set(there)
            assert await plans.end_own(own) is False
            assert await plans.find("b:1") == there

        async def replaces() -> None:
            await plans.set(other)

        await plans.set(own)
        assert await BookiePlans(Meanwhile(store, delete=replaces), URI).end_own(own) is False
        assert await plans.find("b:1") == other

    asyncio.run(run())


def test_plans_have_bounds_and_one_that_cannot_be_read_hides_none_after_it() -> None:
    async def run() -> None:
        tree = MemoryStore().session()
        plans = BookiePlans(tree, URI)
        await tree.create("/ledgers/underreplication/plans/a:1", b"?", make_parents=True)
        last = BookiePlan("b:1", DRAIN, "w", TIME_MS_MAX, TIME_MS_MAX)
        room = PLAN_BYTES_MAX - len(bookie_plans.encode(last))
        largest = dataclasses.replace(last, reason="x" * room)
        with pytest.raises(MetadataError, match=f"has {PLAN_BYTES_MAX + 1} bytes, {PLAN_BYTES_MAX} at most") as refused:
            await plans.set(dataclasses.replace(last, reason="x" * (room + 1)))
        assert not refused.value.is_outage
        await plans.set(largest)
        assert [each async for each in plans.all()] == [largest]

    asyncio.run(run())


@pytest.mark.cluster
def test_a_report_of_progress_undoes_no_change_of_an_operator(zookeeper: ZooKeeperProcess) -> None:
    """A drain reports every second. It wrote the plan that it had read before, so a new rate could be lost, and the
    drain could come back in place of a plan that an operator had stored after a cancellation."""
    uri = MetadataUri.parse(f"zk://{zookeeper.connect_string}/{uuid.uuid4().hex}/ledgers")
    progress = {"ledgers": 3}

    def reported(plan: BookiePlan) -> BookiePlan:
        return dataclasses.replace(plan, progress=progress)

    async def run() -> None:
        trees = [await open_tree(uri) for _ in range(2)]
        reporting, operating = (BookiePlans(tree, uri) for tree in trees)
        drain, maintenance = BookiePlan("b:1", DRAIN, "w", 1), BookiePlan("b:1", MAINTENANCE, "w", 2)

        async def maintain_instead() -> None:
            await operating.end("b:1")
            await operating.set(maintenance)

        for _ in range(30):
            await operating.set(drain)
            await asyncio.gather(reporting.update("b:1", DRAIN, reported), operating.update("b:1", DRAIN, with_rate))
            plan = await reporting.find("b:1")
            assert plan is not None
            assert (plan.bytes_per_s, plan.progress) == (7, progress)
            await asyncio.gather(reporting.update("b:1", DRAIN, reported), maintain_instead())
            assert await reporting.find("b:1") == maintenance
        for tree in trees:
            await tree.close()

    asyncio.run(run())
