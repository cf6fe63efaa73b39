"""Which test modules import from others. What several of them need belongs into a module without tests."""

from __future__ import annotations

import re
from pathlib import Path

from tests.sources import python_files

_IMPORT = re.compile(r"^[ ]*from (tests[\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)


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
