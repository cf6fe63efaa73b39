"""HeadStore: heads and pages of logs in the metadata store; the compare-and-set that every change of a log goes
through.

A change is one transaction, which succeeds only if the head still has the version that was read. Nodes that the new
head names are written beforehand; a process that removes such nodes raises the head's version in the same transaction.
If the transaction fails because another process changed the log, the change is decided again on the present head. If
the answer is lost, the head is read back: the change's token in it shows that it took effect, and the token's place
among the others shows in which version.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from bkspark.errors import (
    ConfigurationError,
    DataLoss,
    LogExists,
    MetadataAccessDenied,
    MetadataError,
    MetadataFormat,
    MetadataVersion,
    NodeExists,
    NoSuchLog,
    NoSuchNode,
)
from bkspark.log import times
from bkspark.log.delta import decode_base, decode_changed, delta_path
from bkspark.log.formats import (
    CHANGES_MAX,
    CONDEMNED,
    LOGS_ROOT,
    PAGES,
    PENDING,
    LogHead,
    PageRef,
    SegmentFacts,
    decode_head,
    decode_page,
    deletion_node,
    encode_head,
    log_path,
)
from bkspark.log.schemas import SCHEMAS, StoredSchema, decode_schema, encode_schema
from bkspark.log.times import Mark, OpenMarks, TimePageRef
from bkspark.metadata.tree import ANY_VERSION, Check, Create, Operation, Set, Stat, Tree

CONNECTION_LOSSES_MAX = 5
LOST_RACES_MAX = 1_000
MISSING_MAX = 10
"""How often in a row one node may be missing for a change while the head stays as it is. A process that removes a node
that the head names also moves the head's version, so the node was removed by hand, or is lost."""
PAGES_CACHED_MAX = 64
AMOUNTS_CACHED_MAX = 512
"""Pages whose `Amounts` a process caches: 32 KB each."""
SCHEMAS_CACHED_MAX = 64

_schemas: dict[str, StoredSchema] = {}
"""Schemas of all logs that this process has read, by name: the name is a hash of the content."""

T = TypeVar("T")
Key = TypeVar("Key")

Amounts = npt.NDArray[np.int64]
"""int64 (n + 1, 2): row i has the entries and payload bytes of a page's first i ledgers; (0, 2) if one is unknown."""


@dataclass(frozen=True, slots=True)
class _Pages:
    """A cache of pages of ledgers, of their amounts, and of pages of times, by name. Pages never change, and names are
    unique."""

    ledgers: dict[str, tuple[SegmentFacts, ...]]
    amounts: dict[tuple[str, int], Amounts]
    times: dict[str, tuple[Mark, ...]]


_pages: WeakKeyDictionary[Tree, _Pages] = WeakKeyDictionary()
"""The cache of each metadata connection: a HeadStore lives for one call, the cache stays."""


def _keep(cache: dict[Key, T], key: Key, value: T, most: int) -> None:
    if len(cache) >= most:
        cache.pop(next(iter(cache)))
    cache[key] = value


def _amounts(ledgers: Sequence[SegmentFacts]) -> Amounts:
    rows = np.zeros((len(ledgers) + 1, 2), np.int64)
    for at, facts in enumerate(ledgers, 1):
        if facts.last_entry is None or facts.length is None:
            return rows[:0]
        rows[at] = facts.last_entry + 1 - facts.first_entry, facts.length
    return np.cumsum(rows, axis=0)


def new_token() -> str:
    """Return 16 random hexadecimal digits."""
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class StoredHead:
    """A head and the version of its node.

    If the log was in a routed commit, `head` has the changes of its delta, `base` is what the node itself holds, and
    `delta_version` is the version of the delta's node.
    """

    head: LogHead
    version: int
    base: LogHead | None = None
    delta_version: int | None = None

    def unchanged(self, name: str) -> list[Operation]:
        """Return the operations that succeed only while no routed commit changes the log."""
        return [] if self.delta_version is None else [Check(delta_path(name), self.delta_version)]


