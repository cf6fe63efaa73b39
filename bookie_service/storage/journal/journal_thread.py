"""Group commit: makes journal records durable, in the order they were submitted.

While a sync runs, records gather in a queue and become the next group (`flush_policy`). A thread writes and syncs the
groups and reports the highest durable sequence number once per group.

If the thread is idle, the event loop itself writes a small group, at the end of the turn in which it arrived: with one
add in flight, two thread switches cost as much as a sync of a good disk. The group still contains everything that
arrived in that turn; later requests wait in the sockets and form the next group. The loop leaves this to the thread if
recent syncs were slow (`INLINE_SYNC_NS_MAX`), because it serves no other client meanwhile. If the bookie knows that no
other client adds, it does not wait for the end of the turn (`commit`).

Patient records wait on the event loop for an ordinary record, whose sync they share. If none comes in
`FlushLimits.patience_ns`, they go to the thread.

Deferred records (of ledgers with relaxed durability) are written with their group. The group is synced only if another
record in it requires that; otherwise `on_written` reports it. Deferred records become durable with the next sync of any
kind, at the latest `marker_delay_ns` later, or when `force` is called.

A failed write or sync is final: the error is reported, and nothing after it is ever written or counts as durable.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from bookie_service.formats.journal import RecordKind
from bookie_service.formats.marks import JournalPosition
from bookie_service.metrics.requests import GROUPS_MAX, GroupTimes
from bookie_service.storage.journal.flush_policy import FlushLimits, flush_reason
from bookie_service.storage.journal.journal import Journal, Record

logger = logging.getLogger(__name__)

INLINE_BYTES_MAX = 16 * 1024
"""A larger group is left to the thread: the event loop receives and decodes the next adds while it is synced."""
INLINE_SYNC_NS_MAX = 4_000_000
"""If each of the last INLINE_SYNCS syncs took longer, the event loop does not wait for the disk."""
INLINE_SYNCS = 4
"""More than one, because a thread that had to wait for a processor looks like a slow disk."""

SLOW_SYNC_NS = 1_000_000_000
"""A sync that takes longer is logged."""


class TimerHandle(Protocol):
    """A planned call."""

    def cancel(self) -> None: ...


class LoopTurns(Protocol):
    """The part of the event loop that this module uses."""

    def call_soon(self, callback: Callable[[], None]) -> object:
        """Call back at the end of this turn, after the sockets that are ready now."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> TimerHandle: ...


@dataclass(frozen=True, slots=True)
class JournalEvents:
    """Callbacks on the event loop. `post(callback, *arguments)` calls back there from a thread.

    on_written: everything up to a sequence number is written to the operating system, but the end is not durable yet.
    """

    on_durable: Callable[[int], None]
    """Everything up to a sequence number is durable."""
    on_written: Callable[[int], None]
    on_failure: Callable[[BaseException], None]
    """Nothing can be written any more, and the process must end."""
    post: Callable[..., None]


class _Submission(NamedTuple):
    """Records, or a request: to make all before it durable, to report the end, or to write a durability marker."""

    sequence: int
    """Its number, by which its caller learns that it is done."""
    records: Sequence[Record] = ()
    is_deferred: bool = False
    """Its records need only be written. They become durable with a later group."""
    forces: bool = False
    """All before it must be durable."""
    mark: Future[JournalPosition] | None = None
    """Gets the end of the journal after everything before it; None: it is not wanted."""
    writes_marker: bool = False
    """A durability marker is written after everything before it."""


