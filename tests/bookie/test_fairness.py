"""Fairness: under any flood of one connection, another one's request is answered within a few turns.

Turns of the event loop are counted, not time: see `simulated_connections`. `python -m tests.floods` measures the same
floods by the clock, on a real bookie.
"""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from bookie_service.engine.turns import TurnLimits
from tests.bookie.serving import adds
from tests.bookie.simulated_connections import ServedBookie, replies
from tests.floods.requests import HELD, REQUESTS, SPARSE, UNKNOWN, read

COUNT = 800
LIMITS = TurnLimits(requests=16, seconds=1.0, short_lived_max=0)


@pytest.fixture
def served() -> ServedBookie:
    bookie = ServedBookie(LIMITS)
    writer = bookie.connect()
    writer.received += adds(HELD, 0, [b"held %d" % i for i in range(50)])
    writer.received += adds(SPARSE, 0, [b"first"]) + adds(SPARSE, (1 << 40) - 1, [b"last"])
    bookie.turns_until(lambda: replies(writer) == 52)
    return bookie


@pytest.mark.parametrize("flood", REQUESTS)
@pytest.mark.parametrize("floods", [1, 4])
def test_an_honest_request_is_answered_within_a_few_turns(served: ServedBookie, flood: str, floods: int) -> None:
    greedy = [served.connect() for _ in range(floods)]
    honest = served.connect("10.0.0.2")
    for peer in greedy:
        peer.received += REQUESTS[flood](COUNT)
    served.turn()
    waited = []
    for number in range(10):
        answered = replies(honest)
        honest.received += adds(7, number, [b"honest"]) if number % 2 else read(HELD, number)
        waited.append(served.turns_until(lambda: replies(honest) > answered))  # noqa: B023
    assert max(waited) <= 3, waited
    served.turns_until(lambda: all(replies(peer) == COUNT or len(peer.received) == 0 for peer in greedy))
    assert served.failures == []
    # A look at ledgers that may be missing counts for four.
    assert served.turns.most_spent() <= LIMITS.requests + 5


def test_a_known_client_does_not_wait_for_the_first_requests_of_new_connections(served: ServedBookie) -> None:
    """Thousands that come at once, and again when they are closed: one of their requests is served in each turn."""
    honest = served.connect("10.0.0.2")
    honest.received += read(HELD, 0)
    served.turns_until(lambda: replies(honest) == 1)
    # Every look at the clock costs, so the turns of the event loop are long.
    served.loop.look_s = LIMITS.crowded_seconds / 2
    newcomers = [served.connect("10.0.0.9") for _ in range(300)]
    for peer in newcomers:
        peer.received += read(UNKNOWN, 0)
    served.turn()
    waited = []
    for number in range(1, 6):
        honest.received += read(HELD, number)
        waited.append(served.turns_until(lambda: replies(honest) > number))  # noqa: B023
    assert max(waited) <= 3, waited
    served.turns_until(lambda: all(replies(peer) for peer in newcomers))


@pytest.mark.parametrize("sent", [b"\xff" * 64, read(HELD, 0)], ids=["nonsense", "a request"])
def test_event_loop_pauses_between_connections_that_come_and_go(served: ServedBookie, sent: bytes) -> None:
    """A loop that never waits keeps the processor, and the process of a client, whose reply is there, waits for it."""
    honest = served.connect("10.0.0.2")
    honest.received += read(HELD, 0)
    served.turns_until(lambda: replies(honest) == 1)
    # Every look at the clock costs: the steps for a newcomer take several turns' time.
    served.loop.look_s = 0.001
    newcomers = [served.connect("10.0.0.9") for _ in range(20)]
    for peer in newcomers:
        peer.received += sent
    closed: list[int] = []
    for turn in range(1000):
        served.turn()
        for peer in newcomers:
            if peer.sent and not peer.is_closed:
                served.connections[peer].close()
        if sum(peer.is_closed for peer in newcomers) > len(closed):
            closed.append(turn)
        if len(closed) == len(newcomers):
            break
    assert len(closed) == len(newcomers)
    assert min(later - earlier for earlier, later in itertools.pairwise(closed[1:])) > 1, closed


@pytest.mark.parametrize("flood", [name for name in REQUESTS if "poll" not in name])
def test_every_request_of_a_flood_is_answered_once(served: ServedBookie, flood: str) -> None:
    greedy = served.connect()
    greedy.received += REQUESTS[flood](COUNT)
    served.turns_until(lambda: replies(greedy) >= COUNT)
    for _ in range(20):
        served.turn()
    assert replies(greedy) == COUNT


