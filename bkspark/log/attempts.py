"""AttemptStore: ledgers that are about to enter a log (pending), and ledgers that are to be deleted (condemned).

An attempt registers its ledger as *pending* before it writes to it. (If it dies before that, it leaves an empty ledger:
`bkspark.log.unregistered`.) Only a pending ledger can be published. To delete it, a process *condemns* it: one
transaction removes it from the pending ledgers and changes the head, which lists it as condemned. Publishing and
condemning both compare and set the head's version, so a ledger is either published or condemned, never both, however
late a publisher comes. No clock decides this; age only selects which attempts are regarded as dead.

Condemned ledgers are deleted afterwards, and then removed from the head. A crash in between leaves them listed, for the
next sweep. A ledger whose writer is still alive needs no fence for that: a condemned ledger cannot be published any
more, and the writer's close fails because the ledger is gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from bkspark.errors import DataLoss, MetadataError, MetadataVersion, NoSuchNode
from bkspark.log import changes
from bkspark.log.formats import (
    CONDEMNED,
    CONDEMNED_LEDGERS_MAX,
    CONDEMNED_LISTS_MAX,
    PENDING,
    LogHead,
    PendingLedger,
    SegmentOwner,
    decode_condemned,
    decode_pending,
    encode_condemned,
    encode_pending,
    log_path,
    parse_pending_name,
    pending_path,
)
from bkspark.log.heads import LOST_RACES_MAX, Change, HeadStore, NewNode, new_token
from bkspark.log.snapshot import LogSnapshot
from bkspark.log.unnamed import remove_unnamed
from bkspark.metadata.tree import Check, Create, Delete, Operation
from bkspark.tasks import chunks, each_of

CONDEMNED_AT_ONCE = 500
"""Pending nodes that one transaction removes: it must stay far below ZooKeeper's 1 MiB."""

DeleteLedger = Callable[[int], Awaitable[None]]
"""Deletes a ledger; one that does not exist is not an error."""


