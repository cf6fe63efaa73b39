"""One open index file. Where its header and positions lie depends on its version (`formats.index`)."""

from __future__ import annotations

import numpy as np

from bkspark.errors import StorageDamaged
from bookie_service.formats import index as index_format
from bookie_service.formats.index import HEAD_BYTES, LAYOUT, POSITION_BYTES, Layout, LedgerHeader
from bookie_service.storage.io.byte_source import ByteSource
from bookie_service.storage.io.files import File


def rebuild_remedy(ledger_id: int) -> str:
    """Return what an operator can do about the lost index of a ledger."""
    return (
        "To restore what the entry logs have of it, stop the bookie, run `bkspark bookie --rebuild-index "
        f"{ledger_id}` with its configuration, and start it again"
    )


class IndexFile:
    """An open index file. Its layout is found once."""

    __slots__ = ("_layout", "file")

    def __init__(self, file: File) -> None:
        self.file = file
        self._layout: Layout | None = None
        """Where header and positions are; None: not known yet."""

    @property
    def layout(self) -> Layout | None:
        """The layout of the file; None: unknown, because the file is being created or both header slots are lost."""
        if self._layout is None:
            self._layout = index_format.layout_of(self.file.read(HEAD_BYTES, 0))
        return self._layout

    def header(self, ledger_id: int) -> LedgerHeader:
        """Return the header. Raises StorageDamaged if no slot is whole, or its version is not supported."""
        data = self.file.read(HEAD_BYTES, 0)
        self._layout = self._layout or index_format.layout_of(data)
        try:
            header = index_format.decode_header(data, ledger_id)
        except ValueError as error:
            raise StorageDamaged(f"{self.file.path}: {error}", ledger_id=ledger_id) from error
        if header is None:
            raise StorageDamaged(
                f"{self.file.path} offset 0: both headers are unreadable. {rebuild_remedy(ledger_id)}",
                ledger_id=ledger_id,
            )
        return header

    def create(self, header: LedgerHeader) -> None:
        """Write both header slots at once. This is right while the file is not durable: the journal has the header.

        Existing positions stay: a crash may have left them without the header.
        """
        self.file.write([index_format.encode_head(header)], 0)
        self._layout = LAYOUT

    def write_slot(self, header: LedgerHeader, number: int) -> None:
        """Write header slot 0 or 1. The layout must be known."""
        layout = self.known_layout()
        self.file.write([index_format.encode_slot(header, layout.version)], layout.slots_at[number])

    def positions(self, first_entry: int, count: int, source: ByteSource | None = None) -> np.ndarray:
        """Return positions as the file has them, int64; shorter if the file ends before, or inside a position.

        Args:
            source: where the bytes come from; None: the disk, with waiting.

        Raises:
            StorageDamaged: the layout is unknown.
            NotCached: `source` does not wait.
        """
        layout = self._layout or self.layout
        if layout is None:
            self._check_empty()
            return np.empty(0, np.int64)
        size, offset = count * POSITION_BYTES, layout.position_at(first_entry)
        data = self.file.read(size, offset) if source is None else source.changing_bytes_at(self.file, size, offset)
        # After a crash the file may end inside a position: that position was not durable, so replay restores it.
        return np.frombuffer(data, ">i8", len(data) // POSITION_BYTES).astype(np.int64)

    def write_positions(self, first_entry: int, positions: np.ndarray) -> int:
        """Write positions of consecutive entries; return where they end in the file."""
        at = self.known_layout().position_at(first_entry)
        return at + self.file.write([positions.astype(">i8").tobytes()], at)

    def known_layout(self) -> Layout:
        """Return the layout. Raises StorageDamaged if it is unknown."""
        layout = self._layout or self.layout
        if layout is None:
            raise self._unknown_layout()
        return layout

    def _check_empty(self) -> None:
        """Raise StorageDamaged if a file without a layout contains anything."""
        if self.file.size():
            raise self._unknown_layout()

    def _unknown_layout(self) -> StorageDamaged:
        return StorageDamaged(f"{self.file.path}: its header is unreadable, so it is unknown where positions lie")

    def end_entry(self, file_bytes: int) -> int:
        """Return the number of entries for whose positions a file of this length has room.

        Raises:
            StorageDamaged: the layout is unknown.
        """
        layout = self._layout or self.layout
        if layout is None:
            self._check_empty()
            return 0
        return layout.entry_at(file_bytes)

    def next_data(self, entry_id: int) -> int | None:
        """Return the first entry from `entry_id` on whose position is not in a hole of the file; None: there is none.

        Raises:
            StorageDamaged: the layout is unknown.
        """
        layout = self.known_layout()
        data_at = self.file.next_data(layout.position_at(entry_id))
        if data_at is None or data_at >= self.file.size():
            return None
        return max(entry_id, layout.entry_at(data_at))

    def close(self) -> None:
        self.file.close()


def has_positions(file_bytes: np.ndarray) -> np.ndarray:
    """Return which index files of these sizes have positions, bool each. A few files of version 2 may be wrong."""
    no_positions = [layout.positions_at for layout in index_format.LAYOUTS.values()]
    found = file_bytes > min(no_positions)
    # Not np.isin, which holds the interpreter's lock while it picks the sizes of all files.
    for size in no_positions:
        found &= file_bytes != size
    return found


def count_positions(file_bytes: np.ndarray) -> int:
    """Return about how many positions index files of these sizes have.

    The number is exact if no entries are missing and all files have the layout of new files.
    """
    first = index_format.LAYOUT.positions_at
    return int(np.maximum(file_bytes - first, 0).sum()) // index_format.POSITION_BYTES
