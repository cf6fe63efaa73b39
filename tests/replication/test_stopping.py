"""Autorecovery ends on request, whatever the metadata store does at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bkspark.client import Client
from bkspark.errors import MetadataError
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bookie_service.replication.autorecovery import AutoRecovery
from bookie_service.replication.options import AuditOptions, AutoRecoveryOptions, RepairOptions
from tests.ledger.in_process import URI, InProcessCluster, run

CALLS = range(1, 20)
OPTIONS = AutoRecoveryOptions(AuditOptions(ledger_check_interval_s=0), RepairOptions(pause_s=0.01))


class StoppingTree(MemoryTree):
    """A session in which call number `last` from the first lock on never returns, and all later ones fail."""

    def __init__(self, store: MemoryStore, last: int) -> None:
        session = store.session()
        super().__init__(store, session.session_id, session.session_timeout_s)
        self.reached = asyncio.Event()
        self._left = last
        self._is_counting = False

    async def _pass(self, path: str) -> None:
        if not self._is_counting and "/locks/" not in path:
            return
        self._is_counting = True
        self._left -= 1
        if self._left == 0:
            self.reached.set()
            await asyncio.Event().wait()
        if self._left < 0:
            raise MetadataError("the store is away")
        await asyncio.sleep(0)


def _passing(name: str) -> Callable[..., Any]:
    async def call(self: StoppingTree, path: str, *arguments: Any, **options: Any) -> Any:
        await self._pass(path)
        return await getattr(MemoryTree, name)(self, path, *arguments, **options)

    return call


for _name in ("get", "exists", "children", "create", "set", "delete"):
    setattr(StoppingTree, _name, _passing(_name))


def test_a_stop_while_the_metadata_store_fails_ends_autorecovery_at_whichever_call(tmp_path: Path) -> None:
    """A lock that could not be given back took the place of the cancellation, and the worker went on for ever."""

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        async with await client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
            await writer.append(b"an entry")
        # No bookie can replace it: the ledger stays on the list and is locked again and again.
        await cluster.bookies[0].stop()
        for last in CALLS:
            tree = StoppingTree(cluster.store, last)
            recovery = AutoRecovery(Client(URI, tree=tree), "a process", OPTIONS)
            await recovery.start()
            await asyncio.wait_for(tree.reached.wait(), 60)
            await asyncio.wait_for(recovery.stop(), 60)

    run(tmp_path, test)
