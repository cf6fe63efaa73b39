"""LogStore: named logs in the metadata tree. Every change is one compare-and-set on the log's head.

Three rules make a log's list safe to share:

* A ledger enters the list only while it is pending (attempts.py), so no condemned ledger is ever published.
* A version of a name (an epoch of a streaming query) is published once: the head remembers each name's last version and
  its publisher. That publisher may repeat it, which changes nothing; all others are refused.
* One writer holds the log at a time. A process that opens it for writing must first fence every ledger that is open
  according to the head; the head then names the new writer, and the previous one can no longer add a ledger.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from bkspark.errors import (
    ConfigurationError,
    LedgerFenced,
    LogExists,
    MetadataError,
    MetadataVersion,
    NodeExists,
    NoSuchLog,
    NoSuchNode,
    SchemaMismatch,
)
from bkspark.log import changes
from bkspark.log.attempts import AttemptStore, DeleteLedger, condemned, pending_path
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
    check_publisher,
    encode_page,
    log_path,
)
from bkspark.log.heads import CONNECTION_LOSSES_MAX, Change, Decide, HeadStore, NewNode, StoredHead, new_token
from bkspark.log.positions import Position
from bkspark.log.schemas import SCHEMAS, SchemaChange
from bkspark.log.snapshot import LogSnapshot
from bkspark.log.watching import LogWatch
from bkspark.metadata.tree import Callback, Delete, Tree

PAGES_DROPPED_MAX = 500
"""Pages that one transaction removes: it must stay far below ZooKeeper's 1 MiB."""

SHARED_DROPPED_MAX = 500
"""Registrations of shared ledgers that one transaction removes, for the same reason."""

T = TypeVar("T")

AnyPublisher = Publisher | tuple[str, int] | tuple[str, int, str | None]
"""A publisher, or its members as a plain tuple."""


@dataclass(frozen=True, slots=True)
class AppendOutcome:
    """The outcome of a publication.

    `is_new` False: `publisher` had published this version or a later one (`last_epoch`), so nothing was changed; the
    given ledgers are still pending, unless they were the ones published then.
    """

    is_new: bool
    first_ordinal: int | None
    last_epoch: int | None


