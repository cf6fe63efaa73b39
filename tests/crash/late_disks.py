"""Work for several directories without threads: one after the other, and some of it late, as a seed says.

What is late is done when the bookie looks at the disk again, when it waits for it, or never: then the process was
killed before. How likely work is late may change while the bookie runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from functools import partial
from random import Random
from typing import Any, TypeVar

from bookie_service.storage.io.disk_threads import InTurn, carried_out

T = TypeVar("T")

_ENDS = 0.5
"""How likely a late disk has finished when the bookie looks at it."""


class _LateFuture(Future[Any]):
    """What waits for it finishes the work of its disk."""

    def __init__(self, finish: Callable[[], None]) -> None:
        super().__init__()
        self._end = finish

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self._end()
        return super().result(timeout)


class LateDisks(InTurn):
    """The directories take turns in being first."""

    def __init__(self, lateness: Callable[[], float], random: Random) -> None:
        """`lateness`: returns how likely a piece of work is late now."""
        self.waits = True
        self._lateness = lateness
        self._random = random
        self._late: dict[int, list[tuple[Callable[[], Any], Future[Any]]]] = {}
        self._runs = 0

    def run(self, work: Mapping[int, Callable[[], T]]) -> dict[int, Future[T]]:
        self._runs += 1
        futures: dict[int, Future[T]] = {}
        for place in sorted(work, reverse=self._runs % 2 == 0):
            if self.waits:
                self._finish(place)
            is_late = place in self._late or self._random.random() < self._lateness()
            if is_late and not self.waits:
                futures[place] = _LateFuture(partial(self._finish, place))
                self._late.setdefault(place, []).append((work[place], futures[place]))
            else:
                futures[place] = carried_out(work[place])
        return {place: futures[place] for place in work}

    def is_busy(self, place: int) -> bool:
        if place in self._late and self._random.random() < _ENDS:
            self._finish(place)
        return place in self._late

    def is_any_busy(self) -> bool:
        return bool(self._late)

    def wait_for_any(self, places: Collection[int]) -> None:
        self._finish(min(places))

    def settle(self) -> None:
        for place in sorted(self._late):
            self._finish(place)

    def stop(self) -> None:
        self.settle()

    def _finish(self, place: int) -> None:
        for task, future in self._late.pop(place, ()):
            done = carried_out(task)
            if done.exception() is None:
                future.set_result(done.result())
            else:
                future.set_exception(done.exception())