def test_connections_with_much_to_do_take_turns(served: ServedBookie) -> None:
    greedy = [served.connect() for _ in range(3)]
    for peer in greedy:
        peer.received += REQUESTS["V3 disk space"](COUNT)
    for _ in range(50):
        served.turn()
    done = [replies(peer) for peer in greedy]
    assert min(done) > 100
    # One of them begins in each turn.
    assert max(done) - min(done) <= len(greedy) * LIMITS.requests


def test_connections_that_ask_for_lists_take_turns(served: ServedBookie) -> None:
    """Lists are made one at a time: who asks for one does not wait for all that another connection asked for."""
    greedy, honest = served.connect(), served.connect("10.0.0.2")
    greedy.received += REQUESTS["V3 lists of a sparse ledger"](COUNT)
    served.turn()
    honest.received += REQUESTS["V3 lists of a sparse ledger"](1)
    served.turns_until(lambda: replies(honest) == 1)
    assert replies(greedy) <= 5


def test_readings_that_take_many_turns_are_received_in_small_parts(served: ServedBookie) -> None:
    """Receiving and keeping a whole window of them takes milliseconds, in which no other client is answered."""
    greedy = served.connect()
    # A read of the last entry is served alone.
    sent = read(HELD, -1) * 60_000
    greedy.received += sent
    served.turns_until(lambda: len(greedy.received) < len(sent))
    taken = []
    while greedy.received:
        before = len(greedy.received)
        served.turns_until(lambda: len(greedy.received) < before, turns_max=100_000)  # noqa: B023
        taken.append(before - len(greedy.received))
    assert max(taken) <= 64 * 1024


def test_a_run_of_adds_is_short_in_a_short_turn() -> None:
    served = ServedBookie(TurnLimits(requests=1, seconds=1.0, frames=100))
    greedy = served.connect()
    greedy.received += adds(7, 0, [b"small"] * 1000)
    taken = []
    while not taken or taken[-1] < 999:
        served.turn()
        ledger = served.twin.store.ledger(7)
        taken.append(-1 if ledger is None else ledger.last_entry)
    assert max(np.diff(taken, prepend=-1)) == 100


def test_lists_that_wait_for_a_connection_that_is_gone_are_dropped(served: ServedBookie) -> None:
    greedy = served.connect()
    greedy.received += REQUESTS["V3 lists of a sparse ledger"](COUNT)
    served.turns_until(lambda: len(served.bookie.entry_lists) > 100)
    served.connections[greedy].close()
    honest = served.connect()
    honest.received += REQUESTS["V3 lists of a sparse ledger"](1)
    served.turns_until(lambda: replies(honest) == 1, turns_max=20)
    assert not len(served.bookie.entry_lists)


def test_a_turn_ends_by_its_time_as_well() -> None:
    served = ServedBookie(TurnLimits(requests=1000, seconds=0.002))
    served.loop.look_s = 0.0003
    greedy = served.connect()
    greedy.received += REQUESTS["V3 disk space"](COUNT)
    for _ in range(100):
        before = replies(greedy)
        served.turn()
        assert replies(greedy) - before <= 7


@pytest.mark.parametrize("seed", range(4))
def test_reads_in_short_turns_are_answered_as_they_are_in_long_ones(seed: int) -> None:
    """Held and missing entries, known and unknown ledgers, in every order, whatever a turn has time for."""
    choice = random.Random(seed)
    asked = [
        (choice.choice([HELD, 6, UNKNOWN, UNKNOWN + choice.randrange(4)]), choice.choice([0, 1, 2, 3, 49, 50, -1]))
        for _ in range(700)
    ]
    asked += [(HELD, entry_id) for entry_id in range(60)] + [(UNKNOWN + i, 0) for i in range(200)]
    answers = []
    for limits in (TurnLimits(1, 1.0), TurnLimits(3, 1.0), TurnLimits(10**9, 1.0)):
        bookie = ServedBookie(limits)
        writer, reader = bookie.connect(), bookie.connect()
        writer.received += adds(HELD, 0, [b"held %d" % i for i in range(50)]) + adds(6, 2, [b"a", b"b"])
        bookie.turns_until(lambda: replies(writer) == 52)  # noqa: B023
        reader.received += b"".join(read(*each) for each in asked)
        bookie.turns_until(lambda: replies(reader) == len(asked))  # noqa: B023
        answers.append(bytes(reader.sent))
    assert answers[0] == answers[1] == answers[2]
