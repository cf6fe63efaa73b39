"""The machine that makes mutants: what its operators change, and that it tells survivors from killed ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutation.__main__ import FOLDERS, LEFT_OUT
from tests.mutation.campaign import Campaign, Worker, record, workers
from tests.mutation.listed import FILE, Listed, as_entry, read_list, stale
from tests.mutation.operators import Mutant, mutants_of
from tests.mutation.population import Population
from tests.mutation.recording import Recordings, files_of_tests
from tests.mutation.trees import ROOT
from tests.polling import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds a test's processes in /proc")


# ---- operators ----


def changes(body: str, returns: str = "") -> set[tuple[str, str, str]]:
    """Return (operator, before, after) of all mutants of a function."""
    arrow = f" -> {returns}" if returns else ""
    source = f"def f(a, b){arrow}:\n" + "".join(f"    {line}\n" for line in body.splitlines())
    found = mutants_of("m.py", source.encode())
    assert all(it.function == "f" and it.compiles(source.encode()) for it in found)
    return {(it.operator, it.before, it.after) for it in found}


@pytest.mark.parametrize(
    ("body", "operator", "before", "after"),
    [
        ("x = a < b", "boundary", "a < b", "a <= b"),
        ("x = a < b", "negated", "a < b", "a >= b"),
        ("x = a is None", "boundary", "a is None", "a is not None"),
        ("x = a in b", "boundary", "a in b", "a not in b"),
        ("x = a[b + 1]", "constant", "1", "2"),
        ("x = a[b + 1]", "constant", "1", "0"),
        ("x = a[b + 1]", "arithmetic", "b + 1", "b - 1"),
        ("x = f(a, is_new=True)", "constant", "True", "False"),
        ("x = a and b", "logic", "a and b", "a or b"),
        ("x = a and b", "logic", "a and b", "b"),
        ("x = ~a & b", "arithmetic", "~a & b", "~a | b"),
        ("x = ~a & b", "negated", "~a", "a"),
        ("if a:\n    b()", "condition negated", "a", "not a"),
        ("if a:\n    b()", "block removed", "a", "False"),
        ("if a:\n    b()", "condition always true", "a", "True"),
        ("if a:\n    return\nb()", "guard removed", "a", "False"),
        ("a.sync()", "call removed", "a.sync()", "pass"),
        ("a.b = 5", "assignment removed", "a.b = 5", "pass"),
        ("a += b", "update removed", "a += b", "pass"),
        ("a += b", "arithmetic", "a += b", "a -= b"),
        ("raise a", "raise removed", "raise a", "pass"),
        ("x = f(a, b)", "arguments swapped", "f(a, b)", "f(b, a)"),
        ("x = f(a, side=b)", "keyword removed", "f(a, side=b)", "f(a)"),
        ("x = min(a, b)", "opposite", "min(a, b)", "max(a, b)"),
        ("x = f(a, side='left')", "opposite", "f(a, side='left')", "f(a, side='right')"),
        ("x = range(a, b)", "range", "range(a, b)", "range(a, b - 1)"),
        ("x = a[:b]", "slice", "a[:b]", "a[:]"),
        ("x = a[0]", "slice", "a[0]", "a[-1]"),
        ("while a:\n    break", "break and continue", "break", "continue"),
        ("for x in a:\n    continue", "continue removed", "continue", "pass"),
        ("with a.lock:\n    b()", "context removed", "with a.lock:", "if True:"),
        ("try:\n    a()\nexcept KeyError:\n    b()", "handler removed", "except KeyError: b()", "raise"),
        ("try:\n    a()\nexcept (KeyError, OSError):\n    b()", "one of several", "(KeyError, OSError)", "(OSError,)"),
        ("try:\n    a()\nfinally:\n    b()", "finally removed", "finally: b()", "pass"),
        ("x = [y for y in a if y]", "filter removed", "y", "True"),
    ],
)  # fmt: skip
def test_operator_makes_the_defect(body: str, operator: str, before: str, after: str) -> None:
    assert (operator, before, after) in changes(body)


@pytest.mark.parametrize(
    ("returns", "value", "after"),
    [
        ("bool", "a", "return not a"),
        ("bool", "True", "return False"),
        ("int", "a", "return a + 1"),
        ("list[int]", "a", "return []"),
        ("str | None", "a", "return None"),
    ],
)
def test_returned_values_change_by_their_annotation(returns: str, value: str, after: str) -> None:
    assert ("return value", f"return {value}", after) in changes(f"return {value}", returns)


@pytest.mark.parametrize(
    "body",
    [
        "_log.info('%d of %d', a, 1)",
        "self._log.warning(a)",
        "assert a is not None",
        "'a text'\n'another'",
        "import a",
        "if TYPE_CHECKING:\n    a = 1",
        "x: int",
        "x = f'{a[0]} of {b < 1}'",
        "raise ValueError(f(a, 1))",
        "x = 2 * 1024 * 1024",
        "x: int = 1 << 20",
        "x = ValueError('a is wrong', entry_id=a + 1)",
    ],
)
def test_unobservable_code_is_left_alone(body: str) -> None:
    assert {operator for operator, _, _ in changes(body)} <= {"raise removed"}


def test_change_touches_its_place_alone_and_leaves_lines_where_they_are() -> None:
    source = b"def f(a):\n    g(\n        a,  # first\n        1,\n    )\n    return a\n"
    (removed,) = [it for it in mutants_of("m.py", source) if it.operator == "call removed"]
    assert removed.applied_to(source).splitlines() == [b"def f(a):", b"    pass", b"", b"", b"", b"    return a"]
    (constant, *_) = [it for it in mutants_of("m.py", source) if it.operator == "constant"]
    assert constant.applied_to(source) == source.replace(b"1", b"(2)", 1)


def test_identity_of_a_mutant_stays_when_lines_move_and_code_is_reformatted() -> None:
    source = b"class A:\n    def f(self, a):\n        return a < 1 and a < 1\n"
    moved = b"import os\nclass A:\n  def f(self, a):\n    return (\n      a < 1  # why\n      and a < 1)\n"
    keys = [it.key for it in mutants_of("m.py", source)]
    assert [it.key for it in mutants_of("m.py", moved)] == keys
    assert len({it.id for it in mutants_of("m.py", source)}) == len(keys)


def test_sample_is_decided_by_the_seed_and_a_larger_one_begins_with_it() -> None:
    population = Population(ROOT, ["bkspark/core/quorum.py", "bkspark/core/striping.py"])
    small, large = population.sample(7, 5), population.sample(7, 20)
    assert [it.id for it in large[:5]] == [it.id for it in small]
    assert [it.id for it in population.sample(8, 5)] != [it.id for it in small]
    assert len(population.sample(7, 10_000)) <= len(population.mutants)


# ---- the list of equivalent mutants ----


def test_every_listed_mutant_is_still_one() -> None:
    """An entry whose code has changed says nothing any more; remove it."""
    entries = read_list()
    modules = {entry.key[0] for entry in entries}
    assert not {module for module in modules if not (ROOT / module).exists()}
    assert [entry.key for entry in stale(entries, Population(ROOT, sorted(modules)).mutants, modules)] == []


def test_entry_of_the_list_names_its_mutant_until_the_code_changes(tmp_path: Path) -> None:
    source = b"def f(a):\n    return a < 1 and a < 1\n"
    mutants = mutants_of("m.py", source)
    (tmp_path / "list.toml").write_text("\n".join(as_entry(mutant, 'says "why"') for mutant in mutants))
    entries = read_list(tmp_path / "list.toml")
    assert entries == [Listed(mutant.key, 'says "why"') for mutant in mutants]
    assert stale(entries, mutants, {"m.py"}) == []
    assert stale(entries, mutants_of("m.py", b"def f(a):\n    return a\n"), {"m.py"}) == entries


@pytest.mark.parametrize(
    "text",
    [
        '[[mutant]]\nmodule = "m.py"\nreason = "x"\n',
        '[[mutant]]\nmodule="m"\nfunction="f"\noperator="o"\nstatement="s"\nbefore="a"\nafter="b"\nreason=" "\n',
    ],
)
def test_entry_without_a_place_or_a_reason_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "list.toml").write_text(text)
    with pytest.raises(ValueError, match=r"lacks|gives no reason"):
        read_list(tmp_path / "list.toml")


def test_list_lies_beside_the_tool_and_files_left_out_exist() -> None:
    assert FILE.parent == Path(__file__).parent
    assert all((ROOT / file).exists() for file in LEFT_OUT)
    assert len(files_of_tests(ROOT, FOLDERS, LEFT_OUT)) > 100
    assert [folder for folder in FOLDERS if not files_of_tests(ROOT, (folder,), LEFT_OUT)] == []


# ---- a small project from end to end ----

_PRODUCT = '''\
"""A product of three functions."""

import os


def total(numbers: list[int], most: int) -> int:
    found = 0
    for number in numbers:
        if number > most:
            continue
        found += number
    return found


def countdown(number: int) -> int:
    while number > 0:
        number -= 1
    return number


def never_called(a: int) -> int:
    return a * 2
'''
_TESTS = """\
import os, pathlib, signal, subprocess, sys, time

