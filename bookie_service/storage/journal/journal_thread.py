"""Group commit: makes journal records durable, in the order they were submitted.

While a sync runs, records gather in a queue; the next group is what gathered (`flush_policy`). A thread writes and
syncs the groups and reports the highest durable sequence number once per group.

A small group that meets an idle thread is written by the event loop itself, at the end of the turn in which it arrived:
with one add in flight, two changes of thread cost as much as a good disk's sync. It still takes all that came in that
turn, and what comes meanwhile waits in the sockets and is the next group. It is not done where recent syncs were slow
(`INLINE_SYNC_NS_MAX`), as the loop serves nobody else meanwhile. Where the bookie knows that nobody else adds, it does
not wait for the end of the turn either (`commit`).

Deferred records (of ledgers with relaxed durability) are written with the group they are in, which is synced only if
something else in it wants that: of a group that is not, `on_written` tells. They become durable with the next sync of
any kind, and at the latest `marker_delay_ns` later, or when `force` is called.

A failed write or sync ends it all: the error is reported, and nothing after it is ever written or counts as durable.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Protocol

from bookie_service.formats.journal import RecordKind
from bookie_service.formats.marks import JournalPosition
from bookie_service.storage.journal.flush_policy import FlushLimits, flush_reason
from bookie_service.storage.journal.journal import Journal, Record

INLINE_BYTES_MAX = 16 * 1024
"""A larger group is worth a thread: the event loop reads and parses the next adds while it is synced."""
INLINE_SYNC_NS_MAX = 4_000_000
"""Where each of the last INLINE_SYNCS syncs took longer, the event loop does not wait for the disk."""
_WAIT_NS_MIN = 200_000
"""A group never waits for company for less than this. `SimpleQueue.get` of CPython 3.11 waits without a limit when its
time is over by a microsecond at its second look at the clock."""
INLINE_SYNCS = 4
"""More than one: a thread that waited for a processor looks like a slow disk."""


class TimerHandle(Protocol):
    """Something that will be called."""

    def cancel(self) -> None: ...


class LoopTurns(Protocol):
    """What is needed of the event loop."""

    def call_soon(self, callback: Callable[[], None]) -> object:
        """Call at the end of this turn, behind the sockets that are ready now."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> TimerHandle: ...


@dataclass(frozen=True, slots=True)
class JournalEvents:
    """Who is told what, on the event loop: `post(callback, *arguments)` gets there from a thread.

    on_written: everything up to a sequence number is with the operating system, the end of it not durable yet.
    """

    on_durable: Callable[[int], None]
    on_written: Callable[[int], None]
    on_failure: Callable[[BaseException], None]
    post: Callable[..., None]


@dataclass(frozen=True, slots=True)
class _Submission:
    """Records; or a wish to have all before it durable, to know its end, or to have a durability marker written."""

    sequence: int
    records: Sequence[Record] = ()
    is_deferred: bool = False
    forces: bool = False
    mark: Future[JournalPosition] | None = None
    writes_marker: bool = False


@dataclass(slots=True)
class _Group:
    """Records to be synced together; a mark, a settling or the end of the queue closes a group."""

    records: list[Record] = field(default_factory=list)
    submissions: int = 0
    bytes: int = 0
    entries: int = 0
    sequence: int = 0
    is_deferred: bool = True
    forces: bool = False
    last: _Submission | None = None

    def add(self, submission: _Submission) -> None:
        self.records.extend(submission.records)
        self.is_deferred = self.is_deferred and (submission.is_deferred or not submission.records)
        self.forces = self.forces or submission.forces or submission.mark is not None
        self.submissions += 1
        for record in submission.records:
            self.bytes += record.body_bytes
            self.entries += record.count if record.kind == RecordKind.ENTRIES else 0
        self.sequence = submission.sequence
        self.last = submission

    @property
    def is_closed(self) -> bool:
        return self.last is None or self.last.mark is not None or self.last.writes_marker


