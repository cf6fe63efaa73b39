"""`python -m tests.fuzzing`: hostile bytes for every decoder.

    --seconds S                   divide this time among the targets (default 60)
    --executions N                or run this many inputs of all targets together, the same number of each
    --target TEXT                 only targets whose name contains the text; may be given several times
    --processes P                 targets that run at the same time (default: half of the cores)
    --seed N                      of the random source (default 1)
    --json                        one JSON object on stdout
    --list                        print the targets
    --replay TARGET FILE          run one input and show what becomes of it
    --keep-corpus                 afterwards keep, in the repository, inputs that reached something new
    --findings DIR                where failing inputs are written (default .fuzzing)

Exit code 0 when no input did anything that its target does not allow, 1 when one did. docs/fuzzing.md has the targets.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzzing import engine
from tests.fuzzing.engine import Outcome

ROOT = Path(__file__).parent.parent.parent
_SECONDS_MAX = 24 * 3600.0
_CORPUS_BYTES_MAX = 24_000
_CORPUS_INPUTS_MAX = 150
"""Inputs of one target in the repository: each run of the tests executes all of them."""

_atheris = None
_targets: dict[str, Any] = {}


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    global _atheris, _targets
    _atheris = engine.atheris_or_none()
    _targets = engine.import_targets(_atheris)
    if options.list:
        for name in _targets:
            print(name)
        return 0
    if options.replay:
        name, file = options.replay
        print("accepted" if _targets[name].execute(Path(file).read_bytes()) else "refused, as it should be")
        return 0
    names = [name for name in _targets if not options.target or any(text in name for text in options.target)]
    if not names:
        print("no target is chosen", file=sys.stderr)
        return 1
    began = time.monotonic()
    seconds = options.seconds if not options.executions else _SECONDS_MAX
    share = seconds * options.processes / len(names) if not options.executions else _SECONDS_MAX
    jobs = [(name, options.seed, share, -(-options.executions // len(names)), options.keep_corpus) for name in names]
    outcomes = []
    for outcome in _outcomes(jobs, options.processes):
        outcomes.append(outcome)
        print(
            f"{outcome.target:28} {outcome.executions:10} in {outcome.seconds:7.1f} s, {outcome.covered} places"
            + (" FAILED" if outcome.failure else ""),
            file=sys.stderr,
            flush=True,
        )
        _keep(outcome, options)
    return _report(outcomes, options, time.monotonic() - began)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--executions", type=int, default=0)
    parser.add_argument("--target", action="append", default=[])
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--replay", nargs=2, metavar=("TARGET", "FILE"))
    parser.add_argument("--keep-corpus", action="store_true")
    parser.add_argument("--findings", type=Path, default=ROOT / ".fuzzing")
    options = parser.parse_args(arguments)
    if options.seconds <= 0 or options.executions < 0 or options.processes < 1:
        parser.error("--seconds and --processes must be above 0, --executions not below")
    return options


def _outcomes(jobs: list[tuple[str, int, float, int, bool]], processes: int) -> Iterator[Outcome]:
    # Forked: each has the instrumented targets as they were imported here, once.
    with multiprocessing.get_context("fork").Pool(processes, engine.die_with_parent) as pool:
        yield from pool.imap_unordered(_run, jobs, chunksize=1)


def _run(job: tuple[str, int, float, int, bool]) -> Outcome:
    name, seed, seconds, executions, keeps = job
    return engine.run(_targets[name], _atheris, seed, seconds=seconds, executions=executions, keeps_corpus=keeps)


def _keep(outcome: Outcome, options: argparse.Namespace) -> None:
    if outcome.failure is not None:
        print(outcome.failure, file=sys.stderr)
        if outcome.failing_input is not None:
            options.findings.mkdir(parents=True, exist_ok=True)
            path = options.findings / f"{outcome.target}-{options.seed}.bin"
            path.write_bytes(outcome.failing_input)
            print(f"{len(outcome.failing_input)} bytes: {path}", file=sys.stderr)
    elif options.keep_corpus and outcome.corpus:
        kept, total = [], 0
        # Inputs of all lengths: the shortest alone would be refused at once.
        step = max(1, -(-len(outcome.corpus) // _CORPUS_INPUTS_MAX))
        for data in sorted(set(outcome.corpus), key=lambda it: (len(it), it))[::step]:
            total += len(data) * 4 // 3 + 5
            if total <= _CORPUS_BYTES_MAX:
                kept.append(data)
        engine.write_corpus(outcome.target, kept)


def _report(outcomes: list[Outcome], options: argparse.Namespace, seconds: float) -> int:
    failed = sorted(outcome.target for outcome in outcomes if outcome.failure)
    report = {
        "engine": "atheris" if _atheris else "random",
        "seed": options.seed,
        "seconds": round(seconds, 1),
        "executions": sum(outcome.executions for outcome in outcomes),
        "targets": {outcome.target: outcome.executions for outcome in sorted(outcomes, key=lambda it: it.target)},
        "failed": failed,
    }
    if options.json:
        print(json.dumps(report))
    else:
        print(
            f"{report['executions']} executions of {len(outcomes)} targets by {report['engine']}, {len(failed)} failed"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
