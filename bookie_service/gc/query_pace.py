"""How fast a pass of garbage collection asks the metadata store about single ledgers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bookie_service.engine.pacing import pause_s


class QueryPace:
    """Awaited before each query: waits as the limit requires. For one event loop, whose clock it uses."""

    def __init__(self, per_s: Callable[[], int]) -> None:
        """`per_s()` returns how many queries are allowed a second, 0: any number. It is called for each query, because
        an operator may change it."""
        self._per_s = per_s
        self._clock_s = asyncio.get_running_loop().time
        self._began = self._clock_s()
        """When counting began. Constant."""
        self._done = 0
        """How many queries were let through."""

    async def __call__(self) -> None:
        pause = pause_s(self._done, self._per_s(), self._clock_s() - self._began)
        if pause > 0:
            await asyncio.sleep(pause)
        self._done += 1
