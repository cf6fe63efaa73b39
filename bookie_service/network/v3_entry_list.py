"""GET_LIST_OF_ENTRIES_OF_LEDGER: which entries of a ledger are held here (`bkspark.wire.entry_lists`).

When the turn of a list comes, entries that wait to be flushed are read on the event loop; the index is read afterwards
on a thread (`entry_lists`). Entries that a flush removes from memory in between are in the index by then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import numpy as np

from bkspark.errors import StorageDamaged
from bkspark.security.authorization import READ
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3
from bkspark.wire.entry_lists import GROUP_BYTES, HEAD_BYTES, EntryRuns, encode_entry_list, list_of_groups
from bkspark.wire.status import Status
from bookie_service.engine.entry_lists import EntryLists, ListClient
from bookie_service.engine.reads import Reading, View, failed
from bookie_service.engine.turns import Turn
from bookie_service.metrics.requests import LIST_ENTRIES
from bookie_service.network.v3_responses import response
from bookie_service.storage.io.byte_source import Fetched, FileRange
from bookie_service.storage.ledgers.interface import Ledger

logger = logging.getLogger(__name__)

_LIST_BYTES_MAX = 4 * 1024 * 1024
"""Together with the rest of the response, this is less than any frame limit in use."""
_GROUPS_MAX = (_LIST_BYTES_MAX - HEAD_BYTES) // GROUP_BYTES
_RUNS_PER_CHUNK = 32 * 1024
"""Runs that are grouped at once. No larger part of a list is in memory as runs."""
_IDS_PER_STEP = 64 * 1024
_OPEN_FILES = 1


class EntryList(Reading):
    """One such request, until it is answered."""

    operation = LIST_ENTRIES
    needed = READ

    client: ListClient

    def __init__(
        self, lists: EntryLists, client: ListClient, request: protocol.Request, on_answered: Callable[[Reading], None]
    ) -> None:
        """`on_answered(self)` is called after the answer, if the request was given to `lists`."""
        self._on_answered = on_answered
        self.client = client
        self._lists = lists
        self._request = request
        self.ledger_id = request.getListOfEntriesOfLedgerRequest.ledgerId
        self._is_begun = False
        """Whether the request was refused or given to `EntryLists`. Set once."""
        self._view: View
        """What the reading may see. Set when the request is given to `EntryLists`."""
        self._frame = b""
        """The response with the list; empty until it is built, and if it would be too large."""

    def __len__(self) -> int:
        return 0 if self._is_begun else 1

    def ledgers(self) -> int:
        return self.ledger_id

    def refuse(self, status: int) -> None:
        self._is_begun = True
        self._send(response(self._request, v3.code_of(status)), is_failure=True)

    def _send(self, frame: bytes, *, is_failure: bool) -> None:
        self.failures = int(is_failure)
        self.client.send((frame,))
        if self.is_waiting:
            self._on_answered(self)

    def proceed(self, view: View, fetched: Fetched | None, turn: Turn) -> FileRange | None:
        self._view = view
        # An absent ledger is answered at once, and does not wait for its turn.
        self.is_waiting = self._held() is not None
        if self.is_waiting and not self._lists.add(self):
            self.refuse(Status.ETOOMANYREQUESTS)
        self._is_begun = True
        return None

    def _held(self) -> Ledger | None:
        """Return the ledger; None: the request was refused, because the entries cannot be listed."""
        try:
            ledger = self._view.ledger(self.ledger_id)
        except (StorageDamaged, OSError) as error:
            self.refuse(failed(error))
            return None
        if ledger is None or self._view.is_in_limbo(self.ledger_id):
            # An entry that is missing in the list counts as lost, which is not certain for a ledger in limbo.
            self.refuse(self._view.absence(self.ledger_id, None))
            return None
        return ledger

    def begin(self) -> Iterator[None] | None:
        ledger = self._held()
        return None if ledger is None else self._steps(self._view.waiting_entries(ledger))

    def _steps(self, waiting_entries: list[np.ndarray]) -> Iterator[None]:
        waiting = EntryRuns.none()
        for ids in waiting_entries:
            for first in range(0, len(ids), _IDS_PER_STEP):
                waiting = union_of_runs(waiting, EntryRuns.of(ids[first : first + _IDS_PER_STEP]))
                yield
        groups = AnswerGroups()
        index = self._view.index_view(_OPEN_FILES)
        try:
            for first, positions in index.extents(self.ledger_id):
                before, waiting = split_runs(waiting, first + len(positions))
                groups.add(union_of_runs(before, EntryRuns.of(first + np.flatnonzero(positions))))
                yield
        finally:
            index.close()
        groups.add(waiting)
        data = groups.encoded()
        if data is None:
            logger.error("the list of ledger %d's entries would not fit into a frame", self.ledger_id)
        else:
            self._frame = response(self._request, v3.StatusCode.EOK, {"availabilityOfEntriesOfLedger": data})

    def finish(self) -> None:
        if self._frame:
            self._send(self._frame, is_failure=False)
        else:
            self.refuse(Status.EIO)


class AnswerGroups:
    """Groups of ascending runs, built chunk by chunk; never more groups than a response can carry."""

    def __init__(self) -> None:
        self._runs: list[EntryRuns] = []
        """Runs that are not encoded yet, ascending."""
        self._runs_count = 0
        """The number of runs in `_runs`."""
        self._groups: list[bytes] = []
        """Encoded groups."""
        self._groups_left = _GROUPS_MAX
        """How many groups may follow; -1: there were too many, and the list cannot be sent."""

    def add(self, runs: EntryRuns) -> None:
        self._runs.append(runs)
        self._runs_count += len(runs.starts)
        if self._runs_count > _RUNS_PER_CHUNK:
            self._end_chunk(1)

    def _end_chunk(self, kept: int) -> None:
        """Encode all runs except the last `kept` ones: the next chunk may continue the last run."""
        runs = EntryRuns(*map(np.concatenate, zip(*((each.starts, each.sizes) for each in self._runs)))).joined()
        end = max(0, len(runs.starts) - kept)
        self._runs = [EntryRuns(runs.starts[end:], runs.sizes[end:])]
        self._runs_count = len(runs.starts) - end
        if end and self._groups_left >= 0:
            encoded = encode_entry_list(EntryRuns(runs.starts[:end], runs.sizes[:end]), self._groups_left)
            groups = b"" if encoded is None else encoded[HEAD_BYTES:]
            self._groups.append(groups)
            self._groups_left = -1 if encoded is None else self._groups_left - len(groups) // GROUP_BYTES

    def encoded(self) -> bytes | None:
        """Return the list of all runs; None if it needs too many groups."""
        self._end_chunk(0)
        return None if self._groups_left < 0 else list_of_groups(b"".join(self._groups))


def split_runs(runs: EntryRuns, entry_id: int) -> tuple[EntryRuns, EntryRuns]:
    """Return the runs below an entry id, and the other runs."""
    at = int(runs.starts.searchsorted(entry_id))
    low, high = EntryRuns(runs.starts[:at], runs.sizes[:at]), EntryRuns(runs.starts[at:], runs.sizes[at:])
    over = int(low.starts[-1] + low.sizes[-1]) - entry_id if at else 0
    if over > 0:
        low = EntryRuns(low.starts, np.append(low.sizes[:-1], low.sizes[-1] - over))
        high = EntryRuns(np.append(entry_id, high.starts), np.append(over, high.sizes))
    return low, high


def union_of_runs(one: EntryRuns, other: EntryRuns) -> EntryRuns:
    """Return the union of the runs."""
    if not len(one.starts) or not len(other.starts):
        return one if len(one.starts) else other
    starts = np.concatenate([one.starts, other.starts])
    ends = starts + np.concatenate([one.sizes, other.sizes])
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    begins = np.flatnonzero(np.append(True, starts[1:] > ends[:-1]))
    lasts = np.append(begins[1:], len(starts)) - 1
    return EntryRuns(starts[begins], ends[lasts] - starts[begins])
