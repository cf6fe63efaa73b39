"""Opens the ledger storage that `ledgerStorageClass` names, and refuses directories that another storage wrote."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from bkspark.errors import ConfigurationError
from bookie_service.formats import key_value_index
from bookie_service.storage.index.index import IndexPaths
from bookie_service.storage.index.ledger_headers import LedgerHeaders
from bookie_service.storage.io.files import LocalFiles, ReadOnlyFiles
from bookie_service.storage.ledgers.base import BaseLedgerStorage, StoreOptions
from bookie_service.storage.ledgers.db import DbLedgerStorage
from bookie_service.storage.ledgers.interface import LedgerStorage
from bookie_service.storage.ledgers.sorted_interleaved import InterleavedLedgerStorage, SortedLedgerStorage
from bookie_service.storage.ledgers.storage_class import StorageClass

_STORAGES: dict[StorageClass, Callable[[LocalFiles, Sequence[str], StoreOptions], BaseLedgerStorage]] = {
    StorageClass.SORTED: SortedLedgerStorage,
    StorageClass.INTERLEAVED: InterleavedLedgerStorage,
    StorageClass.DB: DbLedgerStorage,
}


def open_ledger_storage(files: LocalFiles, directories: Sequence[str], options: StoreOptions) -> LedgerStorage:
    """Open the configured storage, without replay. `directories`: the `current` directories, in configured order.

    Raises:
        ConfigurationError: another storage wrote the directories, and this one does not read its index.
        StorageDamaged: the index is damaged.
    """
    check_written_by(files, directories, options.storage_class)
    return _STORAGES[options.storage_class](files, directories, options)


def check_written_by(files: ReadOnlyFiles, directories: Sequence[str], storage_class: StorageClass) -> None:
    """Raise ConfigurationError if the other kind of index exists, whose ledgers would be missing from this storage."""
    if storage_class is StorageClass.DB:
        fileless = LedgerHeaders(files, directories, None)
        if IndexPaths(directories).has_any(files) or len(fileless) or fileless.damage:
            raise ConfigurationError(
                f"{', '.join(directories)}: written with ledgerStorageClass {StorageClass.SORTED.short_name} or "
                f"{StorageClass.INTERLEAVED.short_name}, which {storage_class.short_name} does not read: set one of "
                "those again, or start a bookie with a new id and empty directories"
            )
    elif files.exists(path := os.path.join(directories[0], key_value_index.DIRECTORY_NAME)):
        raise ConfigurationError(
            f"{path}: written with ledgerStorageClass {StorageClass.DB.short_name}, which {storage_class.short_name} "
            "does not read: set that again, or start a bookie with a new id and empty directories"
        )
