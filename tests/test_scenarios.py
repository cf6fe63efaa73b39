"""Every scenario of a bookie has a test that is named after it."""

from __future__ import annotations

from tests.scenarios import BOOKIE, NOT_PLAYED, named_tests


def test_every_bookie_scenario_has_a_named_test() -> None:
    """Reliability §3.2, issue 4."""
    found = named_tests()
    assert [scenario for scenario in BOOKIE if not found[scenario]] == list(NOT_PLAYED)
