"""A store with ledgers in limbo, and what a check of them may find."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bkspark.errors import MetadataError
from bookie_service.cluster.ledger_shares import HeldShare, LedgerShare
from bookie_service.cluster.limbo_check import LimboCheck
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.ledgers.base import BaseLedgerStorage, StoreOptions
from bookie_service.storage.ledgers.factory import open_ledger_storage
from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.bookie.collecting import Bench
from tests.bookie.faulty_files import GoneFiles
from tests.bookie.ledger_stores import flush


def store_with(
    directory: Path,
    ledger_id: int,
    entry_ids: Sequence[int],
    storage_class: StorageClass = StorageClass.SORTED,
) -> BaseLedgerStorage:
    """Return a storage that holds empty entries of one ledger."""
    directory.mkdir(exist_ok=True)
    store = open_ledger_storage(LocalFiles(), [str(directory)], StoreOptions(storage_class, cache_half_bytes=8 << 20))
    assert isinstance(store, BaseLedgerStorage)
    ledger = store.create_ledger(ledger_id, b"k" * 20)
    ids = np.array(entry_ids, np.int64)
    if len(ids):
        items = np.zeros((len(ids), 20), np.uint8)
        items[:, 3] = 16
        items[:, 4:12] = np.frombuffer(ledger_id.to_bytes(8, "big"), np.uint8)
        items[:, 12:20] = ids.astype(">i8").view(np.uint8).reshape(-1, 8)
        starts = np.arange(0, 20 * len(ids), 20)
        store.insert(ledger, ids, store.active.place(items.reshape(-1), starts, np.full(len(ids), 20)))
    flush(store)
    return store


class Shares:
    """A view of the metadata that returns prepared answers for each ledger, and records reports."""

    def __init__(self, shares: dict[int, LedgerShare]) -> None:
        self.answers = shares
        self.failures = 0
        self.reported: list[int] = []

    async def share(self, ledger_id: int) -> LedgerShare:
        if self.failures:
            self.failures -= 1
            raise MetadataError("away")
        return self.answers[ledger_id]

    async def report(self, ledger_id: int, now_ms: int) -> None:
        self.reported.append(ledger_id)


WHOLE, LACKING = LedgerShare((HeldShare(0, 10, 0, 1, 1),)), LedgerShare((HeldShare(0, 11, 0, 1, 1),))
DELETED, NOT_SETTLED = LedgerShare((), is_deleted=True), LedgerShare((), is_closed=False)


def looked_at(store: BaseLedgerStorage, metadata_view: Shares, looks: int = 1) -> None:
    """Check all ledgers in limbo a number of times."""

    async def flush_all() -> None:
        flush(store)

    async def look() -> None:
        checking = LimboCheck(store, metadata_view, 3600, 1_000_000, flush_all)
        checking.cancel()
        for _ in range(looks):
            await checking.check()

    asyncio.run(asyncio.wait_for(look(), 120))


def in_limbo_on_three_disks(directory: Path) -> tuple[Bench, GoneFiles]:
    """Return a bench with ledgers 3, 4 and 5 in limbo, each on a disk of its own. That of ledger 4 fails now."""
    files = GoneFiles()
    bench = Bench(directory, files, directories=3)
    for ledger_id in (3, 4, 5):
        bench.put(ledger_id, range(10))
    bench.flush()
    bench.reopen(cleanly=True)
    bench.store.limbo.begin([3, 4, 5])
    files.fault = lambda operation, path: "/ledgers1" in path
    return bench, files
