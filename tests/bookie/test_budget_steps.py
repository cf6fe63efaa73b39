"""Memory of connections, step by step: who continues when there is room, who gives way, what a closed one leaves."""

from __future__ import annotations

import pytest

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3
from bkspark.wire.status import Status
from bookie_service.network.memory_budget import UNFINISHED_S, MemoryBudget
from tests.bookie.budgets import LIMIT, Receiver, waiting
from tests.bookie.serving import adds
from tests.bookie.simulated_connections import ServedBookie, SimulatedSocket, SteppedLoop
from tests.bookie.v3_peer import PIGGYBACK, request
from tests.security.authorized import ALL_RIGHTS, AuthorizedBookie, Metadata

HALF = LIMIT // 2


# ---- received bytes ----


def test_room_is_given_to_as_many_as_it_has_room_for(loop: SteppedLoop, budget: MemoryBudget) -> None:
    holder = Receiver(budget)
    holder.take(LIMIT)
    first, second, third = waiting(budget, HALF + 1, HALF, HALF - 1)
    budget.give_back(LIMIT)
    loop.turn()
    assert [each.resumed for each in (first, second, third)] == [1, 0, 1]


def test_exactly_the_room_that_is_wanted_is_enough(loop: SteppedLoop, budget: MemoryBudget) -> None:
    Receiver(budget).take(LIMIT)
    (receiver,) = waiting(budget, 1000)
    budget.give_back(999)
    loop.turn()
    assert not receiver.resumed
    budget.give_back(1)
    loop.turn()
    assert receiver.resumed == 1
    budget.give_back(1000)
    loop.turn()
    assert receiver.resumed == 1, "it is called once"


def test_an_unfinished_frame_has_the_age_of_its_beginning(loop: SteppedLoop, budget: MemoryBudget) -> None:
    """Each further byte of a frame is another beginning of the same frame."""
    slow = Receiver(budget)
    slow.take(LIMIT)
    budget.begin_frame(slow)
    loop.now = UNFINISHED_S - 0.1
    budget.begin_frame(slow)
    waiting(budget, 1000)
    assert not slow.why
    loop.now = UNFINISHED_S + 0.3
    loop.turn()
    assert "its frame is unfinished" in slow.why


def test_a_connection_that_waits_for_room_is_not_given_up(loop: SteppedLoop, budget: MemoryBudget) -> None:
    """Its peer cannot send the rest."""
    Receiver(budget).take(LIMIT)
    receiver = Receiver(budget)
    budget.begin_frame(receiver)
    budget.wait(receiver, 1000)
    loop.now = UNFINISHED_S + 0.3
    loop.turn()
    assert not receiver.why


@pytest.mark.parametrize(("age_s", "is_given_up"), [(UNFINISHED_S - 0.01, False), (UNFINISHED_S, True)])
def test_a_frame_is_given_up_at_its_age_and_not_before(
    loop: SteppedLoop, budget: MemoryBudget, age_s: float, is_given_up: bool
) -> None:
    slow = Receiver(budget)
    slow.take(LIMIT)
    budget.begin_frame(slow)
    loop.now = age_s
    waiting(budget, 1000)
    assert bool(slow.why) is is_given_up


def test_the_last_of_those_that_wait_with_memory_gives_way(loop: SteppedLoop, budget: MemoryBudget) -> None:
    """The first one gets its room."""
    first, last = Receiver(budget), Receiver(budget)
    for receiver in (first, last):
        receiver.take(HALF)
        budget.wait(receiver, HALF, HALF)
    loop.now = UNFINISHED_S + 0.3
    loop.turn()
    assert (bool(first.why), bool(last.why)) == (False, True)
    loop.turn()
    assert first.resumed == 1


def test_no_more_frames_are_given_up_than_the_one_that_waits_for_longest_needs(
    loop: SteppedLoop, budget: MemoryBudget
) -> None:
    """What it takes is not known before it has received, so the next one is judged at the next look."""
    slow = [Receiver(budget) for _ in range(2)]
    for receiver in slow:
        receiver.take(HALF)
        budget.begin_frame(receiver)
    first, second = waiting(budget, HALF, HALF)
    loop.now = UNFINISHED_S + 0.3
    loop.turn()
    loop.turn()
    assert [bool(each.why) for each in slow] == [True, False]
    assert [each.resumed for each in (first, second)] == [1, 0]


