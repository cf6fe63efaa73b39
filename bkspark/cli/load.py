"""Load for `bkspark bench`: writes and reads ledgers as fast as the window allows, and times it.

The unit is a piece of consecutive entries; a window of N entries is kept full by about PIECES_IN_FLIGHT pieces, so no
Python object is made per entry. With a window of 1 each entry is appended by `append`, and its time is the latency of
one add.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from bkspark.client import Client, LedgerReader, LedgerWriter
from bkspark.entries import EntryBatch

PIECES_IN_FLIGHT = 4
PIECE_BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class WriteLoad:
    """What to write. It ends when `entries` are written to all ledgers together, or after `seconds`."""

    entry_size: int
    """Payload bytes of each entry."""
    ensemble: int
    write_quorum: int
    ack_quorum: int
    ledgers: int
    window: int
    """How many entries of one ledger may be unacknowledged."""
    seconds: float | None
    entries: int | None


@dataclass(frozen=True)
class ReadLoad:
    """What to read: every ledger once, or again and again for `seconds`; `window` None leaves it to the reader."""

    ledgers: Sequence[int]
    window: int | None
    seconds: float | None
    entries: int | None
    """The reading ends after this many; None: no such limit."""


@dataclass
class Measurement:
    """What was done, and in how much time; `pieces_s` has the time of every piece, in seconds."""

    entries: int = 0
    """How many were written or read, and their payload `bytes`."""
    bytes: int = 0
    pieces_s: list[float] = field(default_factory=list)
    started_s: float = field(default_factory=time.perf_counter)
    """When it began, by `time.perf_counter`; `cpu_started_s`: by this process's processor time."""
    cpu_started_s: float = field(default_factory=lambda: _cpu_s())

    def note_piece(self, asked_s: float, acknowledged: asyncio.Future[int]) -> None:
        """Note that a piece that was written at `asked_s` is acknowledged, or failed."""
        self.pieces_s.append(time.perf_counter() - asked_s)

    def result(self) -> dict[str, Any]:
        """Return the JSON of `bkspark bench write` and `read`, timed up to now."""
        seconds = time.perf_counter() - self.started_s
        p50, p99, p999 = np.percentile(self.pieces_s, (50, 99, 99.9)) * 1000 if self.pieces_s else (0.0, 0.0, 0.0)
        return {
            "entries": self.entries,
            "seconds": round(seconds, 6),
            "entries_per_s": round(self.entries / seconds, 1),
            "mib_per_s": round(self.bytes / seconds / (1 << 20), 2),
            "latency_ms": {"p50": round(p50, 3), "p99": round(p99, 3), "p999": round(p999, 3)},
            "client_cpu_s": round(_cpu_s() - self.cpu_started_s, 3),
        }


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


# ---- writing ----


async def write(client: Client, load: WriteLoad) -> tuple[list[int], dict[str, Any]]:
    """Write the load; return (ids of the ledgers, which are closed, the result). A failed load deletes its ledgers."""
    writers: list[LedgerWriter] = []
    try:
        for _ in range(load.ledgers):
            creating = asyncio.ensure_future(
                client.create(ensemble=load.ensemble, write_quorum=load.write_quorum, ack_quorum=load.ack_quorum)
            )
            try:
                await asyncio.shield(creating)
            finally:
                # An interrupt may come after the ledger was created and before the answer. It is deleted below, too.
                writers.append(await creating)
        measurement = Measurement()
        deadline = time.perf_counter() + load.seconds if load.seconds else float("inf")
        shares = _shares(load.entries, load.ledgers)
        write_one = _write_in_turn if load.window == 1 else _write_one
        await asyncio.gather(
            *(write_one(writer, load, share, deadline, measurement) for writer, share in zip(writers, shares))
        )
        result = measurement.result()
        for writer in writers:
            await writer.close()
    except BaseException:
        await delete(client, [writer.ledger_id for writer in writers])
        raise
    return [writer.ledger_id for writer in writers], result


