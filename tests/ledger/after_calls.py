"""What calls of the client may leave on the event loop: timers of writers, and tasks."""

from __future__ import annotations

import asyncio


def timers(function: str) -> list[asyncio.TimerHandle]:
    """Return the timers that will call a function."""
    scheduled: list[asyncio.TimerHandle] = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    return [timer for timer in scheduled if not timer.cancelled() and function in str(timer)]


def ticks() -> list[asyncio.TimerHandle]:
    """Return the timers of writers that have not ended."""
    return timers("WriterRun._tick")


def tasks_of(function: str) -> list[str]:
    return [str(task) for task in asyncio.all_tasks() if function in str(task.get_coro())]
