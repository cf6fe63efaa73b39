"""Ledgers that were fenced and then dropped. They are remembered for longer than a writer lives (P21).

Ordinary adds to them are refused. A recovery add creates such a ledger again, fenced, because a repair may bring it
back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bkspark.errors import StorageDamaged
from bookie_service.formats import tombstones as tombstone_format
from bookie_service.storage.io.file_places import FilePlaces
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.io.placed_file import PlacedFile

KEPT_S = 7 * 24 * 3600


class Tombstones:
    """Dropped ledgers whose ordinary adds are still refused. Read by the event loop, written by one thread."""

    def __init__(self, files: LocalFiles, directories: Sequence[str], places: FilePlaces | None = None) -> None:
        """`directories`: the `current` directories of all ledger directories. `places`: see `PlacedFile`.

        Raises:
            StorageDamaged: a later version wrote the file.
        """
        self._files = files
        self.notice: str | None = None
        """A line for the operator if the file is unreadable, else None."""
        self._dropped_at_s: dict[int, int] = {}
        """When each ledger was dropped, in seconds of the wall clock. Replaced as a whole by `remember`."""
        try:
            self._file = PlacedFile(files, directories, tombstone_format.FILE_NAME, tombstone_format.generation, places)
            found = {} if self._file.data is None else tombstone_format.decode(self._file.data)
        except ValueError as error:
            raise StorageDamaged(f"{tombstone_format.FILE_NAME} in {', '.join(directories)}: {error}") from error
        if found is None or self._file.is_lost:
            what = "fails its checksum" if found is None else "was deleted, or its last version was"
            self.notice = (
                f"{self._file.path} {what}: adds to ledgers that were fenced and deleted in the last "
                f"{KEPT_S // 86400} days are not refused any more"
            )
        self._dropped_at_s = found or {}

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._dropped_at_s

    def keep(self) -> None:
        """Write the list to another directory if its disk fails. Raises OSError if it stays where it is."""
        if self._file.is_out_of_reach(self._files):
            self._write(self._dropped_at_s)

    def remember(self, ledger_ids: Collection[int], now_s: int) -> None:
        """Add ledgers, and forget those dropped more than `KEPT_S` ago; durable on return.

        Raises:
            OSError: nothing was changed.
        """
        kept = {ledger_id: at for ledger_id, at in self._dropped_at_s.items() if at + KEPT_S > now_s}
        changed = kept | dict.fromkeys(ledger_ids, now_s)
        if changed != self._dropped_at_s:
            self._write(changed)

    def _write(self, dropped_at_s: dict[int, int]) -> None:
        self._file.replace(self._files, lambda generation: tombstone_format.encode(dropped_at_s, generation))
        self._dropped_at_s = dropped_at_s
