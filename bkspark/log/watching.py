"""A watch of a log: its head, and its delta once there may be one."""

from __future__ import annotations

import asyncio
from typing import Any

from bkspark.errors import MetadataError
from bkspark.log.delta import delta_path
from bkspark.log.formats import log_path
from bkspark.metadata.tree import Callback, Tree
from bkspark.tasks import start_kept

RETRY_S = 1.0
"""Pause before a watch that could not be set is tried again."""


class LogWatch:
    """Calls `callback()` whenever the log may have changed, until `end`.

    The first routed commit to a log changes its head, too, so only then the delta is watched.
    """

    def __init__(self, tree: Tree, name: str, callback: Callback) -> None:
        self._tree = tree
        self._name = name
        self._callback = callback
        self._ends: list[Callback] = []
        """End the watches that were set."""
        self._tasks: set[asyncio.Task[Any]] = set()
        """The one task that sets the watch of the delta, or nothing."""
        self._follows_delta = False
        """Whether the delta is watched: from the first routed commit on."""
        self._is_ended = False
        """Whether `end` was called. Set once."""

    async def begin(self, *, is_routed: bool) -> None:
        """Watch from now on; `is_routed`: the log has a delta."""
        self._ends.append(await self._tree.watch(log_path(self._name), self._changed))
        if is_routed and not await self._watch_delta():
            start_kept(self._follow_delta(), self._tasks)

    def _changed(self) -> None:
        self._callback()
        if not self._follows_delta and not self._tasks:
            start_kept(self._follow_delta(), self._tasks)

    async def _follow_delta(self) -> None:
        # Not only at the next change of the head: later routed commits change the delta alone.
        while not await self._watch_delta():
            await asyncio.sleep(RETRY_S)

    async def _watch_delta(self) -> bool:
        """Watch the delta, and call back once; False: that could not be done now."""
        try:
            end = await self._tree.watch(delta_path(self._name), self._callback)
        except MetadataError:
            return False
        if self._is_ended:
            end()
            return True
        self._follows_delta = True
        self._ends.append(end)
        self._callback()
        return True

    def end(self) -> None:
        """Call no more."""
        self._is_ended = True
        for task in self._tasks:
            task.cancel()
        for end in self._ends:
            end()
