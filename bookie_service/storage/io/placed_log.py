"""A placed file that grows by records. Each record is durable before the next one; the file is rewritten when most are
obsolete."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from bookie_service.storage.io.files import LocalFiles, refuses_writes
from bookie_service.storage.io.placed_file import PlacedFile


class PlacedLog:
    """Appends records to a placed file. For one thread at a time."""

    def __init__(self, files: LocalFiles, file: PlacedFile, *, is_whole: bool) -> None:
        """`is_whole`: the file exists and records may follow its last byte. Otherwise the first write replaces it."""
        self._files = files
        self._file = file
        self.end = 0
        """The offset of the next record; 0: the file must be replaced. Changed by `write`."""
        if is_whole:
            # A process that was killed may have written the end, or the name, without making it durable.
            try:
                with contextlib.closing(files.open(file.path)) as opened:
                    opened.sync_data()
                    end = opened.size()
                files.sync_directory(os.path.dirname(file.path))
                self.end = end
            except OSError as error:
                if not refuses_writes(error):
                    raise

    def write(self, record: bytes, encode: Callable[[int], bytes], *, is_replaced: bool) -> bool:
        """Append a record durably, or replace the file by `encode(generation)`, which includes the record's changes.

        The file is replaced if `is_replaced`, if nothing can be appended to it, or if its disk takes no writes and
        there is another directory. Returns whether it was replaced.

        Raises:
            OSError: neither is durable. The next call may try again.
        """
        is_refused = False
        if self.end and not is_replaced:
            try:
                self._append(record)
                return False
            except OSError as error:
                if not refuses_writes(error) or self._file.directories == 1:
                    raise
                is_refused = True
        self.end = 0
        self.end = len(self._file.replace(self._files, encode, elsewhere=is_refused))
        return True

    def _append(self, record: bytes) -> None:
        with contextlib.closing(self._files.open(self._file.path)) as opened:
            opened.write([record], self.end)
            opened.sync_data()
        self.end += len(record)
