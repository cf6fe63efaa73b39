"""Arrow arrays over slices of a buffer, without an object for each. PURE."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa

from bkspark.entries import ARROW_DATA_BYTES_MAX
from bkspark.pulsar.malformed import MalformedValues, malformed_among
from bkspark.wire.framing import items_at

RUN_MIN = 16
"""Slices in runs at equal distances are copied by run only if a run has at least this many on average."""


def big_endian(data: np.ndarray, at: np.ndarray, size: int) -> np.ndarray:
    """Return int64 (n,), the unsigned numbers of `size` (2, 4) bytes at places that are all in `data`."""
    return items_at(data, f">u{size}")[at].astype(np.int64)


def gathered(octets: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return rows of octets, uint8 (n, width): octets[rows], copied whole rows at a time."""
    width = octets.shape[1]
    return octets.view(f"V{width}")[rows].view(np.uint8).reshape(len(rows), width)


def bounds_of(array: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return uint8 data, int64 starts and ends, and bool is_valid of a binary array: item i is data[starts[i]:ends[i]].
    Items that are null are empty."""
    _, offsets, held = array.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4).astype(np.int64)
    data = np.frombuffer(held, np.uint8) if held is not None and held.size else np.zeros(0, np.uint8)
    is_valid = ~np.asarray(array.is_null())
    return data, bounds[:-1], np.where(is_valid, bounds[1:], bounds[:-1]), is_valid


def binary_array(
    data: memoryview, starts: np.ndarray, ends: np.ndarray, is_valid: np.ndarray | None = None
) -> pa.Array:
    """Return a binary array of data[starts[i]:ends[i]], copied once; null where not `is_valid`.

    The slices that are valid ascend and do not overlap.

    Raises:
        ValueError: `data` has 2 GiB or more.
    """
    count = len(starts)
    if is_valid is not None and not is_valid.any():
        return pa.nulls(count, pa.binary())
    if is_valid is not None and not is_valid.all():
        ends = np.maximum.accumulate(np.where(is_valid, ends, 0))
        starts = np.where(is_valid, starts, ends)
    else:
        is_valid = None
    if not count:
        return pa.array([], pa.binary())
    first = int(starts[0])
    size = int(ends[-1]) - first
    if size > ARROW_DATA_BYTES_MAX:
        raise ValueError(f"{size} bytes of payload do not fit one Arrow array")
    # Slices and the gaps between them are one array; the slices are every other item of it.
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2] = starts - first
    bounds[1::2] = ends - first
    held = pa.py_buffer(data[first : first + size])
    if (bounds[1:-1:2] == bounds[2::2]).all():
        offsets = np.append(bounds[0::2], bounds[-1])
        return _with_nulls(pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), held]), is_valid)
    sizes = bounds[1::2] - bounds[0::2]
    step = int(starts[1] - starts[0])
    breaks = np.flatnonzero(np.diff(starts) != step) + 1
    if sizes[0] > 0 and (sizes == sizes[0]).all() and len(breaks) * RUN_MIN <= count:
        return _in_runs(data, starts, int(sizes[0]), step, [0, *breaks.tolist(), count])
    every = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), held])
    return _with_nulls(every.take(pa.array(np.arange(0, 2 * count, 2))), is_valid)


def _in_runs(data: memoryview, starts: np.ndarray, size: int, step: int, runs: list[int]) -> pa.Array:
    """Return a binary array of slices of one size. From each of `runs` to the next one, they are `step` apart. It takes
    half as long as Arrow needs for slices of any size."""
    count = len(starts)
    held = pa.allocate_buffer(count * size)
    items, copies = items_at(data, f"V{size}"), np.frombuffer(held, f"V{size}")
    for first, end in itertools.pairwise(runs):
        copies[first:end] = items[starts.item(first) : starts.item(end - 1) + 1 : step]
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(size)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), held])


def _with_nulls(array: pa.Array, is_valid: np.ndarray | None) -> pa.Array:
    if is_valid is None:
        return array
    _, offsets, data = array.buffers()
    bits = pa.py_buffer(np.packbits(is_valid, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(array), [bits, offsets, data])


def text_array(array: pa.Array, what: str) -> pa.Array:
    """Return binary as string.

    Raises:
        MalformedValues: some are not UTF-8; the message has `what`.
    """
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        found = malformed_among(bytes.decode, array.to_pylist())
        raise MalformedValues(found.rows, f"its {what} is not UTF-8") from None
