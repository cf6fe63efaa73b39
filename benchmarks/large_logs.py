"""Large logs: what a plan, a trigger and a worker take when a log has 100,000 ledgers and a billion entries.

    python -m benchmarks.large_logs [--ledgers 100000] [--partition-gib 10] [--json]

A cluster of its own, ZooKeeper and a bookie. The log's list and the metadata of all its ledgers are real nodes of
ZooKeeper; the ledgers have no data, as planning reads none. Data that workers read is real: one ledger of 64 MiB, which
a partition names again and again until it has its size, and one whose entries have 1 B and 4 MiB by turns.

Each figure comes from a process of its own, as Spark has one: it makes the connector's reader and calls what Spark
calls. Memory is the highest resident size of that process, Python, pyarrow and pyspark included. Triggers of the large
log and of one of ten ledgers take turns, and the figure is the difference of their medians.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from bkspark.blocking import Client, run
from bkspark.log import changes
from bkspark.log.formats import PAGES, LogHead, SegmentFacts, encode_page, own_metadata
from bkspark.log.heads import Change, NewNode, new_token
from bkspark.log.log import store_of
from bkspark.metadata import encoding
from bkspark.tasks import each_of
from tests.cluster import Cluster

ENTRIES_PER_LEDGER, ENTRY_BYTES = 10_000, 100
SMALL, LARGE = "small", "large"
SMALL_LEDGERS = 10
FIRST_LEDGER = 1_000_000
MIB = 1 << 20
BLOCK_BYTES = 64 * MIB
TRIGGERS = 30

FIGURES = (
    Figure("plan_s", "s", at_most=2),
    Figure("plan_again_s", "s"),
    Figure("plan_mib", "MiB", at_most=300),
    Figure("plan_partitions", "partitions"),
    Figure("plan_pickled_mib", "MiB"),
    Figure("first_trigger_s", "s"),
    Figure("trigger_at_end_extra_ms", "ms", at_most=5),
    Figure("trigger_in_backlog_extra_ms", "ms", at_most=5),
    Figure("trigger_small_ms", "ms"),
    Figure("stream_mib", "MiB"),
    *(
        figure
        for way in ("local", "network")
        for figure in (
            Figure(f"worker_long_{way}_mib", "MiB", at_most=300),
            Figure(f"worker_long_{way}_s", "s"),
            Figure(f"worker_skewed_{way}_mib", "MiB", at_most=300),
        )
    ),
)


# ---- what is measured, each in a process of its own ----


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def plan(uri: str) -> dict[str, float]:
    """Plan a batch read of the large log twice."""
    from pyspark.sql.types import StructType

    from bkspark.spark.options import SourceOptions
    from bkspark.spark.read import BookKeeperReader

    schema = StructType().add("value", "binary")
    reader = BookKeeperReader(schema, SourceOptions.parse({"uri": uri, "log": LARGE}))
    seconds = []
    for _ in range(2):
        began_s = time.perf_counter()
        partitions = reader.partitions()
        seconds.append(time.perf_counter() - began_s)
    size = sum(len(pickle.dumps(partition)) for partition in partitions)
    return {
        "plan_s": seconds[0],
        "plan_again_s": seconds[1],
        "plan_mib": peak_mib(),
        "plan_partitions": len(partitions),
        "plan_pickled_mib": size / MIB,
    }


def triggers(uri: str) -> dict[str, float]:
    """Plan micro-batches of both logs by turns: at the end, with nothing new, and from the beginning on."""
    from pyspark.sql.types import StructType

    from bkspark.spark.options import SourceOptions
    from bkspark.spark.stream import BookKeeperStreamReader

    schema = StructType().add("value", "binary")

    def reader(log: str) -> BookKeeperStreamReader:
        options = {"uri": uri, "log": log, "startingOffsets": "earliest", "maxEntriesPerTrigger": "5000"}
        return BookKeeperStreamReader(schema, SourceOptions.parse(options))

    readers = {log: reader(log) for log in (SMALL, LARGE)}
    starts = {log: each.initialOffset() for log, each in readers.items()}
    began_s = time.perf_counter()
    readers[LARGE].latestOffset(starts[LARGE], None)
    found = {"first_trigger_s": time.perf_counter() - began_s}
    ends = {log: json.loads(json.dumps(each.reportLatestOffset())) for log, each in readers.items() if log == LARGE}
    readers[SMALL].latestOffset(starts[SMALL], None)
    ends[SMALL] = json.loads(json.dumps(readers[SMALL].reportLatestOffset()))
    for place, begins in (("at_end", {log: _offset(end) for log, end in ends.items()}), ("in_backlog", starts)):
        taken: dict[str, list[float]] = {SMALL: [], LARGE: []}
        for turn in range(TRIGGERS):
            for log in (SMALL, LARGE) if turn % 2 else (LARGE, SMALL):
                began_s = time.perf_counter()
                end = readers[log].latestOffset(begins[log], None)
                readers[log].partitions(begins[log], end)
                taken[log].append(time.perf_counter() - began_s)
        medians = {log: statistics.median(each) * 1000 for log, each in taken.items()}
        found[f"trigger_{place}_extra_ms"] = medians[LARGE] - medians[SMALL]
        found["trigger_small_ms"] = medians[SMALL]
    return {**found, "stream_mib": peak_mib()}


def _offset(reported: dict[str, Any]) -> dict[str, Any]:
    """Return what was reported for the progress as an offset: without the figures of the lag."""
    return {key: value for key, value in reported.items() if not key.endswith("_behind")}


def worker(uri: str, ledger_id: str, times: str, local_reads: str) -> dict[str, float]:
    """Read a partition that names a ledger many times, as a task does, and drop what it yields."""
    from pyspark.sql.types import StructType

    from bkspark.spark.options import SourceOptions
    from bkspark.spark.read import BookKeeperReader, read_partition

    schema = StructType().add("value", "binary")
    given = {"uri": uri, "ledgers": ledger_id, "minPartitions": "1", "bookkeeper.localReads": local_reads}
    options = SourceOptions.parse(given)
    reader = BookKeeperReader(schema, options)
    (partition,) = reader.partitions()
    partition.reads *= int(times)  # type: ignore[attr-defined]
    began_s = time.perf_counter()
    octets = sum(batch.nbytes for batch in read_partition(partition, schema, options.for_batch_read()))
    return {"mib": peak_mib(), "s": time.perf_counter() - began_s, "gib": octets / (1 << 30)}


MEASURED: Mapping[str, Callable[..., dict[str, float]]] = {"plan": plan, "triggers": triggers, "worker": worker}


def in_a_process(what: str, *arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.large_logs", "--in-a-process", what, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


# ---- what is there to measure ----


async def make_log(client: Client, name: str, first_ledger: int, ledgers: int) -> None:
    """Make a log of closed ledgers: its list, and the metadata of each ledger."""
    cluster = client.asynchronous
    writer = await cluster.create(ensemble=1, write_quorum=1, ack_quorum=1, metadata=own_metadata(name))
    await writer.append(b"x")
    like = await writer.close()
    length = ENTRIES_PER_LEDGER * ENTRY_BYTES
    data = encoding.encode(replace(like, last_entry=ENTRIES_PER_LEDGER - 1, length=length))
    stored, tree = (await cluster.context()).ledgers, await cluster.tree()

    async def make(ledger_id: int) -> None:
        await tree.create(await stored._path(ledger_id), data, make_parents=True)

    await each_of(make, range(first_ledger, first_ledger + ledgers))
    store = await store_of(cluster)
    await store.create(name)
    facts = [SegmentFacts(first_ledger + number, ENTRIES_PER_LEDGER - 1, length) for number in range(ledgers)]

    async def listed(head: LogHead) -> Change[None]:
        grown, pages = changes.appended(head, facts, None, new_token())
        nodes = [
            NewNode(f"{PAGES}/{page.ref.name}", encode_page(page.ref.first_ordinal, page.ledgers)) for page in pages
        ]
        return Change(grown, None, nodes)

    await store.heads.change(name, listed)


def write_ledger(client: Client, entries: Sequence[bytes]) -> int:
    with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
        for entry in entries:
            writer.append_many([entry])
        return writer.ledger_id


def measure(ledgers: int, partition_gib: float) -> dict[str, float]:
    """Make the logs and measure everything."""
    with (
        tempfile.TemporaryDirectory(prefix="bkspark-large-") as folder,
        Cluster(Path(folder), bookies=1) as cluster,
        Client(cluster.uri) as client,
    ):
        for name, first, count in ((SMALL, 1_000, SMALL_LEDGERS), (LARGE, FIRST_LEDGER, ledgers)):
            run(partial(make_log, client, name, first, count))
        found = in_a_process("plan", cluster.uri)
        found |= in_a_process("triggers", cluster.uri)
        block = os.urandom(1024)
        even = str(write_ledger(client, [block * 1024] * (BLOCK_BYTES // MIB)))
        skewed = str(write_ledger(client, [b"x", block * 4096] * 40))
        for way, local_reads in (("local", "true"), ("network", "false")):
            times = str(max(1, round(partition_gib * (1 << 30) / BLOCK_BYTES)))
            long = in_a_process("worker", cluster.uri, even, times, local_reads)
            assert long["gib"] >= int(times) * BLOCK_BYTES / (1 << 30), "all of it was read"
            found[f"worker_long_{way}_mib"], found[f"worker_long_{way}_s"] = long["mib"], long["s"]
            found[f"worker_skewed_{way}_mib"] = in_a_process("worker", cluster.uri, skewed, "10", local_reads)["mib"]
        return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_logs", description=__doc__)
    parser.add_argument("--ledgers", type=int, default=100_000)
    parser.add_argument("--partition-gib", type=float, default=10)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--in-a-process", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.in_a_process:
        what, *arguments = options.in_a_process
        print(json.dumps(MEASURED[what](*arguments)))
        return
    found = measure(options.ledgers, options.partition_gib)
    if options.json:
        print(json.dumps({**found, "ledgers": options.ledgers, "load": os.getloadavg()[0]}))
        return
    print(
        f"{options.ledgers:,} ledgers, {options.ledgers * ENTRIES_PER_LEDGER:,} entries; load {os.getloadavg()[0]:.1f}"
    )
    for figure in FIGURES:
        value = found[figure.name]
        reached = figure.reached_by(value)
        said = "" if reached is None else "yes" if reached else "NO"
        print(f"{figure.name:30} {value:12,.3f} {figure.unit:12} {figure.target():8} {said}")


if __name__ == "__main__":
    main()
