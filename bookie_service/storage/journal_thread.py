"""Group commit: one thread that makes journal records durable, in the order they were submitted.

While a sync runs, records gather in a queue; the next group is what gathered (`flush_policy`). The thread reports the
highest durable sequence number once per group. A failed write or sync ends the thread: it reports the error and nothing
after it, ever, counts as durable.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from bookie_service.formats.marks import JournalPosition
from bookie_service.storage.flush_policy import FlushLimits, flush_reason
from bookie_service.storage.journal import Journal, Record


@dataclass(frozen=True, slots=True)
class _Submission:
    sequence: int
    records: Sequence[Record]
    mark: Future[JournalPosition] | None = None


@dataclass(slots=True)
class _Group:
    """Records to be synced together; a mark or the end of the queue closes a group."""

    records: list[Record] = field(default_factory=list)
    bytes: int = 0
    sequence: int = 0
    mark: Future[JournalPosition] | None = None
    is_last: bool = False

    def add(self, submission: _Submission) -> None:
        self.records.extend(submission.records)
        for record in submission.records:
            self.bytes += record.body_bytes
        self.sequence = submission.sequence
        self.mark = submission.mark


class JournalThread:
    """Owns a `Journal` from `start` to `stop`. `submit` and `take_mark` are called by one thread (the event loop)."""

    def __init__(
        self,
        journal: Journal,
        limits: FlushLimits,
        on_durable: Callable[[int], None],
        on_failure: Callable[[BaseException], None],
        name: str,
    ) -> None:
        """`on_durable(sequence)` and `on_failure(error)` are called on the journal's thread."""
        self._journal = journal
        self._limits = limits
        self._on_durable = on_durable
        self._on_failure = on_failure
        self._queue: queue.SimpleQueue[_Submission | None] = queue.SimpleQueue()
        self._sequence = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, records: Sequence[Record]) -> int:
        """Queue records and return their sequence number; durable once `on_durable` reports it or a higher one."""
        self._sequence += 1
        self._queue.put(_Submission(self._sequence, records))
        return self._sequence

    def take_mark(self) -> Future[JournalPosition]:
        """Return a future of the position behind everything submitted so far, resolved when all that is durable."""
        mark: Future[JournalPosition] = Future()
        self._queue.put(_Submission(self._sequence, (), mark))
        return mark

    def forget_before(self, mark: JournalPosition) -> None:
        """Let go of files wholly before a durable mark. Called by the thread that wrote the mark."""
        self._journal.forget_before(mark)

    def stop(self) -> None:
        """Make everything submitted durable, then end the thread and close the journal."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            is_last = False
            while not is_last:
                group = self._gather()
                if group.records:
                    self._journal.append(group.records)
                if group.mark is not None:
                    group.mark.set_result(self._journal.end)
                is_last = group.is_last
                self._on_durable(group.sequence)
                # The records hold views of the write cache; keep none while waiting.
                del group
            self._journal.close()
        except BaseException as error:
            self._on_failure(error)

    def _gather(self) -> _Group:
        group = _Group(sequence=0)
        submission = self._queue.get()
        began = time.monotonic_ns()
        while True:
            if submission is None:
                group.is_last = True
                return group
            group.add(submission)
            if group.mark is not None:
                return group
            age = time.monotonic_ns() - began
            if flush_reason(self._limits, group.bytes, age, self._queue.empty()):
                return group
            try:
                submission = self._queue.get(timeout=max(0, self._limits.age_ns_max - age) / 1e9)
            except queue.Empty:
                return group
