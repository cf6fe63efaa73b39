"""docs/compatibility.md lists the tests, and every test that names an item is in it."""

from __future__ import annotations

import re

from tests.interop import conformance, traps
from tests.interop.conformance import CELLS, ITEMS, OURS_ALONE, ROOT, document, item_tests, patterns


def test_the_document_is_current() -> None:
    command = "python -m tests.interop.conformance > docs/compatibility.md"
    assert (ROOT / "docs" / "compatibility.md").read_text() == document(), f"run: {command}"


def test_every_name_in_the_tables_is_that_of_a_test() -> None:
    assert [pattern for pattern in patterns() if not conformance.tests_of(pattern)] == []


def test_every_test_that_names_an_item_is_in_its_row() -> None:
    for test, items in item_tests().items():
        path, _, name = test.partition("::")
        for item in items:
            assert item in ITEMS, test
            row = [*(one for tests in CELLS.get(item, {}).values() for one in tests), *OURS_ALONE.get(item, ())]
            assert any(pattern.startswith(f"{path}::") and name in conformance.tests_of(pattern) for pattern in row), (
                item,
                test,
            )


def test_every_trap_has_its_tests() -> None:
    """All 38 of them."""
    assert list(traps.TRAPS) == list(range(1, 39))
    assert all(tests for _, tests in traps.TRAPS.values())
    assert [pattern for pattern in traps.patterns() if not conformance.tests_of(pattern)] == []


def test_every_test_that_names_a_trap_is_in_its_row() -> None:
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, number in re.findall(r"^(?:async )?def (test_trap_(\d+)_\w+)", path.read_text(), re.MULTILINE):
            row = traps.TRAPS[int(number)][1]
            beginning = f"{path.relative_to(ROOT)}::"
            assert any(one.startswith(beginning) and name in conformance.tests_of(one) for one in row), name
