"""What bookies answer to reads, whole groups of reads at a time; the same whichever protocol carried them.

Statuses are V2's, and BAD_DIGEST. V3's codes are turned into them where a frame is taken apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bkspark.entries import EntryBatch
from bkspark.errors import DigestMismatch
from bkspark.wire import v2
from bkspark.wire.digest import EntryDigest, OpenedEntry

SINGLE_READS_MAX = 4096
"""Most single reads in one group: requests alone must not fill both sockets' buffers."""

BAD_DIGEST = -1
"""In `EntryAnswers.statuses`: the bookie answered EOK with bytes that fail their check."""


@dataclass(frozen=True, slots=True)
class EntryAnswers:
    """What one bookie answered for each of some entries; arrays and lists of equal length.

    `payloads[i]` is None unless `statuses[i]` is EOK. `statuses` holds V2 status codes, or BAD_DIGEST.
    """

    entry_ids: np.ndarray
    statuses: np.ndarray
    payloads: list[memoryview | None]
    lengths: np.ndarray


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """Consecutive entries from the first one asked for; `status` (EOK, a V2 code, BAD_DIGEST) tells why they end."""

    entries: EntryBatch
    status: int


@dataclass(frozen=True, slots=True)
class LastEntryAnswer:
    """The highest entry a bookie holds, or why there is none (`status` is a V2 code or BAD_DIGEST)."""

    status: int
    entry: OpenedEntry | None

    @classmethod
    def of(cls, status: int, body: bytes, ledger_id: int, digest: EntryDigest) -> LastEntryAnswer:
        """Return the answer with its entry checked, when `status` is EOK."""
        if status != v2.EOK:
            return cls(status, None)
        try:
            return cls(status, digest.open_entry(body, ledger_id, None))
        except DigestMismatch:
            return cls(BAD_DIGEST, None)


class ReadGroup:
    """Single reads sent together; `future` is done when each has its answer."""

    def __init__(
        self, ledger_id: int, entry_ids: np.ndarray, digest: EntryDigest, future: asyncio.Future[EntryAnswers]
    ) -> None:
        self.ledger_id = ledger_id
        self.entry_ids = entry_ids
        self.future = future
        self.waiting = np.ones(len(entry_ids), bool)
        self.on_progress: Callable[[], None] | None = None
        """Called when some of the answers have come, and others are to come yet."""
        self._digest = digest
        self._statuses = np.zeros(len(entry_ids), np.int32)
        self._lengths = np.zeros(len(entry_ids), np.int64)
        self._payloads: list[memoryview | None] = [None] * len(entry_ids)

    def settle(
        self, at: np.ndarray, statuses: np.ndarray, buffer: memoryview, starts: np.ndarray, ends: np.ndarray
    ) -> None:
        """Take the answers to the reads at positions `at`; entries lie at buffer[starts[i]:ends[i]]."""
        self.waiting[at] = False
        self._statuses[at] = statuses
        found = statuses == v2.EOK
        if found.any():
            self._open(at[found], buffer, starts[found], ends[found])
        if self.future.done():
            return
        if not self.waiting.any():
            self.future.set_result(EntryAnswers(self.entry_ids, self._statuses, self._payloads, self._lengths))
        elif self.on_progress is not None:
            self.on_progress()

    def _open(self, at: np.ndarray, buffer: memoryview, starts: np.ndarray, ends: np.ndarray) -> None:
        # The receive buffer is used again after this call: the entries move out of it in one copy.
        low = int(starts.min())
        data = bytes(buffer[low : int(ends.max())])
        while len(at):
            opened = self._digest.open_entries(data, starts - low, ends - low, self.ledger_id, self.entry_ids[at])
            good = len(opened)
            self._lengths[at[:good]] = opened.lengths
            for position, payload in zip(at[:good].tolist(), opened.payloads()):
                self._payloads[position] = payload
            if opened.bad is None:
                return
            self._statuses[at[good]] = BAD_DIGEST
            at, starts, ends = at[good + 1 :], starts[good + 1 :], ends[good + 1 :]
