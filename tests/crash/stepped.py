"""A bookie's event loop and threads without threads: the caller takes every step, so each schedule can be had again.

The journal's thread is the real `JournalThread`, whose thread is never started: `run_group` is what it would do next,
and what it posts to the event loop waits there for a turn. `Checkpoints` makes the same calls as `CheckpointThread`.

Two threads do something at the same time when the hook of the simulated disk, which runs between two operations of the
one, takes a step of the other. A busy actor is marked, because it cannot begin something else meanwhile.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from bookie_service.engine.bookie import Bookie
from bookie_service.storage.io.files import is_out_of_space
from bookie_service.storage.journal import checkpoint as checkpoint_steps
from bookie_service.storage.journal.checkpoint import Checkpoint, JournalFailed, Marks
from bookie_service.storage.journal.flush_policy import FlushLimits
from bookie_service.storage.journal.journal import Journal
from bookie_service.storage.journal.journal_thread import JournalEvents, JournalThread
from bookie_service.storage.ledgers.interface import LedgerStorage

_PATIENCE_S = FlushLimits().patience_ns / 1e9
"""How long patient records of a journal wait for others."""


class _Timer:
    """A callback that time will call after `delay` seconds, unless it is cancelled."""

    def __init__(self, delay: float, callback: Callable[[], None]) -> None:
        self.delay = delay
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Loop:
    """An event loop whose turns end, and whose timers ring, when the caller says so.

    `failure` is why the process ends: a loop that has one serves no request any more.
    """

    def __init__(self) -> None:
        self._ready: deque[Callable[[], None]] = deque()
        self._timers: list[_Timer] = []
        self.is_busy = False
        """It is in the middle of a request or a callback."""
        self.failure: BaseException | None = None

    @property
    def is_idle(self) -> bool:
        return not self._ready

    @property
    def can_serve(self) -> bool:
        return not self.is_busy and self.failure is None

    @property
    def has_timers(self) -> bool:
        return any(timer.callback is not None for timer in self._timers)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._ready.append(callback)

    def call_later(self, delay: float, callback: Callable[[], None]) -> _Timer:
        self._timers.append(_Timer(delay, callback))
        return self._timers[-1]

    @property
    def has_patience(self) -> bool:
        """Whether a timer is set for as long as patient records of a journal wait, or for less."""
        return any(timer.callback is not None and timer.delay <= _PATIENCE_S for timer in self._timers)

    def post(self, callback: Callable[..., None], *arguments: object) -> None:
        """Call back in the next turn, from a thread. The harness itself raised what is not an error of the disk."""
        for argument in arguments:
            if isinstance(argument, BaseException) and not isinstance(argument, OSError):
                raise argument
        self._ready.append(lambda: callback(*arguments))

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Be busy. Raises what ended the process before."""
        if self.failure is not None:
            raise self.failure
        assert not self.is_busy, "an event loop does one thing at a time"
        self.is_busy = True
        try:
            yield
        finally:
            self.is_busy = False

    def turn(self) -> None:
        """Do what is ready now. Raises what ends the process."""
        with self.serving():
            for _ in range(len(self._ready)):
                self._ready.popleft()()

    def pass_time(self, seconds: float = math.inf) -> None:
        """Let every timer ring that is set now, or those that are set for at most this long."""
        timers = [timer for timer in self._timers if timer.delay <= seconds]
        self._timers = [timer for timer in self._timers if timer.delay > seconds]
        with self.serving():
            for timer in timers:
                if timer.callback is not None:
                    timer.callback()

    def fail(self, error: BaseException) -> None:
        """End the process, as `BookieService` does with the first failure it hears of."""
        self.failure = self.failure or error
        raise error


