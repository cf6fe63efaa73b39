"""Apache's Java client on Apache's bookies and on ours, and our own client on ours, in turns in one run.

    python -m benchmarks.apache_clients [--json] [--quick] [--rounds N] [--client 4.18|4.14] [--only NAME[,NAME]]

It needs Java and Maven (`tests.interop.build` builds the Java program). Ledgers have E3/Qw3/Qa2, CRC32C, entries of
1 KiB where nothing else is said; bookies sync every group. A round starts ZooKeeper and three of Apache's bookies,
warms them up, measures, and removes all data; then the same with three of ours. The JVM of the client serves all
rounds, and the first round is not counted. Apache's bookies run with the JVM options of Apache's scripts.

    add          150,000 entries, 5,000 in flight; 300,000 of 100 B
    single add   one add in flight
    read         entry by entry, 500 a call, 4 calls in flight, spread over the ensemble: a bookie sees every third id
    mixed read   the same of 16 ledgers in turn, 100 a call, 16 calls in flight, as a Pulsar broker reads topics
    batch read   500 a request, 4 in flight; our client reads over the network, with its own read-ahead
    recovery     of 3,000 entries that a writer left in flight; processor time per entry

Processor time is that of the three bookies together. Ratios are taken within a round; medians are shown.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.apache_table import APACHE, OURS, OWN, ROWS, Figures, table, verdicts
from benchmarks.protocol import IN_FLIGHT, dead_writers_ledger
from benchmarks.relaxed import processor_s
from bkspark.cli import load
from bkspark.client import Client
from bkspark.net.pool import NetOptions
from tests.interop import build
from tests.interop.apache import ApacheCluster
from tests.interop.peer import NETTY_OPTIONS, JavaClient, Peer

NAMES = ("add", "lone", "read", "mixed", "batch", "recovery")
VERSIONS = {"4.18": None, "4.14": "4.14.7"}
"""Versions of Apache's client; None: the version that the program is built with."""
BOOKIE_JVM = ("-Xms256m", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=2g", *NETTY_OPTIONS)
CLIENT_JVM = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=2g", *NETTY_OPTIONS)
APACHE_SETTINGS = {
    # Apache's defaults, which its tests here lower.
    "journalPreAllocSizeMB": "16",
    "skipListSizeLimit": str(64 << 20),
    # Above 10,000 waiting adds it refuses some. An acknowledged add may still wait at the slowest of three.
    "maxPendingAddRequestsPerThread": "1000000",
}
ENTRY_BYTES, SMALL_BYTES = 1024, 100
WINDOW = 5_000
PER_CALL, CALLS_IN_FLIGHT = 500, 4
MIXED_LEDGERS, MIXED_PER_CALL = 16, 100


@dataclass(frozen=True)
class Sizes:
    """Entries of each load; `warm_up` is its share before measuring.

    Recoveries need many: the first ones by cold JVMs take three times as long.
    """

    adds: int = 150_000
    small_adds: int = 300_000
    lone_adds: int = 1500
    reads: int = 400_000
    batch_reads: int = 1_000_000
    recoveries: int = 10
    warm_up: float = 0.5
    rounds: int = 3


QUICK = Sizes(20_000, 20_000, 150, 30_000, 60_000, 1, 0.2, 1)


class Side:
    """A running cluster of one kind of bookies, and what is measured on it."""

    def __init__(self, cluster: ApacheCluster, java: JavaClient, sizes: Sizes, names: Sequence[str]) -> None:
        self._cluster = cluster
        self._java = java
        self._sizes = sizes
        self._names = names
        self._pids = [bookie.pid for bookie in cluster.bookies]

    def measure(self, protocol: str) -> Figures:
        """Return the figures of Apache's client in a protocol, after a warm-up."""
        with self._java.speaking(protocol) as java:
            warm_up = self._loads(java, self._sizes.warm_up)
            for name in self._names:
                warm_up[name]()
            loads = self._loads(java, 1.0)
            measured: Figures = {}
            for name in self._names:
                measured |= loads[name]()
        return {f"{name} {protocol}": value for name, value in measured.items()}

    def _loads(self, java: JavaClient, share: float) -> dict[str, Callable[[], Figures]]:
        sizes = self._sizes

        def scaled(entries: int) -> int:
            return max(PER_CALL, int(entries * share))

        return {
            "add": lambda: self._add(java, scaled(sizes.adds), scaled(sizes.small_adds)),
            "lone": lambda: self._lone_add(java, max(100, int(sizes.lone_adds * share))),
            "read": lambda: self._read(java, "single", scaled(sizes.reads)),
            "mixed": lambda: self._read_mixed(java, scaled(sizes.reads // 2)),
            "batch": lambda: self._read(java, "batch", scaled(sizes.batch_reads)),
            "recovery": lambda: self._recover(java, max(1, int(sizes.recoveries * share))),
        }

    def _add(self, java: JavaClient, entries: int, small_entries: int) -> Figures:
        figures: Figures = {}
        for name, count, size in (("add", entries, ENTRY_BYTES), ("add 100 B", small_entries, SMALL_BYTES)):
            answer, used_s = self._timed(java, what="add", entries=count, size=size, window=WINDOW)
            figures[name] = count / answer["seconds"]
            figures[f"{name}, processor"] = used_s / count * 1e6
            java.call("delete", ledger=answer["ledger"])
        return figures

    def _lone_add(self, java: JavaClient, count: int) -> Figures:
        answer, used_s = self._timed(java, what="lone_add", entries=count, size=ENTRY_BYTES)
        return {
            "single add p50": answer["p50"] * 1000,
            "single add p99": answer["p99"] * 1000,
            "single add, processor": used_s / count * 1e6,
        }

    def _read(self, java: JavaClient, how: str, entries: int) -> Figures:
        if how == "batch" and java.protocol == "v3":
            return {}  # Apache's client has no batch reads in V3.
        ledger = java.call("load", what="add", entries=self._sizes.adds, size=ENTRY_BYTES, window=WINDOW)["ledger"]
        answer, used_s = self._timed(
            java,
            what="read",
            ledgers=[ledger],
            entries=entries,
            per_call=PER_CALL,
            calls_in_flight=CALLS_IN_FLIGHT,
            how=how,
        )
        java.call("delete", ledger=ledger)
        name = "read" if how == "single" else "batch read"
        return {name: entries / answer["seconds"], f"{name}, processor": used_s / entries * 1e6}

    def _read_mixed(self, java: JavaClient, entries: int) -> Figures:
        stored = max(MIXED_PER_CALL, self._sizes.adds // MIXED_LEDGERS)
        arguments = {"what": "add", "entries": stored, "size": ENTRY_BYTES, "window": WINDOW}
        ledgers = [java.call("load", **arguments)["ledger"] for _ in range(MIXED_LEDGERS)]
        answer, used_s = self._timed(
            java,
            what="read",
            ledgers=ledgers,
            entries=entries,
            per_call=MIXED_PER_CALL,
            calls_in_flight=MIXED_LEDGERS,
            how="single",
        )
        for ledger in ledgers:
            java.call("delete", ledger=ledger)
        return {"mixed read": entries / answer["seconds"], "mixed read, processor": used_s / entries * 1e6}

    def _recover(self, java: JavaClient, count: int) -> Figures:
        seconds, used_s = [], 0.0
        for _ in range(count):
            ledger, _ = asyncio.run(dead_writers_ledger(self._cluster.uri, IN_FLIGHT))
            answer, used = self._timed(java, what="recover", ledger=ledger)
            assert answer["last_entry"] == IN_FLIGHT - 1, answer
            seconds.append(answer["seconds"])
            used_s += used
        processor = used_s / (count * IN_FLIGHT) * 1e6
        return {"recovery": statistics.median(seconds) * 1000, "recovery, processor": processor}

    def _timed(self, java: JavaClient, **arguments: Any) -> tuple[dict[str, Any], float]:
        """Return what Java answers to a load, and the bookies' processor time in it, seconds."""
        used = self._used_s()
        answer = java.call("load", **arguments)
        return answer, self._used_s() - used

    def _used_s(self) -> float:
        return sum(map(processor_s, self._pids))

    def measure_own(self) -> Figures:
        """Return the figures of our own client."""
        return asyncio.run(self._measure_own())

    async def _measure_own(self) -> Figures:
        sizes, figures = self._sizes, Figures()
        async with Client(self._cluster.uri, net=NetOptions(local_reads=False)) as client:
            if "add" in self._names:
                for name, count, size in (
                    ("add", sizes.adds, ENTRY_BYTES),
                    ("add 100 B", sizes.small_adds, SMALL_BYTES),
                ):
                    figures[name], *_ = await self._own_add(client, count, size)
            if "lone" in self._names:
                used = self._used_s()
                _, latency_ms, _ = await self._own_add(client, sizes.lone_adds, ENTRY_BYTES, window=1)
                figures["single add p50"], figures["single add p99"] = latency_ms["p50"], latency_ms["p99"]
                figures["single add, processor"] = (self._used_s() - used) / sizes.lone_adds * 1e6
            if "batch" in self._names:
                _, _, ledgers = await self._own_add(client, sizes.adds, ENTRY_BYTES)
                began, used, read = time.perf_counter(), self._used_s(), 0
                while read < sizes.batch_reads:
                    read += (await load.read(client, load.ReadLoad(ledgers, None, None, None)))["entries"]
                figures["batch read"] = read / (time.perf_counter() - began)
                figures["batch read, processor"] = (self._used_s() - used) / read * 1e6
        return {f"{name} v2": value for name, value in figures.items()}

    async def _own_add(
        self, client: Client, entries: int, size: int, window: int = WINDOW
    ) -> tuple[float, dict[str, float], list[int]]:
        wanted = load.WriteLoad(size, 3, 3, 2, ledgers=1, window=window, seconds=None, entries=entries)
        ledgers, result = await load.write(client, wanted)
        return result["entries_per_s"], result["latency_ms"], ledgers

    def resident_mib(self) -> float:
        """Return the resident set of the largest bookie, in MiB."""
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        return (
            max(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self._pids) * page_bytes / (1 << 20)
        )


class Bench:
    """The JVM of the client, and a folder for clusters; a context manager."""

    def __init__(self, parent: Path | None, version: str, sizes: Sizes, names: Sequence[str]) -> None:
        self._sizes = sizes
        self._names = names
        self._classpath = build.classpath(build.BOOKKEEPER)
        of_client = VERSIONS[version]
        classpath = self._classpath if of_client is None else build.bookkeeper_classpath(of_client)
        self._directory = Path(tempfile.mkdtemp(prefix="bkspark-apache-", dir=parent))
        self._peer = Peer(classpath, self._directory / "client.log", CLIENT_JVM)

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *reason: object) -> None:
        self._peer.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def round(self) -> dict[str, Figures]:
        """Return the figures of both kinds of bookies, and of our own client."""
        figures = {}
        for kind, apache, ours in ((APACHE, 3, 0), (OURS, 0, 3)):
            with self._side(apache, ours) as side:
                figures[kind] = side.measure("v2") | side.measure("v3")
                if kind == OURS:
                    figures[OWN] = side.measure_own()
                figures[kind]["resident set of a bookie"] = side.resident_mib()
        return figures

    @contextmanager
    def _side(self, apache: int, ours: int) -> Iterator[Side]:
        """Yield a cluster with these numbers of bookies of each kind."""
        directory = self._directory / "cluster"
        directory.mkdir()
        try:
            with (
                ApacheCluster(
                    self._classpath,
                    directory,
                    self._peer,
                    apache=apache,
                    ours=ours,
                    settings=APACHE_SETTINGS,
                    jvm_options=BOOKIE_JVM,
                ) as cluster,
                JavaClient(self._peer, cluster.uri) as java,
            ):
                yield Side(cluster, java, self._sizes, self._names)
        finally:
            shutil.rmtree(directory)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object with every round; else a table")
    parser.add_argument("--quick", action="store_true", help="a few thousand entries, one round, no warm round")
    parser.add_argument("--rounds", type=int, help="counted ones (default 3; 1 with --quick)")
    parser.add_argument("--client", choices=sorted(VERSIONS), default="4.18", help="version of Apache's client")
    parser.add_argument("--only", metavar="NAMES", default=",".join(NAMES), help=f"of {', '.join(NAMES)}")
    parser.add_argument("--dir", type=Path, help="where the clusters' data go (default: a temporary folder)")
    arguments = parser.parse_args(argv)
    names = arguments.only.split(",")
    if unknown := set(names) - set(NAMES):
        parser.error(f"--only {', '.join(sorted(unknown))}: it is one of {', '.join(NAMES)}")
    sizes = QUICK if arguments.quick else Sizes()
    rounds = []
    with Bench(arguments.dir, arguments.client, sizes, names) as bench:
        for number in range((arguments.rounds or sizes.rounds) + (not arguments.quick)):
            found = bench.round()
            if number or arguments.quick:
                rounds.append(found)
            print(f"round {number}: {json.dumps(found)}", file=sys.stderr, flush=True)
    if arguments.json:
        print(json.dumps({"client": arguments.client, "rows": verdicts(ROWS, rounds), "rounds": rounds}))
    else:
        print(table(ROWS, rounds))


if __name__ == "__main__":
    main()
