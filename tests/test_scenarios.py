"""Every historic bug has a test that is named after it."""

from __future__ import annotations

from tests.scenarios import NOT_PLAYED, SCENARIOS, named_tests


def test_every_scenario_has_a_named_test() -> None:
    """docs/reliability.md has all of them."""
    found = named_tests()
    assert {scenario for scenario in SCENARIOS if not found[scenario]} <= set(NOT_PLAYED)
    assert set(found) == set(SCENARIOS)
