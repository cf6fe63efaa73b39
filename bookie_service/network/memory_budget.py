"""Limits the memory of all connections of a process together, in bytes, whatever peers do.

There are two budgets. `received`: bytes that have arrived and are not served yet, because their frame is unfinished or
the bookie has no room for the request. `replies`: bytes of replies that peers have not taken. In addition each
connection may hold a few bytes that are not counted (`UNCOUNTED_BYTES`), so small requests are served even while other
connections use up the budgets.

A frame that is larger than one receive gets memory for all of it when it begins. A connection with that memory can
finish its frame; others wait, with unread sockets. While a connection waits, unfinished frames older than
`UNFINISHED_S` are given up, the oldest first: their connections are closed. So peers that send halves of large frames
and then stop cost a limited amount of memory for a limited time. `Connection.close_if_stalled` closes a connection
whose peer has taken no replies for long. When there is no room for replies, the connection whose peer has taken none
for longest is closed at once.
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
"""At most this many bytes are received at once."""
READING_WINDOW_BYTES = 128 * 1024
"""The same while some client reads much: a turn with a whole window of adds takes milliseconds, in which no read is
answered."""
READING_S = 0.01
LARGE_REPLY_BYTES = 64 * 1024
"""A client reads much if it got a reply of at least this size less than `READING_S` ago."""
UNFINISHED_S = 2.0
_LOOK_INTERVAL_S = 0.25
_WINDOW_BYTES_MIN = 64 * 1024
"""Less room than this counts as no room. A connection then receives at most `UNCOUNTED_BYTES` at once."""
_WINDOW_SHARE = 8
"""At most this fraction of the room is received at once, so that many connections share the last of it."""


class Budget:
    """Bytes of memory that many connections share; `used` never exceeds `limit`."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        """Bytes that are taken. Changed by `take` and `give`."""

    @property
    def room(self) -> int:
        return self.limit - self.used

    def take(self, size: int) -> bool:
        """Take `size` bytes; False: there is no room, and no bytes are taken."""
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
        """Continue to receive, because there is room again."""

    def give_up(self, why: str) -> None:
        """Close the connection, which returns its memory."""


class _Closed:
    """A `Receiver` that is closed."""

    def go_on_receiving(self) -> None:
        """Does nothing: nothing is received."""

    def give_up(self, why: str) -> None:
        """Does nothing: it is closed and holds no memory."""


CLOSED: Receiver = _Closed()
"""In place of a closed connection. A buffer that kept the connection would form a cycle with it, which only Python's
garbage collection frees (`event_loop.TimedCollections`)."""


class MemoryBudget:
    """The budgets of one process, the buffer that its connections receive into, and the connections that wait for
    room."""

    def __init__(self, loop: asyncio.AbstractEventLoop, received_bytes_max: int, reply_bytes_max: int) -> None:
        self.loop = loop
        self.received = Budget(received_bytes_max)
        """Memory for requests that came and are not answered; its limit is for all connections together."""
        self.replies = Budget(reply_bytes_max)
        """The same for responses that the peers have not taken."""
        self.scratch = np.empty(WINDOW_BYTES + UNCOUNTED_BYTES, np.uint8)
        """All connections receive into it. Its bytes are valid until the next step of the event loop."""
        self.memory = ReusedMemory()
        self.window = 0
        """Bytes that a connection which holds none may receive now; 0: there is no room. Changed by `_set_window`."""
        self._reading_until = 0.0
        """Until when some client counts as reading much; 0: no client does."""
        self._waiting: dict[Receiver, _Wait] = {}
        """Connections that wait for room, in order of arrival, each with what it waits for."""
        self._unfinished: dict[Receiver, float] = {}
        """When each counted, unfinished frame began; the oldest comes first."""
        self._leaving: dict[Receiver, None] = {}
        """Connections with waiting replies; the one whose peer has taken none for longest comes first."""
        self._timer: asyncio.TimerHandle | None = None
        """Planned call of `_give_up_oldest`; None: no connection waits."""
        self._reading_timer: asyncio.TimerHandle | None = None
        """Planned end of the time in which reads have priority over adds; None: they have no priority now."""
        self._set_window()

    def _set_window(self) -> None:
        # The uncounted bytes may become counted ones, too.
        room = self.received.room - UNCOUNTED_BYTES
        most = READING_WINDOW_BYTES if self._reading_until else WINDOW_BYTES
        self.window = min(most, max(_WINDOW_BYTES_MIN, room // _WINDOW_SHARE)) if room >= _WINDOW_BYTES_MIN else 0

    def note_large_reply(self) -> None:
        """Record that a reply of at least `LARGE_REPLY_BYTES` was sent: reads have priority for `READING_S`."""
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
        """Take memory for received bytes; False: there is no room, and none is taken."""
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
        """Record that a connection has no such memory any more."""
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
                # In a later call, because the caller is in the middle of its own work.
                self.loop.call_soon(receiver.go_on_receiving)

    def keep_reply(self, receiver: Receiver, size: int) -> bool:
        """Take memory for a reply that the peer does not take now, if need be by closing slower connections.

        False: this peer itself has taken no replies for longest.
        """
        self._leaving.setdefault(receiver)
        while not self.replies.take(size):
            slowest = next(iter(self._leaving))
            if slowest is receiver:
                return False
            slowest.give_up(self.too_many_replies())
        return True

    def note_taken(self, receiver: Receiver, left: int) -> None:
        """Record that a peer has taken some of its replies, and that `left` bytes remain."""
        self._leaving.pop(receiver, None)
        if left:
            self._leaving[receiver] = None

    def too_many_replies(self) -> str:
        """Return the reason for closing a connection whose peer does not take its replies."""
        return (
            f"it has read no replies for longest, and unread replies fill all {self.replies.limit} bytes for them "
            "(replyBuffersMaxBytes)"
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
        """Close connections with the oldest unfinished frames, if these are old enough.

        It stops when there is room for the connection that has waited for longest.
        """
        while self._waiting and self.received.room < next(iter(self._waiting.values())).wanted:
            oldest, began = self._oldest()
            # None: the room is occupied by requests that wait for the bookie, and they will be served.
            if oldest is None or self.loop.time() - began < UNFINISHED_S:
                break
            oldest.give_up(
                f"its frame is unfinished after {UNFINISHED_S:g} s while others wait for some of the "
                f"{self.received.limit} bytes for received requests (receiveBuffersMaxBytes)"
            )
        self._timer = self.loop.call_later(_LOOK_INTERVAL_S, self._give_up_oldest) if self._waiting else None

    def _oldest(self) -> tuple[Receiver | None, float]:
        """Return the connection to close first, and since when its peer could have finished its frame.

        Connections that have all the memory they need come first. (None, 0.0): there is no candidate.
        """
        for receiver, began in self._unfinished.items():
            return receiver, began
        for receiver, wait in reversed(self._waiting.items()):
            if wait.counted:
                return receiver, wait.since
        return None, 0.0


@dataclass(frozen=True, slots=True)
class _Wait:
    wanted: int
    """Bytes for which there must be room."""
    counted: int
    """Bytes that the connection holds meanwhile."""
    since: float
    """When it began to wait, by the event loop's clock."""
