"""docs/compatibility.md says what the tests are, and every test that names an item stands in it."""

from __future__ import annotations

from tests.interop import conformance
from tests.interop.conformance import CELLS, ITEMS, OURS_ALONE, ROOT, document, item_tests, patterns


def test_the_document_is_current() -> None:
    command = "python -m tests.interop.conformance > docs/compatibility.md"
    assert (ROOT / "docs" / "compatibility.md").read_text() == document(), f"run: {command}"


def test_every_name_in_the_tables_stands_for_a_test() -> None:
    assert [pattern for pattern in patterns() if not conformance.tests_of(pattern)] == []


def test_every_test_that_names_an_item_stands_in_its_row() -> None:
    for test, items in item_tests().items():
        path, _, name = test.partition("::")
        for item in items:
            assert item in ITEMS, test
            row = [*(one for tests in CELLS.get(item, {}).values() for one in tests), *OURS_ALONE.get(item, ())]
            assert any(pattern.startswith(f"{path}::") and name in conformance.tests_of(pattern) for pattern in row), (
                item,
                test,
            )
