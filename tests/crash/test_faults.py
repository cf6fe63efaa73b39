"""Failing calls and damaged bytes: nothing acknowledged is lost, nothing wrong is served."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.crash.faults import fail_every_call, flip_bytes


def test_every_call_of_a_script_may_fail_without_loss() -> None:
    counts: Counter[str] = Counter()
    fail_every_call(2, counts)
    assert counts["calls failed"] > 500
    assert counts["images"] == 2 * counts["calls failed"]


@pytest.mark.parametrize("seed", range(3, 7))
def test_some_calls_of_other_scripts_may_fail_without_loss(seed: int) -> None:
    fail_every_call(seed, Counter(), 0.05)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("seed", range(1, 3))
def test_damaged_byte_gives_no_wrong_bytes_and_no_false_negative(seed: int, clean: bool) -> None:
    counts: Counter[str] = Counter()
    flip_bytes(seed, counts, 0.004, clean=clean)
    assert counts["flips"] > 50
