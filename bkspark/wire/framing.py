"""Length-prefixed frames: `i32 length` (big endian, excluding itself), then `length` bytes.

A `FrameTable` is the result of scanning a receive buffer: where every complete frame begins and ends, as int64 arrays.
Pipelined adds usually have one size, so one strided comparison finds a run of frames with equal length words; a Python
loop steps from frame to frame only if sizes differ.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from bkspark.errors import ProtocolError

FRAME_BYTES_MAX = 5 * 1024 * 1024 + 10 * 1024
"""Default limit of a frame body: Apache's 5 MiB, plus the 10 KiB by which Pulsar's brokers exceed it."""

LENGTH_BYTES = 4
NO_LIMIT = 2**63 - 1
"""More frames than any buffer can have: no limit."""
_LENGTH = struct.Struct(">i")
_I32, _I64 = np.dtype(">i4"), np.dtype(">i8")
EQUAL_FRAMES_MAX = 8192
"""Frames of equal size that are processed at once at most; that takes a few milliseconds."""
_FEW = 4
"""Up to this many frames are looked at one by one, because arrays of a few elements cost more."""
_RUN_PROBE_MIN = 4
"""The loop steps this many times before a strided comparison is tried, which costs about as much."""


@dataclass(frozen=True, slots=True)
class FrameTable:
    """Complete frames of a buffer: bodies are buffer[starts[i]:ends[i]]; `consumed` bytes are accounted for."""

    starts: np.ndarray
    ends: np.ndarray
    consumed: int

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, rows: slice) -> FrameTable:
        """Return the chosen frames; the same bytes are accounted for."""
        return FrameTable(self.starts[rows], self.ends[rows], self.consumed)


NO_FRAMES = FrameTable(np.empty(0, np.int64), np.empty(0, np.int64), 0)


def scan_frames(
    buffer: bytes | bytearray | memoryview,
    end: int,
    frame_bytes_max: int = FRAME_BYTES_MAX,
    start: int = 0,
    frames_max: int = NO_LIMIT,
) -> FrameTable:
    """Return the complete frames of buffer[start:end]. Half a frame at the end is not an error.

    `consumed` counts from the buffer's beginning: the first byte that belongs to no complete frame. There are
    `frames_max` frames at most.

    Raises:
        ProtocolError: a length word is negative or above `frame_bytes_max`.
    """
    body_bytes = end - start - LENGTH_BYTES
    if 0 <= body_bytes <= frame_bytes_max and _LENGTH.unpack_from(buffer, start)[0] == body_bytes:
        # A single frame, as when one request or answer is in flight.
        return FrameTable(np.array((start + LENGTH_BYTES,)), np.array((end,)), end)
    pieces: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    position = start
    singles: list[int] = []
    single_lengths: list[int] = []
    found = 0
    while position + LENGTH_BYTES <= end and found < frames_max:
        (length,) = _LENGTH.unpack_from(buffer, position)
        if not 0 <= length <= frame_bytes_max:
            raise ProtocolError(f"frame of {length} bytes: the limit (nettyMaxFrameSizeBytes) is {frame_bytes_max}")
        stride = LENGTH_BYTES + length
        fits = (end - position) // stride
        if fits == 0:
            break
        run = 1
        # A cheap check of the second frame first: with alternating sizes every strided comparison would be wasted.
        if fits >= _RUN_PROBE_MIN and _LENGTH.unpack_from(buffer, position + stride)[0] == length:
            most = min(fits, EQUAL_FRAMES_MAX, frames_max - found)
            run = _equal_run(np.frombuffer(buffer, np.uint8, end), position, stride, most)
        if run == 1:
            singles.append(position + LENGTH_BYTES)
            single_lengths.append(length)
        else:
            if singles:
                pieces.append(np.array(singles, np.int64))
                lengths.append(np.array(single_lengths, np.int64))
                singles, single_lengths = [], []
            pieces.append(np.arange(run, dtype=np.int64) * stride + (position + LENGTH_BYTES))
            lengths.append(np.full(run, length, np.int64))
        position += run * stride
        found += run
    if singles:
        pieces.append(np.array(singles, np.int64))
        lengths.append(np.array(single_lengths, np.int64))
    if not pieces:
        empty = np.empty(0, np.int64)
        return FrameTable(empty, empty, position)
    starts = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
    sizes = np.concatenate(lengths) if len(lengths) > 1 else lengths[0]
    return FrameTable(starts, starts + sizes, position)


def _equal_run(octets: np.ndarray, position: int, stride: int, fits: int) -> int:
    """Return how many frames from `position` on have the first one's length word, at least 1."""
    words = np.ndarray((fits,), np.int32, octets, position, (stride,))
    equal = words == words[0]
    return fits if equal.all() else int(equal.argmin())


