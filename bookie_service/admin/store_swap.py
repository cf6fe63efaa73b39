"""Replaces the key-value stores of all ledger directories by new ones, which begin to count at one moment.

The new stores are complete in each directory, under another name. Then the marker of a conversion says that they count:
that is the moment. No bookie starts while the marker is there. Then each directory gets its new store and the file
beside it, and keeps the old store as `positions.replaced`. A command that was interrupted finishes this first.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from bookie_service.formats import key_value_index
from bookie_service.storage import layout
from bookie_service.storage.index.kept_files import forget_kept_files
from bookie_service.storage.io.file_places import FilePlaces
from bookie_service.storage.io.files import LocalFiles

REBUILT_NAME = f"{key_value_index.DIRECTORY_NAME}.rebuilt"
"""The name of a new store until it counts."""
REPLACED_NAME = f"{key_value_index.DIRECTORY_NAME}.replaced"
"""The name of the old store afterwards."""
_REBUILT_COMMIT_NAME = REBUILT_NAME + key_value_index.COMMIT_SUFFIX


class StoreSwap:
    """The swap of one bookie's stores, whose directories no other process may change meanwhile."""

    def __init__(self, files: LocalFiles, journals: Sequence[str], ledgers: Sequence[str]) -> None:
        """`journals`, `ledgers`: the `current` directories, in configured order."""
        self._files = files
        self._ledgers = ledgers
        self._marker = os.path.join(journals[0], layout.CONVERSION_NAME)

    def begin(self, purpose: bytes) -> None:
        """Record durably that the new stores count, all of which must be complete.

        `purpose`: the first line of the marker: who must finish the swap.
        """
        self._files.replace(self._marker, purpose + layout.STORES_COUNT)

    def has_begun(self, purpose: bytes) -> bool:
        """Return whether the new stores count, and `begin` had this purpose."""
        marker = self._files.read_all(self._marker) if self._files.exists(self._marker) else b""
        return marker == purpose + layout.STORES_COUNT

    def finish(self, purpose: bytes, *, keeps_marker: bool = False) -> bool:
        """Give all directories their new stores, durably, if they count and `begin` had this purpose.

        Afterwards bookies can start again. `keeps_marker`: not yet; the marker has the purpose alone.

        Returns:
            Whether the new stores count now, and did not before.

        Raises:
            OSError: a disk does not take it. Call it again.
        """
        if not self.has_begun(purpose):
            return False
        for directory in self._ledgers:
            self._finish_in(directory)
        forget_kept_files(self._files, FilePlaces(self._files, os.path.dirname(self._marker)), self._ledgers)
        if keeps_marker:
            self._files.replace(self._marker, purpose)
        else:
            self._files.remove(self._marker)
            self._files.sync_directory(os.path.dirname(self._marker))
        return True

    def _finish_in(self, directory: str) -> None:
        new, path, replaced = (
            os.path.join(directory, name) for name in (REBUILT_NAME, key_value_index.DIRECTORY_NAME, REPLACED_NAME)
        )
        if self._files.is_directory(new):
            if self._files.is_directory(path):
                remove_tree(self._files, replaced)
                self._files.rename(path, replaced)
                self._files.sync_directory(directory)
            self._files.rename(new, path)
            self._files.sync_directory(directory)
        commit = os.path.join(directory, _REBUILT_COMMIT_NAME)
        if self._files.exists(commit):
            self._files.rename(commit, os.path.join(directory, key_value_index.COMMIT_NAME))
            self._files.sync_directory(directory)


def remove_unfinished(files: LocalFiles, directories: Sequence[str]) -> None:
    """Remove what is left of new stores that do not count, durably."""
    for directory in directories:
        remove_tree(files, os.path.join(directory, REBUILT_NAME))
        commit = os.path.join(directory, _REBUILT_COMMIT_NAME)
        if files.exists(commit):
            files.remove(commit)
        files.sync_directory(directory)


def remove_tree(files: LocalFiles, directory: str) -> None:
    """Remove a directory of files, if it exists. After a crash its name may come back."""
    if files.is_directory(directory):
        for name in files.names(directory):
            files.remove(os.path.join(directory, name))
        files.remove_directory(directory)
