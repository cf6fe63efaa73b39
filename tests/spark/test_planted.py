"""The list of planted defects fits the code: `python -m tests.spark.planted` plants them and runs their tests."""

from __future__ import annotations

import pytest

from tests.spark.planted import ROOT, Defect, defects, planted_text

DEFECTS = defects()


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda it: it.bug)
def test_planted_defect_is_one_change_of_a_module_that_still_compiles(defect: Defect) -> None:
    compile(planted_text(defect), defect.module, "exec")
    assert defect.tests
    for test in defect.tests:
        assert (ROOT / test.partition("::")[0]).is_file(), test


def test_no_two_planted_defects_are_the_same() -> None:
    assert len({each.bug for each in DEFECTS}) == len(DEFECTS)
    assert len({(each.module, each.old, each.new) for each in DEFECTS}) == len(DEFECTS)
