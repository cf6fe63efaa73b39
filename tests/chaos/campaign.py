"""Writers, recoverers and readers at once on real processes under faults, and what the simulator's checkers say of it.

What is judged is what clients see: C1 to C5, C7 (every version of the metadata that a client read or wrote), C8 at the
end by reading every replica, C12. A real run cannot be repeated exactly: the seed decides what is tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np

from bkspark.client import Client, LedgerReader, LedgerWriter
from bkspark.core.metadata import LedgerMetadata
from bkspark.core.striping import write_set
from bkspark.errors import BookKeeperError, NoSuchEntry
from bkspark.wire.digest import EntryDigest
from tests.chaos.world import Faults, Metadata, Site
from tests.cluster import Cluster
from tests.simulation.checkers import violations
from tests.simulation.history import Audit, Close, Copies, LedgerHistory

BOOKIES = 5
WRITERS = 4
PAUSE_S = 0.45
"""Between two faults, on average."""
QUORUMS = ((3, 3, 2), (3, 3, 2), (5, 3, 2), (3, 2, 2), (2, 2, 2), (4, 3, 3))
PIECES_MAX = 60
RECOVERED_SHARE = 0.5
"""Of the ledgers, those that another client recovers while their owner writes."""
HEALED_WITHIN_S = 120.0


@dataclass(slots=True)
class Report:
    """What a campaign came to."""

    seed: int
    seconds: float
    ledgers: int
    acknowledged: int
    faults: dict[str, int]
    violations: list[str] = field(default_factory=list)


def run_campaign(
    directory: Path, seed: int, budget_s: float, *, pause_s: float = PAUSE_S, writers: int = WRITERS
) -> Report:
    """Start five bookies and a ZooKeeper, strike for `budget_s`, heal, and check."""
    with Cluster(directory, BOOKIES) as cluster:
        return asyncio.run(Campaign(cluster, seed).run(budget_s, pause_s, writers))


class Campaign:
    """One seed on one cluster. Three clients: one writes, one recovers, one reads; each is cut off by itself."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._seed = seed
        self._random = Random(seed)
        self._cluster = cluster
        self._metadata = Metadata()
        self._ledgers: dict[int, LedgerHistory] = {}
        self._sites = [Site(name, cluster, self._metadata.note) for name in ("owner", "recoverer", "reader")]

    async def run(self, budget_s: float, pause_s: float, writers: int) -> Report:
        began = time.monotonic()
        for site in self._sites:
            await site.start()
        try:
            faults = Faults(Random(self._random.random()), self._cluster, self._sites)
            end_s = asyncio.get_running_loop().time() + budget_s
            writing = [asyncio.ensure_future(self._write_until(end_s, number)) for number in range(writers)]
            await faults.strike_until(end_s, pause_s)
            await faults.heal()
            found = await self._ended(writing)
            found += await self._audit()
        finally:
            for site in self._sites:
                await site.stop()
        for ledger_id, ledger in self._ledgers.items():
            found += [f"ledger {ledger_id}: {line}" for line in violations(ledger)]
        acknowledged = sum(ledger.last_acknowledged + 1 for ledger in self._ledgers.values())
        seconds = round(time.monotonic() - began, 1)
        return Report(self._seed, seconds, len(self._ledgers), acknowledged, dict(faults.struck), found)

    async def _ended(self, tasks: list[asyncio.Task[None]]) -> list[str]:
        """Wait for tasks after the faults; C12 for those that do not end."""
        done, pending = await asyncio.wait(tasks, timeout=HEALED_WITHIN_S)
        for task in pending:
            task.cancel()
        failed = [f"exception: {task.exception()!r}" for task in done if task.exception() is not None]
        return failed + [f"C12: {len(pending)} clients did not end"] * bool(pending)

    # ---- under faults ----

    async def _write_until(self, end_s: float, number: int) -> None:
        """Write ledgers one after the other, each with its readers and, maybe, somebody who recovers it meanwhile."""
        random = Random(self._seed * 1_000 + number)
        owner, recoverer, reader = (site.client for site in self._sites)
        loop = asyncio.get_running_loop()
        while loop.time() < end_s:
            size, write_quorum, ack_quorum = random.choice(QUORUMS)
            try:
                writer = await owner.create(ensemble=size, write_quorum=write_quorum, ack_quorum=ack_quorum)
            except BookKeeperError:
                await asyncio.sleep(0.1)  # bookies are down, or the store is away
                continue
            ledger = self._ledgers[writer.ledger_id] = LedgerHistory()
            others = [self._read_along(reader, writer.ledger_id, ledger, random)]
            if random.random() < RECOVERED_SHARE:
                others.append(self._recover(recoverer, writer.ledger_id, ledger, random.uniform(0.0, 1.0)))
            await asyncio.gather(self._write(writer, ledger, random), *others)

    async def _write(self, writer: LedgerWriter, ledger: LedgerHistory, random: Random) -> None:
        added = 0
        try:
            for _ in range(random.randrange(1, PIECES_MAX)):
                payloads = [b"%d of %d " % (added + i, writer.ledger_id) * random.choice((1, 1, 50)) for i in range(10)]
                when = time.monotonic_ns()
                for payload in payloads:
                    ledger.invoked[added] = (payload, when)
                    added += 1
                future = await writer.submit(payloads)
                future.add_done_callback(lambda done: _note_acknowledged(ledger, done))
                await asyncio.sleep(random.choice((0.0, 0.0, 0.02)))
            await writer.sync()
            if random.random() < 0.5:
                _learned(ledger, "owner", await writer.close())
        except BookKeeperError:
            pass  # fenced, or too few bookies: whatever the faults led to, the checkers judge what was acknowledged
        finally:
            writer.abandon()

    async def _recover(self, client: Client, ledger_id: int, ledger: LedgerHistory, after_s: float) -> None:
        await asyncio.sleep(after_s)
        with contextlib.suppress(BookKeeperError):
            _learned(ledger, "recoverer", await client.recover(ledger_id))

    async def _read_along(self, client: Client, ledger_id: int, ledger: LedgerHistory, random: Random) -> None:
        """Open without recovery and read what is confirmed, a few times."""
        for number in range(3):
            await asyncio.sleep(random.uniform(0.0, 0.4))
            with contextlib.suppress(BookKeeperError):
                await _read(await client.open(ledger_id), ledger, f"reader {number}")

    # ---- afterwards ----

    async def _audit(self) -> list[str]:
        """Close every ledger, read it, and look at all replicas; C12 for those with which that does not end."""
        found = []
        for ledger_id, ledger in self._ledgers.items():
            try:
                async with asyncio.timeout(HEALED_WITHIN_S):
                    await self._audit_ledger(ledger_id, ledger)
            except TimeoutError:
                found.append(f"ledger {ledger_id}: C12: not closed and read in {HEALED_WITHIN_S:g} s after the faults")
        return found

    async def _audit_ledger(self, ledger_id: int, ledger: LedgerHistory) -> None:
        client = self._sites[1].client
        metadata = await self._closed(client, ledger_id)
        _learned(ledger, "last recoverer", metadata)
        await _read(await client.open(ledger_id), ledger, "last reader")
        stored = await (await client.services()).ledgers.read(ledger_id)
        self._metadata.note(ledger_id, stored)
        versions = self._metadata.seen[ledger_id]
        ledger.changes = [(0, versions[version], "a client") for version in sorted(versions)]
        ledger.audits.append(await self._copies(client, ledger_id, metadata))

    async def _closed(self, client: Client, ledger_id: int) -> LedgerMetadata:
        """Recover until it works: connections of before the healing may fail first."""
        while True:
            try:
                return await client.recover(ledger_id)
            except BookKeeperError:
                await asyncio.sleep(0.1)

    async def _copies(self, client: Client, ledger_id: int, metadata: LedgerMetadata) -> Audit:
        pool = (await client.services()).pool
        digest = EntryDigest(metadata.digest, b"")
        copies = [Copies(0) for _ in range(metadata.last_entry + 1)]
        for ids, bookie in _shares(metadata):
            answers = await (await pool.channel(bookie)).read_entries(ledger_id, ids, digest)
            for entry_id, payload in zip(ids.tolist(), answers.payloads):
                if payload is not None:
                    found = copies[entry_id]
                    copies[entry_id] = Copies(found.valid + 1, 0, found.payloads | {bytes(payload)})
        when = time.monotonic_ns()
        return Audit(when, "in the end", metadata.last_entry, metadata.ack_quorum, copies)


