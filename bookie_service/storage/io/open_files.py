"""A bounded set of open files: the least recently used is closed when another is needed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """An open file, or something that holds one."""

    def close(self) -> None: ...


K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Closable)


class OpenFiles(Generic[K, T]):
    """Opens existing files on demand and keeps at most `limit` of them open. For one thread."""

    def __init__(self, open_file: Callable[[K], T], limit: int) -> None:
        """`open_file(key)` raises FileNotFoundError if there is no file. A key is a path, or determines one."""
        self._open_file = open_file
        self._limit = limit
        self._open: OrderedDict[K, T] = OrderedDict()
        """Open files by key; the one unused for longest comes first. At most `limit`."""

    def get(self, key: K) -> T:
        """Return the open file, which is usable until the next call.

        Raises:
            FileNotFoundError: there is no such file.
        """
        file = self._open.get(key)
        if file is not None:
            self._open.move_to_end(key)
            return file
        if len(self._open) >= self._limit:
            _, oldest = self._open.popitem(last=False)
            oldest.close()
        file = self._open[key] = self._open_file(key)
        return file

    def forget(self, key: K) -> None:
        """Close a file, if it is open."""
        file = self._open.pop(key, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()
