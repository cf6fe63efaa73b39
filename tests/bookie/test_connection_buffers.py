"""The bytes of one connection: in which order replies leave, and what is counted of them and of received frames."""

from __future__ import annotations

import errno
import os

import pytest

from bookie_service.network.memory_budget import UNCOUNTED_BYTES, UNFINISHED_S, WINDOW_BYTES, MemoryBudget
from bookie_service.network.receive_buffer import ReceiveBuffer
from bookie_service.network.send_buffer import BUFFERS_PER_CALL_MAX, SendBuffer
from tests.bookie.budgets import LIMIT, Receiver, waiting
from tests.bookie.simulated_connections import SimulatedSocket, SteppedLoop


class ReluctantSocket(SimulatedSocket):
    """Takes few bytes in each call, as a socket may whose peer is reading at the same time."""

    most = 1 << 40

    def send(self, data: bytes | memoryview) -> int:
        if self.takes and not len(data):
            return 0
        return super().send(memoryview(data)[: self.most])


# ---- replies ----


def test_replies_leave_in_order_however_little_the_socket_takes_at_once(budget: MemoryBudget) -> None:
    connected = ReluctantSocket()
    connected.most = 3
    buffer = SendBuffer(connected, budget, Receiver(budget))  # type: ignore[arg-type]
    parts = [os.urandom(2) for _ in range(2 * BUFFERS_PER_CALL_MAX + 1)]
    assert buffer.send(parts)
    while buffer.size:
        assert buffer.flush()
    assert connected.sent == b"".join(parts)
    assert budget.replies.used == 0


@pytest.mark.parametrize("taken", [0, 3, 5, 8])
def test_memory_of_a_part_is_free_when_its_last_byte_is_sent(budget: MemoryBudget, taken: int) -> None:
    connected = ReluctantSocket()
    connected.takes = 0
    buffer = SendBuffer(connected, budget, Receiver(budget))  # type: ignore[arg-type]
    assert buffer.send((b"five5", b"six666"))
    connected.takes = taken
    assert buffer.flush() == (taken > 0)
    assert (buffer.size, budget.replies.used) == (11 - taken, 11 if taken < 5 else 6)
    connected.takes = 1 << 40
    assert buffer.flush()
    assert (buffer.size, budget.replies.used) == (0, 0)
    assert not buffer.flush()
    assert buffer.send((b"next",))
    assert connected.sent == b"five5six666next"


def test_peer_that_takes_some_replies_is_not_the_slowest_one(budget: MemoryBudget) -> None:
    receivers = [Receiver(budget) for _ in range(3)]
    sockets = [ReluctantSocket() for _ in receivers]
    buffers = [SendBuffer(connected, budget, each) for connected, each in zip(sockets, receivers)]  # type: ignore[arg-type]
    for connected, buffer, receiver in zip(sockets[:2], buffers, receivers):
        connected.takes = 0
        assert buffer.send((bytes(LIMIT // 2),))
        receiver.held = LIMIT // 2
    sockets[0].takes = 1
    assert buffers[0].flush()
    sockets[2].takes = 0
    assert buffers[2].send((b"more",))
    assert [bool(receiver.why) for receiver in receivers] == [False, True, False]


# ---- received frames ----


def receive(buffer: ReceiveBuffer, data: bytes) -> None:
    space = buffer.space(WINDOW_BYTES)
    assert space is not None
    space[: len(data)] = data
    buffer.end += len(data)


@pytest.mark.parametrize("is_served", [False, True])
def test_frame_that_is_complete_is_not_given_up_for_its_age(
    loop: SteppedLoop, budget: MemoryBudget, is_served: bool
) -> None:
    """Its requests wait for the bookie, or were served, and the next frame has begun."""
    owner = Receiver(budget)
    buffer = ReceiveBuffer(budget, owner)
    frame = (4 * UNCOUNTED_BYTES - 4).to_bytes(4, "big") + bytes(4 * UNCOUNTED_BYTES - 4)
    receive(buffer, frame[: 2 * UNCOUNTED_BYTES])
    buffer.keep(0)
    loop.now = UNFINISHED_S / 2
    receive(buffer, frame[2 * UNCOUNTED_BYTES :])
    if is_served:
        buffer.keep(len(frame))
    else:
        buffer.keep_all()
    assert budget.take(budget.received.room)
    loop.now = UNFINISHED_S + 0.1
    waiting(budget, 1000)
    assert not owner.why
    buffer.clear()


def test_socket_error_of_a_reply_is_raised(budget: MemoryBudget) -> None:
    class Broken(SimulatedSocket):
        def send(self, data: bytes | memoryview) -> int:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))

    buffer = SendBuffer(Broken(), budget, Receiver(budget))  # type: ignore[arg-type]
    with pytest.raises(ConnectionResetError):
        buffer.send((b"one", b"two"))
    assert budget.replies.used == 0
