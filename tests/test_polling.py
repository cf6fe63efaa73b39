"""Waiting costs little of the processor, which the processes need that a test waits for."""

from __future__ import annotations

import pytest

from tests.polling import pause_s, wait_until


@pytest.mark.parametrize(
    ("waited_s", "look_s", "pause"),
    [(0, 0.0001, 0.01), (0, 0.02, 0.18), (2, 0.0001, 0.02), (60, 0.0001, 0.05), (0, 3.0, 0.25)],
)
def test_pause_grows_with_the_cost_of_a_look_and_with_the_wait(waited_s: float, look_s: float, pause: float) -> None:
    assert pause_s(waited_s, look_s) == pytest.approx(pause)


def test_first_true_value_is_returned_and_a_condition_that_stays_false_is_named() -> None:
    values = iter([0, None, 7, 8])
    assert wait_until(lambda: next(values), "a value") == 7
    with pytest.raises(AssertionError, match="waited 0 s for nothing"):
        wait_until(lambda: False, "nothing", 0)
