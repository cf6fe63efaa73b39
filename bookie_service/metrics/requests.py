"""Times of adds and reads, stage by stage. Pure: callers pass the times, in nanoseconds of one monotonic clock.

Times of a batch are appended to a list of whole numbers. Array code counts them later: when the list is long, or before
a scrape. So a batch costs two or three list operations, and an entry nothing.

Stages of an add:

| Stage | From | To |
|---|---|---|
| received | its bytes were read from the socket | it passed the rules and was given to the journal |
| queued | that | the journal began to write its group |
| journal_written | that | the group was written |
| synced | that | the group was durable |
| answered | that | the replies were given to the sockets |

Stages of a read: `received` ends when the bookie begins to look for the entries. `fetched` is the time of the fetch
threads, if the entries were not in memory. `answered` ends when the replies were given to the socket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from bookie_service.metrics.histograms import Histograms

ADD_STAGES = ("received", "queued", "journal_written", "synced", "answered")
READ_STAGES = ("received", "fetched", "answered")
OPERATIONS = (
    "READ_ENTRY",
    "READ_LAC",
    "GET_BOOKIE_INFO",
    "GET_LIST_OF_ENTRIES_OF_LEDGER",
    "READ_ENTRY_LONG_POLL_REQUEST",
)
"""The operations of readings, by their number in `ReadTimes`."""
READ_ENTRY, READ_LAC, GET_BOOKIE_INFO, LIST_ENTRIES, LONG_POLL = range(len(OPERATIONS))

_BATCHES_MAX = 1024
ROWS_MAX = 6 * _BATCHES_MAX
"""How many numbers about reads may wait to be counted."""
SINGLES_MAX = 8 * 128
"""How many numbers about adds that came alone may wait to be counted. Counting them delays the adds that are in flight,
which are few: 128 adds take 0.2 ms, and 1,024 more than 1 ms."""
_NS_PER_US = 1000

GroupTimes = tuple[int, int, int, int, int, int]
"""Times of a group: the sequence number of its end; when the journal began to write it, had written it, and had synced
it (0: it was not synced); its entries and its bytes."""
GROUPS_MAX = 4096
"""How many groups' times may wait to be recorded."""


