"""Driver: work goes on beside everything else, and what it results in is performed afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bkspark.ledger.driver import Driver
from bkspark.ledger.recovery import RecoveryRun
from bkspark.ledger.tail import TailWatch
from bkspark.ledger.writer_run import WriterRun


def test_what_work_results_in_is_performed() -> None:
    seen: list[str] = []

    async def test() -> None:
        async def work() -> list[str]:
            seen.append("works")
            return ["result"]

        driver = Driver[str](seen.extend)
        await driver.spawn(work())

    asyncio.run(test())
    assert seen == ["works", "result"]


def test_work_that_ends_with_an_unexpected_error_is_reported() -> None:
    async def test() -> BaseException:
        heard: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

        async def work() -> list[str]:
            raise ZeroDivisionError

        Driver[str](print, broke=heard.set_result).spawn(work())
        return await heard

    assert isinstance(asyncio.run(test()), ZeroDivisionError)


def test_work_that_did_not_call_the_core_results_in_nothing() -> None:
    async def test() -> None:
        async def work() -> None:
            return None

        def refuse(_: object) -> None:
            raise AssertionError

        await Driver[str](refuse).spawn(work())

    asyncio.run(test())


@pytest.mark.parametrize("is_reported", [False, True])
def test_work_that_is_cancelled_or_fails_unreported_upsets_no_callback(is_reported: bool) -> None:
    async def test() -> list[object]:
        upset: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: upset.append(context))

        async def fails() -> list[str]:
            raise ZeroDivisionError

        async def waits() -> list[str]:
            await asyncio.sleep(3600)
            return []

        driver = Driver[str](print, broke=upset.append if is_reported else None)
        waiting = driver.spawn(waits())
        await asyncio.sleep(0)
        assert driver.stop() == [waiting]
        if not is_reported:
            with pytest.raises(ZeroDivisionError):
                await driver.spawn(fails())
        await asyncio.wait([waiting])
        await asyncio.sleep(0)
        assert driver.stop() == [], "work that has ended is forgotten"
        return upset

    assert asyncio.run(test()) == []


@pytest.mark.filterwarnings("error")
def test_stop_cancels_all_work_but_that_which_calls_it_and_work_that_has_not_begun() -> None:
    ended: list[str] = []

    async def test() -> None:
        async def waits() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                ended.append("waits")

        async def stops() -> None:
            driver.spawn(waits())  # it never begins
            driver.stop()
            await asyncio.sleep(0)
            ended.append("stops")

        driver = Driver[str](print)
        waiting = driver.spawn(waits())
        await asyncio.sleep(0)
        await driver.spawn(stops())
        assert waiting.cancelled()

    asyncio.run(test())
    assert ended == ["waits", "stops"]


@pytest.mark.parametrize("perform", [WriterRun.perform, RecoveryRun.perform, TailWatch.perform])
def test_effect_that_is_not_in_the_union_is_refused(perform: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(AssertionError):
        perform(None, [object()])
