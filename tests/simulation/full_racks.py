"""A large cluster on virtual time: 100 bookies on 25 hosts in 5 racks lose a host and then a rack, for ever.

Client, bookie storage, auditors and workers are the shipped ones, as in `full_repairs`. What must hold, in addition to
A1, A2, A5, M2 and C1 there:

    R1  each write set is on Qw hosts and in two racks: when a ledger begins, and when everything is repaired
    R2  repair copies what was lost once, and takes as long as all workers need for these bytes at their rate
    R3  no bookie receives more than twice its share of the copies

R3 is about many copies. Five processes spread theirs, each by itself, so that of few copies one bookie may well receive
twice its share; below `COPIES_MIN` copies a bookie the limit is five standard deviations above the share.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from dataclasses import dataclass

from bkspark.core.copies import stored_entries
from bkspark.core.metadata import LedgerMetadata
from bkspark.core.striping import write_set
from bkspark.errors import BookKeeperError
from bkspark.metadata import paths
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.underreplication import UnderreplicationStore
from bkspark.metadata.uri import MetadataUri
from bookie_service.replication.autorecovery import AutoRecovery
from bookie_service.replication.options import AuditOptions, AutoRecoveryOptions, RepairOptions
from tests.crash.images import Loss
from tests.simulation.full_cluster import URI, FullBookie
from tests.simulation.full_repairs import RepairSchedule, Written

RACKS, HOSTS_PER_RACK, BOOKIES_PER_HOST = 5, 5, 4
WORKERS = 5
RATE = 500
"""Bytes a second of each worker."""
ENTRIES, ENTRY_BYTES = 4, 500
OVERHEAD_S = 10.0
"""What a repair takes in addition to its bytes: until losses are noticed, audits, metadata, the first and last pass."""
COPIES_MIN = 5
FRAME_SHARE = 0.25
"""What frames an entry that is copied, at most, beside its bytes; digest, master key, head."""
LEDGERS_AT_ONCE = 20
_URI = MetadataUri.parse(URI)


@dataclass(slots=True)
class Repair:
    """What one loss came to: bookies that were lost, copies of fragments that took their places, bytes of the entries
    that they had (of closed ledgers, of all) and bytes that were copied, virtual seconds, and the most that one bookie
    received, as a multiple of its share."""

    kind: str
    bookies: int
    copies: int
    lost_bytes: tuple[int, int]
    copied_bytes: int
    seconds: float
    expected_s: float
    most_of_share: float


class RackSchedule(RepairSchedule):
    """One seed: closed ledgers of one client, a few open ones, a host and then a rack are lost."""

    QUORUMS = ((3, 3, 2), (4, 3, 2), (6, 3, 2))

    def __init__(self, seed: int, ledgers: int = 100, checked_share: float = 0.2) -> None:
        """`checked_share`: of the copies that a repair makes, how many are looked for on the disk at that moment."""
        super().__init__(seed)
        self.cluster.metadata_s, self.cluster.journal_s, self.cluster.network_s = 0.0005, 0.0005, 0.0005
        self.cluster.bookies = [FullBookie(self.cluster, 1 + number) for number in range(_BOOKIES)]
        for number, bookie in enumerate(self.cluster.bookies):
            bookie.id = f"host-{number // BOOKIES_PER_HOST:02d}:{bookie.port}"
        self.racks = {it.id: f"/rack-{_host_number(it.id) // HOSTS_PER_RACK}" for it in self.cluster.bookies}
        self.repairs: list[Repair] = []
        self._count = ledgers
        self._checked_share = checked_share
        self._received: Counter[str] = Counter()
        self._copies = 0
        self._recoveries_of: dict[int, AutoRecovery] = {}
        session = self.store.session()
        self._store_of_all, self._listed = LedgerStore(session, _URI), UnderreplicationStore(session, _URI)

    # ---- the schedule ----

    async def _main(self) -> None:
        tree = self.store.session()
        await BookieRegistry(tree, _URI).initialize_cluster()
        places = {bookie: {"rack": rack} for bookie, rack in self.racks.items()}
        await tree.create(f"{_URI.root}/{paths.RACKS}", json.dumps({"default": places}).encode())
        for bookie in self.cluster.bookies:
            await bookie.start()
            await tree.create(f"{_URI.root}/cookies/{bookie.id}", b"4\n", make_parents=True)
        owner = self._client()
        for begin in range(0, self._count, LEDGERS_AT_ONCE):
            count = min(LEDGERS_AT_ONCE, self._count - begin)
            some = await asyncio.gather(*(self._created(owner) for _ in range(count)))
            await asyncio.gather(*(self._fill(ledger, is_first=not begin) for ledger in some))
            self.ledgers += some
        await self._check_places("when ledgers begin")
        self._daemons = [asyncio.ensure_future(self._recovering(number)) for number in range(WORKERS)]
        hosts = sorted({_host_number(bookie) for bookie in self.racks})
        host = self.setting.choice(hosts)
        await self._lose("host", [it for it in self.cluster.bookies if _host_number(it.id) == host])
        rack = self.setting.choice(sorted(set(self.racks.values())))
        await self._lose("rack", [it for it in self.cluster.bookies if self.racks[it.id] == rack and not it.is_lost])
        for ledger in self.ledgers:
            ledger.writer.abandon()
        await self._finish()
        for daemon in self._daemons:
            daemon.cancel()
        await asyncio.gather(*self._daemons, return_exceptions=True)
        await owner.close()

    async def _fill(self, ledger: Written, *, is_first: bool) -> None:
        """Write a ledger and close it; some of the first ones stay open, as those of a client that died.

        A ledger that is open can be closed only while Qw - Qa + 1 = 2 bookies of each write set are there. A rack may
        have two of three copies: only ledgers in three racks stay open.
        """
        payloads = [b"%d:%d".ljust(ENTRY_BYTES) % (ledger.ledger_id, number) for number in range(ENTRIES)]
        ledger.acknowledged = await (await ledger.writer.submit(payloads)) + 1
        ledger.payloads = payloads
        bookies = ledger.writer.metadata.last_fragment.bookies
        sets = (write_set(first, len(bookies), self.quorums[1]) for first in range(len(bookies)))
        if not is_first or any(len({self.racks[bookies[slot]] for slot in slots}) < 3 for slots in sets):
            await ledger.writer.close()

    def open_ledgers(self) -> int:
        """Return how many ledgers their client left open."""
        return sum(not each.writer.metadata.is_closed for each in self.ledgers)

    async def _lose(self, kind: str, lost: list[FullBookie]) -> None:
        """Lose bookies, let everything be repaired, and judge how that went."""
        lost_bytes = await self._lost_bytes({bookie.id for bookie in lost})
        self._received.clear()
        self._copies, copied_before = 0, self._copied_bytes()
        began_s = self.loop.time()
        for bookie in lost:
            bookie.is_lost = True
            await bookie.crash(Loss.LOST)
        ends_s = began_s + OVERHEAD_S + 10 * lost_bytes[1] / (WORKERS * RATE)
        while await self._is_lacking() and self.loop.time() < ends_s:
            await asyncio.sleep(0.5)
        seconds = self.loop.time() - began_s
        copied = self._copied_bytes() - copied_before
        serving = [bookie for bookie in self.cluster.bookies if not bookie.is_lost]
        share = max(1.0, self._received.total() / len(serving))
        most = max(self._received.values(), default=0) / share
        expected_s = copied / (WORKERS * RATE)
        self.repairs.append(
            Repair(
                kind,
                len(lost),
                self._copies,
                lost_bytes,
                copied,
                round(seconds, 1),
                round(expected_s, 1),
                round(most, 2),
            )
        )
        self._judge(self.repairs[-1], len(serving))
        await self._until_whole()
        await self._check_places(f"after the loss of a {kind}")

    def _judge(self, repair: Repair, serving: int) -> None:
        closed, everything = repair.lost_bytes
        if not closed <= repair.copied_bytes <= (1 + FRAME_SHARE) * everything:
            self._complain(f"R2: {repair.copied_bytes} bytes were copied for {repair.lost_bytes}: {repair}")
        # A worker may copy one second's bytes at once, and workers do not end together.
        if not repair.expected_s - 2 <= repair.seconds <= 1.5 * repair.expected_s + OVERHEAD_S:
            self._complain(f"R2: the repair took {repair.seconds:.1f} s, not {repair.expected_s:.1f}: {repair}")
        copies = repair.copies / serving
        most = 2.0 if copies >= COPIES_MIN else 1 + 5 / math.sqrt(max(copies, 0.05)) + 1 / max(copies, 0.05)
        if repair.most_of_share > most:
            self._complain(f"R3: a bookie received {repair.most_of_share} times its share: {repair}")

    async def _recovering(self, number: int) -> None:
        """One autorecovery process."""
        options = AutoRecoveryOptions(
            AuditOptions(bookie_check_interval_s=600.0, ledger_check_interval_s=0.0),
            RepairOptions(bytes_per_s=RATE, grace_s=2.0, pause_s=1.0, failed_pause_max_s=2.0),
        )
        recovery = AutoRecovery(self._client(), f"process {number}", options)
        try:
            await recovery.start()
            self._recoveries_of[number] = recovery
            self._complain(f"autorecovery met an unexpected error: {await recovery.defect!r}")
        except BookKeeperError as error:
            self._complain(f"autorecovery did not start: {error}")
        finally:
            await recovery.stop()

    def _copied_bytes(self) -> int:
        return sum(it.worker.copied_bytes for it in self._recoveries_of.values() if it.worker is not None)

    # ---- what must hold ----

    def _check_copies(self, ledger_id: int, row: int, end_entry: int, old: LedgerMetadata, new: LedgerMetadata) -> None:
        fragment, target = old.fragments[row], new.fragments[row]
        for slot, (before, after) in enumerate(zip(fragment.bookies, target.bookies)):
            if before != after:
                self._received[after] += len(stored_entries(fragment, end_entry, slot, old.write_quorum))
                self._copies += 1
        if self.setting.random() < self._checked_share:
            super()._check_copies(ledger_id, row, end_entry, old, new)

    def _check_targets(self, ledger_id: int, before: tuple[str, ...], after: tuple[str, ...], quorum: int) -> None:
        """Places are looked at when everything is repaired: a fragment may lose several bookies one by one."""

    async def _check_places(self, when: str) -> None:
        """R1, of every ledger."""
        for written, metadata in zip(self.ledgers, await self._all_metadata()):
            for fragment in metadata.fragments:
                for first in range(len(fragment.bookies)):
                    some = write_set(first, len(fragment.bookies), metadata.write_quorum)
                    names = [fragment.bookies[slot] for slot in some]
                    if len({_host_number(name) for name in names}) < len(names):
                        self._complain(f"R1: {when}, a host has two copies of ledger {written.ledger_id}: {names}")
                    if len({self.racks[name] for name in names}) < 2:
                        self._complain(f"R1: {when}, one rack has all copies of ledger {written.ledger_id}: {names}")

    async def _lost_bytes(self, lost: set[str]) -> tuple[int, int]:
        """Return the bytes of the entries of which some bookies have a copy, of closed ledgers and of all."""
        closed = everything = 0
        for written, metadata in zip(self.ledgers, await self._all_metadata()):
            ends = [fragment.first_entry for fragment in metadata.fragments[1:]] + [written.acknowledged]
            for fragment, end_entry in zip(metadata.fragments, ends):
                entries: set[int] = set()
                for slot, name in enumerate(fragment.bookies):
                    if name in lost:
                        entries.update(stored_entries(fragment, end_entry, slot, metadata.write_quorum).tolist())
                everything += len(entries) * ENTRY_BYTES
                closed += metadata.is_closed * len(entries) * ENTRY_BYTES
        return closed, everything

    async def _is_lacking(self) -> bool:
        """Whether the list of under-replicated ledgers has any, or a ledger names a lost bookie."""
        if not await self._listed.is_empty():
            return True
        lost = {bookie.id for bookie in self.cluster.bookies if bookie.is_lost}
        return any(
            not lost.isdisjoint(fragment.bookies)
            for metadata in await self._all_metadata()
            for fragment in metadata.fragments
        )

    async def _all_metadata(self) -> list[LedgerMetadata]:
        return [(await self._store_of_all.read(it.ledger_id)).metadata for it in self.ledgers]


_BOOKIES = RACKS * HOSTS_PER_RACK * BOOKIES_PER_HOST


def _host_number(bookie: str) -> int:
    return int(bookie.removeprefix("host-").partition(":")[0])
