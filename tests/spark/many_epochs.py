"""`python -m tests.spark.many_epochs`: a stream of many tiny epochs, and what it leaves at the metadata store.

    --epochs N --rows M --partitions P    (default 10,000 epochs of 100 rows in 2 partitions)
    --worker-epochs N    epochs after which Spark's Python worker is killed and another one commits (default 1,000)

Every epoch goes through the sink's own code, as Spark calls it: a writer, an attempt for each partition, its report
pickled, another writer, the commit. Only Spark itself is left out, which would take an hour. Starts a cluster of its
own; prints one JSON object: the ledgers and znode bytes that are left, and whether the log holds all rows in order.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import StructType

from bkspark.blocking import Client, run
from bkspark.log.formats import CONDEMNED, PAGES, PENDING, SegmentOwner, log_path
from bkspark.log.log import Log
from bkspark.spark import committers
from bkspark.spark.options import SourceOptions
from bkspark.spark.write import AttemptResult, BookKeeperStreamWriter, Destination
from tests.cluster import Cluster

QUERY = "many-epochs"
SCHEMA = StructType().add("value", "string")


@dataclass(frozen=True, slots=True)
class Left:
    """What a stream left. `listed`: ledgers of the log's list, `items`: of the list; `made`: ledgers that exist."""

    epochs: int
    rows: int
    is_equal: bool
    listed: int
    items: int
    made: int
    pending: int
    znode_bytes: int
    ms_an_epoch: float


def run_epochs(
    client: Client, uri: str, log: str, *, epochs: int, rows: int, partitions: int, worker_epochs: int
) -> Left:
    """Write the epochs to a new log; return what is left of them."""
    before = set(client.ledgers())
    options = SourceOptions.parse({"uri": uri, "log": log})
    began_s = time.perf_counter()
    for epoch in range(epochs):
        if epoch and epoch % worker_epochs == 0:
            # The worker is killed: it closes nothing.
            committers.forget_committers()
        _write_epoch(options, epoch, rows, partitions)
    seconds = time.perf_counter() - began_s
    sent = [b"%d.%d" % (epoch, row) for epoch in range(epochs) for row in range(rows)]
    found = [payload for batch in client.log(log).read() for payload in batch]
    return _left(client, log, before, epochs, rows, found == sent, seconds)


def _write_epoch(options: SourceOptions, epoch: int, rows: int, partitions: int) -> None:
    destination = Destination(SCHEMA, options.for_stream_write(), is_overwrite=False)
    share = -(-rows // partitions)
    messages = []
    for partition in range(partitions):
        numbers = range(partition * share, min(rows, (partition + 1) * share))
        values = pa.record_batch([pa.array([f"{epoch}.{number}" for number in numbers])], names=["value"])
        owner = SegmentOwner("query", QUERY, epoch, partition, epoch * partitions + partition)
        messages.append(pickle.dumps(destination.write(owner, iter([values]), is_keyed=True)))
    writer = BookKeeperStreamWriter(SCHEMA, options, overwrite=False)
    results: list[AttemptResult] = [pickle.loads(message) for message in messages]
    writer.commit(list(results), epoch)


def _left(client: Client, log: str, before: set[int], epochs: int, rows: int, is_equal: bool, seconds: float) -> Left:
    opened = Log(client.asynchronous, log)
    items = run(run(opened.snapshot).ledgers)
    store = run(opened.store)
    path = log_path(log)
    octets = run(lambda: _octets(client, path, (PAGES, PENDING, CONDEMNED)))
    return Left(
        epochs,
        rows,
        is_equal,
        len({item.ledger_id for item in items}),
        len(items),
        len(set(client.ledgers()) - before),
        len(run(lambda: store.attempts.pending_ids(log))),
        octets,
        round(seconds / epochs * 1000, 2),
    )


async def _octets(client: Client, path: str, folders: Sequence[str]) -> int:
    """Return the bytes of a node and of those in its folders."""
    tree = await client.asynchronous.tree()
    paths = [f"{path}/{folder}/{child}" for folder in folders for child in await tree.children(f"{path}/{folder}")]
    return sum([len((await tree.get(each))[0]) for each in (path, *paths)])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.many_epochs")
    parser.add_argument("--epochs", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--worker-epochs", type=int, default=1_000)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="bkspark-epochs-") as folder,
        Cluster(Path(folder)) as cluster,
        Client(cluster.uri) as client,
    ):
        left = run_epochs(
            client,
            cluster.uri,
            "many",
            epochs=options.epochs,
            rows=options.rows,
            partitions=options.partitions,
            worker_epochs=options.worker_epochs,
        )
    print(json.dumps(asdict(left)))
    return 0 if left.is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
