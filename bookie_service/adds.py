"""A run of adds, as arrays over the receive buffer that holds their frames.

The four bytes in front of an entry are the tail of its master key. Once the key is checked they become the item's
length word, so that what is copied into the write cache is already what journal and entry log hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bkspark.wire import v2
from bkspark.wire.digest import MASTER_KEY_BYTES
from bkspark.wire.framing import LENGTH_BYTES, gather_octets, scatter_i32
from bkspark.wire.v2 import Requests

ALL = slice(None)
_ITEM_AT = v2.ADD_HEAD_BYTES - LENGTH_BYTES


@dataclass(frozen=True, slots=True)
class AddRun:
    """Adds in order of arrival; `starts` are where their frame bodies begin, `sizes` the bytes of their items."""

    ledger_ids: np.ndarray
    entry_ids: np.ndarray
    flags: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, requests: Requests, start: int, end: int) -> AddRun:
        """Return requests[start:end], all of which are adds, not copied."""
        sizes = requests.ends - requests.starts - _ITEM_AT
        if end - start == len(requests):
            return cls(requests.ledger_ids, requests.entry_ids, requests.flags, requests.starts, sizes)
        rows = slice(start, end)
        return cls(
            requests.ledger_ids[rows],
            requests.entry_ids[rows],
            requests.flags[rows],
            requests.starts[rows],
            sizes[rows],
        )

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, rows: np.ndarray | slice) -> AddRun:
        """Return the chosen rows."""
        if isinstance(rows, slice) and rows == ALL:
            return self
        return AddRun(
            self.ledger_ids[rows], self.entry_ids[rows], self.flags[rows], self.starts[rows], self.sizes[rows]
        )

    @property
    def items_bytes_max(self) -> int:
        """Bytes that the items take at most: those from the first one's beginning to the last one's end."""
        return self.starts.item(-1) - self.starts.item(0) + self.sizes.item(-1)

    def first_key(self, octets: np.ndarray) -> bytes:
        """Return the master key of the first add."""
        at = self.starts.item(0) + v2.WORD_BYTES
        return octets[at : at + MASTER_KEY_BYTES].tobytes()

    def keys_match(self, octets: np.ndarray, key: bytes) -> bool | np.ndarray:
        """Say whether all adds carry a master key, or which do (bool per add)."""
        if len(self) == 1:
            return self.first_key(octets) == key
        keys = gather_octets(octets, self.starts + v2.WORD_BYTES, MASTER_KEY_BYTES)
        equal = keys == np.frombuffer(key, np.uint8)
        return True if equal.all() else equal.all(axis=1)

    def make_items(self, octets: np.ndarray) -> np.ndarray:
        """Turn the adds into items in place, which overwrites their keys; return where the items begin."""
        starts = self.starts + _ITEM_AT
        scatter_i32(octets, starts, self.sizes - LENGTH_BYTES)
        return starts