def count_leading(octets: np.ndarray, table: FrameTable, first_byte: int) -> int:
    """Return how many frames precede the first one that does not begin with this byte; an empty frame does not."""
    count = len(table.starts)
    if count <= _FEW:
        for row, (start, end) in enumerate(zip(table.starts.tolist(), table.ends.tolist())):
            if start == end or octets.item(start) != first_byte:
                return row
        return count
    begins = (octets[np.minimum(table.starts, len(octets) - 1)] == first_byte) & (table.ends > table.starts)
    return count if begins.all() else int(np.argmin(begins))


def split_items(
    buffer: bytes | bytearray | memoryview, start: int, end: int, items_max: int = NO_LIMIT
) -> tuple[np.ndarray, np.ndarray]:
    """Return (starts, ends) of the first `items_max` of the `i32 length, entry` items in buffer[start:end].

    Raises:
        ProtocolError: there are fewer, and a length is negative or runs past `end`.
    """
    table = scan_frames(buffer, end, end - start, start, items_max)
    if len(table.starts) >= items_max:
        return table.starts[:items_max], table.ends[:items_max]
    if table.consumed != end:
        raise ProtocolError(f"the last {end - table.consumed} bytes of {end - start} are not a complete item")
    return table.starts, table.ends


def items_at(data: np.ndarray | memoryview, dtype: np.dtype | str) -> np.ndarray:
    """Return a view of octets with an item of type `dtype` at each position, to be indexed."""
    dtype = np.dtype(dtype)
    return np.ndarray((max(0, len(data) - dtype.itemsize + 1),), dtype, data, 0, (1,))


def places(at: np.ndarray) -> slice | np.ndarray:
    """Return the index of the positions `at` in the result of `items_at`: a slice if possible, which is faster."""
    step = equal_step(at)
    return slice(at.item(0), at.item(-1) + 1, step) if step > 0 else at


def gather(data: np.ndarray | memoryview, at: np.ndarray, dtype: np.dtype | str) -> np.ndarray:
    """Return a copy of the items of type `dtype` at positions that are usually evenly spaced."""
    step = equal_step(at)
    if step > 0:
        return np.ndarray((len(at),), dtype, data, at.item(0), (step,)).copy()
    return items_at(data, dtype)[at]


def gather_i64(octets: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return the big-endian int64 at each position of a uint8 array, as native int64."""
    return items_at(octets, _I64)[at].astype(np.int64)


def gather_i32(octets: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return the big-endian int32 at each position of a uint8 array, as native int32."""
    return items_at(octets, _I32)[at].astype(np.int32)


def gather_octets(octets: np.ndarray | memoryview, at: np.ndarray, width: int) -> np.ndarray:
    """Return (n, width) uint8, contiguous: the bytes at each position of octets."""
    return items_at(octets, f"V{width}")[at].view(np.uint8).reshape(len(at), width)


def scatter_i32(octets: np.ndarray, at: np.ndarray, values: np.ndarray) -> None:
    """Write values[i] as big-endian int32 at each position of a uint8 array; the positions do not overlap."""
    items_at(octets, _I32)[at] = values


def equal_step(at: np.ndarray) -> int:
    """Return the distance between neighbours of an int64 array when all are equal and ascend, else 0.

    For a single position it is 1: any step describes it.
    """
    count = len(at)
    if count < 2:
        return count
    step = int(at[1]) - int(at[0])
    # The ends first: in most arrays with unequal steps they do not fit, and no other comparison is needed.
    if step <= 0 or int(at[-1]) - int(at[0]) != step * (count - 1):
        return 0
    return step if bool((at[1:] - at[:-1] == step).all()) else 0