class AttemptStore:
    """Registers, publishes, condemns and deletes the ledgers of attempts."""

    def __init__(self, heads: HeadStore) -> None:
        self._heads = heads

    # ---- pending ----

    async def add(self, name: str, ledger_id: int, owner: SegmentOwner, *, unchanged: Check | None = None) -> None:
        """Register a ledger as pending. Do this before the first entry is written to it.

        Args:
            unchanged: a check that the ledger's metadata are those of its creation. A vacuum that regarded the attempt
                as dead has changed them (`bkspark.log.unregistered`).

        Raises:
            NoSuchLog: there is no such log.
            NodeExists: the ledger is pending already, for another attempt.
            MetadataVersion: `unchanged` does not hold.
        """
        path = pending_path(name, ledger_id)
        for _ in range(LOST_RACES_MAX):
            stored = await self._heads.read(name)
            data = encode_pending(owner, stored.head.end_ordinal)
            # The end ordinal must be that of this log: in one that was created again, the ledger may be listed before
            # it, and would be regarded as not listed.
            operations: list[Operation] = [Check(log_path(name), stored.version), Create(path, data)]
            if unchanged is not None:
                operations.insert(0, unchanged)
            try:
                await self._heads.tree.transaction(operations)
            except MetadataError as error:
                # The node may be ours: the answer was lost, or a lower layer repeated the call.
                if await self._stored(path) == data:
                    return
                if isinstance(error, MetadataVersion) and error.node == log_path(name):
                    continue
                if isinstance(error, (NoSuchNode, MetadataVersion)):
                    await self._heads.read(name)  # raises NoSuchLog if that is the reason
                    raise MetadataVersion(
                        f"ledger {ledger_id} was closed or deleted before it was registered for log {name}: a vacuum "
                        "regarded its attempt as dead. Nothing was written to it: try again",
                        ledger_id=ledger_id,
                    ) from None
                raise
            return
        raise MetadataError(
            f"ledger {ledger_id} was not registered for log {name}: others changed the log {LOST_RACES_MAX} times "
            "meanwhile: try again later"
        )

    async def _stored(self, path: str) -> bytes | None:
        try:
            return (await self._heads.tree.get(path))[0]
        except NoSuchNode:
            return None

    async def pending(self, name: str) -> list[PendingLedger]:
        """Return every pending ledger of a log, by id. Raises NoSuchLog."""
        await self._heads.read(name, even_if_deleted=True)
        return await self._pending(name)

    async def _pending(self, name: str) -> list[PendingLedger]:
        found = await each_of(partial(self._read_pending, name), sorted(await self.pending_ids(name)))
        return [pending for pending in found if pending is not None]

    async def pending_ids(self, name: str) -> set[int]:
        """Return the ids of a log's pending ledgers: one call, whatever their number."""
        folder = f"{log_path(name)}/{PENDING}"
        try:
            children = await self._heads.tree.children(folder)
        except NoSuchNode:
            await self._heads.read(name, even_if_deleted=True)  # raises NoSuchLog if that is the reason
            raise
        return {parse_pending_name(child, folder) for child in children}

    async def _read_pending(self, name: str, ledger_id: int) -> PendingLedger | None:
        path = pending_path(name, ledger_id)
        try:
            data, stat = await self._heads.tree.get(path)
        except NoSuchNode:
            return None
        return decode_pending(data, path, ledger_id, stat.ctime_ms)

    async def check(self, name: str, ledger_ids: Sequence[int]) -> None:
        """Raise DataLoss if one of these ledgers is not pending (any more)."""
        missing = set(ledger_ids) - await self.pending_ids(name)
        if missing:
            # They were registered by other processes, possibly just now.
            await self._heads.tree.catch_up()
            missing = set(ledger_ids) - await self.pending_ids(name)
        if missing:
            ledger_id = min(missing)
            raise DataLoss(
                f"ledger {ledger_id} is not pending for log {name}: it is published already, or its attempt was given "
                f"up by an abort, or by a vacuum that regarded it as dead, and its data is gone: read the log first; "
                f"if its rows are not there, run the job again",
                ledger_id=ledger_id,
            )

    async def forget_published(self, name: str, ledger_ids: Sequence[int]) -> None:
        """Remove the registrations of published ledgers; an unreachable store is not an error.

        The ledgers are published whether or not this succeeds, so their publisher must not get an error. The next
        vacuum removes a remaining registration, because it finds the ledger in the list.
        """
        try:
            await self._forget(name, ledger_ids)
        except MetadataError:
            return

    async def _forget(self, name: str, ledger_ids: Sequence[int]) -> None:
        await each_of(lambda ledger_id: self._heads.remove([pending_path(name, ledger_id)]), ledger_ids)

    # ---- condemned ----

    async def condemn(self, name: str, select: Callable[[PendingLedger, LogHead], bool]) -> list[int]:
        """Condemn the pending ledgers that `select` returns True for, except published ones; return their ids."""
        return await self._condemn_all(name, *await self._choose(name, select))

    async def discard(
        self, name: str, select: Callable[[PendingLedger, LogHead], bool], delete_ledger: DeleteLedger
    ) -> int:
        """Condemn as `condemn`, then sweep; return how many ledgers were condemned. If there are none, this costs two
        reads."""
        head, chosen = await self._choose(name, select)
        condemned = await self._condemn_all(name, head, chosen)
        if condemned or head.condemned:
            await self.sweep(name, delete_ledger)
        return len(condemned)

    async def _choose(
        self, name: str, select: Callable[[PendingLedger, LogHead], bool]
    ) -> tuple[LogHead, list[PendingLedger]]:
        head = (await self._heads.read(name, even_if_deleted=True)).head
        return head, [pending for pending in await self._pending(name) if select(pending, head)]

    async def _condemn_all(self, name: str, read: LogHead, chosen: Sequence[PendingLedger]) -> list[int]:
        condemned: list[int] = []
        for some in chunks(chosen, CONDEMNED_AT_ONCE):
            decide = partial(self._condemn, name, read.log_id, some)
            gone = await self._heads.change(name, decide, even_if_deleted=True)
            if gone is None:
                break
            condemned += gone
            await self._forget(name, [pending.ledger_id for pending in some if pending.ledger_id not in gone])
        return condemned

    async def _condemn(
        self, name: str, log_id: str, chosen: Sequence[PendingLedger], head: LogHead
    ) -> Change[list[int] | None]:
        """Decide which of the chosen ledgers to condemn; None if a new log has the name, whose ledgers these may be."""
        if head.log_id != log_id:
            return Change(None, None)
        # Read after the head: if a process publishes one of them in between, the head changes and this is decided
        # again.
        still = await self.pending_ids(name)
        chosen = [pending for pending in chosen if pending.ledger_id in still]
        since = min((pending.since for pending in chosen), default=head.end_ordinal)
        listed: set[int] = set()
        async for run in LogSnapshot.of_head(self._heads, name, head).runs(since):
            listed.update(ledger.ledger_id for ledger in run)
        doomed = [pending.ledger_id for pending in chosen if pending.ledger_id not in listed]
        if not doomed:
            return Change(None, doomed)
        changed, nodes = with_condemned(head, name, doomed)
        return Change(changed, doomed, nodes, [Delete(pending_path(name, ledger_id)) for ledger_id in doomed])

    async def sweep(self, name: str, delete_ledger: DeleteLedger) -> int:
        """Delete every condemned ledger; return their number. Failed deletions are left for the next sweep."""
        lists = (await self._heads.read(name, even_if_deleted=True)).head.condemned
        count = 0
        for list_name in lists:
            path = f"{log_path(name)}/{CONDEMNED}/{list_name}"
            data = await self._stored(path)
            if data is None:
                continue  # another process's sweep was faster
            ids = decode_condemned(data, path)
            await each_of(delete_ledger, ids)
            count += len(ids)

        async def without(head: LogHead) -> Change[None]:
            left = tuple(list_name for list_name in head.condemned if list_name not in lists)
            return Change(None if left == head.condemned else replace(head, condemned=left), None)

        if lists:
            await self._heads.change(name, without, even_if_deleted=True)
            await self._heads.remove([f"{log_path(name)}/{CONDEMNED}/{list_name}" for list_name in lists])
        return count

    async def vacuum(self, name: str, delete_ledger: DeleteLedger, *, created_before_ms: int) -> int:
        """Delete what dead attempts and interrupted changes left; return the number of ledgers.

        An attempt is regarded as dead if its streaming query has published its epoch or a later one, or if it was
        registered before `created_before_ms` (the metadata store's clock). If it is in fact alive, it cannot publish
        any more: its publisher gets DataLoss, and the job must be run again.
        """

        def is_dead(pending: PendingLedger, head: LogHead) -> bool:
            return is_superseded(pending, head) or pending.ctime_ms < created_before_ms

        await self._heads.read(name)
        await self.condemn(name, is_dead)
        count = await self.sweep(name, delete_ledger)
        await remove_unnamed(self._heads, name)
        return count


def is_superseded(pending: PendingLedger, head: LogHead) -> bool:
    """Return whether a pending ledger belongs to an epoch that its query cannot publish any more."""
    owner = pending.owner
    if owner.kind != "query" or owner.epoch is None:
        return False
    latest = changes.last_version(head, owner.owner_id)
    return latest is not None and owner.epoch <= latest


def with_condemned(head: LogHead, name: str, ledger_ids: Collection[int]) -> tuple[LogHead, list[NewNode]]:
    """Return the head with ledgers condemned, and the nodes to write first.

    Raises:
        MetadataError: too many lists wait for a sweep.
    """
    nodes, names = [], []
    for some in chunks(list(ledger_ids), CONDEMNED_LEDGERS_MAX):
        names.append(new_token())
        nodes.append(NewNode(f"{CONDEMNED}/{names[-1]}", encode_condemned(some)))
    if len(head.condemned) + len(names) > CONDEMNED_LISTS_MAX:
        raise MetadataError(
            f"log {name} has {len(head.condemned)} lists of ledgers that wait to be deleted: vacuum the log first"
        )
    return replace(head, condemned=(*head.condemned, *names)), nodes
