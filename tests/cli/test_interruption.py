"""Signals that end a command leave nothing half done."""

from __future__ import annotations

import asyncio
import gc
import signal
import warnings

import pytest

from bkspark.cli.interruption import Interruption


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_between_the_making_of_a_coroutine_and_its_awaiting_interrupts_the_step_after(
    number: signal.Signals,
) -> None:
    """Raised at once, it left a coroutine that was never awaited, and Python's warning was the command's last line."""
    done = []

    async def step() -> None:
        done.append("step")
        await asyncio.sleep(600)

    async def work() -> None:
        made = step()
        signal.raise_signal(number)
        try:
            await made
        finally:
            done.append("cleaned up")

    gc.collect()  # what earlier tests left may warn when it goes
    with warnings.catch_warnings(record=True) as warned, Interruption() as interruption:
        warnings.simplefilter("always")
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(work())
        gc.collect()
    assert done == ["step", "cleaned up"]
    assert interruption.happened
    assert warned == []


def test_a_signal_before_the_event_loop_runs_interrupts_at_once_and_warns_of_nothing() -> None:
    async def work() -> None:
        raise AssertionError("the signal came before")

    gc.collect()
    with warnings.catch_warnings(record=True) as warned, Interruption():
        warnings.simplefilter("always")
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(_interrupted_before(work()))
        gc.collect()
    assert warned == []


def _interrupted_before(made):
    signal.raise_signal(signal.SIGINT)
    return made


def test_a_second_signal_does_not_interrupt_the_clean_up() -> None:
    cleaned = []

    async def work() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(600)
        finally:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(0)
            cleaned.append(True)

    with Interruption(), pytest.raises(KeyboardInterrupt):
        asyncio.run(work())
    assert cleaned == [True]
