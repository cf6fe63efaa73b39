"""CRCs of many entries at once: what a call of the C library per entry would cost is saved by the CRC's linearity.

Write R(m) for the register after message m when it began at zero: linear over GF(2) for messages of one length. S(n,
c) is the register c after n zero bytes: linear, and one to one, because x has an inverse modulo a polynomial with a
constant term. Then R(a + b) = S(len(b), R(a)) xor R(b), and crc(m, v), the CRC of something whose CRC is v followed
by m, is not (S(len(m), not v) xor R(m)).

**A run** is p[0] q[1] p[1] q[2] .. p[k - 1]: payloads of n bytes each, and what lies between them in a buffer, q[j]
of g bytes: a gap, the header and the stored digest of entry j. With h[j] the header's CRC, entry j is right when its
digest d[j] = crc(p[j], h[j]). If all are, the CRC of the run, continued from h[0], is d[0] after p[0], crc(q[1],
d[0]) after q[1]; setting it to h[1] there, by an xor, would make it d[1] after p[1], and so on. What those xors would
have added to the end is known by linearity:

    crc(run, h[0]) = d[k - 1] xor S(n, F)
    F = xor over j = 1 .. k - 1 of S((k - 1 - j) (n + g), crc(q[j], d[j - 1]) xor h[j])

The left side is one call. The terms of F come from look-ups in tables by column (only columns that vary cost
anything), F from them by halving: a step shifts every second term by one distance, which is four look-ups.

**What it notices.** Let e[i] = d[i] xor crc(p[i], h[i]), what a check of entry i alone would see. The two sides
differ by the xor of S((k - 1 - i) (n + g), e[i]).

* If one entry is wrong, they differ for certain, S being one to one: nothing that a check of its own would notice is
  missed.
* If several are, the sides differ as if one CRC stood over all: a flipped bit of a payload, header or digest counts
  as one of one message of k (n + g) bytes, each at a place of its own (payloads where they are, headers before them,
  digests in the four bytes behind their payload; g is at least 36). So below `RUN_BYTES_MAX` every pattern of up to
  three flipped bits is noticed by CRC-32C (two by CRC-32, whose reach ends there for long messages), any burst within
  32 bits of a payload, and of other damage all but 2**-32: the odds that one damaged entry keeps its digest.

A run that is not right is checked entry by entry, to tell which is not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import numpy as np

RUN_ENTRIES_MIN = 64
"""Fewer are checked one by one: the tables for a new size cost as much as some hundred calls."""
RUN_ENTRY_BYTES_MAX = 64 << 10
"""Larger entries are checked one by one: beside their bytes a call is nothing."""
RUN_BYTES_MAX = 64 << 20
"""Longer runs are checked entry by entry; a frame is far below."""
GAP_BYTES_MAX = 64
"""Entries further apart are checked one by one."""

_CRC_BYTES = 4
_TABLES_MAX = 512
"""Shift tables kept, of 4 KiB; a size needs one for each power of two up to the entries of a run."""
_BITS_OF_BYTES = (np.arange(256)[:, None] >> np.arange(8) & 1).astype(np.uint32)


class CrcKind:
    """One reflected 32-bit CRC: a C function for messages, arrays for many at once."""

    def __init__(self, function: Callable[..., int], header_bytes: int) -> None:
        self._function = function
        self._header_bytes = header_bytes
        self._headers = _Rows(self._byte_tables(header_bytes), function)
        self._shift_tables = functools.lru_cache(maxsize=_TABLES_MAX)(self._make_shift_tables)
        self._between = functools.lru_cache(maxsize=GAP_BYTES_MAX)(self._make_between)

    def of(self, data: bytes | bytearray | memoryview, start: int = 0) -> int:
        """Return the CRC of what has the CRC `start`, followed by `data`."""
        return self._function(data, start)

    def of_headers(self, rows: np.ndarray) -> np.ndarray:
        """Return uint32 (n,), the CRCs of uint8 (n, header_bytes)."""
        return self._headers.of(rows)

    def of_each(self, view: memoryview, bounds: Iterable[tuple[int, int]], starts: np.ndarray) -> np.ndarray:
        """Return uint32 (n,), the CRC of each view[low:high], continued from starts[i]."""
        function = self._function
        # Each view lives for one call: a list of thousands makes the cycle collector run.
        crcs = [function(view[low:high], start) for (low, high), start in zip(bounds, starts.tolist())]
        return np.array(crcs, np.uint32)

    def run_is_right(
        self,
        run: memoryview,
        entry_bytes: int,
        between: np.ndarray,
        gap_bytes: int,
        header_crc: int,
        stored: np.ndarray,
    ) -> bool:
        """Tell whether every entry of a run matches its stored CRC; the module says how surely.

        Args:
            run: from the first payload to the end of the last.
            entry_bytes: size of each payload.
            between: uint8 (k - 1, g), what lies before the second and later payloads: gap, header, digest.
            gap_bytes: of `between`, before the header.
            header_crc: of the first entry's header.
            stored: uint32 (k,), the CRCs stored with the entries.
        """
        found = self._function(run, header_crc)
        joints = between.copy()
        joints[:, :_CRC_BYTES] ^= stored[:-1].astype("<u4").view(np.uint8).reshape(-1, _CRC_BYTES)
        terms = self._between(gap_bytes, joints.shape[1]).of(joints)
        folded = self._folded(terms, entry_bytes + joints.shape[1])
        return found == int(stored[-1]) ^ int(_mapped(folded, self._shift_tables(entry_bytes))[0])

    def _folded(self, values: np.ndarray, distance: int) -> np.ndarray:
        """Return uint32 (1,), the xor of S((n - 1 - i) distance, values[i]); n is at least 1."""
        while len(values) > 1:
            if len(values) % 2:
                values = np.concatenate((np.zeros(1, np.uint32), values))
            values = _mapped(values[0::2], self._shift_tables(distance)) ^ values[1::2]
            distance *= 2
        return values

    def _register(self, message: bytes, start: int = 0) -> int:
        """Return the register after a message: R, where it starts at zero."""
        return ~self._function(message, ~start & 0xFFFFFFFF) & 0xFFFFFFFF

    def _make_shift_tables(self, distance: int) -> np.ndarray:
        """Return the tables of S(distance, .), see `_mapped`."""
        powers = np.left_shift(np.uint32(1), np.arange(32, dtype=np.uint32))
        if distance and distance % 2 == 0:
            half = self._shift_tables(distance // 2)
            columns = _mapped(_mapped(powers, half), half)
        else:
            zeros = bytes(distance)
            columns = np.array([self._register(zeros, power) for power in powers.tolist()], np.uint32)
        return _tables_of(columns)

    def _byte_tables(self, width: int) -> np.ndarray:
        """Return uint32 (width, 256): R of a message of `width` bytes that are zero but for one."""
        messages = ((bytes(at), 1 << bit, bytes(width - at - 1)) for at in range(width) for bit in range(8))
        columns = [self._register(before + bytes((value,)) + after) for before, value, after in messages]
        return _tables_of(np.array(columns, np.uint32))

    def _make_between(self, gap_bytes: int, width: int) -> _Rows:
        """Return what gives crc(q) xor the CRC of the header in q."""
        tables = self._byte_tables(width)
        header_end = gap_bytes + self._header_bytes
        tables[gap_bytes:header_end] ^= self._byte_tables(self._header_bytes)
        return _Rows(tables, lambda row: self._function(row) ^ self._function(row[gap_bytes:header_end]))


class _Rows:
    """A sum of CRCs over rows of bytes: its value for one row, and what each byte of it adds when it changes."""

    def __init__(self, tables: np.ndarray, whole: Callable[[bytes], int]) -> None:
        self._tables = tables
        self._whole = whole

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Return uint32 (n,) for uint8 (n, width), n at least 1."""
        varying = np.flatnonzero((rows != rows[0]).any(axis=0)).tolist()
        template = bytearray(rows[0])
        for column in varying:
            template[column] = 0
        values = np.full(len(rows), self._whole(bytes(template)), np.uint32)
        for column in varying:
            values ^= self._tables[column][rows[:, column]]
        return values


def _tables_of(columns: np.ndarray) -> np.ndarray:
    """Return uint32 (n, 256): what each byte of a row gives, from what each of its bits, uint32 (8 n,), gives."""
    return np.bitwise_xor.reduce(_BITS_OF_BYTES * columns.reshape(-1, 1, 8), axis=2)


def _mapped(values: np.ndarray, tables: np.ndarray) -> np.ndarray:
    """Return the linear map of `tables`, uint32 (4, 256), low byte first, for each value, uint32 (n,)."""
    mapped = tables[0][values & 0xFF]
    for place in (1, 2, 3):
        mapped ^= tables[place][values >> np.uint32(8 * place) & 0xFF]
    return mapped
