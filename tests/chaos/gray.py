"""What a bookie that neither works nor fails costs a writer, measured with real processes: Qa 2 of 3, no spare bookie.

    python -m tests.chaos.gray [--seconds 60] [--latency-seconds 10] [--kind NAME]... [--writer NAME]...
                               [--no-reads] [--disk-gb 3] [--dir DIR] [--json]

    stopped       SIGSTOP; its ZooKeeper session lives on for a minute
    slow          it gets its requests at a hundredth of the ordinary rate
    tenth         at a tenth of it
    cut           its network is broken both ways, but for ZooKeeper's
    cut-in        what is sent to it does not arrive
    cut-out       what it answers does not arrive
    every-second  every second answer is lost

Writers: `ledger`, `relaxed` (a ledger of type VD_JOURNAL), `log`. For each writer and kind: the rate of a writer that
has as much in flight as it may, and the p99 of single adds, first with three good bookies, then with the gray one; how
often the gray bookie took part again while it was gray, and how long after it was good again. A follower with a client
of its own goes through the same network; it starts with the single adds and must come to the end of what was
acknowledged. Then, unless `--no-reads`, the p99 of reads of one entry, each after the other, by readers that are opened
again and again: with three good bookies, and with one that takes ten times as long.

At full speed the bookies write some 30 GB a minute. So entries are small, and batches are sent at a pace at which all
bookies together fill no more than `--disk-gb`. The pace never makes up for a stall: what a gray bookie holds back is
missing in the rate. A larger `--disk-gb` lets the writer have more in flight, up to as much as it may.

The exit code is 1 when the rate falls below 0.9 of the ordinary one or a p99 above twice, when the bookie does not come
back, when one that answers no probe comes back while it is gray, or when the follower fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bkspark.client import Client, LedgerWriter
from bkspark.entries import EntryBatch
from bkspark.errors import BookKeeperError
from bkspark.log import LogWriter, Position
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree
from bkspark.wire.framing import LENGTH_BYTES
from tests.chaos.network import PIECE_BYTES, Gate, RoutedTree
from tests.cluster import Cluster, ClusterBookie

KEPT_RATE_MIN = 0.9
P99_RATIO_MAX = 2.0
READ_ENTRIES, READS_PER_READER, READS_FIRST = 2000, 20, 200
SLOWER_READS = 10
BACK_S_MAX = 45.0
FOLLOWED_S = 10.0
"""A follower that gets nothing for this long, though there is more, has failed."""
WRITERS = ("ledger", "relaxed", "log")
LOG = "gray"
QUORUMS = {"ensemble": 3, "write_quorum": 3, "ack_quorum": 2}
SETTINGS = {"zkTimeout": "60000", "journalMaxSizeMB": "64", "journalMaxBackups": "0"}
"""The session of a stopped bookie lives on. Journals take little space beside the entry logs."""
ENTRY = bytes(128)
BATCH = 256
STORED_BYTES = 3 * (len(ENTRY) + 80)
"""What an entry takes in the entry logs and indexes of all bookies, rounded up."""
JOURNALS_BYTES = 3 * 300_000_000
"""What the journals of all bookies take at most, until a checkpoint removes them."""
DISK_GB = 3.0
SETTLING_S = 10.0
"""How long the writer runs before and after what is measured, rounded up."""
ORDINARY_SHARE = 3
"""The ordinary rate is measured for a third of the time: it does not vary as much."""


class GrayGate(Gate):
    """A relay that can be slow to forward requests, or lose every second answer."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.bytes_per_s = 0.0
        self.request_s = 0.0
        self.skips = False

    def heal(self) -> None:
        self.bytes_per_s, self.request_s, self.skips = 0.0, 0.0, False
        super().heal()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str) -> None:
        if direction == "down":
            await self._copy_frames(reader, writer)
            return
        try:
            while received := await reader.read(PIECE_BYTES if not self.bytes_per_s else 4096):
                if self.bytes_per_s:
                    await asyncio.sleep(len(received) / self.bytes_per_s)
                if self.request_s:
                    await asyncio.sleep(self.request_s)
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

    writer: str
    kind: str
    ordinary_rate: float
    gray_rate: float
    rate_ratio: float
    ordinary_p99_ms: float
    gray_p99_ms: float
    p99_ratio: float
    returns_while_gray: int
    back_s: float | None
    followed: int
    to_follow: int

    @property
    def is_good(self) -> bool:
        return (
            self.rate_ratio >= KEPT_RATE_MIN
            and self.p99_ratio <= P99_RATIO_MAX
            and self.back_s is not None
            and (self.kind not in SILENT or not self.returns_while_gray)
            and self.followed == self.to_follow
        )


