"""PendingEntries: entries that were added and are not acknowledged, which bookies have them, and which bytes are
retained.

Which bookies have an entry is one bit mask for each pending entry. Whether an entry may be acknowledged is derived from
its mask and never stored, so that withdrawing the votes of a replaced bookie needs no flag to be undone. The bytes of
an entry are retained until every participating bookie has answered for it, because a bookie that refuses load gets it
again, and with relaxed durability until it is synced.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from bkspark.core import effects
from bkspark.core.slots import Slot, Slots
from bkspark.core.striping import write_set_masks
from bkspark.wire.digest import SealedEntries

_VOTES_MIN = 1024


class PendingEntries:
    """The entries of one writer, from the oldest whose bytes are retained to the newest."""

    def __init__(self, acknowledged: int) -> None:
        self.acknowledged = acknowledged
        """The last entry that is acknowledged; all before it are. Grows by `release` alone."""
        self.count = 0
        """Entries added and not acknowledged: they follow `acknowledged`. `add` adds, `release` subtracts."""
        self.kept_bytes = 0
        """Bytes of `batches`. Changed by `add`, `forget` and `clear`."""
        self.batches: deque[SealedEntries] = deque()
        """The batches whose bytes are retained, in entry order: all pending ones, and acknowledged ones before them."""
        self._votes = np.zeros(_VOTES_MIN, np.uint64)
        """votes[i]: slots that hold pending entry acknowledged + 1 + i. Grown by doubling, shifted on release."""
        self._added_ns: deque[int] = deque()
        """When each of `batches` was added."""

    @property
    def next_entry(self) -> int:
        """The id that the next entry gets."""
        return self.acknowledged + 1 + self.count

    @property
    def votes(self) -> np.ndarray:
        """For each pending entry the mask of slots that have it, uint64."""
        return self._votes[: self.count]

    def add(self, entries: SealedEntries, now_ns: int) -> None:
        """Entries that begin at `next_entry` are pending."""
        before, self.count = self.count, self.count + len(entries)
        if self.count > len(self._votes):
            grown = np.zeros(max(self.count, 2 * len(self._votes)), np.uint64)
            grown[:before] = self._votes[:before]
            self._votes = grown
        self._votes[before : self.count] = 0
        self.batches.append(entries)
        self._added_ns.append(now_ns)
        self.kept_bytes += len(entries.buffer)

    def vote(self, bit: np.uint64, entry_ids: np.ndarray, span: tuple[int, int] | None) -> None:
        """A slot, as a mask, has these entries; only pending ones count. `span`: as `owed.consecutive` returns it.

        A vote counts only for entries whose write set names the slot.
        """
        first_pending = self.acknowledged + 1
        if span is not None:
            first, end = span
            self._votes[max(0, first - first_pending) : max(0, min(end - first_pending, self.count))] |= bit
            return
        at = entry_ids - first_pending
        self._votes[at[(at >= 0) & (at < self.count)]] |= bit

    def withdraw(self, bit: np.uint64) -> None:
        """A slot, as a mask, no longer counts as having any pending entry."""
        self._votes[: self.count] &= ~bit

    def release(self, slots: Slots) -> bool:
        """Acknowledge the longest prefix of pending entries that Qa bookies have; return whether there is one."""
        if not self.count:
            return False
        votes = self._votes[: self.count]
        if votes.item(0).bit_count() < slots.ack_quorum:
            return False
        count = 1
        if slots.is_striped or self.count > 1:
            if slots.is_striped:
                ids = np.arange(self.acknowledged + 1, self.acknowledged + 1 + self.count)
                votes = votes & write_set_masks(ids, len(slots.all), slots.write_quorum)
            ripe = np.bitwise_count(votes) >= slots.ack_quorum
            count = self.count if ripe.all() else int(np.argmin(ripe))
            if not count:
                return False
        self.acknowledged += count
        self.count -= count
        if self.count:
            self._votes[: self.count] = self._votes[count : count + self.count].copy()
        return True

    def forget(self, slots: Slots, retained_after: int) -> None:
        """Release the bytes of entries up to `retained_after` that no bookie may refuse any more."""
        while self.batches:
            last_entry = self.batches[0].first_entry + len(self.batches[0]) - 1
            if last_entry > retained_after:
                return
            for slot in slots.all:
                if slot.owed and slot.retains(last_entry):
                    return
            self.kept_bytes -= len(self.batches.popleft().buffer)
            self._added_ns.popleft()

    def sends(self, slot: Slot, entry_ids: np.ndarray) -> list[effects.SendAdds]:
        """Return sends of the retained ones of the entries to a slot, which counts them already."""
        found = []
        for entries in self.batches:
            positions = entry_ids - entries.first_entry
            positions = positions[(positions >= 0) & (positions < len(entries))]
            if len(positions):
                found.append(effects.SendAdds(slot.number, slot.bookie, entries, np.sort(positions)))
        return found

    def first_retained(self, lac: int) -> int:
        """Return the first entry above `lac` whose bytes are retained, or the next one to be added."""
        return max(lac + 1, self.batches[0].first_entry if self.batches else self.next_entry)

    def added_ns(self, entry_id: int, now_ns: int) -> int:
        """Return when a retained entry was added; for another entry, now."""
        for batch, added_ns in zip(self.batches, self._added_ns):
            if entry_id < batch.first_entry + len(batch):
                return added_ns
        return now_ns

    def bytes_between(self, after: int, last_entry: int) -> int:
        """Return the bytes of the batches that begin after one entry, and not after another one."""
        return sum(len(batch.buffer) for batch in self.batches if after < batch.first_entry <= last_entry)

    def clear(self) -> None:
        """The writer has ended: nothing is sent any more."""
        self.batches.clear()
        self._added_ns.clear()
        self.kept_bytes = 0
