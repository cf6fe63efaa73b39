"""Turns on a virtual clock: no connection does more than its share before others come."""

from __future__ import annotations

import asyncio
import gc
import select
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from bookie_service.engine.turns import ENDLESS, Turn, TurnLimits, Turns
from bookie_service.network import event_loop
from bookie_service.network.event_loop import TimedCollections, TurnRecorder, TurnSelector, forget_start


class Loop:
    """Calls back in turns; time passes only when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self._ready: deque[tuple[float, Callable[[], None]]] = deque()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._ready.append((self.now + seconds, callback))

    def turn(self) -> None:
        """Call what is due."""
        for _ in range(len(self._ready)):
            due, callback = self._ready.popleft()
            if due <= self.now:
                callback()
            else:
                self._ready.append((due, callback))

    @property
    def is_idle(self) -> bool:
        return not self._ready


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_a_turn_is_over_after_its_requests(loop: Loop) -> None:
    turn = Turn(lambda: loop.now, 3, 1.0)
    for _ in range(3):
        assert not turn.is_over
        turn.spend()
    assert turn.is_over


def test_a_turn_is_over_after_its_time(loop: Loop) -> None:
    turn = Turn(lambda: loop.now, 1000, 0.002)
    loop.now = 0.0019
    assert not turn.is_over
    loop.now = 0.002
    assert turn.is_over


def test_a_turn_without_a_limit_of_frames_takes_runs_as_long_as_a_long_turn(loop: Loop) -> None:
    assert Turn(lambda: loop.now, 1000, 1.0).frames == TurnLimits().long_frames
    assert ENDLESS.frames == TurnLimits().long_frames


def how_long(loop: Loop, turn: Turn) -> float:
    """Return after how many seconds a turn is over in which nothing is counted."""
    began = loop.now
    while not turn.is_over:
        loop.now += 0.5
    took, loop.now = loop.now - began, began
    return took


LONG = TurnLimits(seconds=1.0, long_seconds=4.0, shared_seconds=10.0)


def test_turns_are_long_while_no_client_is_served_as_its_requests_come(loop: Loop) -> None:
    """Between clients that all have more to do than fits a turn, short turns would only cost throughput."""
    turns = Turns(loop.call_later, lambda: loop.now, LONG)
    assert how_long(loop, turns.begin("a")) == how_long(loop, turns.begin("b")) == 4.0
    loop.now = 11.0
    turns.note("honest")
    assert how_long(loop, turns.begin("a")) == how_long(loop, turns.begin("b")) == 1.0
    loop.now = 20.0
    assert how_long(loop, turns.begin("a")) == 1.0
    loop.now = 21.0
    assert how_long(loop, turns.begin("a")) == 4.0, "it was here 10 seconds ago"


def test_a_client_that_has_the_bookie_to_itself_gets_long_turns_after_short_requests(loop: Loop) -> None:
    turns = Turns(loop.call_later, lambda: loop.now, LONG)
    turns.note("a")
    assert how_long(loop, turns.begin("a")) == 4.0


def test_two_clients_that_are_served_as_their_requests_come_get_short_turns(loop: Loop) -> None:
    turns = Turns(loop.call_later, lambda: loop.now, LONG)
    turns.note("a")
    turns.note("b")
    assert how_long(loop, turns.begin("a")) == how_long(loop, turns.begin("b")) == 1.0
    loop.now = 9.0
    turns.note("b")
    loop.now = 10.0
    assert how_long(loop, turns.begin("b")) == 4.0, "the other one was here 10 seconds ago"
    assert how_long(loop, turns.begin("a")) == 1.0


def serving(loop: Loop, served: list[Any], seconds: float = 0.001) -> Callable[[Any], Callable[[Turn], None]]:
    """Return what makes a callback that takes so long and notes a name."""

    def named(name: Any) -> Callable[[Turn], None]:
        def serve(_: Turn) -> None:
            loop.now += seconds
            served.append(name)

        return serve

    return named


def test_one_long_turn_of_the_queue_is_served_per_turn_of_the_event_loop(loop: Loop) -> None:
    """So an honest request that arrives meanwhile waits for one turn, not for all that others have sent."""
    turns = Turns(loop.call_later, lambda: loop.now)
    served: list[int] = []
    named = serving(loop, served)
    for owner in range(5):
        turns.go_on(owner, named(owner))
    for count in range(1, 6):
        loop.turn()
        assert served == list(range(count))
    assert loop.is_idle


async def served_in_order() -> list[str]:
    """Return who was served in which order: a socket that is ready, and an owner that waited for its turn before."""
    loop, served = asyncio.get_running_loop(), []
    service_end, peer_end = socket.socketpair()
    with service_end, peer_end:
        turns = Turns(loop.call_later, time.monotonic)
        loop.add_reader(service_end, lambda: (served.append("socket"), loop.remove_reader(service_end)))
        turns.go_on("flood", lambda _: served.append("flood"))
        peer_end.send(b"a request")
        while len(served) < 2:
            await asyncio.sleep(0)
    return served


def test_a_socket_that_is_ready_is_served_before_the_queue() -> None:
    """So a request that arrives during a turn of the queue waits for that turn only, not for the next one too."""
    assert asyncio.run(served_in_order()) == ["socket", "flood"]


def test_many_short_turns_are_served_together_but_each_owner_once(loop: Loop) -> None:
    turns = Turns(loop.call_later, lambda: loop.now, TurnLimits(queue_seconds=0.0005))
    served: list[str] = []
    named = serving(loop, served, seconds=0.0001)
    for _ in range(2):
        for owner in range(20):
            turns.go_on(owner, named(owner))
    loop.turn()
    assert served == [0, 1, 2, 3, 4]
    for _ in range(10):
        loop.turn()
    assert sorted(served) == sorted(2 * list(range(20)))
    turns.go_on("alone", named("first"))
    turns.go_on("alone", named("second"))
    loop.turn()
    assert served[-1] == "first"


def test_a_long_turn_of_the_event_loop_is_crowded(loop: Loop) -> None:
    """Thousands of sockets that become ready at once are not a reason to look at no other socket meanwhile."""
    began = 0.0
    turns = Turns(loop.call_later, lambda: loop.now, TurnLimits(crowded_seconds=0.004), lambda: began)
    loop.now = 0.0039
    assert not turns.must_queue("one", is_demanding=True)
    loop.now = 0.0041
    assert turns.must_queue("one", is_demanding=False)
    began = 0.004
    assert not turns.must_queue("one", is_demanding=True)


def test_demanding_owner_queues_while_another_is_served_as_its_requests_come(loop: Loop) -> None:
    """Four floods of readable sockets would have four turns before the loop looks for an honest request again."""
    turns = Turns(loop.call_later, lambda: loop.now)
    turns.note("prompt")
    assert turns.must_queue("flood", is_demanding=True)
    assert not turns.must_queue("flood", is_demanding=False)
    assert not turns.must_queue("prompt", is_demanding=True)
    loop.now = TurnLimits().shared_seconds + 0.1
    assert not turns.must_queue("flood", is_demanding=True)


def test_connections_are_accepted_one_at_a_time_in_alternation_with_newcomers_steps(loop: Loop) -> None:
    """Otherwise a flood of connections makes each turn long, for clients that are served as their requests come."""
    turns = Turns(loop.call_later, lambda: loop.now)
    turns.note("prompt")
    done: list[str] = []
    named = serving(loop, done)
    for number in range(6):
        turns.go_on_with_newcomer("10.0.0.9", named(f"step {number}"))
    for _ in range(8):
        turns.accept("listener", accepting_all(done), lambda: None)
        loop.turn()
    assert done == ["accepted", "step 0", "accepted", "step 1", "accepted", "step 2", "accepted", "step 3"]


def accepting_all(done: list[str], waiting: int = 1 << 30) -> Callable[[Turn], bool]:
    """Return a callback that accepts `waiting` connections, in each turn until it is over."""

    def accept(turn: Turn) -> bool:
        while not turn.is_over and done.count("accepted") < waiting:
            done.append("accepted")
            turn.spend()
        return done.count("accepted") < waiting

    return accept


def test_connections_are_accepted_until_none_waits_without_being_reported_again(loop: Loop) -> None:
    """The report of a socket is a turn of the event loop, which would end the pause after each step."""
    turns = Turns(loop.call_later, lambda: loop.now)
    turns.note("prompt")
    done: list[str] = []
    turns.accept("listener", accepting_all(done, waiting=3), lambda: done.append("unwatched"))
    for _ in range(4):
        loop.turn()
    assert done == ["unwatched", *3 * ["accepted"]]
    assert loop.is_idle
    turns.accept("listener", accepting_all(done, waiting=4), lambda: done.append("unwatched"))
    loop.turn()
    assert done[4:] == ["unwatched", "accepted"]
    assert loop.is_idle


def test_connections_that_wait_are_accepted_together_when_no_client_is_prompt_any_more(loop: Loop) -> None:
    turns = Turns(loop.call_later, lambda: loop.now)
    turns.note("prompt")
    done: list[str] = []
    turns.accept("listener", accepting_all(done, waiting=50), lambda: None)
    loop.turn()
    assert len(done) == 1
    loop.now = TurnLimits().shared_seconds
    loop.turn()
    assert len(done) == 50


def test_error_of_accepting_does_not_leave_the_others_waiting(loop: Loop) -> None:
    turns = Turns(loop.call_later, lambda: loop.now)
    turns.note("prompt")
    done: list[str] = []

    def accept(turn: Turn) -> bool:
        done.append("tried")
        if len(done) == 1:
            raise ValueError("planted")
        return False

    turns.accept("listener", accept, lambda: None)
    with pytest.raises(ValueError, match="planted"):
        loop.turn()
    for _ in range(3):
        loop.turn()
    assert done == ["tried"] * 2


def test_connections_are_accepted_in_each_turn_where_no_newcomer_waits_and_freely_where_no_client_is_prompt(
    loop: Loop,
) -> None:
    turns = Turns(loop.call_later, lambda: loop.now, LONG)
    given: list[Turn] = []
    waits: list[int] = []

    def accept(turn: Turn) -> bool:
        given.append(turn)
        return False

    turns.accept("listener", accept, lambda: waits.append(len(given)))
    assert how_long(loop, given.pop()) == 4.0
    assert not waits
    turns.note("prompt")
    for _ in range(3):
        turns.accept("listener", accept, lambda: waits.append(len(given)))
        assert not given, "sockets that are ready come first"
        loop.turn()
        turn = given.pop()
        turn.spend()
        assert turn.is_over
    assert waits == [0, 0, 0], "it waits for its turn each time"
    # A newcomer after them does not wait for one more.
    done: list[str] = []
    turns.go_on_with_newcomer("10.0.0.9", serving(loop, done)("step"))
    turns.accept("listener", accept, lambda: None)
    loop.turn()
    assert (done, given) == (["step"], [])


def test_connection_that_makes_room_is_closed_at_once_or_as_the_next_step(loop: Loop) -> None:
    """Closing one costs as much as accepting one: both in one turn would make it long."""
    turns = Turns(loop.call_later, lambda: loop.now)
    done: list[str] = []
    turns.close("first", lambda: done.append("closed"))
    assert done == ["closed"]
    turns.note("prompt")
    turns.go_on_with_newcomer("10.0.0.9", serving(loop, done)("step"))
    turns.accept("listener", accepting_all(done), lambda: None)
    turns.close("second", lambda: done.append("closed"))
    for _ in range(3):
        loop.turn()
    assert done == ["closed", "closed", "accepted", "step"]


def test_newcomers_get_their_share_of_the_time_while_connections_are_closed_to_make_room(loop: Loop) -> None:
    """A bookie that is never idle waits for a processor, and then each reply is late."""
    turns = Turns(loop.call_later, lambda: loop.now, TurnLimits(newcomers_share=0.25, short_lived_max=2))
    step_s = 1 / 64
    steps = 0

    def step(_: Turn) -> None:
        nonlocal steps
        steps += 1
        loop.now += step_s
        turns.go_on_with_newcomer("10.0.0.9", step)

    def share(*, honest_is_served: bool = True) -> float:
        """Return the share of a second that steps take."""
        before, end = steps, loop.now + 1.0
        while loop.now < end:
            if honest_is_served:
                turns.note("honest")
            now = loop.now
            loop.turn()
            if loop.now == now:
                loop.now += step_s
        return (steps - before) * step_s

    turns.go_on_with_newcomer("10.0.0.9", step)
    assert share() == 1.0, "thousands of executors that connect at once do not wait"
    turns.close("left", lambda: None)
    assert [share(), share()] == [0.25, 0.25]
    assert share() > 0.9, "no connection was closed to make room for 2 seconds"
    for _ in range(3):
        turns.note_end(age_s=2.0)
    assert [share(), share()] == [0.25, 0.25], "connections come and go"
    for _ in range(3):
        turns.note_end(age_s=2.1)
    assert share() > 0.9, "they were no newcomers any more"
    for _ in range(4):
        turns.note_end(age_s=0.1)
        assert share() > 0.9, "a client with a short connection each second delays no newcomer"
    turns.close("left", lambda: None)
    loop.now += 1.9
    assert share(honest_is_served=False) > 0.9, "no client is served as its requests come"


def test_step_that_a_thread_goes_on_with_lasts_until_the_thread_is_done(loop: Loop) -> None:
    """So steps of handshakes are computed one at a time, addresses take turns, and the pause after a step is as long
    as the whole step."""
    turns = Turns(loop.call_later, lambda: loop.now, TurnLimits(newcomers_share=0.25))
    turns.note("honest")
    turns.close("left", lambda: None)
    loop.turn()
    ends: list[Callable[[], None]] = []
    served: list[float] = []
    loop.now = 1.0
    turns.note("honest")
    turns.go_on_with_newcomer("10.0.0.8", lambda _: ends.append(turns.extend_step()))
    turns.go_on_with_newcomer("10.0.0.9", lambda _: served.append(loop.now))
    for _ in range(10):
        loop.turn()
        loop.now += 0.001
    assert (len(ends), served) == (1, [])
    ends.pop()()
    while not served:
        loop.turn()
        loop.now += 0.001
    assert served == [pytest.approx(1.01 + 3 * 0.01, abs=0.0015)]


def test_error_of_a_newcomers_step_does_not_stop_the_next_one(loop: Loop) -> None:
    turns = Turns(loop.call_later, lambda: loop.now)
    served: list[str] = []

    def fail(_: Turn) -> None:
        raise ValueError("planted")

    turns.go_on_with_newcomer("10.0.0.8", fail)
    turns.go_on_with_newcomer("10.0.0.9", lambda _: served.append("good"))
    with pytest.raises(ValueError, match="planted"):
        loop.turn()
    loop.turn()
    assert served == ["good"]


@pytest.mark.parametrize(
    ("timeout", "exact"), [(None, []), (0, []), (0.0003, [0.0003]), (0.00099, [0.00099]), (0.001, []), (2.0, [])]
)
def test_selector_waits_for_less_than_a_millisecond(
    timeout: float | None, exact: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """epoll waits for whole milliseconds, and a pause after a newcomer's step is a tenth of that."""
    waited: list[float] = []
    select_all, own = select.select, threading.get_ident()

    def noted(*given: Any) -> Any:
        # Other threads of the process, such as those of libraries that other tests have used, select, too.
        if threading.get_ident() == own:
            waited.append(given[-1])
        return select_all(*given)

    monkeypatch.setattr(select, "select", noted)
    ours, theirs = socket.socketpair()
    with ours, theirs, TurnSelector() as selector:
        selector.register(ours, selectors.EVENT_READ)
        theirs.send(b"x")
        assert [key.fileobj for key, _ in selector.select(timeout)] == [ours]
        ours.recv(1)
        if timeout is not None:
            assert selector.select(timeout) == []
    assert waited[:1] == exact


