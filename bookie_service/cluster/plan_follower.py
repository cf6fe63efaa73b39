"""Follows what operators plan for this bookie in the metadata store: maintenance, a drain, quarantine.

The plan's node is watched, and also read every minute, so that a missed change does not last. While the store does not
answer, or the plan cannot be read, the last plan stays in force, but it ends at its time. A bookie that has just
started knows no last plan. It may be in maintenance, so it is read-only until it knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from bkspark.errors import MetadataError, MetadataFormat
from bkspark.failure_log import RepeatedFailure
from bkspark.log_limit import place_of
from bkspark.metadata.bookie_plans import BookiePlan, BookiePlans, DamagedPlan
from bkspark.tasks import end_all
from bkspark.wall_clock import wall_clock_ms

logger = logging.getLogger(__name__)

_INTERVAL_S = 60.0
_RETRY_S = 1.0


class PlanFollower:
    """Calls `follow(plan)` for each change. None: there is no plan, or its time is over. For one event loop.

    A `DamagedPlan` is followed at the start alone.
    """

    def __init__(
        self,
        plans: BookiePlans,
        bookie_id: str,
        follow: Callable[[BookiePlan | DamagedPlan | None], None],
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """`now_ms()`: the time of day, in ms since 1970."""
        self._now_ms = now_ms
        self._plans = plans
        self._bookie_id = bookie_id
        self._follow = follow
        self._plan: BookiePlan | DamagedPlan | None = None
        """The plan that was last followed; None: there was none."""
        self._failure = RepeatedFailure(
            logger,
            "the plan for this bookie cannot be followed, the last one stays",
            "the plan for this bookie is followed again",
        )
        self._wake = asyncio.Event()
        """Set when the plan's node may have changed."""
        self._task: asyncio.Task[None] | None = None
        """Follows the plan; None before `start`."""
        self._end_watch: Callable[[], None] | None = None
        """Ends the watch of the plan's node; None: it is not watched yet. Set once."""

    async def start(self) -> None:
        """Follow the plan as it is now, then its changes, until `stop`."""
        try:
            await self._refresh()
        except MetadataFormat as error:
            self._change(DamagedPlan(self._bookie_id, str(error)))
        except MetadataError as error:
            self._change(DamagedPlan(self._bookie_id, f"the plan for this bookie is not known yet: {error}"))
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            await end_all([self._task])

    async def _run(self) -> None:
        try:
            while True:
                self._wake.clear()
                try:
                    pause_s = await self._look()
                except Exception as error:
                    # Later plans must be followed: one of them may end a drain.
                    logger.exception(
                        "the plan for this bookie cannot be followed because of an unexpected error",
                        extra={"kind": place_of(error)},
                    )
                    pause_s = _INTERVAL_S
                await self._sleep(pause_s)
        finally:
            if self._end_watch is not None:
                self._end_watch()

    async def _look(self) -> float:
        """Follow the plan as it is now, or the last one if it cannot be read. Return the pause until the next look."""
        try:
            if self._end_watch is None:
                self._end_watch = await self._plans.watch(self._bookie_id, self._wake.set)
            await self._refresh()
            self._failure.worked()
            return _INTERVAL_S
        except (MetadataError, OSError) as error:
            self._failure.failed(error)
            with contextlib.suppress(OSError):
                self._change(self._plan)
            return _INTERVAL_S if isinstance(error, MetadataFormat) else _RETRY_S

    async def _refresh(self) -> None:
        self._change(await self._plans.find(self._bookie_id))

    def _change(self, plan: BookiePlan | DamagedPlan | None) -> None:
        if isinstance(plan, BookiePlan) and plan.is_over(self._now_ms()):
            plan = None
        if plan != self._plan:
            self._follow(plan)
            self._plan = plan

    async def _sleep(self, pause_s: float) -> None:
        if isinstance(self._plan, BookiePlan) and self._plan.until_ms:
            pause_s = min(pause_s, max(0.01, (self._plan.until_ms - self._now_ms()) / 1000))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._wake.wait()
