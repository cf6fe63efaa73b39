"""What a bookie that neither works nor fails costs a writer, measured with real processes: Qa 2 of 3, no spare bookie.

    python -m tests.chaos.gray [--seconds 60] [--latency-seconds 10] [--kind NAME]... [--json]

    stopped       SIGSTOP; its ZooKeeper session lives on for a minute
    slow          it gets its requests at a hundredth of the ordinary rate
    cut           its network is broken both ways, but for ZooKeeper's
    cut-in        what is sent to it does not arrive
    cut-out       what it answers does not arrive
    every-second  every second answer is lost

For each kind: the rate of a writer that has as much in flight as it may, and the p99 of single adds, first with three
good bookies, then with the gray one, and how long after it was good again the bookie took part. The exit code is 1 when
the rate falls below 0.9 of the ordinary one or the p99 above twice, or the bookie does not come back.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from bkspark.client import Client, LedgerWriter
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree
from bkspark.wire.framing import LENGTH_BYTES
from tests.chaos.network import PIECE_BYTES, Gate, RoutedTree
from tests.cluster import Cluster, ClusterBookie

KEPT_RATE_MIN = 0.9
P99_RATIO_MAX = 2.0
SLOWER = 100
BACK_S_MAX = 45.0
SESSION_TIMEOUT_MS = "60000"
ENTRY = bytes(1024)
BATCH = 256
ORDINARY_SHARE = 3
"""The ordinary rate is measured for a third of the time: it does not vary as much."""


class GrayGate(Gate):
    """A relay that can be slow to forward requests, or lose every second answer."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.bytes_per_s = 0.0
        self.skips = False

    def heal(self) -> None:
        self.bytes_per_s, self.skips = 0.0, False
        super().heal()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str) -> None:
        if direction == "down":
            await self._copy_frames(reader, writer)
            return
        try:
            while received := await reader.read(PIECE_BYTES if not self.bytes_per_s else 4096):
                if self.bytes_per_s:
                    await asyncio.sleep(len(received) / self.bytes_per_s)
                await self._open[direction].wait()
                writer.write(received)
                await writer.drain()
        except OSError:
            return
        writer.transport.abort()

    async def _copy_frames(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward answers, whole frames at a time; with `skips` every second one."""
        rest, count = b"", 0
        try:
            while received := await reader.read(PIECE_BYTES):
                data, kept, at = rest + received, [], 0
                while len(data) - at >= LENGTH_BYTES:
                    end = at + LENGTH_BYTES + int.from_bytes(data[at : at + LENGTH_BYTES], "big")
                    if end > len(data):
                        break
                    count += 1
                    if not self.skips or count % 2:
                        kept.append(data[at:end])
                    at = end
                rest = data[at:]
                await self._open["down"].wait()
                writer.write(b"".join(kept))
                await writer.drain()
        except OSError:
            return
        writer.transport.abort()


@dataclass(frozen=True)
class Measured:
    """What one kind came to; rates in entries a second, latencies in milliseconds."""

    kind: str
    ordinary_rate: float
    gray_rate: float
    rate_ratio: float
    ordinary_p99_ms: float
    gray_p99_ms: float
    p99_ratio: float
    back_s: float | None

    @property
    def is_good(self) -> bool:
        return self.rate_ratio >= KEPT_RATE_MIN and self.p99_ratio <= P99_RATIO_MAX and self.back_s is not None


def _slow(_: ClusterBookie, gate: GrayGate, rate: float) -> None:
    gate.bytes_per_s = max(1.0, rate * len(ENTRY) / SLOWER)


def _skip(_: ClusterBookie, gate: GrayGate, __: float) -> None:
    gate.skips = True


KINDS: dict[str, Callable[[ClusterBookie, GrayGate, float], None]] = {
    "stopped": lambda bookie, gate, rate: bookie.pause(),
    "slow": _slow,
    "cut": lambda bookie, gate, rate: gate.shut("up", "down"),
    "cut-in": lambda bookie, gate, rate: gate.shut("up"),
    "cut-out": lambda bookie, gate, rate: gate.shut("down"),
    "every-second": _skip,
}
"""How a bookie turns gray: given its process, the gate before it, and the ordinary rate."""


async def rate(writer: LedgerWriter, seconds: float) -> float:
    """Return how many entries a second are acknowledged, of a caller that has as many in flight as it may."""
    loop = asyncio.get_running_loop()
    began, first = loop.time(), writer.last_entry
    while loop.time() - began < seconds:
        await writer.submit([ENTRY] * BATCH)
    return (writer.last_entry - first) / (loop.time() - began)


async def p99_ms(writer: LedgerWriter, seconds: float) -> float:
    """Return the p99 of adds with one in flight."""
    loop = asyncio.get_running_loop()
    began, took = loop.time(), []
    while loop.time() - began < seconds:
        asked = loop.time()
        await writer.append(ENTRY)
        took.append(loop.time() - asked)
    return 1000 * sorted(took)[int(0.99 * (len(took) - 1))]


def takes_part(writer: LedgerWriter, bookie: ClusterBookie) -> bool:
    """Whether the writer's callers may wait for a bookie."""
    return writer.core.may_hold_back(writer.core.ensemble.index(bookie.id))


async def back_after(writer: LedgerWriter, bookie: ClusterBookie) -> float | None:
    """Return how long it takes until a bookie takes part again; None: it does not in BACK_S_MAX."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while loop.time() - began < BACK_S_MAX:
        if takes_part(writer, bookie):
            return loop.time() - began
        await rate(writer, 0.1)
        await asyncio.sleep(0.1)
    return None


async def measure(cluster: Cluster, kind: str, seconds: float, latency_s: float) -> Measured:
    """Measure one kind with a writer of its own."""
    victim = cluster.bookies[0]
    gate = GrayGate("127.0.0.1", int(victim.id.rpartition(":")[2]))
    await gate.start()
    uri = MetadataUri.parse(cluster.uri)
    tree = RoutedTree(await open_tree(uri), uri.root, {victim.id: gate}, lambda ledger_id, stored: None)
    client = Client(cluster.uri, tree=tree)
    try:
        writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        await rate(writer, 1.0)
        ordinary_rate = await rate(writer, seconds / ORDINARY_SHARE)
        await writer.sync()
        ordinary_p99 = await p99_ms(writer, latency_s)
        KINDS[kind](victim, gate, ordinary_rate)
        gray_rate = await rate(writer, seconds)
        await writer.sync()
        assert not takes_part(writer, victim), f"{kind}: the bookie is not gray"
        gray_p99 = await p99_ms(writer, latency_s)
        victim.resume()
        gate.heal()
        back_s = await back_after(writer, victim)
        await writer.close()
    finally:
        victim.resume()
        await client.close()
        await gate.stop()
    return Measured(
        kind,
        ordinary_rate,
        gray_rate,
        gray_rate / ordinary_rate,
        ordinary_p99,
        gray_p99,
        gray_p99 / ordinary_p99,
        back_s,
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.gray", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="with the gray bookie, at full rate (default 60)")
    parser.add_argument("--latency-seconds", type=float, default=10.0, help="of single adds (default 10)")
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="default: all")
    parser.add_argument("--json", action="store_true", help="print one JSON object a kind")
    options = parser.parse_args(arguments)
    found = []
    with tempfile.TemporaryDirectory(prefix="bkspark-gray-") as directory:
        settings = {"zkTimeout": SESSION_TIMEOUT_MS}
        with Cluster(Path(directory), settings=settings) as cluster:
            for kind in options.kind or KINDS:
                one = asyncio.run(measure(cluster, kind, options.seconds, options.latency_seconds))
                found.append(one)
                back = "never" if one.back_s is None else f"{one.back_s:.1f} s"
                print(
                    json.dumps(asdict(one))
                    if options.json
                    else f"{kind:<13} rate {one.ordinary_rate:7.0f} -> {one.gray_rate:7.0f} ({one.rate_ratio:.2f})  "
                    f"p99 {one.ordinary_p99_ms:6.2f} -> {one.gray_p99_ms:6.2f} ms ({one.p99_ratio:.2f})  back {back}",
                    flush=True,
                )
    return 0 if all(one.is_good for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
