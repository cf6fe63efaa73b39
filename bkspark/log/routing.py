"""RoutedCommits: one commit that publishes in many logs: it becomes visible in all of them at once, or in none.

    /bkspark/routed                 empty; its version counts routed commits
    /bkspark/routed/<publisher>     what a publisher published last; the node's name is a hash of the publisher's name

A routed commit is one ZooKeeper transaction. For each log it checks the version of the head and writes the delta
(delta.py), which has some 200 bytes; and it writes the publisher's record. ZooKeeper performs all of a transaction or
nothing, so there is never an incomplete commit that a reader could see or that a later process would have to finish:

    process dies before the transaction    nothing is visible. Its ledgers stay pending, as those of any job
    process dies after it                  everything is visible. The next vacuum removes the remaining registrations
    another process changes one of the     the whole transaction fails; that log is read again, and the transaction is
    logs meanwhile                         tried again. One of the processes always succeeds, so no process waits for a
                                           dead one
    the answer is lost                     the record has the commit's token if it took effect. Repeating is harmless,
                                           because it writes the record at the version that was read
    a log cannot be written                the commit fails with the log's name, and nothing is visible

An epoch of a streaming query, or a version of a name, is recorded twice: in the record, which decides whether the
commit as a whole is a repetition, and in each log, so that no other write publishes the same version there.

ZooKeeper takes requests below 1 MiB. That is enough for some 2,500 logs with names of 20 letters, and for 1,000 with
names of 200; more are refused before anything is written.

A reader of several logs reads the number of routed commits before and after the heads: if it is the same, no commit
came in between, and all lists show the same commits.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bkspark.errors import (
    BookKeeperError,
    ConfigurationError,
    DataLoss,
    LedgerFenced,
    MetadataAccessDenied,
    MetadataError,
    MetadataFormat,
    MetadataVersion,
    NodeExists,
    NoSuchNode,
    VersionPublished,
)
from bkspark.log.changes import is_repetition, with_publisher
from bkspark.log.delta import DELTA_BYTES_MAX, delta_path, encode_delta
from bkspark.log.formats import (
    LOGS_ROOT,
    NODE_BYTES_MAX,
    TAIL_LEDGERS_MAX,
    LastEpoch,
    LogHead,
    Publisher,
    SegmentFacts,
    check_publisher,
    log_path,
    pending_path,
)
from bkspark.log.heads import CONNECTION_LOSSES_MAX, LOST_RACES_MAX, Change, MissingNodes, StoredHead, new_token
from bkspark.log.publication import AppendOutcome, Publication
from bkspark.log.schemas import SchemaChange
from bkspark.log.snapshot import LogSnapshot
from bkspark.log.store import LogStore
from bkspark.metadata.tree import ANY_VERSION, Check, Create, Delete, Operation, Set
from bkspark.tasks import each_of

ROUTED_ROOT = "/bkspark/routed"
RECORDS_MAX = 10_000
"""Publishers that are remembered. Above it, the tenth that has not published for longest is forgotten."""
OPERATION_BYTES = 48
"""The most bytes that an operation takes in a request, without its path and data."""
DELTA_LEDGERS_MAX = 8
"""Ledgers of a part that are written into the delta; more go into a page, which the delta names."""
READS_MAX = 100
"""How often the heads of many logs are read if commits come in between."""
_VERSION = 1

Fence = Callable[[str], Awaitable[Sequence[int]]]
"""Closes the open ledgers of a log; returns their ordinals."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a routed commit publishes in one log; the fields are arguments of `LogStore.append_ledgers`."""

    log: str
    ledgers: tuple[SegmentFacts, ...]
    """The segments to append, in order."""
    shared: tuple[int, ...] = ()
    """The ledgers among them of which only slices are published, and which stay pending."""
    schema: SchemaChange | None = None


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The operations that publish a part; they succeed only if the log is still as it was read."""

    operations: tuple[Operation, ...]
    result: AppendOutcome | None
    """The outcome if the operations succeed; None: there is nothing to publish."""


@dataclass(frozen=True, slots=True)
class _Record:
    """A publisher's record; `version` is its node's, None if there is no record yet."""

    token: str | None = None
    """In the last commit's name; None: there was none."""
    last_epochs: tuple[LastEpoch, ...] = ()
    version: int | None = None


