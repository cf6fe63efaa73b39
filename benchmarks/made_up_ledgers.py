"""A metadata tree with any number of ledgers that keeps none: a model of ZooKeeper for more than a machine can hold.

What is not real: the network, the server, and its names and data, which are made from the number of ledgers when they
are asked for. Whatever is not about ledgers is kept, as in `MemoryTree`: registrations, cookies, the list of
under-replicated ledgers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState
from bkspark.errors import NodeExists, NoSuchNode
from bkspark.metadata import encoding, paths
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.tree import Stat
from bkspark.metadata.uri import MetadataUri
from bkspark.wire.digest import DigestType

URI = "zk+hierarchical://in-memory/ledgers"
LEDGERS_PER_FOLDER = 10_000
ENSEMBLE = 3
_ID_PREFIX = "/ledgers/idgen/ID-"
_FULL_LEAF = [f"L{number:04d}" for number in range(LEDGERS_PER_FOLDER)]
_CHILDREN = ["INSTANCEID", "LAYOUT", "available", "cookies", "underreplication"]


class MadeUpTree(MemoryTree):
    """A tree with ledgers 0 to `ledgers` - 1, closed, on three of `bookies` each. Creating the next id adds one."""

    def __init__(self, store: MemoryStore, ledgers: int, bookies: Sequence[str]) -> None:
        super().__init__(store, 99, 10.0)
        self.ledgers = ledgers
        self._generated = ledgers
        self._data = [_metadata(bookies, first) for first in range(len(bookies))]

    async def get(self, path: str) -> tuple[bytes, Stat]:
        await asyncio.sleep(0)
        ledger_id = paths.parse_ledger_path(path.removeprefix("/ledgers/"))
        if ledger_id is None:
            return await super().get(path)
        if ledger_id >= self.ledgers:
            raise NoSuchNode(f"metadata node {path} does not exist")
        return self._data[ledger_id % len(self._data)], Stat(0, 0, 0, 0, 0, 0)

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> tuple[str, Stat]:
        # As over a network, others have a turn: what a client does in the background.
        await asyncio.sleep(0)
        if path == _ID_PREFIX:
            self._generated += 1
            return f"{path}{self._generated - 1:010d}", Stat(0, 0, 0, 0, 0, 0)
        ledger_id = paths.parse_ledger_path(path.removeprefix("/ledgers/"))
        if ledger_id is None:
            return await super().create(
                path, data, ephemeral=ephemeral, sequential=sequential, make_parents=make_parents
            )
        if ledger_id != self.ledgers:
            raise NodeExists(f"metadata node {path} exists already")
        self.ledgers += 1
        return path, Stat(0, 0, 0, 0, 0, 0)

    async def delete(self, path: str, version: int = -1) -> None:
        if not path.startswith(_ID_PREFIX):
            await super().delete(path, version)

    async def children(self, path: str) -> list[str]:
        if path != "/ledgers" and not path[len("/ledgers/") :].replace("/", "").isdigit():
            return await super().children(path)
        # A real one waits for the network, and decodes the names on a thread of its own.
        return await asyncio.to_thread(self._names, path.removeprefix("/ledgers"))

    def _names(self, below: str) -> list[str]:
        depth, folders = below.count("/"), -(-self.ledgers // LEDGERS_PER_FOLDER)
        if depth == 0:
            return [*_CHILDREN, *(f"{number:02d}" for number in range(-(-folders // 10_000)))]
        first = int(below[1:3]) * 10_000
        if depth == 1:
            return [f"{number:04d}" for number in range(min(10_000, folders - first))]
        before = (first + int(below[4:])) * LEDGERS_PER_FOLDER
        return list(_FULL_LEAF[: self.ledgers - before])


def _metadata(bookies: Sequence[str], first: int) -> bytes:
    ensemble = tuple(bookies[(first + place) % len(bookies)] for place in range(min(ENSEMBLE, len(bookies))))
    quorum = len(ensemble)
    metadata = LedgerMetadata(
        quorum,
        quorum,
        quorum,
        (Fragment(0, ensemble),),
        state=LedgerState.CLOSED,
        last_entry=99,
        length=99 * 1024,
        digest=DigestType.CRC32C,
        ctime=1,
    )
    return encoding.encode(metadata)


async def made_up_tree(ledgers: int, bookies: Sequence[str] = ("a:1", "b:1", "c:1")) -> MadeUpTree:
    """Return a tree that is set up as a cluster with this many ledgers."""
    store = MemoryStore()
    await BookieRegistry(store.session(), MetadataUri.parse(URI)).initialize_cluster()
    return MadeUpTree(store, ledgers, bookies)
