"""A ledger storage without a bookie: put entries, flush them, read them back."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.factory import open_ledger_storage
from bookie_service.storage.ledgers.interface import LedgerStorage
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.logs.log_appender import AppendOptions

OPTIONS = StoreOptions(cache_half_bytes=8192, append=AppendOptions(4096), open_files_max=8)

KEY = b"k" * 20


def open_store(
    directory: Path, directories: int = 1, storage_class: StorageClass = StorageClass.SORTED
) -> LedgerStorage:
    paths = [directory / f"ledgers{i}" for i in range(directories)]
    for path in paths:
        path.mkdir(exist_ok=True)
    return open_ledger_storage(
        LocalFiles(), [str(path) for path in paths], replace(OPTIONS, storage_class=storage_class)
    )


def put(store: LedgerStorage, ledger_id: int, items: dict[int, bytes]) -> None:
    ledger = store.ledger(ledger_id) or store.create_ledger(ledger_id, KEY)
    buffer = np.frombuffer(b"".join(items.values()), np.uint8)
    sizes = np.array([len(content) for content in items.values()])
    addresses = store.active.place(buffer, np.cumsum(sizes) - sizes, sizes)
    store.insert(ledger, np.array(list(items)), addresses)


def flush(store: LedgerStorage) -> None:
    taken = store.begin_flush()
    assert taken is not None
    store.write_flush(taken)
    store.end_flush(taken)


def read(store: LedgerStorage, ledger_id: int, first: int, count: int = 1000, bytes_max: int = 1 << 20) -> bytes:
    ledger = store.ledger(ledger_id)
    assert ledger is not None
    return b"".join(bytes(items.buffer) for items in store.read(ledger, first, count, bytes_max))


def open_below(folder: Path) -> list[str]:
    """Return the files below a folder that this process has open."""
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    paths = [os.readlink(link) for link in links if os.path.lexists(link)]
    return sorted(path for path in paths if path.startswith(str(folder)))
