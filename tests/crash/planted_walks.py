"""Defects of an index in key-value stores that random walks must find. See `split_walks`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bookie_service.storage.index.kept_files import KeptFiles
from bookie_service.storage.index.key_value_index import KeyValueIndex
from bookie_service.storage.index.split_index import SplitIndex
from bookie_service.storage.io.kept_key_values import KeptKeyValues
from tests.planting import Plant, around, replaced

Item = tuple[bytes, bytes]


def repeated_write_forgotten() -> Plant:
    """A write that is repeated after there was too much to keep does not count as not durable."""

    def put(old: Any, self: KeyValueIndex, puts: Sequence[Item]) -> None:
        size = sum(len(key) + len(value) for key, value in puts)
        had_room = not self._newer_bytes or self._newer_bytes + size <= self._newer_bytes_max
        before = self._commit_number
        old(self, puts)
        if had_room and self._commit_number != before:
            self._newer_bytes = 0

    return around(KeyValueIndex, "_put", put)


def mark_without_the_file() -> Plant:
    """The marks advance although no directory took what a store lacks."""
    return replaced(KeptFiles, "save", lambda self, files, disks, changes, avoided: True)


def removal_past_the_file() -> Plant:
    """A removal goes into the store while a file counts that has rows of the ledger."""

    def write(old: Any, self: KeptKeyValues, puts: Sequence[Item], removed: Sequence[Item] = ()) -> None:
        if removed and not self.keeps_any:
            self.changes += 1
            self._store.write(puts, removed)
        else:
            old(self, puts, removed)

    return around(KeptKeyValues, "write", write)


def no_doubt() -> Plant:
    """Ledgers with changes that a failing disk did not take are not put into limbo."""
    return replaced(SplitIndex, "_doubt_closed", lambda self: None)


def nothing_kept_is_read() -> Plant:
    """A reader does not look at what a full store did not take."""
    return around(KeptKeyValues, "get", lambda old, self, keys: self._store.get(keys))


def sync_forgets_later_rows() -> Plant:
    """A sync that has ended is taken to cover what was held after it had begun."""

    def end(old: Any, self: KeyValueIndex) -> None:
        has_ended = self._syncing is not None
        old(self)
        self._is_clean = self._is_clean or has_ended

    return around(KeyValueIndex, "end_sync", end)


def given_rows_forgotten_early() -> Plant:
    """What is kept is forgotten before the store has it, so a reader in between does not find it."""

    def some(old: Any, self: KeptKeyValues) -> list[Item]:
        found: list[Item] = old(self)
        with self._changing:
            for key, value in found:
                self._forget(key, value)
        return found

    return around(KeptKeyValues, "_some_puts", some)


FOR_SEVERAL = (
    repeated_write_forgotten,
    mark_without_the_file,
    removal_past_the_file,
    no_doubt,
    nothing_kept_is_read,
    sync_forgets_later_rows,
    given_rows_forgotten_early,
)
"""Defects that show with a store for each directory."""
FOR_ONE = (sync_forgets_later_rows,)
"""Defects that show with one store for all ledgers, too."""
