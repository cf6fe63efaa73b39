"""Run the benchmarks side by side with the machine's limits, several times, and print medians as one JSON object.

    python benchmarks/run.py [--rounds N] [--seconds S] [--rows N]

Each round starts a cluster of three bookies, so that every figure of a round comes from the same minute; ratios are to
be taken inside one run. The last measurements are in README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

QUORUMS = ["--ensemble", "3", "--write-quorum", "3", "--ack-quorum", "2"]


def bench(*arguments: str) -> dict[str, Any]:
    """Return what one `bkspark bench ... --json` printed."""
    command = [sys.executable, "-m", "bkspark.cli", "bench", *arguments, "--json"]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    return result


def one_round(seconds: float, rows: int) -> dict[str, Any]:
    limits = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("limits.py")), "--seconds", "0.5"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    duration = ["--seconds", str(seconds)]
    return {
        "limits": json.loads(limits),
        "write_1KiB": bench("write", "--entry-size", "1024", *QUORUMS, *duration),
        "write_100B": bench("write", "--entry-size", "100", *QUORUMS, *duration),
        "write_1KiB_one_in_flight": bench("write", "--entry-size", "1024", *QUORUMS, "--window", "1", *duration),
        "read_1KiB": bench("read", "--entry-size", "1024", *QUORUMS, "--entries", "500000"),
        "spark_1KiB": bench("spark", "--rows", str(rows), "--value-size", "1024"),
    }


def median_of(values: list[Any]) -> Any:
    """Return the median of numbers, key by key through dictionaries of one shape."""
    if isinstance(values[0], dict):
        return {key: median_of([value[key] for value in values]) for key in values[0]}
    return round(statistics.median(values), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each write benchmark")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the Spark benchmark")
    arguments = parser.parse_args()
    rounds = [one_round(arguments.seconds, arguments.rows) for _ in range(arguments.rounds)]
    print(json.dumps({"rounds": arguments.rounds, "median": median_of(rounds)}, indent=1))


if __name__ == "__main__":
    main()
