"""How long polls wait, what wakes them, and in which turn of the event loop: `LongPolls` with real turns, by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bkspark.wire.status import Status
from bookie_service.engine.long_polls import LongPolls
from bookie_service.engine.shares import ShareLimits
from bookie_service.engine.turns import Turn, TurnLimits, Turns
from tests.bookie.polls import Client, Poll

SECONDS_MAX = 60.0


class Bench:
    """Polls of a bookie; `turn` is a turn of the event loop, in which `requests` polls may be woken."""

    def __init__(self, requests: int = 1000, places: int = 50) -> None:
        self.queue: list[Callable[[], None]] = []
        limits = TurnLimits(*[requests, 1.0, 512] * 2, shared_seconds=0.0)
        self.lacs: dict[int, int] = {}
        self.looks: list[int] = []
        self.refused: set[int] = set()
        """Ledgers that no client may read."""
        turns = Turns(lambda _, callback: self.queue.append(callback), lambda: 0.0, limits)
        self.polls = LongPolls(ShareLimits(*[places] * 3), SECONDS_MAX, self._lac_of, self, turns, self._status_of)  # type: ignore[arg-type]
        self.client = Client()

    def _lac_of(self, ledger_id: int) -> int:
        self.looks.append(ledger_id)
        return self.lacs[ledger_id]

    def _status_of(self, _: object, ledger_id: int) -> Status:
        return Status.EUA if ledger_id in self.refused else Status.EOK

    def enqueue(self, reading: Poll, turn: Turn) -> None:
        """Note that a poll is answered in the turn that woke it."""
        assert isinstance(turn, Turn)
        reading.events.append("answered")

    def later(self, reading: Poll) -> None:
        """Note that a poll is answered in a later turn."""
        reading.events.append("answered later")

    def refuse(self, reading: Poll, status: Status) -> None:
        """Refuse a poll by the method that counts refusals."""
        reading.events.append("refused")
        reading.refuse(status)

    def wait(self, ledger_id: int, previous_lac: int, client: Client | None = None, seconds: float = 5.0) -> Poll:
        poll = Poll(client or self.client, ledger_id, previous_lac)
        assert self.polls.wait(poll, seconds)  # type: ignore[arg-type]
        return poll

    def turn(self) -> None:
        queued, self.queue[:] = list(self.queue), []
        for callback in queued:
            callback()


def test_poll_waits_as_long_as_it_asks_and_no_longer_than_the_bookie_allows() -> None:
    bench = Bench()
    for seconds in (5.0, SECONDS_MAX - 1, SECONDS_MAX + 1, 1e9):
        bench.wait(1, 0, seconds=seconds)
    assert [timer.seconds for timer in bench.client.timers] == [5.0, SECONDS_MAX - 1, SECONDS_MAX, SECONDS_MAX]


def test_poll_whose_time_is_over_is_answered_once_and_gives_its_place_back() -> None:
    bench = Bench()
    poll, other = bench.wait(1, 0), bench.wait(1, 0)
    first, second = bench.client.timers
    first.ring()
    first.ring()
    assert (poll.events, other.events) == ([None, "answered later"], [])
    assert (first.cancelled, second.cancelled, len(bench.polls)) == (1, 0, 1)
    bench.lacs[1] = 1
    bench.polls.touch(1)
    bench.turn()
    second.ring()
    assert (poll.events, other.events) == ([None, "answered later"], [1, "answered"])
    assert list(bench.polls.clients()) == []
    assert not bench.polls.by_ledger


def test_lac_above_that_of_the_client_wakes_a_poll_and_the_same_one_does_not() -> None:
    bench = Bench()
    low, equal, high = (bench.wait(1, lac) for lac in (3, 4, 5))
    bench.lacs[1] = 4
    bench.polls.touch(1)
    assert low.events == [], "the change is reported, and nothing else happens in this call"
    bench.turn()
    assert (low.events, equal.events, high.events) == ([4, "answered"], [], [])
    bench.polls.touch(1, is_fenced=True)
    bench.lacs[1] = 5
    bench.turn()
    assert (equal.events, high.events) == ([5, "answered"], [None, "answered"])


@pytest.mark.parametrize("order", [(True, False), (False, True), (True, True)])
def test_fence_counts_whatever_is_reported_beside_it_in_the_same_turn(order: tuple[bool, bool]) -> None:
    bench = Bench()
    poll, elsewhere = bench.wait(1, 9), bench.wait(2, 9)
    bench.lacs = {1: 0, 2: 0}
    for is_fenced in order:
        bench.polls.touch(1, is_fenced=is_fenced)
    bench.polls.touch(2)
    bench.turn()
    assert (poll.events, elsewhere.events) == ([None, "answered"], [])
    assert sorted(bench.looks) == [1, 2], "each ledger is looked at once"


def test_ledger_without_waiting_polls_costs_nothing() -> None:
    bench = Bench()
    bench.wait(1, 0)
    bench.polls.touch(2, is_fenced=True)
    assert bench.queue == []
    bench.lacs[1] = 0
    for _ in range(3):
        bench.polls.touch(1)
    assert len(bench.queue) == 1
    bench.turn()
    assert (bench.queue, bench.looks) == ([], [1])


def test_polls_are_woken_over_as_many_turns_as_they_need() -> None:
    bench = Bench(requests=2)
    polls = [bench.wait(1, 0) for _ in range(5)]
    bench.lacs[1] = 1
    bench.polls.touch(1)
    woken = []
    while bench.queue:
        bench.turn()
        woken.append(sum(bool(poll.events) for poll in polls))
    # The first turn looks at the ledger as well, the last one finds nothing left.
    assert woken == [1, 3, 5, 5]


def test_poll_that_ends_between_the_change_and_its_turn_is_not_woken() -> None:
    bench = Bench(requests=1)
    gone = Client("10.0.0.2")
    first, second, third = bench.wait(1, 0), bench.wait(1, 0, gone), bench.wait(1, 0)
    bench.lacs[1] = 1
    bench.polls.touch(1)
    bench.turn()
    bench.polls.forget(gone)
    bench.client.timers[1].ring()
    while bench.queue:
        bench.turn()
    assert (first.events, second.events, third.events) == ([1, "answered"], [], [None, "answered later"])
    assert (len(bench.polls), gone.timers[0].cancelled) == (0, 1)


def test_closed_connection_takes_its_own_polls_with_it_and_no_others() -> None:
    bench = Bench()
    other = Client("10.0.0.2")
    bench.wait(1, 0, other)
    bench.wait(2, 0, other)
    poll = bench.wait(1, 0)
    assert other in bench.polls.clients()
    bench.polls.forget(other)
    bench.polls.forget(Client())
    assert (len(bench.polls), list(bench.polls.clients())) == (1, [bench.client])
    assert list(bench.polls.by_ledger) == [1]
    bench.lacs[1] = 1
    bench.polls.touch(1)
    bench.turn()
    assert poll.events == [1, "answered"]


def test_poll_that_lost_its_permission_is_refused_when_woken_and_at_its_time_out() -> None:
    bench = Bench()
    woken, timed = bench.wait(1, 0), bench.wait(2, 0)
    bench.refused = {1, 2}
    bench.lacs[1] = 1
    bench.polls.touch(1)
    bench.turn()
    bench.client.timers[1].ring()
    assert (woken.events, timed.events) == ([None, "refused", "EUA"], [None, "refused", "EUA"])
    assert (len(bench.polls), list(bench.polls.clients())) == (0, [])


def test_other_rules_refuse_the_polls_that_wait_for_ledgers_they_do_not_allow() -> None:
    bench = Bench(requests=2)
    bench.polls.review()
    assert bench.queue == [], "no poll waits"
    refused, gone, kept = [bench.wait(1, 0) for _ in range(3)], bench.wait(1, 0, Client("10.0.0.2")), bench.wait(2, 0)
    bench.refused = {1}
    bench.polls.review()
    assert refused[0].events == []
    bench.polls.forget(gone.client)
    bench.turn()
    assert [bool(poll.events) for poll in refused] == [True, True, False], "those that wait longest come first"
    turns = 1
    while bench.queue:
        bench.turn()
        turns += 1
    assert [poll.events for poll in (*refused, gone, kept)] == [[None, "refused", "EUA"]] * 3 + [[], []]
    assert (turns, len(bench.polls)) == (3, 1)
    bench.lacs[2] = 1
    bench.polls.touch(2)
    bench.turn()
    assert kept.events == [1, "answered"]


class CountedPoll(Poll):
    """A poll that counts looks at the LAC that its client has."""

    looks = 0

    @property
    def previous_lac(self) -> int:
        CountedPoll.looks += 1
        return self._previous_lac

    @previous_lac.setter
    def previous_lac(self, previous_lac: int) -> None:
        self._previous_lac = previous_lac


def test_what_an_add_costs_follows_the_polls_that_it_wakes_and_not_those_that_wait() -> None:
    """A peer may wait for LACs that do not come, on the ledger of another one, whose adds must not pay for it."""
    bench = Bench(places=5_000)
    for number in range(4_990):
        assert bench.polls.wait(CountedPoll(bench.client, 1, (1 << 62) - number), 5.0)
    followers = [CountedPoll(bench.client, 1, lac) for lac in (3, 0, 7, 3)]
    for follower in followers:
        assert bench.polls.wait(follower, 5.0)
    CountedPoll.looks = 0
    bench.lacs[1] = 4
    bench.polls.touch(1)
    bench.turn()
    assert [follower.events for follower in followers] == [[4, "answered"], [4, "answered"], [], [4, "answered"]]
    assert CountedPoll.looks < 500
    assert len(bench.polls) == 4_991