def _slow(factor: float, gate: GrayGate, rate: float) -> None:
    gate.bytes_per_s = max(1.0, rate * len(ENTRY) / factor)


def _skip(_: ClusterBookie, gate: GrayGate, __: float) -> None:
    gate.skips = True


KINDS: dict[str, Callable[[ClusterBookie, GrayGate, float], None]] = {
    "stopped": lambda bookie, gate, rate: bookie.pause(),
    "slow": lambda bookie, gate, rate: _slow(100, gate, rate),
    "tenth": lambda bookie, gate, rate: _slow(10, gate, rate),
    "cut": lambda bookie, gate, rate: gate.shut("up", "down"),
    "cut-in": lambda bookie, gate, rate: gate.shut("up"),
    "cut-out": lambda bookie, gate, rate: gate.shut("down"),
    "every-second": _skip,
}
"""How a bookie turns gray: given its process, the gate before it, and the ordinary rate."""
SILENT = ("stopped", "cut", "cut-in", "cut-out")
"""Kinds of which no probe is answered."""


class Pace:
    """Spaces batches evenly. What a stall keeps back is not made up for, so it shows in the rate."""

    def __init__(self, entries_per_s: float) -> None:
        self._interval_s = BATCH / entries_per_s
        self._due_s = 0.0

    @classmethod
    def within(cls, disk_bytes: float, seconds: float) -> Pace:
        """Return the pace at which the bookies take no more space, of a measurement with `seconds` of a gray bookie.

        Raises:
            ValueError: the journals alone may take that much.
        """
        if disk_bytes <= JOURNALS_BYTES:
            raise ValueError(f"must be more than {JOURNALS_BYTES / 1e9}, which the journals may take")
        writing_s = seconds * (1 + 1 / ORDINARY_SHARE) + SETTLING_S
        return cls((disk_bytes - JOURNALS_BYTES) / STORED_BYTES / writing_s)

    async def next(self) -> None:
        """Wait until the next batch is due."""
        now = asyncio.get_running_loop().time()
        if now < self._due_s:
            await asyncio.sleep(self._due_s - now)
        self._due_s = max(self._due_s, now) + self._interval_s


