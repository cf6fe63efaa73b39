"""Prints what a review of commit b2b483d measured, and the same today. `python -m tests.structure [--json]`.

Sizes come from the source text, hops from a run of the product (`tests.structure.hops`). `--trip NAME` prints the calls
of the trips whose names contain NAME, in order.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from tests.structure.hops import ROOT, hops, shown, trips
from tests.structure.sizes import sizes

REVIEWED = "b2b483d"
HOPS = "calls, functions, files, moves"
BEFORE = {
    "bkspark: lines": "25844 in 152 files",
    "bkspark: lines of a file": "149 / 337 / 561",
    "bkspark: files above 600 lines": "0",
    "bkspark: lines of a function": "4 / 15 / 41",
    "bookie_service: lines": "17378 in 115 files",
    "bookie_service: lines of a file": "119 / 329 / 545",
    "bookie_service: files above 600 lines": "0",
    "bookie_service: lines of a function": "4 / 15 / 59",
    "functions with above 6 parameters": "41",
    "public class names used twice": "19",
    "largest classes, methods": "LedgerWriter 43, WriterCore 36, Log 35, LedgerStore 34, Bookie 31",
    "methods of LedgerWriter": "43",
    "methods of WriterCore": "36",
    "import cycles": "1",
    "imports against the layers": "1",
    f"create, cold client: {HOPS}": "149, 77, 26, 90",
    f"first append, cold connection: {HOPS}": "293, 223, 56, 177",
    f"one append, warm: {HOPS}": "147, 120, 31, 94",
    f"append_many of 10, warm: {HOPS}": "207, 156, 35, 123",
    f"close: {HOPS}": "48, 37, 13, 22",
    f"first Spark partition read of a worker, 12 entries: {HOPS}": "351, 227, 57, 201",
}
"""What the review found. Spreads are median / 90th percentile / maximum.

WriterCore had two base classes and a subclass then, and the server no layers: the one import against the layers, which
made a cycle, was a permitted one.
"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.structure", description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the hops as one JSON object")
    parser.add_argument("--trip", metavar="NAME", help="print the calls of a trip instead of the table")
    options = parser.parse_args(arguments)
    found = trips()
    if options.trip is not None:
        for name, calls in found.items():
            if options.trip in name:
                print("\n".join([f"{name}: {hops(calls)}", *shown(calls)]))
        return 0
    measured = {name: hops(calls) for name, calls in found.items()}
    if options.json:
        print(json.dumps({name: dataclasses.asdict(each) for name, each in measured.items()}))
        return 0
    rows = sizes(ROOT)
    rows |= {f"{name}: {HOPS}": str(each) for name, each in measured.items()}
    width = max(map(len, rows))
    before_width = max(map(len, BEFORE.values()))
    print(f"{'':{width}}  {REVIEWED:{before_width}}  now")
    for name, value in rows.items():
        print(f"{name:{width}}  {BEFORE.get(name, ''):{before_width}}  {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
