"""Defects of entry logs, index and write cache, which all storages share; see `planted`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from bookie_service.formats import index as index_format
from bookie_service.storage.index.index_pages import IndexPages, Page
from bookie_service.storage.index.index_writer import IndexWriter
from bookie_service.storage.index.per_ledger import PerLedgerIndex
from bookie_service.storage.ledgers import write_cache
from bookie_service.storage.logs import log_reader
from bookie_service.storage.logs.entry_log import EntryLogs
from bookie_service.storage.logs.log_appender import EntryLogAppender
from tests.crash.planting import skipping
from tests.crash.simulated_files import SimulatedFiles
from tests.planting import Plant, changed, replaced

# ---- entry logs ----


def unsynced_entry_log() -> Plant:
    return replaced(EntryLogAppender, "sync_all", lambda self: None)


def unsynced_full_log() -> Plant:
    return skipping(EntryLogAppender, "_log_with_room", "sync_data")


def unsynced_log_name() -> Plant:
    return skipping(EntryLogs, "create", "sync_directory")


@contextlib.contextmanager
def colliding_log_ids() -> Iterator[None]:
    def forgetting(old: Any) -> Any:
        def init(self: EntryLogs, *arguments: Any, **named: Any) -> None:
            old(self, *arguments, **named)
            self._last_id = 0

        return init

    def truncating(old: Any) -> Any:
        def create(self: SimulatedFiles, path: str) -> Any:
            if path.endswith(".log") and self.exists(path):
                file = self.open(path)
                file.truncate(0)
                return file
            return old(self, path)

        return create

    with changed(EntryLogs, "__init__", forgetting), changed(SimulatedFiles, "create", truncating):
        yield


def unverified_ids() -> Plant:
    def checked_sizes(data: bytes, starts: np.ndarray, ledger_id: int, first_entry: int) -> np.ndarray:
        sizes = []
        for start in starts.tolist():
            size = 4 + int.from_bytes(data[start : start + 4], "big", signed=True)
            if size < 20 or start + size > len(data):
                break
            sizes.append(size)
        return np.array(sizes, np.int64)

    return replaced(log_reader, "_checked_sizes", checked_sizes)


# ---- index ----


@contextlib.contextmanager
def unsynced_index() -> Iterator[None]:
    with skipping(IndexWriter, "sync", "sync_data"), skipping(IndexWriter, "sync", "sync"):
        yield


def unsynced_index_name() -> Plant:
    return changed(IndexWriter, "_make_durable", lambda old: lambda self, ledger_ids, names: old(self, ledger_ids, ()))


def unsynced_index_folder() -> Plant:
    """Only the directory of the file itself is synced, not those above it."""

    def make(old: Any) -> Any:
        def make_durable(self: IndexWriter, ledger_ids: Any, names: Any) -> None:
            old(self, ledger_ids, {self._paths.directories(ledger_id)[-1] for ledger_id in ledger_ids} & set(names))

        return make_durable

    return changed(IndexWriter, "_make_durable", make)


def zeroed_gaps() -> Plant:
    """A page is created empty, without its file's contents."""
    return replaced(IndexWriter, "_load", lambda self, ledger_id, number: np.empty(0, np.int64))


def cut_position() -> Plant:
    def make(old: Any) -> Any:
        def load(self: IndexWriter, ledger_id: int, number: int) -> np.ndarray:
            path = self._paths.path(ledger_id)
            if self._files.exists(path):
                with contextlib.closing(self._files.open(path)) as file:
                    if (file.size() - index_format.LAYOUT.positions_at) % index_format.POSITION_BYTES:
                        raise ValueError("buffer size must be a multiple of element size")
            return old(self, ledger_id, number)

        return load

    return changed(IndexWriter, "_load", make)


def dropped_dirty_page() -> Plant:
    return replaced(IndexWriter, "_write_pages", lambda self, ledger_id, file, pages: None)


def dropped_evicted_page() -> Plant:
    def make(old: Any) -> Any:
        def make_room(self: IndexWriter) -> None:
            with replaced(IndexWriter, "_write_pages", lambda self, ledger_id, file, pages: None):
                old(self)

        return make_room

    return changed(IndexWriter, "_make_room", make)


def unsynced_evicted_page() -> Plant:
    """What was evicted counts as durable: only files written by `sync` itself are synced."""

    def make(old: Any) -> Any:
        def make_room(self: IndexWriter) -> None:
            old(self)
            kept = {ledger_id for (ledger_id, _), _ in self._pages.dirty()} | set(self._headers)
            for ledger_id in self._unsynced.keys() - kept:
                del self._unsynced[ledger_id]

        return make_room

    return changed(IndexWriter, "_make_room", make)


def partly_written_page() -> Plant:
    """If a page changed twice, only the later change is written."""

    def make(old: Any) -> Any:
        def set_positions(self: Page, slots: np.ndarray, positions: np.ndarray, slots_max: int) -> None:
            self.dirty_first = self.dirty_end = 0
            old(self, slots, positions, slots_max)

        return set_positions

    return changed(Page, "set", make)


def stale_page() -> Plant:
    """A page that a reader brought in hides what a flush changed."""

    def make(old: Any) -> Any:
        def find(self: IndexPages, ledger_id: int, first_page: int, end_page: int) -> Any:
            found = old(self, ledger_id, first_page, end_page)
            stale = self.__dict__.setdefault("stale", {})
            return {number: stale.setdefault((ledger_id, number), page.copy()) for number, page in found.items()}

        return find

    return changed(IndexPages, "find", make)


def unverified_header() -> Plant:
    """A checksum that is the same for everything, both when it is written and when it is checked."""
    return replaced(index_format, "crc32c", lambda head: 0)


def noted_before_durable() -> Plant:
    """It is noted how long index files are before they are."""

    def make(old: Any) -> Any:
        def make_durable(self: IndexWriter, ledger_ids: Any, names: Any) -> None:
            self._known.note({ledger_id: self.file_size(ledger_id) for ledger_id in ledger_ids})
            old(self, ledger_ids, names)

        return make_durable

    return changed(IndexWriter, "_make_durable", make)


def lost_index_believed() -> Plant:
    return replaced(PerLedgerIndex, "lost", lambda self, ledger_id: "")


# ---- write cache ----


def older_version_wins() -> Plant:
    def oldest(entries: np.ndarray, addresses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found, first = np.unique(entries, return_index=True)
        return found, addresses[first]

    return replaced(write_cache, "_newest", oldest)


def late_entries_dropped() -> Plant:
    return replaced(write_cache.LedgerWrites, "sorted", lambda self: (self._runs[0].entries, self._runs[0].addresses))
