"""Random walks of an index in key-value stores: a part of what `python -m tests.crash.split_walks` does."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.crash import planted_walks
from tests.crash.audit import Violation
from tests.crash.parallel import rare_collections
from tests.crash.split_walks import main, run
from tests.planting import Plant

FIRST_SEED = {
    planted_walks.repeated_write_forgotten: 4,
    planted_walks.removal_past_the_file: 170,
}
"""Near a seed that finds a defect which few find. A change of the product that moves it costs time only."""
SEEDS_MAX = 300
"""What a planted defect may survive before it counts as not found."""


def test_walks_lose_nothing_deny_nothing_and_bring_nothing_back() -> None:
    with rare_collections():
        counts = run(10, 30)
    assert counts["ledgers found after a crash"] > 1000
    # Each of these was tried, and the checks had something to look at.
    tried = (
        "hold waits",
        "flush waits",
        "limbo",
        "removed for good",
        "crash of a start",
        "step between",
        "read between",
    )
    assert all(counts[what] > 10 for what in tried), counts


@pytest.mark.parametrize("directories", [1, 2])
def test_walks_with_one_store_and_with_two_lose_nothing(directories: int) -> None:
    with rare_collections():
        assert run(100, 8, directories)["ledgers found after a crash"] > 200


@pytest.mark.long(reason="more seeds of the walks above")
@pytest.mark.parametrize(
    ("options", "walks"),
    [(["--first", "1000"], 400), (["--directories", "1"], 200)],
    ids=["as the seeds say", "one store"],
)
def test_many_walks_lose_nothing(capsys: pytest.CaptureFixture[str], options: list[str], walks: int) -> None:
    assert main([*options, "--seeds", str(walks)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["walks"], found["violations"]) == (walks, 0)


@pytest.mark.parametrize("plant", planted_walks.FOR_SEVERAL)
def test_planted_defect_of_several_stores_is_found(plant: Callable[[], Plant]) -> None:
    with plant(), pytest.raises(Violation):
        run(FIRST_SEED.get(plant, 1), SEEDS_MAX)


@pytest.mark.parametrize("plant", planted_walks.FOR_ONE)
def test_planted_defect_of_one_store_is_found(plant: Callable[[], Plant]) -> None:
    with plant(), pytest.raises(Violation):
        run(1, SEEDS_MAX, 1)


def test_violation_names_its_seed_and_the_last_steps() -> None:
    with planted_walks.mark_without_the_file(), pytest.raises(Violation) as found:
        run(1, SEEDS_MAX)
    first, *steps = str(found.value).splitlines()
    assert first.startswith("seed ")
    assert any(step.startswith("  start failing") for step in steps), steps
