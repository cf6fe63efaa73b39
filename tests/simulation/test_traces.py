"""Traces of schedules: the same seed gives the same trace, and another decision gives another one."""

from __future__ import annotations

import threading

import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.core.recovery import RecoveryCore
from tests.simulation import planted
from tests.simulation.traces import KINDS, Recorder, trace, trace_hash


@pytest.mark.parametrize("kind", KINDS)
def test_same_seed_gives_the_same_trace(kind: str) -> None:
    assert trace_hash(kind, 3) == trace_hash(kind, 3)


def test_trace_shows_each_event_with_its_effects() -> None:
    lines = trace("protocol", 1)
    assert lines[0].startswith("add [entries(0, ")
    assert lines[1].startswith("    SendAdds(slot=0, bookie=b")
    assert any(line.startswith("    Acknowledge(last_entry=") for line in lines)


def test_cores_on_other_threads_are_in_no_trace() -> None:
    """Another test of this process may have left a client open."""
    recorder = Recorder()
    core = RecoveryCore(1, LedgerMetadata(1, 1, 1, (Fragment(0, ("b1",)),)), 0)
    with recorder.recording():
        other = threading.Thread(target=core.start)
        other.start()
        other.join()
        assert recorder.lines == []
        core.on_metadata_written(core.metadata.in_recovery(), 1)
    assert recorder.lines[0].startswith("on_metadata_written ")


def test_another_decision_gives_another_trace() -> None:
    right = trace_hash("protocol", 1)
    with planted.acknowledged_by_one_less():
        assert trace_hash("protocol", 1) != right
