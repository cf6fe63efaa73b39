"""docs/README.md leads to every page, and docs/glossary.md to the code."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.layering import PACKAGES
from tests.sources import GROUP, nodes_of, python_files

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


def test_every_table_has_a_head() -> None:
    """Rows after a blank line are shown as text."""
    root = DOCS.parent
    for page in (*DOCS.glob("*.md"), *(root / "benchmarks").glob("*.md"), *root.glob("*.md")):
        text = re.sub(r"^(```|~~~).*?^\1$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            assert re.match(r".*\n\|[\s:|-]+\n", table), f"{page.name}: {table.splitlines()[0]}"


def test_every_module_that_a_page_names_is_there() -> None:
    """A page may leave out the folders that are clear from its context."""
    root = DOCS.parent
    modules = {f"/{path.relative_to(root).as_posix()}" for path in root.rglob("*.py") if ".venv" not in path.parts}
    for page in (*DOCS.glob("*.md"), root / "README.md", root / "CONTRIBUTING.md"):
        text = re.sub(r"^(```|~~~).*?^\1$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for name in re.findall(r"`([\w/-]+\.py)`", text):
            assert any(module.endswith(f"/{name}") for module in modules), f"{page.name}: {name}"


@pytest.mark.xdist_group(GROUP)
def test_classes_that_share_a_name_are_those_that_the_glossary_justifies() -> None:
    files = python_files(DOCS.parent, PACKAGES)
    classes = [node.name for path in files for node in nodes_of(path) if isinstance(node, ast.ClassDef)]
    shared = {name for name, count in Counter(classes).items() if count > 1 and not name.startswith("_")}
    row = re.search(r"^\| (.*) \| each name is used twice", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    assert row is not None
    assert shared == set(_NAME.findall(row[1]))


def _code() -> str:
    """Return the text and the module names of the product and of the tests."""
    root = DOCS.parent
    modules = [path for package in ("bkspark", "bookie_service", "tests") for path in (root / package).rglob("*.py")]
    return "\n".join([*(path.stem for path in modules), *(path.read_text() for path in modules)])
