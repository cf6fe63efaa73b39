"""Campaigns: schedules of consecutive seeds, in as many processes as wanted, counted by rules that mean something.

A schedule counts only with an entry acknowledged and a fault that struck; schedules without faults run as controls on
top. Shares are of the schedules that count.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.full_schedule import FullOutcome
from tests.simulation.plan import Plan, plan_of
from tests.simulation.schedule import Outcome, run_plan

VIOLATIONS_MAX = 20
"""Failing seeds that a campaign keeps; the count goes on."""
COLLECT_EVERY = 20
_RUNS_PER_SCHEDULE_MAX = 10
"""A simulator that rarely runs a schedule that counts is broken, and must not run for ever."""

QUOTAS = {"ensemble_change": 0.5, "race": 0.6, "crash": 0.3, "all_three": 0.1}
"""Least share of the schedules that count."""
RELAXED_QUOTAS = {**QUOTAS, "ensemble_change": 0.35}
"""Ledgers with relaxed durability: not all of them may change their ensemble."""
CONTROLS_QUOTA = 0.1


@dataclass(slots=True)
class Tally:
    """What a range of seeds came to. `failing` maps a seed to what the checkers said."""

    runs: int = 0
    schedules: int = 0
    controls: int = 0
    violations: int = 0
    acknowledged: int = 0
    events: int = 0
    shares: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failing: dict[int, list[str]] = field(default_factory=dict)

    def count(self, seed: int, outcome: Outcome | FullOutcome, is_control: bool) -> None:
        """Add one schedule."""
        history = outcome.history
        self.runs += 1
        self.events += outcome.events
        self.acknowledged += outcome.acknowledged
        self.faults.update(history.faults)
        if is_control:
            self.controls += 1
        elif outcome.acknowledged and outcome.faults:
            self.schedules += 1
            seen = {
                "ensemble_change": history.changes_of_ensemble > 0,
                "race": history.is_raced,
                "crash": history.faults["crash"] > 0,
            }
            self.shares.update(name for name, is_seen in seen.items() if is_seen)
            self.shares["all_three"] += all(seen.values())
        if outcome.violations:
            self.violations += 1
            if len(self.failing) < VIOLATIONS_MAX:
                self.failing[seed] = outcome.violations

    def add(self, other: Tally) -> None:
        """Add what another process counted."""
        for name in ("runs", "schedules", "controls", "violations", "acknowledged", "events"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.shares.update(other.shares)
        self.faults.update(other.faults)
        self.failing.update(other.failing)

    def quotas(self) -> dict[str, float]:
        """Return the share of each kind of schedule."""
        shares = {name: self.shares[name] / max(1, self.schedules) for name in QUOTAS}
        return {**shares, "controls": self.controls / max(1, self.runs)}

    def unmet(self, quotas: Mapping[str, float] = QUOTAS) -> list[str]:
        """Return the quotas that were missed."""
        wanted = {**quotas, "controls": CONTROLS_QUOTA}
        return [name for name, share in self.quotas().items() if share < wanted[name]]

    def report(self, seed: int, seconds: float) -> dict[str, Any]:
        """Return the campaign as one JSON object."""
        return {
            "seed": seed,
            "seconds": round(seconds, 1),
            "schedules": self.schedules,
            "violations": self.violations,
            "acknowledged": self.acknowledged,
            "faults": dict(sorted(self.faults.items())),
            "quotas": {name: round(share, 3) for name, share in self.quotas().items()},
            "runs": self.runs,
            "controls": self.controls,
            "events": self.events,
            "failing": {str(failed): found for failed, found in sorted(self.failing.items())},
        }


def run_seeds(
    first: int, step: int, count: int | None, seconds: float | None, plans: Callable[[int], Plan] = plan_of
) -> Tally:
    """Run every `step`-th seed from `first` on: until this many schedules count, or for a time."""
    ends = None if seconds is None else time.monotonic() + seconds
    tally = Tally()
    was_enabled = gc.isenabled()
    # A schedule's cycles are many and short-lived: collecting only them, before they fill the processor's caches, costs
    # a third less.
    gc.disable()
    gc.collect()
    was_frozen = gc.get_freeze_count()
    gc.freeze()
    try:
        seed = first
        while (count is None or tally.schedules < count) and (ends is None or time.monotonic() < ends):
            if count is not None and tally.runs > _RUNS_PER_SCHEDULE_MAX * count:
                raise AssertionError(
                    f"of {tally.runs} schedules only {tally.schedules} count: {tally.report(first, 0)}"
                )
            plan = plans(seed)
            tally.count(seed, run_plan(plan), plan.is_control)
            seed += step
            if tally.runs % COLLECT_EVERY == 0:
                gc.collect()
    finally:
        # A run of tests has frozen all that it collected: each later search for garbage would look at it.
        if not was_frozen:
            gc.unfreeze()
        if was_enabled:
            gc.enable()
    return tally


def run_campaign(seed: int, seconds: float, processes: int, plans: Callable[[int], Plan] = plan_of) -> Tally:
    """Run seeds from `seed` on for this long, every process its own."""
    if processes == 1:
        return run_seeds(seed, 1, None, seconds, plans)
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        parts = [pool.apply_async(run_seeds, (seed + i, processes, None, seconds, plans)) for i in range(processes)]
        tally = Tally()
        for part in parts:
            tally.add(part.get())
    return tally
