"""What clients do to ledgers and logs while faults strike, all of it recorded."""

from __future__ import annotations

import asyncio
import contextlib
from random import Random

from bkspark.client import LedgerWriter
from bkspark.errors import BookKeeperError
from bkspark.log.positions import Position
from tests.chaos.world import Site
from tests.histories import recorded
from tests.histories.recorded import RecordedLog, RecordedReader, RecordedWriter
from tests.histories.recording import Recorder

QUORUMS = ((3, 3, 2), (3, 3, 2), (5, 3, 2), (3, 2, 2), (2, 2, 2), (4, 3, 3))
RELAXED_QUORUMS = ((3, 3, 2), (2, 2, 2), (4, 4, 3))
RELAXED_TYPES = ("VD_JOURNAL", "VD_BYPASS_JOURNAL")
RELAXED_SHARE = 0.2
"""Number of ledgers."""
SYNCED_SHARE = 0.1
"""Number of pieces of a ledger."""
PIECES_MAX = 60
PIECE_ENTRIES = 10
RECOVERED_SHARE = 0.5
"""Share of the ledgers that another client recovers while their owner writes."""
CLOSED_SHARE = 0.5
LOOKS = 4
"""How often one reader of a ledger looks how far it goes, and reads it."""
LOG_TENURE_S = 3.0
"""A leader of a log writes up to so long before it closes or abandons it."""
ROLLED_SHARE = 0.1
TRUNCATED_SHARE = 0.1
RETRY_S = 0.1


class LedgerLoad:
    """Ledgers, one after the other: an owner writes, others read along, and perhaps another recovers meanwhile."""

    def __init__(self, recorder: Recorder, sites: list[Site], random: Random) -> None:
        self._recorder = recorder
        self._owner, self._recoverer, self._reader = (site.client for site in sites)
        self._random = random

    async def run_until(self, end_s: float) -> None:
        """Go on until the event loop's clock shows `end_s`."""
        loop, random = asyncio.get_running_loop(), self._random
        while loop.time() < end_s:
            is_relaxed = random.random() < RELAXED_SHARE
            size, write_quorum, ack_quorum = random.choice(RELAXED_QUORUMS if is_relaxed else QUORUMS)
            type_ = random.choice(RELAXED_TYPES) if is_relaxed else "PD_JOURNAL"
            try:
                writer = await self._owner.create(
                    ensemble=size, write_quorum=write_quorum, ack_quorum=ack_quorum, ledger_type=type_
                )
            except BookKeeperError:
                await asyncio.sleep(RETRY_S)  # bookies are down, or the store is away
                continue
            others = [self._read_along(writer.ledger_id, number) for number in range(2)]
            if random.random() < RECOVERED_SHARE:
                others.append(self._recover(writer.ledger_id, random.uniform(0.0, 1.0)))
            await asyncio.gather(self._write(writer), *others)

    async def _write(self, writer: LedgerWriter) -> None:
        random, recorded_writer = self._random, RecordedWriter(self._recorder, writer)
        added = 0
        try:
            for _ in range(random.randrange(1, PIECES_MAX)):
                size = random.choice((1, 1, 50))
                payloads = [b"%d of %d " % (added + i, writer.ledger_id) * size for i in range(PIECE_ENTRIES)]
                added += len(payloads)
                await recorded_writer.submit(payloads)
                if random.random() < SYNCED_SHARE:
                    await recorded_writer.sync()
                await asyncio.sleep(random.choice((0.0, 0.0, 0.02)))
            await recorded_writer.sync()
            if random.random() < CLOSED_SHARE:
                await recorded_writer.close()
                await recorded_writer.submit([b"late"])
        except BookKeeperError:
            pass  # fenced, or too few bookies: whatever the faults led to, the judges look at what was acknowledged
        finally:
            writer.abandon()

    async def _recover(self, ledger_id: int, after_s: float) -> None:
        await asyncio.sleep(after_s)
        with contextlib.suppress(BookKeeperError):
            await recorded.recover(self._recorder, self._recoverer, ledger_id)

    async def _read_along(self, ledger_id: int, number: int) -> None:
        """Open without recovery, and read what is confirmed again and again."""
        reader = RecordedReader(self._recorder, f"reader {number}")
        for _ in range(LOOKS):
            await asyncio.sleep(self._random.uniform(0.0, 0.3))
            with contextlib.suppress(BookKeeperError):
                await reader.look(self._reader, ledger_id)
                await reader.read()


class LogLoad:
    """One log that two leaders take from each other, with a reader, and who truncates it."""

    def __init__(self, recorder: Recorder, name: str, sites: list[Site], random: Random) -> None:
        self._leaders = [RecordedLog(recorder, site.client.log(name), site.name) for site in sites[:2]]
        self._reader = RecordedLog(recorder, sites[2].client.log(name), sites[2].name)
        self._random = random
        self._written = 0
        self._opened = 0

    async def run_until(self, end_s: float) -> None:
        """Go on until the event loop's clock shows `end_s`."""
        await asyncio.gather(*(self._lead(leader, end_s) for leader in self._leaders), self._read_along(end_s))

    async def _lead(self, log: RecordedLog, end_s: float) -> None:
        loop, random = asyncio.get_running_loop(), self._random
        while loop.time() < end_s:
            self._opened += 1
            try:
                writer = await log.open_for_writing(f"writer {self._opened}")
            except BookKeeperError:
                await asyncio.sleep(RETRY_S)
                continue
            until_s = min(end_s, loop.time() + random.uniform(0.0, LOG_TENURE_S))
            try:
                while loop.time() < until_s:
                    payloads = [b"%d" % number for number in range(self._written, self._written + PIECE_ENTRIES)]
                    self._written += len(payloads)
                    await writer.submit(payloads)
                    if random.random() < ROLLED_SHARE:
                        await writer.roll()
                    await asyncio.sleep(random.uniform(0.0, 0.1))
                if random.random() < CLOSED_SHARE:
                    await writer.close()
            except BookKeeperError:
                pass  # the other leader took the log, or faults ended this one
            finally:
                writer.abandon()
            await asyncio.sleep(random.uniform(0.0, LOG_TENURE_S))

    async def _read_along(self, end_s: float) -> None:
        loop, random = asyncio.get_running_loop(), self._random
        position: Position | None = None
        while loop.time() < end_s:
            await asyncio.sleep(random.uniform(0.0, 0.5))
            try:
                position = await self._reader.read(position)
                if position is not None and random.random() < TRUNCATED_SHARE:
                    await self._leaders[1].truncate(position)
            except BookKeeperError:
                position = None  # the log is not there yet, was truncated, or bookies are away

    async def audit(self) -> None:
        """Recover the log and read all of it, again and again until that works."""
        while True:
            try:
                await self._leaders[1].recover()
                await self._reader.read()
                return
            except BookKeeperError:
                await asyncio.sleep(RETRY_S)
