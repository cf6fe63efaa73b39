"""Ledger directories whose disks are late."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from bookie_service.storage.io.disk_threads import InTurn, carried_out

T = TypeVar("T")


class LateInTurn(InTurn):
    """Directories in `late` do their work when `finish` is called."""

    def __init__(self) -> None:
        self.late: set[int] = set()
        self._waiting: list[tuple[Callable[[], Any], Future[Any]]] = []

    def run(self, work: Mapping[int, Callable[[], T]]) -> dict[int, Future[T]]:
        futures = {}
        for place, task in work.items():
            if place in self.late:
                futures[place] = Future[T]()
                self._waiting.append((task, futures[place]))
            else:
                futures[place] = carried_out(task)
        return futures

    def finish(self) -> None:
        """Do what is late; nothing is late any more."""
        self.late.clear()
        for task, future in self._waiting:
            try:
                future.set_result(task())
            except OSError as error:
                future.set_exception(error)
        self._waiting.clear()
