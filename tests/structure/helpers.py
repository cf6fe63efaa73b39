"""Which modules import what others keep to themselves: names with an underscore, and helpers of test modules."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tests.sources import python_files

_IMPORT = re.compile(r"^[ ]*from (tests[\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)
_PRIVATE = re.compile(
    r"^[ ]*from ((?:bkspark|bookie_service|bkspark_console|tests|benchmarks)[\w.]*) import "
    r"(?:\([^)]*?|.*?)(?<!\w)(_[a-z]\w*)",
    re.MULTILINE | re.IGNORECASE,
)


def private_imports(root: Path, packages: Iterable[str]) -> list[str]:
    """Return a line for each import of a private name of another module of this repository.

    Planted defects change what is private: their modules (`planted*.py`) may import it.
    """
    found = []
    for path in python_files(root, packages):
        source = path.read_text()
        if not path.stem.startswith("planted"):
            for match in _PRIVATE.finditer(source):
                line = source.count("\n", 0, match.start(2)) + 1
                found.append(f"{path.relative_to(root)}:{line}: {match[1]}.{match[2]}")
    return found


def imports_from_tests(root: Path) -> list[str]:
    """Return a line for each import from a test module by a test module.

    Modules that run planted defects import whole test modules: such a test is what has to find the defect.
    """
    found = []
    for path in python_files(root, ["tests"]):
        source = path.read_text()
        for match in _IMPORT.finditer(source):
            module, names = match.groups()
            is_whole = path.stem.startswith("test_") and re.search(r"\btest_\w+", names)
            if is_whole or module.rpartition(".")[2].startswith("test_"):
                found.append(f"{path.relative_to(root)}:{source.count(chr(10), 0, match.start()) + 1}: {match[0]}")
    return found