class SteppedJournal:
    """The real `JournalThread` (`thread`) of one journal, and its part of the event loop."""

    def __init__(
        self,
        journal: Journal,
        index: int,
        loop: Loop,
        limits: FlushLimits,
        clock_ns: Callable[[], int],
        *,
        commits_inline: bool,
    ) -> None:
        self._index = index
        self._loop = loop
        self.bookie: Bookie
        self.is_writing = False
        """Its thread is in the middle of a group."""
        self.has_ended = False
        events = JournalEvents(self._on_durable, self._on_written, loop.fail, loop.post)
        self.thread = JournalThread(
            journal, limits, events, loop, f"journal-{index}", commits_inline=commits_inline, clock_ns=clock_ns
        )

    def _on_durable(self, sequence: int) -> None:
        self.bookie.on_durable(self._index, sequence)

    def _on_written(self, sequence: int) -> None:
        self.bookie.on_written(self._index, sequence)

    @property
    def is_idle(self) -> bool:
        """Whether nothing was submitted that is not answered for."""
        return self._loop.is_idle and (self.has_ended or (self.thread.is_idle and not self._loop.has_patience))

    @property
    def can_run(self) -> bool:
        """Whether its thread has something to do, is not at it, and need not wait for a commit of the event loop."""
        is_waiting = self.thread._writing.locked()
        return not (self.thread.is_idle or self.is_writing or is_waiting or self.has_ended)

    def run_group(self) -> None:
        """Do what its thread does next; the event loop hears of it in its next turn."""
        self.is_writing = True
        try:
            self.has_ended = not self.thread.run_group()
        finally:
            self.is_writing = False

    def step(self) -> None:
        """End the turn of the event loop, write one group if there is any, and report it. Raises as `Loop.turn`."""
        self._loop.turn()
        if not self.can_run and self._loop.has_patience:
            self._loop.pass_time(_PATIENCE_S)
        if self.can_run:
            self.run_group()
        self._loop.turn()

    def settle(self) -> None:
        """Finish what was submitted; then nothing comes for a while."""
        while not self.is_idle:
            self.step()
        while self._loop.has_timers:
            self._loop.pass_time()
            while not self.is_idle:
                self.step()

    def close(self) -> None:
        """Stop as the service does. Raises as `Loop.turn`."""
        self.thread.stop()
        while not self.has_ended:
            self.run_group()
        self._loop.turn()


class Checkpoints:
    """Stands in for `CheckpointThread`."""

    def __init__(self, store: LedgerStorage, marks: Marks, journals: Sequence[SteppedJournal], loop: Loop) -> None:
        self._store = store
        self._marks = marks
        self._journals = journals
        self._loop = loop
        self._queue: deque[Checkpoint] = deque()
        self._is_at_work = False
        self.has_stalled = False
        """Whether a disk was late in the last one that was to advance the marks, so that it did not."""
        self.bookie: Bookie

    @property
    def is_idle(self) -> bool:
        return not self._queue

    @property
    def can_run(self) -> bool:
        """Whether there is one that can be carried out without waiting for another thread."""
        if self._is_at_work or not self._queue:
            return False
        is_locked = self._store.writing.locked() or self._store.logs.is_creating
        return not is_locked and all(mark.done() for mark in self._queue[0].marks)

    def submit(self, checkpoint: Checkpoint) -> None:
        self._queue.append(checkpoint)

    def run(self) -> bool:
        """Carry one checkpoint out, whose marks are taken; the event loop hears of it in its next turn.

        Returns:
            False when there is no space: it stays, to be tried again.
        """
        checkpoint = self._queue[0]
        journals = [journal.thread for journal in self._journals]
        self._is_at_work = True
        advances = checkpoint.flush.advances_checkpoint
        try:
            checkpoint_steps.carry_out(checkpoint, self._store, self._marks, journals)
            if advances:
                self.has_stalled = not checkpoint.flush.advances_checkpoint
        except JournalFailed as failed:
            self._loop.post(self._loop.fail, failed.error)
        except OSError as error:
            if is_out_of_space(error):
                self._loop.post(self.bookie.on_checkpoint_stuck)
                return False
            self._loop.post(self._loop.fail, error)
        else:
            self._loop.post(self.bookie.on_checkpoint_done, checkpoint)
        finally:
            self._is_at_work = False
        self._queue.popleft()
        return True

    def step(self) -> bool:
        """Have the journals take the marks, `run`, and let the event loop hear of it. Raises as `Loop.turn`."""
        for journal, mark in zip(self._journals, self._queue[0].marks):
            while not mark.done():
                journal.step()
        is_done = self.run()
        self._loop.turn()
        return is_done