class RoutedCommits:
    """Publishes in many logs at once, and reads the lists of many logs as of one moment."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._heads = store.heads
        """The heads of the logs in `store`, all of one tree."""
        self._tree = store.heads.tree

    async def has_published(self, publisher: Publisher) -> bool:
        """Return whether the publisher has published this version, or a later one, in a routed commit.

        Raises:
            VersionPublished: another query or job has published it under the name.
        """
        record = await self.record_at(record_path(publisher.name))
        return is_repetition(record.last_epochs, "a routed commit", publisher)

    async def publish(
        self, parts: Sequence[Part], owner_id: str, publisher: Publisher | None = None, *, fence: Fence | None = None
    ) -> bool:
        """Publish in all logs, or in none; return False if the publisher had already published its version.

        Args:
            parts: one for each log; the logs exist.
            owner_id: id of the job; names the record if there is no publisher.
            fence: closes the open ledgers of a log. If it is given, the parts replace the content of the logs.

        Raises:
            VersionPublished: another query or job has published the version, or the version was published in one of the
                logs alone.
            NoSuchLog, SchemaMismatch, DataLoss, ...: a log cannot be written; the message names it.
            MetadataError: there are too many logs, or the store is unreachable; the message says if the outcome is
                unknown.
            ValueError: two parts belong to one log.
        """
        if len({part.log for part in parts}) < len(parts):
            raise ValueError("a log has several parts: join their ledgers into one, in order of reading")
        commit = _Commit(self, self._store.at_one_time(), parts, owner_id, publisher, fence)
        is_new = await commit.run()
        if is_new:
            await each_of(self._forget, parts)
            if publisher is None:
                # The commit took effect whether or not this succeeds: its job must not be repeated.
                with contextlib.suppress(MetadataError):
                    await self._heads.remove([record_path(owner_id)])
        return is_new

    async def _forget(self, part: Part) -> None:
        unshared = {facts.ledger_id for facts in part.ledgers} - set(part.shared)
        await self._store.attempts.forget_published(part.log, sorted(unshared))

    async def snapshots(self, names: Callable[[], Awaitable[Sequence[str]]]) -> list[LogSnapshot]:
        """Return the lists of logs as of one moment: each routed commit is in all of them, or in none.

        Args:
            names: returns the names of the logs, each time they are read; logs that do not exist, and those of other
                clusters, are left out.

        Raises:
            MetadataError: routed commits come faster than the logs can be read.
        """
        count = await self._count()
        for _ in range(READS_MAX):
            found = [each for each in await each_of(self._store.find, await names()) if each is not None]
            before, count = count, await self._count()
            if before == count or not any(each.head.is_routed for each in found):
                return found
        raise MetadataError(f"routed commits came while {len(found)} logs were read, {READS_MAX} times: try again")

    async def _count(self) -> int:
        stat = await self._tree.exists(ROUTED_ROOT)
        return -1 if stat is None else stat.version

    # ---- for a commit ----

    async def record_at(self, path: str) -> _Record:
        """Return the record of a publisher; an empty one if it has no node. Raises MetadataError."""
        try:
            data, stat = await self._tree.get(path)
        except NoSuchNode:
            return _Record()
        return decoded_record(data, path, stat.version)

    async def make_room(self) -> None:
        """Create the root if there is none; remove the records of publishers if there are too many."""
        try:
            names = await self._tree.children(ROUTED_ROOT)
        except NoSuchNode:
            with contextlib.suppress(NodeExists):
                await self._tree.create(ROUTED_ROOT, make_parents=True)
            return
        if len(names) < RECORDS_MAX:
            return
        paths = [f"{ROUTED_ROOT}/{name}" for name in names]
        stats = await each_of(self._tree.exists, paths)
        ages = [(stat.mtime_ms, path, stat.version) for stat, path in zip(stats, paths) if stat is not None]
        for _, path, version in sorted(ages)[: RECORDS_MAX // 10]:
            # A publisher that has published since then must be remembered.
            with contextlib.suppress(NoSuchNode, MetadataVersion):
                await self._tree.delete(path, version)


class _Commit:
    """One routed commit in progress. A log that another process changes meanwhile is prepared again."""

    def __init__(
        self,
        commits: RoutedCommits,
        store: LogStore,
        parts: Sequence[Part],
        owner_id: str,
        publisher: Publisher | None,
        fence: Fence | None,
    ) -> None:
        self._commits = commits
        self._store = store
        self._heads = store.heads
        """The heads of the logs in `store`."""
        self._parts = {part.log: part for part in parts}
        self._publisher = publisher
        self._fence = fence
        self._token = new_token()
        """In the record and in every head that the commit changes: it finds its own writes again by it. Constant."""
        self._path = record_path(owner_id if publisher is None else publisher.name)
        self._prepared: dict[str, _Prepared] = {}
        """The parts whose operations are ready, by log. A part is removed if its log has changed meanwhile."""
        self._is_uncertain = False
        """Whether the answer to a transaction was lost, which may have taken effect. Set once."""

    async def run(self) -> bool:
        """Return whether this commit published; see `RoutedCommits.publish`."""
        losses = races = 0
        missing = MissingNodes()
        while True:
            try:
                return await self._try()
            except (NoSuchNode, NodeExists, MetadataVersion) as error:
                races += 1
                # Nodes that logs name have names of their own: a log that was changed names another one.
                missing.check(f"a commit to {len(self._parts)} logs", error, None)
                if races >= LOST_RACES_MAX:
                    raise MetadataError(
                        f"a commit to {len(self._parts)} logs: others changed them {races} times before it: try again "
                        "later"
                    ) from None
                # After many lost races, other logs have probably changed, too: the error names only one.
                self._prepare_again(None if races % 8 == 0 else error.node)
            except (MetadataFormat, MetadataAccessDenied):
                raise
            except _TooLarge as error:
                raise MetadataError(str(error)) from None
            except MetadataError as error:
                losses += 1
                if losses >= CONNECTION_LOSSES_MAX:
                    known = "whether it took effect is unknown" if self._is_uncertain else "nothing was published"
                    raise MetadataError(f"a commit to {len(self._parts)} logs: {known}: {error}") from None

    def _prepare_again(self, node: str | None) -> None:
        if node is None or not node.startswith(f"{LOGS_ROOT}/"):
            self._prepared.clear()
        else:
            self._prepared.pop(node[len(LOGS_ROOT) + 1 :].partition("/")[0], None)

    async def _try(self) -> bool:
        record = await self._commits.record_at(self._path)
        known = self._known(record)
        if known is not None:
            return known
        if record.version is None:
            await self._commits.make_room()
        todo = [name for name in self._parts if name not in self._prepared]
        try:
            self._prepared.update(zip(todo, await each_of(self._prepare, todo)))
        except _InLog as error:
            # Another process may have published the version in all logs since the record was read.
            known = self._known(await self._commits.record_at(self._path))
            if known is not None:
                return known
            raise error.refusal from None
        operations = [self._recording(record), Set(ROUTED_ROOT, b"", ANY_VERSION), *self._ending()]
        for prepared in self._prepared.values():
            operations += prepared.operations
        _check_size(operations, len(self._parts))
        try:
            await self._heads.tree.transaction(operations)
        except (NoSuchNode, NodeExists, MetadataVersion):
            raise
        except MetadataError:
            self._is_uncertain = True
            raise
        return True

    def _known(self, record: _Record) -> bool | None:
        """Return True if the record shows that this commit took effect, False if the publisher had published the
        version before, None if neither."""
        if record.token == self._token:
            return True  # the answer was lost
        publisher = self._publisher
        is_repeated = publisher is not None and is_repetition(record.last_epochs, "a routed commit", publisher)
        return False if is_repeated else None

    def _recording(self, record: _Record) -> Operation:
        published = (
            record.last_epochs if self._publisher is None else with_publisher(record.last_epochs, self._publisher)
        )
        members = {"commit": self._token, "published": published, "version": _VERSION}
        data = json.dumps(members, sort_keys=True, separators=(",", ":")).encode("ascii")
        return Create(self._path, data) if record.version is None else Set(self._path, data, record.version)

    def _ending(self) -> list[Operation]:
        """Return the operation that ends the registration of one ledger of a job without a publisher: if the job does
        not learn the outcome, and publishes again, that ledger is not pending any more."""
        if self._publisher is None:
            for part in self._parts.values():
                for ledger_id in Publication(part.ledgers, shared=part.shared).unshared[:1]:
                    return [Delete(pending_path(part.log, ledger_id))]
        return []

    # ---- one log ----

    async def _prepare(self, name: str) -> _Prepared:
        """Decide on a log as it is now, and write the nodes that its delta will name."""
        for _ in range(LOST_RACES_MAX):
            closed = [] if self._fence is None else await self._fence(name)
            stored = await self._routed(name)
            try:
                change = await self._decided(name, stored, closed)
            except DataLoss as error:
                await self._heads.check_current(name, stored, error)
                raise
            if change is None:
                continue  # another process opened a ledger of the log since it was fenced
            assert change.head is not None
            assert stored.base is not None
            data = encode_delta(stored.version, stored.base, change.head)
            if len(data) > self._delta_bytes_max(name) and stored.head != stored.base:
                await self._fold(name)
                continue
            for node in change.nodes:
                await self._heads.tree.create(f"{log_path(name)}/{node.path}", node.data)
            assert stored.delta_version is not None
            unchanged = Check(log_path(name), stored.version)
            return _Prepared(
                (unchanged, Set(delta_path(name), data, stored.delta_version), *change.also), change.result
            )
        raise LedgerFenced(f"other processes open log {name} for writing repeatedly: stop its writers first")

    def _delta_bytes_max(self, name: str) -> int:
        """Return the size above which the log's delta is folded into the head: all deltas must fit one transaction."""
        share = NODE_BYTES_MAX // len(self._parts) - 2 * (OPERATION_BYTES + len(delta_path(name)))
        return min(DELTA_BYTES_MAX, share)

    async def _decided(self, name: str, stored: StoredHead, closed: Sequence[int]) -> Change[AppendOutcome] | None:
        part, store = self._parts[name], self._store
        tail_max = TAIL_LEDGERS_MAX if len(part.ledgers) <= DELTA_LEDGERS_MAX else 0
        publication = Publication(part.ledgers, self._publisher, part.schema, part.shared)
        if self._fence is None:
            change = await store.appending(name, publication, tail_max=tail_max)(stored.head)
        else:
            replaced = await store.replacing(name, publication, closed, tail_max=tail_max)(stored.head)
            if replaced.result is None:
                return None
            change = Change(replaced.head, replaced.result, replaced.nodes, replaced.also)
        if change.head is None:
            publisher = self._publisher
            assert publisher is not None
            raise _InLog(
                VersionPublished(
                    f"version {publisher.version} of {publisher.name!r} cannot be published in several logs: log "
                    f"{name} has it, by a write to that log alone, up to version {change.result.last_epoch}",
                    last_version=change.result.last_epoch,
                )
            )
        return change

    async def _routed(self, name: str) -> StoredHead:
        """Return a log's head; if the log has no delta yet, create it first."""
        stored = await self._heads.read(name)
        if stored.delta_version is not None:
            return stored

        async def decide(head: LogHead) -> Change[None]:
            if head.is_routed:
                return Change(None, None)
            changed = replace(head, is_routed=True, has_slices=True)
            return Change(changed, None, also=[Create(delta_path(name), encode_delta(0, head, head))])

        await self._heads.change(name, decide)
        return await self._routed(name)

    async def _fold(self, name: str) -> None:
        """Write the changes of a log's delta into its head."""

        async def decide(head: LogHead) -> Change[None]:
            return Change(head, None)

        await self._heads.change(name, decide)


