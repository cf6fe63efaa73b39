"""The index on disk: per ledger one file of header and positions, format in `formats.index`.

Reading goes straight to the files: the operating system's page cache is the cache, so memory does not grow with the
number of ledgers. Writing happens at checkpoints only, after the entry logs that positions point to are durable.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bkspark.errors import StorageDamaged
from bkspark.ids import NO_ENTRY
from bookie_service.formats import index as index_format
from bookie_service.formats.index import POSITION_BYTES, POSITIONS_AT, SLOT_BYTES, LedgerHeader
from bookie_service.storage.files import File, LocalFiles
from bookie_service.storage.open_files import OpenFiles

_DENSE_GAP_MAX = 512
"""Positions with wider gaps between them are written separately."""
_FILES_PER_SYNC = 256
_SCAN_POSITIONS = 1024
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class LedgerUpdate:
    """What a checkpoint writes for one ledger: a header if it changed, and positions of ascending entry ids."""

    ledger_id: int
    header: LedgerHeader | None
    entry_ids: np.ndarray
    positions: np.ndarray


class IndexPaths:
    """Where the index file of a ledger lies: in the directory number ledger id mod their count."""

    def __init__(self, directories: Sequence[str]) -> None:
        self._directories = directories

    def path(self, ledger_id: int) -> str:
        directory = self._directories[ledger_id % len(self._directories)]
        return os.path.join(directory, *index_format.relative_path(ledger_id))

    def directories(self, ledger_id: int) -> tuple[str, str, str]:
        """Return the directories that hold the names on the way to a ledger's file, outermost first."""
        innermost = os.path.dirname(self.path(ledger_id))
        outer = os.path.dirname(innermost)
        return os.path.dirname(outer), outer, innermost

    def ledgers(self, files: LocalFiles) -> np.ndarray:
        """Return the ids of all ledgers that have an index file, int64, ascending."""
        return np.array(sorted(self._each_ledger(files)), np.int64)

    def has_any(self, files: LocalFiles) -> bool:
        """Return whether any ledger has an index file."""
        return next(self._each_ledger(files), None) is not None

    def _each_ledger(self, files: LocalFiles) -> Iterator[int]:
        for top in self._directories:
            for middle in _hex_directories(files, top):
                for inner in _hex_directories(files, middle):
                    found = map(index_format.parse_file_name, files.names(inner))
                    yield from (ledger_id for ledger_id in found if ledger_id is not None)


