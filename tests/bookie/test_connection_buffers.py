"""The bytes of one connection: in which order replies leave, and what is counted of them and of received frames."""

from __future__ import annotations

import errno
import os

import pytest

from bookie_service.network.memory_budget import (
    LARGE_REPLY_BYTES,
    READING_S,
    READING_WINDOW_BYTES,
    UNCOUNTED_BYTES,
    UNFINISHED_S,
    WINDOW_BYTES,
    MemoryBudget,
)
from bookie_service.network.receive_buffer import ReceiveBuffer
from bookie_service.network.send_buffer import BUFFERS_PER_CALL_MAX, FLUSH_BYTES, PIECE_BYTES, SendBuffer
from tests.bookie.budgets import LIMIT, Receiver, waiting
from tests.bookie.simulated_connections import ServedBookie, SimulatedSocket, SteppedLoop


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


def test_reply_leaves_after_those_that_wait_although_the_socket_would_take_it(budget: MemoryBudget) -> None:
    connected = ReluctantSocket()
    buffer = SendBuffer(connected, budget, Receiver(budget))  # type: ignore[arg-type]
    connected.takes = 3
    assert buffer.send((b"first",))
    connected.takes = 1 << 40
    assert buffer.send((b"second",))
    assert buffer.send((b"third", b"fourth"))
    assert connected.sent == b"fir"
    assert buffer.flush()
    assert connected.sent == b"firstsecondthirdfourth"


@pytest.mark.parametrize("taken", [0, 2, 5, 7])
def test_bytes_that_wait_are_those_of_the_moment_at_which_they_were_sent(budget: MemoryBudget, taken: int) -> None:
    """Parts may be views of memory that changes in the next step of the event loop."""
    connected = ReluctantSocket()
    connected.takes = taken
    buffer = SendBuffer(connected, budget, Receiver(budget))  # type: ignore[arg-type]
    memory = bytearray(b"first second")
    assert buffer.send((memoryview(memory)[:5], memoryview(memory)[5:]))
    memory[:] = bytes(len(memory))
    connected.takes = 1 << 40
    assert buffer.flush()
    assert connected.sent == b"first second"


def test_large_part_waits_in_pieces_that_leave_the_budget_one_by_one(budget: MemoryBudget) -> None:
    """One allocation of megabytes is new memory each time, whose pages the kernel clears while the event loop waits."""
    connected = ReluctantSocket()
    connected.takes = 5
    buffer = SendBuffer(connected, budget, Receiver(budget))  # type: ignore[arg-type]
    part = os.urandom(2 * PIECE_BYTES + 8)
    assert buffer.send((b"head", part))
    assert max(map(len, buffer._pending)) == PIECE_BYTES
    assert budget.replies.used == len(part) - 1
    connected.takes = PIECE_BYTES
    assert buffer.flush()
    assert budget.replies.used == len(part) - 1 - PIECE_BYTES
    connected.takes = 1 << 40
    assert buffer.flush()
    assert connected.sent == b"head" + part


def test_small_part_that_waits_is_copied_only_if_its_memory_may_change_or_some_of_it_is_sent(
    budget: MemoryBudget,
) -> None:
    connected = ReluctantSocket()
    connected.takes = 1
    buffer = SendBuffer(connected, budget, Receiver(budget))  # type: ignore[arg-type]
    parts = [b"head", b"", os.urandom(PIECE_BYTES), memoryview(b"view")]
    assert buffer.send(parts)
    assert list(buffer._pending) == [b"ead", parts[2], b"view"]
    assert [id(part) for part in buffer._pending if any(part is each for each in parts)] == [id(parts[2])]
    assert {type(part) for part in buffer._pending} == {bytes}
    assert budget.replies.used == sum(map(len, parts)) - 1


def test_little_of_what_waited_is_sent_at_once_however_much_the_peer_takes() -> None:
    """Otherwise one peer that reads 15 MiB at once keeps the event loop for as long."""
    served = ServedBookie()
    connected = served.connect()
    connected.takes = 0
    part = os.urandom(3 * FLUSH_BYTES + 1)
    served.connections[connected].send((part,))
    connected.takes = 1 << 40
    for turn in range(1, 4):
        served.turn()
        assert turn * FLUSH_BYTES <= len(connected.sent) <= turn * (FLUSH_BYTES + PIECE_BYTES)
    served.turn()
    assert connected.sent == part


