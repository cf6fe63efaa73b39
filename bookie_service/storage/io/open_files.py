"""A bounded set of open files: the least recently used is closed when another is needed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """An open file, or something that holds one."""

    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class OpenFiles(Generic[T]):
    """Opens existing files on demand and keeps at most `limit` of them open. For one thread."""

    def __init__(self, open_file: Callable[[str], T], limit: int) -> None:
        """`open_file(path)` raises FileNotFoundError when there is none."""
        self._open_file = open_file
        self._limit = limit
        self._open: OrderedDict[str, T] = OrderedDict()

    def get(self, path: str) -> T:
        """Return the open file; it stays usable until the next call.

        Raises:
            FileNotFoundError: it does not exist.
        """
        file = self._open.get(path)
        if file is not None:
            self._open.move_to_end(path)
            return file
        if len(self._open) >= self._limit:
            _, oldest = self._open.popitem(last=False)
            oldest.close()
        file = self._open[path] = self._open_file(path)
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
