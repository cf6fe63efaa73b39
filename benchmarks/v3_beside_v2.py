"""V3 beside V2 through our own client and bookies: adds and reads of 1 KiB, and what they cost.

python -m benchmarks.v3_beside_v2 [--entries N] [--rounds N]

Starts ZooKeeper and three bookies, E3/Qw3/Qa2. The protocols take turns within a round, so their ratios mean something
on a noisy machine. V2's reads are batch reads, which V3 lacks. `processor` is that of client and bookies together.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.relaxed import ENTRY_BYTES, PIECE_ENTRIES, processor_s
from bkspark.blocking import Client
from bkspark.cli.cluster_process import ClusterProcess

PROTOCOLS = ("v2", "v3")

_T = TypeVar("_T")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.v3_beside_v2", description=__doc__.split("\n")[0])
    parser.add_argument("--entries", type=int, default=40_000, help="of each load (default 40,000)")
    parser.add_argument("--rounds", type=int, default=5, help="default 5; medians are shown")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        ClusterProcess(3, Path(directory) / "cluster") as cluster,
        Client(cluster.uri, wire_protocol="v2") as v2,
        Client(cluster.uri, wire_protocol="v3") as v3,
    ):
        pids = [os.getpid(), *(bookie.pid for bookie in cluster.bookies)]
        rounds = [measure_round({"v2": v2, "v3": v3}, pids, options.entries) for _ in range(options.rounds + 1)][1:]
    figures = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    report = {"entries": options.entries, "rounds": options.rounds, **{k: round(v, 3) for k, v in figures.items()}}
    print(json.dumps(report))


def measure_round(clients: dict[str, Client], pids: list[int], entries: int) -> dict[str, float]:
    """Return the ratios of the second client to the first, and microseconds of processor time for each entry."""
    rates: dict[str, float] = {}
    costs: dict[str, float] = {}

    def measure(name: str, work: Callable[[], _T]) -> _T:
        used, began = sum(map(processor_s, pids)), time.monotonic()
        result = work()
        rates[name] = entries / (time.monotonic() - began)
        costs[name] = (sum(map(processor_s, pids)) - used) / entries * 1e6
        return result

    for name, client in clients.items():
        ledger_id = measure(f"add {name}", partial(_write, client, entries))
        measure(f"read {name}", partial(_read, client, ledger_id, entries))
    first, second = clients
    ratios = {
        f"{what}, {second} to {first}": rates[f"{what} {second}"] / rates[f"{what} {first}"] for what in ("add", "read")
    }
    return {**ratios, **{f"{name}, processor us an entry": cost for name, cost in costs.items()}}


def _write(client: Client, entries: int) -> int:
    piece = [os.urandom(ENTRY_BYTES)] * PIECE_ENTRIES
    with client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
        for _ in range(entries // PIECE_ENTRIES):
            writer.submit(piece)
    return writer.ledger_id


def _read(client: Client, ledger_id: int, entries: int) -> None:
    read = sum(len(batch) for batch in client.open(ledger_id, recover=False).batches())
    assert read == entries // PIECE_ENTRIES * PIECE_ENTRIES


if __name__ == "__main__":
    main()
