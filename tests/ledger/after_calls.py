"""What calls of the client may leave on the event loop: timers of writers, and tasks."""

from __future__ import annotations

import asyncio


def ticks() -> list[asyncio.TimerHandle]:
    """Return the timers of writers that have not ended."""
    timers = asyncio.get_running_loop()._scheduled
    return [timer for timer in timers if not timer.cancelled() and "WriterRun._tick" in str(timer)]


def tasks_of(function: str) -> list[str]:
    return [str(task) for task in asyncio.all_tasks() if function in str(task.get_coro())]