class JournalThread:
    """Owns a `Journal` from `start` to `join`. All but `join` and `forget_before` is called by the event loop."""

    def __init__(
        self,
        journal: Journal,
        limits: FlushLimits,
        events: JournalEvents,
        turns: LoopTurns,
        name: str,
        *,
        commits_inline: bool = True,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`commits_inline` False: several journals, which sync at the same time only on threads of their own."""
        self._journal = journal
        self._clock_ns = clock_ns
        self._limits = limits
        self._events = events
        self._turns = turns
        self._commits_inline = commits_inline and limits.flush_when_idle
        self._queue: queue.SimpleQueue[_Submission | None] = queue.SimpleQueue()
        self._sequence = 0
        # What this turn of the event loop submitted and may commit itself.
        self._held: list[_Submission] = []
        self._held_bytes = 0
        # Both count submissions; equal, the thread has nothing to do.
        self._handed_over = 0
        self._carried_out = 0
        self._syncs_ns: deque[int] = deque((0,), INLINE_SYNCS)
        self._writing = threading.Lock()
        self._failure: BaseException | None = None
        self._carrying_out: _Group | None = None
        """The group that the thread has in its hands."""
        self._marker_timer: TimerHandle | None = None
        self._marker_sequence = 0
        # The last deferred submission, and up to where a sync has been asked for.
        self._deferred = 0
        self._forced = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether the thread has nothing to do: all that it was given is carried out."""
        return self._handed_over == self._carried_out

    def submit(self, records: Sequence[Record], *, deferred: bool = False) -> int:
        """Queue records and return their sequence number; durable once `on_durable` reports it or a higher one.

        `deferred` ones are not synced for their own sake: `on_written` or `on_durable` reports when they are written.
        """
        self._sequence += 1
        if deferred:
            self._deferred = self._sequence
        return self._enqueue(_Submission(self._sequence, records, is_deferred=deferred))

    def commit(self, records: list[Record]) -> int:
        """Make records durable here and now, all before them too; return their sequence number, which is not reported.

        0: nothing was done, for other records are under way or the disk is slow; submit them.

        Raises:
            OSError: it failed, and the process must end.
        """
        if self._held or not self._may_commit() or not self._writing.acquire(blocking=False):
            return 0
        try:
            self._sequence += 1
            self._carry_out(_Group(records, is_deferred=False))
        finally:
            self._writing.release()
        if self._marker_timer is None:
            self._begin_quiet()
        return self._sequence

    def force(self) -> int:
        """Have everything submitted so far made durable; return the sequence number that `on_durable` will report."""
        self._sequence += 1
        self._forced = self._sequence
        return self._enqueue(_Submission(self._sequence, forces=True))

    def _enqueue(self, submission: _Submission) -> int:
        self._held_bytes += sum([record.body_bytes for record in submission.records])
        if self._held_bytes <= INLINE_BYTES_MAX and self._may_commit():
            if not self._held:
                self._turns.call_soon(self._end_turn)
            self._held.append(submission)
        else:
            self._hand_over(submission)
        if self._marker_timer is None:
            self._begin_quiet()
        return submission.sequence

    def take_mark(self) -> Future[JournalPosition]:
        """Return a future of the position behind everything submitted so far, resolved when all that is durable.

        It gets the journal's error when that fails.
        """
        mark: Future[JournalPosition] = Future()
        self._hand_over(_Submission(self._sequence, mark=mark))
        if self._failure is not None:
            # The thread may have ended before this came.
            _fail(mark, self._failure)
        return mark

    def forget_before(self, mark: JournalPosition) -> None:
        """Let go of files wholly before a durable mark. Called by the thread that wrote the mark."""
        self._journal.forget_before(mark)

    def stop(self) -> None:
        """Take no more; what was submitted is made durable, then the journal is closed. `join` waits for that."""
        if self._marker_timer is not None:
            self._marker_timer.cancel()
        self._hand_over()
        self._queue.put(None)

    def join(self) -> None:
        """Wait until all is done that was submitted before `stop`."""
        self._thread.join()

    # ---- on the event loop ----

    def _may_commit(self) -> bool:
        return self._commits_inline and self.is_idle and min(self._syncs_ns) <= INLINE_SYNC_NS_MAX

    def _hand_over(self, *submissions: _Submission) -> None:
        """Give the thread what is held, and then these."""
        held, self._held, self._held_bytes = self._held, [], 0
        for submission in (*held, *submissions):
            self._handed_over += 1
            self._queue.put(submission)

    def _end_turn(self) -> None:
        """Commit what is held, or leave it to the thread if that is at work after all."""
        if not self._held:
            return
        if not (self._may_commit() and self._writing.acquire(blocking=False)):
            self._hand_over()
            return
        held, self._held, self._held_bytes = self._held, [], 0
        group = _Group()
        for submission in held:
            group.add(submission)
        try:
            is_durable = self._carry_out(group)
        except BaseException as error:
            self._events.on_failure(error)
            return
        finally:
            self._writing.release()
        (self._events.on_durable if is_durable else self._events.on_written)(group.sequence)

    def _begin_quiet(self) -> None:
        self._marker_sequence = self._sequence
        self._marker_timer = self._turns.call_later(self._limits.marker_delay_ns / 1e9, self._end_quiet)

    def _end_quiet(self) -> None:
        """Have a durability marker written if nothing came meanwhile, or in any case where groups are not synced.

        If something came, what is deferred is at least made durable.
        """
        self._marker_timer = None
        if self._marker_sequence == self._sequence or not self._journal.syncs_groups:
            self._forced = self._sequence
            self._hand_over(_Submission(self._sequence, writes_marker=True))
            return
        if self._deferred > self._forced:
            self._forced = self._sequence
            self._hand_over(_Submission(self._sequence, forces=True))
        self._begin_quiet()

    # ---- on the thread, and a group that the event loop commits itself ----

    def _carry_out(self, group: _Group) -> bool:
        """Write a group and do what its last submission wants; return whether all so far counts as durable.

        Called with `_writing` held.
        """
        if self._failure is not None:
            raise self._failure
        try:
            if group.records:
                began = self._clock_ns()
                self._journal.append(group.records, deferred=group.is_deferred)
                if not group.is_deferred:
                    self._syncs_ns.append(self._clock_ns() - began)
            if group.forces:
                self._journal.sync()
            last = group.last
            if last is not None and last.mark is not None:
                last.mark.set_result(self._journal.end)
            if last is not None and last.writes_marker:
                self._journal.write_durability_marker()
        except BaseException as error:
            self._failure = error
            raise
        return group.forces or not group.is_deferred or (last is not None and last.writes_marker)

    def _run(self) -> None:
        while self.run_group():
            pass

    def run_group(self) -> bool:
        """Wait for the next group, carry it out and report it; return False after the last one, or a failure.

        This is all that the thread does. A simulation calls it instead of `start`.
        """
        try:
            # The records hold views of the write cache. They go with this frame, so none is kept while waiting.
            group = self._gather()
            with self._writing:
                self._carrying_out = group
                is_durable = self._carry_out(group)
                self._carrying_out = None
                self._carried_out += group.submissions
            if group.submissions:
                report = self._events.on_durable if is_durable else self._events.on_written
                self._events.post(report, group.sequence)
            if group.last is None:
                self._journal.close()
                return False
        except BaseException as error:
            self._failure = self._failure or error
            self._fail_marks(self._failure)
            self._events.post(self._events.on_failure, error)
            return False
        return True

    def _fail_marks(self, error: BaseException) -> None:
        """Tell everybody who waits for a mark that there will be none."""
        waiting: list[_Submission | None] = [self._carrying_out.last] if self._carrying_out is not None else []
        with contextlib.suppress(queue.Empty):
            while True:
                waiting.append(self._queue.get_nowait())
        for submission in waiting:
            if submission is not None and submission.mark is not None:
                _fail(submission.mark, error)

    def _gather(self) -> _Group:
        """Return the next group; its `last` is None when it is the last one."""
        group = _Group()
        submission = self._queue.get()
        began = self._clock_ns()
        while submission is not None:
            group.add(submission)
            if group.is_closed:
                return group
            age = self._clock_ns() - began
            if flush_reason(self._limits, group.bytes, group.entries, age, self._queue.empty()):
                return group
            left_ns = self._limits.age_ns_max - age
            try:
                submission = self._queue.get(left_ns > _WAIT_NS_MIN, max(0, left_ns) / 1e9)
            except queue.Empty:
                return group
        group.last = None
        return group


def _fail(mark: Future[JournalPosition], error: BaseException) -> None:
    with contextlib.suppress(InvalidStateError):  # it is resolved, or was failed by the other thread
        mark.set_exception(error)
