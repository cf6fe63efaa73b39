"""Which of Apache's ledger storages a bookie uses: the values of `ledgerStorageClass`."""

from __future__ import annotations

import enum

_PACKAGE = "org.apache.bookkeeper.bookie."


class StorageClass(enum.Enum):
    """Apache's class names, fully qualified."""

    SORTED = _PACKAGE + "SortedLedgerStorage"
    INTERLEAVED = _PACKAGE + "InterleavedLedgerStorage"
    DB = _PACKAGE + "storage.ldb.DbLedgerStorage"

    @property
    def short_name(self) -> str:
        return self.value.rpartition(".")[2]

    @property
    def cache_half_setting(self) -> str:
        """The key that sets the size of one half of the write cache."""
        return "half of dbStorage_writeCacheMaxSizeMb, in bytes" if self is StorageClass.DB else "skipListSizeLimit"

    @classmethod
    def parse(cls, text: str) -> StorageClass:
        """Return the storage of a short or fully qualified name.

        Raises:
            ValueError: there is no storage of that name.
        """
        for each in cls:
            if text in (each.value, each.short_name):
                return each
        known = ", ".join(each.short_name for each in cls)
        raise ValueError(f"there is no storage {text!r}; it must be one of {known}")

    @classmethod
    def nearest(cls, text: str) -> StorageClass | None:
        """Return the storage whose name a class name ends with, as in `org.example.SlowSortedLedgerStorage`."""
        kinds = [each for each in cls if "." in text and text.endswith(each.short_name)]
        return max(kinds, key=lambda each: len(each.short_name), default=None)