async def _write_one(
    writer: LedgerWriter, load: WriteLoad, share: int | None, deadline: float, measurement: Measurement
) -> None:
    piece_entries = piece_size(load.window, load.entry_size)
    piece = EntryBatch.of([os.urandom(load.entry_size) for _ in range(piece_entries)])
    in_flight: deque[tuple[asyncio.Future[int], int]] = deque()
    in_flight_entries = 0
    left = share
    while (left is None or left > 0) and time.perf_counter() < deadline:
        if left is not None and left < len(piece):
            piece = piece.slice(0, left)
        while in_flight and in_flight_entries + len(piece) > load.window:
            acknowledged, count = in_flight.popleft()
            await acknowledged
            in_flight_entries -= count
        asked_s = time.perf_counter()
        acknowledged = await writer.submit(piece)
        acknowledged.add_done_callback(partial(measurement.note_piece, asked_s))
        in_flight.append((acknowledged, len(piece)))
        in_flight_entries += len(piece)
        measurement.entries += len(piece)
        measurement.bytes += piece.payload_bytes
        left = None if left is None else left - len(piece)
    for acknowledged, _ in in_flight:
        await acknowledged


async def _write_in_turn(
    writer: LedgerWriter, load: WriteLoad, share: int | None, deadline: float, measurement: Measurement
) -> None:
    entry, written = os.urandom(load.entry_size), 0
    while (share is None or written < share) and (asked_s := time.perf_counter()) < deadline:
        await writer.append(entry)
        measurement.pieces_s.append(time.perf_counter() - asked_s)
        measurement.bytes += len(entry)
        measurement.entries += 1
        written += 1


def piece_size(window: int, entry_size: int) -> int:
    """Return how many entries are sent together, so that the window has several pieces of bounded size."""
    return max(1, min(window // PIECES_IN_FLIGHT, PIECE_BYTES_MAX // max(1, entry_size)))


def _shares(entries: int | None, ledgers: int) -> list[int | None]:
    """Split `entries` over the ledgers as evenly as whole entries allow."""
    if entries is None:
        return [None] * ledgers
    return [entries // ledgers + (i < entries % ledgers) for i in range(ledgers)]


async def delete(client: Client, ledger_ids: Sequence[int]) -> None:
    """Delete ledgers that a load created."""
    for ledger_id in ledger_ids:
        await client.delete(ledger_id)


# ---- reading ----


async def read(client: Client, load: ReadLoad) -> dict[str, Any]:
    """Read the load, all ledgers at the same time, and return the result."""
    readers = [await client.open(ledger_id) for ledger_id in load.ledgers]
    measurement = Measurement()
    deadline = time.perf_counter() + load.seconds if load.seconds else None
    shares = _shares(load.entries, len(readers))
    await asyncio.gather(
        *(_read_again(reader, load, share, deadline, measurement) for reader, share in zip(readers, shares))
    )
    return measurement.result()


async def _read_again(
    reader: LedgerReader, load: ReadLoad, share: int | None, deadline: float | None, measurement: Measurement
) -> None:
    end_entry = reader.last_entry + 1 if share is None else min(share, reader.last_entry + 1)
    while end_entry:
        if load.window is None:
            await _read_through(reader, end_entry, deadline, measurement)
        else:
            await _read_ranges(reader, end_entry, load.window, deadline, measurement)
        if deadline is None or time.perf_counter() >= deadline:
            return


async def _read_through(reader: LedgerReader, end_entry: int, deadline: float | None, measurement: Measurement) -> None:
    """Read from the first entry to the end with the reader's own read-ahead; a piece is one batch."""
    asked_s = time.perf_counter()
    async for batch in reader.batches(0, end_entry):
        now_s = time.perf_counter()
        _count(batch, now_s - asked_s, measurement)
        asked_s = now_s
        if deadline is not None and now_s >= deadline:
            return


async def _read_ranges(
    reader: LedgerReader, end_entry: int, window: int, deadline: float | None, measurement: Measurement
) -> None:
    """Read ranges in order, with at most `window` requested entries at a time."""
    piece_entries = max(1, window // PIECES_IN_FLIGHT)
    in_flight: deque[asyncio.Task[None]] = deque()
    position = 0
    while position < end_entry and (deadline is None or time.perf_counter() < deadline):
        if (len(in_flight) + 1) * piece_entries > window:
            await in_flight.popleft()
        end = min(position + piece_entries, end_entry)
        in_flight.append(asyncio.create_task(_read_range(reader, position, end, measurement)))
        position = end
    await asyncio.gather(*in_flight)


async def _read_range(reader: LedgerReader, position: int, end: int, measurement: Measurement) -> None:
    asked_s = time.perf_counter()
    batch = await reader.read(position, end - 1)
    _count(batch, time.perf_counter() - asked_s, measurement)


def _count(batch: EntryBatch, piece_s: float, measurement: Measurement) -> None:
    measurement.entries += len(batch)
    measurement.bytes += batch.payload_bytes
    measurement.pieces_s.append(piece_s)
