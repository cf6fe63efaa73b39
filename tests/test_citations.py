"""Everything that code, tests and pages cite exists: a number without a source is useless."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import citations

ROOT = Path(__file__).parent.parent


def test_every_citation_resolves() -> None:
    dead = citations.unresolved(ROOT)
    assert not dead, "\n".join(dead)


def test_rules_are_defined_once_and_without_a_gap() -> None:
    """The catalogue has the numbers that its first table promises."""
    rows = [line.split(" | ")[0].lstrip("| ") for line in (ROOT / citations.RULES).read_text().splitlines()]
    defined = [row for row in rows if row[:1].isupper() and row[1:].isdigit()]
    promised = [f"{letter}{number:02d}" for letter, last in (("P", 38), ("S", 39)) for number in range(1, last + 1)]
    for letter, last in zip("IBAMKCNDZOX", (15, 11, 5, 3, 4, 15, 11, 13, 10, 12, 6), strict=True):
        promised += [f"{letter}{number}" for number in range(1, last + 1)]
    assert sorted(defined) == sorted(promised)


@pytest.mark.parametrize(
    ("path", "text", "complaint"),
    [
        ("bkspark/some.py", '"""As P20 and P39 say."""', "P39 is not defined"),
        ("bookie_service/some.py", "# reliability B12", "B12 is not defined"),
        ("tests/test_some.py", "def test_p40_nothing_is_lost(): ...", "P40 is not defined"),
        ("tests/test_some.py", '"""Finding S1: it ended."""', "S1 is not defined"),
        ("tests/test_some.py", "def test_x07_nothing_is_lost(): ...", "X7 is not defined"),
        ("tests/test_some.py", '"""docs/protocol.md §9.9."""', "§9.9 is not a section"),
        ("bkspark/some.proto", "// tests/test_gone.py compares it", "there is no tests/test_gone.py"),
        ("docs/some.md", "`tests/test_here.py::test_gone`", "tests/test_here.py has no test_gone"),
        ("docs/some.md", "[gone](gone.md)", "there is no gone.md"),
        ("README.md", "[gone](docs/reliability.md#gone)", "docs/reliability.md has no heading #gone"),
    ],
)
def test_a_planted_dead_citation_is_found(tmp_path: Path, path: str, text: str, complaint: str) -> None:
    _plant(tmp_path, path, text)
    (found,) = citations.unresolved(tmp_path)
    assert found.startswith(f"{path}:1: ")
    assert complaint in found


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("bkspark/some.py", '"""P20, X1 and docs/protocol.md §2.7; V2, V3, E3, Qw3, [A-Z0-9], CRC32."""'),
        ("tests/test_some.py", "def test_x01_and_p20_hold(): ..."),
        ("tests/test_some.py", "def test_v3_reads(): ..."),
        (
            "docs/some.md",
            "`tests/test_here.py::test_h*`, [rules](reliability.md#two-words), <https://example.org/a.md>",
        ),
    ],
)
def test_what_resolves_passes(tmp_path: Path, path: str, text: str) -> None:
    _plant(tmp_path, path, text)
    assert citations.unresolved(tmp_path) == []


def _plant(root: Path, path: str, text: str) -> None:
    files = {
        "docs/reliability.md": "## Two words\n| P20 | a rule |\n| X1 | another |\n",
        "docs/protocol.md": "### §2.7 Reads\n",
        "tests/test_here.py": "def test_here(): ...\n",
    }
    for name, content in {**files, path: text}.items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