@dataclass(slots=True)
class _Group:
    """Records to be synced together. A mark, a durability marker or the end of the queue closes the group."""

    records: list[Record] = field(default_factory=list)
    """All records of the group, in order."""
    submissions: int = 0
    """How many submissions the group has."""
    bytes: int = 0
    """Bytes of the records' bodies."""
    entries: int = 0
    """How many entries the records have."""
    sequence: int = 0
    """The sequence number of the last submission."""
    is_deferred: bool = True
    """Whether all records are deferred. If so, nothing waits for a sync."""
    forces: bool = False
    """Whether a submission requires a sync or a mark."""
    last: _Submission | None = None
    """The last submission. It may close the group."""

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
    """Owns a `Journal` from `start` to `join`. The event loop calls all methods except `join` and `forget_before`."""

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
        inline_sync_ns_max: int = INLINE_SYNC_NS_MAX,
    ) -> None:
        """Begin with a disk that has synced nothing yet.

        Args:
            commits_inline: whether the event loop may sync. False if there are several journals, which can sync at the
                same time only on their own threads.
            inline_sync_ns_max: how long a sync on the event loop may take.
        """
        self._inline_sync_ns_max = inline_sync_ns_max
        self._journal = journal
        self._clock_ns = journal.clock_ns = clock_ns
        self._limits = limits
        self._events = events
        self._turns = turns
        self._commits_inline = commits_inline and limits.flush_when_idle
        self._queue: queue.SimpleQueue[_Submission | None] = queue.SimpleQueue()
        """The work of the thread, in order; None ends the thread. Put by the event loop, taken by the thread."""
        self._sequence = 0
        """The sequence number of the last submission. Changed by the event loop."""
        self._held: list[_Submission] = []
        """Submissions of this turn that the event loop may commit itself, and patient ones. Emptied by `_take_held`."""
        self._ends_turn = False
        """Whether `_end_turn` is planned."""
        self._patience: TimerHandle | None = None
        """Ends the wait of patient submissions in `_held`. None: they do not wait, or there is none."""
        self._held_bytes = 0
        """Bytes of `_held`, including the last submission."""
        self._handed_over = 0
        """How many submissions were given to the thread. Changed by the event loop. Equal to `_carried_out`: the thread
        is idle."""
        self._carried_out = 0
        """How many submissions the thread has carried out. Changed by the thread."""
        self._syncs_ns: deque[int] = deque((0,), INLINE_SYNCS)
        """How long the last syncs took, in ns: they decide whether the event loop may sync."""
        self._writing = threading.Lock()
        """Held while the thread, or the event loop, writes to the journal."""
        self._failure: BaseException | None = None
        """Why nothing can be written any more; None while the journal works. Set once."""
        self.group_times: deque[GroupTimes] = deque(maxlen=GROUPS_MAX)
        """Times of the last groups. A part that reports a group may take its times."""
        self._carrying_out: _Group | None = None
        """The group that the thread is writing, or None."""
        self._marker_timer: TimerHandle | None = None
        """Ends a time without records; None: nothing was submitted since the last marker."""
        self._marker_sequence = 0
        """The last submission when `_marker_timer` began. A marker is written if it is still the last one."""
        self._deferred = 0
        """The sequence number of the last deferred submission."""
        self._forced = 0
        """The sequence number of the last submission that a requested sync covers."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether the thread has done all its work."""
        return self._handed_over == self._carried_out

    @property
    def directory(self) -> str:
        """The journal's directory."""
        return self._journal.directory

    @property
    def waiting(self) -> int:
        """How many submissions wait for the thread."""
        return self._queue.qsize()

    def submit(self, records: Sequence[Record], *, deferred: bool = False, is_patient: bool = False) -> int:
        """Queue records and return their sequence number. They are durable once `on_durable` reports it or a higher
        one.

        `deferred` records do not cause a sync: `on_written` or `on_durable` reports that they are written.
        `is_patient`: up to INLINE_BYTES_MAX of them wait for an ordinary submission, as `FlushLimits` says. Their
        client sends more before it waits for them, as in a recovery, or could make many of them cheaply.
        """
        self._sequence += 1
        if deferred:
            self._deferred = self._sequence
        return self._enqueue(_Submission(self._sequence, records, is_deferred=deferred), is_patient)

    def commit(self, records: list[Record]) -> int:
        """Make records, and all records before them, durable in this call; return their sequence number.

        The number is not reported. 0: nothing was done, because other records are in flight or the disk is slow; submit
        the records instead.

        Raises:
            OSError: the journal failed, and the process must end.
        """
        if self._held or not self._may_commit() or not self._writing.acquire(blocking=False):
            return 0
        try:
            self._sequence += 1
            group = _Group(records, sequence=self._sequence, is_deferred=False)
            for record in records:
                group.entries, group.bytes = group.entries + record.count, group.bytes + record.body_bytes
            self._carry_out(group)
        finally:
            self._writing.release()
        if self._marker_timer is None:
            self._begin_quiet()
        return self._sequence

    def force(self) -> int:
        """Make everything submitted so far durable; return the sequence number that `on_durable` will report."""
        self._sequence += 1
        self._forced = self._sequence
        return self._enqueue(_Submission(self._sequence, forces=True))

    def _enqueue(self, submission: _Submission, is_patient: bool = False) -> int:
        self._held_bytes += sum([record.body_bytes for record in submission.records])
        if is_patient and self._limits.flush_when_idle and self._held_bytes <= INLINE_BYTES_MAX:
            self._held.append(submission)
            if self._patience is None:
                wait_ns = min(self._limits.patience_ns, self._limits.age_ns_max)
                self._patience = self._turns.call_later(wait_ns / 1e9, self._hand_over)
        elif self._held_bytes <= INLINE_BYTES_MAX and self._may_commit():
            if not self._ends_turn:
                self._ends_turn = True
                self._turns.call_soon(self._end_turn)
            self._held.append(submission)
        else:
            self._hand_over(submission)
        if self._marker_timer is None:
            self._begin_quiet()
        return submission.sequence

    def take_mark(self) -> Future[JournalPosition]:
        """Return a future of the position after everything submitted so far, resolved when all of it is durable.

        It gets the journal's error if the journal fails.
        """
        mark: Future[JournalPosition] = Future()
        self._hand_over(_Submission(self._sequence, mark=mark))
        if self._failure is not None:
            # The thread may have ended before this request.
            _fail(mark, self._failure)
        return mark

    def forget_before(self, mark: JournalPosition) -> None:
        """Release files that lie completely before a durable mark. Called by the thread that wrote the mark."""
        self._journal.forget_before(mark)

    def stop(self) -> None:
        """Accept no more records. Submitted ones are made durable, then the journal is closed. `join` waits for it."""
        if self._marker_timer is not None:
            self._marker_timer.cancel()
        self._hand_over()
        self._queue.put(None)

    def join(self) -> None:
        """Wait until everything submitted before `stop` is done."""
        self._thread.join()

    # ---- on the event loop ----

    def _may_commit(self) -> bool:
        return self._commits_inline and self.is_idle and min(self._syncs_ns) <= self._inline_sync_ns_max

    def _hand_over(self, *submissions: _Submission) -> None:
        """Pass the held records to the thread, and then these submissions."""
        for submission in (*self._take_held(), *submissions):
            self._handed_over += 1
            self._queue.put(submission)

    def _take_held(self) -> list[_Submission]:
        """Return the held records, which then are held no more, and end their wait."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        held, self._held, self._held_bytes = self._held, [], 0
        return held

    def _end_turn(self) -> None:
        """Commit the held records, or leave them to the thread if it is busy now."""
        self._ends_turn = False
        if not self._held:
            return
        if not (self._may_commit() and self._writing.acquire(blocking=False)):
            self._hand_over()
            return
        group = _Group()
        for submission in self._take_held():
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
        """Let a durability marker be written if nothing was submitted meanwhile, or always if groups are not synced.

        If something was submitted, deferred records are at least made durable.
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
        """Write a group and carry out its last submission; return whether everything so far is durable.

        `_writing` must be held.
        """
        if self._failure is not None:
            raise self._failure
        try:
            if group.records:
                began = self._clock_ns()
                self._journal.append(group.records, deferred=group.is_deferred)
                synced, written = 0, self._journal.written_ns
                if not group.is_deferred:
                    synced = self._clock_ns()
                    self._syncs_ns.append(synced - began)
                    if synced - written > SLOW_SYNC_NS:
                        logger.warning("%s: a sync took %.1f s", self._journal.directory, (synced - written) / 1e9)
                self.group_times.append((group.sequence, began, written, synced, group.entries, group.bytes))
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

        The thread does only this. A simulation calls it instead of `start`.
        """
        try:
            # Records contain views of the write cache. They end with this frame, so no view is kept while waiting.
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
        """Fail every future that waits for a mark."""
        waiting: list[_Submission | None] = [self._carrying_out.last] if self._carrying_out is not None else []
        with contextlib.suppress(queue.Empty):
            while True:
                waiting.append(self._queue.get_nowait())
        for submission in waiting:
            if submission is not None and submission.mark is not None:
                _fail(submission.mark, error)

    def _gather(self) -> _Group:
        """Return the next group. Its `last` is None if it is the last group."""
        group = _Group()
        submission = self._queue.get()
        began = self._clock_ns()
        while submission is not None:
            group.add(submission)
            if group.is_closed:
                return group
            age = self._clock_ns() - began
            is_empty = self._queue.empty()
            if flush_reason(self._limits, group.bytes, group.entries, age, is_empty):
                return group
            try:
                submission = self._next(self._limits.age_ns_max - age)
            except queue.Empty:
                return group
        group.last = None
        return group

    def _next(self, wait_ns: int) -> _Submission | None:
        """Return the next submission, or None for the end. Raises queue.Empty if none comes in this time.

        If its time-out passes before it begins to wait, `SimpleQueue.get` of CPython 3.11 waits without a limit: a
        thread may get no processor for milliseconds. It does not if the call before found nothing without waiting.
        """
        with contextlib.suppress(queue.Empty):
            return self._queue.get_nowait()
        return self._queue.get(timeout=max(0, wait_ns) / 1e9)


def _fail(mark: Future[JournalPosition], error: BaseException) -> None:
    with contextlib.suppress(InvalidStateError):  # it is resolved, or the other thread failed it
        mark.set_exception(error)
