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
# Not the ranges of a regular expression (A-Z0-9), a digest or a hexadecimal number.
_CITED_RULE = re.compile(rf"(?<![\w#%$\\/-])({_RULE})(?![\w%-])")
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
    found = []
    for path in files(root):
        for number, line in enumerate(_text(path).splitlines(), 1):
            at = f"{path.relative_to(root)}:{number}"
            found += [f"{at}: {rule} is not defined in {RULES}" for rule in sorted(_rules(line) - rules)]
            found += [
                f"{at}: §{section} is not a section of {SECTIONS}"
                for section in _CITED_SECTION.findall(line)
                if section not in sections
            ]
            if str(path.relative_to(root)) not in PLANTING:
                found += [f"{at}: {name}" for name in _dead_files(root, line)]
            if path.suffix == ".md":
                found += [f"{at}: {name}" for name in _dead_links(path, line)]
    return found


def files(root: Path) -> Iterator[Path]:
    """Yield the files in which references are looked for."""
    for part in PARTS:
        for path in sorted((root / part).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.suffix in SUFFIXES and not name.startswith(LEFT_OUT) and not path.stem.endswith("_pb2"):
                yield path
    yield from (root / page for page in PAGES if (root / page).is_file())


def _rules(line: str) -> frozenset[str]:
    named = {f"{letter.upper()}{_as_defined(letter, number)}" for letter, number in _NAMED_AFTER.findall(line)}
    return frozenset(_CITED_RULE.findall(line)) | named


def _as_defined(letter: str, number: str) -> str:
    """Names of tests write X1 as x01 or x1; P and S have two digits everywhere."""
    return f"{int(number):02d}" if letter in "ps" else str(int(number))


def _dead_files(root: Path, line: str) -> Iterator[str]:
    for name, test in _CITED_FILE.findall(line):
        path = root / name
        if not path.is_file():
            yield f"there is no {name}"
        elif test and not _has_test(path, test):
            yield f"{name} has no {test}"


def _dead_links(page: Path, line: str) -> Iterator[str]:
    for name, anchor in _LINK.findall(line):
        target = page.parent / name
        if not target.exists():
            yield f"there is no {name}"
        elif anchor and anchor not in _anchors(target):
            yield f"{name} has no heading #{anchor}"


def _text(path: Path) -> str:
    return path.read_text()


def _anchors(page: Path) -> frozenset[str]:
    """Return the anchors that Markdown gives to a page's headings."""
    headings = re.findall(r"^#+ (.*)", _text(page), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


def _has_test(path: Path, name: str) -> bool:
    matches: Callable[[str], bool] = name.__eq__ if not name.endswith("*") else lambda it: it.startswith(name[:-1])
    return any(map(matches, re.findall(r"def (\w+)", _text(path))))