from bkspark.sums import countdown, total


def test_total():
    assert total([1, 2, 300], 100) == 3


def test_countdown():
    if pathlib.Path(__file__).parents[3].joinpath("hang").exists():
        time.sleep(600)
    # A child that outlives a test that fails, or hangs.
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "left-by-a-test"])
    assert countdown(2) == 0
    child.kill()
    child.wait()


def test_that_fails_without_any_mutant():
    assert total([5], 9) == 1
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a package, its tests and this tool."""
    root = tmp_path_factory.mktemp("project")
    shutil.copytree(
        ROOT / "tests" / "mutation", root / "tests" / "mutation", ignore=shutil.ignore_patterns("__pycache__", "test_*")
    )
    for path, text in {
        "bkspark/__init__.py": "",
        "bookie_service/__init__.py": "",
        "bkspark/sums.py": _PRODUCT,
        "tests/__init__.py": "",
        "tests/small/test_sums.py": _TESTS,
        "setup.cfg": "[tool:pytest]\npythonpath = .\naddopts = --import-mode=importlib\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    return root


@pytest.fixture(scope="module")
def team(project: Path) -> Iterator[list[Worker]]:
    with workers(1, project) as started:
        yield started


@pytest.fixture
def recordings(project: Path, team: list[Worker], tmp_path_factory: pytest.TempPathFactory) -> Recordings:
    found = Recordings(tmp_path_factory.mktemp("recordings"), project)
    record(team, found, found.missing(files_of_tests(project, ("tests/small",), ())), lambda text: None)
    return found


def mutant_of(population: Population, text: str) -> Mutant:
    (found,) = [mutant for mutant in population.mutants if f"{mutant.before} -> {mutant.after}" == text]
    return found


def test_survivor_is_distinguished_from_killed_and_from_hanging_ones(
    project: Path, team: list[Worker], recordings: Recordings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted survivor, a killed mutant, one that hangs, one that no test executes, and one that ends the process."""
    monkeypatch.setattr("tests.mutation.campaign.LIMIT_LEAST_S", 3.0)
    monkeypatch.setattr("tests.mutation.campaign.LIMIT_FACTOR", 0.1)
    population = Population(project, ["bkspark/*.py"])
    campaign = Campaign(population, recordings, tmp_path / "results.jsonl", mutant_s=100.0)
    expected = {
        "number > most -> number >= most": (False, "survived"),
        "found += number -> found -= number": (True, "failed"),
        "number -= 1 -> pass": (True, "timeout"),
        "a * 2 -> a // 2": (False, "not executed"),
    }
    mutants = [mutant_of(population, text) for text in expected]
    campaign.run(team, mutants, 100.0, lambda text: None)
    verdicts = [campaign.verdicts[mutant.id] for mutant in mutants]
    assert {text: (it.killed, it.how) for text, it in zip(expected, verdicts)} == expected
    report = campaign.report(mutants)
    assert (report["run"], report["killed"], report["survived"], report["score"]) == (4, 2, 2, 0.5)
    assert recordings.failed() == ["tests/small/test_sums.py::test_that_fails_without_any_mutant"]
    assert_nothing_is_left(team[0], project)
    again = Campaign(population, recordings, tmp_path / "results.jsonl", mutant_s=100.0)
    again.resume(mutants, again=False)
    assert again.verdicts == campaign.verdicts
    again.resume(mutants, again=True)
    assert all(verdict.killed for verdict in again.verdicts.values())


