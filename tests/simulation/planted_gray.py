"""Defects in how a writer goes on without a bookie that does not do its work, and takes it back; for `full_gray`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bkspark.core.left_out import LeftOutBookies
from bkspark.core.pipeline import WriterState
from bkspark.core.unwell import UnwellBookies
from bkspark.ledger.fanout import Fanout
from tests.planting import Plant, both, replaced


@dataclass(frozen=True, slots=True)
class GrayMutant:
    """A planted defect; `first_seed` of the schedules that hunt it."""

    name: str
    plant: Callable[[], Plant]
    first_seed: int = 1


def _taken_back_unasked() -> Plant:
    def look_after(self: UnwellBookies) -> Any:
        pipeline, back = self._pipeline, self._slots.left_out
        if not back or pipeline.state is not WriterState.ACTIVE:
            return []
        for slot in back:
            pipeline.take_back(slot)
        return pipeline.resume({slot.number for slot in back})

    return replaced(UnwellBookies, "look_after_left_out", look_after)


def _never_left_out() -> Plant:
    return replaced(UnwellBookies, "leave_out_lagging", lambda self: [])


def _lost_probe_is_awaited() -> Plant:
    return replaced(LeftOutBookies, "on_probe_failed", lambda self, slot, now_ns: [])


def _dead_connection_is_kept() -> Plant:
    return replaced(Fanout, "drop_if_silent", lambda self, bookie: None)


def _trial_without_end() -> Plant:
    return both(
        replaced(LeftOutBookies, "passes", lambda self, slot, now_ns: False),
        replaced(LeftOutBookies, "fails", lambda self, slot, now_ns: False),
    )


GRAY_MUTANTS = (
    GrayMutant("a bookie is taken back because it is registered", _taken_back_unasked),
    GrayMutant("a bookie that holds callers back is not left out", _never_left_out, 14),
    GrayMutant("a probe that was lost is awaited for ever", _lost_probe_is_awaited, 4),
    GrayMutant("probes go on over a dead connection", _dead_connection_is_kept, 16),
    GrayMutant("a trial has no end", _trial_without_end, 4),
)
