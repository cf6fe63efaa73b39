"""Turns: how much one connection may do before others get the event loop, and who goes on afterwards.

A connection that receives requests begins a turn. The turn is over after so many requests, or after so much time. What
is left waits in a queue, from which little is taken per turn of the event loop; in between, sockets that became ready
are served. So a client that sends one request waits for little more than one turn of the queue, however much other
clients have sent. Where very many sockets become ready at once, those that come late in a turn of the event loop wait
in the queue as well (`is_crowded`).

A run of requests that is served as arrays counts as one request: it costs little more.

Short turns cost: each ends with a send of its own. A connection that has the bookie to itself gets long ones, until
another connection sends something.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """How much one turn may do: requests, or runs of them, and seconds.

    alone_requests, alone_seconds: the same of a connection while no other one has sent anything for `shared_seconds`.
    queue_seconds: after so much of a turn of the event loop no further turn of the queue is begun in it.
    crowded_seconds: after so much of it, sockets that are ready wait for a turn of the queue.
    """

    requests: int = 64
    seconds: float = 0.0005
    alone_requests: int = 1024
    alone_seconds: float = 0.004
    shared_seconds: float = 1.0
    queue_seconds: float = 0.0005
    crowded_seconds: float = 0.001


class Turn:
    """What may still be done in a turn."""

    __slots__ = ("_clock", "_end", "_requests")

    def __init__(self, clock: Callable[[], float], requests: int, end: float) -> None:
        """`clock` returns seconds; the turn is over at `end`."""
        self._clock = clock
        self._end = end
        self._requests: float = requests

    def spend(self, requests: float = 1) -> None:
        """Count requests that were served."""
        self._requests -= requests

    @property
    def is_over(self) -> bool:
        """True when others must come first."""
        return self._requests <= 0 or self._clock() >= self._end


class EndlessTurn(Turn):
    """A turn that is never over, for a bookie that serves nobody else."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(lambda: 0.0, 1, 1.0)

    def spend(self, requests: float = 1) -> None:
        """There is no limit to count against."""


ENDLESS = EndlessTurn()

GoOn = Callable[[Turn], None]


class Turns:
    """The queue of those whose turn was over before they were done. For one event loop."""

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float],
        limits: TurnLimits | None = None,
        loop_turn_began: Callable[[], float] | None = None,
    ) -> None:
        """`call_soon(callback)` calls back in the next turn of the event loop; `clock` returns seconds.

        `loop_turn_began()` tells when the present turn of the event loop began; without it no turn is crowded.
        """
        self._call_soon = call_soon
        self._clock = clock
        self._loop_turn_began = loop_turn_began or clock
        self._limits = limits or TurnLimits()
        self._waiting: OrderedDict[Hashable, deque[GoOn]] = OrderedDict()
        self._is_called = False
        self.latest: Hashable = None
        """The owner that was served last."""
        self._shared_until = 0.0

    def begin(self, owner: Hashable) -> Turn:
        """Return a new turn of an owner."""
        now, limits = self._clock(), self._limits
        if owner is not self.latest:
            self._share(owner, now)
        if now < self._shared_until:
            return Turn(self._clock, limits.requests, now + limits.seconds)
        return Turn(self._clock, limits.alone_requests, now + limits.alone_seconds)

    def note(self, owner: Hashable) -> None:
        """Note that an owner is served without a turn, if it is not the `latest`."""
        self._share(owner, self._clock())

    def _share(self, owner: Hashable, now: float) -> None:
        self.latest = owner
        self._shared_until = now + self._limits.shared_seconds

    @property
    def is_crowded(self) -> bool:
        """True when the present turn of the event loop has taken long: what comes now should wait in the queue."""
        return self._clock() - self._loop_turn_began() > self._limits.crowded_seconds

    def go_on(self, owner: Hashable, callback: GoOn) -> None:
        """Have `callback(turn)` called behind the others that wait. Owners take turns, whatever each of them queues."""
        self._waiting.setdefault(owner, deque()).append(callback)
        self._call()

    def _call(self) -> None:
        if not self._is_called:
            self._is_called = True
            self._call_soon(self._run)

    def _run(self) -> None:
        """Call back those that wait for longest, one of each owner: until little time has passed, one at least."""
        self._is_called = False
        end = self._clock() + self._limits.queue_seconds
        for _ in range(len(self._waiting)):
            owner, callbacks = self._waiting.popitem(last=False)
            callback = callbacks.popleft()
            if callbacks:
                self._waiting[owner] = callbacks
            if self._waiting:
                # Before the callback: it may raise.
                self._call()
            callback(self.begin(owner))
            if self._clock() >= end:
                break
