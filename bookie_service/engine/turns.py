"""Turns: how much one connection may do before others get the event loop, and which connection continues afterwards.

A connection that receives requests begins a turn. The turn ends after a number of requests, or after some time. The
remaining requests wait in a queue. Each turn of the event loop serves the sockets that are ready, and then a part of
the queue. So a client that sends one request waits for little more than one turn of the queue, however much other
clients have sent. If very many sockets become ready at once, the last ones in a turn of the event loop also wait in the
queue. While a client is served as its requests come, new connections and connections whose readings need whole turns
wait in the queue, too (`must_queue`): otherwise each of them would have a turn before the loop polls again.

A run of requests that is served as arrays counts as one request, because it costs little more.

Work for peers that are not known yet has a queue of its own, by address: the first requests of new connections, and
steps of handshakes and logins. Each turn of the event loop takes one step from it, after the other queue. Accepting a
connection, and closing one that makes room for others or whose time is over (`close`), are also steps of this queue
while a client is served as its requests come. Closings come first. So none of them makes a turn long. If many
connections end soon after they began, or any is closed in this way, there is also a pause after each step: otherwise a
flood keeps the bookie busy, and the process of each client waits for a processor. So thousands of new connections do
not delay a known client.

Short turns cost throughput, because each ends with its own send. So turns are long unless another connection is served
as its requests come: only such a client notices the length of others' turns.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

from bkspark.options import COUNT_MAX, YEARS_S, bounded, check

_LONG_FRAMES = 8192


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """Limits of one turn: requests, or runs of them; seconds; and frames of one run.

    long_requests, long_seconds, long_frames: the limits while no other connection has been served as its requests came
        (`Turns.note`) for `shared_seconds`.
    queue_seconds: for how long a turn of the event loop begins callbacks of the queue.
    crowded_seconds: sockets that become ready later than this in a turn of the event loop wait in the queue.
    newcomers_share: the part of the time that steps for unknown peers may take. It applies while a client is served as
        its requests come, if a closing was queued (`Turns.close`) in the last `shared_seconds`, or many connections
        were short.
    short_lived_max: how many connections may last no longer than `shared_seconds` and end within such a time before
        steps have this share. The steps of so few take a few percent of the time, so commands and probes do not delay
        newcomers.
    """

    requests: int = bounded(64, 1, COUNT_MAX)
    seconds: float = bounded(0.0002, 0.0, YEARS_S, "seconds")
    frames: int = bounded(512, 1, COUNT_MAX)
    long_requests: int = bounded(1024, 1, COUNT_MAX)
    long_seconds: float = bounded(0.004, 0.0, YEARS_S, "seconds")
    long_frames: int = bounded(_LONG_FRAMES, 1, COUNT_MAX)
    shared_seconds: float = bounded(2.0, 0.0, YEARS_S, "seconds")
    queue_seconds: float = bounded(0.0002, 0.0, YEARS_S, "seconds")
    crowded_seconds: float = bounded(0.001, 0.0, YEARS_S, "seconds")
    newcomers_share: float = bounded(0.5, 0.001, 1.0)
    short_lived_max: int = bounded(100, 0, COUNT_MAX)

    def __post_init__(self) -> None:
        check(self)


class Turn:
    """What may still be done in one turn."""

    __slots__ = ("_clock", "_end", "_requests", "frames")

    def __init__(self, clock: Callable[[], float], requests: int, end: float, frames: int = _LONG_FRAMES) -> None:
        """`clock` returns seconds, and the turn ends at `end` on it. `frames`: how many frames one run may have."""
        self.frames = frames
        self._clock = clock
        self._end = end
        self._requests: float = requests
        """How many requests may still be served; below 0 after a costly one. Lowered by `spend`."""

    def spend(self, requests: float = 1) -> None:
        """Count requests, or the cost of some work in requests."""
        self._requests -= requests

    @property
    def is_over(self) -> bool:
        """True when other connections must come first."""
        return self._requests <= 0 or self._clock() >= self._end


class EndlessTurn(Turn):
    """A turn that never ends, for a bookie that serves no other client."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(lambda: 0.0, 1, 1.0)

    def spend(self, requests: float = 1) -> None:
        """Does nothing: there is no limit."""


