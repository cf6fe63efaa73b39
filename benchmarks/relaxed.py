"""Ledgers with relaxed durability beside durable ones: rate, one add in flight, bytes that each bookie writes.

python -m benchmarks.relaxed [--entries N] [--singles N] [--rounds N]

Starts ZooKeeper and three bookies, E3/Qw3/Qa2, entries of 1 KiB. Types take turns within a round, so their ratios mean
something on a noisy machine. A rate includes `close`, hence the sync. `written` is what the bookies' processes had
written to their disks for each byte of payload, per bookie (`write_bytes` of /proc/PID/io).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bkspark.blocking import Client
from bkspark.cli.cluster_process import ClusterProcess
from bkspark.core.metadata import LedgerType

ENTRY_BYTES = 1024
PIECE_ENTRIES = 1000


def written_bytes(pid: int) -> int:
    """Return how many bytes a process has caused to be written to disks."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def processor_s(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(client: Client, pids: Sequence[int], ledger_type: str, entries: int, singles: int) -> dict[str, float]:
    """Return the figures of one type: a bulk load, then adds one after the other."""
    piece = [os.urandom(ENTRY_BYTES)] * PIECE_ENTRIES
    written, used = sum(map(written_bytes, pids)), sum(map(processor_s, pids))
    began = time.monotonic()
    with client.create(ledger_type=ledger_type) as writer:
        for _ in range(entries // PIECE_ENTRIES):
            writer.submit(piece)
    seconds = time.monotonic() - began
    # What the next flush of the write cache writes is this load's, too.
    with client.create(ledger_type=LedgerType.VD_BYPASS_JOURNAL.value) as flushing:
        flushing.append(b"")
    payload = entries // PIECE_ENTRIES * PIECE_ENTRIES * ENTRY_BYTES * len(pids)
    written, used = sum(map(written_bytes, pids)) - written, sum(map(processor_s, pids)) - used
    latencies = []
    with client.create(ledger_type=ledger_type) as writer:
        for _ in range(singles):
            asked = time.perf_counter()
            writer.append(piece[0])
            latencies.append(time.perf_counter() - asked)
    return {
        "entries_per_s": entries / seconds,
        "bookies_us_per_entry": used / entries * 1e6,
        "written_per_payload_byte": written / payload,
        "one_in_flight_p50_ms": statistics.median(latencies) * 1000,
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=200_000)
    parser.add_argument("--singles", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args(argv)
    types = [it.value for it in LedgerType]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in types}
    with tempfile.TemporaryDirectory() as folder:
        cluster = ClusterProcess(3, Path(folder))
        cluster.start()
        try:
            with Client(cluster.uri) as client:
                pids = [bookie.pid for bookie in cluster.bookies]
                for _ in range(arguments.rounds):
                    for name in types:
                        found[name].append(measure(client, pids, name, arguments.entries, arguments.singles))
        finally:
            cluster.stop()
    medians = {
        name: {key: round(statistics.median(it[key] for it in rounds), 3) for key in rounds[0]}
        for name, rounds in found.items()
    }
    print(json.dumps(medians, indent=2))


if __name__ == "__main__":
    main()
