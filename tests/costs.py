"""What each test costs: `python -m tests.costs [--top 40] [--out FILE] [pytest's arguments]`.

Runs pytest. Prints the wall time and the processor time of each folder, of each group of tests that share processes,
and of the most costly files and tests. Processor time is that of pytest's process and of all processes below it,
running or ended: clusters and JVMs count. A fixture that tests share counts for the test that needed it first.

`--read FILE` prints the tables of a file that `--out` wrote. `--compare FILE` adds the figures of an earlier file in
parentheses.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

_FILE = "BKSPARK_TEST_COSTS"
"""Environment variable: the file to which each of pytest's processes appends."""
_PROC = Path("/proc")
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cost:
    """What one test cost, with its set-up and tear-down, in seconds."""

    test: str
    group: str
    wall: float
    own: float
    """Processor time of pytest's process."""
    below: float
    """Processor time of the processes that it started."""

    @property
    def processor(self) -> float:
        return self.own + self.below

    @property
    def folder(self) -> str:
        return self.test.partition("::")[0].rpartition("/")[0]

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]


def _own_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _below_s() -> float:
    """Return the processor time of all processes below this one, those that have ended and were waited for included."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime + sum(map(_tree_s, _children(os.getpid())))


def _tree_s(pid: int) -> float:
    try:
        facts = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0  # it has just ended: its parent counts it
    return sum(map(int, facts[11:15])) / _TICKS_A_SECOND + sum(map(_tree_s, _children(pid)))


def _children(pid: int) -> Iterator[int]:
    for file in (_PROC / str(pid) / "task").glob("*/children"):
        try:
            yield from map(int, file.read_text().split())
        except OSError:
            continue


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Append a line for each test to the file."""
    wall, own, below = time.monotonic(), _own_s(), _below_s()
    try:
        return (yield)
    finally:
        marker = item.get_closest_marker("xdist_group")
        cost = Cost(
            item.nodeid.partition("@")[0],
            str(marker.args[0]) if marker else "",
            round(time.monotonic() - wall, 4),
            round(_own_s() - own, 4),
            # A process that ended without being waited for is no longer counted.
            round(max(_below_s() - below, 0.0), 4),
        )
        with open(os.environ[_FILE], "a") as file:
            file.write(json.dumps(asdict(cost)) + "\n")


def read(path: Path) -> list[Cost]:
    """Return the costs that a run wrote."""
    return [Cost(**json.loads(line)) for line in path.read_text().splitlines()]


def tables(costs: list[Cost], top: int, before: list[Cost] | None = None) -> Iterator[str]:
    """Yield the lines of the tables, the most costly first; with `before` also what each row cost earlier."""
    yield from _table("folder", costs, before, lambda cost: cost.folder)
    yield from _table("group of shared processes", costs, before, lambda cost: cost.group or "(none)")
    yield from _table("file", costs, before, lambda cost: cost.file, top)
    yield from _table("test", costs, before, lambda cost: cost.test, top)


def _table(
    title: str, costs: list[Cost], before: list[Cost] | None, key: Callable[[Cost], str], top: int | None = None
) -> Iterator[str]:
    now, then = _sums(costs, key), _sums(before or [], key)
    heads = ["tests", "wall s", "processor s"]
    if before is not None:
        heads += [f"({head})" for head in heads]

    def row(name: str, figures: Iterable[float]) -> str:
        return " ".join(f"{figure:>13,.1f}" for figure in figures) + f"  {name}"

    yield ""
    yield " ".join(f"{head:>13}" for head in heads) + f"  {title}"
    for name in sorted({*now, *then}, key=lambda name: -max(now[name][2], then[name][2]))[:top]:
        yield row(name, now[name] + (() if before is None else then[name]))
    yield row("together", _total(now.values()) + (() if before is None else _total(then.values())))


def _sums(costs: Iterable[Cost], key: Callable[[Cost], str]) -> defaultdict[str, tuple[float, float, float]]:
    sums: defaultdict[str, tuple[float, float, float]] = defaultdict(lambda: (0, 0.0, 0.0))
    for cost in costs:
        tests, wall, processor = sums[key(cost)]
        sums[key(cost)] = (tests + 1, wall + cost.wall, processor + cost.processor)
    return sums


def _total(rows: Iterable[tuple[float, float, float]]) -> tuple[float, ...]:
    return tuple(map(sum, zip(*rows))) or (0, 0.0, 0.0)


def main(arguments: list[str]) -> int:
    """Run pytest, or read what a run wrote, and print the tables; return pytest's exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.costs", description=__doc__, allow_abbrev=False)
    parser.add_argument("--top", type=int, default=40, help="how many files and tests")
    parser.add_argument("--out", type=Path, help="append one line for each test to this file")
    parser.add_argument("--read", type=Path, help="run no test, read this file")
    parser.add_argument("--compare", type=Path, help="a file of an earlier run")
    options, rest = parser.parse_known_args(arguments)
    code = 0
    with tempfile.TemporaryDirectory() as room:
        path = options.read or (options.out or Path(room) / "costs.jsonl").absolute()
        if options.read is None:
            path.touch()
            os.environ[_FILE] = str(path)
            code = pytest.main(["-p", "tests.costs", *rest])
        costs = read(path)
    # `| head` ends it in silence.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for line in tables(costs, options.top, read(options.compare) if options.compare else None):
        print(line)
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
