"""What floods do to an honest client of a bookie, to the bookie's memory and to its log.

    python -m tests.floods [--flood NAME ...] [--seconds S] [--rounds N] [--dir DIR] [--first] [--json]
                           [--list]

An honest client adds and reads 1 KiB at a time, alone, beside the flood against a sink, and beside it against a real
bookie (`measure`). The exit code is 1 when, beside a flood, its p99 is above 2 times the quiet one, the bookie's memory
is above its budgets, or its log gets more than 10 lines a second.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.floods.measure import FLOODS, Result, as_json, measure


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.floods", description=__doc__.split("\n")[0])
    parser.add_argument("--flood", nargs="+", choices=list(FLOODS), default=list(FLOODS), metavar="NAME")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (default: 5)")
    parser.add_argument("--rounds", type=int, default=3, help="of each flood (default: 3)")
    parser.add_argument("--dir", type=Path, help="where the bookies' folders are made")
    parser.add_argument("--first", action="store_true", help="put the bookie before other work of the machine")
    parser.add_argument("--json", action="store_true", help="print one JSON object a flood")
    parser.add_argument("--list", action="store_true", help="print the names of the floods")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(FLOODS))
        return 0
    is_broken = False
    if not options.json:
        print(_HEAD)
    for result in measure(options.flood, options.seconds, options.rounds, options.dir, goes_first=options.first):
        print(json.dumps(as_json(result)) if options.json else _row(result), flush=True)
        is_broken = is_broken or bool(result.broken)
    return 1 if is_broken else 0


_HEAD = """| Flood | add p99, ms: quiet, sink, flood | ratio | read p99, ms | ratio | memory | lines/s | |
|---|---|---|---|---|---|---|---|"""


def _row(result: Result) -> str:
    cells = [result.name]
    for operation in ("add", "read"):
        cells.append(", ".join(f"{result.median(which, operation):.2f}" for which in ("quiet", "sink", "flood")))
        cells.append(f"{result.ratio(operation):.2f}")
    cells += [f"{result.rss_bytes / 2**20:+.0f} MiB", f"{result.log_lines_per_s:.1f}", "; ".join(result.broken)]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
