"""Long runs: all schedules of a range of seeds, in several processes, with progress, and resumed where they ended.

    python -m tests.simulation.ranges KIND --seed N --schedules K [--processes P] [--state FILE] [--json]

KIND is protocol, relaxed, full, gray, tails or logs. The range [N, N + K) is cut into chunks. With --state each
chunk is written to the file: the same command goes on where an earlier one was ended, and ranges that were run on
several machines are added up by `--sum FILE...`. A line of progress goes to stderr every ten seconds. The exit code is
1 when a checker found something.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.simulation.campaign import COLLECT_EVERY, Tally
from tests.simulation.full_gray import GraySchedule
from tests.simulation.full_logs import LogSchedule
from tests.simulation.full_schedule import FullSchedule
from tests.simulation.full_tails import TailSchedule
from tests.simulation.plan import Plan, plan_of, relaxed_plan_of
from tests.simulation.schedule import run_plan

CHUNKS = {"protocol": 500, "relaxed": 500, "full": 50, "gray": 10, "tails": 20, "logs": 20}
"""Schedules of a chunk, by kind: what is lost when a run is ended."""
PROGRESS_S = 10.0


def run_chunk(kind: str, first: int, count: int) -> Tally:
    """Run the schedules of consecutive seeds."""
    tally = Tally()
    gc.disable()
    try:
        for seed in range(first, first + count):
            RUNS[kind](seed, tally)
            if seed % COLLECT_EVERY == 0:
                gc.collect()
    finally:
        gc.enable()
    return tally


def _run_protocol(plans: Callable[[int], Plan]) -> Callable[[int, Tally], None]:
    def run(seed: int, tally: Tally) -> None:
        plan = plans(seed)
        tally.count(seed, run_plan(plan), plan.is_control)

    return run


def _run_full(kind: Callable[[int], FullSchedule]) -> Callable[[int, Tally], None]:
    def run(seed: int, tally: Tally) -> None:
        schedule = kind(seed)
        tally.count(seed, schedule.run(), schedule.theme == "control")

    return run


RUNS: dict[str, Callable[[int, Tally], None]] = {
    "protocol": _run_protocol(plan_of),
    "relaxed": _run_protocol(relaxed_plan_of),
    "full": _run_full(FullSchedule),
    "gray": _run_full(GraySchedule),
    "tails": _run_full(TailSchedule),
    "logs": _run_full(LogSchedule),
}


class State:
    """The finished chunks of one range: a file of JSON lines, the first of which says what the range is."""

    def __init__(self, path: Path | None, kind: str, first: int, count: int) -> None:
        """Read what an earlier run left.

        Raises:
            SystemExit: the file is that of another range.
        """
        self._path = path
        self.done: dict[int, Tally] = {}
        head = {"kind": kind, "seed": first, "schedules": count, "chunk": CHUNKS[kind]}
        if path is None:
            return
        if path.exists():
            text = path.read_text()
            lines = text.splitlines()
            if not lines or lines[0] != json.dumps(head):
                raise SystemExit(f"{path} is the state of another run: {lines[0] if lines else 'it is empty'}")
            if not text.endswith("\n"):
                # A run that was ended while it wrote left a part of a line: that chunk is run again.
                lines.pop()
                path.write_text("".join(f"{line}\n" for line in lines))
            self.done = {chunk["first"]: _tally_of(chunk["tally"]) for chunk in map(json.loads, lines[1:])}
        else:
            path.write_text(json.dumps(head) + "\n")

    def add(self, first: int, tally: Tally) -> None:
        """Note a finished chunk."""
        self.done[first] = tally
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps({"first": first, "tally": _data_of(tally)}) + "\n")

    def total(self) -> Tally:
        """Return what all finished chunks came to."""
        tally = Tally()
        for first in sorted(self.done):
            tally.add(self.done[first])
        return tally


def _data_of(tally: Tally) -> dict[str, Any]:
    return {it.name: getattr(tally, it.name) for it in dataclasses.fields(tally)}


def _tally_of(data: dict[str, Any]) -> Tally:
    failing = {int(seed): found for seed, found in data["failing"].items()}
    return Tally(**{**data, "shares": Counter(data["shares"]), "faults": Counter(data["faults"]), "failing": failing})


def _chunks(kind: str, first: int, count: int) -> Iterator[tuple[str, int, int]]:
    size = CHUNKS[kind]
    for begin in range(first, first + count, size):
        yield kind, begin, min(size, first + count - begin)


def _run_one(chunk: tuple[str, int, int]) -> tuple[int, Tally]:
    logging.disable()
    return chunk[1], run_chunk(*chunk)


def run_range(state: State, kind: str, first: int, count: int, processes: int) -> None:
    """Run the chunks that are not finished."""
    todo = [chunk for chunk in _chunks(kind, first, count) if chunk[1] not in state.done]
    began = reported = time.monotonic()
    before = sum(tally.runs for tally in state.done.values())
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for begin, tally in pool.imap_unordered(_run_one, todo):
            state.add(begin, tally)
            now = time.monotonic()
            if now - reported >= PROGRESS_S or len(state.done) * CHUNKS[kind] >= count:
                reported = now
                total = state.total()
                rate = (total.runs - before) / (now - began)
                left_s = (count - total.runs) / rate
                print(
                    f"{kind}: {total.runs} of {count} schedules, {total.violations} violations, {rate:.1f} a second, "
                    f"{left_s / 60:.0f} min left",
                    file=sys.stderr,
                    flush=True,
                )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.ranges", description=__doc__.split("\n")[0])
    parser.add_argument("kind", choices=sorted(CHUNKS), help="which schedules")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--schedules", type=int, default=1_000, help="how many seeds (default 1000)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one a core")
    parser.add_argument("--state", type=Path, help="a file that keeps what is done")
    parser.add_argument("--sum", type=Path, nargs="+", metavar="FILE", help="add up the states of several runs")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if options.schedules < 1 or options.processes < 1:
        parser.error("--schedules and --processes must be at least 1")
    began = time.monotonic()
    if options.sum:
        tally = Tally()
        for path in options.sum:
            head = json.loads(path.read_text().partition("\n")[0])
            tally.add(State(path, options.kind, head["seed"], head["schedules"]).total())
    else:
        state = State(options.state, options.kind, options.seed, options.schedules)
        run_range(state, options.kind, options.seed, options.schedules, options.processes)
        tally = state.total()
    report = tally.report(options.seed, time.monotonic() - began)
    print(json.dumps(report) if options.json else "\n".join(f"{name:14} {value}" for name, value in report.items()))
    return 1 if tally.violations else 0


if __name__ == "__main__":
    sys.exit(main())
