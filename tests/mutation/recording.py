"""Which tests execute which lines of the product: recorded once, file of tests by file of tests, and kept.

A recording is good as long as nothing changes that its tests executed: the text of each function of the product that
they called, the rest of each module of the product that they imported, and each file of `tests` that they imported.
Lines are kept relative to their function, so a function that moves takes them with it.

What a test's child processes execute is not seen.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.operators import functions_of

PRODUCT = ("bkspark", "bookie_service")
_SHARED_PROCESSES = frozenset({"zookeeper", "shared_cluster"})
SHARED_PROCESSES_S = 10.0
"""What starting the processes takes that tests share: each test of them may be the first one."""


class Recorder:
    """A pytest plugin that records lines by test with coverage.py."""

    def __init__(self, tree: Path) -> None:
        import coverage

        self._tree = tree
        self._coverage = coverage.Coverage(
            data_file=None, config_file=False, source=[str(tree / name) for name in PRODUCT], messages=False
        )
        self._tests: dict[str, dict[str, Any]] = {}
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        shares = not _SHARED_PROCESSES.isdisjoint(getattr(item, "fixturenames", ()))
        self._tests[item.nodeid] = {"shares": shares, "passed": True, "seconds": 0.0}
        self._coverage.switch_context(item.nodeid)
        began = time.perf_counter()
        try:
            return (yield)
        finally:
            self._tests[item.nodeid]["seconds"] = round(time.perf_counter() - began, 4)
            self._coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._tests[report.nodeid]["passed"] = False

    def write(self, path: Path) -> None:
        """Stop, and write what was recorded."""
        self._coverage.stop()
        data = self._coverage.get_data()
        numbers = {test: number for number, test in enumerate(self._tests)}
        hits: dict[str, dict[str, dict[int, str]]] = {}
        hashes = _Hashes(self._tree)
        depends: dict[str, dict[str, str]] = {}
        for measured in sorted(data.measured_files()):
            module = Path(measured).relative_to(self._tree).as_posix()
            functions = _Functions((self._tree / module).read_bytes())
            found: dict[str, dict[int, str]] = {}
            for line, contexts in sorted(data.contexts_by_lineno(measured).items()):
                mask = sum(1 << numbers[test] for test in set(contexts) if test)
                function, offset = functions.place(line)
                if mask and function:
                    found.setdefault(function, {})[offset] = f"{mask:x}"
            if found:
                hits[module] = found
            depends[module] = {name: hashes.of(module, name) for name in ("", *found)}
        for imported in _imported_tests(self._tree):
            depends[imported] = {"": hashes.of(imported, "")}
        recording = {"tests": self._tests, "hits": hits, "depends": depends}
        with gzip.open(path, "wt") as file:
            json.dump(recording, file)


def _imported_tests(tree: Path) -> list[str]:
    """Return the files of `tests` that were imported, apart from this tool's own."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    folder, own = tree / "tests", Path(__file__).parent
    found = (Path(file) for file in files if file)
    return sorted(it.relative_to(tree).as_posix() for it in found if it.is_relative_to(folder) and it.parent != own)


class _Functions:
    """The functions of a text: which a line belongs to, and each one's own text."""

    def __init__(self, source: bytes) -> None:
        self._lines = source.splitlines(keepends=True)
        self.ranges = functions_of(source)
        self._owner: dict[int, str] = {}
        # From the outside in, so that a line belongs to the innermost one.
        for name, (first, last) in sorted(self.ranges.items(), key=lambda it: it[1][0] - it[1][1]):
            self._owner.update(dict.fromkeys(range(first, last + 1), name))

    def place(self, line: int) -> tuple[str, int]:
        """Return the function that a line is in, or an empty name, and how far below its beginning."""
        name = self._owner.get(line, "")
        return name, line - self.ranges[name][0] if name else line

    def text(self, name: str) -> bytes:
        """Return a function's text; of the empty name all that is in no function."""
        if name:
            first, last = self.ranges.get(name, (1, 0))
            return b"".join(self._lines[first - 1 : last])
        return b"".join(line for number, line in enumerate(self._lines, 1) if number not in self._owner)


