"""LedgerStore: ledger metadata in the metadata store, in Apache's layout. Every change is a compare-and-set."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, replace

import numpy as np

from bkspark.core.metadata import LedgerMetadata
from bkspark.errors import (
    ConfigurationError,
    LedgerExists,
    MetadataError,
    MetadataFormat,
    MetadataVersion,
    NodeExists,
    NoSuchLedger,
    NoSuchNode,
    SessionExpired,
)
from bkspark.metadata import encoding, layout, paths
from bkspark.metadata.listing import id_pages
from bkspark.metadata.tree import ANY_VERSION, Check, Stat, Tree, parent_of
from bkspark.metadata.uri import LedgerManager, MetadataUri
from bkspark.tasks import start_kept

CREATE_TRIES_MAX = 16
WRITE_TRIES_MAX = 5
DELETE_TRIES_MAX = 5
LONG_GENERATORS_KEPT = 3
SKIPPED_IDS_MAX = 1_000_000
"""How many short ids are skipped at most. Each takes a change of ZooKeeper's data."""
SKIPPED_AT_ONCE = 64
_CTOKEN_BITS = 62
_HEAD = re.compile("HOB-[0-9]{10}")
"""The name of a generator of long ids."""
NO_LEDGER = -1
"""Below every id."""


@dataclass(frozen=True, slots=True)
class Versioned:
    """Metadata and their node: its version, and when it was created (`ctime_ms`) and last changed (`mtime_ms`)."""

    metadata: LedgerMetadata
    version: int
    ctime_ms: int
    mtime_ms: int


