"""Replies on their way to one socket. Bytes that the socket does not take are kept in counted memory, or not at all.

Parts are passed to the socket without a copy. Only bytes that it does not take are copied, because parts may be views
of memory that changes in the next step of the event loop. A small part of type `bytes` is kept as it is.
"""

from __future__ import annotations

import itertools
import socket
from collections import deque

from bookie_service.engine.responses import Parts
from bookie_service.network.memory_budget import CLOSED, LARGE_REPLY_BYTES, MemoryBudget, Receiver
from bookie_service.network.tls_socket import TlsSocket
from bookie_service.storage.io.files import BUFFERS_PER_CALL_MAX

PIECE_BYTES = 256 * 1024
"""Bytes that wait are kept in pieces of this size at most. They come from the heap, whose memory is used again; the
kernel would have to clear the pages of a larger piece."""
FLUSH_BYTES = 1024 * 1024
"""At most about this many bytes are sent at once of those that waited: a peer may take much while it is sent more."""


class SendBuffer:
    """The bytes that a connection still has to send. For one event loop."""

    __slots__ = ("_memory_budget", "_owner", "_pending", "_sent_of_first", "_socket", "size")

    def __init__(self, connected: socket.socket | TlsSocket, memory_budget: MemoryBudget, owner: Receiver) -> None:
        self._socket = connected
        self._memory_budget = memory_budget
        self._owner = owner
        """The connection; `CLOSED` after `clear`."""
        self._pending: deque[bytes] = deque()
        """Parts that are not completely sent, in order."""
        self._sent_of_first = 0
        """How many bytes of the first pending part are sent."""
        self.size = 0
        """Bytes that are not sent yet: those of `_pending` without `_sent_of_first`."""

    def send(self, parts: Parts) -> bool:
        """Send the parts back to back, after pending bytes.

        False: there is no room for the bytes that the socket did not take, and the connection must be closed.

        Raises:
            OSError: the connection is broken.
        """
        size = sum(map(len, parts))
        if size >= LARGE_REPLY_BYTES:
            self._memory_budget.note_large_reply()
        sent = 0 if self._pending else self._send_some(parts)
        left = size - sent
        if not left:
            return True
        if not self._memory_budget.keep_reply(self._owner, left):
            return False
        self.size += left
        for part in parts:
            if not sent and isinstance(part, bytes) and 0 < len(part) <= PIECE_BYTES:
                self._pending.append(part)
                continue
            for at in range(sent, len(part), PIECE_BYTES):
                self._pending.append(bytes(memoryview(part)[at : at + PIECE_BYTES]))
            sent = max(0, sent - len(part))
        return True

    def flush(self) -> bool:
        """Send more of the pending bytes, about FLUSH_BYTES at most; return whether the socket took any.

        Raises:
            OSError: the connection is broken.
        """
        size = self.size
        while self._pending and size - self.size < FLUSH_BYTES:
            parts = self._next_parts()
            if self._sent_of_first:
                parts[0] = memoryview(parts[0])[self._sent_of_first :]
            sent = self._send_some(parts)
            if not sent:
                break
            self._drop(sent)
        if self.size < size:
            self._memory_budget.note_taken(self._owner, self.size)
        return self.size < size

    def _next_parts(self) -> list[bytes | memoryview]:
        """Return the first pending parts: about FLUSH_BYTES, and no more parts than one call takes."""
        parts: list[bytes | memoryview] = []
        room = FLUSH_BYTES
        for part in itertools.islice(self._pending, BUFFERS_PER_CALL_MAX):
            parts.append(part)
            room -= len(part)
            if room <= 0:
                break
        return parts

    def clear(self) -> None:
        """Drop the pending bytes and the connection, for good."""
        self._owner = CLOSED
        self._memory_budget.replies.give(sum(map(len, self._pending)))
        self._pending.clear()
        self.size = self._sent_of_first = 0

    def _send_some(self, parts: Parts) -> int:
        """Send parts; return how many bytes the socket took."""
        done = 0
        try:
            if len(parts) == 1:
                return self._socket.send(parts[0])
            for first in range(0, len(parts), BUFFERS_PER_CALL_MAX):
                some = parts[first : first + BUFFERS_PER_CALL_MAX]
                sent = self._socket.sendmsg(some)
                done += sent
                if sent < sum(map(len, some)):
                    break
        except (BlockingIOError, InterruptedError):
            pass
        return done

    def _drop(self, sent: int) -> None:
        self.size -= sent
        sent += self._sent_of_first
        while self._pending and sent >= len(self._pending[0]):
            # Memory becomes free only when a whole part is sent.
            size = len(self._pending.popleft())
            self._memory_budget.replies.give(size)
            sent -= size
        self._sent_of_first = sent
