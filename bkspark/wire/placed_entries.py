"""Entries of one ledger that lie in a buffer, in any order and with anything between them, and frames made of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bkspark.wire.framing import items_at, places


@dataclass(frozen=True, slots=True)
class PlacedEntries:
    """Entry entry_ids[i] is octets[starts[i]:][:sizes[i]]; arrays of equal length, int64.

    `octets` may be lent: then they are valid until the next read.
    """

    entry_ids: np.ndarray
    octets: memoryview
    starts: np.ndarray
    sizes: np.ndarray

    def __len__(self) -> int:
        return len(self.entry_ids)

    def take(self, rows: slice | np.ndarray) -> PlacedEntries:
        """Return the chosen entries."""
        return PlacedEntries(self.entry_ids[rows], self.octets, self.starts[rows], self.sizes[rows])


NO_TAILS = np.empty((1, 0), np.uint8)


def frames_around(fronts: np.ndarray, entries: PlacedEntries, tails: np.ndarray = NO_TAILS) -> bytes | memoryview:
    """Return fronts[i], entry i, tails[i] for each entry, back to back; at least one.

    `fronts` and `tails` are uint8, a row for each entry; of `tails` one row may do for all.
    """
    count, begin = fronts.shape
    size = entries.sizes.item(0)
    if not size or not bool((entries.sizes == size).all()):
        return _joined(fronts, entries, tails)
    end = begin + size
    frames = np.empty((count, end + tails.shape[1]), np.uint8)
    frames[:, :begin] = fronts
    # An entry is one value, so that numpy copies it at once and not byte by byte.
    whole = f"V{size}"
    np.ndarray((count,), whole, frames, begin, (frames.shape[1],))[...] = items_at(entries.octets, whole)[
        places(entries.starts)
    ]
    if tails.size:
        frames[:, end:] = tails
    return frames.reshape(-1).data


def _joined(fronts: np.ndarray, entries: PlacedEntries, tails: np.ndarray) -> bytes:
    count, view = len(fronts), entries.octets
    ends = (entries.starts + entries.sizes).tolist()
    parts: list[bytes | memoryview] = [tails[0].tobytes()] * (3 * count)
    parts[0::3] = _rows(fronts)
    parts[1::3] = [view[start:end] for start, end in zip(entries.starts.tolist(), ends)]
    if len(tails) > 1:
        parts[2::3] = _rows(tails)
    return b"".join(parts)


def _rows(octets: np.ndarray) -> list[bytes | memoryview]:
    """Return each row of uint8 rows."""
    view, width = memoryview(octets.tobytes()), octets.shape[1]
    return [view[at : at + width] for at in range(0, len(view), width)]
