"""Reads an entry log from its beginning, record by record, and finds in the index which records still count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bkspark.errors import ProtocolError, StorageDamaged
from bkspark.wire.framing import LENGTH_BYTES, gather_i64, scan_frames
from bkspark.wire.layout import ENTRY_BYTES_MIN
from bookie_service.formats import entry_log as log_format
from bookie_service.formats.entry_log import HEADER_BYTES, OFFSET_BITS
from bookie_service.formats.index import STORED_ENTRY_ID_MAX
from bookie_service.storage.io.background import with_pauses
from bookie_service.storage.io.files import File
from bookie_service.storage.io.framed_entries import rows_by_ledger
from bookie_service.storage.ledgers.interface import IndexView
from bookie_service.storage.logs.entry_log import ITEM_BYTES_MAX

WINDOW_BYTES = 1024 * 1024
_POSITIONS_GAP_MAX = 8192
"""Entry ids that are further apart than this are looked up separately."""


@dataclass(frozen=True, slots=True)
class LogWindow:
    """Adjacent whole items of a log: item i is octets[starts[i]:][:sizes[i]]."""

    octets: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray
    ledger_ids: np.ndarray
    entry_ids: np.ndarray
    positions: np.ndarray
    """The position that the index has for each item if it is the entry that counts."""


class LogScan:
    """Iterates over the items of entry log `log_id`.

    Afterwards `end` is the offset of the first bytes that are not an item.
    `ledgers_map`: (ledger ids, bytes), if the log has a whole map; iteration then stops before the map.
    """

    def __init__(self, file: File, log_id: int) -> None:
        self._file = file
        self.log_id = log_id
        self.size = file.size()
        self.ledgers_map: tuple[np.ndarray, np.ndarray] | None = None
        self.items_end = self.size
        """Where the items must end: at the map, or at the end of the file."""
        header = log_format.decode_header(file.read(HEADER_BYTES, 0), log_id)
        if header is not None and header.checksum_ok and HEADER_BYTES < header.map_offset < self.size:
            data = file.read(self.size - header.map_offset, header.map_offset)
            self.ledgers_map = log_format.decode_map(data, header)
            if self.ledgers_map is not None:
                self.items_end = header.map_offset
        self.end = min(HEADER_BYTES, self.size)
        """The offset of the first bytes that were not iterated over."""

    def __iter__(self) -> Iterator[LogWindow]:
        while self.end < self.items_end:
            window = self._window(self.end)
            if window is None:
                return
            yield window
            self.end += int(window.starts[-1] + window.sizes[-1])

    def _window(self, offset: int) -> LogWindow | None:
        """Return the items from `offset` on, at least one; None: there is no item."""
        room = self.items_end - offset
        data = self._file.read(min(WINDOW_BYTES, room), offset)
        needed = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "big", signed=True)
        if len(data) < needed <= min(ITEM_BYTES_MAX, room):
            data = self._file.read(needed, offset)
        starts, ends = _leading_items(data)
        octets = np.frombuffer(data, np.uint8)
        ledger_ids, entry_ids = (gather_i64(octets, starts + at) for at in (0, 8)) if len(starts) else (starts, starts)
        right = (ledger_ids >= 0) & (entry_ids >= 0) & (entry_ids <= STORED_ENTRY_ID_MAX)
        if not right.all():
            count = int(np.argmin(right))
            starts, ends, ledger_ids, entry_ids = starts[:count], ends[:count], ledger_ids[:count], entry_ids[:count]
        if not len(starts):
            return None
        positions = (self.log_id << OFFSET_BITS) + offset + starts
        return LogWindow(octets, starts - LENGTH_BYTES, ends - starts + LENGTH_BYTES, ledger_ids, entry_ids, positions)


def _leading_items(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return (starts, ends) of the first items of `data` that are whole and long enough for ids."""
    try:
        table = scan_frames(data, len(data), ITEM_BYTES_MAX)
        starts, ends = table.starts, table.ends
    except ProtocolError:
        starts, ends = _items_before_damage(data)
    right = ends - starts >= ENTRY_BYTES_MIN
    count = len(starts) if right.all() else int(np.argmin(right))
    return starts[:count], ends[:count]


def _items_before_damage(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    starts, ends = [], []
    at = 0
    while at + LENGTH_BYTES <= len(data):
        end = at + LENGTH_BYTES + int.from_bytes(data[at : at + LENGTH_BYTES], "big", signed=True)
        if not at + LENGTH_BYTES <= end <= len(data):
            break
        starts.append(at + LENGTH_BYTES)
        ends.append(end)
        at = end
    return np.array(starts, np.int64), np.array(ends, np.int64)


def stored_positions(index: IndexView, ledger_id: int, entry_ids: np.ndarray) -> np.ndarray:
    """Return the positions of ascending entry ids, int64; 0: not held."""
    positions = np.zeros(len(entry_ids), np.int64)
    breaks = np.flatnonzero(np.diff(entry_ids) > _POSITIONS_GAP_MAX) + 1
    for rows in np.split(np.arange(len(entry_ids)), breaks):
        if not len(rows):
            continue
        first = int(entry_ids[rows[0]])
        found = index.positions(ledger_id, first, int(entry_ids[rows[-1]]) - first + 1)
        within = rows[entry_ids[rows] - first < len(found)]
        positions[within] = found[entry_ids[within] - first]
    return positions


def live_rows(window: LogWindow, index: IndexView) -> np.ndarray:
    """Return which items of a window the index points to, bool each."""
    live = np.zeros(len(window.starts), bool)
    every = np.arange(len(live))
    for ledger_id, rows in with_pauses(rows_by_ledger(window.ledger_ids)):
        chosen = every[rows]
        chosen = chosen[np.argsort(window.entry_ids[chosen], kind="stable")]
        stored = stored_positions(index, ledger_id, window.entry_ids[chosen])
        live[chosen] = stored == window.positions[chosen]
    return live


def incomplete(scan: LogScan, path: str) -> StorageDamaged:
    """Return the error for a log that has bytes which are not an entry before the end of its entries."""
    return StorageDamaged(
        f"{path} offset {scan.end}: no entry begins there, but the log's entries end at "
        f"{scan.items_end}; the log is kept as it is. Look with `bkspark dump entry-log {path}`"
    )
