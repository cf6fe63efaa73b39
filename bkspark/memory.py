"""Reusable memory for large pieces of data: frames and the entries taken from them.

The first access to new memory costs more than the copy into it, and several times as much on a virtual machine, whose
host has to provide the memory as well. Some memory is therefore kept. A piece is reused when its reference count shows
that nothing refers to it: users never return a piece, and never see a piece change that they still have.
"""

from __future__ import annotations

import mmap
import sys

import numpy as np

PAGES_BYTES_MIN = 256 * 1024
"""Smaller pieces come from the heap."""
KEPT_BYTES_MAX = 16 * 1024 * 1024
"""What one `ReusedMemory` keeps, used and unused pieces together."""
_STEP_BYTES = 512 * 1024
"""Sizes are multiples of this, so that pieces of similar size share memory."""
_IDLE_REFERENCES = 2
"""References of an unused piece: the list's, and the argument of the count."""


class ReusedMemory:
    """Returns memory to write into, and keeps up to KEPT_BYTES_MAX of it for later calls. For one thread."""

    def __init__(self) -> None:
        self._kept: list[np.ndarray] = []
        """The kept pieces; the most recently used is last, the first is dropped first. Changed by `take` alone."""

    def take(self, size: int) -> np.ndarray:
        """Return a uint8 array (size,) of undefined contents; it is not reused while a view of it exists."""
        if size < PAGES_BYTES_MIN:
            return np.empty(size, np.uint8)
        rounded = -(-size // _STEP_BYTES) * _STEP_BYTES
        for place, kept_bytes in enumerate(map(len, self._kept)):
            if kept_bytes == rounded and sys.getrefcount(self._kept[place]) == _IDLE_REFERENCES:
                self._kept.append(self._kept.pop(place))
                return self._kept[-1][:size]
        # A mapping instead of the heap, which keeps freed memory and would be fragmented by pieces of all sizes.
        memory = np.frombuffer(mmap.mmap(-1, rounded, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
        self._kept.append(memory)
        kept_bytes = sum(map(len, self._kept))
        while kept_bytes > KEPT_BYTES_MAX:
            kept_bytes -= len(self._kept.pop(0))
        return memory[:size]
