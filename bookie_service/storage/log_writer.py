"""One entry log that is being written, from its header to its ledgers map."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bookie_service.formats import entry_log as log_format
from bookie_service.formats.entry_log import HEADER_BYTES
from bookie_service.storage.files import Buffer, File, is_out_of_space
from bookie_service.storage.items import ledger_sums


class LogWriter:
    """Appends records to one log and counts whose they are. For one thread.

    After an OSError the log's end is unknown and the writer must not be used again.
    """

    def __init__(self, log_id: int, file: File) -> None:
        """`file`: a new log with nothing in it but a durable header."""
        self.log_id = log_id
        self.end = HEADER_BYTES
        self._file = file
        self._ledger_ids = np.empty(0, np.int64)
        self._ledger_bytes = np.empty(0, np.int64)

    def count(self, ledger_ids: np.ndarray, sizes: np.ndarray) -> None:
        """Note whose records are written: item i has sizes[i] bytes and belongs to ledger_ids[i]."""
        # Items of a ledger mostly lie together.
        firsts = np.concatenate([[0], np.flatnonzero(np.diff(ledger_ids)) + 1])
        self._ledger_ids, self._ledger_bytes = ledger_sums(
            np.concatenate([self._ledger_ids, ledger_ids[firsts]]),
            np.concatenate([self._ledger_bytes, np.add.reduceat(sizes, firsts)]),
        )

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Append the buffers back to back."""
        self.end += self._file.write(buffers, self.end)

    def sync(self) -> None:
        """Make everything written durable."""
        self._file.sync_data()

    def seal(self, *, may_lack_map: bool = False) -> None:
        """Make everything durable, with the ledgers map behind it. Nothing may be written after it.

        Args:
            may_lack_map: where there is no space for the map, go without: the log is scanned, as after a crash.
        """
        table = log_format.encode_map(self._ledger_ids, self._ledger_bytes)
        if table:
            try:
                self._file.write([table], self.end)
            except OSError as error:
                if not (may_lack_map and is_out_of_space(error)):
                    raise
                self._file.truncate(self.end)
                table = b""
        # The map first: a header that names it must never be there without it.
        self._file.sync_data()
        if table:
            header = log_format.encode_header(
                self.log_id, self.end, len(self._ledger_ids), log_format.map_checksum(table)
            )
            self._file.write([header], 0)
            self._file.sync_data()

    def close(self) -> None:
        self._file.close()
