"""What a key-value store lacks that was closed before its last writes were synced, and cannot take them again yet."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from bookie_service.storage.io.key_values import Changes


class UnsyncedWrites:
    """Some writes, in order, which count before what the store has."""

    def __init__(self, writes: Sequence[Changes]) -> None:
        last: dict[bytes, tuple[int, bytes]] = {}
        ranges: list[tuple[bytes, bytes, int]] = []
        for number, (puts, removed) in enumerate(writes):
            ranges += [(first, end, number) for first, end in removed]
            last.update((key, (number, value)) for key, value in puts)
        keys = sorted(last)
        for first, end, number in ranges:
            for key in keys[bisect.bisect_left(keys, first) : bisect.bisect_left(keys, end)]:
                if key in last and last[key][0] < number:
                    del last[key]
        self._values = {key: value for key, (_, value) in last.items()}
        """The keys and values that the writes left. Constant."""
        self._keys = sorted(self._values)
        """The keys of `_values`, ascending. Constant."""
        self._removed = _joined([(first, end) for first, end, _ in ranges])
        """Ranges [first, end) that were removed from the store, ascending, without common keys. Constant."""

    def get(self, keys: Sequence[bytes], stored: Sequence[bytes | None]) -> list[bytes | None]:
        """Return the values of keys for which the store has `stored`."""
        return [self._values.get(key, None if self._range(key) else value) for key, value in zip(keys, stored)]

    def last(self, first: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """Return the last key in [first, end) that was written, and its value."""
        row = bisect.bisect_left(self._keys, end) - 1
        return (self._keys[row], self._values[self._keys[row]]) if row >= 0 and self._keys[row] >= first else None

    def keys(self, first: bytes, end: bytes, stored: Sequence[bytes]) -> list[bytes]:
        """Return all keys in [first, end), ascending, of which the store has `stored`."""
        written = self._keys[bisect.bisect_left(self._keys, first) : bisect.bisect_left(self._keys, end)]
        return sorted({*written, *(key for key in stored if self._range(key) is None)})

    def removed_from(self, key: bytes) -> bytes | None:
        """Return where a removed range begins that has the key; None: the store has it as before."""
        found = self._range(key)
        return None if found is None else found[0]

    def _range(self, key: bytes) -> tuple[bytes, bytes] | None:
        row = bisect.bisect_right(self._removed, key, key=_first) - 1
        return self._removed[row] if row >= 0 and key < self._removed[row][1] else None


def _joined(ranges: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return ranges [first, end) with the same keys, ascending, without common ones."""
    joined: list[tuple[bytes, bytes]] = []
    for first, end in sorted(ranges):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((first, end))
    return joined


def _first(found: tuple[bytes, bytes]) -> bytes:
    return found[0]
