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

    def take(self, rows: slice) -> PlacedEntries:
        """Return the chosen entries."""
        return PlacedEntries(self.entry_ids[rows], self.octets, self.starts[rows], self.sizes[rows])


def frames_around(fronts: np.ndarray, entries: PlacedEntries, tail: bytes = b"") -> bytes | memoryview:
    """Return fronts[i], entry i, tail for each entry, back to back; fronts is uint8, a row each; at least one."""
    count, begin = fronts.shape
    size = entries.sizes.item(0)
    if not size or not bool((entries.sizes == size).all()):
        return _joined(fronts, entries, tail)
    end = begin + size
    frames = np.empty((count, end + len(tail)), np.uint8)
    frames[:, :begin] = fronts
    # An entry is one value, so that numpy copies it at once and not byte by byte.
    whole = f"V{size}"
    np.ndarray((count,), whole, frames, begin, (frames.shape[1],))[...] = items_at(entries.octets, whole)[
        places(entries.starts)
    ]
    if tail:
        frames[:, end:] = np.frombuffer(tail, np.uint8)
    return frames.reshape(-1).data


def _joined(fronts: np.ndarray, entries: PlacedEntries, tail: bytes) -> bytes:
    count, begin = fronts.shape
    octets, view = memoryview(fronts.tobytes()), entries.octets
    ends = (entries.starts + entries.sizes).tolist()
    parts: list[bytes | memoryview] = [tail] * (3 * count)
    parts[0::3] = [octets[at : at + begin] for at in range(0, len(octets), begin)]
    parts[1::3] = [view[start:end] for start, end in zip(entries.starts.tolist(), ends)]
    return b"".join(parts)