def _shares(metadata: LedgerMetadata) -> Iterator[tuple[np.ndarray, str]]:
    """Yield (entry ids, bookie that metadata names for them), few enough to be read at once."""
    for first in range(0, metadata.last_entry + 1, 256):
        held: dict[str, list[int]] = {}
        for entry_id in range(first, min(first + 256, metadata.last_entry + 1)):
            bookies = metadata.fragment_of(entry_id).bookies
            for slot in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum):
                held.setdefault(bookies[slot], []).append(entry_id)
        for bookie, ids in held.items():
            yield np.array(ids), bookie


def _note_acknowledged(ledger: LedgerHistory, done: asyncio.Future[int]) -> None:
    if not done.cancelled() and done.exception() is None:
        ledger.acknowledged.append((done.result(), time.monotonic_ns()))


def _learned(ledger: LedgerHistory, who: str, metadata: LedgerMetadata) -> None:
    ledger.closes.append(Close(who, metadata.last_entry, metadata.length, time.monotonic_ns()))


async def _read(reader: LedgerReader, ledger: LedgerHistory, who: str) -> None:
    """Note the LAC that a reader was told, and everything up to it."""
    lac = reader.last_entry
    ledger.lacs.append((who, lac, time.monotonic_ns()))
    try:
        async for batch in reader.batches():
            ledger.reads += [(who, batch.first_entry + i, bytes(payload)) for i, payload in enumerate(batch)]
    except NoSuchEntry as error:
        ledger.denied.append((who, -1 if error.entry_id is None else error.entry_id, lac))
