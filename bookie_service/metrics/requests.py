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

from bookie_service.metrics.histograms import Histograms, counted

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
ALONE_MAX = 9 * 256
"""How many numbers about batches that were groups alone may wait to be counted. Counting them delays the adds that are
in flight, which are few: 256 take 0.2 ms, and 1,024 half a millisecond."""
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
        self.alone: list[int] = []
        """Nine numbers for each batch that was a group alone: how many adds, when it was received and given to the
        journal, the last five of its `GroupTimes`, and when it was answered. `Bookie` appends those of single adds
        itself, which saves the add a call, and folds them at `ALONE_MAX` numbers."""
        self._last = (0, 0, 0)
        """When the last group was begun, written and synced."""
        self.written_bytes = 0
        """How many bytes were written, as far as `fold` has counted them. Only grows."""

    def note(self, groups: deque[GroupTimes], sequence: int, batches: list[int], answered_ns: int) -> None:
        """Take the times of batches that were answered together, and of the groups up to a sequence number.

        Args:
            groups: what is taken is removed.
            batches: (adds, received, given to the journal) of each.
        """
        if len(batches) == 3 and len(groups) == 1 and groups[0][0] <= sequence:
            group = groups.popleft()
            self._last = group[1], group[2], group[3]
            self.alone += (*batches, *group[1:], answered_ns)
        else:
            while groups and groups[0][0] <= sequence:
                _, began, written, synced, entries, size = groups.popleft()
                self._groups += (began, written, synced, entries, size)
                self._last = began, written, synced
            self._rows += batches
            self._answers += (len(batches) // 3, *self._last, answered_ns)
        if len(self.alone) >= ALONE_MAX or len(self._rows) >= 3 * _BATCHES_MAX or len(self._groups) >= 5 * _BATCHES_MAX:
            self.fold()

    def fold(self) -> None:
        """Count everything that was recorded."""
        if self.alone:
            alone = np.array(self.alone, np.int64).reshape(-1, 9).T
            self.alone = []
            self._fold_alone(alone)
        if self._groups:
            groups = np.array(self._groups, np.int64).reshape(-1, 5).T
            self._groups = []
            times = _us(groups[1:3] - groups[:2])
            self._fold_groups(groups, *counted(np.concatenate((times, groups[3:]))))
        if self._rows:
            rows, answers = np.array(self._rows, np.int64), np.array(self._answers, np.int64).reshape(-1, 5)
            self._rows, self._answers = [], []
            adds, received, given = rows.reshape(-1, 3).T
            ends = np.repeat(answers[:, 1:], answers[:, 0], axis=0).T
            self._fold_adds(*counted(_times(np.concatenate(((received, given), ends))), adds))

    def _fold_alone(self, alone: np.ndarray) -> None:
        adds, groups = alone[0], alone[3:8]
        times = _times(alone[[1, 2, 3, 4, 5, 8]])
        if adds.max() == 1:
            counts, sums = counted(np.concatenate((times, groups[3:])))
            at = [ADD_STAGES.index("journal_written"), ADD_STAGES.index("synced"), len(times), len(times) + 1]
            self._fold_groups(groups, counts[at], [sums[row] for row in at])
            self._fold_adds(counts, sums)
        else:
            self._fold_groups(groups, *counted(np.concatenate((times[2:4], groups[3:]))))
            self._fold_adds(*counted(times, adds))

    def _fold_groups(self, groups: np.ndarray, counts: np.ndarray, sums: list[int]) -> None:
        """Count groups.

        Args:
            groups: when each was begun, written and synced, its entries and its bytes, a row for each.
            counts, sums: of the times of writing and of syncing, and of entries and bytes.
        """
        self.written_bytes += sums[3]
        is_synced = groups[2] > 0
        if not is_synced.all():
            (counts[1],), (sums[1],) = counted(_us(groups[2] - groups[1])[np.newaxis, is_synced])
        for row, which in enumerate((self.WRITE, self.SYNC, self.BATCH_ENTRIES, self.BATCH_BYTES)):
            self._journal.add(which, counts[row : row + 1], sums[row : row + 1])

    def _fold_adds(self, counts: np.ndarray, sums: list[int]) -> None:
        """Count adds. `counts`, `sums`: of their `_times`, in the first rows."""
        stages = len(ADD_STAGES)
        self._adds.add(0, counts[: stages + 1], sums[: stages + 1])
        self._journal_adds.add(0, counts[stages + 1 : stages + 2], sums[stages + 1 : stages + 2])
        queued = ADD_STAGES.index("queued")
        self._journal.add(self.QUEUE, counts[queued : queued + 1], sums[queued : queued + 1])


def _times(ends: np.ndarray) -> np.ndarray:
    """Return the times of batches of adds: of each stage, of the whole, and from the journal's receipt on, in us.

    ends: when they were received, given to the journal, begun, written, synced and answered, a row for each. A batch
        may be answered after a later group than its own, and a group may not be synced. No stage takes less than no
        time.
    """
    np.maximum.accumulate(ends[1:5], axis=0, out=ends[1:5])
    stages = len(ADD_STAGES)
    times = np.empty((stages + 2, ends.shape[1]), np.int64)
    np.subtract(ends[1:], ends[:-1], out=times[:stages])
    np.subtract(ends[5], ends[0], out=times[stages])
    np.subtract(ends[4], ends[1], out=times[stages + 1])
    return _us(times)


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
