"""The plan of a drain, which operators begin, change and cancel. `drain` carries it out."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial

from bkspark.errors import ConfigurationError
from bkspark.metadata.bookie_plans import DRAIN, BookiePlan
from bkspark.wall_clock import wall_clock_ms
from bookie_service.replication.autorecovery import RepairedCluster


async def check_serves(cluster: RepairedCluster, bookie: str) -> None:
    """Raise ConfigurationError unless a bookie is registered."""
    states = await cluster.context.registry.states()
    state = states.get(bookie)
    if state is None:
        raise ConfigurationError(f"there is no bookie {bookie}; known are {', '.join(states) or 'none'}")
    if state == "down":
        raise ConfigurationError(
            f"bookie {bookie} does not run: start it, or move its data by `bkspark cluster decommission`"
        )


@dataclass(frozen=True, slots=True)
class BegunDrain:
    """A drain that was begun now, or before: then the plan is the one that existed."""

    plan: BookiePlan
    is_new: bool
    """Whether it was begun now."""


async def begin(cluster: RepairedCluster, bookie: str, who: str, reason: str = "", bytes_per_s: int = 0) -> BegunDrain:
    """Store the plan of a drain, or another rate in the existing plan.

    Raises:
        ConfigurationError: there is a plan of another kind, or no such bookie that runs.
        MetadataError: the store failed.
    """
    await check_serves(cluster, bookie)
    if not await cluster.context.registry.writable_ids() - {bookie}:
        raise ConfigurationError(f"no other bookie than {bookie} takes writes, so nothing can be copied: start others")
    now_ms = wall_clock_ms()
    plan = BookiePlan(bookie, DRAIN, who, now_ms, reason=reason, bytes_per_s=bytes_per_s)
    there = await cluster.plans().set(plan, lambda there: there.kind != DRAIN and there.is_over(now_ms))
    if there is None:
        return BegunDrain(plan, is_new=True)
    if there.kind != DRAIN:
        raise ConfigurationError(there.refusal)
    return BegunDrain(await set_rate(cluster, bookie, bytes_per_s) if bytes_per_s else there, is_new=False)


async def set_rate(cluster: RepairedCluster, bookie: str, bytes_per_s: int) -> BookiePlan:
    """Change the rate of a drain, which may run in another process; return its plan.

    Raises:
        ConfigurationError: there is no drain, or it was cancelled meanwhile.
    """
    changed = partial(dataclasses.replace, bytes_per_s=bytes_per_s)
    return _drain(bookie, await cluster.plans().update(bookie, DRAIN, changed))


async def running(cluster: RepairedCluster, bookie: str) -> BookiePlan:
    """Return the plan of a drain. Raises ConfigurationError if there is no such plan."""
    return _drain(bookie, await cluster.plans().find(bookie))


def _drain(bookie: str, plan: BookiePlan | None) -> BookiePlan:
    if plan is None or plan.kind != DRAIN:
        raise ConfigurationError(f"bookie {bookie} is not being drained")
    return plan


async def cancel(cluster: RepairedCluster, bookie: str) -> None:
    """Cancel a drain: the bookie takes entries again.

    Raises:
        ConfigurationError: there is no drain, or another operator has ended it.
    """
    if not await cluster.plans().end_own(await running(cluster, bookie)):
        raise ConfigurationError(f"bookie {bookie} is not being drained any more")
