"""Histories of real runs, judged by a linearizability checker (docs/histories.md).

    python -m tests.histories [--seed N] [--budget SECONDS]   run tests.chaos so long, and judge what its clients saw
    python -m tests.histories --judge FILE                    judge a history that was recorded before

Both judge hand-made histories and runs with planted defects, too, which must be distinguished from correct ones;
`--no-planted` leaves these out. `--keep FOLDER` keeps the histories, and a page about each one that is not
linearizable. Exit codes:
0 all is as it must be, 1 it is not or the verdict is unknown, 2 usage or a file that is not a history, 3 the judge
needs a Go that is not installed, or porcupine, which cannot be fetched.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.chaos.campaign import run_campaign
from tests.cluster import Cluster
from tests.histories import planted, planted_runs
from tests.histories.judging import JudgeMissing, build, judge

BUDGET_S = 45.0
"""Seconds of faults; starting, healing and the last read take some 15 seconds."""


LIMIT_S = 60.0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.histories", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", type=float, default=BUDGET_S, help=f"seconds of faults (default: {BUDGET_S:g})")
    parser.add_argument("--judge", type=Path, metavar="FILE", help="judge this history instead of recording one")
    parser.add_argument(
        "--limit", type=float, default=LIMIT_S, help=f"seconds for each ledger and log (default: {LIMIT_S:g})"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the histories there")
    parser.add_argument("--no-planted", action="store_true", help="leave planted defects out")
    options = parser.parse_args(arguments)
    if options.judge is not None and not options.judge.is_file():
        parser.error(f"--judge {str(options.judge)!r} is not a file; name a history that tests.chaos --history wrote")
    with tempfile.TemporaryDirectory(prefix="bkspark-histories-") as temporary:
        folder = Path(temporary) if options.keep is None else options.keep
        folder.mkdir(parents=True, exist_ok=True)
        try:
            program = build(Path(temporary))
            is_right = _judge_run(program, folder, options)
        except JudgeMissing as missing:
            print(f"histories are not judged: {missing}", file=sys.stderr)
            return 3
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
        if not options.no_planted:
            is_right &= _judge_scripts(program, folder)
            is_right &= _judge_planted_runs(program, folder)
    return 0 if is_right else 1


def _judge_run(program: Path, folder: Path, options: argparse.Namespace) -> bool:
    history, found = options.judge, []
    if history is None:
        history = folder / "chaos.jsonl"
        with tempfile.TemporaryDirectory(prefix="bkspark-chaos-") as directory:
            report = run_campaign(Path(directory), options.seed, options.budget, history=history)
        found = report.violations
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(report.faults.items()))
        print(f"seed {report.seed}, {report.seconds:g} s, {report.acknowledged} entries acknowledged; faults: {faults}")
    verdict = judge(program, history, pictures=folder, limits=["-limit", str(options.limit)])
    print(f"{history.name}: {history.stat().st_size / 1e6:.1f} MB")
    for line in [*found, *verdict.lines()]:
        print(f"  {line}")
    return verdict.is_linearizable and verdict.operations > 0 and not found


def _judge_scripts(program: Path, folder: Path) -> bool:
    """Judge the histories made by hand: correct ones are linearizable, and each defect is named."""
    is_right, history = True, folder / "script.jsonl"
    for script in planted.CORRECT:
        planted.write(history, script)
        is_right &= _printed(script.__name__.replace("_", " "), judge(program, history).reasons, None)
    for script, complaint in planted.DEFECTS:
        planted.write(history, script)
        is_right &= _printed(script.__name__.replace("_", " "), judge(program, history).reasons, complaint)
    return is_right


def _judge_planted_runs(program: Path, folder: Path) -> bool:
    """Run each scenario on real bookies as the product is, and with its defect."""
    is_right = True
    temporary = tempfile.TemporaryDirectory(prefix="bkspark-planted-")
    with temporary as directory, Cluster(Path(directory), planted_runs.BOOKIES) as cluster:
        for scenario in planted_runs.SCENARIOS:
            for is_planted in (False, True):
                history = planted_runs.run(folder, scenario, cluster, is_planted)
                reasons = judge(program, history).reasons
                name = f"real run, {'planted' if is_planted else 'without'}: {scenario.name}"
                is_right &= _printed(name, reasons, scenario.complaint if is_planted else None)
    return is_right


def _printed(name: str, reasons: list[str], complaint: str | None) -> bool:
    """Print what the judge said, and return whether it is what it must say: nothing, or that complaint alone."""
    if complaint is None:
        is_right, said = not reasons, "linearizable"
    else:
        is_right, said = len(reasons) == 1 and complaint in reasons[0], "NOT FOUND"
    print(f"  {'ok   ' if is_right else 'WRONG'} {name}: {'; '.join(reasons) or said}", flush=True)
    return is_right


if __name__ == "__main__":
    sys.exit(main())