def test_an_owner_with_much_in_the_queue_waits_for_each_other_owner(loop: Loop) -> None:
    turns = Turns(loop.call_later, lambda: loop.now)
    served: list[str] = []
    named = serving(loop, served)
    for number in range(100):
        turns.go_on("flood", named(f"flood {number}"))
    turns.go_on("honest", named("honest"))
    for _ in range(3):
        loop.turn()
    assert served == ["flood 0", "honest", "flood 1"]


def test_an_unfinished_owner_is_called_again_after_the_others(loop: Loop) -> None:
    turns = Turns(loop.call_later, lambda: loop.now, TurnLimits(2, 1.0, long_requests=2, long_seconds=1.0))
    left = {"a": 5, "b": 3}
    served: list[str] = []

    def serve(owner: str, turn: Turn) -> None:
        while left[owner] and not turn.is_over:
            served.append(owner)
            left[owner] -= 1
            turn.spend()
        if left[owner]:
            turns.go_on(owner, lambda turn: serve(owner, turn))

    for owner in left:
        turns.go_on(owner, lambda turn, owner=owner: serve(owner, turn))
    while not loop.is_idle:
        loop.turn()
    assert served == ["a", "a", "b", "b", "a", "a", "b", "a"]


def test_an_error_of_one_does_not_stop_the_queue(loop: Loop) -> None:
    turns = Turns(loop.call_later, lambda: loop.now)
    served: list[str] = []

    def fail(_: Turn) -> None:
        raise ValueError("planted")

    turns.go_on("bad", fail)
    turns.go_on("good", lambda _: served.append("good"))
    with pytest.raises(ValueError, match="planted"):
        loop.turn()
    loop.turn()
    assert served == ["good"]


