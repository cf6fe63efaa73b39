"""Reads the index file of a ledger as it is on disk, including damage. The format is in `formats.index`.

Positions have no checksum. Each is followed to its entry log, and is right if the entry there has the expected ids.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bkspark.errors import StorageDamaged
from bookie_service.admin.inspection.findings import VERIFIED, WRONG, Damage, Fact, Finding, FoundPositions
from bookie_service.formats import index as index_format
from bookie_service.formats.entry_log import HEADER_BYTES, OFFSET_BITS, OFFSET_MASK
from bookie_service.formats.index import HEAD_BYTES, LAYOUT, POSITION_BYTES, SLOT_BYTES, Layout, LedgerHeader
from bookie_service.storage.index.index_file import IndexFile
from bookie_service.storage.io.files import ReadOnlyFiles
from bookie_service.storage.logs.entry_log import StoredLogs
from bookie_service.storage.logs.log_reader import EntryLogReader

_POSITIONS_PER_READ = 8192
_READ_BYTES = 4 * 1024 * 1024
_LOGS_OPEN_MAX = 16
ATTEMPTS = 3
"""How often a header is read. One that a running bookie was writing is whole at a later attempt."""


class LogLookup:
    """Follows positions into the entry logs of one bookie."""

    def __init__(self, files: ReadOnlyFiles, directories: Sequence[str]) -> None:
        """`directories`: the `current` directories of all its ledger directories."""
        self._files = files
        self._directories = tuple(directories)
        self._open()

    def states(self, ledger_id: int, first_entry: int, positions: np.ndarray) -> Iterator[tuple[np.ndarray, str]]:
        """Yield (states, error) of positions of consecutive entries in pieces; a wrong position is its own piece."""
        done = 0
        while done < len(positions):
            reason = _impossible(int(positions[done]))
            count = 0
            if not reason:
                # Invalid positions would break the reading of the positions before them.
                usable = positions[done:]
                possible = (usable & OFFSET_MASK) > HEADER_BYTES
                usable = usable if possible.all() else usable[: int(np.argmin(possible))]
                try:
                    count = len(self._reader.read(ledger_id, first_entry + done, usable, _READ_BYTES))
                except StorageDamaged as error:
                    reason = str(error)
            yield (np.full(count, VERIFIED, np.int8), "") if count else (np.full(1, WRONG, np.int8), reason)
            done += max(1, count)

    def refresh(self) -> None:
        """List the entry logs again."""
        self.close()
        self._open()

    def close(self) -> None:
        self._reader.close()

    def _open(self) -> None:
        self._reader = EntryLogReader(StoredLogs(self._files, self._directories), _LOGS_OPEN_MAX)


def _impossible(position: int) -> str:
    if position > 0 and position & OFFSET_MASK > HEADER_BYTES:
        return ""
    return f"{position & (1 << 64) - 1:#018x} is not a position: no entry lies there in any log"


def read_index(files: ReadOnlyFiles, path: str, lookup: LogLookup, entry_id: int | None = None) -> Iterator[Finding]:
    """Yield the contents of an index file: its two header slots, then runs of positions.

    Args:
        entry_id: only the position of this entry; None: all positions.
    """
    ledger_id = index_format.parse_file_name(os.path.basename(path))
    if ledger_id is None:
        yield Damage(path, 0, None, "the name is not that of an index file, <hex ledger id>.idx")
        return
    file = IndexFile(files.open(path))
    try:
        yield from _slots(file, ledger_id)
        if file.layout is not None:
            yield from _positions(file, file.layout, lookup, ledger_id, entry_id)
    finally:
        file.close()


def _slots(file: IndexFile, ledger_id: int) -> Iterator[Finding]:
    path = file.file.path
    for _ in range(ATTEMPTS):
        head = file.file.read(HEAD_BYTES, 0)
        slots_at = (index_format.layout_of(head) or LAYOUT).slots_at
        try:
            slots = index_format.whole_slots(head, ledger_id)
        except ValueError as error:
            yield Damage(path, 0, HEAD_BYTES, str(error), ledger_id)
            return
        if len(slots) == len(slots_at):
            break
    for at in slots_at:
        if at not in slots:
            lost = "the other one is intact" if slots else "so is the other: master key and fence are lost"
            yield Damage(path, at, SLOT_BYTES, f"the header slot is unreadable; {lost}", ledger_id)
            continue
        yield Fact("index", path, at, SLOT_BYTES, True, header_values(slots[at]))


def header_values(header: LedgerHeader) -> dict[str, object]:
    """Return the fields of a header that are shown, without the master key."""
    values: dict[str, object] = {"ledger": header.ledger_id, "generation": header.generation, "fenced": header.fenced}
    if header.explicit_lac:
        values["explicit_lac"] = index_format.decode_lac(header.explicit_lac)[1]
    return values


def _positions(
    file: IndexFile, layout: Layout, lookup: LogLookup, ledger_id: int, entry_id: int | None
) -> Iterator[Finding]:
    size, path = file.file.size(), file.file.path
    end = layout.entry_at(size)
    first = 0
    if entry_id is not None:
        first, end = entry_id, min(end, entry_id + 1)
    following = first
    source = PositionSource(path, ledger_id, file.positions, layout.position_at)
    while (start := _next_written(file, following, end)) is not None:
        positions = source.read(start, min(end - start, _POSITIONS_PER_READ))
        yield from judged(source, start, positions, lookup)
        following = start + _POSITIONS_PER_READ
    torn = (size - layout.positions_at) % POSITION_BYTES if size >= layout.positions_at else 0
    if torn:
        yield Damage(path, size - torn, torn, "the file ends within a position: it was truncated", ledger_id)


def _next_written(file: IndexFile, entry_id: int, end: int) -> int | None:
    """Return the first entry id in [entry_id, end) whose position may have been written; None: there is none.

    Most of the index is holes if the ledger is striped or has a stray high entry id.
    """
    if entry_id >= end:
        return None
    found = file.next_data(entry_id)
    return found if found is not None and found < end else None


@dataclass(frozen=True, slots=True)
class PositionSource:
    """The positions of one ledger.

    read: returns the positions of (first entry, how many), as they are now.
    offset_of: returns the file offset of an entry's position; None in a store without offsets.
    """

    path: str
    ledger_id: int
    read: Callable[[int, int], np.ndarray]
    offset_of: Callable[[np.ndarray], np.ndarray] | None


def judged(source: PositionSource, first_entry: int, positions: np.ndarray, lookup: LogLookup) -> Iterator[Finding]:
    """Yield the positions, among those of consecutive entries, that are not 0, as runs, with the damage among them."""
    held = np.flatnonzero(positions)
    if len(held):
        for run in np.split(held, np.flatnonzero(np.diff(held) > 1) + 1):
            yield from _run(source, first_entry + int(run[0]), positions[run], lookup)


def _run(source: PositionSource, first_entry: int, positions: np.ndarray, lookup: LogLookup) -> Iterator[Finding]:
    done = 0
    for states, reason in lookup.states(source.ledger_id, first_entry, positions):
        entry_id = first_entry + done
        found = positions[done : done + len(states)]
        done += len(states)
        if reason:
            found, states, reason = _once_more(source, entry_id, reason, lookup)
        entry_ids = np.arange(entry_id, entry_id + len(found))
        offsets = None if source.offset_of is None else source.offset_of(entry_ids)
        yield FoundPositions(source.path, source.ledger_id, entry_ids, found, states, offsets)
        if reason:
            at, length = (None, None) if offsets is None else (int(offsets[0]), POSITION_BYTES)
            yield Damage(source.path, at, length, reason, source.ledger_id, entry_id)


def _once_more(
    source: PositionSource, entry_id: int, reason: str, lookup: LogLookup
) -> tuple[np.ndarray, np.ndarray, str]:
    """Check a position again: a running bookie may have created a log, or moved the entry and deleted its old log."""
    position = source.read(entry_id, 1)
    if not len(position) or not position[0]:
        return position, np.full(len(position), VERIFIED, np.int8), ""
    lookup.refresh()
    states, reason = next(lookup.states(source.ledger_id, entry_id, position))
    return position, states, reason


def position_place(position: int) -> tuple[int, int]:
    """Return (entry log id, offset of the entry's item in the log)."""
    return position >> OFFSET_BITS, (position & OFFSET_MASK) - 4
