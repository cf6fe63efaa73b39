"""Values that the console keeps for a moment: one reading for all who ask, and none from before a change."""

from __future__ import annotations

import asyncio

from bkspark.errors import MetadataError
from bkspark_console.cluster_view import Kept


def test_callers_at_the_same_time_share_one_reading() -> None:
    readings = []

    async def read() -> int:
        readings.append(len(readings))
        await asyncio.sleep(0)
        return readings[-1]

    async def ask() -> list[int]:
        kept = Kept(read, 60.0)
        return await asyncio.gather(*(kept.get() for _ in range(10)))

    assert asyncio.run(ask()) == [0] * 10
    assert readings == [0]


def test_a_reading_that_began_before_a_change_is_not_kept() -> None:
    """A page after a change showed the state before it: a reading was under way."""
    state = ["before"]
    began, may_end = asyncio.Event(), asyncio.Event()

    async def read() -> str:
        value = state[0]
        began.set()
        await may_end.wait()
        return value

    async def ask() -> tuple[str, str]:
        kept = Kept(read, 60.0)
        early = asyncio.ensure_future(kept.get())
        await began.wait()
        state[0] = "after"
        kept.forget()
        may_end.set()
        return await early, await kept.get()

    assert asyncio.run(ask()) == ("after", "after")


def test_callers_at_the_same_time_share_one_failure() -> None:
    """Each read again when the one before had failed: pages waited for a silent metadata store one after the other."""
    failures = []

    async def read() -> int:
        await asyncio.sleep(0)
        failures.append(MetadataError(f"failure {len(failures)}"))
        raise failures[-1]

    async def ask() -> None:
        kept = Kept(read, 60.0)
        for number in range(2):
            answers = await asyncio.gather(*(kept.get() for _ in range(10)), return_exceptions=True)
            assert [each is failures[number] for each in answers] == [True] * 10

    asyncio.run(ask())
    assert len(failures) == 2
