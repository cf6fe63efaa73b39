"""A bookie that registers itself in a store in memory."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import Fault, MemoryStore, MemoryTree
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.uri import MetadataUri
from bookie_service.cluster.registration import Registration
from tests.simulation.virtual_loop import run_in_virtual_time

URI = MetadataUri.parse("zk://h/ledgers")
ID = "b-1"
ADDRESS = BookieAddress("10.0.0.1", 3181, {"bkspark.version": "1"})
WRITABLE, READ_ONLY = f"/ledgers/available/{ID}", f"/ledgers/available/readonly/{ID}"
TIMEOUT_S = 10.0


class Bench:
    """A metadata store, one bookie's session, and its registration."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.tree = self.store.session(TIMEOUT_S)
        self.registry = BookieRegistry(self.tree, URI)

    async def registered(self, *, read_only: bool = False) -> Registration:
        await self.registry.initialize_cluster()
        registration = Registration(self.registry, ID, ADDRESS, read_only=read_only)
        await registration.enter()
        return registration

    async def replaced(self) -> tuple[Registration, MemoryTree]:
        """Return a registration whose session was gone, and the session of the process that took its id meanwhile."""
        registration, other = await self.registered(), self.another()
        self.store.expire(self.tree)
        await BookieRegistry(other, URI).register(ID, ADDRESS)
        return registration, other

    def owners(self) -> tuple[int | None, int | None]:
        """Return the sessions of the node for writable bookies and of the one for read-only bookies."""
        found = [self.store.find(path) for path in (WRITABLE, READ_ONLY)]
        return tuple(None if node is None else node.owner for node in found)  # type: ignore[return-value]

    def fail_writes(self, count: int) -> None:
        self.store.faults = {self.store.writes + at: Fault.LOST_BEFORE for at in range(count)}

    def another(self) -> MemoryTree:
        return self.store.session(TIMEOUT_S)


def run(test: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    run_in_virtual_time(test(Bench()))
