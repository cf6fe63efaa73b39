"""The bytes that one connection has received and that are not served yet.

Bytes are received into the buffer that all connections share, and served from there. Only the rest is copied into
memory of the connection, and counted (`memory_budget`): the beginning of an unfinished frame, or requests that the
bookie has no room for. A frame that is larger than one receive gets memory for all of it as soon as its length is
known, so a frame that has begun can always be finished.
"""

from __future__ import annotations

import numpy as np

from bkspark.wire.framing import LENGTH_BYTES
from bookie_service.network.memory_budget import CLOSED, UNCOUNTED_BYTES, MemoryBudget, Receiver

_NOTHING = np.empty(0, np.uint8)


class ReceiveBuffer:
    """The bytes octets[:end]. They are in the shared buffer until `keep`, or until the next turn of the event loop."""

    __slots__ = ("_counted", "_kept", "_memory_budget", "_owner", "end", "octets")

    def __init__(self, memory_budget: MemoryBudget, owner: Receiver) -> None:
        self._memory_budget = memory_budget
        self._owner = owner
        """The connection; `CLOSED` after `clear`."""
        self._kept = _NOTHING
        """Memory of this connection for bytes that stay; empty: no bytes stay."""
        self._counted = 0
        """How many bytes of `_kept` the memory budget has counted. Changed by `_count`."""
        self.octets = _NOTHING
        """The memory of the received bytes: the shared buffer, or `_kept`."""
        self.end = 0
        """The number of received bytes. Raised by `Connection` when it receives."""

    def space(self, most: int) -> memoryview | None:
        """Return memory in which to receive more after `end`: at most `most` bytes, or the rest of a large frame.

        None: there is no room now, and `go_on_receiving` will be called.
        """
        if self.end > UNCOUNTED_BYTES:
            return self._space_of_frame()
        # If the budget has no room, the bytes that need not be counted are left.
        window = self._memory_budget.window or UNCOUNTED_BYTES - self.end
        if not window:
            self._memory_budget.wait(self._owner)
            return None
        self.octets = self._memory_budget.scratch
        if self.end:
            self.octets[: self.end] = self._kept[: self.end]
        return self.octets.data[self.end : self.end + min(window, most)]

    def _space_of_frame(self) -> memoryview | None:
        """Return the memory for the rest of one large frame, or None as `space`."""
        frame_bytes = LENGTH_BYTES + int.from_bytes(self._kept[:LENGTH_BYTES].tobytes(), "big")
        if frame_bytes != len(self._kept):
            if not self._count(frame_bytes):
                self._memory_budget.wait(self._owner, frame_bytes - self._counted, self._counted)
                return None
            self._memory_budget.begin_frame(self._owner)
            whole = self._memory_budget.memory.take(frame_bytes)
            whole[: self.end] = self._kept[: self.end]
            self._kept = whole
        self.octets = self._kept
        return self.octets.data[self.end :]

    def keep(self, consumed: int) -> None:
        """Keep only octets[consumed:end], the beginning of an unfinished frame."""
        if self.octets is self._kept and not consumed:
            return
        if consumed == self.end and not self._counted:
            # All bytes were served, from the shared buffer or from the few that are kept without being counted.
            self.octets = self._kept = _NOTHING
            self.end = 0
            return
        self._memory_budget.end_frame(self._owner)
        self._keep(consumed)
        if self.end > UNCOUNTED_BYTES:
            # The frame gets its memory now, while there is some.
            self._space_of_frame()

    def keep_all(self) -> None:
        """Keep octets[:end] at the same offsets, because requests in it wait."""
        self._memory_budget.end_frame(self._owner)
        if self.octets is not self._kept:
            self._keep(0)

    def _keep(self, start: int) -> None:
        size = self.end - start
        kept = _NOTHING
        if size:
            kept = self._memory_budget.memory.take(size)
            kept[:] = self.octets[start : self.end]
        # It never fails, because no more was received than there was room for.
        has_room = self._count(size)
        assert has_room
        self.octets = self._kept = kept
        self.end = size

    def clear(self) -> None:
        """Drop all bytes and the connection, for good."""
        self._count(0)
        self._owner = CLOSED
        self.octets = self._kept = _NOTHING
        self.end = 0

    def _count(self, size: int) -> bool:
        """Count `size` bytes in place of the present number; False: there is no room, and nothing is changed."""
        counted = size if size > UNCOUNTED_BYTES else 0
        more = counted - self._counted
        if more > 0 and not self._memory_budget.take(more):
            return False
        self._counted = counted
        if more < 0:
            self._memory_budget.give_back(-more)
        return True
