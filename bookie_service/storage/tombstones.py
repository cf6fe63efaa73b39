"""Ledgers that were fenced and then dropped, remembered for longer than a writer lives (reliability P21).

Ordinary adds to them are refused. A recovery add makes such a ledger anew, fenced: a repair may bring it back.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from bkspark.errors import StorageDamaged
from bookie_service.formats import tombstones as tombstone_format
from bookie_service.storage.files import LocalFiles

KEPT_S = 7 * 24 * 3600


class Tombstones:
    """Which ledgers are refused although nothing of them is left. Read by the event loop, written by one thread."""

    def __init__(self, files: LocalFiles, directory: str) -> None:
        """`directory`: the `current` directory that the file lies in.

        Raises:
            StorageDamaged: a later version wrote the file.
        """
        self._files = files
        self._path = os.path.join(directory, tombstone_format.FILE_NAME)
        self.notice: str | None = None
        """A line for the operator when the file is unreadable."""
        self._dropped_at_s: dict[int, int] = {}
        if files.exists(self._path):
            self._read()

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._dropped_at_s

    def remember(self, ledger_ids: Collection[int], now_s: int) -> None:
        """Add ledgers, and forget those dropped more than `KEPT_S` ago; durable on return.

        Raises:
            OSError: nothing changed.
        """
        kept = {ledger_id: at for ledger_id, at in self._dropped_at_s.items() if at + KEPT_S > now_s}
        changed = kept | dict.fromkeys(ledger_ids, now_s)
        if changed != self._dropped_at_s:
            self._files.replace(self._path, tombstone_format.encode(changed))
            self._dropped_at_s = changed

    def _read(self) -> None:
        try:
            found = tombstone_format.decode(self._files.read_all(self._path))
        except ValueError as error:
            raise StorageDamaged(f"{self._path}: {error}") from error
        if found is None:
            self.notice = (
                f"{self._path} fails its checksum: adds to ledgers that were fenced and deleted in the last "
                f"{KEPT_S // 86400} days are not refused any more"
            )
        self._dropped_at_s = found or {}
