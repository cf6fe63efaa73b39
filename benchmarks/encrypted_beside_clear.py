"""Encrypted ledgers beside clear ones through our own client and bookies: adds and reads of 1 KiB, and what they cost.

python -m benchmarks.encrypted_beside_clear [--entries N] [--rounds N]

First sealing and opening alone, in this process, in batches of 512 KiB. Then ZooKeeper and three bookies, E3/Qw3/Qa2.
Both clients take turns within a round, so their ratios mean something on a noisy machine. `processor` is that of client
and bookies together.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.v3_beside_v2 import measure_round
from bkspark.blocking import Client, EncryptionOptions
from bkspark.cli.cluster_process import ClusterProcess
from bkspark.entries import EntryBatch
from bkspark.wire.encrypted_entries import KEY_BYTES, EntryOpener, EntrySealer

SIZES = (100, 1024, 65536)
BATCH_BYTES = 512 * 1024
REPETITIONS = 20


def main() -> None:
    name = "python -m benchmarks.encrypted_beside_clear"
    parser = argparse.ArgumentParser(prog=name, description=__doc__.split("\n")[0])
    parser.add_argument("--entries", type=int, default=100_000, help="of each load (default 100,000)")
    parser.add_argument("--rounds", type=int, default=5, help="default 5; medians are shown")
    options = parser.parse_args()
    alone = {f"{size} B": cipher_costs(size) for size in SIZES}
    with tempfile.TemporaryDirectory() as directory:
        keys = Path(directory) / "keys"
        keys.write_text(f"benchmark {base64.b64encode(os.urandom(KEY_BYTES)).decode()}\n")
        with (
            ClusterProcess(3, Path(directory) / "cluster") as cluster,
            Client(cluster.uri) as clear,
            Client(cluster.uri, encryption=EncryptionOptions(str(keys))) as encrypted,
        ):
            pids = [os.getpid(), *(bookie.pid for bookie in cluster.bookies)]
            clients = {"clear": clear, "encrypted": encrypted}
            rounds = [measure_round(clients, pids, options.entries) for _ in range(options.rounds + 1)][1:]
    figures = {name: round(statistics.median(one[name] for one in rounds), 3) for name in rounds[0]}
    print(json.dumps({"entries": options.entries, "rounds": options.rounds, "cipher alone": alone, **figures}))


def cipher_costs(size: int) -> dict[str, float]:
    """Return microseconds of processor time for an entry of `size` bytes, sealed and opened in batches."""
    count = max(1, BATCH_BYTES // size)
    key = os.urandom(KEY_BYTES)
    sealer, opener = EntrySealer(5, key), EntryOpener(5, key)
    batches = [EntryBatch.of([os.urandom(size)] * count, 5, at * count) for at in range(REPETITIONS)]
    sealed: list[EntryBatch] = []

    def seal() -> None:
        sealed.extend(map(sealer.seal, batches))

    def open_again() -> None:
        for batch in sealed:
            opener.open(batch)

    return {
        what: round(_processor_us(work) / (count * REPETITIONS), 2)
        for what, work in (("seal us", seal), ("open us", open_again))
    }


def _processor_us(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e6


if __name__ == "__main__":
    main()
