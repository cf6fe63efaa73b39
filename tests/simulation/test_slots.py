"""Random schedules keep what `core.slots` says of a slot's fields, after every event of every writer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bkspark.core.pipeline import WriterState
from bkspark.core.slots import Phase, Slot
from bkspark.core.writer import WriterCore
from tests.planting import around, both
from tests.simulation.plan import Plan, plan_of, relaxed_plan_of
from tests.simulation.schedule import run_plan
from tests.simulation.traces import EVENTS


def inconsistent(slot: Slot, core: WriterCore) -> list[str]:
    """Return which invariants do not hold for a slot."""
    claims = {
        "refusal": (slot.refusal is not None) == (slot.phase is Phase.REFUSING),
        "trial": (slot.trial is not None) == (slot.phase is Phase.ON_TRIAL),
        "failed": slot.phase is not Phase.FAILED or slot.needs_replacement or core.error is not None,
        "no change": not slot.needs_replacement or core.state is WriterState.CHANGING or core.error is not None,
        "lag": slot.lag_since_ns is None or slot.phase in (Phase.SERVING, Phase.REFUSING),
        "sought": not slot.sought_from_ns or slot.phase is Phase.LEFT_OUT,
        "owes": not slot.owed or slot.phase is not Phase.LEFT_OUT,
        "runs": all(begin < end for begin, end in slot.owed)
        and all(one[1] < next_[0] for one, next_ in zip(slot.owed, slot.owed[1:])),
    }
    return [name for name, holds in claims.items() if not holds]


@pytest.mark.parametrize(("plans", "count"), [(plan_of, 150), (relaxed_plan_of, 60)], ids=["synced", "relaxed"])
def test_fields_of_a_slot_are_consistent_after_every_event(plans: Callable[[int], Plan], count: int) -> None:
    found: list[str] = []
    phases: set[Phase] = set()

    def check(old: Any, self: WriterCore, *arguments: Any, **named: Any) -> Any:
        done = old(self, *arguments, **named)
        for slot in self.slots.all:
            phases.add(slot.phase)
            found.extend(f"slot {slot.number}: {what}" for what in inconsistent(slot, self))
        return done

    for seed in range(1, count + 1):
        with both(*(around(WriterCore, name, check) for name in EVENTS[WriterCore].split())):
            run_plan(plans(seed))
        assert found == [], f"seed {seed}"
    assert phases == set(Phase)