ENDLESS = EndlessTurn()

GoOn = Callable[[Turn], None]
Accept = Callable[[Turn], bool]
"""Accepts connections; returns whether more may wait."""


class Turns:
    """The queue of connections whose turn ended before they were done. For one event loop."""

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], object],
        clock: Callable[[], float],
        limits: TurnLimits | None = None,
        loop_turn_began: Callable[[], float] | None = None,
    ) -> None:
        """`call_later(seconds, callback)` calls back after this time, in another turn of the event loop, and after the
        sockets that are ready then.

        `clock` returns seconds.
        `loop_turn_began()` returns when the current turn of the event loop began; without it no turn is crowded.
        """
        self._call_later = call_later
        self.clock = clock
        """Returns seconds. Other parts that depend on time in this event loop use it, too."""
        self._loop_turn_began = loop_turn_began or clock
        self._limits = limits or TurnLimits()
        self._waiting: OrderedDict[Hashable, deque[GoOn]] = OrderedDict()
        """What each known connection continues with. Owners are in the order of their turns."""
        self._newcomers: OrderedDict[Hashable, deque[GoOn]] = OrderedDict()
        """The same for peers that are not known yet, by their address."""
        self._is_called = False
        """Whether `_run` is planned."""
        self._accept: Accept | None = None
        """Accepts a connection; None: none is known to wait. Set by `accept`, cleared when it has found none."""
        self._has_accepted = False
        """Whether a connection was accepted since a newcomer had a step."""
        self._leaving: deque[Callable[[], None]] = deque()
        """Closes connections that make room for others, or whose time is over."""
        self._steps_from = 0.0
        """From when on a newcomer's step may be taken while steps have a share of the time."""
        self._crowded_until = 0.0
        """Until when steps have a share of the time, if a client is served as its requests come."""
        self._short_lived = 0
        """Short connections that ended since the present count began; the count ends at `_count_until`."""
        self._count_until = 0.0
        """When the count of short connections begins again."""
        self._is_step_planned = False
        """Whether a newcomer's step is planned, or is being taken."""
        self._step_began = 0.0
        """When the last newcomer's step began."""
        self._is_step_extended = False
        """Whether a thread goes on with that step, and tells its end. Set by `extend_step`."""
        self._prompt: Hashable = None
        """The owner that `note` named last."""
        self._prompt_until = self._prompts_until = 0.0
        """Until when turns are short: those of owners other than `_prompt`, and those of `_prompt` itself."""

    def begin(self, owner: Hashable) -> Turn:
        """Return a new turn of an owner."""
        now, limits = self.clock(), self._limits
        if self._is_shared(owner, now):
            return Turn(self.clock, limits.requests, now + limits.seconds, limits.frames)
        return Turn(self.clock, limits.long_requests, now + limits.long_seconds, limits.long_frames)

    def accept(self, owner: Hashable, callback: Accept, wait: Callable[[], None]) -> None:
        """Call `callback(turn)`, which accepts connections.

        While another owner is served as its requests come, `wait()` is called first, and one connection is accepted
        at a time later, in alternation with newcomers' steps, until the callback returns False. Call again then.
        """
        now, limits = self.clock(), self._limits
        if self._is_shared(owner, now):
            wait()
            self._accept = callback
            self._call_for_step()
        else:
            callback(Turn(self.clock, limits.long_requests, now + limits.long_seconds))

    def close(self, owner: Hashable, callback: Callable[[], None]) -> None:
        """Call back, to close a connection that makes room, or whose time is over: at once, or in a step of its own.

        It waits for a step while another owner is served as its requests come. For `shared_seconds` from then on, steps
        have only their share of the time. Call once for each connection: each call takes a step.
        """
        now = self.clock()
        if self._is_shared(owner, now):
            self._leaving.append(callback)
            self._crowded_until = now + self._limits.shared_seconds
            self._call_for_step()
        else:
            callback()

    def note_end(self, age_s: float) -> None:
        """Note that a connection has ended which was so old: where many come and go, their steps need pauses."""
        limits = self._limits
        if age_s > limits.shared_seconds:
            return
        now = self.clock()
        if now >= self._count_until:
            self._short_lived, self._count_until = 0, now + limits.shared_seconds
        self._short_lived += 1
        if self._short_lived > limits.short_lived_max:
            self._crowded_until = now + limits.shared_seconds

    def note(self, owner: Hashable) -> None:
        """Note that an owner was served as its requests came: it has nothing in the queue."""
        now = self.clock()
        if owner is not self._prompt:
            self._prompts_until, self._prompt = self._prompt_until, owner
        self._prompt_until = now + self._limits.shared_seconds

    def must_queue(self, owner: Hashable, *, is_demanding: bool) -> bool:
        """Return whether an owner's new requests should wait in the queue.

        They should when the present turn of the event loop has taken long. Those of a demanding owner also should when
        turns are short.
        """
        now = self.clock()
        if now - self._loop_turn_began() > self._limits.crowded_seconds:
            return True
        return is_demanding and self._is_shared(owner, now)

    def _is_shared(self, owner: Hashable, now: float) -> bool:
        """Return whether another owner is served as its requests come."""
        return now < (self._prompts_until if owner is self._prompt else self._prompt_until)

    def go_on(self, owner: Hashable, callback: GoOn) -> None:
        """Queue `callback(turn)`. Owners take turns, so an owner that queues much does not delay others."""
        self._waiting.setdefault(owner, deque()).append(callback)
        self._call()

    def go_on_with_newcomer(self, address: Hashable, callback: GoOn) -> None:
        """Queue `callback(turn)`, a step for a peer that is not known yet.

        Addresses take turns, and each turn of the event loop takes one step.
        """
        self._newcomers.setdefault(address, deque()).append(callback)
        self._call_for_step()

    def _call(self) -> None:
        if not self._is_called:
            self._is_called = True
            self._call_later(0, self._run)

    def _call_for_step(self) -> None:
        if not self._is_step_planned:
            self._is_step_planned = True
            self._call_later(max(0.0, self._pause_s()), self._take_a_step)

    def _pause_s(self) -> float:
        """Return how long newcomers must wait for their next step, 0 or less: not at all."""
        now = self.clock()
        return self._steps_from - now if now < min(self._prompt_until, self._crowded_until) else 0.0

    def _run(self) -> None:
        """Call the oldest callback of each owner, for a limited time but at least one."""
        self._is_called = False
        end = self.clock() + self._limits.queue_seconds
        for _ in range(len(self._waiting)):
            callback, owner = self._first(self._waiting)
            if self._waiting:
                # Planned before the callback, because the callback may raise.
                self._call()
            callback(self.begin(owner))
            if self.clock() >= end:
                break

    def extend_step(self) -> Callable[[], None]:
        """Let the present step of a newcomer last until the returned function is called: a thread goes on with it."""
        self._is_step_extended = True
        return self._end_step

    def _take_a_step(self) -> None:
        """Do one thing for peers that are not known yet."""
        self._step_began, self._is_step_extended = self.clock(), False
        try:
            self._next_step()()
        finally:
            if not self._is_step_extended:
                self._end_step()

    def _end_step(self) -> None:
        began = self._step_began
        self._steps_from = began + (self.clock() - began) / self._limits.newcomers_share
        self._is_step_planned = False
        if self._leaving or self._newcomers or self._accept is not None:
            self._call_for_step()

    def _next_step(self) -> Callable[[], None]:
        if self._leaving:
            return self._leaving.popleft()
        if self._accept is not None and not (self._newcomers and self._has_accepted):
            self._has_accepted = True
            return partial(self._accept_some, self._accept)
        self._has_accepted = False
        callback, owner = self._first(self._newcomers)
        return lambda: callback(self.begin(owner))

    def _accept_some(self, accept: Accept) -> None:
        """Accept one connection, or many where no client is served as its requests come."""
        now, limits = self.clock(), self._limits
        requests = 1 if now < self._prompt_until else limits.long_requests
        # After an error it is tried again.
        if not accept(Turn(self.clock, requests, now + limits.seconds)):
            self._accept = None

    def _first(self, queue: OrderedDict[Hashable, deque[GoOn]]) -> tuple[GoOn, Hashable]:
        """Take the oldest callback of the owner whose turn it is."""
        owner, callbacks = queue.popitem(last=False)
        callback = callbacks.popleft()
        if callbacks:
            queue[owner] = callbacks
        return callback, owner
