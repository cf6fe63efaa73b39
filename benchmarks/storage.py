"""All figures of a bookie's storage, beside their targets and the machine's limits, as one JSON object.

    python benchmarks/storage.py [--only SECTION]... [--quick] [--rounds N] [--scale F] [--dir DIR] [--table]
                                 [--profile FILE]

Each figure is the median of its rounds; a share or a ratio is computed within each round. Real bookies and a real
ZooKeeper, in a folder that is removed. The last measurements are in README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import storage_scale, storage_speed
from benchmarks.arguments import above_zero
from benchmarks.figures import FULL, results_of, table
from benchmarks.servers import Servers
from bkspark.cli.arguments import positive

SECTIONS = storage_speed.SECTIONS | storage_scale.SECTIONS
FIGURES = (*storage_speed.FIGURES, *storage_scale.FIGURES)
QUICK_ROUNDS, QUICK_SCALE = 2, 0.2


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(argv)
    sizes = FULL.scaled(
        arguments.scale or (QUICK_SCALE if arguments.quick else 1.0),
        arguments.rounds or (QUICK_ROUNDS if arguments.quick else FULL.rounds),
    )
    load_before = os.getloadavg()[0]
    rounds: list[dict[str, float]] = []
    seconds: dict[str, float] = {}
    with Servers(arguments.dir, arguments.profile) as servers:
        for name in arguments.only or SECTIONS:
            print(f"{name} ...", file=sys.stderr, flush=True)
            began = time.perf_counter()
            rounds += SECTIONS[name](servers, sizes)
            seconds[name] = round(time.perf_counter() - began, 1)
    figures = results_of(FIGURES, rounds)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load_before": round(load_before, 2)}
    print(json.dumps({"machine": machine, "sizes": vars(sizes), "section_s": seconds, "figures": figures}))
    if arguments.table:
        print(table(figures), file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", choices=list(SECTIONS), help="this section; may be repeated")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds, sizes times {QUICK_SCALE:g}")
    parser.add_argument("--rounds", type=positive, help=f"rounds of each section (default: {FULL.rounds})")
    parser.add_argument("--scale", type=above_zero, help="multiply all sizes by this")
    parser.add_argument("--dir", type=Path, help="where to write (default: the temporary folder)")
    parser.add_argument("--table", action="store_true", help="print a Markdown table on stderr, too")
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="write the event loop's profile of the last bookie"
    )
    return parser


if __name__ == "__main__":
    # The folder goes in any case.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
