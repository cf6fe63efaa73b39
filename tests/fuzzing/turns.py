"""Measures how long an event loop does nothing else: the turns that took long, and what they ran.

A turn is what happens between two waits of the loop. From its length is taken what the thread waited for a processor
that others had, so that a busy machine does not look like a stall. Waiting for a disk or a lock counts, also for the
interpreter's, whose holder may itself wait for a processor: the turn's own processor time tells such a turn from work.
"""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SLOW_S = 0.02
"""Shorter turns are only counted."""


@dataclass(frozen=True)
class SlowTurn:
    """One turn that took long; `ran` is the callback in it that took longest.

    processor_seconds: what the loop's thread computed in it.
    """

    seconds: float
    waited_for_cpu: float
    ran: str
    ran_seconds: float
    processor_seconds: float


class TurnRecorder:
    """Records turns of the event loop that runs in this thread, from now on; slow ones go to a file, a line each."""

    def __init__(self, path: Path | None = None) -> None:
        self.turns = 0
        self.slow: list[SlowTurn] = []
        self._file = path.open("a", buffering=1) if path is not None else None
        self._thread = threading.get_ident()
        self._schedule = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self._began, self._processor_began = time.perf_counter(), time.thread_time()
        self._delay = self._run_delay()
        self._longest = (0.0, "")
        self._undo: list[Callable[[], None]] = []
        self._patch(selectors.DefaultSelector, "select", self._around_select)
        self._patch(asyncio.events.Handle, "_run", self._around_run)

    def stop(self) -> None:
        """Record no more."""
        for undo in self._undo:
            undo()
        os.close(self._schedule)
        if self._file is not None:
            self._file.close()

    def _patch(self, owner: Any, name: str, around: Callable[[Any], Any]) -> None:
        old = vars(owner)[name]
        setattr(owner, name, around(old))
        self._undo.append(lambda: setattr(owner, name, old))

    def _around_select(self, select: Any) -> Any:
        def timed(selector: Any, timeout: float | None = None) -> Any:
            if threading.get_ident() != self._thread:
                return select(selector, timeout)
            self._end_turn()
            try:
                return select(selector, timeout)
            finally:
                self._delay = self._run_delay()
                self._longest = (0.0, "")
                self._began, self._processor_began = time.perf_counter(), time.thread_time()

        return timed

    def _around_run(self, run: Any) -> Any:
        def timed(handle: Any) -> None:
            began = time.perf_counter()
            run(handle)
            took = time.perf_counter() - began
            if took > self._longest[0] and threading.get_ident() == self._thread:
                self._longest = (took, _name_of(handle) if took > SLOW_S else "")

        return timed

    def _end_turn(self) -> None:
        took = time.perf_counter() - self._began
        self.turns += 1
        if took > SLOW_S:
            waited = min(took, self._run_delay() - self._delay)
            if took - waited > SLOW_S:
                ran, ran_s = self._longest[1], self._longest[0]
                computed = time.thread_time() - self._processor_began
                turn = SlowTurn(round(took - waited, 4), round(waited, 4), ran, round(ran_s, 4), round(computed, 4))
                self.slow.append(turn)
                if self._file is not None:
                    self._file.write(json.dumps(asdict(turn)) + "\n")

    def _run_delay(self) -> float:
        return int(os.pread(self._schedule, 100, 0).split()[1]) / 1e9


def _name_of(handle: Any) -> str:
    """Return what a handle calls, and with what. Not by `repr`: that of 5 MiB of bytes takes 60 ms, in the turn."""
    called = [handle._callback, *(handle._args or ())]
    return " ".join(getattr(each, "__qualname__", type(each).__name__) for each in called)


def read_turns(path: Path) -> list[SlowTurn]:
    """Return the slow turns in a file."""
    return [SlowTurn(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