@pytest.mark.parametrize("more", [-1, 0], ids=["smaller", "exactly as large"])
def test_large_reply_gives_reads_priority_for_a_while(loop: SteppedLoop, more: int) -> None:
    """A turn with a whole window of adds takes milliseconds, in which no read is answered."""
    budget = MemoryBudget(loop, 128 * LIMIT, LIMIT)  # type: ignore[arg-type]
    assert budget.window == WINDOW_BYTES
    buffer = SendBuffer(ReluctantSocket(), budget, Receiver(budget))  # type: ignore[arg-type]
    assert buffer.send((bytes(LARGE_REPLY_BYTES // 2), bytes(LARGE_REPLY_BYTES // 2 + more)))
    assert budget.window == (WINDOW_BYTES if more else READING_WINDOW_BYTES)
    loop.now = READING_S / 2
    budget.note_large_reply()
    loop.now = READING_S
    loop.turn()
    assert budget.window == READING_WINDOW_BYTES, "the last large reply counts"
    loop.now = READING_S * 3 / 2
    loop.turn()
    assert budget.window == WINDOW_BYTES


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


def frame_of(size: int) -> bytes:
    """Return a frame of this many bytes."""
    return (size - 4).to_bytes(4, "big") + os.urandom(size - 4)


def test_beginning_of_a_frame_is_kept_while_others_use_the_shared_memory(budget: MemoryBudget) -> None:
    one, other = (ReceiveBuffer(budget, Receiver(budget)) for _ in range(2))
    frame = frame_of(100)
    receive(one, frame[:30])
    one.keep(0)
    receive(other, bytes(WINDOW_BYTES // 16))
    receive(one, frame[30:])
    assert one.octets[: one.end].tobytes() == frame


@pytest.mark.parametrize("more", [0, 1])
def test_only_bytes_beyond_those_that_are_not_counted_use_the_budget(budget: MemoryBudget, more: int) -> None:
    buffer = ReceiveBuffer(budget, Receiver(budget))
    size = UNCOUNTED_BYTES + more
    receive(buffer, frame_of(size + 1)[:size])
    buffer.keep(0)
    assert budget.received.used == (size + 1 if more else 0), "a frame that is counted gets its memory at once"
    buffer.clear()
    assert budget.received.used == 0


def test_connection_receives_no_more_than_what_is_not_counted_while_there_is_no_room(budget: MemoryBudget) -> None:
    assert budget.take(budget.received.room)
    buffer = ReceiveBuffer(budget, Receiver(budget))
    space = buffer.space(WINDOW_BYTES)
    assert space is not None
    assert len(space) == UNCOUNTED_BYTES
    receive(buffer, frame_of(2 * UNCOUNTED_BYTES)[:1000])
    buffer.keep(0)
    space = buffer.space(WINDOW_BYTES)
    assert space is not None
    assert len(space) == UNCOUNTED_BYTES - 1000
    buffer.end = UNCOUNTED_BYTES
    assert buffer.space(WINDOW_BYTES) is None


def test_memory_of_a_frame_is_given_back_when_it_is_served(budget: MemoryBudget) -> None:
    buffer = ReceiveBuffer(budget, Receiver(budget))
    frame = frame_of(4 * UNCOUNTED_BYTES)
    receive(buffer, frame[: 2 * UNCOUNTED_BYTES])
    buffer.keep(0)
    assert budget.received.used == len(frame)
    receive(buffer, frame[2 * UNCOUNTED_BYTES :])
    assert buffer.octets[: buffer.end].tobytes() == frame
    buffer.keep(len(frame))
    assert (budget.received.used, buffer.end) == (0, 0)


def test_large_frame_that_stays_unfinished_gives_way_to_those_that_wait(
    loop: SteppedLoop, budget: MemoryBudget
) -> None:
    owner = Receiver(budget)
    buffer = ReceiveBuffer(budget, owner)
    receive(buffer, frame_of(4 * UNCOUNTED_BYTES)[: 2 * UNCOUNTED_BYTES])
    buffer.keep(0)
    owner.held = 4 * UNCOUNTED_BYTES
    assert budget.take(budget.received.room)
    loop.now = UNFINISHED_S + 0.1
    waiting(budget, 1000)
    assert "its frame is unfinished" in owner.why


def test_room_is_not_kept_for_a_connection_that_is_gone(loop: SteppedLoop, budget: MemoryBudget) -> None:
    Receiver(budget).take(LIMIT)
    gone, there = waiting(budget, 1000, 1000)
    budget.forget(gone)
    budget.give_back(1000)
    loop.turn()
    assert (gone.resumed, there.resumed) == (0, 1)