class _Hashes:
    """Hashes of functions and files of one tree, each computed once."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self._functions: dict[str, _Functions | None] = {}

    def of(self, path: str, function: str) -> str:
        """Return the hash of a function's text, of a module's outside functions (no name), or of a whole test file."""
        if path.startswith("tests/"):
            file = self._tree / path
            return hashlib.sha256(file.read_bytes() if file.exists() else b"").hexdigest()[:16]
        functions = self.functions(path)
        return hashlib.sha256(functions.text(function)).hexdigest()[:16] if functions else ""

    def functions(self, path: str) -> _Functions | None:
        if path not in self._functions:
            file = self._tree / path
            self._functions[path] = _Functions(file.read_bytes()) if file.exists() else None
        return self._functions[path]


@dataclass(frozen=True)
class CoveringTest:
    """One test, and what is known of it."""

    name: str
    seconds: float


class Recordings:
    """The recordings of a tree's test files: those that are missing or no longer true, and what the others say."""

    def __init__(self, folder: Path, tree: Path) -> None:
        self._folder = folder
        self._hashes = _Hashes(tree)
        self._loaded: dict[str, dict[str, Any]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, file: str) -> Path:
        """Return where the recording of a test file is kept."""
        return self._folder / f"{file.replace('/', '-').removesuffix('.py')}.json.gz"

    def missing(self, files: list[str], *, accept_stale: bool = False) -> list[str]:
        """Return the test files that must be recorded; load what is known of the others."""
        return [file for file in files if not self.load(file, accept_stale=accept_stale)]

    def load(self, file: str, *, accept_stale: bool = False) -> bool:
        """Load a test file's recording and say whether there is one that is still true."""
        path = self.path(file)
        if not path.exists():
            return False
        with gzip.open(path, "rt") as stored:
            recording = json.load(stored)
        for depends, functions in recording["depends"].items():
            if accept_stale:
                break
            for name, known in functions.items():
                if self._hashes.of(depends, name) != known:
                    return False
        self._loaded[file] = recording
        return True

    def failed(self) -> list[str]:
        """Return the tests that did not pass when they were recorded: nothing can be said by them."""
        return [test for it in self._loaded.values() for test, facts in it["tests"].items() if not facts["passed"]]

    def executing(self, module: str, lines: tuple[int, ...]) -> list[CoveringTest]:
        """Return the tests that execute one of some lines, cheapest first.

        Lines outside functions are executed by an import: then all tests count that execute anything of the module,
        or all that were recorded together with its import where none executes any of its functions.
        """
        functions = self._hashes.functions(module)
        if functions is None:
            return []
        places = [functions.place(line) for line in lines]
        found: list[CoveringTest] = []
        for recording in self._loaded.values():
            hits = recording["hits"].get(module, {})
            masks = _masks(hits, places)
            if not hits and module in recording["depends"] and not all(function for function, _ in places):
                masks = -1
            for number, (name, facts) in enumerate(recording["tests"].items()):
                if masks >> number & 1 and facts["passed"]:
                    seconds = facts["seconds"] + (SHARED_PROCESSES_S if facts["shares"] else 0.0)
                    found.append(CoveringTest(name, seconds))
        return sorted(found, key=lambda it: (it.seconds, it.name))


def _masks(hits: dict[str, dict[str, str]], places: list[tuple[str, int]]) -> int:
    """Return which tests, as bits, execute one of the places; of a place outside functions all of the module's."""
    mask = 0
    for function, offset in places:
        if function:
            mask |= int(hits.get(function, {}).get(str(offset), "0"), 16)
        else:
            for offsets in hits.values():
                for tests in offsets.values():
                    mask |= int(tests, 16)
    return mask


def files_of_tests(root: Path, folders: tuple[str, ...], left_out: tuple[str, ...]) -> list[str]:
    """Return the test files below some folders, in order."""
    found = []
    for folder in folders:
        for place, _, names in os.walk(root / folder):
            for name in names:
                path = (Path(place) / name).relative_to(root).as_posix()
                if name.startswith("test_") and name.endswith(".py") and path not in left_out:
                    found.append(path)
    return sorted(found)