class LogStore:
    """Creates, reads, changes and deletes logs whose ledgers lie below the ledgers root `root`."""

    def __init__(self, tree: Tree, root: str) -> None:
        self._tree = tree
        self._heads = HeadStore(tree, root)
        self.attempts = AttemptStore(self._heads)

    @property
    def heads(self) -> HeadStore:
        """The heads of the logs, for changes of many logs at once (routing.py)."""
        return self._heads

    # ---- whole logs ----

    async def names(self) -> list[str]:
        """Return the names of all logs at this metadata store, sorted."""
        return await self._heads.names()

    async def create(self, name: str, *, exist_ok: bool = False) -> None:
        """Create an empty log.

        Raises:
            LogExists: there is one of that name, unless `exist_ok`.
            ConfigurationError: the name is unusable, or taken by a log of another ledgers root.
        """
        if exist_ok:
            try:
                await self._heads.read(name)
                return
            except NoSuchLog:
                pass  # new, or being deleted: the creation decides
        try:
            await self._heads.create(name)
        except LogExists:
            await self._heads.read(name)
            if not exist_ok:
                raise

    async def snapshot(self, name: str) -> LogSnapshot:
        """Return the log's current list of ledgers: one read, whatever its length.

        Raises:
            NoSuchLog: there is no log of that name.
            ConfigurationError: the name is unusable, or the log belongs to another ledgers root.
        """
        return LogSnapshot(self._heads, name, await self._heads.read(name))

    async def watch(self, name: str, callback: Callback, *, is_routed: bool) -> Callback:
        """Call `callback()` whenever the log may have changed; return what ends that.

        Args:
            is_routed: the log was in a routed commit when it was read last.
        """
        watch = LogWatch(self._tree, name, callback)
        await watch.begin(is_routed=is_routed)
        return watch.end

    async def delete(self, name: str, delete_ledger: DeleteLedger, *, closed: Sequence[int]) -> bool:
        """Delete a log with all its ledgers, the pending ones too; False: a ledger that is not in `closed` may be open.

        From the first step on the log is gone for all others. Another call finishes an interrupted deletion.
        """
        if not await self._replace(name, (), None, closed, is_deletion=True):
            return False
        path = log_path(name)
        for _ in range(CONNECTION_LOSSES_MAX):
            await self.attempts.discard(name, lambda *_: True, delete_ledger)
            await self.attempts.remove_unnamed(name)
            version = (await self._heads.read(name, even_if_deleted=True)).version
            present = [each for each in (SCHEMAS, DELTA) if await self._tree.exists(f"{path}/{each}") is not None]
            folders = [Delete(f"{path}/{folder}") for folder in (PAGES, PENDING, CONDEMNED, *present)]
            try:
                await self._tree.transaction([*folders, Delete(path, version)])
            except (NodeExists, MetadataVersion):
                continue  # an attempt that began before the deletion has registered a ledger
            except (NoSuchNode, MetadataError):
                if await self._tree.exists(path) is not None:
                    raise
            return True
        raise MetadataError(f"log {name} is being used while it is deleted: stop its writers and delete it again")

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
        """Put closed, pending ledgers, or slices of shared ones, at the end of the list: all of them, or none.

        A slice that continues the last one of the list extends it. Ledgers in `shared` stay pending: more of them will
        be published. With a `publisher`, a version that it has published, or an earlier one, changes nothing, and the
        outcome says so.

        Raises:
            NoSuchLog: there is no such log.
            VersionPublished: another query or job published the version, or a later one, under the name.
            LogExists: the log has a ledger already, and `only_if_empty` is set.
            SchemaMismatch: the log has another schema than `schema` was derived from.
            DataLoss: a ledger is not pending: its attempt was taken for dead.
            MetadataError: the store is unreachable; the message says whether the outcome is unknown.
        """
        check_ledgers(ledgers, publisher)
        decide = self.appending(
            name, ledgers, publisher=publisher, only_if_empty=only_if_empty, shared=shared, schema=schema
        )
        outcome = await self._heads.change(name, decide)
        if outcome.is_new:
            await self.attempts.forget_published(name, list({facts.ledger_id for facts in ledgers} - set(shared)))
        return outcome

    def appending(
        self,
        name: str,
        ledgers: Sequence[SegmentFacts],
        *,
        publisher: AnyPublisher | None,
        only_if_empty: bool = False,
        shared: Collection[int],
        schema: SchemaChange | None,
        tail_max: int = TAIL_LEDGERS_MAX,
    ) -> Decide[AppendOutcome]:
        """Return the decision of `append_ledgers`.

        Args:
            tail_max: ledgers that may be in the head itself.
        """

        async def decide(head: LogHead) -> Change[AppendOutcome]:
            repeated = _repeated(head, name, publisher)
            if repeated is not None:
                return Change(None, repeated)
            if only_if_empty and head.first_ordinal < head.end_ordinal:
                raise LogExists(f"log {name} holds ledgers already, and was to be written only while it holds none")
            await self.attempts.check(name, [facts.ledger_id for facts in ledgers])
            sliced = replace(head, has_slices=head.has_slices or _has_slices(ledgers, shared))
            grown, nodes = await self._appended(name, sliced, ledgers, tail_max)
            grows = bool(head.tail and ledgers and head.tail[-1].joined(ledgers[0]))
            grown = await self._with_schema(name, grown, schema, head.end_ordinal - grows)
            outcome = AppendOutcome(True, head.end_ordinal - grows, None if publisher is None else publisher[1])
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

        The old ledgers are condemned with it; `attempts.sweep` deletes them. The writer loses the log. None: the log
        has an open ledger whose ordinal is not in `closed`. Raises as `append_ledgers`.
        """
        check_ledgers(ledgers, publisher)
        return await self._replace(name, ledgers, publisher, closed, schema, is_deletion=False)

    async def _replace(
        self,
        name: str,
        ledgers: Sequence[SegmentFacts],
        publisher: AnyPublisher | None,
        closed: Sequence[int],
        schema: SchemaChange | None = None,
        *,
        is_deletion: bool,
    ) -> AppendOutcome | None:
        decide = self.replacing(name, ledgers, publisher, closed, schema, is_deletion=is_deletion)
        outcome = await self._heads.change(name, decide, even_if_deleted=is_deletion)
        if outcome is not None and outcome.is_new:
            await self.attempts.forget_published(name, [facts.ledger_id for facts in ledgers])
        return outcome

    def replacing(
        self,
        name: str,
        ledgers: Sequence[SegmentFacts],
        publisher: AnyPublisher | None,
        closed: Sequence[int],
        schema: SchemaChange | None = None,
        *,
        is_deletion: bool = False,
        tail_max: int = TAIL_LEDGERS_MAX,
    ) -> Decide[AppendOutcome | None]:
        """Return the decision of `replace_ledgers`; the result None as there."""

        async def decide(head: LogHead) -> Change[AppendOutcome | None]:
            repeated = _repeated(head, name, publisher)
            if repeated is not None:
                return Change(None, repeated)
            if not set(head.open_ordinals) <= set(closed):
                return Change(None, None)
            await self.attempts.check(name, [facts.ledger_id for facts in ledgers])
            old = await LogSnapshot(self._heads, name, StoredHead(head, 0)).ledgers()
            gone = {ledger.ledger_id for ledger in old}
            changed, lists = condemned(changes.emptied(head), name, sorted(gone))
            changed = replace(changed, is_deleted=is_deletion, has_slices=head.has_slices or _has_slices(ledgers, ()))
            changed, pages = await self._appended(name, changed, ledgers, tail_max)
            if is_deletion:
                changed = replace(changed, schemas=())
            changed = await self._with_schema(name, changed, schema, head.end_ordinal)
            outcome = AppendOutcome(True, head.end_ordinal, None if publisher is None else publisher[1])
            shared = await self._unshared(name, gone)
            return self._changed(name, head, _remember(changed, publisher), outcome, [*lists, *pages], shared)

        return decide

    # ---- truncating ----

    async def truncate(self, name: str, before: Position, *, at_ledger_end: bool, closed: Sequence[int]) -> int | None:
        """Let the log begin at `before`; condemn the ledgers before it and return their number.

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
            snapshot = LogSnapshot(self._heads, name, StoredHead(head, 0))
            if before <= head.start or before.ordinal < head.first_ordinal:
                return Change(None, 0)
            await snapshot.locate(before)
            first_ordinal = max(before.ordinal + at_ledger_end, head.first_ordinal)
            is_last = before.ordinal == head.end_ordinal - 1
            if at_ledger_end and is_last and before.ledger_id in await self.attempts.pending_ids(name):
                first_ordinal = before.ordinal  # the slice may grow
            if any(ordinal < first_ordinal for ordinal in set(head.open_ordinals) - set(closed)):
                return Change(None, None)
            dropped = {ledger.ledger_id for ledger in await snapshot.ledgers(0, first_ordinal)}
            # Slices of one ledger may be on both sides.
            kept = {ledger.ledger_id for ledger in await snapshot.ledgers(first_ordinal)} if head.has_slices else set()
            gone = dropped - kept
            changed, lists = condemned(changes.truncated(head, before, first_ordinal), name, sorted(gone))
            return self._changed(name, head, changed, len(gone), lists, await self._unshared(name, gone))

        return await self._heads.change(name, decide)

    # ---- writing ----

    async def open_writer(
        self, name: str, ledger_id: int, writer: str, closed: Sequence[tuple[int, SegmentFacts]]
    ) -> int | None:
        """Make `writer` the log's writer and add its first ledger, which is pending; return the ledger's ordinal.

        Args:
            closed: ordinal and facts of every ledger fenced and closed for this.

        Returns:
            None if the log has an open ledger that is not among them: fence that too and try again.
        """

        async def decide(head: LogHead) -> Change[int | None]:
            if not set(head.open_ordinals) <= {ordinal for ordinal, _ in closed}:
                return Change(None, None)
            opened = replace(changes.settled(head, _listed_of(head, closed)), writer=writer)
            return await self._writer_ledger(name, head, opened, ledger_id)

        ordinal = await self._heads.change(name, decide)
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
            return await self._writer_ledger(name, head, changes.settled(head, _listed_of(head, closed)), ledger_id)

        ordinal = await self._heads.change(name, decide)
        assert ordinal is not None
        await self.attempts.forget_published(name, [ledger_id])
        return ordinal

    async def _writer_ledger(self, name: str, head: LogHead, changed: LogHead, ledger_id: int) -> Change[int | None]:
        await self.attempts.check(name, [ledger_id])
        ordinal = head.end_ordinal
        changed = replace(changed, open_ordinals=(*changed.open_ordinals, ordinal))
        changed, nodes = await self._appended(name, changed, [SegmentFacts(ledger_id)])
        return self._changed(name, head, changed, ordinal, nodes)

    async def settle_writer(
        self, name: str, writer: str, closed: Sequence[tuple[int, SegmentFacts]], *, is_end: bool
    ) -> None:
        """Record how the writer's ledgers were closed, and with `is_end` that it writes no more; does nothing if it has
        lost the log meanwhile.
        """

        async def decide(head: LogHead) -> Change[None]:
            if head.writer != writer:
                return Change(None, None)
            changed = changes.settled(head, _listed_of(head, closed))
            return Change(replace(changed, writer=None) if is_end else changed, None)

        await self._heads.change(name, decide)

    # ---- inside ----

    async def _with_schema(self, name: str, head: LogHead, schema: SchemaChange | None, ordinal: int) -> LogHead:
        """Return the head with a schema that applies from `ordinal` on, whose node is written."""
        present = head.schemas[-1].name if head.schemas else None
        if schema is None or present == schema.stored.name:
            return head
        if present != schema.base:
            raise SchemaMismatch(
                f"log {name} got another schema since this write began: nothing was published. Write again"
            )
        await self._heads.write_schema(name, schema.stored)
        return changes.with_schema(head, schema.stored.name, ordinal)

    async def _appended(
        self, name: str, head: LogHead, ledgers: Sequence[SegmentFacts], tail_max: int = TAIL_LEDGERS_MAX
    ) -> tuple[LogHead, list[NewNode]]:
        ref = changes.page_to_extend(head, len(ledgers), tail_max)
        extended = None if ref is None else await self._page(name, head, ref)
        grown, pages = changes.appended(head, ledgers, extended, new_token(), tail_max)
        nodes = [
            NewNode(f"{PAGES}/{page.ref.name}", encode_page(page.ref.first_ordinal, page.ledgers)) for page in pages
        ]
        return grown, nodes

    async def _page(self, name: str, head: LogHead, ref: PageRef) -> Sequence[SegmentFacts]:
        ledgers = await self._heads.page(name, ref)
        assert len(ledgers) == head.tail_ordinal - ref.first_ordinal
        return ledgers

    async def _unshared(self, name: str, gone: Collection[int]) -> list[Delete]:
        """Return the operations that end the sharing of ledgers that are being condemned: no slice of them will be
        published.

        Raises:
            MetadataError: they are too many for one transaction, which is more than processes can share.
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
        also: Sequence[Delete] = (),
    ) -> Change[T]:
        """Return the change, which removes the pages it drops; a vacuum removes those beyond a transaction's size."""
        kept = set(changed.pages)
        dropped = [ref for ref in head.pages if ref not in kept][:PAGES_DROPPED_MAX]
        pages = [Delete(f"{log_path(name)}/{PAGES}/{ref.name}") for ref in dropped]
        return Change(changed, result, nodes, [*pages, *also])