class JournalTimes:
    """Times of the groups of one journal, and of the adds in them."""

    SYNC, WRITE, QUEUE, BATCH_ENTRIES, BATCH_BYTES = range(5)

    def __init__(self, adds: Histograms, journal: Histograms, journal_adds: Histograms) -> None:
        """`adds`: a row for each stage of an add, and one for the whole. `journal`: 5 rows. `journal_adds`: 1 row."""
        self._adds = adds
        self._journal = journal
        self._journal_adds = journal_adds
        self._rows: list[int] = []
        """For each batch: how many adds, when it was received, and when it was given to the journal."""
        self._answers: list[int] = []
        """For batches that were answered together: how many; when their group was begun, written and synced; and when.
        """
        self._groups: list[int] = []
        """For each group: when it was begun, written and synced, its entries and its bytes."""
        self.singles: list[int] = []
        """Eight numbers for each add that was a group alone: when it was received and given to the journal, the last
        five of its `GroupTimes`, and when it was answered. `Bookie` appends them itself, which saves the add a call,
        and folds them at `SINGLES_MAX` numbers."""
        self._last = (0, 0, 0)
        """When the last group was begun, written and synced."""
        self.written_bytes = 0
        """How many bytes were written. Only grows."""

    def note_groups(self, groups: deque[GroupTimes], sequence: int) -> None:
        """Take the times of the groups up to a sequence number."""
        while groups and groups[0][0] <= sequence:
            _, began, written, synced, entries, size = groups.popleft()
            self._groups += (began, written, synced, entries, size)
            self._last = began, written, synced or written
            self.written_bytes += size
        if len(self._groups) >= 5 * _BATCHES_MAX:
            self.fold()

    def note_answers(self, batches: list[int], answered_ns: int) -> None:
        """Take the times of batches that were answered together: (adds, received, given to the journal) of each."""
        self._rows += batches
        self._answers += (len(batches) // 3, *self._last, answered_ns)
        if len(self._rows) >= 3 * _BATCHES_MAX:
            self.fold()

    def fold(self) -> None:
        """Count everything that was recorded."""
        groups, rows, answers = self._taken()
        if len(groups):
            began, written, synced, entries, size = groups.T
            one, is_synced = np.ones(len(began), np.int64), (synced > 0).astype(np.int64)
            times = _us(np.array((synced - written, written - began)))
            self._journal.record_row(self.SYNC, times[0], is_synced)
            self._journal.record_row(self.WRITE, times[1], one)
            self._journal.record_row(self.BATCH_ENTRIES, entries, one)
            self._journal.record_row(self.BATCH_BYTES, size, one)
        if len(rows):
            adds, received, given = rows.T
            began, written, synced, answered = np.repeat(answers[:, 1:], answers[:, 0], axis=0).T
            # A batch may be answered after a later group than its own. No stage may take less than no time.
            began = np.maximum(began, given)
            written, synced = np.maximum(written, began), np.maximum(synced, began)
            stages = (given - received, began - given, written - began, synced - written, answered - synced)
            self._adds.record_all(_us(np.array((*stages, answered - received))), adds)
            self._journal_adds.record_all(_us((synced - given)[np.newaxis]), adds)
            self._journal.record_row(self.QUEUE, _us(began - given), adds)

    def _taken(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take what waits to be counted: groups, batches, and answers. Adds that came alone are among all three."""
        groups, rows = np.array(self._groups, np.int64).reshape(-1, 5), np.array(self._rows, np.int64).reshape(-1, 3)
        answers = np.array(self._answers, np.int64).reshape(-1, 5)
        self._groups, self._rows, self._answers = [], [], []
        if not self.singles:
            return groups, rows, answers
        singles = np.array(self.singles, np.int64).reshape(-1, 8)
        self.singles = []
        one = np.ones((len(singles), 1), np.int64)
        self.written_bytes += int(singles[:, 6].sum())
        return (
            np.concatenate((groups, singles[:, 2:7])),
            np.concatenate((rows, np.hstack((one, singles[:, :2])))),
            np.concatenate((answers, np.hstack((one, singles[:, [2, 3, 4, 7]])))),
        )


class ReadTimes:
    """Times of readings."""

    def __init__(self, stages: Histograms, succeeded: Histograms, failed: Histograms) -> None:
        """`stages`: a row for each stage of a read; the others: a row for each of `OPERATIONS`."""
        self._stages = stages
        self._succeeded = succeeded
        self._failed = failed
        self.rows: list[int] = []
        """Six numbers for requests that were answered together: operation, how many succeeded, how many failed, when
        they were received, when the bookie began to look for the entries, when they were answered. `Reads` appends them
        itself, which saves the read a call, and folds them at `ROWS_MAX` numbers."""
        self._fetches: list[int] = []
        """How long each fetch took that is not counted yet, in ns."""

    def note_fetch(self, ns: int) -> None:
        """Take the duration of a fetch from disk."""
        self._fetches.append(ns)

    def fold(self) -> None:
        """Count everything that was recorded."""
        if self._fetches:
            fetched = np.array(self._fetches, np.int64)
            self._fetches = []
            self._stages.record_row(1, _us(fetched), np.ones(len(fetched), np.int64))
        if not self.rows:
            return
        operation, succeeded, failed, received, began, answered = np.array(self.rows, np.int64).reshape(-1, 6).T
        self.rows = []
        whole = _us(answered - received)
        for number in np.unique(operation).tolist():
            rows = operation == number
            self._succeeded.record_row(number, whole[rows], succeeded[rows])
            self._failed.record_row(number, whole[rows], failed[rows])
        rows = operation == READ_ENTRY
        requests = (succeeded + failed)[rows]
        self._stages.record_row(0, _us((began - received)[rows]), requests)
        self._stages.record_row(2, _us((answered - began)[rows]), requests)


class RequestTimes:
    """Times of all requests of a bookie. Without `clock_ns` nothing is recorded. For the event loop.

    received_ns: when the requests that are being served were received. Connections set it.
    """

    def __init__(self, clock_ns: Callable[[], int] | None = None, histograms: Callable[[int], Histograms] = Histograms):
        """`histograms(count)` returns new histograms."""
        self.is_on = clock_ns is not None
        self.clock_ns = clock_ns or _no_clock
        self.received_ns = 0
        self._new_histograms = histograms
        self.adds = histograms(len(ADD_STAGES) + 1)
        self.failed_adds = histograms(1)
        self.read_stages = histograms(len(READ_STAGES))
        self.succeeded = histograms(len(OPERATIONS))
        self.failed = histograms(len(OPERATIONS))
        self.reads = ReadTimes(self.read_stages, self.succeeded, self.failed)
        self.journals: list[JournalTimes] = []
        """Times of each journal. All three lists have one item for each journal."""
        self.journal_histograms: list[Histograms] = []
        """Histograms for the groups of each journal."""
        self.journal_adds: list[Histograms] = []
        """Histograms for the adds in these groups."""

    def add_journal(self) -> JournalTimes:
        """Add a journal; return its times."""
        self.journal_histograms.append(self._new_histograms(5))
        self.journal_adds.append(self._new_histograms(1))
        times = JournalTimes(self.adds, self.journal_histograms[-1], self.journal_adds[-1])
        self.journals.append(times)
        return times

    @property
    def whole_add(self) -> tuple[Histograms, int]:
        """The time of an add from its receipt to its answer."""
        return self.adds, len(ADD_STAGES)

    def note_refused_adds(self, count: int) -> None:
        """Count adds that were refused."""
        if self.is_on:
            now = self.clock_ns()
            self.failed_adds.record(0, (now - (self.received_ns or now)) // _NS_PER_US, count)

    def fold(self) -> None:
        """Count everything that was recorded."""
        self.reads.fold()
        for journal in self.journals:
            journal.fold()


def _us(ns: np.ndarray) -> np.ndarray:
    return ns // _NS_PER_US


def _no_clock() -> int:
    return 0
