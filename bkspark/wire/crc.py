"""CrcKind: checks the CRCs of many entries with one call of the C library instead of one call for each.

**A run** is p[0] q[1] p[1] q[2] .. p[k - 1]: payloads, and what lies between them in a buffer, the joints q[j]: each is
a gap, the header and the stored digest of entry j. With h[j] the header's CRC, entry j is right when its digest d[j] =
crc(p[j], h[j]), the CRC of what has the CRC h[j], followed by p[j].

While a run is checked its joints hold other bytes, all of one size:

    offset  size  field
    0       4     not d[j - 1], least byte first
    4       g     zeros: as many bytes as joints have more than 4 and the header
    4 + g   32    header j, its first four bytes inverted

If entry j - 1 is right, the register after its payload, which is the inverse of its CRC, becomes zero over the first
field and stays zero over the second; and starting at zero, a message with its first four bytes inverted gives the same
register as the message itself gives from the initial ones of a CRC. So if all are right, crc(run, h[0]) = d[k - 1].

**What it notices.** Write S(n, c) for the register c after n zero bytes: linear over GF(2), and one to one, because x
has an inverse modulo a polynomial with a constant term. Let e[i] = d[i] xor crc(p[i], h[i]), what a check of entry i
alone would see. By linearity crc(run, h[0]) xor d[k - 1] is the xor of S(b[i], e[i]), where b[i] bytes of the run
follow p[i].

* If one entry is wrong, the result is certainly not zero, as S is one to one: every error that a check of the single
  entry finds is found.
* If several are wrong, the check is equivalent to one CRC over all: a flipped bit of a payload, header or digest counts
  as one bit of a message of the run's bytes, each at its own offset (payloads where they are, headers before them,
  digests in the four bytes after their payload). So below `RUN_BYTES_MAX` it notices every pattern of up to three
  flipped bits with CRC-32C (up to two with CRC-32, whose reach ends there for long messages), and any burst within 32
  bits of a payload. It misses other damage with a probability of 2**-32, the odds that one damaged entry keeps its
  digest.

A run that is not right is checked entry by entry, to find the wrong one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import numpy as np

from bkspark.wire.framing import items_at, places

RUN_ENTRIES_MIN = 32
"""Fewer entries are checked one by one: the fixed cost of a run equals this many calls."""
RUN_BYTES_MAX = 64 << 20
"""Longer runs are checked entry by entry; a frame is far smaller."""
GAP_BYTES_MAX = 256
"""Entries further apart are checked one by one."""

_BITS_OF_BYTES = (np.arange(256)[:, None] >> np.arange(8) & 1).astype(np.uint32)


class CrcKind:
    """One reflected 32-bit CRC: of one message by a C function, of many headers or a run by arrays."""

    def __init__(self, function: Callable[..., int], header_bytes: int) -> None:
        self.of = function
        """`of(data, start=0)` returns the CRC of what has the CRC `start`, followed by `data`. Constant."""
        self._header_bytes = header_bytes
        """The length of the headers that `_header_tables` are for. Constant."""
        self._header_tables = self._tables(header_bytes)
        self._joint = functools.lru_cache(maxsize=GAP_BYTES_MAX)(self._make_joint)

    def of_headers(self, rows: np.ndarray) -> np.ndarray:
        """Return uint32 (n,), the CRCs of uint8 (n, header_bytes), n at least 1, by look-ups for columns that vary."""
        varying = np.flatnonzero((rows != rows[0]).any(axis=0)).tolist()
        template = bytearray(rows[0])
        for column in varying:
            template[column] = 0
        values = np.full(len(rows), self.of(bytes(template)), np.uint32)
        for column in varying:
            values ^= self._header_tables[column][rows[:, column]]
        return values

    def of_each(self, view: memoryview, bounds: Iterable[tuple[int, int]], starts: np.ndarray) -> np.ndarray:
        """Return uint32 (n,), the CRC of each view[low:high], continued from starts[i]."""
        function = self.of
        # Each view exists for one call only: a list of thousands triggers the cycle collector.
        crcs = [function(view[low:high], start) for (low, high), start in zip(bounds, starts.tolist())]
        return np.array(crcs, np.uint32)

    def run_is_right(
        self, run: memoryview, joints: np.ndarray, joint_bytes: int, headers: np.ndarray, stored: np.ndarray
    ) -> bool:
        """Return whether every entry of a run matches its stored CRC; the module's text states how reliably.

        Args:
            run: from the first payload to the end of the last; writable, and afterwards as it was.
            joints: int64 (k - 1,), where the bytes between two payloads begin.
            joint_bytes: size of each, at least those of a header and a CRC.
            headers: opaque items of header_bytes (k,).
            stored: uint32 (k,), the CRCs stored with the entries.
        """
        put = np.zeros(len(joints), self._joint(joint_bytes))
        put["crc_before"] = ~stored[:-1]
        put["header"] = headers[1:]
        put["header_start"] ^= 0xFFFFFFFF
        items, at = items_at(run, f"V{joint_bytes}"), places(joints)
        kept = items[at].copy()
        items[at] = put.view(items.dtype)
        try:
            found = self.of(run, self.of(headers[0].tobytes()))
        finally:
            items[at] = kept
        return found == stored.item(-1)

    def _make_joint(self, joint_bytes: int) -> np.dtype:
        header_at = joint_bytes - self._header_bytes
        return np.dtype(
            {
                "names": ["crc_before", "header", "header_start"],
                "formats": ["<u4", f"V{self._header_bytes}", "<u4"],
                "offsets": [0, header_at, header_at],
                "itemsize": joint_bytes,
            }
        )

    def _tables(self, width: int) -> np.ndarray:
        """Return uint32 (width, 256): what a byte adds to the CRC of a message of `width` bytes, by its column."""
        alone = (bytes(at) + bytes((1 << bit,)) + bytes(width - at - 1) for at in range(width) for bit in range(8))
        zeros = self.of(bytes(width))
        of_bits = np.array([self.of(message) ^ zeros for message in alone], np.uint32)
        return np.bitwise_xor.reduce(_BITS_OF_BYTES * of_bits.reshape(-1, 1, 8), axis=2)
