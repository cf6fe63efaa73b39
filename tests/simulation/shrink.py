"""Makes a failing plan small: leaves out steps, triggers and settings while the same checker still complains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.simulation.plan import Plan
from tests.simulation.schedule import run_plan

RUNS_MAX = 2_000


def complaint(plan: Plan) -> str:
    """Return the name of the first checker that finds something, "" if none does."""
    found = run_plan(plan).violations
    return found[0].partition(":")[0] if found else ""


def shrink(plan: Plan) -> Plan:
    """Return the smallest plan found that fails in the same way; deterministic, at most RUNS_MAX runs."""
    wanted = complaint(plan)
    assert wanted, "only a plan that fails can be made smaller"
    runs = 0
    progress = True
    while progress and runs < RUNS_MAX:
        progress = False
        for smaller in _smaller(plan):
            runs += 1
            if complaint(smaller) == wanted:
                plan, progress = smaller, True
                break
            if runs >= RUNS_MAX:
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Yield plans with less in them, the boldest first."""
    for name in ("triggers", "steps", "slow"):
        items = getattr(plan, name)
        half = len(items) // 2
        if half > 1:
            yield replace(plan, **{name: items[:half]})
            yield replace(plan, **{name: items[half:]})
        for i in range(len(items)):
            yield replace(plan, **{name: items[:i] + items[i + 1 :]})
    for name, plain in (("loss", 0.0), ("repeats", 0.0), ("lag", 0), ("datagrams", False), ("owner_closes", False)):
        if getattr(plan, name) != plain:
            yield replace(plan, **{name: plain})
    if plan.bookies > plan.quorums[0]:
        yield replace(plan, bookies=plan.bookies - 1)
    for i, step in enumerate(plan.steps):
        if step.what == "add" and step.arguments != (1,):
            yield replace(plan, steps=(*plan.steps[:i], replace(step, arguments=(1,)), *plan.steps[i + 1 :]))