class LedgerStore:
    """Creates, reads, changes, deletes and lists ledgers below the URI's root."""

    def __init__(self, tree: Tree, uri: MetadataUri) -> None:
        self._tree = tree
        self._root = uri.root
        self._uri_manager = uri.manager
        self._manager: LedgerManager | None = None
        """The cluster's layout; None: not read yet. Set once."""
        self._has_long_ids: bool | None = None
        """Whether ids come from the generator of long ids; None before that was looked up. Once True it stays True."""
        self._flat_ids_from: int | None = None
        """In a flat cluster: earlier versions of bkspark may have assigned the ids below this one. None before it was
        read. Set once."""
        self._deletions: set[asyncio.Task[None]] = set()
        """Tasks that delete temporary nodes in the background."""

    async def manager(self) -> LedgerManager:
        """Return the cluster's ledger manager.

        Raises:
            MetadataError: the root does not exist, or the URI names another manager than LAYOUT.
        """
        if self._manager is None:
            self._manager = await read_manager(self._tree, self._root, self._uri_manager)
        return self._manager

    async def _path(self, ledger_id: int) -> str:
        try:
            return self._root + paths.ledger_path(ledger_id, await self.manager())
        except ValueError as error:
            raise NoSuchLedger(f"no such ledger: {error}", ledger_id=ledger_id) from None

    # ---- create ----

    async def create(self, metadata: LedgerMetadata, *, ledger_id: int | None = None) -> tuple[int, Versioned]:
        """Store a new ledger under `ledger_id`, or under a generated id; return the id and what is stored.

        Its metadata gets a random token, by which a creation whose answer was lost is recognised as ours.

        Raises:
            LedgerExists: the chosen id is taken.
            ConfigurationError: the cluster's ledger manager cannot store such an id.
            MetadataError: the store failed.
        """
        manager = await self.manager()
        metadata = replace(metadata, ctoken=1 + secrets.randbits(_CTOKEN_BITS), creation=0)
        data = encoding.encode(metadata)
        for _ in range(CREATE_TRIES_MAX):
            chosen = await self._generate_id(manager) if ledger_id is None else ledger_id
            try:
                path = self._root + paths.ledger_path(chosen, manager)
            except ValueError as error:
                raise ConfigurationError(f"a ledger cannot be created: {error}") from None
            stat = await self._create_node(path, data)
            if stat is not None:
                return chosen, _versioned(metadata, stat)
            if ledger_id is not None:
                raise LedgerExists(f"ledger {ledger_id} exists already: choose another id", ledger_id=ledger_id)
        raise MetadataError(f"{CREATE_TRIES_MAX} generated ledger ids in a row were taken")

    async def _create_node(self, path: str, data: bytes) -> Stat | None:
        """Create the node and return its Stat; None if another client's node exists."""
        try:
            return (await self._tree.create(path, data, make_parents=True))[1]
        except NodeExists:
            return await self._stat_if_stored(path, data)
        except (SessionExpired, MetadataError):
            # The answer was lost; the token in the data tells whether the creation took effect.
            stat = await self._stat_if_stored(path, data)
            if stat is None:
                raise
            return stat

    async def _stat_if_stored(self, path: str, data: bytes) -> Stat | None:
        """Return the Stat of a node that has these data; None if there is no such node."""
        try:
            stored, stat = await self._tree.get(path)
        except NoSuchNode:
            return None
        return stat if stored == data else None

    async def _generate_id(self, manager: LedgerManager) -> int:
        """Return the next id of the cluster's generator: short ids first, then 63-bit ones.

        Whether ids are long is looked up only once: short ids stay unique when another client begins with long ones.
        """
        if manager is LedgerManager.FLAT:
            return await self._generate_flat_id()
        long_root = f"{self._root}/{paths.LONG_ID_GENERATOR}"
        if self._has_long_ids is None:
            self._has_long_ids = await self._tree.exists(long_root) is not None
        if not self._has_long_ids:
            number = await self._next_number(f"{self._root}/{paths.ID_GENERATOR}/ID-")
            if 0 <= number <= paths.SHORT_ID_MAX:
                return number
            await self._ensure(long_root)
            self._has_long_ids = True
        while True:
            heads = list(filter(_HEAD.fullmatch, await self._tree.children(long_root)))
            if not heads:
                await self._ensure(f"{long_root}/HOB-{1:010d}")
                continue
            head = max(heads, key=lambda name: int(name[4:]))
            number = await self._next_number(f"{long_root}/{head}/ID-")
            if 0 <= number <= paths.SHORT_ID_MAX:
                return int(head[4:]) << 32 | number
            await self._ensure(f"{long_root}/HOB-{int(head[4:]) + 1:010d}")
            for old in sorted(heads)[:-LONG_GENERATORS_KEPT]:
                await self._delete_quietly(f"{long_root}/{old}")

    async def skip_ids(self, above: int) -> int:
        """Let no new ledger get a generated id of `above` or less; return an id above which all new ones are.

        After metadata were restored from a backup, ids are assigned again that bookies may still have entries of. Short
        ids are skipped one by one, because only ZooKeeper counts them. A repetition continues.

        Raises:
            ConfigurationError: the ledger manager has no ids above, or too many must be skipped one by one.
            MetadataError: the store failed.
        """
        manager = await self.manager()
        is_short = manager in (LedgerManager.FLAT, LedgerManager.LEGACY_HIERARCHICAL)
        largest = paths.SHORT_ID_MAX if is_short else paths.SHORT_ID_MAX << 32
        if above >= largest:
            raise ConfigurationError(
                f"too few ids above {above} would remain: name one below {largest}, as the cluster's ledger manager is "
                f"{manager.value}"
            )
        if above >= paths.SHORT_ID_MAX:
            await self._skip_long_ids(above)
        last = await self._generate_id(manager)
        if above - last > SKIPPED_IDS_MAX:
            raise ConfigurationError(
                f"{above} is {above - last} ids ahead, and at most {SKIPPED_IDS_MAX} are skipped"
                + (
                    f" at once: repeat the command, with at most {last + SKIPPED_IDS_MAX} now"
                    if is_short
                    else f": name {paths.SHORT_ID_MAX}, so that new ids begin at {1 << 32}"
                )
            )
        while last < above:
            count = min(SKIPPED_AT_ONCE, above - last)
            last = max(await asyncio.gather(*(self._generate_id(manager) for _ in range(count))))
        return last

    async def _skip_long_ids(self, above: int) -> None:
        """Let ids be those of a generator of long ids whose first one is above."""
        long_root = f"{self._root}/{paths.LONG_ID_GENERATOR}"
        await self._ensure(long_root)
        await self._ensure(f"{long_root}/HOB-{(above >> 32) + 1:010d}")
        self._has_long_ids = True

    async def _generate_flat_id(self) -> int:
        """Return the next id of a flat cluster, from the counter of Apache's FlatLedgerManagerFactory: the root's own.

        Earlier versions of ours took ids from `idgen`, as other clusters do. An id that they assigned must never be
        assigned again, as bookies may still hold a deleted ledger with it: the root's counter is advanced beyond
        theirs.
        """
        if self._flat_ids_from is None:
            before = f"{self._root}/{paths.ID_GENERATOR}"
            is_used = await self._tree.exists(before) is not None
            self._flat_ids_from = await self._next_number(f"{before}/ID-") + 1 if is_used else 0
        while True:
            number = await self._next_number(f"{self._root}/ID-")
            if not 0 <= number <= paths.SHORT_ID_MAX:
                raise MetadataError(
                    f"the flat cluster at {self._root} has given out all its ledger ids: create ledgers under ids that "
                    "you choose, or use a cluster with another ledger manager"
                )
            if number >= self._flat_ids_from:
                return number

    async def _next_number(self, prefix: str) -> int:
        path, _ = await self._tree.create(prefix, ephemeral=True, sequential=True, make_parents=True)
        # Only the counter is needed; the node is deleted in the background, or ends with the session if that fails.
        start_kept(self._delete_quietly(path), self._deletions)
        return int(path[len(prefix) :])

    async def _ensure(self, path: str) -> None:
        try:
            await self._tree.create(path)
        except NodeExists:
            return

    async def _delete_quietly(self, path: str) -> None:
        """Delete a node that is not needed; a remaining node is harmless."""
        try:
            await self._tree.delete(path)
        except MetadataError:
            return

    # ---- read, change, delete ----

    async def read(self, ledger_id: int) -> Versioned:
        """Return a ledger's metadata and version.

        Raises:
            NoSuchLedger: it does not exist.
            MetadataFormat: what is stored cannot be read.
        """
        path = await self._path(ledger_id)
        try:
            data, stat = await self._tree.get(path)
        except NoSuchNode:
            raise NoSuchLedger(f"ledger {ledger_id} does not exist", ledger_id=ledger_id) from None
        try:
            metadata = encoding.decode(data, ledger_id)
        except MetadataFormat as error:
            raise MetadataFormat(f"metadata node {path} cannot be read: {error}", ledger_id=ledger_id) from None
        return _versioned(metadata, stat)

    async def as_created(self, ledger_id: int) -> Check:
        """Return the check, for a transaction, that a ledger's metadata are those of its creation."""
        return Check(await self._path(ledger_id), 0)

    async def read_caught_up(self, ledger_id: int) -> Versioned:
        """`read`, including everything that any client wrote before the call. Raises as `read`, and MetadataError."""
        await self._tree.catch_up()
        return await self.read(ledger_id)

    async def write(self, ledger_id: int, metadata: LedgerMetadata, version: int) -> Versioned:
        """Store changed metadata if `version` is still the stored one; return it with its new version.

        If the connection is lost, the node is read back: our own bytes with the next version mean that the write took
        effect; if the version is the old one, the same bytes are written again. At most one of these writes takes
        effect, even if one arrives late.

        A version does not tell a ledger from one that was created under its id after its deletion. So `creation` of the
        metadata, if it is known, is first compared with the node's. The store does not compare it again: another ledger
        that comes in between, or that a server that lags does not show yet, is written over if it has the
        expected version.

        Raises:
            MetadataVersion: another client changed it.
            NoSuchLedger: it was deleted. There may be another ledger with its id, and it may be the one written over.
            MetadataError: the store failed, and it is unknown whether the write took effect; or it refuses the write,
                which took no effect, and `is_outage` is False.
        """
        path = await self._path(ledger_id)
        metadata = replace(metadata, ctoken=0)
        data = encoding.encode(metadata)
        try:
            for _ in range(WRITE_TRIES_MAX):
                if metadata.creation:
                    before = await self._tree.exists(path)
                    # If there is no node, the write tells whether this server only lags.
                    require_same(ledger_id, metadata, 0 if before is None else before.creation)
                stat = await self._write_once(path, data, version)
                if stat is not None:
                    require_same(ledger_id, metadata, stat.creation)
                    return _versioned(metadata, stat)
        except NoSuchNode:
            raise NoSuchLedger(f"ledger {ledger_id} does not exist any more", ledger_id=ledger_id) from None
        except MetadataVersion as error:
            raise MetadataVersion(f"the metadata of ledger {ledger_id}: {error}", ledger_id=ledger_id) from None
        raise MetadataError(
            f"the metadata of ledger {ledger_id}: the connection was lost {WRITE_TRIES_MAX} times; "
            "whether the write took effect is unknown"
        )

    async def _write_once(self, path: str, data: bytes, version: int) -> Stat | None:
        """Write a node; None if the connection was lost and the write has not taken effect."""
        try:
            return await self._tree.set(path, data, version)
        except NoSuchNode:
            raise
        except MetadataError as error:
            # MetadataVersion may also be caused by our own write: its answer was lost, and it was sent twice.
            failure = error
            stored, stat = await self._tree.get(path)
        if stat.version == version + 1 and stored == data:
            return stat
        if stat.version != version:
            raise MetadataVersion(f"node {path} has version {stat.version}, not the expected {version}")
        if not failure.is_outage and not isinstance(failure, MetadataVersion):
            raise failure
        return None

    async def delete_checked(self, ledger_id: int, check: Callable[[LedgerMetadata], None]) -> None:
        """As `delete`, if `check` does not raise for the metadata. If others change them meanwhile, they are checked
        again.

        Raises:
            MetadataVersion: others changed them DELETE_TRIES_MAX times.
        """
        for tries in range(DELETE_TRIES_MAX):
            if tries:
                await self._tree.catch_up()  # this server may only lag
            try:
                stored = await self.read(ledger_id)
                check(stored.metadata)
                return await self.delete(ledger_id, stored.version)
            except NoSuchLedger:
                if tries:
                    raise
            except MetadataVersion:
                continue
        raise MetadataVersion(
            f"ledger {ledger_id} was not deleted: others changed its metadata {DELETE_TRIES_MAX} times meanwhile",
            ledger_id=ledger_id,
        )

    async def delete(self, ledger_id: int, version: int = ANY_VERSION) -> None:
        """Delete a ledger's metadata, and the parent nodes that it leaves empty.

        Raises:
            NoSuchLedger: it does not exist.
            MetadataVersion: the stored version is another one.
        """
        path = await self._path(ledger_id)
        try:
            await self._tree.delete(path, version)
        except NoSuchNode:
            raise NoSuchLedger(f"ledger {ledger_id} does not exist", ledger_id=ledger_id) from None
        except MetadataError:
            if await self._tree.exists(path) is not None:
                raise
        parent = parent_of(path)
        while parent != self._root:
            try:
                await self._tree.delete(parent)
            except MetadataError:
                return  # another ledger is there, or another client removed it
            parent = parent_of(parent)

    # ---- list, watch ----

    async def pages(self, after: int = NO_LEDGER) -> AsyncGenerator[np.ndarray]:
        """Yield the ids of all ledgers above `after`, ascending, in int64 arrays of 10,000 ids or fewer.

        One such array is in memory, whatever the number of ledgers; only in a flat cluster the store sends all names at
        once.

        Raises:
            MetadataError: the listing could not be finished; the yielded ids are incomplete.
        """
        await self.manager()
        async for page in id_pages(self._tree, self._root, after):
            yield page

    async def ids(self) -> AsyncIterator[int]:
        """Yield the id of every ledger, ascending. Raises as `pages`."""
        async for page in self.pages():
            for ledger_id in page.tolist():
                yield ledger_id

    async def watch(self, ledger_id: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback()` when a ledger's metadata may have changed; return what ends that."""
        return await self._tree.watch(await self._path(ledger_id), callback)


def _versioned(metadata: LedgerMetadata, stat: Stat) -> Versioned:
    return Versioned(replace(metadata, creation=stat.creation), stat.version, stat.ctime_ms, stat.mtime_ms)


def require_same(ledger_id: int, metadata: LedgerMetadata, creation: int) -> None:
    """Raise NoSuchLedger if a node that the change `creation` created is certainly not that of some metadata.

    A server that lags shows an older node.
    """
    if 0 < metadata.creation < creation:
        why = f"ledger {ledger_id} does not exist any more: it was deleted, and another one was created under its id"
        error = NoSuchLedger(why, ledger_id=ledger_id)
        error.is_replaced = True
        raise error


async def read_manager(tree: Tree, root: str, wanted: LedgerManager | None) -> LedgerManager:
    """Return the ledger manager of the cluster at `root`; `wanted` is the one that its URI names, if any.

    Raises:
        MetadataError: the store failed; or, with `is_outage` False, there is no cluster at the root, or it has another
            manager than the wanted one.
    """
    try:
        found = layout.decode((await tree.get(f"{root}/{paths.LAYOUT}"))[0])
    except NoSuchNode:
        if await tree.exists(root) is None:
            raise MetadataError.answer(
                f"there is no cluster at {root}: check the path in the metadata URI, or run `bkspark cluster init`"
            ) from None
        return wanted or LedgerManager.HIERARCHICAL
    if wanted is not None and wanted is not found:
        raise MetadataError.answer(
            f"the metadata URI asks for ledger manager {wanted.value}, the cluster at {root} has {found.value}: "
            f"write zk+{found.value}:// or plain zk://"
        )
    return found
