"""Plans of operators for bookies: their form, and their nodes in a metadata store."""

from __future__ import annotations

import asyncio

import pytest

from bkspark.errors import MetadataFormat
from bkspark.metadata import bookie_plans
from bkspark.metadata.bookie_plans import DRAIN, MAINTENANCE, QUARANTINE, BookiePlan, BookiePlans
from bkspark.metadata.memory import MemoryStore
from bkspark.metadata.uri import MetadataUri

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
     b"[" * 100_000],
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
        assert await plans.update(other) is False
        await plans.set(other)
        await plans.set(BookiePlan("b:1", QUARANTINE, "w", 1))
        assert await plans.update(other) is True
        assert [each async for each in plans.all()] == [PLAN, other]
        assert not caplog.records
        # One that cannot be read does not hide the others, and is reported.
        await store.session().set("/ledgers/underreplication/plans/b:1", b"?", -1)
        assert [each async for each in plans.all()] == [PLAN]
        assert ["the plan for bookie b:1 cannot be read" in record.getMessage() for record in caplog.records] == [True]
        assert await plans.end("b:1") is True
        assert await plans.end(PLAN.bookie) is True

    asyncio.run(run())
