"""docs/README.md leads to every page, and docs/glossary.md to the code."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
_NAME = re.compile(r"`([^`]+)`")


def test_every_page_is_in_the_index_once_and_numbered_in_order() -> None:
    lines = re.findall(r"^(\d+)\. \[([\w-]+\.md)\]\(\2\): ", (DOCS / "README.md").read_text(), re.MULTILINE)
    assert [int(number) for number, _ in lines] == list(range(1, len(lines) + 1))
    assert sorted(page for _, page in lines) == sorted(path.name for path in DOCS.glob("*.md") if path.stem != "README")


def test_every_name_of_code_in_the_glossary_is_in_the_code() -> None:
    """Paths and calls are looked up by their last name."""
    rows = re.findall(r"^\| [^|]+ \| [^|]+ \| (.*) \|$", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    names = {
        re.split(r"[/.]", name.split("(")[0].removesuffix(".py"))[-1] for row in rows for name in _NAME.findall(row)
    }
    code = _code()
    assert len(names) > 50
    assert sorted(name for name in names if name not in code) == []


def _code() -> str:
    """Return the text and the module names of the product and of the tests."""
    root = DOCS.parent
    modules = [path for package in ("bkspark", "bookie_service", "tests") for path in (root / package).rglob("*.py")]
    return "\n".join([*(path.stem for path in modules), *(path.read_text() for path in modules)])
