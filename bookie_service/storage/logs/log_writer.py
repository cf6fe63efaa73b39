"""Writes one entry log, from its header to its ledgers map."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bookie_service.formats import entry_log as log_format
from bookie_service.formats.entry_log import HEADER_BYTES
from bookie_service.storage.io.files import Buffer, File, is_out_of_space
from bookie_service.storage.io.framed_entries import ledger_sums

_RESERVE_BYTES_MIN = 1024 * 1024
_RESERVE_BYTES_MAX = 16 * 1024 * 1024


class EntryLogWriter:
    """Appends records to entry log `log_id`, and counts the bytes of each ledger. For one thread.

    After an OSError the end of the log is unknown, and the writer must not be used again.
    """

    def __init__(self, log_id: int, file: File, *, reserves: bool = False) -> None:
        """`file`: a new log that contains only its header. Its name is durable.

        `reserves`: space is allocated in the file system before it is written, so that the log's blocks are adjacent.
        The rest is freed at the end.
        """
        self.log_id = log_id
        self.end = HEADER_BYTES
        """The offset of the next record."""
        self._file = file
        self._reserved = HEADER_BYTES if reserves else None
        """The offset up to which space is allocated; None: space is not reserved."""
        self._ledger_ids = np.empty(0, np.int64)
        """The ledgers in the log, ascending. Extended by `count`."""
        self._ledger_bytes = np.empty(0, np.int64)
        """The bytes of each ledger in `_ledger_ids`."""

    def count(self, ledger_ids: np.ndarray, sizes: np.ndarray) -> None:
        """Count written records: item i has sizes[i] bytes and belongs to ledger_ids[i]."""
        # Items of a ledger are usually adjacent.
        firsts = np.concatenate([[0], np.flatnonzero(np.diff(ledger_ids)) + 1])
        self._ledger_ids, self._ledger_bytes = ledger_sums(
            np.concatenate([self._ledger_ids, ledger_ids[firsts]]),
            np.concatenate([self._ledger_bytes, np.add.reduceat(sizes, firsts)]),
        )

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Append the buffers back to back."""
        self._reserve(sum(map(len, buffers)))
        self.end += self._file.write(buffers, self.end)

    def _reserve(self, size: int) -> None:
        """Allocate space for `size` more bytes, and for some beyond them if there is that much space."""
        if self._reserved is None or self.end + size <= self._reserved:
            return
        # As much again as the log has, so that many small logs do not reserve space that they never use.
        end = self.end + size + min(max(self.end, _RESERVE_BYTES_MIN), _RESERVE_BYTES_MAX)
        try:
            self._file.reserve(self._reserved, end - self._reserved)
            self._reserved = end
        except OSError as error:
            # There may nevertheless be enough space for the write itself.
            if not is_out_of_space(error):
                raise

    def sync(self) -> None:
        """Make everything written durable."""
        self._file.sync_data()

    def seal(self, *, may_lack_map: bool = False) -> None:
        """Make everything durable, followed by the ledgers map. Nothing may be written afterwards.

        Args:
            may_lack_map: if there is no space for the map, leave it out: the log is scanned, as after a crash.
        """
        table = log_format.encode_map(self._ledger_ids, self._ledger_bytes)
        has_more = self._reserved is not None
        if table:
            try:
                self._file.write([table], self.end)
            except OSError as error:
                if not (may_lack_map and is_out_of_space(error)):
                    raise
                table, has_more = b"", True
        if has_more:
            self._file.truncate(self.end + len(table))
        # The map first, because a header must never name a missing map.
        self._file.sync_data()
        if table:
            header = log_format.encode_header(
                self.log_id, self.end, len(self._ledger_ids), log_format.map_checksum(table)
            )
            self._file.write([header], 0)
            self._file.sync_data()

    def close(self) -> None:
        self._file.close()
