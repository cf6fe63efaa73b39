"""LogStore: named logs in the metadata store. Every change is one compare-and-set on the log's head.

Three rules make a log's list safe to share:
* A ledger enters the list only while it is pending (attempts.py), so no condemned ledger is ever published.
* A version of a name (an epoch of a streaming query) is published once: the head records each name's last version and
  its publisher. That publisher may repeat it, which changes nothing; all others are refused.
* The log has one writer. A process that opens it for writing first fences every ledger that is open according to the
  head; the head then names the new writer, and the previous one cannot add a ledger any more.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from bkspark.errors import (
    LedgerFenced,
    LogExists,
    MetadataError,
    MetadataVersion,
    NodeExists,
    NoSuchLog,
    NoSuchNode,
    SchemaMismatch,
)
from bkspark.log import changes, times
from bkspark.log.attempts import AttemptStore, DeleteLedger, with_condemned
from bkspark.log.consumer_nodes import CONSUMERS
from bkspark.log.consumers import ConsumerStore
from bkspark.log.delta import DELTA
from bkspark.log.formats import (
    CONDEMNED,
    PAGES,
    PENDING,
    TAIL_LEDGERS_MAX,
    LogHead,
    PageRef,
    Publisher,
    SegmentFacts,
    deletion_node,
    encode_page,
    log_path,
    pending_path,
)
from bkspark.log.heads import CONNECTION_LOSSES_MAX, Change, Decide, HeadStore, NewNode, new_token
from bkspark.log.positions import Position
from bkspark.log.publication import AnyPublisher, AppendOutcome, Publication, check_ledgers, publisher_of
from bkspark.log.retention import Retention
from bkspark.log.schemas import SCHEMAS, SchemaChange
from bkspark.log.snapshot import LogSnapshot
from bkspark.log.times import OpenTimes
from bkspark.log.unnamed import remove_unnamed
from bkspark.log.watching import LogWatch
from bkspark.metadata.tree import Callback, Check, Create, Delete, Operation, Tree
from bkspark.wall_clock import wall_clock_ms

PAGES_DROPPED_MAX = 500
"""Pages that one transaction removes at most: it must stay far below ZooKeeper's 1 MiB."""
SHARED_DROPPED_MAX = 500
"""Registrations of shared ledgers that one transaction removes at most, for the same reason."""
ENDED_MAX = 500
"""Registrations of ledgers that are published, which one transaction ends at most, for the same reason."""
_LATER = (SCHEMAS, CONSUMERS, times.TIMES, DELTA)  # what not every log has

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a log is to begin: at `before`, which is in ledger `first_ordinal` or at the end of the ledger before that.

    `unchanged` are the checks without which the choice is not valid.
    """

    before: Position
    first_ordinal: int
    unchanged: Sequence[Check] = ()


class LogStore:
    """Creates, reads, changes and deletes logs whose ledgers lie below the ledgers root `root`.

    Args:
        clock_ms: returns the time that changes get, in ms since 1970.
    """

    def __init__(self, tree: Tree, root: str, clock_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._tree = tree
        self.clock_ms = clock_ms
        self.heads = HeadStore(tree, root)
        """The heads of the logs. Changes of many logs at once (routing.py) use it, too. Constant."""
        self.attempts = AttemptStore(self.heads)
        self.consumers = ConsumerStore(self.heads)

    def at_one_time(self) -> LogStore:
        """Return a copy of this store whose clock has stopped: all changes made with it get the same time."""
        stopped, now_ms = copy.copy(self), self.clock_ms()
        stopped.clock_ms = lambda: now_ms
        return stopped

    # ---- whole logs ----

    async def names(self) -> list[str]:
        """Return the names of all logs in this metadata store, sorted."""
        return await self.heads.names()

    async def create(self, name: str, *, exist_ok: bool = False) -> None:
        """Create an empty log.

        Raises:
            LogExists: there is one of that name, unless `exist_ok`.
            ConfigurationError: the name is unusable, or taken by a log of another ledgers root.
        """
        if exist_ok:
            with contextlib.suppress(NoSuchLog):  # new, or being deleted: the creation decides
                await self.heads.read(name)
                return
        try:
            await self.heads.create(name)
        except LogExists:
            await self.heads.read(name)
            if not exist_ok:
                raise

    async def snapshot(self, name: str) -> LogSnapshot:
        """Return the log's current list of ledgers: one read, whatever its length.

        Raises:
            NoSuchLog: there is no log of that name.
            ConfigurationError: the name is unusable, or the log belongs to another ledgers root.
        """
        return LogSnapshot(self.heads, name, await self.heads.read(name))

    async def find(self, name: str) -> LogSnapshot | None:
        """Return the log's current list; None if it is gone, or belongs to another ledgers root."""
        stored = await self.heads.find(name)
        return None if stored is None else LogSnapshot(self.heads, name, stored)

    def snapshot_of(self, name: str, head: LogHead) -> LogSnapshot:
        """Return a snapshot of a head that is being decided on; the snapshot's version has no meaning."""
        return LogSnapshot.of_head(self.heads, name, head)

    async def watch(self, name: str, callback: Callback, *, is_routed: bool) -> Callback:
        """Call `callback()` whenever the log may have changed; return the function that ends the watch.

        Args:
            is_routed: whether the log had a delta when it was last read.
        """
        watch = LogWatch(self._tree, name, callback)
        await watch.begin(is_routed=is_routed)
        return watch.end

    async def delete(self, name: str, delete_ledger: DeleteLedger, *, closed: Sequence[int]) -> bool:
        """Delete a log with all its ledgers, also the pending ones; return False if a ledger may be open.

        From the first step on, the log does not exist for others. Another call finishes an interrupted deletion.

        Args:
            closed: ordinals of ledgers that are known to be closed.
        """
        if not await self._replace(name, Publication(()), closed, is_deletion=True):
            return False
        path = log_path(name)
        for _ in range(CONNECTION_LOSSES_MAX):
            await self.attempts.discard(name, lambda _, head: head.is_deleted, delete_ledger)
            await remove_unnamed(self.heads, name)
            stored = await self.heads.read(name, even_if_deleted=True)
            if not stored.head.is_deleted:
                return True  # another call finished the deletion, and a new log has the name
            own = deletion_node(stored.head.log_id)
            later = [Delete(node) for folder in _LATER for node in await self._all(path, folder)]
            folders = [Delete(f"{path}/{folder}") for folder in (own, PAGES, PENDING, CONDEMNED)]
            try:
                await self._tree.transaction([*later, *folders, Delete(path, stored.version)])
            except (NodeExists, MetadataVersion):
                continue  # an attempt that began before the deletion has registered a ledger
            except MetadataError as error:
                if await self._tree.exists(path) is not None:
                    if not isinstance(error, NoSuchNode):
                        raise
                    await self.heads.mark_deleted(name)
                    continue  # the node of this deletion was missing, or a reader has ended its registration
            return True
        raise MetadataError(f"log {name} is being used while it is deleted: stop its writers and delete it again")

    async def _all(self, path: str, folder: str) -> list[str]:
        """Return the paths of a folder's children and then of the folder; [] if the log has no such folder."""
        try:
            children = await self._tree.children(f"{path}/{folder}")
        except NoSuchNode:
            return []
        return [*(f"{path}/{folder}/{child}" for child in children), f"{path}/{folder}"]

    # ---- publishing ----

    async def append_ledgers(
        self,
        name: str,
        ledgers: Sequence[SegmentFacts],
        *,
        publisher: AnyPublisher | None = None,
        only_if_empty: bool = False,
        shared: Collection[int] = (),
        schema: SchemaChange | None = None,
    ) -> AppendOutcome:
        """Append closed, pending ledgers, or slices of shared ones, to the list: all of them, or none.

        A slice that continues the last slice of the list extends it. Ledgers in `shared` stay pending, because more of
        them will be published. If the `publisher` has already published its version, or a later one, nothing is
        changed, and the outcome says so.

        Raises:
            NoSuchLog: there is no such log.
            VersionPublished: another query or job published the version, or a later one, under the name.
            LogExists: the log has a ledger already, and `only_if_empty` is set.
            SchemaMismatch: the log has another schema than `schema` was derived from.
            DataLoss: a ledger is not pending: its attempt was regarded as dead.
            MetadataError: the store is unreachable; the message says whether the outcome is unknown.
        """
        by = None if publisher is None else publisher_of(publisher)
        check_ledgers(ledgers)
        publication = Publication(ledgers, by, schema, shared)
        decide = self.appending(name, publication, only_if_empty=only_if_empty)
        outcome = await self.heads.change(name, self._once(name, publication, decide))
        if outcome.is_new:
            await self.attempts.forget_published(name, publication.unshared[ENDED_MAX:])
        return outcome

    def _once(self, name: str, publication: Publication, decide: Decide[T]) -> Decide[T]:
        """Return the decision of a publication, with which the registrations of its ledgers end, as many as fit: if its
        outcome is unknown, and it is made again, a ledger is not pending any more."""

        async def ending(head: LogHead) -> Change[T]:
            change = await decide(head)
            if change.head is None:
                return change
            ended = [Delete(pending_path(name, ledger_id)) for ledger_id in publication.unshared[:ENDED_MAX]]
            return replace(change, also=[*change.also, *ended])

        return ending

    def appending(
        self, name: str, publication: Publication, *, only_if_empty: bool = False, tail_max: int = TAIL_LEDGERS_MAX
    ) -> Decide[AppendOutcome]:
        """Return the decision of `append_ledgers`.

        Args:
            tail_max: ledgers that may be in the head itself.
        """
        ledgers, publisher = publication.ledgers, publication.publisher

        async def decide(head: LogHead) -> Change[AppendOutcome]:
            known = _repeated(head, name, publisher)
            if known is not None:
                return Change(None, known)
            if only_if_empty and head.first_ordinal < head.end_ordinal:
                raise LogExists(f"log {name} holds ledgers already, and was to be written only while it holds none")
            await self.attempts.check(name, [facts.ledger_id for facts in ledgers])
            sliced = replace(head, has_slices=head.has_slices or _has_slices(ledgers, publication.shared))
            grown, nodes = await self._appended(name, sliced, ledgers, tail_max)
            grows = bool(head.tail and ledgers and head.tail[-1].joined(ledgers[0]))
            grown = await self._with_schema(name, grown, publication.schema, head.end_ordinal - grows)
            outcome = AppendOutcome(True, head.end_ordinal - grows, None if publisher is None else publisher.version)
            return self._changed(name, head, _remember(grown, publisher), outcome, nodes)

        return decide

    async def replace_ledgers(
        self,
        name: str,
        ledgers: Sequence[SegmentFacts],
        *,
        closed: Sequence[int],
        publisher: AnyPublisher | None = None,
        schema: SchemaChange | None = None,
    ) -> AppendOutcome | None:
        """Replace the whole list by closed, pending ledgers in one compare-and-set.

        The same change condemns the old ledgers; `attempts.sweep` deletes them. The writer loses the log. Returns None,
        and changes nothing, if the log has an open ledger whose ordinal is not in `closed`. Raises as `append_ledgers`.
        """
        by = None if publisher is None else publisher_of(publisher)
        check_ledgers(ledgers)
        return await self._replace(name, Publication(ledgers, by, schema), closed, is_deletion=False)

    async def _replace(
        self, name: str, publication: Publication, closed: Sequence[int], *, is_deletion: bool
    ) -> AppendOutcome | None:
        decide = self.replacing(name, publication, closed, is_deletion=is_deletion)
        outcome = await self.heads.change(name, self._once(name, publication, decide), even_if_deleted=is_deletion)
        if outcome is not None and outcome.is_new:
            await self.attempts.forget_published(name, publication.unshared[ENDED_MAX:])
        return outcome

    def replacing(
        self,
        name: str,
        publication: Publication,
        closed: Sequence[int],
        *,
        is_deletion: bool = False,
        tail_max: int = TAIL_LEDGERS_MAX,
    ) -> Decide[AppendOutcome | None]:
        """Return the decision of `replace_ledgers`; its result is None as there."""
        ledgers, publisher = publication.ledgers, publication.publisher

        async def decide(head: LogHead) -> Change[AppendOutcome | None]:
            known = _repeated(head, name, publisher)
            if known is not None:
                return Change(None, known)
            if not set(head.open_ordinals) <= set(closed):
                return Change(None, None)
            await self.attempts.check(name, [facts.ledger_id for facts in ledgers])
            old = await self.snapshot_of(name, head).ledgers()
            gone = {ledger.ledger_id for ledger in old} - {facts.ledger_id for facts in ledgers}
            changed, lists = with_condemned(changes.emptied(head), name, sorted(gone))
            changed = replace(changed, is_deleted=is_deletion, has_slices=head.has_slices or _has_slices(ledgers, ()))
            changed, pages = await self._appended(name, changed, ledgers, tail_max)
            if is_deletion:
                changed = replace(changed, schemas=())
            changed = await self._with_schema(name, changed, publication.schema, head.end_ordinal)
            outcome = AppendOutcome(True, head.end_ordinal, None if publisher is None else publisher.version)
            shared = await self._unshared(name, gone)
            return self._changed(name, head, _remember(changed, publisher), outcome, [*lists, *pages], shared)

        return decide

    # ---- truncating ----

    async def truncate(self, name: str, before: Position, *, at_ledger_end: bool, closed: Sequence[int]) -> int | None:
        """Move the log's start to `before`; condemn the ledgers before it, and return their number.

        Args:
            before: in normal form. If it is before the log's start already, nothing is done.
            at_ledger_end: `before` is the end of its ledger, which is closed: that ledger is removed, too.
            closed: ordinals of ledgers known to be closed, as the head may not say so yet.

        Raises:
            ConfigurationError: the position names another ledger than the log has there.
            DataLoss: the position is after the log's end.

        Returns:
            None if a ledger to remove may be open: its writer would lose later entries.
        """

        async def decide(head: LogHead) -> Change[int | None]:
            snapshot = self.snapshot_of(name, head)
            if before <= head.start or before.ordinal < head.first_ordinal:
                return Change(None, 0)
            await snapshot.locate(before)
            first_ordinal = before.ordinal + (at_ledger_end and await self._is_whole(name, snapshot, before))
            if any(ordinal < first_ordinal for ordinal in set(head.open_ordinals) - set(closed)):
                return Change(None, None)
            return await self._cut(name, head, Cut(before, first_ordinal))

        return await self.heads.change(name, decide)

    async def _is_whole(self, name: str, snapshot: LogSnapshot, end: Position) -> bool:
        """Return whether a position that was the end of its ledger, or slice, is so still, and stays so."""
        last_entry = (await snapshot.ledger(end.ordinal)).last_entry
        if last_entry is not None and end.entry_id <= last_entry:
            return False  # the slice has grown since
        is_last = end.ordinal == snapshot.end_ordinal - 1
        return not (is_last and end.ledger_id in await self.attempts.pending_ids(name))

    async def cut(self, name: str, choose: Callable[[LogHead], Awaitable[Cut | None]]) -> int:
        """Remove and condemn the ledgers before the cut that `choose` returns for the present head; return their
        number.

        If the log changes meanwhile, `choose` is called again with the new head.
        """

        async def decide(head: LogHead) -> Change[int]:
            chosen = await choose(head)
            return Change(None, 0) if chosen is None else await self._cut(name, head, chosen)

        return await self.heads.change(name, decide)

    async def _cut(self, name: str, head: LogHead, cut: Cut) -> Change[Any]:
        snapshot = self.snapshot_of(name, head)
        dropped = {ledger.ledger_id for ledger in await snapshot.ledgers(0, cut.first_ordinal)}
        # A shared ledger may have slices on both sides of the cut.
        kept = {ledger.ledger_id for ledger in await snapshot.ledgers(cut.first_ordinal)} if head.has_slices else set()
        gone = dropped - kept
        changed, lists = with_condemned(changes.truncated(head, cut.before, cut.first_ordinal), name, sorted(gone))
        also: list[Operation] = [
            *cut.unchanged,
            *await self._unshared(name, gone),
            *await self._without_notes(name, snapshot, cut),
        ]
        return self._changed(name, head, changed, len(gone), lists, also)

    async def _without_notes(self, name: str, snapshot: LogSnapshot, cut: Cut) -> list[Delete]:
        """Return the operations that delete the times of removed ledgers whose close was not recorded."""
        ids = [(await snapshot.ledger(each)).ledger_id for each in snapshot.open_ordinals if each < cut.first_ordinal]
        paths = [times.open_path(log_path(name), ledger_id) for ledger_id in ids]
        return [Delete(path) for path in paths if await self._tree.exists(path) is not None]

    async def set_retention(self, name: str, retention: Retention) -> None:
        """Set how long a log keeps its ledgers. Raises NoSuchLog."""

        async def decide(head: LogHead) -> Change[None]:
            return Change(None if head.retention == retention else replace(head, retention=retention), None)

        await self.heads.change(name, decide)

    # ---- writing ----

    async def open_writer(
        self, name: str, ledger_id: int, writer: str, closed: Sequence[tuple[int, SegmentFacts]]
    ) -> int | None:
        """Make `writer` the log's writer and add its first ledger, which is pending; return the ledger's ordinal.

        Args:
            closed: ordinal and facts of every ledger that was fenced and closed before.

        Returns:
            None if the log has an open ledger that is not among them: fence that, too, and try again.
        """

        async def decide(head: LogHead) -> Change[int | None]:
            # By their ids, too: a log of this name may have been created again since they were closed.
            if not await self._open_ledgers(name, head) <= {(ordinal, facts.ledger_id) for ordinal, facts in closed}:
                return Change(None, None)
            noted, done = await self._note_closed(name, head, closed)
            return await self._writer_ledger(name, head, replace(noted, writer=writer), ledger_id, done)

        ordinal = await self.heads.change(name, decide)
        if ordinal is not None:
            await self.attempts.forget_published(name, [ledger_id])
        return ordinal

    async def add_writer_ledger(
        self, name: str, ledger_id: int, writer: str, closed: Sequence[tuple[int, SegmentFacts]]
    ) -> int:
        """Add the writer's next ledger, which is pending; return its ordinal.

        Args:
            closed: ordinal and facts of ledgers that the writer has closed since.

        Raises:
            LedgerFenced: another process has opened, overwritten or deleted the log.
        """

        async def decide(head: LogHead) -> Change[int | None]:
            if head.writer != writer:
                raise LedgerFenced(f"log {name} was opened for writing by another client: this writer has lost it")
            noted, done = await self._note_closed(name, head, closed)
            return await self._writer_ledger(name, head, noted, ledger_id, done)

        ordinal = await self.heads.change(name, decide)
        assert ordinal is not None
        await self.attempts.forget_published(name, [ledger_id])
        return ordinal

    async def _open_ledgers(self, name: str, head: LogHead) -> set[tuple[int, int]]:
        """Return the ordinal and id of each ledger that was not known to be closed when the head was written."""
        snapshot = self.snapshot_of(name, head)
        return {(ordinal, (await snapshot.ledger(ordinal)).ledger_id) for ordinal in head.open_ordinals}

    async def _writer_ledger(
        self, name: str, head: LogHead, changed: LogHead, ledger_id: int, done: Sequence[Delete]
    ) -> Change[int | None]:
        await self.attempts.check(name, [ledger_id])
        ordinal = head.end_ordinal
        changed = replace(changed, open_ordinals=(*changed.open_ordinals, ordinal))
        changed, nodes = await self._appended(name, changed, [SegmentFacts(ledger_id)])
        path = log_path(name)
        made = Create(times.open_path(path, ledger_id))
        return self._changed(name, head, changed, ordinal, nodes, [*done, made])

    async def note_times(self, name: str, ledger_id: int, noted: OpenTimes) -> None:
        """Write the times that a ledger's writer has noted to the ledger's node of times."""
        until = noted.until
        await self.heads.note_times(name, ledger_id, noted.encode())
        noted.record(until)

    async def record_closed(
        self, name: str, writer: str, closed: Sequence[tuple[int, SegmentFacts]], *, is_end: bool
    ) -> None:
        """Record the ends of the writer's closed ledgers and, with `is_end`, that the writer is done. Does nothing if
        another process has opened the log meanwhile.
        """

        async def decide(head: LogHead) -> Change[None]:
            if head.writer != writer:
                return Change(None, None)
            noted, done = await self._note_closed(name, head, closed)
            changed, nodes = await self._packed(name, replace(noted, writer=None) if is_end else noted, [])
            return self._changed(name, head, changed, None, nodes, done)

        await self.heads.change(name, decide)

    # ---- inside ----

    async def _with_schema(self, name: str, head: LogHead, schema: SchemaChange | None, ordinal: int) -> LogHead:
        """Return the head with a schema that applies from `ordinal` on, after writing the schema's node."""
        present = head.schemas[-1].name if head.schemas else None
        if schema is None or present == schema.stored.name:
            return head
        if present != schema.base:
            raise SchemaMismatch(
                f"log {name} got another schema since this write began: nothing was published. Write again"
            )
        await self.heads.write_schema(name, schema.stored)
        return changes.with_schema(head, schema.stored.name, ordinal)

    async def _appended(
        self, name: str, head: LogHead, ledgers: Sequence[SegmentFacts], tail_max: int = TAIL_LEDGERS_MAX
    ) -> tuple[LogHead, list[NewNode]]:
        ref = changes.page_to_extend(head, len(ledgers), tail_max)
        extended = None if ref is None else await self._page(name, head, ref)
        timed = replace(head, times=changes.timed(head, ledgers, self.clock_ms()))
        grown, pages = changes.appended(timed, ledgers, extended, new_token(), tail_max)
        nodes = [
            NewNode(f"{PAGES}/{page.ref.name}", encode_page(page.ref.first_ordinal, page.ledgers)) for page in pages
        ]
        if head.times.is_empty and ledgers and await self._tree.exists(f"{log_path(name)}/{times.TIMES}") is None:
            nodes.append(NewNode(times.TIMES, b""))
        return await self._packed(name, grown, nodes)

    async def _packed(self, name: str, head: LogHead, nodes: list[NewNode]) -> tuple[LogHead, list[NewNode]]:
        """Return the head, with marks beyond its limit moved to pages of the time index, and the nodes to write."""
        read = {ref: await self.heads.time_page(name, ref) for ref in times.to_read(head.times)}
        index, pages = times.packed(head.times, read, new_token())
        more = [NewNode(f"{PAGES}/{page.ref.name}", times.encode_page(page.marks)) for page in pages]
        return replace(head, times=index), [*nodes, *more]

    async def _note_closed(
        self, name: str, head: LogHead, closed: Sequence[tuple[int, SegmentFacts]]
    ) -> tuple[LogHead, list[Delete]]:
        """Return the head with ledgers recorded as closed and the times that their writer noted, and the operations
        that delete the nodes of these times."""
        listed = _listed_of(head, closed)
        head, done = changes.note_closed(head, listed), []
        for ordinal, facts in listed:
            noted = await self.heads.open_times(name, facts.ledger_id, ordinal)
            if noted is not None:
                end_entry = 0 if facts.last_entry is None else facts.last_entry + 1
                pages = times.to_unpack(head.times, noted, ordinal, end_entry)
                index = times.unpacked(head.times, [await self.heads.time_page(name, ref) for ref in pages])
                marks = times.of_closed(index, noted, ordinal, end_entry, self.clock_ms())
                head = replace(head, times=times.with_marks(index, marks))
                # With the version that was read: if the writer notes more now, the change is decided again with it.
                done.append(Delete(times.open_path(log_path(name), facts.ledger_id), noted.version))
        return head, done

    async def _page(self, name: str, head: LogHead, ref: PageRef) -> Sequence[SegmentFacts]:
        ledgers = await self.heads.page(name, ref)
        assert len(ledgers) == head.tail_ordinal - ref.first_ordinal
        return ledgers

    async def _unshared(self, name: str, gone: Collection[int]) -> list[Delete]:
        """Return the operations that end the registrations of shared ledgers which are being condemned, so that no more
        slices of them are published.

        Raises:
            MetadataError: there are too many for one transaction.
        """
        shared = sorted(await self.attempts.pending_ids(name) & set(gone))
        if len(shared) > SHARED_DROPPED_MAX:
            raise MetadataError(f"log {name} has {len(shared)} shared ledgers to drop at once: vacuum the log first")
        return [Delete(pending_path(name, ledger_id)) for ledger_id in shared]

    def _changed(
        self,
        name: str,
        head: LogHead,
        changed: LogHead,
        result: T,
        nodes: Sequence[NewNode],
        also: Sequence[Operation] = (),
    ) -> Change[T]:
        """Return the change with the removal of pages that the new head lacks, as many as fit; vacuum does the rest."""
        kept = set(changed.page_names)
        dropped = [page for page in head.page_names if page not in kept][:PAGES_DROPPED_MAX]
        pages = [Delete(f"{log_path(name)}/{PAGES}/{page}") for page in dropped]
        return Change(changed, result, nodes, [*pages, *also])


def _listed_of(head: LogHead, closed: Sequence[tuple[int, SegmentFacts]]) -> list[tuple[int, SegmentFacts]]:
    """Return those of `closed` that are in the list, and not recorded as closed yet."""
    return [(ordinal, facts) for ordinal, facts in closed if ordinal in head.open_ordinals]


def _has_slices(ledgers: Sequence[SegmentFacts], shared: Collection[int]) -> bool:
    return any(facts.first_entry or facts.ledger_id in shared for facts in ledgers)


def _repeated(head: LogHead, log: str, publisher: Publisher | None) -> AppendOutcome | None:
    if publisher is None or not changes.is_repeated(head, log, publisher):
        return None
    return AppendOutcome(False, None, changes.last_version(head, publisher.name))


def _remember(head: LogHead, publisher: Publisher | None) -> LogHead:
    return head if publisher is None else changes.published(head, publisher)
