"""Responses of bookies to groups of reads, in the same form for both protocols.

Statuses are `bkspark.wire.status`, and BAD_DIGEST. V3's codes are translated when a frame is decoded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bkspark.entries import EntryBatch
from bkspark.errors import DigestMismatch
from bkspark.wire.digest import EntryDigest, OpenedEntry
from bkspark.wire.status import EOK

SINGLE_READS_MAX = 4096
"""Most single reads in one group: their requests alone must not fill the sockets' buffers of both sides."""

BAD_DIGEST = -1
"""In `EntryResponses.statuses`: the bookie answered EOK with bytes that fail their check."""


@dataclass(frozen=True, slots=True)
class EntryResponses:
    """One bookie's responses for some entries; arrays of equal length.

    `statuses` holds `Status` numbers, or BAD_DIGEST. `pieces`: payloads as received, each with the positions, in order,
    of its entries; together they have all entries with status EOK.
    """

    entry_ids: np.ndarray
    statuses: np.ndarray
    lengths: np.ndarray
    """The payload bytes of the ledger up to each entry, as its envelope says; 0 for other statuses than EOK."""
    ledger_id: int
    pieces: Sequence[tuple[np.ndarray, EntryBatch]]

    @property
    def payloads(self) -> list[memoryview | None]:
        """An object for each entry; None if the status is not EOK."""
        found: list[memoryview | None] = [None] * len(self.entry_ids)
        for at, batch in self.pieces:
            view, offsets = memoryview(batch.buffer), batch.offsets.tolist()
            for position, start, end in zip(at.tolist(), offsets, offsets[1:]):
                found[position] = view[start:end]
        return found

    @property
    def largest_bytes(self) -> int:
        """Size of the largest payload; 0 without payloads."""
        return max((int(np.diff(batch.offsets).max(initial=0)) for _, batch in self.pieces), default=0)

    def prefix(self) -> tuple[EntryBatch, int]:
        """Return the entries up to the first whose status is not EOK, and that status, or EOK."""
        good = self.statuses == EOK
        if good.all():
            return self.before(len(good)), EOK
        count = int(np.argmin(good))
        return self.before(count), int(self.statuses[count])

    def before(self, count: int) -> EntryBatch:
        """Return the first `count` entries, all EOK, numbered on from the first."""
        first_entry = int(self.entry_ids[0])
        order = np.concatenate([at for at, _ in self.pieces]) if self.pieces else np.empty(0, np.int64)
        if len(order) == count and (order == np.arange(count)).all():
            return joined([batch for _, batch in self.pieces], self.ledger_id, first_entry)
        payloads = [payload for payload in self.payloads[:count] if payload is not None]
        return EntryBatch.of(payloads, self.ledger_id, first_entry)


def joined(parts: Sequence[EntryBatch], ledger_id: int, first_entry: int) -> EntryBatch:
    """Return consecutive batches as one; a single one as it is."""
    return parts[0] if len(parts) == 1 else EntryBatch.joined(parts, ledger_id, first_entry)


@dataclass(frozen=True, slots=True)
class BatchResponse:
    """Consecutive entries from the first requested one; `status` (a `Status` or BAD_DIGEST) says why they end.

    A reply that is EOK and has no entry is as bad as one whose first entry does not match its digest.
    """

    entries: EntryBatch
    status: int


@dataclass(frozen=True, slots=True)
class LastEntryResponse:
    """The highest entry that a bookie has, or why there is none (`status` is a `Status` or BAD_DIGEST)."""

    status: int
    entry: OpenedEntry | None

    @classmethod
    def of(cls, status: int, body: bytes, ledger_id: int, digest: EntryDigest) -> LastEntryResponse:
        """Return the answer with its entry checked, when `status` is EOK."""
        if status != EOK:
            return cls(status, None)
        try:
            return cls(status, digest.open_entry(body, ledger_id, None))
        except DigestMismatch:
            return cls(BAD_DIGEST, None)


class ReadGroup:
    """Single reads sent together; `future` is done when each has its answer."""

    def __init__(
        self, ledger_id: int, entry_ids: np.ndarray, digest: EntryDigest, future: asyncio.Future[EntryResponses]
    ) -> None:
        self.ledger_id = ledger_id
        self.entry_ids = entry_ids
        self.future = future
        self.waiting = np.ones(len(entry_ids), bool)
        """Which reads have no answer yet, bool each. Cleared by `settle`."""
        self.on_progress: Callable[[], None] | None = None
        """Called when some answers have arrived and others are outstanding."""
        self._digest = digest
        self._statuses = np.zeros(len(entry_ids), np.int32)
        """The answers so far, as in `EntryResponses`."""
        self._lengths = np.zeros(len(entry_ids), np.int64)
        """As in `EntryResponses`."""
        self._pieces: list[tuple[np.ndarray, EntryBatch]] = []
        """Received entries, with their positions in the group."""

    def settle(
        self, at: np.ndarray, statuses: np.ndarray, buffer: memoryview, starts: np.ndarray, ends: np.ndarray
    ) -> None:
        """Record the answers to the reads at positions `at`; entries are at buffer[starts[i]:ends[i]]."""
        self.waiting[at] = False
        self._statuses[at] = statuses
        found = statuses == EOK
        if found.any():
            self._open(at[found], buffer, starts[found], ends[found])
        if self.future.done():
            return
        if not self.waiting.any():
            answers = EntryResponses(self.entry_ids, self._statuses, self._lengths, self.ledger_id, self._pieces)
            self.future.set_result(answers)
        elif self.on_progress is not None:
            self.on_progress()

    def _open(self, at: np.ndarray, buffer: memoryview, starts: np.ndarray, ends: np.ndarray) -> None:
        while len(at):
            opened = self._digest.open_entries(buffer, starts, ends, self.ledger_id, self.entry_ids[at])
            good = len(opened)
            if good:
                self._lengths[at[:good]] = opened.lengths
                # The receive buffer is reused after this call: the entries are moved out of it in one copy.
                batch = opened.to_batch(self.ledger_id, int(self.entry_ids[at[0]]))
                self._pieces.append((at[:good], batch))
            if opened.bad is None:
                return
            self._statuses[at[good]] = BAD_DIGEST
            at, starts, ends = at[good + 1 :], starts[good + 1 :], ends[good + 1 :]
