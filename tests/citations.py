"""What text of the repository refers to: rules and scenarios by number, sections of the protocol, files and tests.

`unresolved(root)` reads the product, tests, benchmarks, examples and pages, and returns one line for each reference
that leads nowhere. A rule is defined by a row `| P20 | ...` of docs/reliability.md, a section by a heading
`### §2.7 ...` of docs/protocol.md, a file by its existence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

PARTS = ("bkspark", "bookie_service", "pyspark_bookkeeper", "tests", "docs", "benchmarks", "examples")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "setup.cfg")
SUFFIXES = frozenset({".py", ".md", ".proto", ".go", ".mod"})
LEFT_OUT = ("tests/fuzzing/corpus", "tests/fuzzing/regressions", "tests/test_citations.py")
PLANTING = ("tests/test_layering.py", "tests/test_plain_english.py", "tests/mutation/test_mutation.py")
"""Tests that make files of their own: the files that they name are not those of the repository."""

RULES = Path("docs", "reliability.md")
SECTIONS = Path("docs", "protocol.md")

_RULE = r"[PSABCDIKMNOXZ]\d{1,2}"
# Not the ranges of a regular expression (A-Z0-9), a digest, a hexadecimal number, or a percentile (P99).
_CITED_RULE = re.compile(rf"(?<![\w#%$\\/-])(?!P99)({_RULE})(?![\w%-])")
_NAMED_AFTER = re.compile(r"def test_([psabcdikmnoxz])(\d{1,2})_")
_DEFINED_RULE = re.compile(rf"^\| ({_RULE}) \|", re.MULTILINE)
_CITED_SECTION = re.compile(r"§ ?(\d+(?:\.\d+)?)")
_DEFINED_SECTION = re.compile(r"^##+ §(\d+(?:\.\d+)?) ", re.MULTILINE)
_CITED_FILE = re.compile(
    r"(?<![\w./-])((?:bkspark|bookie_service|pyspark_bookkeeper|tests|docs|benchmarks|examples|spark-conf|notebooks)"
    r"/[\w./-]+\.(?:py|md|proto|go|mod|toml|conf|ipynb))(?:::(\w+\*?))?"
)
_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#([^)\s]+))?\)")


def unresolved(root: Path) -> list[str]:
    """Return `file:line: what leads nowhere` for every such reference below `root`."""
    rules = frozenset(_DEFINED_RULE.findall(_text(root / RULES)))
    sections = frozenset(_DEFINED_SECTION.findall(_text(root / SECTIONS)))
    found: list[tuple[str, int, str]] = []
    for path in files(root):
        text = _text(path)
        name = path.relative_to(root).as_posix()
        dead = [*_dead_rules(text, rules), *_dead_sections(text, sections)]
        if name not in PLANTING:
            dead += _dead_files(root, text)
        if path.suffix == ".md":
            dead += _dead_links(path, text)
        found += [(name, text.count("\n", 0, at) + 1, what) for at, what in dead]
    return [f"{name}:{line}: {what}" for name, line, what in sorted(found)]


def files(root: Path) -> Iterator[Path]:
    """Yield the files in which references are looked for."""
    for part in PARTS:
        for path in sorted((root / part).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.suffix in SUFFIXES and not name.startswith(LEFT_OUT) and not path.stem.endswith("_pb2"):
                yield path
    yield from (root / page for page in PAGES if (root / page).is_file())


def _dead_rules(text: str, rules: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield where a rule is cited that is not defined, and what is wrong; names of tests count."""
    cited = [(match.start(), match[1]) for match in _CITED_RULE.finditer(text)]
    for match in _NAMED_AFTER.finditer(text):
        # Names of tests write X1 as x01 or x1; P and S have two digits everywhere.
        number = f"{int(match[2]):02d}" if match[1] in "ps" else str(int(match[2]))
        cited.append((match.start(), f"{match[1].upper()}{number}"))
    yield from ((at, f"{rule} is not defined in {RULES}") for at, rule in cited if rule not in rules)


def _dead_sections(text: str, sections: frozenset[str]) -> Iterator[tuple[int, str]]:
    for match in _CITED_SECTION.finditer(text):
        if match[1] not in sections:
            yield match.start(), f"§{match[1]} is not a section of {SECTIONS}"


def _dead_files(root: Path, text: str) -> Iterator[tuple[int, str]]:
    for match in _CITED_FILE.finditer(text):
        path = root / match[1]
        if not path.is_file():
            yield match.start(), f"there is no {match[1]}"
        elif match[2] and not _has_test(path, match[2]):
            yield match.start(), f"{match[1]} has no {match[2]}"


def _dead_links(page: Path, text: str) -> Iterator[tuple[int, str]]:
    for match in _LINK.finditer(text):
        target = page.parent / match[1]
        if not target.exists():
            yield match.start(), f"there is no {match[1]}"
        elif match[2] and match[2] not in _anchors(target):
            yield match.start(), f"{match[1]} has no heading #{match[2]}"


def _text(path: Path) -> str:
    return path.read_text()


def _anchors(page: Path) -> frozenset[str]:
    """Return the anchors that Markdown gives to a page's headings."""
    headings = re.findall(r"^#+ (.*)", _text(page), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


def _has_test(path: Path, name: str) -> bool:
    matches: Callable[[str], bool] = name.__eq__ if not name.endswith("*") else lambda it: it.startswith(name[:-1])
    return any(map(matches, re.findall(r"def (\w+)", _text(path))))
