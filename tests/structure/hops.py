"""Hops: how many calls of product code one request makes, on its way through a client and one bookie and back.

The client, the bookie and their metadata run in one process, in whose threads `sys.setprofile` reports each call. Calls
of functions, of comprehensions, and each time that a coroutine or a generator goes on count, in files of the product
alone. A trip is made several times if it can be, and the one with the fewest calls is reported: ticks of timers fall
into others, and where a disk was slow, the bookie leaves a sync to its journal's thread for a while.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from pyspark.sql.types import StructType

from bkspark.blocking import loop
from bkspark.client import LedgerWriter
from bkspark.spark import workers
from bkspark.spark.option_values import parse_ledgers
from bkspark.spark.options import SourceOptions
from bkspark.spark.plan import ReadPlanner
from bkspark.spark.read import BookKeeperReader
from tests.layering import PACKAGES
from tests.ledger.in_process import URI, InProcessCluster, run

ROOT = Path(__file__).parents[2]
WARM_UP = 40
"""Appends before one that is measured: a bookie takes a client that adds one entry at a time for such a one by then."""
TRIES = 9
ENTRY = b"v" * 100
READ_ENTRIES = 12

Call = tuple[int, CodeType]
"""The thread that made it, and what was called."""


@dataclass(frozen=True)
class Hops:
    """What one trip took."""

    calls: int
    functions: int
    files: int
    moves: int
    """Calls of which the one before it, on the same thread, was in another file."""

    def __str__(self) -> str:
        return f"{self.calls}, {self.functions}, {self.files}, {self.moves}"


class Recorder:
    """Records calls of product code, in threads that are begun after it, while it is on."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._is_on = False
        self._is_product: dict[str, bool] = {}
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def begin(self) -> None:
        self.calls = []
        self._is_on = True

    def end(self) -> list[Call]:
        self._is_on = False
        return self.calls

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if not self._is_on or event != "call":
            return
        name = frame.f_code.co_filename
        is_product = self._is_product.get(name)
        if is_product is None:
            is_product = self._is_product[name] = name.startswith(
                tuple(f"{ROOT / package}{os.sep}" for package in PACKAGES)
            )
        if is_product:
            self.calls.append((threading.get_ident(), frame.f_code))


def hops(calls: list[Call]) -> Hops:
    """Return the figures of some calls."""
    threads: dict[int, list[CodeType]] = defaultdict(list)
    for thread, code in calls:
        threads[thread].append(code)
    files = [[code.co_filename for code in codes] for codes in threads.values()]
    moves = sum(file != before for names in files for before, file in itertools.pairwise(names))
    return Hops(len(calls), len({code for _, code in calls}), len({name for names in files for name in names}), moves)


async def _one(recorder: Recorder, trip: Callable[[], Awaitable[Any]]) -> list[Call]:
    # What was under way before is over, and what the trip leads to at a bookie belongs to it.
    await asyncio.sleep(0.05)
    recorder.begin()
    await trip()
    return recorder.end()


async def _shortest(recorder: Recorder, trip: Callable[[], Awaitable[Any]]) -> list[Call]:
    return min([await _one(recorder, trip) for _ in range(TRIES)], key=len)


async def _writes(recorder: Recorder, cluster: InProcessCluster) -> dict[str, list[Call]]:
    """Return the calls of each trip of a writer."""
    client = cluster.client()
    writers: list[LedgerWriter] = []

    async def create() -> None:
        writers.append(await client.create(ensemble=1, write_quorum=1, ack_quorum=1))

    trips = {"create, cold client": await _one(recorder, create)}
    writer = writers[0]
    trips["first append, cold connection"] = await _one(recorder, lambda: writer.append(ENTRY))
    for _ in range(WARM_UP):
        await writer.append(ENTRY)
    trips["one append, warm"] = await _shortest(recorder, lambda: writer.append(ENTRY))
    trips["append_many of 10, warm"] = await _shortest(recorder, lambda: writer.append_many([ENTRY] * 10))
    trips["close"] = await _one(recorder, writer.close)
    return trips


async def _reads(recorder: Recorder, cluster: InProcessCluster) -> dict[str, list[Call]]:
    """Return the calls of Spark tasks that read a partition, whose entries a bookie has on disk alone.

    The first task of a worker connects, and is the first to read the ledger since the bookie started.
    """
    client = cluster.client()
    async with await client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
        await writer.append_many([ENTRY] * READ_ENTRIES)
    ledger_id = writer.ledger_id
    options = SourceOptions.parse({"uri": URI, "ledgers": str(ledger_id)})
    planner = ReadPlanner(client, options)
    (partition,) = await planner.partitions(await planner.chosen(parse_ledgers(str(ledger_id))))
    reader = BookKeeperReader(StructType().add("value", "binary"), options)

    def task() -> int:
        return sum(batch.num_rows for batch in reader.read(partition))

    async def read() -> None:
        assert await asyncio.to_thread(task) == READ_ENTRIES

    async def first_read() -> list[Call]:
        await cluster.bookies[0].flush()
        await asyncio.to_thread(_be_new_worker)
        return await _one(recorder, read)

    firsts = [await first_read() for _ in range(TRIES)]
    return {
        "first Spark partition read of a worker, 12 entries": min(firsts, key=len),
        "Spark partition read, 12 entries": await _shortest(recorder, read),
    }


def _be_new_worker() -> None:
    """Forget what this process keeps for its tasks, as one that pyspark's daemon has just forked."""
    workers._after_fork()
    loop._after_fork()


def trips() -> dict[str, list[Call]]:
    """Return the calls of each trip, in order; to be called once in a process that does nothing else."""
    recorder = Recorder()
    found: dict[str, list[Call]] = {}

    async def measure(cluster: InProcessCluster) -> None:
        found.update(await _writes(recorder, cluster))
        found.update(await _reads(recorder, cluster))

    with tempfile.TemporaryDirectory() as directory:
        run(Path(directory), measure, bookies=1)
    sys.setprofile(None)
    threading.setprofile(None)
    return found


def shown(calls: list[Call]) -> list[str]:
    """Return calls as lines, in order: file, function."""
    return [f"{Path(code.co_filename).relative_to(ROOT)}  {code.co_qualname}" for _, code in calls]
