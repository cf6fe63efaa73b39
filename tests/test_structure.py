"""The structure stays as good as it is: hops of requests, sizes of the writer's classes, documented state."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.layering import PACKAGES
from tests.sources import GROUP, python_files
from tests.structure.fields import raising_methods, undocumented_fields
from tests.structure.helpers import imports_from_tests, private_imports
from tests.structure.hops import ROOT
from tests.structure.meanings import glossary_terms, unexplained_fields
from tests.structure.sizes import methods_of_classes

pytestmark = pytest.mark.xdist_group(GROUP)

HOPS_MAX = {
    "one append, warm": (90, 24),
    "Spark partition read, 12 entries": (178, 34),
    "first Spark partition read of a worker, 12 entries": (240, 40),
}
"""Calls of product code, and files that they are in: what is reached. The limits that matter are 110 calls in 24 files
for an append, and 240 in 40 for a read."""


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    """The hops that `python -m tests.structure --json` prints: in a process of its own, where nothing else runs."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.structure", "--json"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("trip", HOPS_MAX)
def test_hops_of_a_request_stay_within_their_bounds(measured: dict[str, Any], trip: str) -> None:
    calls_max, files_max = HOPS_MAX[trip]
    hops = measured[trip]
    assert hops["calls"] <= calls_max, "`python -m tests.structure --trip NAME` shows the calls"
    assert hops["files"] <= files_max


def test_no_program_has_more_than_600_lines() -> None:
    files = python_files(ROOT, [*PACKAGES, "tests", "benchmarks", "examples"])
    lines = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in files}
    assert {path: count for path, count in lines.items() if count > 600 and not path.endswith("_pb2.py")} == {}


@pytest.mark.parametrize(
    ("path", "name", "methods_max"),
    [("bkspark/ledger/writer.py", "LedgerWriter", 20), ("bkspark/core/writer.py", "WriterCore", 25)],
)
def test_classes_of_the_writer_stay_small(path: str, name: str, methods_max: int) -> None:
    assert methods_of_classes(ROOT / path)[name] <= methods_max


def test_every_field_of_state_is_documented() -> None:
    assert undocumented_fields(ROOT, PACKAGES) == []


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("self._a = 0", ["_a"]),
        ("self._a = 0\n        'What it is.'", []),
        ("self._b = {}", ["_a", "_b"]),
        ("self._b = dict(given)", ["_a"]),
    ],
)
def test_undocumented_state_is_found(tmp_path: Path, body: str, found: list[str]) -> None:
    made = "" if "self._a" in body else "        self._a = 1\n"
    text = f"class C:\n    def __init__(self, given):\n{made}        {body}\n\n    def go(self):\n        self._a = 2\n"
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text(text)
    names = [line.rpartition(".")[2] for line in undocumented_fields(tmp_path, ["package"])]
    assert names == found


def test_every_field_says_in_its_class_or_in_the_glossary_what_it_means() -> None:
    assert unexplained_fields(ROOT, PACKAGES, glossary_terms(ROOT)) == []


@pytest.mark.parametrize(
    ("docstring", "body", "found"),
    [
        ("A class.", "self._room = room", ["_room"]),
        ("A class.", "self._room = room\n        'Bytes that are free.'", []),
        ("A class with room.", "self._room = room", []),
        ("A class.", "self._room_bytes = room\n        self._other = 1", ["_room_bytes", "_other"]),
        ("room: bytes that are free.", "self._space = room\n        self._other = 1", ["_other"]),
        ("A class.", "self._registry = registry", []),
        ("A class.", "self._entry_ids = room", []),
    ],
)
def test_a_field_without_a_meaning_is_found(tmp_path: Path, docstring: str, body: str, found: list[str]) -> None:
    text = (
        f"class C:\n    {docstring!r}\n\n    def __init__(self, room: int, registry: BookieRegistry):\n        {body}\n"
    )
    text += "        self._is_open = True\n        'Whether it is open.'\n"
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text(text)
    names = [line.rpartition(".")[2] for line in unexplained_fields(tmp_path, ["package"], {"entry_id"})]
    assert names == found


TWO = "class C(B):\n    'A class.'\n    room: int\n    other: int"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("class C:\n    'The only one.'\n    room: int", []),
        ("class C:\n    room: int", ["room"]),
        (TWO, ["room", "other"]),
        ("class B:\n    room: int\n    'Bytes.'\n" + TWO, ["other"]),
        ("class B:\n    'room: bytes that are free.'\n    room: int\n" + TWO, ["other"]),
        ("class B:\n    'A base.'\n    room: int\n" + TWO, ["room", "other"]),
    ],
    ids=["only field", "without docstring", "two fields", "line in base", "docstring of base", "base says nothing"],
)
def test_only_field_and_base_class_explain_a_field(tmp_path: Path, source: str, found: list[str]) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text(source)
    names = [line.rpartition(".")[2] for line in unexplained_fields(tmp_path, ["package"], set())]
    assert names == found


def test_glossary_explains_names_in_its_columns_of_names_alone(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "glossary.md").write_text(
        "`prose`\n\n| Term | Meaning | In code |\n|---|---|---|\n| `term` | has `meaning` | `entry_id`, `Slot` |\n\n"
        "| Fields | Meaning |\n|---|---|\n| `path`, `fd` | of `file` |\n"
    )
    assert glossary_terms(tmp_path) == {"entry_id", "path", "fd"}


def test_methods_do_more_than_raise() -> None:
    """A method that only raises shows that its class has an interface which is not its own."""
    assert raising_methods(ROOT, PACKAGES) == []


def test_test_modules_import_nothing_from_one_another() -> None:
    """A helper in a test module hides, and its reader has to know which tests happen to be beside it."""
    assert imports_from_tests(ROOT) == []


@pytest.mark.parametrize(
    ("name", "source", "is_found"),
    [
        ("test_a.py", "from tests.test_b import helper", True),
        ("test_a.py", "from tests import test_b", True),
        ("helper.py", "from tests.test_b import helper", True),
        ("planted.py", "from tests import test_b", False),
        ("test_a.py", "from tests.helper import helper", False),
    ],
)
def test_an_import_from_a_test_module_is_found(tmp_path: Path, name: str, source: str, is_found: bool) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / name).write_text(source)
    assert bool(imports_from_tests(tmp_path)) == is_found


def test_no_module_imports_a_private_name_of_another() -> None:
    assert private_imports(ROOT, [*PACKAGES, "tests", "benchmarks", "examples"]) == []


@pytest.mark.parametrize(
    ("name", "source", "is_found"),
    [
        ("test_a.py", "from bkspark.log.log import _shown", True),
        ("helper.py", "from tests.helper import (\n    Public,\n    _Private,\n)", True),
        ("helper.py", "from tests.helper import (\n    public_name,\n)\n\n_private = 1", False),
        ("helper.py", "from tests.helper import one\n\nfrom other import _of_another_project", False),
        ("planted_logs.py", "from bkspark.log.log import _shown", False),
    ],
)
def test_an_import_of_a_private_name_is_found(tmp_path: Path, name: str, source: str, is_found: bool) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / name).write_text(source)
    assert bool(private_imports(tmp_path, ["tests"])) == is_found
