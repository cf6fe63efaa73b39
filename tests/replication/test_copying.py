"""How much a replication worker holds at once, and how fast it copies; on virtual time where time is the question."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from bkspark.client import Client
from bkspark.core.reader import READ_ENTRIES_FIRST, AdaptiveReadSize
from bkspark.entries import EntryBatch
from bkspark.ledger.range_reader import RangeReader
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.copying import PIECES_MAX, READ_AHEAD, ByteRate
from bookie_service.replication.options import AutoRecoveryOptions, RepairOptions
from tests.crash.images import Loss
from tests.ledger.in_process import InProcessCluster, run
from tests.planting import around
from tests.simulation.full_cluster import URI, Cluster
from tests.simulation.virtual_loop import run_in_virtual_time

LARGE = bytes(256 * 1024)
PIECE_BYTES = 64 * 1024


def test_pace_begins_with_few_entries_and_goes_by_the_largest_that_came() -> None:
    pace = AdaptiveReadSize(bytes_max=1000, entries_max=100)
    seen = [pace.entries]
    for largest in (1, 1, 1, 1, 50, 2000, 100, 100, 0):
        pace.on_entries(largest)
        seen.append(pace.entries)
    assert READ_ENTRIES_FIRST == 8
    assert seen == [8, 16, 32, 64, 100, 20, 1, 2, 4, 8]


@pytest.mark.parametrize("quorums", [(2, 2, 2), (3, 2, 2)], ids=["whole", "striped"])
def test_a_worker_holds_few_entries_at_once_when_they_are_large(tmp_path: Path, quorums: tuple[int, int, int]) -> None:
    """Their average size says 2 KiB: reads were of 128 entries and more, four of them at a time."""
    sizes: list[int] = []
    counts: list[int] = []

    async def read_some(old: Any, self: RangeReader, *arguments: Any) -> EntryBatch:
        batch = await old(self, *arguments)
        sizes.append(batch.payload_bytes)
        counts.append(len(batch))
        return batch

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        size, write_quorum, ack_quorum = quorums
        async with await client.create(ensemble=size, write_quorum=write_quorum, ack_quorum=ack_quorum) as writer:
            await writer.append_many([b"small"] * 3000)
            await writer.append_many([LARGE] * 24)
        named = (await client.metadata(writer.ledger_id)).last_fragment.bookies
        await cluster.bookie(named[0]).stop()
        options = RepairOptions(ledgers_at_once=1, copies_in_flight_bytes=PIECES_MAX * PIECE_BYTES)
        repaired = await RepairedCluster.of(cluster.client())
        await repaired.store.mark(writer.ledger_id, [named[0]], 0)
        with around(RangeReader, "read_some", read_some):
            assert await repaired.worker("a worker", AutoRecoveryOptions(repair=options)).repair(writer.ledger_id)

    run(tmp_path, test, bookies=4)
    # Single reads of a striped ledger that were under way when the first large entry came are not prepared for it.
    unprepared = [count for size, count in zip(sizes, counts) if size > PIECE_BYTES and count > 1]
    assert len(unprepared) <= (0 if quorums[0] == quorums[1] else READ_AHEAD)
    assert sum(sizes) >= 12 * len(LARGE)
    assert max(counts) > 8, "small ones travel together"


async def elapsed_s(work: Awaitable[object]) -> float:
    """Return how long something takes."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await work
    return loop.time() - began_s


def test_byte_rate_lets_through_no_more_than_a_second_ahead_for_all_callers() -> None:
    rate, passed = ByteRate(1000), []
    began_s = 100.0

    async def copy(size: int) -> None:
        for _ in range(20):
            await rate.wait(size)
            passed.append((asyncio.get_running_loop().time(), size))

    async def both() -> float:
        await asyncio.sleep(began_s)
        return await elapsed_s(asyncio.gather(copy(100), copy(300)))

    assert run_in_virtual_time(both()) == pytest.approx(20 * 400 / 1000 - 1)
    times, sizes = np.array(passed).T
    assert (np.cumsum(sizes) <= 1000 * (times - began_s + 1) + 1e-6).all()


@pytest.mark.parametrize("raised", [1_000_000, 0, -1])
def test_raised_rate_applies_to_copies_that_wait_already(raised: int) -> None:
    """A copy that waited 1,000 s for its bytes waited on when the operator had raised the rate."""
    rate = ByteRate(1000)

    async def copy() -> None:
        await rate.wait(1_000_000)

    async def raise_it() -> None:
        await asyncio.sleep(10)
        rate.bytes_per_s = raised

    async def both() -> float:
        return await elapsed_s(asyncio.gather(copy(), copy(), raise_it()))

    assert 10 <= run_in_virtual_time(both()) <= 13


def repair_s(bytes_per_s: int) -> float:
    """Return how long the repair of 100 entries of 1,000 bytes takes, on virtual time."""
    cluster = Cluster(Random(1), 4)

    async def repair() -> float:
        await cluster.start()
        async with Client(URI, tree=cluster.session()) as client:
            async with await client.create(ensemble=3, write_quorum=3, ack_quorum=3) as writer:
                await writer.append_many([bytes(1000)] * 100)
            lost = writer.metadata.last_fragment.bookies[0]
            await cluster.bookie(lost).crash(Loss.LOST)
            repaired = await RepairedCluster.of(client)
            await repaired.store.mark(writer.ledger_id, [lost], 0)
            worker = repaired.worker("a worker", AutoRecoveryOptions(repair=RepairOptions(bytes_per_s=bytes_per_s)))
            elapsed = await elapsed_s(worker.repair(writer.ledger_id))
            assert worker.repaired == 1
            assert worker.copied_bytes > 100 * 1000
            return elapsed

    return cluster.run(repair())


def test_replication_rate_by_bytes_is_what_a_repair_keeps_to() -> None:
    free_s, throttled_s = repair_s(-1), repair_s(10_000)
    assert throttled_s > 100 * 1000 / 10_000 - 1
    assert throttled_s < 100 * 1200 / 10_000 + free_s
    assert free_s < 1
