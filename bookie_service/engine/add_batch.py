"""Adds that arrived together, as arrays over the receive buffer that holds their frames.

The four bytes before an entry are part of its frame. They are no longer needed once the frame is decoded and its master
key checked. They become the item's length word, so that the bytes copied into the write cache are already those that
journal and entry log hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bkspark.wire.flags import RECOVERY_ADD
from bkspark.wire.framing import LENGTH_BYTES, gather, gather_octets, scatter_i32
from bkspark.wire.lac import may_add_each
from bkspark.wire.layout import LAC_AT, MASTER_KEY_BYTES
from bkspark.wire.status import EOK
from bookie_service.engine.responses import AddResponseEncoder

ALL = slice(None)
_LAC_END = LENGTH_BYTES + LAC_AT + 8


@dataclass(frozen=True, slots=True)
class AddBatch:
    """Adds in order of arrival.

    flags: RECOVERY_ADD and HIGH_PRIORITY of each add.
    item_starts, sizes: where the items begin, and their sizes in bytes: the length word, then the entry.
    key_starts: where the master keys begin.
    is_deferred: the adds are answered before they are durable. bypasses_journal: moreover, they are not journaled.
    """

    ledger_ids: np.ndarray
    entry_ids: np.ndarray
    flags: np.ndarray
    item_starts: np.ndarray
    sizes: np.ndarray
    key_starts: np.ndarray
    encoder: AddResponseEncoder
    is_deferred: bool = False
    bypasses_journal: bool = False

    def __len__(self) -> int:
        return len(self.item_starts)

    def take(self, rows: np.ndarray | slice) -> AddBatch:
        """Return the chosen rows."""
        if isinstance(rows, slice) and rows == ALL:
            return self
        return AddBatch(
            self.ledger_ids[rows],
            self.entry_ids[rows],
            self.flags[rows],
            self.item_starts[rows],
            self.sizes[rows],
            self.key_starts[rows],
            self.encoder.take(rows),
            self.is_deferred,
            self.bypasses_journal,
        )

    def encode_responses(self, statuses: int | np.ndarray, last_synced: np.ndarray | None = None) -> bytes:
        """Return the responses to all adds; `last_synced`: LastAddSynced of each."""
        return self.encoder.added(statuses, self.ledger_ids, self.entry_ids, last_synced)

    def lac_of(self, octets: np.ndarray, row: int) -> int:
        """Return the LAC that an entry carries."""
        at = self.item_starts.item(row) + LENGTH_BYTES + LAC_AT
        return int.from_bytes(octets[at : at + 8].tobytes(), "big", signed=True)

    def newest(self, octets: np.ndarray, ledger_id: int) -> tuple[int, np.ndarray, int]:
        """Return (ledger id, entry ids, LAC in the newest entry). All adds must be of this ledger."""
        return ledger_id, self.entry_ids, self.lac_of(octets, -1)

    def lacs_are_right(self, octets: np.ndarray) -> bool | np.ndarray:
        """Return whether the LACs of the adds are possible ones (`bkspark.wire.lac`): one bool for all, or one per add.

        An entry that ends before its LAC has no right one: Apache's storages refuse it with EBADREQ, too.
        """
        has_lac = self.sizes >= _LAC_END
        if has_lac.all():
            right = self._have_right_lacs(octets, slice(None))
        else:
            right = np.zeros(len(self), bool)
            rows = np.flatnonzero(has_lac)
            right[rows] = self._have_right_lacs(octets, rows)
        return True if right.all() else right

    def _have_right_lacs(self, octets: np.ndarray, rows: slice | np.ndarray) -> np.ndarray:
        lacs = gather(octets, self.item_starts[rows] + (LENGTH_BYTES + LAC_AT), ">i8")
        return may_add_each(self.entry_ids[rows], lacs, (self.flags[rows] & RECOVERY_ADD) != 0)

    @property
    def items_bytes_max(self) -> int:
        """Upper bound of the items' bytes: those from the beginning of the first to the end of the last."""
        return self.item_starts.item(-1) - self.item_starts.item(0) + self.sizes.item(-1)

    def count_within(self, room: int, bytes_per_entry: int) -> int:
        """Return how many of the first items fit into `room` bytes, where each costs `bytes_per_entry` more."""
        if self.items_bytes_max + len(self) * bytes_per_entry <= room:
            return len(self)
        return int(np.cumsum(self.sizes + bytes_per_entry).searchsorted(room, side="right"))

    def first_key(self, octets: np.ndarray) -> bytes:
        """Return the master key of the first add."""
        at = self.key_starts.item(0)
        return octets[at : at + MASTER_KEY_BYTES].tobytes()

    def keys_match(self, octets: np.ndarray, key: bytes) -> bool | np.ndarray:
        """Return whether the adds carry a master key: one bool for all, or one per add."""
        keys = gather_octets(octets, self.key_starts, MASTER_KEY_BYTES)
        # Every byte is compared. `==` with `all` ends at the first difference, and its time would reveal how much of a
        # key is right.
        differences = keys ^ np.frombuffer(key, np.uint8)
        if not np.bitwise_or.reduce(differences, axis=None):
            return True
        equal: np.ndarray = np.bitwise_or.reduce(differences, axis=1) == 0
        return equal

    def make_items(self, octets: np.ndarray) -> np.ndarray:
        """Turn the adds into items in place, which overwrites part of their frames; return where the items begin."""
        scatter_i32(octets, self.item_starts, self.sizes - LENGTH_BYTES)
        return self.item_starts


def statuses_of_rows(
    groups: Sequence[tuple[int, slice | np.ndarray]], judged: Sequence[int | np.ndarray], count: int
) -> int | np.ndarray:
    """Return the status of each of `count` adds, from those of each ledger's adds; EOK alone if all are accepted."""
    if all(isinstance(status, int) and status == EOK for status in judged):
        return EOK
    statuses = np.empty(count, np.int32)
    for (_, rows), status in zip(groups, judged):
        statuses[rows] = status
    return statuses
