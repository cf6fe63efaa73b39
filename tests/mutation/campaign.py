"""Runs mutants against the tests that execute them: each worker has a copy of the tree of its own.

Tests come cheapest first, in rounds: most mutants die in the first one, which imports few files. Whether a test failed
because of the mutant is checked where it may have another reason: one that took too long must pass without the mutant
and take too long with it once more. Every `CONTROL_EVERY`th mutant is preceded by a run without any, which must pass.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.mutation.operators import Mutant
from tests.mutation.population import Population
from tests.mutation.recording import CoveringTest, Recordings
from tests.mutation.trees import ROOT, copy_tree, environment

CONTROL_EVERY = 50
LIMIT_FACTOR = 6.0
LIMIT_LEAST_S = 15.0
"""Time limit of a test before it counts as hanging: seconds, or a multiple of its time under coverage."""
_ROUNDS_S = (1.0, 4.0, 20.0)
"""Up to where the tests of the first rounds add up; the last round has the rest."""
_FILE_S = 0.15
"""What importing one more file of tests takes."""
_KILLER_S = 1.0
_RECORDING_S = 900.0
_RECORDINGS = 2
"""CPython 3.11 sometimes ends a new thread under coverage ("another trace function is being installed"). A test that
waits for what it does hangs, or fails."""


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant."""

    id: str
    killed: bool
    how: str
    """`failed`, `timeout`, `crashed`, `flooded`; of a survivor `survived`, `too costly` or `not executed`."""
    test: str | None
    detail: str
    seconds: float
    tests: int
    """That were run."""
    left_out: int
    """Tests that execute the mutant and were not run, as they would have taken too long."""