@dataclass(frozen=True, slots=True)
class NewNode:
    """A node to write before the change that names it: its data, and its path below the log's."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """A decision on a head: the next head (None: no change), the nodes to write before it, and the caller's result.

    `also` has operations of the same transaction: they take effect together with the head or not at all.
    """

    head: LogHead | None
    result: T
    nodes: Sequence[NewNode] = ()
    also: Sequence[Operation] = ()


Decide = Callable[[LogHead], Awaitable[Change[T]]]


class HeadStore:
    """Reads, creates and changes the heads of logs whose ledgers lie below `root`."""

    def __init__(self, tree: Tree, root: str) -> None:
        self.tree = tree
        self._root = root
        self._pages = _pages.setdefault(tree, _Pages({}, {}, {}))

    async def names(self) -> list[str]:
        """Return the names of all logs, sorted; also those of other ledgers roots."""
        try:
            return await self.tree.children(LOGS_ROOT)
        except NoSuchNode:
            return []

    async def read(self, name: str, *, even_if_deleted: bool = False) -> StoredHead:
        """Return a log's head.

        Raises:
            NoSuchLog: it does not exist, or it is being deleted.
            ConfigurationError: the name is unusable, or the log belongs to another ledgers root.
            MetadataFormat: the stored node is not a head.
        """
        stored = await self._stored(name)
        head = stored.head
        if head.root != self._root:
            raise ConfigurationError(
                f"log {name} belongs to the cluster at {head.root}, the metadata URI names {self._root}: correct the "
                f"URI's path, or use another log name"
            )
        if head.is_deleted and not even_if_deleted:
            raise NoSuchLog(f"log {name} is being deleted: delete it again if that was interrupted")
        return stored

    async def find(self, name: str) -> StoredHead | None:
        """Return a log's head; None if the log is gone, or belongs to another ledgers root. Raises MetadataFormat."""
        try:
            stored = await self._stored(name)
        except NoSuchLog:
            return None
        return None if stored.head.root != self._root or stored.head.is_deleted else stored

    async def check_current(
        self, name: str, stored: StoredHead, lost: DataLoss, *, even_if_deleted: bool = False
    ) -> None:
        """Raise MetadataVersion if a log has changed since its head was read: what a decision on that head did not find
        is gone for that reason, perhaps."""
        present = await self.read(name, even_if_deleted=even_if_deleted)
        if (present.version, present.delta_version) != (stored.version, stored.delta_version):
            raise MetadataVersion(f"log {name} was changed by others while a change of it was decided: {lost}")

    async def _stored(self, name: str) -> StoredHead:
        path = log_path(name)
        for _ in range(LOST_RACES_MAX):
            try:
                data, stat = await self._get_caught_up(path)
            except NoSuchNode:
                raise NoSuchLog(f"log {name} does not exist: check the name, or create it first") from None
            found = StoredHead(decode_head(data, path), stat.version)
            if not found.head.is_routed:
                return found
            routed = await self._with_delta(name, data, found)
            if routed is not None:
                return routed
        # A head that is read after its delta is at least as new, so this is damage and not a race.
        raise MetadataFormat(f"metadata node {delta_path(name)} applies to a version that the head of log {name} lacks")

    async def _with_delta(self, name: str, data: bytes, stored: StoredHead) -> StoredHead | None:
        """Return the head with its delta; None if the head was changed or deleted since it was read."""
        path = delta_path(name)
        try:
            delta, stat = await self.tree.get(path)
        except NoSuchNode:
            present = await self.tree.exists(log_path(name))
            if present is None or present.version != stored.version:
                return None
            raise MetadataFormat(f"metadata node {path} is missing, which the head of log {name} names") from None
        base = decode_base(delta, path)
        if base > stored.version:
            return None
        head = decode_changed(data, delta, name) if base == stored.version else stored.head
        return StoredHead(head, stored.version, stored.head, stat.version)

    async def _get_caught_up(self, path: str) -> tuple[bytes, Stat]:
        try:
            return await self.tree.get(path)
        except NoSuchNode:
            await self.tree.catch_up()
            return await self.tree.get(path)

    async def time_ms(self, name: str) -> int:
        """Return the present time by the metadata store's clock, in ms since 1970: that of a write to a node of the log
        that holds nothing itself. Raises NoSuchNode if the log is gone."""
        return (await self.tree.set(f"{log_path(name)}/{PENDING}", b"", ANY_VERSION)).mtime_ms

    async def create(self, name: str) -> None:
        """Create an empty log.

        Raises:
            LogExists: there is a log of that name.
            ConfigurationError: the name is unusable.
        """
        path, token = log_path(name), new_token()
        head = LogHead(log_id=token, root=self._root, changes=(token,))
        await self._create_root()
        operations = [Create(path, encode_head(head))]
        operations += [Create(f"{path}/{folder}") for folder in (PAGES, PENDING, CONDEMNED, times.TIMES)]
        for _ in range(CONNECTION_LOSSES_MAX):
            try:
                return await self.tree.transaction(operations)
            except NodeExists:
                if await self._is_own(path, token):
                    return None  # the answer was lost
                raise LogExists(f"log {name} exists already") from None
            except MetadataError:
                if await self._is_own(path, token):
                    return None
        raise MetadataError(f"log {name} was not created: the connection to the metadata store was lost repeatedly")

    async def _create_root(self) -> None:
        try:
            if await self.tree.exists(LOGS_ROOT) is None:
                await self.tree.create(LOGS_ROOT, make_parents=True)
        except NodeExists:
            return  # another client was faster

    async def _is_own(self, path: str, token: str) -> bool:
        try:
            return decode_head((await self.tree.get(path))[0], path).log_id == token
        except NoSuchNode:
            return False

    async def change(self, name: str, decide: Decide[T], *, even_if_deleted: bool = False) -> T:
        """Change a log's head as `decide` returns for the stored one; repeat the decision until it is stored.

        `decide` may read pages and other nodes of the log; its errors end the change, except NoSuchNode, a lost
        connection, and DataLoss if others have changed the log since. The result is that of the decision that took
        effect.

        Raises:
            NoSuchLog, ConfigurationError, MetadataFormat: as `read`; or a node that the change needs is missing for
                good.
            MetadataError: the store is unreachable; it is unknown whether the change took effect, and the message says
                so.
        """
        attempt = _Attempt(self, name, decide, even_if_deleted)
        losses = races = 0
        missing = MissingNodes()
        while True:
            try:
                return await attempt.run()
            except (NoSuchNode, NodeExists, MetadataVersion) as error:
                races += 1
                missing.check(f"log {name}", error, attempt.read_version)
                if races >= LOST_RACES_MAX:
                    raise MetadataError(
                        f"log {name}: others changed it {races} times before this change: try again later"
                    ) from None
            except (MetadataFormat, MetadataAccessDenied):
                raise
            except _Forgotten:
                raise MetadataError(
                    f"log {name}: the connection was lost during a change, and others changed the log so often since "
                    f"that it is unknown whether it took effect"
                ) from None
            except MetadataError as error:
                losses += 1
                if losses >= CONNECTION_LOSSES_MAX:
                    known = "whether the change took effect is unknown" if attempt.results else "nothing was changed"
                    raise MetadataError(f"log {name}: {known}: {error}") from None

    async def mark_deleted(self, name: str) -> None:
        """Create the node of a log's deletion if the log is being deleted and has no such node: an earlier build began
        the deletion, or has removed the node.

        Raises:
            NoSuchLog, ConfigurationError, MetadataFormat: as `read`.
            NoSuchNode: the folder of the node is missing.
        """
        stored = await self.read(name, even_if_deleted=True)
        if stored.head.is_deleted:
            path = log_path(name)
            made = Create(f"{path}/{deletion_node(stored.head.log_id)}")
            try:
                await self.tree.transaction([Check(path, stored.version), made])
            except (NodeExists, MetadataVersion):
                return  # another process was faster
            except NoSuchNode:
                await self.read(name, even_if_deleted=True)  # raises NoSuchLog if that is the reason
                await self.tree.children(f"{path}/{CONDEMNED}")

    async def page(self, name: str, ref: PageRef) -> tuple[SegmentFacts, ...]:
        """Return a page's ledgers. Raises NoSuchNode if the page is gone, MetadataFormat as `read`."""
        ledgers = self._pages.ledgers.get(ref.name)
        if ledgers is None:
            path = f"{log_path(name)}/{PAGES}/{ref.name}"
            first_ordinal, ledgers = decode_page((await self.tree.get(path))[0], path)
            if first_ordinal != ref.first_ordinal:
                raise MetadataFormat(f"metadata node {path} begins at ordinal {first_ordinal}")
            _keep(self._pages.ledgers, ref.name, ledgers, PAGES_CACHED_MAX)
        return ledgers

    def amounts(self, ref: PageRef, ledgers: Sequence[SegmentFacts]) -> Amounts:
        """Return the amounts of a page's first ledgers, which are `ledgers`; they are computed once and cached."""
        key = (ref.name, len(ledgers))
        found = self._pages.amounts.get(key)
        if found is None:
            _keep(self._pages.amounts, key, found := _amounts(ledgers), AMOUNTS_CACHED_MAX)
        return found

    async def time_page(self, name: str, ref: TimePageRef) -> tuple[Mark, ...]:
        """Return the marks of a page of the time index. Raises as `page`."""
        marks = self._pages.times.get(ref.name)
        if marks is None:
            path = f"{log_path(name)}/{PAGES}/{ref.name}"
            marks = _parsed(path, times.decode_page, (await self.tree.get(path))[0])
            _keep(self._pages.times, ref.name, marks, PAGES_CACHED_MAX)
        return marks

    async def open_times(self, name: str, ledger_id: int, ordinal: int) -> OpenMarks | None:
        """Return the times that the writer of a ledger has noted; None if it keeps no notes. Raises MetadataFormat."""
        path = times.open_path(log_path(name), ledger_id)
        try:
            data, stat = await self.tree.get(path)
        except NoSuchNode:
            return None
        return _parsed(path, lambda data: times.decode_open(data, ordinal, stat.version), data)

    async def note_times(self, name: str, ledger_id: int, data: bytes) -> None:
        """Replace the times that a ledger's writer has noted, if it still keeps notes."""
        try:
            await self.tree.set(times.open_path(log_path(name), ledger_id), data, ANY_VERSION)
        except NoSuchNode:
            return  # the ledger is closed, or not in the log any more

    async def schema(self, name: str, schema: str) -> StoredSchema:
        """Return a schema by the name of its node. Raises NoSuchNode if it is gone, MetadataFormat as `read`."""
        stored = _schemas.get(schema)
        if stored is None:
            path = f"{log_path(name)}/{SCHEMAS}/{schema}"
            stored = decode_schema((await self.tree.get(path))[0], path)
            _keep(_schemas, schema, stored, SCHEMAS_CACHED_MAX)
        return stored

    async def write_schema(self, name: str, stored: StoredSchema) -> None:
        """Write a schema's node if it is not there, before the change of the head that names it.

        A process that removes it as unnamed moves the head's version, so that change is decided again.
        """
        folder, data = f"{log_path(name)}/{SCHEMAS}", encode_schema(stored)
        with contextlib.suppress(NodeExists):
            if await self.tree.exists(folder) is None:
                # Not with its parents: they are gone if the log was deleted meanwhile.
                await self.tree.create(folder)
        with contextlib.suppress(NodeExists):
            await self.tree.create(f"{folder}/{stored.name}", data)

    async def remove(self, paths: Sequence[str]) -> None:
        """Delete nodes that nothing refers to, if they exist."""
        for path in paths:
            with contextlib.suppress(NoSuchNode):
                await self.tree.delete(path)


