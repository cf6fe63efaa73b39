"""Reads runs of items from entry logs. Adjacent items are read as one slice of the file.

A record of an entry log is byte for byte an item of a batch-read response, so records are not decoded. Three words of
each record are checked, in a few nanoseconds each: its length must be possible, and its ids must be those of the index.
A position that leads elsewhere, for any reason, is reported as damage, so another ledger's entry is never returned. The
client's digest checks the bytes after the ids. A slice is read once, into memory that the next read reuses, and is sent
from there. (`sendfile` was measured: checking the ids without that copy takes as much processor time as the copy, and
it would wait for the disk on the event loop.)
"""

from __future__ import annotations

import numpy as np

from bkspark.errors import StorageDamaged
from bkspark.wire.framing import LENGTH_BYTES, equal_step, gather_octets
from bkspark.wire.layout import ENTRY_BYTES_MIN
from bookie_service.formats.entry_log import HEADER_BYTES, OFFSET_BITS, OFFSET_MASK
from bookie_service.storage.io.byte_source import WAITING, ByteSource, CachedSource
from bookie_service.storage.io.framed_entries import FramedEntries, contiguous_spans
from bookie_service.storage.io.open_files import OpenFiles
from bookie_service.storage.ledgers.interface import Located
from bookie_service.storage.logs.entry_log import ITEM_BYTES_MAX, StoredLogs

_GAP_BYTES_MAX = 256 * 1024
"""Entries of one ledger that are further apart than this are read one by one."""
_FIRST_READ_BYTES = 4096
ITEM_HEAD = np.dtype([("length", ">i4"), ("ledger", ">i8"), ("entry", ">i8")])
"""The beginning of an item."""
_HEAD_BYTES = np.dtype((np.void, ITEM_HEAD.itemsize))


