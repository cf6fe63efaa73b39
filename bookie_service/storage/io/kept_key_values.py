"""A key-value store that keeps in memory what its disk does not take now.

A store writes its memory out from time to time. If its disk has no space, or is late, the store must not get more than
its memory takes. What it does not get stays here, where reads find it, until `give` finds that the store takes it.
"""

from __future__ import annotations

import errno
import heapq
import threading
from collections.abc import Iterator, Sequence

from bookie_service.storage.io.files import is_out_of_space
from bookie_service.storage.io.key_values import KeyValues

_PUTS_PER_WRITE = 1024


class KeptKeyValues:
    """A `KeyValues` over a store. One thread at a time writes, another one may call `give` and `sync`; any may read."""

    def __init__(self, store: KeyValues, path: str, bytes_max: int) -> None:
        """`path`: for messages. `bytes_max`: at most this many bytes of keys and values are kept."""
        self._store = store
        self._path = path
        self._bytes_max = bytes_max
        self._kept: dict[bytes, bytes] = {}
        """Keys and values that the store lacks. They count before those in the store."""
        self._kept_bytes = 0
        """How many bytes `_kept` has."""
        self._changing = threading.Lock()
        """Held while `_kept` is changed. No disk is waited for meanwhile."""

    @property
    def keeps_any(self) -> bool:
        """Whether the store lacks something."""
        return bool(self._kept)

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not self._kept:
            return self._store.get(keys)
        # In this order, because what leaves `_kept` is in the store before.
        kept = [self._kept.get(key) for key in keys]
        rows = [row for row, value in enumerate(kept) if value is None]
        for row, value in zip(rows, self._store.get([keys[row] for row in rows]) if rows else ()):
            kept[row] = value
        return kept

    def last(self, first: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        kept = self._kept_in(first, end)
        stored = self._store.last(first, end)
        return max([each for each in (kept[-1] if kept else None, stored) if each is not None], default=None, key=_key)

    def keys(self, first: bytes, end: bytes) -> Iterator[bytes]:
        kept = [key for key, _ in self._kept_in(first, end)]
        if not kept:
            yield from self._store.keys(first, end)
            return
        before = None
        for key in heapq.merge(kept, self._store.keys(first, end)):
            if key != before:
                yield key
            before = key

    def key_count(self) -> int:
        return self._store.key_count() + len(self._kept)

    def _kept_in(self, first: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        """Return the kept keys in [first, end) and their values, ascending."""
        if not self._kept:
            return []
        with self._changing:
            return sorted((key, value) for key, value in self._kept.items() if first <= key < end)

    def write(self, puts: Sequence[tuple[bytes, bytes]], removed: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Write to the store; keep `puts` if it has no space, or lacks earlier ones.

        Raises:
            OSError: there is no space, and something is removed, or too much is kept already.
        """
        if not self._kept:
            try:
                self._store.write(puts, removed)
                return
            except OSError as error:
                if removed or not is_out_of_space(error):
                    raise
        if removed:
            raise OSError(errno.ENOSPC, "the key-value store has no space for earlier changes yet", self._path)
        self.keep(puts)

    def keep(self, puts: Sequence[tuple[bytes, bytes]]) -> None:
        """Keep keys and values in memory. Raises OSError if too much is kept already."""
        with self._changing:
            if self._kept_bytes > self._bytes_max:
                raise OSError(errno.ENOSPC, "the disk of the key-value store takes no more changes", self._path)
            for key, value in puts:
                self._kept_bytes += len(key) + len(value) - self._size(key)
                self._kept[key] = value

    def _size(self, key: bytes) -> int:
        before = self._kept.get(key)
        return 0 if before is None else len(key) + len(before)

    def give(self, bytes_max: int) -> bool:
        """Write about `bytes_max` bytes of what is kept to the store; return whether something is left.

        Raises:
            OSError: as the store's `write`. What it lacks is still kept.
        """
        given = 0
        while self._kept and given < bytes_max:
            with self._changing:
                some = list(zip(self._kept.items(), range(_PUTS_PER_WRITE)))
            puts = [put for put, _ in some]
            self._store.write(puts)
            with self._changing:
                for key, value in puts:
                    if self._kept[key] is value:
                        self._kept_bytes -= self._size(key)
                        del self._kept[key]
                    given += len(key) + len(value)
        return bool(self._kept)

    def sync(self) -> None:
        """Make durable what the store has. What is kept is not in the store."""
        self._store.sync()

    def forget_removed(self, ranges: Sequence[tuple[bytes, bytes]]) -> None:
        self._store.forget_removed(ranges)

    def close(self) -> None:
        self._store.close()


def _key(found: tuple[bytes, bytes]) -> bytes:
    return found[0]