def _parsed(path: str, decode: Callable[[bytes], T], data: bytes) -> T:
    try:
        return decode(data)
    except ValueError as error:
        raise MetadataFormat(f"metadata node {path} has no times of a log: {error}") from None


class MissingNodes:
    """Tells nodes that are missing for good from nodes that another process has just removed."""

    def __init__(self) -> None:
        self._last: tuple[str, object] | None = None
        """The last error and the state of the log in which it came; None if that was not a missing node."""
        self._count = 0
        """How often in a row it came."""

    def check(self, what: str, error: MetadataError, state: object) -> None:
        """Raise MetadataFormat if a node was missing MISSING_MAX times in a row while the state of the log was the
        same. `what` begins the message."""
        found = (str(error), state) if isinstance(error, NoSuchNode) else None
        self._count = self._count + 1 if found is not None and found == self._last else 1
        self._last = found
        if found is not None and self._count >= MISSING_MAX:
            raise lost_node(what, error, "and no process has changed the log since") from None


def lost_node(what: str, error: MetadataError, sign: str) -> MetadataFormat:
    """Return the error for a node that no process has removed. `what` begins the message, and `sign` shows it."""
    return MetadataFormat(f"{what}: {error}, {sign}: the node was removed by hand, or is lost")


class _Forgotten(Exception):
    """The head no longer shows whether a write with a lost answer took effect."""


