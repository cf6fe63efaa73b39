"""PendingEntries: a writer's entries that are not acknowledged: which bookies have them, and whose bytes are retained.

A bit mask for each pending entry says which bookies have it. Whether an entry may be acknowledged is derived from its
mask and never stored, so withdrawing the votes of a replaced bookie needs no flag to be undone. The bytes of an entry
are retained until every participating bookie has answered for it, because a bookie that refuses load gets it again;
with relaxed durability they may be retained until the entry is synced.

`Synced` is the `Durability` of a writer whose acknowledged entries are durable: it follows from these entries alone.
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
        self.next_entry = acknowledged + 1
        """The id that the next entry gets: those from `acknowledged` to it are pending. Grows by `add` alone."""
        self.kept_bytes = 0
        """Bytes of `batches`. Changed by `add`, `forget` and `clear`."""
        self.batches: deque[SealedEntries] = deque()
        """The batches whose bytes are retained, in entry order: all pending ones, and acknowledged ones before them."""
        self._votes = np.zeros(_VOTES_MIN, np.uint64)
        """votes[i]: mask of the slots that have pending entry acknowledged + 1 + i. Grown by doubling, shifted by
        `release`."""
        self._added_ns: deque[int] = deque()
        """When each of `batches` was added."""

    @property
    def count(self) -> int:
        """Entries added and not acknowledged."""
        return self.next_entry - self.acknowledged - 1

    @property
    def votes(self) -> np.ndarray:
        """For each pending entry the mask of slots that have it, uint64."""
        return self._votes[: self.count]

    def add(self, entries: SealedEntries, now_ns: int) -> None:
        """Add entries, which begin at `next_entry`, as pending."""
        before = self.next_entry - self.acknowledged - 1
        self.next_entry = entries.end_entry
        count = self.next_entry - self.acknowledged - 1
        if count > len(self._votes):
            grown = np.zeros(max(count, 2 * len(self._votes)), np.uint64)
            grown[:before] = self._votes[:before]
            self._votes = grown
        self._votes[before:count] = 0
        self.batches.append(entries)
        self._added_ns.append(now_ns)
        self.kept_bytes += len(entries.buffer)

    def vote(self, bit: np.uint64, entry_ids: np.ndarray, span: tuple[int, int] | None) -> None:
        """Record that a slot, given as a mask, has these entries; only pending ones count. `span`: from
        `slots.consecutive`.

        A vote counts only for entries whose write set names the slot.
        """
        first_pending = self.acknowledged + 1
        if span is not None:
            first, end = span
            self._votes[max(0, first - first_pending) : max(0, min(end, self.next_entry) - first_pending)] |= bit
            return
        at = entry_ids - first_pending
        self._votes[at[(at >= 0) & (at < self.count)]] |= bit

    def withdraw(self, bit: np.uint64) -> None:
        """Withdraw all votes of a slot, given as a mask: its bookie was replaced or begins again."""
        votes = self.votes
        votes &= ~bit

    def release(self, slots: Slots) -> bool:
        """Acknowledge the longest prefix of pending entries that Qa bookies have; return whether there is one."""
        first_pending = self.acknowledged + 1
        pending = self.next_entry - first_pending
        # Usually the first entry shows that nothing can be acknowledged.
        if not pending or self._votes.item(0).bit_count() < slots.ack_quorum:
            return False
        votes = self._votes[:pending]
        if slots.is_striped:
            ids = np.arange(first_pending, self.next_entry)
            votes = votes & write_set_masks(ids, len(slots.all), slots.write_quorum)
        ripe = np.bitwise_count(votes) >= slots.ack_quorum
        count = pending if ripe.all() else int(np.argmin(ripe))
        if not count:
            return False
        self.acknowledged += count
        if count < pending:
            self._votes[: pending - count] = self._votes[count:pending].copy()
        return True

    def forget(self, slots: Slots, retained_after: int) -> None:
        """Drop the bytes of entries up to `retained_after` for which no bookie owes an answer any more."""
        while self.batches:
            last_entry = self.batches[0].end_entry - 1
            if last_entry > retained_after:
                return
            for slot in slots.all:
                if slot.owed and slot.retains(last_entry):
                    return
            self.kept_bytes -= len(self.batches.popleft().buffer)
            self._added_ns.popleft()

    def sends(self, slot: Slot, entry_ids: np.ndarray) -> list[effects.SendAdds]:
        """Return sends of those of the entries that are retained. The slot counts them as sent already."""
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
        """Drop all bytes: the writer has ended, and nothing is sent any more."""
        self.batches.clear()
        self._added_ns.clear()
        self.kept_bytes = 0


class Synced:
    """An acknowledged entry is durable: the LAC is the last one acknowledged, and there is nothing to force."""

    replaces_bookies = True
    unsynced_bytes_max = None

    def __init__(self, pending: PendingEntries) -> None:
        self._pending = pending
        """The entries of the writer that are not acknowledged. This class only reads them."""

    @property
    def lac(self) -> int:
        return self._pending.acknowledged

    @property
    def retained_after(self) -> int:
        return self._pending.acknowledged

    def may_lose(self, slot: Slot) -> bool:
        return False

    def on_gone(self, slot: Slot) -> None:
        return None

    def confirm(self, now_ns: int) -> list[effects.WriterEffect]:
        return []

    def want(self) -> None:
        return None

    def wants_for_space(self) -> bool:
        return False

    def wants_for_time(self, now_ns: int) -> bool:
        return False

    def force(self, *, is_again: bool = False) -> list[effects.WriterEffect]:
        return []

    def takes(self, force: effects.Force) -> bool:
        return False

    def on_forced(self, force: effects.Force) -> None:
        return None

    def is_lost(self) -> bool:
        return False