def assert_nothing_is_left(worker: Worker, project: Path) -> None:
    """No process, no temporary file, no changed source."""
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "left-by-a-test" not in running
    assert list((worker.tree.parent / "tmp").iterdir()) == []
    assert (worker.tree / "bkspark/sums.py").read_text() == (project / "bkspark/sums.py").read_text() == _PRODUCT


def test_mutant_is_not_killed_by_a_test_that_also_hangs_without_it(
    project: Path, team: list[Worker], recordings: Recordings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.mutation.campaign.LIMIT_LEAST_S", 1.0)
    monkeypatch.setattr("tests.mutation.campaign.LIMIT_FACTOR", 0.0)
    population = Population(project, ["bkspark/*.py"])
    campaign = Campaign(population, recordings, tmp_path / "results.jsonl", mutant_s=100.0)
    hang = team[0].tree.parent / "hang"
    hang.touch()
    try:
        verdict = campaign.judge(team[0], mutant_of(population, "number -= 1 -> pass"))
    finally:
        hang.unlink()
    assert (verdict.killed, verdict.how) == (False, "survived")


def test_control_run_that_fails_is_reported(
    project: Path, team: list[Worker], recordings: Recordings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails without a mutant must not pass for a kill: the test is planted among those that passed."""
    monkeypatch.setattr("tests.mutation.campaign.CONTROL_EVERY", 1)
    for loaded in recordings._loaded.values():
        for facts in loaded["tests"].values():
            facts["passed"] = True
    population = Population(project, ["bkspark/*.py"])
    campaign = Campaign(population, recordings, tmp_path / "results.jsonl", mutant_s=100.0)
    campaign.run(team, [mutant_of(population, "number > most -> number >= most")], 100.0, lambda text: None)
    assert campaign.controls == 1
    assert "test_that_fails_without_any_mutant" in campaign.broken_controls[0]


def test_recording_holds_while_nothing_changes_that_its_tests_execute(
    project: Path, recordings: Recordings, tmp_path: Path
) -> None:
    shutil.copytree(project, tmp_path / "copy")
    (file,) = files_of_tests(project, ("tests/small",), ())
    folder = recordings.path(file).parent
    source = tmp_path / "copy" / "bkspark" / "sums.py"

    def is_recorded() -> bool:
        return Recordings(folder, tmp_path / "copy").load(file)

    assert is_recorded()
    source.write_text(_PRODUCT.replace("return a * 2", "return a * 3"))
    assert is_recorded(), "no test executes that function"
    moved = _PRODUCT.replace("def countdown", "# moved\n\n\ndef countdown").replace("number -= 1", "number -= 2")
    source.write_text(moved)
    assert not is_recorded()
    source.write_text(_PRODUCT)
    (tmp_path / "copy" / file).write_text(_TESTS + "\n")
    assert not is_recorded()


def test_workers_that_are_asked_to_end_leave_nothing(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with workers(1, project) as (worker,):
        pid = worker._process.pid
        assert worker.tree.is_dir()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_worker_whose_parent_is_killed_in_the_middle_of_a_job_leaves_nothing(project: Path, tmp_path: Path) -> None:
    (project / "tests" / "small" / "hang.py").write_text("import time\n\n\ndef test_hang():\n    time.sleep(600)\n")
    program = (
        "import sys; from pathlib import Path; from tests.mutation.campaign import workers\n"
        "with workers(1, Path(sys.argv[1])) as (worker,):\n"
        "    print(worker._process.pid, flush=True)\n"
        "    worker.run([('tests/small/hang.py::test_hang', 600.0)])\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(project)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        wait_until(lambda: list(tmp_path.glob("*/*/tmp/job-*/base")) != [], "the job to run")
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: list(tmp_path.iterdir()) == [] and not Path(f"/proc/{pid}").exists(), "the worker to end")
