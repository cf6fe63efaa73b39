"""RegisteredAddresses: which bookie is registered at which address, for clients that look for one that is not.

To read the registrations of a large cluster for each look-up would flood the metadata store. They are kept instead, and
each look-up asks the store whether one of the two lists of bookies has changed: how often a node was created or deleted
in it, and when the list itself was created. A registration never changes its address otherwise
(`BookieRegistry.register`; Apache's bookies never write to theirs), so equal answers mean equal addresses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from functools import partial

from bkspark.errors import MetadataError, NoSuchNode
from bkspark.metadata import paths
from bkspark.metadata.ledgers import read_manager
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.tree import Tree
from bkspark.metadata.uri import MetadataUri
from bkspark.tasks import each_of, start_shared

READS_AT_ONCE = 50
"""Registrations that one client reads at a time. ZooKeeper delays all its clients at 1,000 waiting requests."""

PASSES_MAX = 20
"""Looks at the registrations until they have not changed since the last one."""

Read = Callable[[str, str], Awaitable[BookieAddress | None]]
"""Reads the registration of a bookie in a list; None: there is none, or it cannot be read."""


class RegisteredAddresses:
    """The addresses of all registered bookies, as they were at a moment after the beginning of a look-up."""

    def __init__(self, tree: Tree, uri: MetadataUri, read: Read) -> None:
        self._writable = _List(tree, uri, paths.AVAILABLE, read)
        """The nodes of bookies that take writes; `_read_only`: of the others."""
        self._read_only = _List(tree, uri, paths.READ_ONLY, read)
        self._running: asyncio.Task[None] | None = None
        """The last update that began."""
        self._next: asyncio.Task[None] | None = None
        """The update that begins when the running one has ended. Calls that come until then wait for it."""

    async def others_at(self, host: str, port: int, bookie_id: str) -> list[str]:
        """Return the bookies except `bookie_id` that are registered at an address, sorted.

        The answer is that of one moment during the call.

        Raises:
            MetadataError: the store failed, or the registrations never stopped changing.
        """
        await self._update()
        found = {*self._writable.bookies_at(host, port), *self._read_only.bookies_at(host, port)}
        return sorted(found - {bookie_id})

    async def hosts(self) -> dict[str, str]:
        """Return the host at which each bookie is registered, unless its registration cannot be read.

        The answer is that of one moment during the call. Raises as `others_at`.
        """
        await self._update()
        return self._read_only.hosts() | self._writable.hosts()

    async def _update(self) -> None:
        """Return when an update has ended that began after this call: an earlier one may have read too early."""
        if self._next is None:
            self._next = start_shared(self._update_after(self._running))
        await asyncio.shield(self._next)

    async def _update_after(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        for _ in range(PASSES_MAX):
            # If neither list has changed since it was read last, both are what they were when this pass began, also if
            # a bookie has changed its mode, and with it its list, in an earlier pass.
            if not any([await each.update() for each in (self._read_only, self._writable)]):
                return
        raise MetadataError(f"the registrations of bookies changed while they were read, {PASSES_MAX} times: try again")


class _List:
    """One of the two lists of bookies."""

    def __init__(self, tree: Tree, uri: MetadataUri, where: str, read: Read) -> None:
        self._tree = tree
        self._uri = uri
        self._path = f"{uri.root}/{where}"
        self._where = where
        """The list's path below the cluster's root."""
        self._read = read
        self._changes: int | None = None
        """How often a bookie had joined or left when the names were read; None: the list does not exist."""
        self._created_ms = 0
        """When the list was created: one that is made again counts from 0."""
        self._addresses: dict[str, BookieAddress | None] = {}
        """The registrations, by bookie. Each was read after the names."""

    def bookies_at(self, host: str, port: int) -> list[str]:
        return [
            name for name, its in self._addresses.items() if its is not None and its.port == port and its.host == host
        ]

    def hosts(self) -> dict[str, str]:
        return {name: its.host for name, its in self._addresses.items() if its is not None}

    async def update(self) -> bool:
        """Read what has changed; return whether something may have."""
        if self._changes is not None:
            stat = await self._tree.exists(self._path)
            if stat is not None and (stat.child_changes, stat.ctime_ms) == (self._changes, self._created_ms):
                return False
        try:
            names, stat = await self._tree.listing(self._path)
        except NoSuchNode:
            await read_manager(self._tree, self._uri.root, self._uri.manager)
            had_bookies, self._changes, self._addresses = bool(self._addresses), None, {}
            return had_bookies
        names = [name for name in names if f"{paths.AVAILABLE}/{name}" != paths.READ_ONLY]
        kept = self._unchanged(names, stat.child_changes) if stat.ctime_ms == self._created_ms else {}
        new = [name for name in names if name not in kept]
        read = dict(zip(new, await each_of(partial(self._read, self._where), new, READS_AT_ONCE)))
        self._changes, self._created_ms, self._addresses = stat.child_changes, stat.ctime_ms, kept | read
        return True

    def _unchanged(self, names: Collection[str], changes: int) -> dict[str, BookieAddress | None]:
        """Return the registrations that are the same nodes as before.

        If more nodes were created and deleted than names came and went, some bookies left and came back, perhaps at
        another address. The store does not say which.
        """
        came_or_went = self._addresses.keys() ^ set(names)
        if self._changes is None or changes - self._changes != len(came_or_went):
            return {}
        return {name: its for name, its in self._addresses.items() if name not in came_or_went}
