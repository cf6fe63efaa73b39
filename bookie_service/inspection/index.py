"""Reading the index file of a ledger as it lies on the disk, damage and all; format in `formats.index`.

Positions have no checksum: each is followed to its entry log, and is right when the entry there has the ids that were
looked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from bkspark.errors import StorageDamaged
from bookie_service.formats import index as index_format
from bookie_service.formats.entry_log import HEADER_BYTES, OFFSET_BITS, OFFSET_MASK
from bookie_service.formats.index import POSITION_BYTES, POSITIONS_AT, SLOT_BYTES, LedgerHeader
from bookie_service.inspection.findings import VERIFIED, WRONG, Damage, Fact, Finding, PositionRun
from bookie_service.storage.entry_log import EntryLogs
from bookie_service.storage.files import File, ReadOnlyFiles
from bookie_service.storage.log_reader import EntryLogReader

_POSITIONS_PER_READ = 8192
_READ_BYTES = 4 * 1024 * 1024
_LOGS_OPEN_MAX = 16
_ATTEMPTS = 3
"""A header that a running bookie is just writing is whole when it is read again."""


class LogLookup:
    """Follows positions into the entry logs of one bookie."""

    def __init__(self, files: ReadOnlyFiles, directories: Sequence[str]) -> None:
        """`directories`: the `current` directories of all its ledger directories."""
        self._files = files
        self._directories = tuple(directories)
        self._open()

    def states(self, ledger_id: int, first_entry: int, positions: np.ndarray) -> Iterator[tuple[np.ndarray, str]]:
        """Yield (states, what is wrong) of positions of consecutive entries, in pieces; a wrong one is alone."""
        done = 0
        while done < len(positions):
            reason = _impossible(int(positions[done]))
            count = 0
            if not reason:
                # Those that cannot be positions would break the reading of those before them.
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
        """Look again which entry logs there are."""
        self.close()
        self._open()

    def close(self) -> None:
        self._reader.close()

    def _open(self) -> None:
        self._reader = EntryLogReader(EntryLogs(self._files, self._directories), _LOGS_OPEN_MAX)


def _impossible(position: int) -> str:
    if position > 0 and position & OFFSET_MASK > HEADER_BYTES:
        return ""
    return f"{position & (1 << 64) - 1:#018x} is no position: no entry lies there in any log"


def read_index(files: ReadOnlyFiles, path: str, lookup: LogLookup, entry_id: int | None = None) -> Iterator[Finding]:
    """Yield what an index file holds: its two header slots, then runs of positions.

    Args:
        entry_id: only this entry's position; None: all.
    """
    ledger_id = index_format.parse_file_name(os.path.basename(path))
    if ledger_id is None:
        yield Damage(path, 0, None, "the name is not that of an index file, <hex ledger id>.idx")
        return
    file = files.open(path)
    try:
        yield from _slots(file, ledger_id)
        yield from _positions(file, ledger_id, lookup, entry_id)
    finally:
        file.close()


def _slots(file: File, ledger_id: int) -> Iterator[Finding]:
    for _ in range(_ATTEMPTS):
        try:
            slots = [index_format.decode_header(file.read(SLOT_BYTES, at), ledger_id) for at in (0, SLOT_BYTES)]
        except ValueError as error:
            yield Damage(file.path, 0, 2 * SLOT_BYTES, str(error), ledger_id)
            return
        if None not in slots:
            break
    for at, header in zip((0, SLOT_BYTES), slots):
        if header is None:
            lost = (
                "so is the other: master key and fence are lost" if slots == [None, None] else "the other one is whole"
            )
            yield Damage(file.path, at, SLOT_BYTES, f"the header slot is unreadable; {lost}", ledger_id)
            continue
        yield Fact("index", file.path, at, SLOT_BYTES, True, header_values(header))


def header_values(header: LedgerHeader) -> dict[str, object]:
    """Return what is shown of a header; not the master key."""
    values = {"ledger": header.ledger_id, "generation": header.generation, "fenced": header.fenced}
    if header.explicit_lac:
        values["explicit_lac"] = index_format.decode_lac(header.explicit_lac)[1]
    return values


def _positions(file: File, ledger_id: int, lookup: LogLookup, entry_id: int | None) -> Iterator[Finding]:
    size = file.size()
    end = max(0, (size - POSITIONS_AT) // POSITION_BYTES)
    first = 0
    if entry_id is not None:
        first, end = entry_id, min(end, entry_id + 1)
    following = first
    source = PositionSource(file.path, ledger_id, partial(_read_positions, file), index_format.position_at)
    while (start := _next_written(file, following, end)) is not None:
        positions = source.read(start, min(end - start, _POSITIONS_PER_READ))
        yield from judged(source, start, positions, lookup)
        following = start + _POSITIONS_PER_READ
    torn = (size - POSITIONS_AT) % POSITION_BYTES if size >= POSITIONS_AT else 0
    if torn:
        yield Damage(file.path, size - torn, torn, "the file ends within a position: it was truncated", ledger_id)


def _next_written(file: File, entry_id: int, end: int) -> int | None:
    """Return the first entry id from `entry_id` on, below `end`, whose position may have been written; None: no more.

    The index of a striped ledger, or of one with a stray high entry id, is mostly holes.
    """
    if entry_id >= end:
        return None
    data_at = file.next_data(index_format.position_at(entry_id))
    if data_at is None:
        return None
    found = max(entry_id, (data_at - POSITIONS_AT) // POSITION_BYTES)
    return found if found < end else None


def _read_positions(file: File, first_entry: int, count: int) -> np.ndarray:
    data = file.read(count * POSITION_BYTES, index_format.position_at(first_entry))
    return np.frombuffer(data, ">i8", len(data) // POSITION_BYTES).astype(np.int64)


@dataclass(frozen=True, slots=True)
class PositionSource:
    """The positions of one ledger.

    read: returns the positions of (first entry, how many), as they are now.
    offset_of: returns where in the file that of an entry is, None where there are no offsets.
    """

    path: str
    ledger_id: int
    read: Callable[[int, int], np.ndarray]
    offset_of: Callable[[np.ndarray], np.ndarray] | None


def judged(source: PositionSource, first_entry: int, positions: np.ndarray, lookup: LogLookup) -> Iterator[Finding]:
    """Yield those of consecutive entries' positions that are not 0, as runs, with the damage among them."""
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
        yield PositionRun(source.path, source.ledger_id, entry_ids, found, states, offsets)
        if reason:
            at, length = (None, None) if offsets is None else (int(offsets[0]), POSITION_BYTES)
            yield Damage(source.path, at, length, reason, source.ledger_id, entry_id)


def _once_more(
    source: PositionSource, entry_id: int, reason: str, lookup: LogLookup
) -> tuple[np.ndarray, np.ndarray, str]:
    """Judge a position again: a running bookie may have made a new log, or moved the entry and deleted the old one."""
    position = source.read(entry_id, 1)
    if not len(position) or not position[0]:
        return position, np.full(len(position), VERIFIED, np.int8), ""
    lookup.refresh()
    states, reason = next(lookup.states(source.ledger_id, entry_id, position))
    return position, states, reason


def position_place(position: int) -> tuple[int, int]:
    """Return (entry log id, offset of the entry's item in it)."""
    return position >> OFFSET_BITS, (position & OFFSET_MASK) - 4