def test_room_that_comes_back_may_be_received_into_at_once(budget: MemoryBudget) -> None:
    window = budget.window
    assert budget.take(LIMIT)
    assert budget.window == 0 < window
    budget.give_back(LIMIT)
    assert budget.window == window


def test_nothing_is_given_up_after_the_end(loop: SteppedLoop, budget: MemoryBudget) -> None:
    slow = Receiver(budget)
    slow.take(LIMIT)
    budget.begin_frame(slow)
    waiting(budget, 1000)
    budget.close()
    loop.now = UNFINISHED_S + 0.3
    loop.turn()
    assert not slow.why


def test_a_frame_that_ended_in_time_is_not_given_up(loop: SteppedLoop, budget: MemoryBudget) -> None:
    slow = Receiver(budget)
    slow.take(LIMIT)
    budget.begin_frame(slow)
    budget.end_frame(slow)
    waiting(budget, 1000)
    loop.now = 2 * UNFINISHED_S
    loop.turn()
    assert not slow.why


# ---- replies ----


def test_the_peer_that_took_nothing_for_longest_gives_way(budget: MemoryBudget) -> None:
    first, second, third = (Receiver(budget) for _ in range(3))
    assert first.keep_reply(HALF)
    assert second.keep_reply(HALF)
    budget.note_taken(first, HALF)
    assert third.keep_reply(HALF)
    assert (first.why, third.why) == ("", "")
    assert "it has read no replies for longest" in second.why


def test_a_peer_that_took_everything_does_not_give_way(budget: MemoryBudget) -> None:
    first, second = Receiver(budget), Receiver(budget)
    assert first.keep_reply(HALF)
    budget.replies.give(HALF)
    budget.note_taken(first, 0)
    assert second.keep_reply(LIMIT)
    assert not second.keep_reply(1), "it is itself the one that took nothing for longest"
    assert (first.why, second.why) == ("", "")


# ---- closed connections ----


def silent(served: ServedBookie) -> SimulatedSocket:
    """Return a connection whose peer takes no replies."""
    connected = served.connect()
    connected.takes = 0
    return connected


def test_a_closed_connection_does_not_keep_others_from_room() -> None:
    served = ServedBookie()
    served.memory_budget = MemoryBudget(served.loop, LIMIT, LIMIT)  # type: ignore[arg-type]
    gone, slow, last = (served.connections[silent(served)] for _ in range(3))
    gone.send((bytes(HALF),))
    gone.close()
    assert served.memory_budget.replies.used == 0
    slow.send((bytes(HALF + 1),))
    last.send((bytes(HALF),))
    assert (slow.is_open, last.is_open) == (False, True)


def test_who_waits_to_send_is_called_when_the_connection_ends() -> None:
    served = ServedBookie()
    connection = served.connections[silent(served)]
    connection.send((bytes(2 << 20),))
    called: list[bool] = []
    connection.when_taking(lambda: called.append(connection.is_open))
    served.turn()
    assert called == []
    connection.close()
    served.turn()
    assert called == [False]


def test_a_closed_connection_owes_and_is_owed_nothing() -> None:
    served = ServedBookie()
    connected = served.connect()
    connected.received += adds(5, 0, [b"one"])
    served.turns_until(lambda: bool(connected.sent))
    polling = served.connect()
    connection = served.connections[polling]
    poll = request(protocol.READ_ENTRY, 7, ledgerId=5, entryId=-1, previousLAC=0, timeOut=60_000, flag=PIGGYBACK)
    polling.received += v3.encode_message(poll)
    served.turns_until(lambda: served.bookie.owes(connection))
    connection.close()
    assert not served.bookie.owes(connection)


def test_a_closed_connection_has_no_rights() -> None:
    bookie = AuthorizedBookie(ALL_RIGHTS.replace("token:root", "anonymous"), Metadata())
    connection = bookie.served.connections[bookie.connect()]
    assert bookie.authorization.known_status_of(connection, 5) == Status.EOK
    connection.close()
    assert bookie.authorization.known_status_of(connection, 5) == Status.EUA
