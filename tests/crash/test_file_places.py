"""The record of where the files of a bookie are, after a kill that a power failure follows."""

from __future__ import annotations

from random import Random

import pytest

from bookie_service.storage.io.file_places import FilePlaces
from tests.crash.images import Loss, crash_image
from tests.crash.simulated_files import SimulatedDisk, SimulatedFiles

JOURNAL = "/journal/current"


class _Killed(Exception):
    pass


def _killed_before_the_name_is_durable() -> SimulatedDisk:
    """Return the disk of a process that was killed within `forget`, after it had replaced the record."""
    disk = SimulatedDisk()
    files = SimulatedFiles(disk)
    files.make_directory(JOURNAL)
    places = FilePlaces(files, JOURNAL)
    places.settle()
    places.note("limbo", 1)

    def kill(operation: str, path: str) -> None:
        if operation == "sync_directory":
            raise _Killed

    disk.before_operation = kill
    with pytest.raises(_Killed):
        places.forget("limbo")
    return crash_image(disk, Loss.KEPT, Random(0))


def test_start_relies_only_on_a_record_that_is_durable() -> None:
    """A start removes files that the record does not name. A record that named them again would miss them."""
    disk = _killed_before_the_name_is_durable()
    assert FilePlaces(SimulatedFiles(disk), JOURNAL).place("limbo") is None
    after = crash_image(disk, Loss.LOST, Random(0))
    assert FilePlaces(SimulatedFiles(after), JOURNAL).place("limbo") is None


def test_kill_before_the_name_is_durable_may_bring_the_older_record_back() -> None:
    """So the test above would fail without the start's sync."""
    after = crash_image(_killed_before_the_name_is_durable(), Loss.LOST, Random(0))
    assert FilePlaces(SimulatedFiles(after), JOURNAL).place("limbo") == 1
