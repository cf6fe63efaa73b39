"""Limits the memory, in bytes, of all connections of a process together, whatever peers do.

There are two budgets. `received`: bytes that arrived and are not served yet, because their frame is unfinished or the
bookie has no room for the request. `replies`: bytes that peers have not taken. In addition each connection holds a
little that is not counted (`UNCOUNTED_BYTES`), so that small requests are served even while others use up the budgets.

A frame that is larger than one receive gets memory for all of it when it begins, so a connection with that memory can
finish its frame, and others wait with unread sockets. While a connection waits, a frame that is unfinished after
`UNFINISHED_S` is given up, the oldest first: its connection is closed. So peers that send halves of large frames and
stop cost a bounded amount of memory, for a bounded time. `Connection.close_if_stalled` closes a connection whose peer
has taken no replies for long; when there is no room for replies, the connection whose peer has taken none for longest
is closed at once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bkspark.memory import ReusedMemory

UNCOUNTED_BYTES = 8 * 1024
"""Received bytes that one connection may hold without using the budget."""
WINDOW_BYTES = 1024 * 1024
"""Bytes that are received at once."""
READING_WINDOW_BYTES = 128 * 1024
"""The same while some client reads much: a turn with a window of adds takes milliseconds, in which no read is
answered."""
READING_S = 0.01
LARGE_REPLY_BYTES = 64 * 1024
"""A client that got a reply as large as this less than `READING_S` ago reads much."""
UNFINISHED_S = 2.0
_LOOK_INTERVAL_S = 0.25
_WINDOW_BYTES_MIN = 64 * 1024
"""Less room than this counts as no room; then a connection receives at most `UNCOUNTED_BYTES` at once."""
_WINDOW_SHARE = 8
"""At most this part of the room is received at once, so that many connections share the last of it."""


class Budget:
    """Bytes of memory that many connections share; `used` never exceeds `limit`."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        """Bytes that are taken; at most `limit`."""

    @property
    def room(self) -> int:
        return self.limit - self.used

    def take(self, size: int) -> bool:
        """Take `size` bytes, or return False and take no bytes."""
        if size > self.room:
            return False
        self.used += size
        return True

    def give(self, size: int) -> None:
        """Return bytes that were taken."""
        assert 0 <= size <= self.used
        self.used -= size


class Receiver(Protocol):
    """The part of a connection that the budget uses."""

    def go_on_receiving(self) -> None:
        """Continue to receive: there is room again."""

    def give_up(self, why: str) -> None:
        """Close, and return the held memory."""


class MemoryBudget:
    """The budgets of one process, the buffer that its connections receive into, and the connections that wait for
    room."""

    def __init__(self, loop: asyncio.AbstractEventLoop, received_bytes_max: int, reply_bytes_max: int) -> None:
        self.loop = loop
        self.received = Budget(received_bytes_max)
        self.replies = Budget(reply_bytes_max)
        self.scratch = np.empty(WINDOW_BYTES + UNCOUNTED_BYTES, np.uint8)
        """Valid until the next step of the event loop; bytes to keep must be copied."""
        self.memory = ReusedMemory()
        self.window = 0
        """What a connection that holds nothing may receive now; 0: there is no room. Changed by `_set_window` alone."""
        self._reading_until = 0.0
        """0: no client reads much."""
        self._waiting: dict[Receiver, _Wait] = {}
        """Connections that wait for room, in order of arrival."""
        self._unfinished: dict[Receiver, float] = {}
        """When each frame that is counted and not complete began, oldest first."""
        self._leaving: dict[Receiver, None] = {}
        """Connections with waiting replies; the one whose peer has taken none for longest comes first."""
        self._timer: asyncio.TimerHandle | None = None
        """Looks for connections to give up; None: no connection waits."""
        self._reading_timer: asyncio.TimerHandle | None = None
        """Runs until `_reading_until`, while reads have priority over adds; None at other times."""
        self._set_window()

    def _set_window(self) -> None:
        # The uncounted bytes may become counted, too.
        room = self.received.room - UNCOUNTED_BYTES
        most = READING_WINDOW_BYTES if self._reading_until else WINDOW_BYTES
        self.window = min(most, max(_WINDOW_BYTES_MIN, room // _WINDOW_SHARE)) if room >= _WINDOW_BYTES_MIN else 0

    def note_large_reply(self) -> None:
        """Record that a reply of `LARGE_REPLY_BYTES` or more was sent: for a moment reads have priority over adds."""
        self._reading_until = self.loop.time() + READING_S
        if self._reading_timer is None:
            self._reading_timer = self.loop.call_later(READING_S, self._look_who_reads)
            self._set_window()

    def _look_who_reads(self) -> None:
        left_s = self._reading_until - self.loop.time()
        if left_s > 0:
            self._reading_timer = self.loop.call_later(left_s, self._look_who_reads)
        else:
            self._reading_timer, self._reading_until = None, 0.0
            self._set_window()

    def take(self, size: int) -> bool:
        """Take memory for what was received, or return False and take none."""
        is_taken = self.received.take(size)
        self._set_window()
        return is_taken

    def wait(self, receiver: Receiver, wanted: int = _WINDOW_BYTES_MIN + UNCOUNTED_BYTES, counted: int = 0) -> None:
        """Call `go_on_receiving` once there is room for `wanted` bytes; `counted` bytes are held meanwhile."""
        self._unfinished.pop(receiver, None)
        self._waiting[receiver] = _Wait(wanted, counted, self.loop.time())
        if self._timer is None:
            self._give_up_oldest()

    def begin_frame(self, receiver: Receiver) -> None:
        """Record that a connection has memory for an unfinished frame."""
        self._unfinished.setdefault(receiver, self.loop.time())

    def end_frame(self, receiver: Receiver) -> None:
        """Record that it has no such memory any more."""
        self._unfinished.pop(receiver, None)

    def give_back(self, size: int) -> None:
        """Take back received bytes, and resume connections that have room now."""
        self.received.give(size)
        self._set_window()
        room = self.received.room
        for receiver, wait in list(self._waiting.items()) if self._waiting else ():
            if wait.wanted <= room:
                room -= wait.wanted
                del self._waiting[receiver]
                # In a later call: the caller is in the middle of its own work.
                self.loop.call_soon(receiver.go_on_receiving)

    def keep_reply(self, receiver: Receiver, size: int) -> bool:
        """Take memory for a reply that the peer does not take; False: this peer has taken no replies for longest."""
        self._leaving.setdefault(receiver)
        while not self.replies.take(size):
            slowest = next(iter(self._leaving))
            if slowest is receiver:
                return False
            slowest.give_up(self.too_many_replies())
        return True

    def note_taken(self, receiver: Receiver, left: int) -> None:
        """Record that a peer has taken some of its replies, and `left` bytes remain."""
        self._leaving.pop(receiver, None)
        if left:
            self._leaving[receiver] = None

    def too_many_replies(self) -> str:
        """Return the reason for closing a connection whose peer does not take its replies."""
        return (
            f"it has read nothing for the longest time, and unread replies fill all {self.replies.limit} "
            "bytes for them (replyBuffersMaxBytes)"
        )

    def forget(self, receiver: Receiver) -> None:
        """Forget a connection that is closed."""
        self._leaving.pop(receiver, None)
        self._waiting.pop(receiver, None)
        self._unfinished.pop(receiver, None)

    def close(self) -> None:
        for timer in (self._timer, self._reading_timer):
            if timer is not None:
                timer.cancel()

    def _give_up_oldest(self) -> None:
        """Close connections with the oldest unfinished frames, if old enough, until there is room for the longest
        waiting one."""
        while self._waiting and self.received.room < next(iter(self._waiting.values())).wanted:
            oldest, began = self._oldest()
            # None: requests that wait for the bookie occupy the room; they will be served.
            if oldest is None or self.loop.time() - began < UNFINISHED_S:
                break
            oldest.give_up(
                f"its frame is unfinished after {UNFINISHED_S:g} s while others wait for some of the "
                f"{self.received.limit} bytes for received requests (receiveBuffersMaxBytes)"
            )
        self._timer = self.loop.call_later(_LOOK_INTERVAL_S, self._give_up_oldest) if self._waiting else None

    def _oldest(self) -> tuple[Receiver | None, float]:
        """Return which connection makes room first, and since when it could have: preferably one that has all the
        memory it needs."""
        for receiver, began in self._unfinished.items():
            return receiver, began
        for receiver, wait in reversed(self._waiting.items()):
            if wait.counted:
                return receiver, wait.since
        return None, 0.0


@dataclass(frozen=True, slots=True)
class _Wait:
    wanted: int
    counted: int
    since: float
