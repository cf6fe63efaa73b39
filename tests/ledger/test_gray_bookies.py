"""A bookie that neither works nor fails, with Qa 2 of 3 and no spare: what it costs the writer. In virtual time.

The writer keeps 0.9 of its rate, and once the bookie is left out the p99 of its adds stays
within twice the ordinary one. `python -m tests.chaos.gray` measures the same with real processes.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from bkspark.client import Client, LedgerReader, LedgerWriter
from bkspark.core.speeds import TRY_AGAIN_S
from bkspark.core.writer_options import WriterOptions
from bkspark.net.pool import NetOptions
from tests.crash.images import Loss
from tests.ledger.gray_bookies import GrayCluster, play_with_client, takes_part

pytestmark = pytest.mark.slow

BATCH = 16
PAUSE_S = 0.02
MINUTE_S = 6.0
STORED = 100
KEPT_RATE = 0.9


def hangs(cluster: GrayCluster) -> None:
    """Its disk hangs: it takes requests, and its journal never syncs."""
    vars(cluster.victim)["work"] = lambda: None


def is_stopped(cluster: GrayCluster) -> None:
    """Its process is stopped: the kernel takes connections, and what is sent."""
    cluster.cut = frozenset({0})


def is_cut_off(cluster: GrayCluster) -> None:
    """Its network is broken both ways, but for the way to the metadata store."""
    cluster.cut = frozenset({0, 1})


def is_unheard(cluster: GrayCluster) -> None:
    """What it answers does not arrive."""
    cluster.cut = frozenset({1})


def is_slow(cluster: GrayCluster) -> None:
    """It takes a hundred times as long for every request."""
    cluster.frame_s = 100 / RATE_PER_S


def is_at_a_tenth_of_the_speed(cluster: GrayCluster) -> None:
    cluster.frame_s = 10 / RATE_PER_S


def answers_every_second_request(cluster: GrayCluster) -> None:
    cluster.skips = True


GRAY = [hangs, is_stopped, is_cut_off, is_unheard, is_slow, is_at_a_tenth_of_the_speed, answers_every_second_request]
RATE_PER_S = BATCH / PAUSE_S


async def rate(writer: LedgerWriter, seconds: float) -> float:
    """Return how many entries a second were acknowledged, of a caller that has as many in flight as it may."""
    loop = asyncio.get_running_loop()
    began, count = loop.time(), 0

    def acknowledged(_: asyncio.Future[int]) -> None:
        nonlocal count
        count += BATCH if loop.time() - began <= seconds else 0

    while loop.time() - began < seconds:
        (await writer.submit([b"x" * 10] * BATCH)).add_done_callback(acknowledged)
        await asyncio.sleep(PAUSE_S)
    await writer.sync()
    return count / seconds


async def p99(writer: LedgerWriter, count: int) -> float:
    """Return the p99 of single adds in seconds."""
    loop = asyncio.get_running_loop()
    took = []
    for _ in range(count):
        began = loop.time()
        await writer.append(b"x" * 10)
        took.append(loop.time() - began)
        await asyncio.sleep(PAUSE_S)
    return sorted(took)[int(0.99 * count)]


@functools.cache
def ordinary_p99(protocol: str) -> float:
    """Return the p99 of single adds where nothing is gray."""
    found = []

    async def measure(_: GrayCluster, writer: LedgerWriter) -> None:
        assert await rate(writer, 1.0) >= 0.99 * RATE_PER_S  # what is offered is what three good bookies take
        found.append(await p99(writer, 120))

    play(measure, wire_protocol=protocol)
    return found[0]


def play(test: Callable[[GrayCluster, LedgerWriter], Any], **options: Any) -> None:
    """Run a test's coroutine with a writer of a 3/3/2 ledger on the cluster."""

    async def with_writer(cluster: GrayCluster, client: Client) -> None:
        writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        await writer.append_many([b"x"] * 10)
        await test(cluster, writer)
        writer.abandon()

    play_with_client(with_writer, **options)


