"""Opens the ledger storage that `ledgerStorageClass` names, and refuses directories that another storage wrote."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from bkspark.errors import ConfigurationError
from bookie_service.formats import key_value_index
from bookie_service.storage import layout
from bookie_service.storage.index.index import IndexPaths
from bookie_service.storage.index.ledger_headers import LedgerHeaders
from bookie_service.storage.io.file_places import FilePlaces
from bookie_service.storage.io.files import LocalFiles, ReadOnlyFiles, is_disk_failure
from bookie_service.storage.ledgers.base import BaseLedgerStorage, StoreOptions
from bookie_service.storage.ledgers.db import DbLedgerStorage
from bookie_service.storage.ledgers.interface import LedgerStorage
from bookie_service.storage.ledgers.sorted_interleaved import InterleavedLedgerStorage, SortedLedgerStorage
from bookie_service.storage.ledgers.storage_class import StorageClass

_STORAGES: dict[
    StorageClass, Callable[[LocalFiles, Sequence[str], StoreOptions, FilePlaces | None], BaseLedgerStorage]
] = {
    StorageClass.SORTED: SortedLedgerStorage,
    StorageClass.INTERLEAVED: InterleavedLedgerStorage,
    StorageClass.DB: DbLedgerStorage,
}


_CONVERT = "convert the index with `bkspark bookie --convert-index`"


def open_ledger_storage(
    files: LocalFiles, directories: Sequence[str], options: StoreOptions, places: FilePlaces | None = None
) -> LedgerStorage:
    """Open the configured storage, without replay.

    `directories`: the `current` directories, in configured order. `places`: the record of where the files of the whole
    bookie are; None: a disk that cannot be read ends the start.

    Raises:
        ConfigurationError: another storage wrote the directories, and this one does not read its index.
        StorageDamaged: the index is damaged.
    """
    check_written_by(files, directories, options.storage_class, places)
    return _STORAGES[options.storage_class](files, directories, options, places)


def check_written_by(
    files: ReadOnlyFiles, directories: Sequence[str], storage_class: StorageClass, places: FilePlaces | None = None
) -> None:
    """Raise ConfigurationError if the other kind of index exists, whose ledgers would be missing from this storage."""
    if storage_class is StorageClass.DB:
        fileless = LedgerHeaders(files, directories, None, places)
        if IndexPaths(directories).has_any(files, skips_failing=True) or len(fileless) or fileless.damage:
            raise ConfigurationError(
                f"{', '.join(directories)}: written with ledgerStorageClass {StorageClass.SORTED.short_name} or "
                f"{StorageClass.INTERLEAVED.short_name}, which {storage_class.short_name} does not read: set one of "
                f"those again, or {_CONVERT}"
            )
        return
    for directory in directories:
        if _is_seen(files, path := os.path.join(directory, key_value_index.DIRECTORY_NAME)):
            raise ConfigurationError(
                f"{path}: written with ledgerStorageClass {StorageClass.DB.short_name}, which "
                f"{storage_class.short_name} does not read: set that again, or {_CONVERT}"
            )


def check_converted(files: ReadOnlyFiles, journals: Sequence[str], directories: Sequence[str]) -> None:
    """Raise ConfigurationError if a conversion of the index did not end: there may be parts of both kinds.

    `journals`: the `current` directories of the journals. A start needs them, whatever ledger directory fails.
    """
    for directory in (journals[0], directories[0]):
        if _is_seen(files, path := os.path.join(directory, layout.CONVERSION_NAME)):
            if files.read_all(path).startswith(layout.REBUILDING):
                raise ConfigurationError(
                    f"{path}: a rebuild of the index was interrupted: run `bkspark bookie --rebuild-index` again"
                )
            raise ConfigurationError(
                f"{path}: a conversion of the index was interrupted: run `bkspark bookie --convert-index` again, or "
                "with ledgerStorageClass as it was, to undo it. If a store is divided, the class is the same, and the "
                "command undoes it itself if a disk does not take the new stores"
            )


def _is_seen(files: ReadOnlyFiles, path: str) -> bool:
    """Return whether there is a file; also False if its disk fails, which whatever opens the directory reports."""
    try:
        return files.exists(path)
    except OSError as error:
        if not is_disk_failure(error):
            raise
        return False