class EntryLogReader:
    """Reads runs of items and checks that they match the index. For one thread."""

    def __init__(self, logs: StoredLogs, open_files_max: int) -> None:
        self._logs = logs
        self._open = OpenFiles(logs.files.open, open_files_max)

    def read(
        self,
        ledger_id: int,
        first_entry: int,
        positions: np.ndarray,
        bytes_max: int,
        source: ByteSource = WAITING,
    ) -> FramedEntries:
        """Return a run of entries from `first_entry` on, whose positions are given. A position of 0 ends the run.

        Returns at least one entry, and then as many as are near each other in one log and as `bytes_max` bytes allow.

        Raises:
            StorageDamaged: the first position does not point to that entry.
            OSError: the log cannot be read.
            NotCached: `source` does not wait.
        """
        positions, step = _nearby(positions, bytes_max)
        path = self._logs.path(int(positions[0]) >> OFFSET_BITS)
        if path is None:
            raise StorageDamaged(
                f"ledger {ledger_id} entry {first_entry}: the index names entry log {positions[0] >> OFFSET_BITS:x}, "
                "which does not exist",
                ledger_id=ledger_id,
                entry_id=first_entry,
            )
        offset = (positions.item(0) & OFFSET_MASK) - LENGTH_BYTES
        if offset < HEADER_BYTES:
            # One zeroed byte of a position can cause this. The file system cannot read before the beginning of a file.
            raise StorageDamaged(
                f"ledger {ledger_id} entry {first_entry}: the index names offset {offset + LENGTH_BYTES} of {path}, "
                "where no entry can begin",
                ledger_id=ledger_id,
                entry_id=first_entry,
            )
        starts = positions - positions[0]
        data = self._read_span(path, offset, starts, source)
        if _are_neighbours(data, len(starts), step, ledger_id, first_entry):
            taken = max(1, min(len(starts), bytes_max // step))
            items = memoryview(data)[: taken * step]
            return FramedEntries(first_entry, items, np.full(taken, step), taken < len(starts))
        sizes = _checked_sizes(data, starts, ledger_id, first_entry)
        if not len(sizes):
            raise StorageDamaged(
                f"{path} offset {offset}: not entry {first_entry} of ledger {ledger_id}, as the index says",
                ledger_id=ledger_id,
                entry_id=first_entry,
            )
        taken = max(1, int(np.cumsum(sizes).searchsorted(bytes_max, side="right")))
        is_full = taken < len(sizes)
        starts, sizes = starts[:taken], sizes[:taken]
        view = memoryview(data)
        spans = [view[start:end] for start, end in contiguous_spans(starts, sizes)]
        return FramedEntries(first_entry, spans[0] if len(spans) == 1 else b"".join(spans), sizes, is_full)

    def load(self, position: int, size: int, source: CachedSource) -> tuple[int, int] | None:
        """Read a log from the position of an item on, into the source's memory; return where the bytes begin and end
        there.

        (0, 0): nothing can be there. None: the memory has no room. Raises OSError and NotCached as `read`.
        """
        path = self._logs.path(position >> OFFSET_BITS)
        offset = (position & OFFSET_MASK) - LENGTH_BYTES
        if path is None or offset < HEADER_BYTES:
            return 0, 0
        return source.load(self._open.get(path), size, offset)

    def locate(self, positions: np.ndarray, bytes_max: int) -> Located | None:
        """Return the places of the first items that begin within `bytes_max` bytes of one log, ascending; None: not one
        does."""
        path = self._logs.path(positions.item(0) >> OFFSET_BITS)
        offsets = (positions & OFFSET_MASK) - LENGTH_BYTES
        if path is None or offsets.item(0) < HEADER_BYTES:
            return None
        steps = positions[1:] - positions[:-1]
        near = (steps > 0) & (positions[1:] - positions[0] < bytes_max)
        near &= positions[1:] >> OFFSET_BITS == positions.item(0) >> OFFSET_BITS
        return Located(path, offsets if near.all() else offsets[: int(np.argmin(near)) + 1])

    def forget(self, path: str) -> None:
        """Close a log that is about to be removed."""
        self._open.forget(path)

    def close(self) -> None:
        self._open.close()

    def _read_span(self, path: str, offset: int, starts: np.ndarray, source: ByteSource) -> bytes | memoryview:
        """Return the log's bytes from the first item to the end of the last one, or fewer if that item is long.

        `starts`: where the items begin, relative to the first one, which is at `offset`.
        """
        file = self._open.get(path)
        if len(starts) > 1:
            # Entries of a ledger usually have one size, so the last is assumed to be as long as the one before it.
            return source.bytes_at(file, 2 * starts.item(-1) - starts.item(-2), offset)
        data = source.bytes_at(file, _FIRST_READ_BYTES, offset)
        size = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "big", signed=True)
        if len(data) < size <= ITEM_BYTES_MAX:
            data = source.bytes_at(file, size, offset)
        return data


def _nearby(positions: np.ndarray, bytes_max: int) -> tuple[np.ndarray, int]:
    """Return (the first positions that one read serves, their common distance, or 0 if it differs).

    They are in one log, ascend without wide gaps, and are within `bytes_max`.
    """
    step = equal_step(positions)
    if 0 < step <= _GAP_BYTES_MAX:
        return positions[: bytes_max // step + 1], step
    steps = positions[1:] - positions[:-1]
    near = (steps > 0) & (steps <= _GAP_BYTES_MAX) & (positions[1:] - positions[0] <= bytes_max)
    return positions if near.all() else positions[: int(np.argmin(near)) + 1], 0


def _are_neighbours(data: bytes | memoryview, count: int, step: int, ledger_id: int, first_entry: int) -> bool:
    """Return whether `data` has exactly this many items of `step` bytes with the right ids, as most runs do."""
    if count < 2 or step < LENGTH_BYTES + ENTRY_BYTES_MIN or len(data) != count * step:
        return False
    expected = np.empty(count, ITEM_HEAD)
    expected["length"] = step - LENGTH_BYTES
    expected["ledger"] = ledger_id
    expected["entry"] = np.arange(first_entry, first_entry + count)
    # Comparing bytes is one pass over distant heads, instead of one pass for each word.
    return np.ndarray((count,), _HEAD_BYTES, data, 0, (step,)).tobytes() == expected.tobytes()


def _checked_sizes(data: bytes | memoryview, starts: np.ndarray, ledger_id: int, first_entry: int) -> np.ndarray:
    """Return the sizes of the first items that are whole in `data` and have the right ids, int64."""
    starts = starts[: int(starts.searchsorted(len(data) - LENGTH_BYTES - ENTRY_BYTES_MIN, side="right"))]
    count, step = len(starts), equal_step(starts)
    if not count:
        return starts
    if step > 0:
        # Neighbours of one size are the usual case: their heads are compared in place.
        heads = np.ndarray((count,), ITEM_HEAD, data, 0, (step,))
    else:
        heads = np.frombuffer(gather_octets(np.frombuffer(data, np.uint8), starts, ITEM_HEAD.itemsize), ITEM_HEAD)
    lengths = heads["length"].astype(np.int64)
    right = (
        (lengths >= ENTRY_BYTES_MIN)
        & (lengths <= len(data) - LENGTH_BYTES - starts)
        & (heads["ledger"] == ledger_id)
        & (heads["entry"] == np.arange(first_entry, first_entry + count))
    )
    if not right.all():
        count = int(np.argmin(right))
    return lengths[:count] + LENGTH_BYTES
