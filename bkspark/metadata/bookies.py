"""BookieRegistry: registrations and cookies of bookies, and the cluster's identity, in the metadata store."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from dataclasses import dataclass
from functools import partial

from bkspark.errors import (
    BookieUnavailable,
    MetadataError,
    MetadataFormat,
    MetadataVersion,
    NodeExists,
    NoSuchNode,
)
from bkspark.ids import check_bookie_id, parse_host_port
from bkspark.metadata import cookies, layout, paths, racks, registration
from bkspark.metadata.cookies import Cookie
from bkspark.metadata.ledgers import read_manager
from bkspark.metadata.racks import RackMap
from bkspark.metadata.registered_addresses import READS_AT_ONCE, RegisteredAddresses
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.tree import Callback, Create, Tree, parent_of
from bkspark.metadata.uri import LedgerManager, MetadataUri
from bkspark.tasks import each_of

TAKEOVER_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class StoredCookie:
    """A cookie in the metadata store and the version of its node."""

    cookie: Cookie
    version: int


class BookieRegistry:
    """Bookie registrations, cookies and the cluster's identity below the URI's root."""

    def __init__(self, tree: Tree, uri: MetadataUri) -> None:
        self._tree = tree
        self._uri = uri
        self._root = uri.root
        self._rack_maps = f"{self._root}/{paths.RACKS}", f"{parent_of(self._root).rstrip('/')}/{paths.RACKS}"
        """Paths of a rack map; the first that exists is used."""
        self._addresses: dict[str, BookieAddress] = {}
        """The address of each bookie as it was last read. Never shrinks."""
        self._registered_addresses = RegisteredAddresses(tree, uri, self._address)

    # ---- for clients ----

    async def writable(self) -> dict[str, BookieAddress | None]:
        """Return the bookies that accept writes; the address is None if the registration cannot be read.

        The list is fresh, addresses are the last known ones: `resolve` reads them again.

        Raises:
            MetadataError: there is no cluster at the root, or the store failed.
        """
        return await self._registered(paths.AVAILABLE)

    async def writable_ids(self) -> frozenset[str]:
        """Return the ids of the bookies that accept writes: one call, however many. Raises as `writable`."""
        return frozenset(await self._names(paths.AVAILABLE))

    async def read_only(self) -> dict[str, BookieAddress | None]:
        """Return the read-only bookies, as `writable`."""
        return await self._registered(paths.READ_ONLY)

    async def known(self) -> list[str]:
        """Return every bookie that ever had a cookie and was not decommissioned."""
        try:
            return await self._tree.children(f"{self._root}/{paths.COOKIES}")
        except NoSuchNode:
            return []

    async def states(self) -> dict[str, str]:
        """Return the state of each known or registered bookie, by id: available (accepts writes), readonly, or down."""
        states = dict.fromkeys(await self.known(), "down")
        states |= dict.fromkeys(await self._names(paths.READ_ONLY), "readonly")
        states |= dict.fromkeys(await self._names(paths.AVAILABLE), "available")
        if "down" in states.values():
            # Not before the other list was read: see `registered_ids`.
            turned = await self._names(paths.READ_ONLY)
            states |= {name: "readonly" for name in turned if states.get(name, "down") == "down"}
        return dict(sorted(states.items()))

    async def registered_ids(self) -> frozenset[str]:
        """Return the ids of all bookies that are registered, as writable or as read-only. Raises as `writable`.

        A bookie that changes its mode registers in the other list before it leaves the first one. It may do both while
        one list is read after the other, and be in neither; so the first list is read again.
        """
        lists = [await self._names(where) for where in (paths.READ_ONLY, paths.AVAILABLE, paths.READ_ONLY)]
        return frozenset().union(*lists)

    async def _names(self, where: str) -> list[str]:
        try:
            names = await self._tree.children(f"{self._root}/{where}")
        except NoSuchNode:
            await read_manager(self._tree, self._root, self._uri.manager)
            return []
        return [name for name in names if name != "readonly"]

    async def _registered(self, where: str) -> dict[str, BookieAddress | None]:
        ids = await self._names(where)
        new = [name for name in ids if name not in self._addresses]
        await each_of(partial(self._address, where), new, READS_AT_ONCE)
        return {name: self._addresses.get(name) for name in ids}

    async def _address(self, where: str, bookie_id: str) -> BookieAddress | None:
        try:
            data, _ = await self._tree.get(f"{self._root}/{where}/{bookie_id}")
            address = registration.decode(data, bookie_id)
        except (NoSuchNode, MetadataFormat):
            return None
        self._addresses[bookie_id] = address
        return address

    async def registration(self, bookie_id: str) -> BookieAddress | None:
        """Return a bookie's present registration; None if it is not registered or its registration cannot be read."""
        for where in (paths.AVAILABLE, paths.READ_ONLY):
            address = await self._address(where, bookie_id)
            if address is not None:
                return address
        return None

    async def session(self, bookie_id: str) -> int | None:
        """Return the metadata session that registered a bookie, None if it is not registered."""
        for where in (paths.AVAILABLE, paths.READ_ONLY):
            stat = await self._tree.exists(f"{self._root}/{where}/{bookie_id}")
            if stat is not None:
                return stat.session_owner
        return None

    async def resolve(self, bookie_id: str) -> tuple[str, int]:
        """Return (host, port) of a bookie. If it is not registered, its last address is used, or its id if that has the
        form host:port, unless another bookie is registered at that address.

        That other bookie would truthfully answer that it has no such entry, and a recovery would mistake this for the
        answer of the bookie that it asked.

        Raises:
            BookieUnavailable: it is not registered, and its address is unknown or another bookie's now.
        """
        address = await self.registration(bookie_id)
        if address is not None:
            return address.host, address.port
        last = self._addresses.get(bookie_id)
        try:
            found = parse_host_port(bookie_id) if last is None else (last.host, last.port)
        except ValueError:
            raise BookieUnavailable(f"bookie {bookie_id} is not registered", bookie=bookie_id) from None
        others = await self.others_at(*found, bookie_id)
        if others:
            raise BookieUnavailable(
                f"bookie {bookie_id} is not registered, and its address {found[0]}:{found[1]} is that of bookie "
                f"{others[0]} now",
                bookie=bookie_id,
            )
        return found

    async def others_at(self, host: str, port: int, bookie_id: str) -> list[str]:
        """Return the bookies except `bookie_id` that are registered at an address, sorted.

        Raises:
            MetadataError: the store failed, or the registrations never stopped changing.
        """
        return await self._registered_addresses.others_at(host, port, bookie_id)

    async def hosts(self) -> dict[str, str]:
        """Return the host at which each bookie is registered, by id. Raises as `others_at`."""
        return await self._registered_addresses.hosts()

    async def racks(self) -> RackMap:
        """Return the racks and hosts of the bookies that the cluster's rack map names (`bkspark.metadata.racks`).

        Raises:
            MetadataFormat: the map cannot be read; the message has its path.
        """
        for path in self._rack_maps:
            try:
                data, _ = await self._tree.get(path)
            except NoSuchNode:
                continue
            return racks.decode(data, path)
        return RackMap()

    # ---- for a bookie ----

    @property
    def session_timeout_s(self) -> float:
        return self._tree.session_timeout_s

    async def register(
        self, bookie_id: str, address: BookieAddress, *, read_only: bool = False, take_over: bool = False
    ) -> None:
        """Register this session's bookie until the session ends. A registration of this session with other contents is
        updated; if it has another address it is deleted and created (`RegisteredAddresses` relies on that).

        If an earlier session of the same bookie left a node, wait until that session has timed out. With `take_over`
        the node is replaced at once: the caller has proof that the earlier process is dead, because it holds the lock
        and the cookie of that bookie's directories.

        Raises:
            NodeExists: another process serves under this id.
            MetadataError: there is no cluster at the root, or the store failed.
        """
        check_bookie_id(bookie_id)
        await read_manager(self._tree, self._root, self._uri.manager)
        path = f"{self._root}/{paths.READ_ONLY if read_only else paths.AVAILABLE}/{bookie_id}"
        deadline = asyncio.get_running_loop().time() + 2 * self._tree.session_timeout_s
        while True:
            try:
                await self._tree.create(path, registration.encode(address), ephemeral=True, make_parents=True)
                return
            except MetadataError as error:
                # The answer may have been lost: the owner of the node shows whether it was created.
                stat = await self._tree.exists(path)
                if stat is not None and stat.session_owner == self._tree.session_id:
                    stored = (await self._tree.get(path))[0]
                    if registration.is_elsewhere(stored, bookie_id, address):
                        await self._delete_stale(path, stat.version)
                        continue
                    if stored != registration.encode(address):
                        await self._tree.set(path, registration.encode(address), -1)
                    return
                if not isinstance(error, NodeExists):
                    raise
                if take_over and stat is not None:
                    await self._delete_stale(path, stat.version)
                    continue
            if asyncio.get_running_loop().time() > deadline:
                raise NodeExists(
                    f"bookie {bookie_id} is registered by another process that is alive: stop it, or give this one "
                    "another bookieId",
                    bookie=bookie_id,
                )
            await asyncio.sleep(TAKEOVER_POLL_S)

    async def _delete_stale(self, path: str, version: int) -> None:
        try:
            await self._tree.delete(path, version)
        except (NoSuchNode, MetadataVersion):
            # The node was deleted, or has another owner; the next attempt finds out.
            return

    async def unregister(self, bookie_id: str, *, read_only: bool = False) -> None:
        """Remove this session's registration; does nothing if there is none, or if it belongs to another session."""
        path = f"{self._root}/{paths.READ_ONLY if read_only else paths.AVAILABLE}/{bookie_id}"
        stat = await self._tree.exists(path)
        if stat is None or stat.session_owner != self._tree.session_id:
            return
        await self._delete_surely(path)

    async def _delete_surely(self, path: str) -> None:
        """Delete a node; a node that is already gone counts as deleted, also after a lost answer."""
        try:
            await self._tree.delete(path)
        except NoSuchNode:
            return
        except MetadataError:
            if await self._tree.exists(path) is not None:
                raise

    async def read_cookie(self, bookie_id: str) -> StoredCookie | None:
        """Return a bookie's cookie, or None. Raises MetadataFormat where it cannot be read."""
        path = f"{self._root}/{paths.COOKIES}/{bookie_id}"
        try:
            data, stat = await self._tree.get(path)
        except NoSuchNode:
            return None
        return StoredCookie(cookies.decode(data, f"metadata node {path}"), stat.version)

    async def write_cookie(self, cookie: Cookie, version: int | None) -> None:
        """Store a bookie's cookie: a new one (`version` None) or in place of the version read.

        Raises:
            NodeExists, MetadataVersion: another process wrote it meanwhile.
        """
        path = f"{self._root}/{paths.COOKIES}/{cookie.bookie_id}"
        data = cookies.encode(cookie)
        try:
            if version is None:
                await self._tree.create(path, data, make_parents=True)
            else:
                await self._tree.set(path, data, version)
        except (NodeExists, NoSuchNode, MetadataVersion):
            raise
        except MetadataError:
            # The answer was lost; the stored data shows whether the write took effect.
            expected = 0 if version is None else version + 1
            if await self.read_cookie(cookie.bookie_id) != StoredCookie(cookie, expected):
                raise

    async def delete_cookie(self, bookie_id: str) -> None:
        """Forget a bookie. Raises NoSuchNode where there is no cookie."""
        path = f"{self._root}/{paths.COOKIES}/{bookie_id}"
        if await self._tree.exists(path) is None:
            raise NoSuchNode(f"metadata node {path} does not exist", bookie=bookie_id)
        await self._delete_surely(path)

    async def instance_id(self) -> str | None:
        """Return the cluster's instance id; None if Pulsar's or an old initialisation wrote no id."""
        try:
            return (await self._tree.get(f"{self._root}/{paths.INSTANCE_ID}"))[0].decode()
        except NoSuchNode:
            return None
        except UnicodeDecodeError:
            raise MetadataFormat(f"{self._root}/{paths.INSTANCE_ID} is not text") from None

    # ---- the cluster ----

    async def initialize_cluster(self) -> bool:
        """Create a new cluster at the root; return False if there is one already.

        One transaction creates all nodes except LAYOUT, which comes last; a cluster that a crash left without it is
        completed.

        Raises:
            MetadataError: the root holds something else, or another ledger manager than the URI names.
        """
        manager = self._uri.manager or LedgerManager.HIERARCHICAL
        is_new = await self._create_root()
        for name, data in ((paths.LAYOUT, layout.encode(manager)), (paths.COOKIES, b"")):
            try:
                await self._tree.create(f"{self._root}/{name}", data)
            except NodeExists:
                continue
        await read_manager(self._tree, self._root, self._uri.manager)
        return is_new

    async def _create_root(self) -> bool:
        """Create the root and the required nodes below it, all or nothing; False if there is a cluster."""
        nodes = [f"{self._root}/{name}" for name in (paths.AVAILABLE, paths.READ_ONLY)]
        try:
            names = await self._tree.children(self._root)
        except NoSuchNode:
            await self._ensure_parents()
            nodes.insert(0, self._root)
            names = []
        if {paths.AVAILABLE, paths.LAYOUT} & set(names):
            return False
        if names:
            raise MetadataError(
                f"{self._root} is not empty and is not a cluster (it holds {names[0]!r}): choose another path in the "
                "metadata URI"
            )
        identity = str(uuid.uuid4()).encode()
        try:
            await self._tree.transaction([*map(Create, nodes), Create(f"{self._root}/{paths.INSTANCE_ID}", identity)])
        except NodeExists:
            return False  # another process creates the same cluster at this moment
        except MetadataError:
            # The answer was lost; the stored identity shows whose cluster it is.
            if await self.instance_id() != identity.decode():
                raise
        return True

    async def _ensure_parents(self) -> None:
        parts = self._root.split("/")[1:-1]
        for depth in range(1, len(parts) + 1):
            try:
                await self._tree.create("/" + "/".join(parts[:depth]))
            except NodeExists:
                continue

    async def watch_writable(self, callback: Callback) -> Callback:
        """Call `callback()` when the set of writable bookies may have changed; return what ends that."""
        return await self._tree.watch_children(f"{self._root}/{paths.AVAILABLE}", callback)

    async def watch_racks(self, callback: Callback) -> Callback:
        """Call `callback()` when the rack map may have changed, appeared or vanished; return what ends that."""
        ends: list[Callback] = []

        def end() -> None:
            for one in ends:
                one()

        try:
            for path in self._rack_maps:
                ends.append(await self._tree.watch(path, callback))
        except BaseException:
            end()
            raise
        return end

    async def watch_read_only(self, callback: Callback) -> Callback:
        """`watch_writable`, for the read-only bookies."""
        with contextlib.suppress(NodeExists):
            await self._tree.create(f"{self._root}/{paths.READ_ONLY}", make_parents=True)
        return await self._tree.watch_children(f"{self._root}/{paths.READ_ONLY}", callback)

    def on_session_expired(self, callback: Callback) -> Callback:
        """Call `callback()` when the session has ended and its registrations with it; return what ends this."""
        return self._tree.on_session_expired(callback)