def _listed_of(head: LogHead, closed: Sequence[tuple[int, SegmentFacts]]) -> list[tuple[int, SegmentFacts]]:
    """Return those of `closed` that are still in the list."""
    return [(ordinal, facts) for ordinal, facts in closed if ordinal >= head.first_ordinal]


def check_publisher_argument(publisher: object) -> None:
    """Raise ConfigurationError unless this is a name and a version, perhaps with a query's id."""
    if not isinstance(publisher, tuple) or len(publisher) not in (2, 3):
        raise ConfigurationError(f"publisher must be a query id and an epoch, not {publisher!r:.80}")
    check_publisher(*publisher)


def check_ledgers(ledgers: Sequence[SegmentFacts], publisher: AnyPublisher | None) -> None:
    """Check the items to publish.

    Raises:
        ConfigurationError: an argument is of another type.
        ValueError: entries are published twice, or a ledger is not closed.
    """
    if publisher is not None:
        check_publisher_argument(publisher)
    if not isinstance(ledgers, Sequence) or not all(isinstance(facts, SegmentFacts) for facts in ledgers):
        raise ConfigurationError(f"ledgers must be SegmentFacts, not {ledgers!r:.80}")
    for before, after in itertools.pairwise(sorted(ledgers, key=lambda facts: (facts.ledger_id, facts.first_entry))):
        if before.ledger_id == after.ledger_id and after.first_entry <= (before.last_entry or 0):
            raise ValueError(f"entries of ledger {after.ledger_id} are published twice")
    for facts in ledgers:
        if not facts.is_known_closed:
            raise ValueError(f"ledger {facts.ledger_id} is to be published before it is closed")


def _has_slices(ledgers: Sequence[SegmentFacts], shared: Collection[int]) -> bool:
    return any(facts.first_entry or facts.ledger_id in shared for facts in ledgers)


def _repeated(head: LogHead, log: str, publisher: AnyPublisher | None) -> AppendOutcome | None:
    if publisher is None or not changes.is_repeated(head, log, Publisher(*publisher)):
        return None
    return AppendOutcome(False, None, changes.last_version(head, publisher[0]))


def _remember(head: LogHead, publisher: AnyPublisher | None) -> LogHead:
    return head if publisher is None else changes.published(head, Publisher(*publisher))