def test_collections_pass_over_what_a_bookie_starts_with_and_come_at_set_times() -> None:
    """A collection that goes through all modules takes 30 ms. Python begins one whenever objects were made."""
    # What the tests' own start froze counts here, too.
    gc.unfreeze()
    thresholds = gc.get_threshold()
    collected: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            collected.append(info["generation"])
            if len(collected) == 6:
                enough.set()

    async def serve() -> None:
        with TimedCollections(interval_s=0.001, recent_every=2, all_every=6):
            assert gc.get_freeze_count() > 10_000
            assert len(gc.get_objects()) < 1000
            collected.clear()
            made = [[each] for each in range(10_000)]
            assert len(made) == 10_000
            assert not collected, "10,000 new objects begin no collection in the middle of a turn"
            await enough.wait()

    enough = asyncio.Event()
    gc.callbacks.append(note)
    try:
        event_loop.run(serve())
    finally:
        gc.callbacks.remove(note)
        gc.freeze()
    assert collected[:6] == [0, 1, 0, 1, 0, 2]
    assert gc.get_threshold() == thresholds


def test_recorder_forgets_the_turns_of_the_start() -> None:
    recorder = TurnRecorder(60.0, lambda stack: None)

    async def start() -> None:
        recorder.longest_s = recorder.longest_processor_s = 3600.0
        await forget_start()

    event_loop.run(start(), recorder)
    assert recorder.longest_s < 3600.0
    assert recorder.longest_processor_s < 3600.0


def test_loop_without_a_recorder_has_nothing_to_forget() -> None:
    event_loop.run(forget_start())
    asyncio.run(forget_start())
