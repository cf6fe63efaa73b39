"""Real bookies and a real ZooKeeper under kills, pauses and partitions, with writers, recoverers and readers at once.

    python -m tests.chaos [--seed N] [--budget SECONDS] [--pause SECONDS] [--writers N] [--history FILE]
                          [--json]

The exit code is 1 when a checker found something.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.chaos.campaign import PAUSE_S, WRITERS, run_campaign


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--budget", type=float, default=180.0, help="seconds of faults; healing and checking come on top"
    )
    parser.add_argument("--pause", type=float, default=PAUSE_S, help=f"seconds between faults (default: {PAUSE_S})")
    parser.add_argument("--writers", type=int, default=WRITERS, help=f"at once (default: {WRITERS})")
    parser.add_argument("--history", type=Path, metavar="FILE", help="write what clients saw (docs/histories.md)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bkspark-chaos-") as directory:
        report = run_campaign(
            Path(directory),
            options.seed,
            options.budget,
            pause_s=options.pause,
            writers=options.writers,
            history=options.history,
        )
    if options.json:
        print(json.dumps(asdict(report)))
    else:
        for name, value in asdict(report).items():
            print(f"{name}: {value}")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
