"""Logs over which one job publishes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bkspark.log.formats import Publisher
from bkspark.log.routing import Part, RoutedCommits
from bkspark.log.schemas import SchemaChange
from bkspark.log.store import LogStore
from bkspark.metadata.memory import MemoryStore
from tests.log.world import JOB, TurningTree, closed

Q0 = Publisher("q", 0)


class Logs:
    """A metadata server with some logs, and stores that talk to it."""

    def __init__(self, *names: str) -> None:
        self.server = MemoryStore()
        self.names = names
        self.store = self.another_store()
        self.commits = RoutedCommits(self.store)

    def another_store(self) -> LogStore:
        """Return the store of another process, which takes turns with all others call by call."""
        return LogStore(TurningTree(self.server), "/ledgers")

    async def create(self) -> Logs:
        for name in self.names:
            await self.store.create(name)
        return self

    async def part(self, log: str, *ids: int, schema: SchemaChange | None = None) -> Part:
        """Return closed ledgers for a log, registered as pending."""
        for ledger_id in ids:
            await self.store.attempts.add(log, ledger_id, JOB)
        return Part(log, tuple(closed(*ids)), (), schema)

    async def commit(self, publisher: Publisher | None = None, **ids: int) -> bool:
        parts = [await self.part(log, ledger_id) for log, ledger_id in ids.items()]
        return await self.commits.publish(parts, "j1", publisher)

    async def content(self, store: LogStore | None = None) -> dict[str, list[int]]:
        """Return the ids of the ledgers of each log, as of one moment."""
        store = store or self.another_store()
        found = await RoutedCommits(store).snapshots(store.names)
        return {snapshot.name: [each.ledger_id for each in await snapshot.ledgers()] for snapshot in found}


def in_logs(*names: str) -> Callable[[Callable[[Logs], Awaitable[None]]], Callable[[], None]]:
    """Make a test of a coroutine that takes logs of these names."""

    def decorate(test: Callable[[Logs], Awaitable[None]]) -> Callable[[], None]:
        async def run() -> None:
            await test(await Logs(*names).create())

        def call() -> None:
            asyncio.run(run())

        call.__doc__ = test.__doc__
        return call

    return decorate
