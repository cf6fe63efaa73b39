"""Work that several callers await with `asyncio.shield`: it continues when one of them is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


def start_shared(work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
    """Start work. If it fails and no caller waits for it any more, asyncio does not warn."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(forget_failure)
    return task


def forget_failure(task: asyncio.Task[Any]) -> None:
    """Retrieve the result of a task, so that asyncio does not warn about an unretrieved error."""
    if not task.cancelled():
        task.exception()
