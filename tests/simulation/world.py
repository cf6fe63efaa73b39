"""Virtual time: one heap of events, nodes that pause and crash, tasks that run coroutines of the product.

Everything random is drawn from `dice`: a table of numbers made once, read from a place that the seed, the link and the
number of the message on it name. So taking one event out of a schedule leaves the luck of all others as it was, which
is what shrinking needs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

MILLISECOND = 1_000_000
SECOND = 1_000 * MILLISECOND

_TABLE_SIZE = 1 << 16
_RANDOM = Random(20_261_121)
UNIFORM = [_RANDOM.random() for _ in range(_TABLE_SIZE)]
EXPONENTIAL = [-math.log(1.0 - number) for number in UNIFORM]
"""Exponentially distributed with mean 1."""


def place(salt: int, number: int) -> int:
    """Return the index in the tables for event `number` of a source with this salt."""
    return (salt * 40_503 + number * 30_011 + (salt >> 16)) & (_TABLE_SIZE - 1)


class Node:
    """A process: events meant for it wait while it is paused, and are gone when it dies."""

    __slots__ = ("clock_ahead", "deaths", "is_up", "life", "name", "paused_until")

    def __init__(self, name: str) -> None:
        self.name = name
        self.life = 0
        self.is_up = True
        self.paused_until = 0
        self.clock_ahead = 0
        # When each life ended: what was to be sent later than that was never sent.
        self.deaths: dict[int, int] = {}


class World:
    """The heap of events. `trace`, when set, gets a line per event: what determinism is checked by."""

    def __init__(self) -> None:
        self.now = 0
        self.events = 0
        self.trace: list[tuple[int, str, str]] | None = None
        self._heap: list[tuple[int, int, Node | None, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, when: int, node: Node | None, action: Callable[..., None], *arguments: Any) -> None:
        """Call `action(*arguments)` at a time, if `node` still lives then, and once it is not paused."""
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, node, node.life if node else 0, action, arguments))

    def run(self, until: int, is_over: Callable[[], bool] | None = None) -> None:
        """Run events up to a time, or until `is_over()` holds after one of them."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            when, _, node, life, action, arguments = heapq.heappop(heap)
            self.now = when
            if node is not None:
                if node.life != life:
                    continue
                if when < node.paused_until:
                    self._count += 1
                    heapq.heappush(heap, (node.paused_until, self._count, node, life, action, arguments))
                    continue
            self.events += 1
            if self.trace is not None:
                self.trace.append((when, node.name if node else "", action.__qualname__))
            action(*arguments)
            if is_over is not None and is_over():
                return
        self.now = max(self.now, until)

    def kill(self, node: Node) -> None:
        """End a node's life: nothing that was scheduled for it happens."""
        node.deaths[node.life] = self.now
        node.life += 1
        node.is_up = False

    def clock(self, node: Node) -> int:
        """Return what the node's monotonic clock shows, which a suspended machine may have made jump."""
        return self.now + node.clock_ahead


class Pause:
    """What a coroutine awaits: `begin(resume)` is called, and `resume(value, error)` lets it go on."""

    __slots__ = ("_begin",)

    def __init__(self, begin: Callable[[Callable[[Any, Exception | None], None]], None]) -> None:
        self._begin = begin

    def __await__(self) -> Any:
        return (yield self._begin)


def start_task(work: Coroutine[Any, Any, Any], done: Callable[[Any], None]) -> None:
    """Run a coroutine that awaits only `Pause`s; `done(result)` is called at its end."""

    def step(value: Any = None, error: Exception | None = None) -> None:
        try:
            begin = work.send(value) if error is None else work.throw(error)
        except StopIteration as stop:
            done(stop.value)
            return
        begin(step)

    step()


def run_now(work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the coroutine waited")