class _InLog(Exception):
    """A log has recorded the version; `refusal` is the error to raise unless a routed commit published it there."""

    def __init__(self, refusal: VersionPublished) -> None:
        super().__init__(refusal)
        self.refusal = refusal


class _TooLarge(BookKeeperError):
    """The transaction would be larger than ZooKeeper allows."""


def _check_size(operations: Sequence[Operation], logs: int) -> None:
    byte_count = sum(
        OPERATION_BYTES + len(each.path) + (len(each.data) if isinstance(each, Create | Set) else 0)
        for each in operations
    )
    if byte_count > NODE_BYTES_MAX:
        raise _TooLarge(
            f"a commit to {logs} logs needs {byte_count} bytes in one transaction of ZooKeeper, the limit is "
            f"{NODE_BYTES_MAX}, and nothing was published: write to fewer logs at once, or give logs shorter names"
        )


def record_path(name: str) -> str:
    """Return the metadata node that has the record of an owner of routed commits."""
    return f"{ROUTED_ROOT}/{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def decoded_record(data: bytes, path: str, version: int) -> _Record:
    try:
        members: Any = json.loads(data)
        if not isinstance(members, dict) or members.get("version") != _VERSION:
            raise ValueError(f"it is not a JSON object of version {_VERSION}: use a newer bkspark")
        token, published = members["commit"], members["published"]
        if not isinstance(token, str) or not isinstance(published, list):
            raise ValueError("its members have other types")
        for each in published:
            if not isinstance(each, list) or len(each) not in (2, 3):
                raise ValueError("it holds something that is not a publisher")
            check_publisher(*each)
        return _Record(token, tuple(tuple(each) for each in published), version)
    except (ValueError, KeyError, TypeError, RecursionError, ConfigurationError) as error:
        raise MetadataFormat(f"metadata node {path} is not a record of routed commits: {error}") from None
