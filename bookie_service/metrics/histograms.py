"""Histograms of whole numbers, such as microseconds or bytes. Pure: callers pass the numbers.

Each power of two has 16 buckets of equal width, so a quantile is wrong by at most 1/32 of its value. Numbers below 32
have buckets of their own. Counts and sums only grow. `roll` closes a window; quantiles are those of the last closed
window, as in Apache's metrics.

Many numbers are recorded at once, each with a weight: the number of requests that share it. Recording one number costs
half a microsecond, recording a thousand together about a hundred. A `Histograms` is for one thread at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_SUB_BITS = 4
_SUB = 1 << _SUB_BITS
_BITS_MAX = 42
"""Numbers with more bits count as the highest one: 50 days, in microseconds."""
BUCKETS = (_BITS_MAX - _SUB_BITS + 1) * _SUB
_VALUE_MAX = (1 << _BITS_MAX) - 1
_FLOAT_SHIFT = 52 - _SUB_BITS
_FLOAT_BASE = (1022 + _SUB_BITS) << _SUB_BITS
"""The first 12 + `_SUB_BITS` bits of a float64, less this, are the bucket of a number that is not below 16."""


def bucket_of(value: int) -> int:
    """Return the bucket of one number. A negative number counts as 0."""
    value = min(max(value, 0), _VALUE_MAX)
    if value < _SUB:
        return value
    bits = value.bit_length()
    return ((bits - _SUB_BITS) << _SUB_BITS) + ((value >> (bits - _SUB_BITS - 1)) & (_SUB - 1))


def buckets_of(values: np.ndarray) -> np.ndarray:
    """Return the bucket of each number, int64, in the same shape."""
    values = np.maximum(values, 0)
    # A number as float64 begins with its exponent and the bits after its first one, of which a bucket has `_SUB_BITS`.
    tops = (values.astype(np.float64).view(np.int64) >> _FLOAT_SHIFT) - _FLOAT_BASE
    # Below 16 the bucket is the number itself, which is not less than what these bits say.
    return np.minimum(np.maximum(tops, np.minimum(values, _SUB - 1)), BUCKETS - 1)


def _lower_bounds() -> np.ndarray:
    bounds = [*range(_SUB)]
    for bits in range(_SUB_BITS + 1, _BITS_MAX + 1):
        shift = bits - _SUB_BITS - 1
        bounds += [(_SUB + part) << shift for part in range(_SUB)]
    return np.array([*bounds, 1 << _BITS_MAX], np.int64)


_BOUNDS = _lower_bounds()
_MIDDLES = (_BOUNDS[:-1] + _BOUNDS[1:] - 1) / 2
_NOTHING = np.zeros(BUCKETS, np.int64)
_ROWS_MAX = 16
_OFFSETS = np.arange(_ROWS_MAX, dtype=np.int64)[:, np.newaxis] * BUCKETS
"""Where the buckets of each row begin if rows are counted together, at most _ROWS_MAX."""


def counted(values: np.ndarray, weights: np.ndarray | None = None) -> tuple[np.ndarray, list[int]]:
    """Return how often each bucket occurs in each row, and the sums of the rows. Negative numbers count as 0.

    weights: how often each column counts; None: once.
    """
    rows = len(values)
    values = np.maximum(values, 0)
    places = (buckets_of(values) + _OFFSETS[:rows]).ravel()
    if weights is None:
        counts, sums = np.bincount(places, minlength=rows * BUCKETS), values.sum(axis=1)
    else:
        # With weights, numpy counts in floating-point numbers.
        counts, sums = np.bincount(places, np.tile(weights, rows), rows * BUCKETS).astype(np.int64), values @ weights
    return counts.reshape(rows, BUCKETS), sums.tolist()


class Histograms:
    """`count` histograms that are recorded together."""

    __slots__ = ("_base", "_counts", "_sums", "_window", "windows")

    def __init__(self, count: int = 1) -> None:
        self._counts = np.zeros((count, BUCKETS), np.int64)
        """How many values each bucket of each histogram has."""
        # All histograms share these zeros until their first window closes.
        self._base = np.broadcast_to(_NOTHING, self._counts.shape)
        """The counts when the last window was closed. Replaced by `roll`."""
        self._window = self._base
        """What the last closed window counted. Replaced by `roll`."""
        self._sums = [0] * count
        self.windows = 0
        """How many windows were closed. Only grows."""

    def __len__(self) -> int:
        return len(self._sums)

    def record(self, which: int, value: int, weight: int = 1) -> None:
        """Count one number, `weight` times, in one of the histograms."""
        self._counts[which, bucket_of(value)] += weight
        self._sums[which] += max(value, 0) * weight

    def record_row(self, which: int, values: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Count values[j], weights[j] times, in one of the histograms. weights: None: each value counts once."""
        self.add(which, *counted(values[np.newaxis], weights))

    def add(self, first: int, counts: np.ndarray, sums: Sequence[int]) -> None:
        """Add what `counted` returned to the histograms from number `first` on, a row to each."""
        self._counts[first : first + len(counts)] += counts
        for which, total in enumerate(sums, first):
            self._sums[which] += total

    def roll(self) -> None:
        """Close the window and begin the next one."""
        self._window = self._counts - self._base
        self._base = self._counts.copy()
        self.windows += 1

    def count(self, which: int) -> int:
        """Return how many numbers were counted so far."""
        return int(self._counts[which].sum())

    def sum(self, which: int) -> int:
        """Return the sum of the numbers counted so far."""
        return self._sums[which]

    def quantiles(self, which: int, shares: Sequence[float]) -> list[float]:
        """Return the quantiles of the last closed window; nan: it counted nothing."""
        return quantiles_of(self._window[which], shares)

    def below(self, which: int, buckets: np.ndarray) -> list[int]:
        """Return how many numbers so far are in a bucket before each of these."""
        found: list[int] = np.concatenate(([0], np.cumsum(self._counts[which])))[buckets].tolist()
        return found


def quantiles_of(counts: np.ndarray, shares: Sequence[float]) -> list[float]:
    """Return quantiles of counted numbers, each the middle of its bucket; nan: nothing was counted."""
    ends = np.cumsum(counts)
    total = int(ends[-1])
    if not total:
        return [math.nan] * len(shares)
    ranks = np.clip(np.ceil(np.array(shares) * total).astype(np.int64), 1, total)
    found: list[float] = _MIDDLES[ends.searchsorted(ranks)].tolist()
    return found
