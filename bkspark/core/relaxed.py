"""Relaxed durability at the writer: which entries are synced, as far as bookies said so. Decisions only.

An add of such a ledger is acknowledged from the page cache of Qa bookies. The LAC counts only what is synced: a bookie
tells with each answer its LastAddSynced, "of what you send me, all up to here is durable", and says the same of all
that it has acknowledged when it answers a force. What follows from that is `confirmed_up_to`.

docs/relaxed-durability.md has the whole protocol, and the proof for striped ledgers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bkspark.core.striping import write_set
from bkspark.ids import NO_ENTRY


@dataclass(frozen=True, slots=True)
class RelaxedDurability:
    """How a writer of a ledger with relaxed durability behaves; what goes beyond the proposal is off.

    striped: E > Qw is allowed.
    changes_ensemble: a lost bookie is replaced. Entries are kept until they are synced, and sent again to the new one;
        `unsynced_bytes_max` bounds what is kept, before callers wait.
    force_interval_ns: bookies are asked to sync when the LAC has not moved for so long though there is what it could
        move to; readers see no further than it. 0: only `sync` asks.

    Raises:
        ValueError: a number is out of range, or a switch neither True nor False.
    """

    striped: bool = False
    changes_ensemble: bool = False
    unsynced_bytes_max: int = 128 * 1024 * 1024
    force_interval_ns: int = 1_000_000_000

    def __post_init__(self) -> None:
        for name in ("striped", "changes_ensemble"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is {getattr(self, name)!r}, it is True or False")
        if not isinstance(self.unsynced_bytes_max, int) or self.unsynced_bytes_max < 1:
            raise ValueError(f"unsynced_bytes_max is {self.unsynced_bytes_max!r}, it is a whole number, at least 1")
        if not isinstance(self.force_interval_ns, int) or self.force_interval_ns < 0:
            raise ValueError(
                f"force_interval_ns is {self.force_interval_ns!r}, it is 0 (never) or more, a whole number"
            )


def confirmed_up_to(last_synced: Sequence[int], write_quorum: int, ack_quorum: int) -> int:
    """Return the highest id up to which every entry is synced by Qa bookies of its write set.

    Args:
        last_synced: per slot, all entries up to this one that the slot stores are synced there; -1: none is.

    The proposal's rule for E = Qw, max(ascending LastAddSynced[0 .. Qw - Qa]), and for striped ledgers the same for
    each of the E write sets: entries of one write set are synced up to its bound, and the first that lies above its
    own bound ends the prefix.

    >>> confirmed_up_to([7, 3, 5], write_quorum=3, ack_quorum=2)
    5
    >>> confirmed_up_to([4, 4, 1], write_quorum=2, ack_quorum=2)
    1
    """
    size = len(last_synced)
    if write_quorum == size:
        return sorted(last_synced)[write_quorum - ack_quorum]
    ends = []
    for residue in range(size):
        bound = sorted(last_synced[slot] for slot in write_set(residue, size, write_quorum))[write_quorum - ack_quorum]
        # The first entry above the bound that this write set stores.
        ends.append(bound + (residue - bound - 1) % size)
    return min(ends)


class SyncProgress:
    """What is known to be synced in each slot, the LAC that follows, and the force that is under way.

    A force asks every slot that takes part; once a slot has answered, what it had acknowledged when it was asked is
    synced there. That counts only as far as the slot's bookie has had everything since the LAC on one connection: one
    that went away may have lost what it had acknowledged.
    """

    def __init__(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        self.lac = NO_ENTRY
        self.target = NO_ENTRY
        """The entry up to which somebody wants all synced."""
        self._quorums = (write_quorum, ack_quorum)
        self._last_synced = [NO_ENTRY] * ensemble_size
        self._complete_from = [0] * ensemble_size
        self._forced: dict[int, int] = {}
        self._forced_to = NO_ENTRY
        self.round = 0
        """How many forces were begun; answers to earlier ones than the last count for nothing."""

    @property
    def is_forcing(self) -> bool:
        """Whether a slot owes an answer to a force."""
        return bool(self._forced)

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for entries that are not confirmed yet."""
        return self.target > self.lac

    @property
    def is_asked(self) -> bool:
        """Whether the last force asked for all that is wanted."""
        return self._forced_to >= self.target

    def may_lose(self, slot: int, answered_to: int) -> bool:
        """Whether the bookie in `slot` has acknowledged entries of which nobody knows that they are synced there."""
        return answered_to > self._last_synced[slot]

    def on_last_synced(self, slot: int, entry_id: int) -> None:
        """The bookie in `slot` said that all up to `entry_id` is synced."""
        self._last_synced[slot] = max(self._last_synced[slot], entry_id)

    def take_in(self, slot: int, first_entry: int, *, is_new: bool) -> None:
        """The slot gets entries from `first_entry` on, on a new connection; `is_new`: to another bookie."""
        if is_new:
            self._last_synced[slot] = self.lac
        self._complete_from[slot] = first_entry

    def force(self, answered: Mapping[int, int], acknowledged: int) -> None:
        """A force goes to the slots in `answered`: what each has acknowledged; -1 where that has gaps."""
        self.round += 1
        self._forced_to = acknowledged
        self._forced = dict(answered)

    def on_forced(self, slot: int) -> None:
        """The bookie in `slot` answered the force."""
        answered_to = self._forced.pop(slot, NO_ENTRY)
        if self._complete_from[slot] <= self.lac + 1:
            self.on_last_synced(slot, answered_to)

    def drop(self, slot: int) -> None:
        """The bookie in `slot` will not answer the force; it takes another one to have asked all."""
        if self._forced.pop(slot, None) is not None:
            self._forced_to = NO_ENTRY

    def advance(self, acknowledged: int) -> bool:
        """Move the LAC to what is synced, at most to `acknowledged`; return whether it moved."""
        before = self.lac
        self.lac = max(before, min(confirmed_up_to(self._last_synced, *self._quorums), acknowledged))
        return self.lac > before
