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
        rows = slice(start, end)
        return cls(
            requests.ledger_ids[rows],
            requests.entry_ids[rows],
            requests.flags[rows],
            requests.starts[rows],
            requests.ends[rows] - requests.starts[rows] - _ITEM_AT,
        )

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, rows: np.ndarray | slice) -> AddRun:
        """Return the chosen rows."""
        return AddRun(
            self.ledger_ids[rows], self.entry_ids[rows], self.flags[rows], self.starts[rows], self.sizes[rows]
        )

    def keys(self, octets: np.ndarray) -> np.ndarray:
        """Return (n, 20) uint8, the master keys."""
        return gather_octets(octets, self.starts + v2.WORD_BYTES, MASTER_KEY_BYTES)

    def make_items(self, octets: np.ndarray) -> np.ndarray:
        """Turn the adds into items in place, which overwrites their keys; return where the items begin."""
        starts = self.starts + _ITEM_AT
        scatter_i32(octets, starts, self.sizes - LENGTH_BYTES)
        return starts