class IndexReader:
    """Reads headers and positions. For one thread."""

    def __init__(self, files: LocalFiles, paths: IndexPaths, open_files_max: int) -> None:
        self._paths = paths
        self._open = OpenFiles(files, open_files_max)

    def header(self, ledger_id: int) -> LedgerHeader | None:
        """Return a ledger's header, None when the ledger has no index file.

        Raises:
            StorageDamaged: there is a file, but its header is unreadable.
        """
        path = self._paths.path(ledger_id)
        try:
            data = self._open.get(path).read(2 * SLOT_BYTES, 0)
        except FileNotFoundError:
            return None
        try:
            header = index_format.decode_header(data, ledger_id)
        except ValueError as error:
            raise StorageDamaged(f"{path}: {error}", ledger_id=ledger_id) from error
        if header is None:
            raise StorageDamaged(f"{path} offset 0: both headers are unreadable", ledger_id=ledger_id)
        return header

    def positions(self, ledger_id: int, first_entry: int, count: int) -> np.ndarray:
        """Return positions of `first_entry`, ... as int64, 0 where not held; shorter when the file ends before."""
        try:
            file = self._open.get(self._paths.path(ledger_id))
        except FileNotFoundError:
            return np.empty(0, np.int64)
        data = file.read(count * POSITION_BYTES, index_format.position_at(first_entry))
        return np.frombuffer(data, ">i8", len(data) // POSITION_BYTES).astype(np.int64)

    def last_entry(self, ledger_id: int) -> int:
        """Return the highest entry id with a position, NO_ENTRY when there is none."""
        try:
            file = self._open.get(self._paths.path(ledger_id))
        except FileNotFoundError:
            return NO_ENTRY
        end = max(0, (file.size() - POSITIONS_AT) // POSITION_BYTES)
        while end > 0:
            # A crash can leave a file longer than what was written into it: zeros at the end are no entries.
            first = max(0, end - _SCAN_POSITIONS)
            held = np.flatnonzero(self.positions(ledger_id, first, end - first))
            if len(held):
                return first + int(held[-1])
            end = first
        return NO_ENTRY

    def forget(self, ledger_id: int) -> None:
        """Let go of a ledger whose file is about to be removed."""
        self._open.forget(self._paths.path(ledger_id))

    def close(self) -> None:
        self._open.close()


class IndexWriter:
    """Writes the updates of a checkpoint. For one thread."""

    def __init__(self, files: LocalFiles, paths: IndexPaths) -> None:
        self._files = files
        self._paths = paths

    def store(self, updates: Sequence[LedgerUpdate], names_are_durable: bool = True) -> None:
        """Write headers and positions; all are durable on return.

        Args:
            names_are_durable: False: a process that was killed may have created any of the files and directories, and
                a power cut may take their names again.
        """
        new_names: set[str] = set()
        for first in range(0, len(updates), _FILES_PER_SYNC):
            self._store_together(updates[first : first + _FILES_PER_SYNC], new_names)
        if not names_are_durable:
            for update in updates:
                new_names.update(self._paths.directories(update.ledger_id))
        for directory in sorted(new_names):
            self._files.sync_directory(directory)

    def _store_together(self, updates: Sequence[LedgerUpdate], new_names: set[str]) -> None:
        opened: list[tuple[File, LedgerUpdate, bool]] = []
        try:
            for update in updates:
                file, is_new = self._open(update, new_names)
                opened.append((file, update, is_new))
                _write_positions(file, update)
                if update.header is not None:
                    slot = index_format.encode_slot(update.header)
                    # A new file gets both slots at once: while it is not durable, the journal holds the header.
                    file.write([slot, slot] if is_new else [slot], 0)
            for file, _, _ in opened:
                file.sync_data()
            changed = [(file, update.header) for file, update, is_new in opened if update.header and not is_new]
            for file, header in changed:
                file.write([index_format.encode_slot(header)], SLOT_BYTES)
            for file, _ in changed:
                file.sync_data()
        finally:
            for file, _, _ in opened:
                file.close()

    def _open(self, update: LedgerUpdate, new_names: set[str]) -> tuple[File, bool]:
        path = self._paths.path(update.ledger_id)
        try:
            return self._files.open(path), False
        except FileNotFoundError:
            assert update.header is not None, f"ledger {update.ledger_id} has entries but neither index file nor key"
        directory = os.path.dirname(path)
        self._files.make_directory(directory)
        new_names.add(directory)
        return self._files.create(path), True


def _hex_directories(files: LocalFiles, directory: str) -> list[str]:
    names = [name for name in files.names(directory) if 0 < len(name) <= 2 and set(name) <= _HEX]
    return [path for name in names if files.is_directory(path := os.path.join(directory, name))]


def _write_positions(file: File, update: LedgerUpdate) -> None:
    entry_ids, positions = update.entry_ids, update.positions
    if not len(entry_ids):
        return
    gaps = np.flatnonzero(np.diff(entry_ids) > _DENSE_GAP_MAX) + 1
    for start, end in itertools.pairwise([0, *gaps.tolist(), len(entry_ids)]):
        first, count = int(entry_ids[start]), int(entry_ids[end - 1] - entry_ids[start]) + 1
        at = index_format.position_at(first)
        if count == end - start:
            span = positions[start:end].astype(">i8")
        else:
            # A striped ledger: keep what stands between.
            span = np.zeros(count, ">i8")
            data = file.read(count * POSITION_BYTES, at)
            # After a crash the file may end inside a position: that one was not durable, so replay brings it back.
            stored = np.frombuffer(data, ">i8", len(data) // POSITION_BYTES)
            span[: len(stored)] = stored
            span[entry_ids[start:end] - first] = positions[start:end]
        file.write([span.tobytes()], at)
