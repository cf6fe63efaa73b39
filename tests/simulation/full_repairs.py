"""Bookies are lost and autorecovery restores what they held: the shipped auditors, workers, client and bookie storage
on virtual time, under faults.

What must hold (docs/reliability.md, A1 to A5, M2), looked at whenever a ledger's metadata change and in the end:

    A1  a bookie that is newly named in a fragment has every entry of its slot, durably
    A2  no entry has fewer copies on named bookies than before the change
    A3  an open ledger whose last fragment names no lost bookie is not fenced, no other before the grace period
    placement: no read-only bookie gets copies; where bookies are in racks, as many write sets as can span two
    A5  autorecovery ends: whatever can be repaired is, a bounded time after the faults
    M2  in a closed ledger only names of bookies change; in an open one no fragment begins earlier
    C1  what was acknowledged is read in the end, as it was written; Qw copies of it lie on named bookies
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from bkspark.core.copies import settled_fragments, stored_entries
from bkspark.core.metadata import LedgerMetadata, LedgerState
from bkspark.core.striping import write_set
from bkspark.errors import BookKeeperError, NoSuchLedger
from bkspark.ledger.writer import LedgerWriter
from bkspark.metadata import encoding, paths
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.paths import parse_ledger_path
from bkspark.metadata.underreplication import UnderreplicationStore
from bkspark.metadata.uri import MetadataUri
from bkspark.wire.digest import EntryDigest
from bkspark.wire.status import Status
from bookie_service.replication import auditor
from bookie_service.replication.autorecovery import AutoRecovery
from bookie_service.replication.options import AuditOptions, AutoRecoveryOptions, RepairOptions
from tests.crash import history as storage_history
from tests.crash.images import Loss, crash_image
from tests.crash.twins import BookieTwin
from tests.planting import changed
from tests.simulation.full_cluster import URI, DelayedTree, FullBookie, ObservedStore
from tests.simulation.full_schedule import FullOutcome, FullSchedule

WHOLE_S = 300.0
"""Virtual seconds after the faults in which everything must be repaired."""

_ROOT = MetadataUri.parse(URI).root


@dataclass(slots=True)
class Written:
    """A ledger: what its owner appended, and how much of that was acknowledged."""

    ledger_id: int
    writer: LedgerWriter
    payloads: list[bytes] = field(default_factory=list)
    acknowledged: int = 0
    is_deleted: bool = False


class RepairSchedule(FullSchedule):
    """One seed: ledgers in all states, bookies lost one after the other, two autorecovery processes, faults."""

    QUORUMS = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (2, 2, 2), (4, 3, 2), (3, 3, 3))
    SPARES = (2, 3)
    KINDS = ("crash", "crash", "reset", "cut", "metadata", "refuse")
    PROTOCOLS = ("v2",)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.cluster.store = self.store = ObservedStore(self._changed)
        self.grace_s = self.random.choice((0.0, 2.0, 8.0))
        self.ledgers: list[Written] = []
        self.swaps = 0
        # Its own source: what a cluster is like changes nothing in when faults strike.
        self.setting = Random(f"setting {seed}")
        self.racks = self._racks()
        self.loses_two = self.quorums[1] == 3 and self.setting.random() < 0.25
        self._daemons: list[asyncio.Task[None]] = []
        self._sessions: dict[int, DelayedTree] = {}
        self._is_repairing = False
        # No fault but the loss of bookies, one at a time.
        self._is_calm = False
        self._complaints: list[str] = []

    def run(self) -> FullOutcome:
        with changed(auditor, "wall_clock_ms", lambda old: lambda: int(self.loop.time() * 1000)):
            outcome = super().run()
        outcome.violations[:0] = self._complaints
        return outcome

    def _complain(self, what: str) -> None:
        if what not in self._complaints:
            self._complaints.append(what)

    # ---- the cluster ----

    def _racks(self) -> dict[str, str]:
        """Return the rack of each bookie; none where the cluster has no rack map."""
        if self.setting.random() < 0.6:
            return {}
        self.history.count_fault("racks")
        count = self.setting.choice((2, 3))
        return {bookie.id: f"/rack-{i % count}" for i, bookie in enumerate(self.cluster.bookies)}

    async def _make_read_only(self) -> FullBookie | None:
        """Let a bookie run full, at times, where enough others take copies."""
        serving = [bookie for bookie in self.cluster.bookies if not bookie.is_lost]
        if self.loses_two or len(serving) < self.quorums[0] + 2 or self.setting.random() < 0.5:
            return None
        self.history.count_fault("read-only")
        full = self.setting.choice(serving)
        await full.change(read_only=True)
        return full

    # ---- the schedule ----

    async def _main(self) -> None:
        tree = self.store.session()
        await BookieRegistry(tree, MetadataUri.parse(URI)).initialize_cluster()
        if self.racks:
            places = {bookie: {"rack": rack} for bookie, rack in self.racks.items()}
            await tree.create(f"{_ROOT}/{paths.RACKS}", json.dumps({"default": places}).encode())
        for bookie in self.cluster.bookies:
            await bookie.start()
            await tree.create(f"{_ROOT}/cookies/{bookie.id}", b"4\n", make_parents=True)
        owner = self._client()
        span_s = self.random.choice((0.1, 0.5, 2.0))
        self.ledgers = [await self._created(owner) for _ in range(self.random.choice((1, 2, 3)))]
        strikes = [asyncio.ensure_future(self._strike(span_s)) for _ in range(self.random.choice((0, 1, 2)))]
        self._is_calm = not strikes and not self.loses_two
        await asyncio.gather(*(self._append(ledger, span_s) for ledger in self.ledgers))
        await self._ended(strikes, "faults")
        for ledger in self.ledgers:
            if self.random.random() < 0.6:
                await self._close(ledger)
        if self.loses_two:
            await self._close_all()
        for bookie in self.cluster.bookies:
            bookie.crashed_s = None
        self._is_repairing = True
        self._daemons = [asyncio.ensure_future(self._recovering(number)) for number in range(2)]
        await self._happen(span_s)
        for ledger in self.ledgers:
            ledger.writer.abandon()
        self._is_repairing = False
        await self._finish()
        for daemon in self._daemons:
            daemon.cancel()
        await asyncio.gather(*self._daemons, return_exceptions=True)
        await owner.close()

    async def _happen(self, span_s: float) -> None:
        """Lose bookies, and let everything be repaired."""
        if self.loses_two:
            await self._lose_a_second_one(span_s)
        else:
            for _ in range(self.random.choice((1, 1, 2))):
                await self._lose_and_heal(span_s)

    async def _created(self, owner: object) -> Written:
        size, write_quorum, ack_quorum = self.quorums
        writer = await owner.create(ensemble=size, write_quorum=write_quorum, ack_quorum=ack_quorum)  # type: ignore[attr-defined]
        return Written(writer.ledger_id, writer)

    async def _append(self, ledger: Written, span_s: float) -> None:
        for _ in range(self.random.choice((0, 1, 3))):
            payloads = [
                b"%d:%d" % (ledger.ledger_id, len(ledger.payloads) + i) for i in range(self.random.choice((1, 2, 9)))
            ]
            try:
                future = await ledger.writer.submit(payloads)
                ledger.payloads += payloads
                ledger.acknowledged = await future + 1
            except BookKeeperError:
                self.history.count_fault("owner ended early")
                return
            await asyncio.sleep(self.random.expovariate(1.0) * span_s / 4)

    async def _close(self, ledger: Written) -> None:
        try:
            await ledger.writer.close()
        except BookKeeperError:
            self.history.count_fault("owner ended early")

    async def _close_all(self) -> None:
        """Close every ledger; those of owners that ended early are fenced for that, so no repair may be watched yet."""
        for ledger in self.ledgers:
            await self._close(ledger)
        client = self._client()
        for ledger in self.ledgers:
            await client.recover(ledger.ledger_id)
        await client.close()

    async def _lose_a_second_one(self, span_s: float) -> None:
        """Lose a bookie, and another while the first one's ledgers are repaired: of three copies one is left.

        Nothing else happens, and everything is closed and whole before: who lost two of Qa copies lost entries.
        """
        self.history.count_fault("second loss")
        await self._until_whole()
        for lost in self.random.sample(self.cluster.bookies, 2):
            lost.is_lost = True
            await lost.crash(Loss.LOST)
            await asyncio.sleep(self.random.random() * span_s)
        await self._until_whole()

    async def _lose_and_heal(self, span_s: float) -> None:
        full = await self._make_read_only()
        lost = self.random.choice([bookie for bookie in self.cluster.bookies if not bookie.is_lost])
        await asyncio.sleep(self.random.random() * span_s)
        lost.is_lost = True
        await lost.crash(Loss.LOST)
        work = [self._strike(4 * span_s) for _ in range(self.random.choice((0, 1, 2)))]
        work += [self._disturb(4 * span_s) for _ in range(self.random.choice((0, 1, 2)))]
        self._is_calm = self._is_calm and not work
        # Owners go on writing, or have died without closing.
        work += [self._append(ledger, 4 * span_s) for ledger in self.ledgers if self.random.random() < 0.5]
        await self._ended([asyncio.ensure_future(each) for each in work], "faults")
        self.cluster.store.faults.clear()
        for bookie in self.cluster.bookies:
            bookie.is_damaging = False
            await bookie.start()
        if not self._is_calm:
            # Some may be cut. Where none is, a copy that its connection loses would go to the next best bookie.
            for link in sorted(self.cluster.links, key=lambda it: it.number):
                link.abort()
        await self._until_whole()
        if full is not None:
            await full.change(read_only=False)

    async def _disturb(self, span_s: float) -> None:
        """Let something happen to autorecovery itself, or to a ledger under its hands."""
        await asyncio.sleep(self.random.random() * span_s)
        kind = self.random.choice(("kill", "expire", "damage", "delete"))
        self.history.count_fault(kind)
        number = self.random.randrange(2)
        if kind == "kill":
            self._daemons[number].cancel()
            await asyncio.gather(self._daemons[number], return_exceptions=True)
            await asyncio.sleep(self.random.random() * span_s)
            self._daemons[number] = asyncio.ensure_future(self._recovering(number))
        elif kind == "expire" and number in self._sessions:
            self.store.expire(self._sessions[number])
        elif kind == "damage":
            bookie = self.random.choice(self.cluster.bookies)
            bookie.is_damaging = True
            await asyncio.sleep(self.random.random() * span_s)
            bookie.is_damaging = False
        elif kind == "delete" and len(self.ledgers) > 1:
            client = self._client()
            victim = self.random.choice(self.ledgers)
            victim.is_deleted = True
            with contextlib.suppress(BookKeeperError):
                await client.delete(victim.ledger_id)
            await client.close()

    async def _recovering(self, number: int) -> None:
        """One autorecovery process, started again when it could not start."""
        options = AutoRecoveryOptions(
            AuditOptions(
                lost_bookie_delay_s=self.random.choice((0.0, 0.0, 3.0)),
                bookie_check_interval_s=30.0,
                ledger_check_interval_s=self.random.choice((5.0, 20.0)),
                verified_share=1.0,
            ),
            RepairOptions(
                ledgers_at_once=self.random.choice((1, 4)),
                bytes_per_s=self.random.choice((-1, -1, 500)),
                grace_s=self.grace_s,
                pause_s=1.0,
                failed_pause_max_s=4.0,
            ),
        )
        while True:
            session = self.cluster.session()
            recovery = AutoRecovery(self._client(session), f"process {number}", options)
            try:
                await recovery.start()
                self._sessions[number] = session
                self._complain(f"autorecovery met an unexpected error: {await recovery.defect!r}")
                return
            except BookKeeperError:
                await asyncio.sleep(0.5)
            finally:
                self._sessions.pop(number, None)
                await recovery.stop()

    # ---- what must hold ----

    def _changed(self, path: str, before: bytes, after: bytes, version: int) -> None:
        ledger_id = parse_ledger_path(path.removeprefix(f"{_ROOT}/"))
        if ledger_id is None:
            return
        old, new = encoding.decode(before, ledger_id), encoding.decode(after, ledger_id)
        self._check_shape(ledger_id, old, new)
        self._check_fencing(ledger_id, old, new)
        settled = settled_fragments(old)
        for row, (fragment, end_entry) in enumerate(settled):
            if fragment != new.fragments[row]:
                self._check_copies(ledger_id, row, end_entry, old, new)
                self._check_targets(ledger_id, fragment.bookies, new.fragments[row].bookies, old.write_quorum)

    def _check_shape(self, ledger_id: int, old: LedgerMetadata, new: LedgerMetadata) -> None:
        firsts = [[fragment.first_entry for fragment in it.fragments] for it in (old, new)]
        kept = len(old.fragments) if old.is_closed else len(old.fragments) - 1
        if firsts[0][:kept] != firsts[1][:kept] or len(new.fragments) < len(old.fragments):
            self._complain(f"M2: fragments of ledger {ledger_id} became {firsts[1]} from {firsts[0]}")
        if old.is_closed and replace(new, fragments=old.fragments) != old:
            self._complain(f"M2: ledger {ledger_id} is closed, and more than names changed")
        for fragment in new.fragments:
            if len(set(fragment.bookies)) != len(fragment.bookies):
                self._complain(f"M2: a bookie of ledger {ledger_id} is named twice: {fragment.bookies}")

    def _check_fencing(self, ledger_id: int, old: LedgerMetadata, new: LedgerMetadata) -> None:
        if not self._is_repairing or (old.state, new.state) != (LedgerState.OPEN, LedgerState.IN_RECOVERY):
            return
        named = [bookie for bookie in self.cluster.bookies if bookie.id in old.last_fragment.bookies]
        since = [bookie.crashed_s for bookie in named if bookie.crashed_s is not None]
        if not since:
            self._complain(f"A3: ledger {ledger_id} is fenced, and its last fragment names no bookie that was away")
        elif self.loop.time() < min(since) + self.grace_s:
            self._complain(f"A3: ledger {ledger_id} is fenced before the grace period is over")

    def _check_copies(self, ledger_id: int, row: int, end_entry: int, old: LedgerMetadata, new: LedgerMetadata) -> None:
        bookies = {bookie.id: bookie for bookie in self.cluster.bookies}
        digest = EntryDigest(old.digest, b"")
        for slot, (before, after) in enumerate(zip(old.fragments[row].bookies, new.fragments[row].bookies)):
            if before == after:
                continue
            self.swaps += 1
            target = image_of(bookies[after])
            for entry_id in stored_entries(old.fragments[row], end_entry, slot, old.write_quorum).tolist():
                if not has_entry(target, digest, ledger_id, entry_id):
                    self._complain(f"A1, A2: ledger {ledger_id} entry {entry_id}: named {after} does not have it")

    def _check_targets(self, ledger_id: int, before: tuple[str, ...], after: tuple[str, ...], quorum: int) -> None:
        """No read-only bookie is named; if nothing else happened, as many write sets as possible span two racks."""
        bookies = {bookie.id: bookie for bookie in self.cluster.bookies}
        changed_slots = [slot for slot, name in enumerate(after) if name != before[slot]]
        for slot in changed_slots:
            if bookies[after[slot]].is_read_only:
                self._complain(f"placement: ledger {ledger_id}: {after[slot]} is named, which takes no copies")
        if not self.racks or not self._is_calm:
            return
        spare = [name for name in bookies if name not in before and not bookies[name].is_lost]
        spare = [name for name in spare if not bookies[name].is_read_only]
        best = max(
            self._spanning(_put(before, dict(zip(changed_slots, some))), quorum)
            for some in itertools.permutations(spare, len(changed_slots))
        )
        if self._spanning(after, quorum) < best:
            self._complain(f"racks: ledger {ledger_id}: {after} could have {best} write sets over two racks")

    def _spanning(self, ensemble: Sequence[str], quorum: int) -> int:
        """Return how many write sets span two racks."""
        sets = [write_set(first, len(ensemble), quorum) for first in range(len(ensemble))]
        return sum(len({self.racks[ensemble[slot]] for slot in slots}) > 1 for slots in sets)

    async def _until_whole(self) -> None:
        ends = self.loop.time() + WHOLE_S
        lacking = await self._lacking()
        while lacking and self.loop.time() < ends:
            await asyncio.sleep(1.0)
            lacking = await self._lacking()
        if lacking:
            self._complain(f"A5: not repaired: {lacking}")

    async def _lacking(self) -> str:
        """Return what is still missing, or nothing."""
        tree = self.store.session()
        uri = MetadataUri.parse(URI)
        store, ledgers = UnderreplicationStore(tree, uri), LedgerStore(tree, uri)
        bookies = {bookie.id: bookie for bookie in self.cluster.bookies}
        for written in self.ledgers:
            try:
                metadata = (await ledgers.read(written.ledger_id)).metadata
            except NoSuchLedger:
                continue
            fragments = settled_fragments(metadata)
            for fragment, end_entry in fragments:
                for slot, name in enumerate(fragment.bookies):
                    if bookies[name].is_lost:
                        return f"ledger {written.ledger_id} names {name}, which is lost"
                    twin, digest = bookies[name].twin, EntryDigest(metadata.digest, b"")
                    for entry_id in stored_entries(fragment, end_entry, slot, metadata.write_quorum).tolist():
                        if twin is None or not has_entry(twin, digest, written.ledger_id, entry_id):
                            return f"ledger {written.ledger_id} entry {entry_id}: {name} does not have it"
            is_left = written.writer.metadata.state is LedgerState.OPEN and metadata.state is not LedgerState.CLOSED
            if is_left and any(bookies[name].is_lost for name in metadata.last_fragment.bookies):
                return f"ledger {written.ledger_id} is open and names a lost bookie"
        listed = [ledger_id async for ledger_id in store.ids()]
        return f"ledgers {listed} are listed" if listed else ""

    async def _finish(self) -> None:
        """Close everything, let it become whole, and read it."""
        client = self._client()
        try:
            for ledger in self.ledgers:
                with contextlib.suppress(NoSuchLedger):
                    await client.recover(ledger.ledger_id)
            await self._until_whole()
            for ledger in self.ledgers:
                with contextlib.suppress(NoSuchLedger):
                    reader = await client.open(ledger.ledger_id)
                    read = [bytes(payload) async for batch in reader.batches() for payload in batch]
                    if read[: ledger.acknowledged] != ledger.payloads[: ledger.acknowledged]:
                        self._complain(f"C1: ledger {ledger.ledger_id} does not read as it was written")
                    self.ledger.acknowledged.append((self.ledger.last_acknowledged + len(read), 0))
        except BookKeeperError as error:
            self._complain(f"C12: a ledger cannot be closed or read in the end: {error}")
        finally:
            self.ledger.acknowledged.clear()
            await client.close()
            self.history.faults["swaps"] = self.swaps


def _put(ensemble: Sequence[str], names: Mapping[int, str]) -> list[str]:
    return [names.get(slot, bookie) for slot, bookie in enumerate(ensemble)]


def image_of(bookie: FullBookie) -> BookieTwin:
    """Return a bookie as a loss of power now would leave it; one that is lost for ever, as it was when that happened.

    No process can know of a loss between the last acknowledgement and the compare-and-set that names this bookie.
    """
    disk = crash_image(bookie.disk, Loss.LOST, Random(0))
    return BookieTwin(disk, bookie.setup, storage_history.History())


def has_entry(twin: BookieTwin, digest: EntryDigest, ledger_id: int, entry_id: int) -> bool:
    """Return whether a bookie answers with an entry whose digest is right."""
    status, _, content = twin.read(ledger_id, entry_id)
    if status != Status.EOK:
        return False
    try:
        digest.open_entry(content, ledger_id, entry_id)
    except BookKeeperError:
        return False
    return True
