"""The defects of autorecovery of `repairs`, each a context in which the product has it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from bkspark.cli import restart
from bkspark.cli.plans import store_plan
from bkspark.client import Client
from bkspark.core.effects import WriteMetadata
from bkspark.core.health import Reason
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.core.striping import write_set
from bkspark.ledger.replica_copies import ReplicaReader, ReplicaWriter
from bkspark.metadata.bookie_plans import BookiePlan, BookiePlans
from bkspark.metadata.election import AuditorElection
from bkspark.metadata.underreplication import UnderreplicationStore
from bkspark.wire import v2
from bkspark.wire.digest import EntryDigest, OpenedEntries
from bookie_service.replication import copying, repair
from bookie_service.replication.auditor import Auditor
from bookie_service.replication.copying import FragmentCopier
from bookie_service.replication.repair import CopyEntries, Ended, InspectCopies, Outcome, RecoverLedger, RepairCore
from bookie_service.replication.worker import ReplicationWorker
from tests.planting import Plant, around, changed, replaced

# ---- copying ----


def named_before_copied() -> Plant:
    def wrap(old: Any, self: RepairCore, *arguments: Any) -> Any:
        todo = old(self, *arguments)
        return self.on_copied() if todo and isinstance(todo[0], CopyEntries) else todo

    return around(RepairCore, "_repair", wrap)


def acknowledgements_not_awaited() -> Plant:
    async def drained(self: ReplicaWriter, pieces_max: int) -> None:
        return

    return replaced(ReplicaWriter, "drained", drained)


def refusals_counted() -> Plant:
    def wrap(old: Any, self: ReplicaWriter, ids: np.ndarray, statuses: np.ndarray, *rest: Any) -> None:
        old(self, ids, np.full_like(statuses, v2.EOK), *rest)

    return around(ReplicaWriter, "_on_replies", wrap)


def only_the_beginning_copied() -> Plant:
    def wrap(old: Any, self: FragmentCopier, *arguments: Any) -> Iterator[Any]:
        reads = list(old(self, *arguments))
        return iter(reads[: max(1, len(reads) - 1)])

    return around(FragmentCopier, "_reads", wrap)


def only_first_slots_copied() -> Plant:
    """Each entry goes to the first bookie of its write set alone."""

    def first_of(entry_id: int, size: int, quorum: int) -> tuple[int, ...]:
        return write_set(entry_id, size, quorum)[:1]

    return replaced(copying, "write_set", first_of)


def last_entry_left_out() -> Plant:
    def wrap(old: Any, self: FragmentCopier, todo: CopyEntries, lost: frozenset[str]) -> Any:
        return old(self, replace(todo, end_entry=max(todo.fragment.first_entry, todo.end_entry - 1)), lost)

    return around(FragmentCopier, "copy", wrap)


def copied_as_an_owner() -> Plant:
    return changed(v2, "encode_stored_adds", lambda old: lambda batch, key, flags: old(batch, key))


def damage_copied() -> Plant:
    def unchecked(old: Any, self: EntryDigest, buffer: Any, starts: np.ndarray, ends: np.ndarray, *ids: Any) -> Any:
        if self.given_from or not len(starts):
            return old(self, buffer, starts, ends, *ids)
        fronts = np.stack([np.frombuffer(buffer, self._front, 1, start)[0] for start in starts.tolist()])
        return OpenedEntries(memoryview(buffer), starts, ends, fronts, None)

    return around(EntryDigest, "open_entries", unchecked)


# ---- metadata ----


def conflicts_overwritten() -> Plant:
    def conflict(self: RepairCore, current: LedgerMetadata, version: int) -> Any:
        self.version = version
        return self._write()

    return replaced(RepairCore, "on_metadata_conflict", conflict)


def names_not_compared() -> Plant:
    def names(self: RepairCore, copying: CopyEntries) -> dict[int, str]:
        return {copy.slot: copy.target for copy in copying.copies}

    return replaced(RepairCore, "_names", names)


def length_changed() -> Plant:
    def make(old: Any) -> Any:
        def swapped(metadata: LedgerMetadata, *arguments: Any) -> LedgerMetadata:
            after = old(metadata, *arguments)
            return replace(after, length=after.length + 1) if after.is_closed else after

        return swapped

    return changed(repair, "swapped", make)


def last_fragment_taken_for_settled() -> Plant:
    def settled(metadata: LedgerMetadata) -> list[tuple[Fragment, int]]:
        ends = [fragment.first_entry for fragment in metadata.fragments[1:]]
        ends.append(metadata.last_entry + 1 if metadata.is_closed else metadata.last_fragment.first_entry)
        return list(zip(metadata.fragments, ends))

    return replaced(repair, "settled_fragments", settled)


def empty_fragments_left() -> Plant:
    def wrap(old: Any, self: RepairCore, fragment: Fragment, end_entry: int) -> Any:
        return old(self, fragment, end_entry) if end_entry > fragment.first_entry else None

    return around(RepairCore, "_repair", wrap)


# ---- fencing ----


def grace_ignored() -> Plant:
    return replaced(ReplicationWorker, "_may_recover", lambda self, ledger_id, fragment: True)


def claimed_without_a_look() -> Plant:
    """The ledger is recovered whatever its metadata say by now."""
    return replaced(RepairCore, "_recover", lambda self: [RecoverLedger()])


def open_ledgers_never_recovered() -> Plant:
    return replaced(ReplicationWorker, "_may_recover", lambda self, ledger_id, fragment: False)


def recovered_taken_for_whole() -> Plant:
    def wrap(old: Any, self: RepairCore, *arguments: Any) -> Any:
        old(self, *arguments)
        return [Ended(Outcome.COMPLETE)]

    return around(RepairCore, "on_recovered", wrap)


# ---- looking ----


def holes_overlooked() -> Plant:
    async def missing(self: ReplicaReader, bookie: str, entry_ids: np.ndarray) -> np.ndarray:
        return entry_ids[:0]

    return replaced(ReplicaReader, "missing", missing)


def bookies_that_serve_left_alone() -> Plant:
    def wrap(old: Any, self: RepairCore, *arguments: Any) -> Any:
        todo = old(self, *arguments)
        while todo and isinstance(todo[0], InspectCopies):
            todo = self.on_inspected(todo[0], np.empty(0, np.int64))
        return todo

    return around(RepairCore, "start", wrap)


def lost_bookies_overlooked() -> Plant:
    async def look(self: Auditor) -> None:
        return None

    return replaced(Auditor, "_audit_bookies", look)


# ---- list and locks ----


def locks_kept() -> Plant:
    async def unlock(self: UnderreplicationStore, ledger_id: int) -> None:
        return

    return replaced(UnderreplicationStore, "unlock", unlock)


def own_lock_not_known() -> Plant:
    def wrap(old: Any, self: UnderreplicationStore, ledger_id: int, who: str) -> Any:
        self._locked.add(ledger_id)
        return old(self, ledger_id, who)

    return around(UnderreplicationStore, "lock", wrap)


def own_vote_not_known() -> Plant:
    async def is_ours(self: AuditorElection, vote: str) -> bool:
        return False

    return replaced(AuditorElection, "_is_ours", is_ours)


def deleted_ledgers_kept() -> Plant:
    async def repaired(self: ReplicationWorker, work: Any, session: int) -> Any:
        ended, *others = await old_repaired(self, work, session)
        return (Ended(Outcome.OPEN) if ended.outcome is Outcome.GONE else ended, *others)

    old_repaired: Callable[..., Any] = ReplicationWorker._repaired
    return replaced(ReplicationWorker, "_repaired", repaired)


def failures_never_tried_again() -> Plant:
    def wrap(old: Any, self: ReplicationWorker, ledger_id: int, ended: Ended, fragment: Any) -> None:
        old(self, ledger_id, ended, fragment)
        if ended.outcome is Outcome.DEFERRED:
            self._deferred[ledger_id].due_s = float("inf")

    return around(ReplicationWorker, "_defer", wrap)


def listed_for_ever() -> Plant:
    async def finish(self: UnderreplicationStore, work: Any) -> bool:
        return True

    return replaced(UnderreplicationStore, "finish", finish)


def any_version_written() -> Plant:
    def wrap(old: Any, self: RepairCore) -> Any:
        return [replace(it, expected_version=-1) if isinstance(it, WriteMetadata) else it for it in old(self)]

    return around(RepairCore, "_write", wrap)


# ---- plans of operators ----


def maintenance_ignored() -> Plant:
    async def maintained(self: Auditor) -> tuple[frozenset[str], None]:
        return frozenset(), None

    return replaced(Auditor, "_maintained", maintained)


def return_not_awaited() -> Plant:
    """The next bookie is restarted while the last one is still away."""

    async def until(*arguments: Any) -> None:
        return

    return _both(replaced(restart, "_until_back", until), replaced(restart, "_until_none", until))


def health_not_awaited() -> Plant:
    """A bookie is restarted whatever the state of the cluster is."""

    async def against(*arguments: Any) -> list[Any]:
        return []

    return replaced(restart, "_against", against)


def leaving_bookies_stay() -> Plant:
    """A drain regards a bookie that leaves as one that keeps its copies."""

    def wrap(old: Any, self: RepairCore, fragment: Fragment, bookie: str) -> bool:
        return bookie not in self._bookies.leaving and old(self, fragment, bookie)

    return around(RepairCore, "_is_lost", wrap)


def other_plans_not_looked_at() -> Plant:
    """A restart begins although another operator has begun one since it checked the cluster."""

    async def store(client: Client, stored: BookiePlans, plan: BookiePlan, despite: list[str]) -> list[Reason]:
        await store_plan(stored, plan, lambda there: False)
        return []

    return replaced(restart, "store_harmless", store)


@contextlib.contextmanager
def _both(first: Plant, second: Plant) -> Iterator[None]:
    with first, second:
        yield