class Worker:
    """A process with a copy of the tree; see `tests.mutation.worker`."""

    def __init__(self, room: Path, root: Path) -> None:
        self.tree = room / "tree"
        copy_tree(self.tree, root)
        (room / "tmp").mkdir()
        variables = {**environment(self.tree), "TMPDIR": str(room / "tmp")}
        self._errors = (room / "errors").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutation.worker"],
            cwd=self.tree,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )

    def run(
        self,
        tests: list[tuple[str, float]],
        change: dict[str, str] | None = None,
        record: Path | None = None,
        markers: str = "",
    ) -> dict[str, Any]:
        """Run one job and return its answer; `markers`, pytest's expression, chooses among tests that are recorded."""
        job = {"change": change, "tests": tests, "record": str(record) if record else None, "markers": markers}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise RuntimeError(f"a worker ended: {self._errors.read()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the worker; what it was running dies with it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


@contextlib.contextmanager
def workers(count: int, root: Path = ROOT) -> Iterator[list[Worker]]:
    """Start workers on copies of a tree in a temporary folder; end them and remove it, also upon SIGTERM."""

    def stop(number: int, _: object) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = signal.signal(signal.SIGTERM, stop)
    room = Path(tempfile.mkdtemp(prefix="bkspark-mutation-"))
    started: list[Worker] = []
    try:
        for number in range(count):
            (room / str(number)).mkdir()
            started.append(Worker(room / str(number), root))
        yield started
    finally:
        for worker in started:
            worker.close()
        shutil.rmtree(room, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)


def record(
    team: list[Worker], recordings: Recordings, files: list[str], say: Callable[[str], None], markers: str = ""
) -> None:
    """Record test files; a file that cannot be run is an error. `markers`: pytest's expression, if not all tests count.

    Raises:
        RuntimeError: tests of a file could not be run.
    """

    def one(worker: Worker, file: str) -> None:
        for _ in range(_RECORDINGS):
            answer = worker.run([(file, _RECORDING_S)], record=recordings.path(file), markers=markers)
            if recordings.load(file, accept_stale=True):
                break
        else:
            raise RuntimeError(f"{file} cannot be recorded: {answer['outcome']} {answer['detail']}")
        say(f"recorded {file} in {answer['seconds']:.0f} s")

    _share(team, files, one)


class Campaign:
    """Runs mutants and writes what became of each to a file, a line each; one that is there is not run again."""

    def __init__(
        self,
        population: Population,
        recordings: Recordings,
        results: Path,
        mutant_s: float,
        against: Sequence[str] = (),
    ) -> None:
        """`mutant_s`: how long the tests of one mutant may take, by their recordings. `against`: only these files."""
        self._against = [CoveringTest(file, _RECORDING_S) for file in against]
        self._population = population
        self._recordings = recordings
        self._results = results
        self._mutant_s = mutant_s
        self._writing = threading.Lock()
        self._killers: dict[str, Counter[str]] = {}
        self.verdicts: dict[str, Verdict] = {}
        self.controls = 0
        self.broken_controls: list[str] = []

    def resume(self, mutants: list[Mutant], *, again: bool) -> None:
        """Take what the file knows of these mutants; with `again` survivors are forgotten."""
        wanted = {mutant.id for mutant in mutants}
        if not self._results.exists():
            return
        for line in self._results.read_text().splitlines():
            verdict = Verdict(**json.loads(line))
            if verdict.id in wanted:
                self.verdicts[verdict.id] = verdict
        if again:
            self.verdicts = {name: verdict for name, verdict in self.verdicts.items() if verdict.killed}
        for mutant in mutants:
            if mutant.id in self.verdicts:
                self._note_killer(mutant, self.verdicts[mutant.id])

    def _note_killer(self, mutant: Mutant, verdict: Verdict) -> None:
        if verdict.killed and verdict.test:
            self._killers.setdefault(mutant.module, Counter())[verdict.test] += 1

    def run(self, team: list[Worker], mutants: list[Mutant], budget_s: float, say: Callable[[str], None]) -> None:
        """Run the mutants that are not known yet, until the budget is spent."""
        until = time.monotonic() + budget_s
        waiting = [mutant for mutant in mutants if mutant.id not in self.verdicts]

        def one(worker: Worker, numbered: tuple[int, Mutant]) -> None:
            number, mutant = numbered
            if time.monotonic() >= until:
                return
            if number % CONTROL_EVERY == CONTROL_EVERY - 1:
                self._control(worker, mutant)
            verdict = self.judge(worker, mutant)
            with self._writing, self._results.open("a") as file:
                self.verdicts[mutant.id] = verdict
                self._note_killer(mutant, verdict)
                file.write(json.dumps(asdict(verdict)) + "\n")
            say(f"{len(self.verdicts)} {verdict.how} in {verdict.seconds:.1f} s: {mutant.id} {mutant}")

        _share(team, list(enumerate(waiting)), one)

    def _control(self, worker: Worker, mutant: Mutant) -> None:
        """Run a mutant's tests without it."""
        killed, _, answer = self._rounds(worker, self._chosen(mutant)[0], None)
        with self._writing:
            self.controls += 1
            if killed:
                self.broken_controls.append(f"{answer['test']}: {answer['outcome']} {answer['detail']}")

    def _chosen(self, mutant: Mutant) -> tuple[list[CoveringTest], int]:
        if self._against:
            return self._against, 0
        tests = self._recordings.executing(mutant.module, mutant.lines)
        killers = self._killers.setdefault(mutant.module, Counter())
        files = {test.name.partition("::")[0] for test in tests}
        direct = {file for file in files if _is_about(file, mutant.module)}

        def closeness(test: CoveringTest) -> tuple[int, bool]:
            # What has killed others of this module comes first, then the module's own tests: they look closely.
            return -killers[test.name], test.name.partition("::")[0] not in direct

        tests.sort(
            key=lambda test: (*(closeness(test) if test.seconds < _KILLER_S else (0, True)), test.seconds, test.name)
        )
        chosen, total = [], 0.0
        for test in tests:
            total += test.seconds
            if chosen and total > self._mutant_s:
                break
            chosen.append(test)
        return chosen, len(tests) - len(chosen)

    def judge(self, worker: Worker, mutant: Mutant) -> Verdict:
        """Run a mutant against its tests."""
        began = time.monotonic()
        tests, left_out = self._chosen(mutant)
        if not tests:
            return Verdict(mutant.id, False, "not executed", None, "no test executes it", 0.0, 0, 0)
        change = {"path": mutant.module, "text": self._population.changed(mutant).decode()}
        killed, run, answer = self._rounds(worker, tests, change)
        how = answer["outcome"] if killed else "too costly" if left_out else "survived"
        seconds = round(time.monotonic() - began, 2)
        detail = answer["detail"] if killed else ""
        return Verdict(mutant.id, killed, how, answer["test"], detail, seconds, run, left_out)

    def _rounds(
        self, worker: Worker, tests: list[CoveringTest], change: dict[str, str] | None
    ) -> tuple[bool, int, dict[str, Any]]:
        """Return whether a test failed, how many were run, and the last answer."""
        run = 0
        answer: dict[str, Any] = {"test": None, "outcome": "passed", "detail": ""}
        waiting = [part for part in _in_rounds(tests) if part]
        while waiting:
            part = waiting.pop(0)
            limits = [(test.name, max(LIMIT_LEAST_S, LIMIT_FACTOR * test.seconds)) for test in part]
            answer = worker.run(limits, change)
            run += answer["passed"]
            if answer["outcome"] == "passed":
                continue
            run += 1
            slow = [limit for limit in limits if limit[0] == answer["test"]]
            is_slow = answer["outcome"] == "timeout" and slow and change is not None
            if is_slow and not (worker.run(slow)["outcome"] == "passed" and _hangs(worker, slow, change)):
                # It is slow without the mutant, or was so by chance: the other tests decide.
                rest = [test for test in part if test.name != answer["test"]][answer["passed"] :]
                waiting[:0] = [rest] if rest else []
                answer = {"test": None, "outcome": "passed", "detail": ""}
                continue
            return True, run, answer
        return False, run, answer

    def report(self, mutants: list[Mutant]) -> dict[str, Any]:
        """Return the numbers, and each survivor."""
        verdicts = [self.verdicts[mutant.id] for mutant in mutants if mutant.id in self.verdicts]
        survivors = [verdict for verdict in verdicts if not verdict.killed]
        return {
            "population": len(self._population.mutants),
            "sampled": len(mutants),
            "run": len(verdicts),
            "killed": len(verdicts) - len(survivors),
            "killed_by": dict(Counter(verdict.how for verdict in verdicts if verdict.killed)),
            "survived": len(survivors),
            "survived_how": dict(Counter(verdict.how for verdict in survivors)),
            "score": round(1 - len(survivors) / len(verdicts), 4) if verdicts else None,
            "controls": self.controls,
            "broken_controls": self.broken_controls,
        }


def _hangs(worker: Worker, slow: list[tuple[str, float]], change: dict[str, str] | None) -> bool:
    return bool(worker.run(slow, change)["outcome"] == "timeout")


def _is_about(file: str, module: str) -> bool:
    """Say whether a file of tests has the name of a module, or nearly so."""
    name = Path(module).stem.removesuffix("s")
    return name in Path(file).stem


def _in_rounds(tests: list[CoveringTest]) -> list[list[CoveringTest]]:
    rounds: list[list[CoveringTest]] = [[] for _ in range(len(_ROUNDS_S) + 1)]
    total, files = 0.0, set[str]()
    for test in tests:
        file = test.name.partition("::")[0]
        total += test.seconds + (0.0 if file in files else _FILE_S)
        files.add(file)
        rounds[sum(total > limit for limit in _ROUNDS_S)].append(test)
    return rounds


def _share(team: list[Worker], items: list[Any], act: Callable[[Worker, Any], None]) -> None:
    """Let workers take items in order, each from a thread of its own; the first error ends all."""
    waiting, failures = iter(items), list[BaseException]()
    taking = threading.Lock()

    def work(worker: Worker) -> None:
        while not failures:
            with taking:
                item = next(waiting, None)
            if item is None:
                return
            try:
                act(worker, item)
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in team]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def default_processes() -> int:
    """Return half of the cores: tests start threads and processes of their own."""
    return max(1, (os.cpu_count() or 2) // 2)
