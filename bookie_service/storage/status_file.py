"""Reads and writes the status of a bookie, which is in its ledger directories (`formats.bookie_status`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from bookie_service.formats import bookie_status
from bookie_service.formats.bookie_status import STATUS_NAME, BookieStatus
from bookie_service.storage.io.files import LocalFiles


class StatusFile:
    """The status in all ledger directories. For any thread, but only one at a time."""

    def __init__(self, files: LocalFiles, directories: Sequence[str]) -> None:
        """`directories`: the `current` directories."""
        self._files = files
        self._paths = [os.path.join(directory, STATUS_NAME) for directory in directories]

    def read(self) -> BookieStatus | None:
        """Return the latest status that can be read; None: there is none."""
        found = []
        for path in self._paths:
            try:
                found.append(bookie_status.decode_status(self._files.read_all(path)))
            except OSError:
                # The file is missing, or its disk fails. Another directory may have it.
                continue
        return bookie_status.latest(found)

    def write(self, status: BookieStatus) -> None:
        """Store a status durably, in at least one directory. Its time becomes later than that of the last one.

        Raises:
            OSError: no directory took it.
        """
        last = self.read()
        if last is not None and last.changed_ms >= status.changed_ms:
            # The clock was set back. In a directory that takes no writes now, the last status must not look later.
            status = replace(status, changed_ms=min(last.changed_ms + 1, bookie_status.CHANGED_MS_MAX))
        errors: list[OSError] = []
        for path in self._paths:
            try:
                self._files.replace(path, bookie_status.encode_status(status))
            except OSError as error:
                errors.append(error)
        if len(errors) == len(self._paths):
            raise errors[0]
