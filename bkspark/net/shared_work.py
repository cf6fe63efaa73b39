"""Work that several callers wait for, by `asyncio.shield`: it goes on when one of them is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


def start_shared(work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
    """Start work. Where it fails and nobody is left who waits for it, nothing is warned about."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(forget_failure)
    return task


def forget_failure(task: asyncio.Task[Any]) -> None:
    """Take note of how a task ended, so that asyncio does not warn that nobody did."""
    if not task.cancelled():
        task.exception()
