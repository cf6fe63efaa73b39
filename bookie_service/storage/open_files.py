"""A bounded set of open files: the least recently used is closed when another is needed."""

from __future__ import annotations

from collections import OrderedDict

from bookie_service.storage.files import File, LocalFiles


class OpenFiles:
    """Opens existing files on demand and keeps at most `limit` of them open. For one thread."""

    def __init__(self, files: LocalFiles, limit: int) -> None:
        self._files = files
        self._limit = limit
        self._open: OrderedDict[str, File] = OrderedDict()

    def get(self, path: str) -> File:
        """Return the open file; it stays usable until the next call.

        Raises:
            FileNotFoundError: there is none.
        """
        file = self._open.get(path)
        if file is not None:
            self._open.move_to_end(path)
            return file
        if len(self._open) >= self._limit:
            _, oldest = self._open.popitem(last=False)
            oldest.close()
        file = self._open[path] = self._files.open(path)
        return file

    def forget(self, path: str) -> None:
        """Close a file if it is open."""
        file = self._open.pop(path, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()