class _Attempt(Generic[T]):
    """One change in progress: `run` reads, decides and writes once.

    All writes of the change have the same token: only one of them can take effect, and it is recognised even if that is
    late.
    """

    def __init__(self, heads: HeadStore, name: str, decide: Decide[T], even_if_deleted: bool) -> None:
        self._heads = heads
        self._name = name
        self._decide = decide
        self._even_if_deleted = even_if_deleted
        """Whether the change may be made to a log that is being deleted."""
        self._token = new_token()
        self.read_version: tuple[int, int | None] | None = None
        """The versions of the head, and of the log's delta, that `run` last read; None before the first time."""
        self.results: dict[int, T] = {}
        """The results of writes whose answer was lost, by the version that they were made on."""

    async def run(self) -> T:
        stored = await self._heads.read(self._name, even_if_deleted=self._even_if_deleted)
        self.read_version = (stored.version, stored.delta_version)
        written = self._written_version(stored)
        if written is not None:
            return self.results[written - 1]
        try:
            change = await self._decide(stored.head)
        except DataLoss as error:
            await self._heads.check_current(self._name, stored, error, even_if_deleted=self._even_if_deleted)
            raise
        if change.head is None:
            return change.result
        path = log_path(self._name)
        operations: list[Operation] = [
            Set(path, encode_head(change.head.with_change(self._token)), stored.version),
            *stored.unchanged(self._name),
            *change.also,
        ]
        mark = f"{path}/{deletion_node(stored.head.log_id)}"
        if change.head.is_deleted:
            # A new log of this name may have the same version: it does not have this node.
            operations.append(Check(mark, ANY_VERSION) if stored.head.is_deleted else Create(mark))
        for node in change.nodes:
            await self._heads.tree.create(f"{path}/{node.path}", node.data)
        try:
            await self._heads.tree.transaction(operations)
        except (NoSuchNode, NodeExists, MetadataVersion) as error:
            if error.node == mark:
                await self._heads.mark_deleted(self._name)
            raise
        except MetadataError:
            self.results[stored.version] = change.result
            raise
        return change.result

    def _written_version(self, stored: StoredHead) -> int | None:
        """Return the version of the head that this change wrote; None if it has not taken effect."""
        changes = stored.head.changes
        if self._token in changes:
            return stored.version - (len(changes) - 1 - changes.index(self._token))
        if self.results and stored.version - min(self.results) > CHANGES_MAX:
            raise _Forgotten
        return None
