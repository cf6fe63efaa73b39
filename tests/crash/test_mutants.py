"""The campaigns notice planted defects; a harness that misses one proves less than it says."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable

import pytest

from bookie_service.formats import index as index_format
from tests.crash import directed, directed_headers, directed_steps
from tests.crash.hunting import Mutant, hunt_crashes, killed_by
from tests.crash.mutants import EQUIVALENT, MUTANTS
from tests.planting import Plant, replaced

FIRST = {mutant.kind: mutant for mutant in reversed(MUTANTS)}
"""The first mutant of each kind. Together they run every hunt."""
ORDINARY = [*FIRST.values()][::5]
"""Those that `make test` hunts."""


@pytest.mark.long_except(
    *(mutant.name for mutant in ORDINARY),
    reason="it shows that a hunt notices a defect; the hunts are ordinary tests, and .ci/run has all of these",
)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_killed(mutant: Mutant) -> None:
    assert killed_by(mutant) is not None, f"{mutant.bug}: nothing noticed it"


DIRECTED = dict.fromkeys(
    mutant.hunt for mutant in MUTANTS if inspect.getmodule(mutant.hunt) in (directed, directed_headers, directed_steps)
)


@pytest.mark.parametrize("hunt", DIRECTED, ids=lambda hunt: hunt.__name__)
def test_hunt_finds_nothing_in_the_product_itself(hunt: Callable[[], None]) -> None:
    hunt()


def test_headers_of_ledgers_without_entries_survive_crashes_in_several_directories() -> None:
    """The files are synced together, by their file system, too."""
    directed_headers.crash_headers(directories=2, files_synced_singly_max=0)


def test_error_of_the_harness_is_not_a_kill() -> None:
    def broken() -> None:
        raise TypeError("a mutant that does not fit the product any more")

    with pytest.raises(TypeError):
        killed_by(Mutant("", "", contextlib.nullcontext, broken))


def test_planted_function_that_does_not_take_the_products_arguments_is_not_a_kill() -> None:
    """The start that calls it ends with the TypeError, which looks like a bookie that does not start."""

    def unfitting() -> Plant:
        return replaced(index_format, "encode_slot", lambda: b"")

    with pytest.raises(TypeError):
        killed_by(Mutant("", "", unfitting, hunt_crashes))


def test_there_are_at_least_thirty_and_each_has_its_own_name() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 30
    assert all(len(argument) > 40 for argument in EQUIVALENT.values())