class Load:
    """A writer of one kind, and what of it was acknowledged."""

    def __init__(self, writer: LedgerWriter | LogWriter, pace: Pace) -> None:
        self.acknowledged = 0
        self.returns = 0
        self.last: Position | int = -1
        self._writer = writer
        self._pace = pace
        self._took_part = True

    @classmethod
    async def open(cls, client: Client, kind: str, pace: Pace) -> Load:
        if kind == "log":
            return cls(await client.log(LOG).open_for_writing(**QUORUMS, roll_bytes=1 << 40), pace)
        type_ = "VD_JOURNAL" if kind == "relaxed" else "PD_JOURNAL"
        return cls(await client.create(**QUORUMS, ledger_type=type_), pace)

    @property
    def ledger(self) -> LedgerWriter:
        if isinstance(self._writer, LedgerWriter):
            return self._writer
        assert self._writer._current is not None
        return self._writer._current.ledger

    def takes_part(self, bookie: ClusterBookie) -> bool:
        """Whether callers may wait for a bookie."""
        core = self.ledger.core
        return core.slots.may_hold_back(core.slots.ensemble.index(bookie.id))

    def look(self, bookie: ClusterBookie) -> None:
        """Count how often a bookie begins to take part."""
        took_part, self._took_part = self._took_part, self.takes_part(bookie)
        self.returns += self._took_part and not took_part

    async def submit(self) -> None:
        def acknowledged(done: asyncio.Future[Any]) -> None:
            self.acknowledged += BATCH if done.exception() is None else 0

        (await self._writer.submit([ENTRY] * BATCH)).add_done_callback(acknowledged)

    async def append(self) -> None:
        self.last = await self._writer.append(ENTRY)
        self.acknowledged += 1

    async def settle(self) -> None:
        """Wait for what is under way."""
        await self.append()
        await self.ledger.sync()

    async def close(self) -> None:
        await self._writer.close()

    async def rate(self, seconds: float, watched: ClusterBookie) -> float:
        """Return how many entries a second are acknowledged, of a caller that sends at the pace or as it may."""
        loop = asyncio.get_running_loop()
        began, first = loop.time(), self.acknowledged
        while loop.time() - began < seconds:
            await self._pace.next()
            await self.submit()
            self.look(watched)
        return (self.acknowledged - first) / (loop.time() - began)

    async def p99_ms(self, seconds: float, watched: ClusterBookie) -> float:
        """Return the p99 of adds with one in flight."""
        loop = asyncio.get_running_loop()
        began, took = loop.time(), []
        while loop.time() - began < seconds:
            asked = loop.time()
            await self.append()
            took.append(loop.time() - asked)
            self.look(watched)
        return 1000 * sorted(took)[int(0.99 * (len(took) - 1))]

    async def back_after(self, bookie: ClusterBookie) -> float | None:
        """Return how long it takes until a bookie takes part again; None: it does not in BACK_S_MAX."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() - began < BACK_S_MAX:
            if self.takes_part(bookie):
                return loop.time() - began
            await self.rate(0.1, bookie)
            await asyncio.sleep(0.1)
        return None


class Following:
    """A follower of what a load wrote from now on, with a client of its own."""

    def __init__(self, batches: AsyncIterator[EntryBatch]) -> None:
        self.entries = 0
        self._task = asyncio.ensure_future(self._follow(batches))

    @classmethod
    async def start(cls, client: Client, load: Load) -> Following:
        """Follow what comes after the last entry that a load appended."""
        last = load.last
        if isinstance(last, Position):
            return cls(client.log(LOG).follow(Position(last.ordinal, last.ledger_id, last.entry_id + 1)))
        reader = await client.open(load.ledger.ledger_id, recover=False)
        return cls(reader.follow(last + 1))

    async def _follow(self, batches: AsyncIterator[EntryBatch]) -> None:
        async for batch in batches:
            self.entries += len(batch)

    async def up_to(self, count: int) -> int:
        """Return how many entries it got, as soon as that is `count`, or it ends or makes no progress any more."""
        before = -1
        while self.entries < count and self.entries > before and not self._task.done():
            before = self.entries
            for _ in range(int(FOLLOWED_S / 0.1)):
                if self.entries >= count or self._task.done():
                    break
                await asyncio.sleep(0.1)
        return self.entries

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


async def all_registered(client: Client, bookies: int) -> None:
    """Wait for all bookies: one that was stopped before may have lost its session, and registers again."""
    async with asyncio.timeout(BACK_S_MAX):
        while len(await (await client.context()).registry.writable_ids()) < bookies:
            await asyncio.sleep(0.1)


async def measure(cluster: Cluster, writer: str, kind: str, pace: Pace, seconds: float, latency_s: float) -> Measured:
    """Measure one kind with a writer of its own."""
    victim = cluster.bookies[0]
    gate = GrayGate("127.0.0.1", int(victim.id.rpartition(":")[2]))
    await gate.start()
    uri = MetadataUri.parse(cluster.uri)

    async def connected() -> Client:
        tree = RoutedTree(await open_tree(uri), uri.root, {victim.id: gate}, lambda ledger_id, stored: None)
        return Client(cluster.uri, tree=tree)

    client, reading = await connected(), await connected()
    await all_registered(client, len(cluster.bookies))
    following: Following | None = None
    try:
        load = await Load.open(client, writer, pace)
        await load.rate(1.0, victim)
        ordinary_rate = await load.rate(seconds / ORDINARY_SHARE, victim)
        await load.settle()
        ordinary_p99 = await load.p99_ms(latency_s, victim)
        load.look(victim)
        load.returns = 0  # on a busy machine a good bookie may have been left out, too
        KINDS[kind](victim, gate, ordinary_rate)
        gray_rate = await load.rate(seconds, victim)
        await load.settle()
        assert load.returns or not load.takes_part(victim), f"{kind}: the bookie is not gray"
        gray_p99 = await load.p99_ms(latency_s, victim)
        await load.settle()
        following, before = await Following.start(reading, load), load.acknowledged
        await load.rate(min(1.0, seconds), victim)
        await load.settle()
        returns = load.returns
        victim.resume()
        gate.heal()
        back_s = await load.back_after(victim)
        await load.settle()
        await load.close()
        to_follow = load.acknowledged - before
        followed = await following.up_to(to_follow)
    finally:
        victim.resume()
        if following is not None:
            await following.stop()
        await client.close()
        await reading.close()
        await gate.stop()
    return Measured(
        writer,
        kind,
        ordinary_rate,
        gray_rate,
        gray_rate / ordinary_rate,
        ordinary_p99,
        gray_p99,
        gray_p99 / ordinary_p99,
        returns,
        back_s,
        followed,
        to_follow,
    )


async def _p99_of_reads(client: Client, ledger_id: int, seconds: float) -> tuple[float, float]:
    """Return (p50, p99) of reads of one entry, in seconds, by readers that each prefer some bookie."""
    loop, took = asyncio.get_running_loop(), []
    ends = loop.time() + seconds
    while loop.time() < ends or len(took) <= READS_FIRST:
        reader = await client.open(ledger_id, recover=False)
        for number in range(READS_PER_READER):
            entry_id = (len(took) + 7 * number) % READ_ENTRIES
            asked = loop.time()
            await reader.read(entry_id, entry_id)
            took.append(loop.time() - asked)
    took = sorted(took[READS_FIRST:])
    return took[len(took) // 2], took[int(0.99 * (len(took) - 1))]


async def measure_reads(cluster: Cluster, seconds: float) -> tuple[float, float]:
    """Return the p99 of reads with three good bookies, and with one that takes ten times as long, in seconds."""
    victim, uri = cluster.bookies[0], MetadataUri.parse(cluster.uri)
    gate = GrayGate("127.0.0.1", int(victim.id.rpartition(":")[2]))
    await gate.start()
    tree = RoutedTree(await open_tree(uri), uri.root, {victim.id: gate}, lambda ledger_id, stored: None)
    try:
        async with Client(cluster.uri, tree=tree) as client:
            writer = await client.create(**QUORUMS)
            await writer.append_many([ENTRY] * READ_ENTRIES)
            await writer.close()
            usual, ordinary = await _p99_of_reads(client, writer.ledger_id, seconds)
            gate.request_s = (SLOWER_READS - 1) * usual
            return ordinary, (await _p99_of_reads(client, writer.ledger_id, seconds))[1]
    finally:
        await gate.stop()


def line_of(one: Measured) -> str:
    back = "never" if one.back_s is None else f"{one.back_s:.1f} s"
    return (
        f"{one.writer:<8}{one.kind:<13} rate {one.ordinary_rate:7.0f} -> {one.gray_rate:7.0f} ({one.rate_ratio:.2f})  "
        f"p99 {one.ordinary_p99_ms:6.2f} -> {one.gray_p99_ms:6.2f} ms ({one.p99_ratio:.2f})  "
        f"back while gray {one.returns_while_gray}, after {back}  followed {one.followed} of {one.to_follow}"
        f"{'' if one.is_good else '  NOT GOOD'}"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.gray", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="with the gray bookie, at full rate (default 60)")
    parser.add_argument("--latency-seconds", type=float, default=10.0, help="of single adds (default 10)")
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="default: all")
    parser.add_argument("--writer", action="append", choices=WRITERS, help="default: ledger")
    parser.add_argument("--no-reads", action="store_true", help="measure writers only")
    parser.add_argument("--dir", type=Path, help="where the bookies' folders are made")
    parser.add_argument(
        "--disk-gb", type=float, default=DISK_GB, help=f"space there that one kind may take (default {DISK_GB:.0f})"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a kind")
    options = parser.parse_args(arguments)
    try:
        pace = Pace.within(1e9 * options.disk_gb, options.seconds)
    except ValueError as error:
        parser.error(f"--disk-gb {options.disk_gb}: it {error}")
    found, have_ended = [], False
    for writer in options.writer or WRITERS[:1]:
        for kind in options.kind or KINDS:
            # The next one gets an empty disk.
            with (
                tempfile.TemporaryDirectory(prefix="bkspark-gray-", dir=options.dir) as directory,
                Cluster(Path(directory), settings=SETTINGS) as cluster,
            ):
                try:
                    one = asyncio.run(measure(cluster, writer, kind, pace, options.seconds, options.latency_seconds))
                except BookKeeperError as error:
                    print(f"{writer:<8}{kind:<13} the writer or its follower ended: {error}", flush=True)
                    have_ended = True
                    continue
            found.append(one)
            print(json.dumps(asdict(one)) if options.json else line_of(one), flush=True)
    return 0 if not have_ended and reads_are_good(options) and all(one.is_good for one in found) else 1


def reads_are_good(options: argparse.Namespace) -> bool:
    """Measure reads, and print what they came to; return whether the p99 stays within its bound."""
    if options.no_reads:
        return True
    with (
        tempfile.TemporaryDirectory(prefix="bkspark-gray-", dir=options.dir) as directory,
        Cluster(Path(directory), settings=SETTINGS) as cluster,
    ):
        ordinary, gray = asyncio.run(measure_reads(cluster, options.latency_seconds))
    is_good = gray <= P99_RATIO_MAX * ordinary
    if options.json:
        print(json.dumps({"reads": "tenth", "ordinary_p99_ms": 1000 * ordinary, "gray_p99_ms": 1000 * gray}))
    else:
        verdict = "" if is_good else "  NOT GOOD"
        print(
            f"reads   tenth        p99 {1000 * ordinary:6.2f} -> {1000 * gray:6.2f} ms ({gray / ordinary:.2f}){verdict}"
        )
    return is_good


if __name__ == "__main__":
    sys.exit(main())