@pytest.mark.parametrize(
    ("turn_gray", "protocol"),
    [*((gray, "v2") for gray in GRAY), (hangs, "v3"), (answers_every_second_request, "v3")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_writer_keeps_its_rate_and_its_latency(turn_gray: Callable[[GrayCluster], None], protocol: str) -> None:
    ordinary = ordinary_p99(protocol)

    async def test(cluster: GrayCluster, writer: LedgerWriter) -> None:
        turn_gray(cluster)
        assert await rate(writer, MINUTE_S) >= KEPT_RATE * RATE_PER_S
        assert not takes_part(writer, cluster)
        assert await p99(writer, 120) <= 2 * ordinary
        # It is back soon after it works again: it has been probed all the time.
        cluster.heal()
        async with asyncio.timeout(2 * MINUTE_S):
            while not takes_part(writer, cluster):
                await rate(writer, 0.2)
        assert (await writer.close()).last_entry == writer.last_entry

    play(test, wire_protocol=protocol)


def test_writer_keeps_its_rate_with_default_limits_over_a_minute() -> None:
    async def test(cluster: GrayCluster, writer: LedgerWriter) -> None:
        began = asyncio.get_running_loop().time()
        hangs(cluster)
        slowest = 0.0
        while asyncio.get_running_loop().time() - began < 60:
            asked = asyncio.get_running_loop().time()
            await writer.append_many([b"x"] * 100)
            slowest = max(slowest, asyncio.get_running_loop().time() - asked)
            await asyncio.sleep(0.5)
        # Its lag is full after five seconds; callers wait for two more at most, once.
        assert slowest < 3

    play(test, writer=WriterOptions(lag_entries_max=1000), net=NetOptions())


def test_second_bookie_that_is_lost_meanwhile_makes_the_gray_one_count_again() -> None:
    """Two of three are needed: the writer waits for the gray one rather than fail, and goes on when that works."""

    async def test(cluster: GrayCluster, writer: LedgerWriter) -> None:
        is_stopped(cluster)
        await rate(writer, 1.0)
        assert not takes_part(writer, cluster)
        pending = asyncio.ensure_future(writer.append_many([b"x"] * 100))
        await cluster.bookies[1].crash(next(iter(Loss)))
        await asyncio.sleep(0.1)
        cluster.heal()
        await asyncio.wait_for(pending, 5)
        await writer.append(b"y")

    play(test)


async def read_p99(reader: LedgerReader, sticky: str, count: int, entries: int) -> float:
    """Return the p99 of reads of some entries, one read at a time, in seconds.

    Each read prefers one bookie, as the first read of a new reader may.
    """
    loop = asyncio.get_running_loop()
    took = []
    for number in range(count):
        first_entry = 7 * number % STORED
        reader._range.preferred = sticky
        began = loop.time()
        await reader.read(first_entry, first_entry + entries - 1)
        took.append(loop.time() - began)
        await asyncio.sleep(PAUSE_S)
    return sorted(took)[int(0.99 * count)]


@pytest.mark.parametrize(
    ("entries", "write_quorum", "protocol"), [(1, 3, "v2"), (20, 3, "v3"), (1, 2, "v3"), (20, 2, "v2")]
)
def test_reads_avoid_a_bookie_at_a_tenth_of_the_speed(entries: int, write_quorum: int, protocol: str) -> None:
    """The p99 of reads stays within twice the ordinary one, though readers prefer the slow bookie."""

    async def test(cluster: GrayCluster, client: Client) -> None:
        writer = await client.create(ensemble=3, write_quorum=write_quorum, ack_quorum=2)
        await writer.append_many([b"x" * 100] * (STORED + entries))
        await writer.close()
        reader = await client.open(writer.ledger_id)
        speeds, bookies = (await client.context()).pool.speeds, [bookie.id for bookie in cluster.bookies]

        def slow_ones() -> frozenset[str]:
            return speeds.slow(bookies, 100 * entries, asyncio.get_running_loop().time())

        ordinary = await read_p99(reader, cluster.victim.id, 150, entries)
        cluster.frame_s = 10 * ordinary
        assert await read_p99(reader, cluster.victim.id, 400, entries) <= 2 * ordinary
        assert slow_ones() == {cluster.victim.id}
        # It is asked again from time to time, and counts as any other one soon after it works again.
        cluster.heal()
        await asyncio.sleep(TRY_AGAIN_S)
        await read_p99(reader, cluster.victim.id, 20, entries)
        assert not slow_ones()

    play_with_client(test, wire_protocol=protocol)


SCANNED = 1000
"""Entries of a ledger that is read from its beginning to its end. Together they have more bytes than a small answer."""


async def scan_p95(client: Client, ledger_id: int, count: int) -> float:
    """Return the p95 of reads of a whole ledger, each by a new reader, in seconds."""
    loop = asyncio.get_running_loop()
    took = []
    for _ in range(count):
        reader = await client.open(ledger_id)
        began = loop.time()
        assert sum([len(batch) async for batch in reader.batches()]) == SCANNED
        took.append(loop.time() - began)
    return sorted(took)[int(0.95 * count)]


@pytest.mark.parametrize(("ensemble", "write_quorum", "protocol"), [(5, 3, "v2"), (3, 3, "v3")])
def test_scans_avoid_a_bookie_at_a_tenth_of_the_speed(ensemble: int, write_quorum: int, protocol: str) -> None:
    """Their answers have few of the entries of a span: a stripe of them, or those of some single reads."""

    async def test(cluster: GrayCluster, client: Client) -> None:
        writer = await client.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=2)
        for _ in range(0, SCANNED, 100):
            await writer.append_many([b"x" * 100] * 100)
        await writer.close()
        ordinary = await scan_p95(client, writer.ledger_id, 20)
        cluster.frame_s = ordinary
        assert await scan_p95(client, writer.ledger_id, 100) <= 2 * ordinary

    play_with_client(test, ensemble - 3, wire_protocol=protocol)
