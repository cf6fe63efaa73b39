"""Tests of one worker in virtual time, without bookies that can be connected to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from bkspark.client import Client
from bkspark.errors import MetadataError
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.uri import MetadataUri
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.options import AutoRecoveryOptions, RepairOptions
from tests.ledger.in_process import URI
from tests.replication.worker_parts import CLOSED, Bench
from tests.simulation.virtual_loop import refused_connections, run_in_virtual_time

OPTIONS = AutoRecoveryOptions(repair=RepairOptions(pause_s=1000.0, failed_pause_max_s=5.0))

EMPTY = replace(CLOSED, last_entry=-1, length=0)
"""The metadata of a ledger that can be repaired without any bookie but a spare one."""


class AwayTree(MemoryTree):
    """A session whose server can be away: then each call fails after a while."""

    def __init__(self, store: MemoryStore) -> None:
        session = store.session()
        super().__init__(store, session.session_id, session.session_timeout_s)
        self.is_away = False

    def _check(self) -> None:
        super()._check()
        if self.is_away:
            raise MetadataError("the store does not answer")


def play(
    test: Callable[[Bench], Awaitable[None]], tree: Callable[[MemoryStore], MemoryTree] = MemoryStore.session
) -> None:
    """Run a test's coroutine in virtual time; no bookie can be connected to."""

    async def run() -> None:
        store = MemoryStore()
        await BookieRegistry(store.session(), MetadataUri.parse(URI)).initialize_cluster()
        client = Client(URI, tree=tree(store))
        try:
            await test(Bench(await RepairedCluster.of(client), OPTIONS))
        finally:
            await client.close()

    run_in_virtual_time(run(), refused_connections)


async def register(bench: Bench, bookie: str, *, read_only: bool = False) -> None:
    host, port = bookie.split(":")
    await bench.cluster.context.registry.register(bookie, BookieAddress(host, int(port)), read_only=read_only)
