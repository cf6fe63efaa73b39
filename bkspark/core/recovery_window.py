"""RecoveryWindow: the entries that a recovery reads at once: which bookies were asked, and what they answered.

Everything is an array over the entries of the window; sets of slots are bit masks, as in `striping`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import numpy as np

from bkspark.core.striping import write_set_masks
from bkspark.entries import EntryBatch


class Response(enum.IntEnum):
    """The answer of one bookie for one entry; in arrays, uint8."""

    FOUND = 1
    NEGATIVE = 2
    FAILED = 3
    REFUSED = 4


class RecoveryWindow:
    """Entries [first_entry, first_entry + count) of one fragment."""

    def __init__(self, first_entry: int, count: int, ensemble_size: int, write_quorum: int) -> None:
        self.first_entry = first_entry
        """The id of the first entry of the window. Constant."""
        self.entry_ids = np.arange(first_entry, first_entry + count)
        """Constant; the other arrays are in step with it."""
        self.waiting = np.zeros(count, np.uint64)
        """The slots that have not answered for each entry. `choose` adds, `take` removes."""
        self.unasked = write_set_masks(self.entry_ids, ensemble_size, write_quorum)
        """The slots that may still be asked for each entry. `choose` removes, `take` returns those that refuse."""
        self.negatives = np.zeros(count, np.uint8)
        """How many slots answered that they do not have each entry. Grows, by `take` alone."""
        self.found = np.zeros(count, bool)
        """Whether a slot returned the entry. Set by `take` alone, once."""
        self.lengths = np.zeros(count, np.int64)
        """The cumulative length of each found entry, otherwise 0."""
        self.payloads: list[bytes | memoryview] = [b""] * count
        """The payload of each found entry, otherwise empty."""
        self._ensemble_size = ensemble_size
        """E of the ledger. Constant."""
        self._write_quorum = write_quorum
        """Qw of the ledger. Constant."""

    def __len__(self) -> int:
        return len(self.entry_ids)

    def choose(self, rows: np.ndarray | slice, replicas: int, dead: int, resting: int) -> dict[int, np.ndarray]:
        """Return the entries to read from each slot: each of `rows` from up to `replicas` slots not asked yet.

        A chosen slot owes an answer from now on. `dead` and `resting` are masks of slots: dead ones are never asked
        again, resting ones are asked later.
        """
        ids = self.entry_ids[rows]
        left = self.unasked[rows] & np.uint64(~dead & _ALL)
        able = left & np.uint64(~resting & _ALL)
        asked = np.zeros(len(ids), np.uint64)
        chosen: dict[int, np.ndarray] = {}
        if able.any():
            room = np.full(len(ids), replicas)
            for preference in range(self._write_quorum):
                bits = np.uint64(1) << ((ids + preference) % self._ensemble_size).astype(np.uint64)
                taken = (able & bits != 0) & (room > 0)
                asked |= np.where(taken, bits, np.uint64(0))
                room -= taken
            for slot in range(self._ensemble_size):
                mine = asked & np.uint64(1 << slot) != 0
                if mine.any():
                    chosen[slot] = ids[mine]
        self.unasked[rows] = left & ~asked
        self.waiting[rows] |= asked
        return chosen

    def take(
        self,
        slot: int,
        entry_ids: np.ndarray,
        answers: np.ndarray,
        payloads: Sequence[bytes | memoryview | None],
        lengths: np.ndarray,
    ) -> np.ndarray:
        """Record the answers of the bookie in `slot`; return the answers that were due."""
        bit = np.uint64(1 << slot)
        rows = entry_ids - self.first_entry
        places = np.flatnonzero((rows >= 0) & (rows < len(self)))
        places = places[self.waiting[rows[places]] & bit != 0]
        rows, answers = rows[places], answers[places]
        self.waiting[rows] &= ~bit
        self.negatives[rows] += answers == Response.NEGATIVE
        self.unasked[rows[answers == Response.REFUSED]] |= bit
        new = (answers == Response.FOUND) & ~self.found[rows]
        places, found = places[new], rows[new]
        self.found[found] = True
        self.lengths[found] = lengths[places]
        for row, place in zip(found.tolist(), places.tolist()):
            payload = payloads[place]
            assert payload is not None
            self.payloads[row] = payload
        return answers

    def found_ahead(self) -> int:
        """Return how many entries were found before the first missing one."""
        return len(self) if self.found.all() else int(np.argmin(self.found))

    def undecided(self, negatives_needed: int) -> tuple[np.ndarray, bool]:
        """Return the rows for which another bookie must be asked, and whether a row before the end waits for an answer.

        Entries above the first missing one are not part of the ledger, even if a bookie has them. Rows after a waiting
        one are decided later.
        """
        missing = ~self.found & (self.negatives >= negatives_needed)
        end = int(np.argmax(missing)) if missing.any() else len(self)
        rows = np.flatnonzero(~self.found[:end])
        waits = self.waiting[rows] != 0
        if not waits.any():
            return rows, False
        return rows[: int(np.argmax(waits))], True

    def batch(self, count: int, ledger_id: int) -> EntryBatch:
        """Return the first `count` entries, copied once into one buffer."""
        return EntryBatch.of(self.payloads[:count], ledger_id, self.first_entry)


_ALL = (1 << 64) - 1
