"""Writers, recoverers and readers at once on real processes under faults, and what the simulator's checkers say of it.

What is judged is what clients see: C1 to C5, C7 (every version of the metadata that a client read or wrote), C8 at the
end by reading every replica, C12. A real run cannot be repeated exactly: the seed decides what is tried. The history
may be written to a file for the judge of `tests.histories`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np

from bkspark.client import Client
from bkspark.core.metadata import LedgerMetadata
from bkspark.core.striping import write_set
from bkspark.errors import BookKeeperError
from bkspark.wire.digest import EntryDigest
from tests.chaos.load import LedgerLoad, LogLoad
from tests.chaos.observed import ledger_history
from tests.chaos.world import Faults, Metadata, Site
from tests.cluster import Cluster
from tests.histories import recorded
from tests.histories.recording import Recorder, value_of
from tests.simulation.checkers import violations
from tests.simulation.history import Audit, Copies

BOOKIES = 5
WRITERS = 4
LOGS = 1
PAUSE_S = 0.45
"""Between two faults, on average."""
HEALED_WITHIN_S = 120.0


@dataclass(slots=True)
class Report:
    """What a campaign came to."""

    seed: int
    seconds: float
    ledgers: int
    acknowledged: int
    operations: int
    faults: dict[str, int]
    violations: list[str] = field(default_factory=list)


def run_campaign(
    directory: Path,
    seed: int,
    budget_s: float,
    *,
    pause_s: float = PAUSE_S,
    writers: int = WRITERS,
    history: Path | None = None,
) -> Report:
    """Start five bookies and a ZooKeeper, strike for `budget_s`, heal, and check; write the history to a file."""
    about = {"seed": seed, "budget_s": budget_s}
    with (
        ThreadPoolExecutor(1) as starter,
        Cluster(directory, BOOKIES) as cluster,
        Recorder(history, about) as recorder,
    ):
        return asyncio.run(Campaign(cluster, recorder, seed, starter).run(budget_s, pause_s, writers))


class Campaign:
    """One seed on one cluster. Three clients: one writes, one recovers, one reads; each is cut off by itself."""

    def __init__(self, cluster: Cluster, recorder: Recorder, seed: int, starter: Executor) -> None:
        self._seed = seed
        self._random = Random(seed)
        self._cluster = cluster
        self._starter = starter
        self._recorder = recorder
        self._metadata = Metadata()
        self._audits: dict[int, Audit] = {}
        self._sites = [Site(name, cluster, self._metadata.note) for name in ("owner", "recoverer", "reader")]

    async def run(self, budget_s: float, pause_s: float, writers: int) -> Report:
        began = time.monotonic()
        for site in self._sites:
            await site.start()
        try:
            faults = Faults(Random(self._random.random()), self._cluster, self._sites, self._starter)
            ledgers = [LedgerLoad(self._recorder, self._sites, self._randomness(number)) for number in range(writers)]
            logs = [
                LogLoad(self._recorder, f"log-{number}", self._sites, self._randomness(writers + number))
                for number in range(LOGS)
            ]
            end_s = asyncio.get_running_loop().time() + budget_s
            loading = [asyncio.ensure_future(load.run_until(end_s)) for load in (*ledgers, *logs)]
            await faults.strike_until(end_s, pause_s)
            await faults.heal()
            found = await self._ended(loading)
            found += await self._audit(logs)
        finally:
            for site in self._sites:
                await site.stop()
        self._recorder.close()
        histories = {ledger_id: ledger_history(operations) for ledger_id, operations in self._recorder.of_ledgers()}
        for ledger_id, ledger in histories.items():
            versions = self._metadata.seen[ledger_id]
            ledger.changes = [(0, versions[version], "a client") for version in sorted(versions)]
            ledger.audits = [self._audits[ledger_id]] if ledger_id in self._audits else []
            found += [f"ledger {ledger_id}: {line}" for line in violations(ledger)]
        return Report(
            seed=self._seed,
            seconds=round(time.monotonic() - began, 1),
            ledgers=len(histories),
            acknowledged=sum(ledger.last_acknowledged + 1 for ledger in histories.values()),
            operations=len(self._recorder.operations),
            faults=dict(faults.struck),
            violations=found,
        )

    def _randomness(self, number: int) -> Random:
        return Random(self._seed * 1_000 + number)

    async def _ended(self, tasks: list[asyncio.Task[None]]) -> list[str]:
        """Wait for tasks after the faults; C12 for those that do not end."""
        done, pending = await asyncio.wait(tasks, timeout=HEALED_WITHIN_S)
        for task in pending:
            task.cancel()
        failed = [f"exception: {task.exception()!r}" for task in done if task.exception() is not None]
        return failed + [f"C12: {len(pending)} clients did not end"] * bool(pending)

    # ---- afterwards ----

    async def _audit(self, logs: list[LogLoad]) -> list[str]:
        """Close every ledger, read it, and look at all replicas; C12 for those with which that does not end."""
        found = []
        for ledger_id in [ledger_id for ledger_id, _ in self._recorder.of_ledgers()]:
            try:
                async with asyncio.timeout(HEALED_WITHIN_S):
                    await self._audit_ledger(ledger_id)
            except TimeoutError:
                found.append(f"ledger {ledger_id}: C12: not closed and read in {HEALED_WITHIN_S:g} s after the faults")
        for log in logs:
            try:
                async with asyncio.timeout(HEALED_WITHIN_S):
                    await log.audit()
            except TimeoutError:
                found.append(f"a log: C12: not recovered and read in {HEALED_WITHIN_S:g} s after the faults")
        return found

    async def _audit_ledger(self, ledger_id: int) -> None:
        client = self._sites[1].client
        metadata = await self._closed(client, ledger_id)
        await recorded.last_look(self._recorder, client, ledger_id)
        stored = await (await client.context()).ledgers.read(ledger_id)
        self._metadata.note(ledger_id, stored)
        self._audits[ledger_id] = await self._copies(client, ledger_id, metadata)

    async def _closed(self, client: Client, ledger_id: int) -> LedgerMetadata:
        """Recover until it works: connections of before the healing may fail first."""
        while True:
            try:
                return await recorded.recover(self._recorder, client, ledger_id, "last recoverer")
            except BookKeeperError:
                await asyncio.sleep(0.1)

    async def _copies(self, client: Client, ledger_id: int, metadata: LedgerMetadata) -> Audit:
        pool = (await client.context()).pool
        digest = EntryDigest(metadata.digest, b"")
        copies = [Copies(0) for _ in range(metadata.last_entry + 1)]
        for ids, bookie in _shares(metadata):
            answers = await (await pool.channel(bookie)).read_entries(ledger_id, ids, digest)
            for entry_id, payload in zip(ids.tolist(), answers.payloads):
                if payload is not None:
                    found = copies[entry_id]
                    copies[entry_id] = Copies(found.valid + 1, 0, found.payloads | {value_of(payload).encode()})
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
