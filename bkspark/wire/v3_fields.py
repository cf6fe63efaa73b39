"""Fields in V3 frames: the building blocks of V3's array codecs (`v3` adds, `v3_reads` reads).

One frame is decoded as a template; others of its form are found by comparing rows of bytes, and their numbers are read
column by column. If frames differ in size, as entries do, a `Walk` decodes all of them in step. Numbers are varints, in
as few bytes as they need: int64, below 0 in ten bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bkspark.wire.framing import LENGTH_BYTES, FrameTable, equal_step

SAME, WIDTH_ONLY, NOTHING = 0xFF, 0x80, 0x00
"""The bits of a byte that two frames of one run have in common."""

_VARINT_BYTES_MAX = 10
_VARINT, _BYTES = 0, 2
_SHIFTS = np.arange(0, 70, 7, dtype=np.uint64)
"""By how many bits each byte of a varint counts."""
_WIDTH_LIMITS = np.array([1 << (7 * width) for width in range(1, 9)], np.int64)
"""From the i-th on a number takes more than i + 1 bytes; from 2**63 on, and below 0, ten."""
_LOOK_FRAMES = 64
_LOOK_MORE = 32
"""Frames in the first comparison of a run, and the factor for each further one: short runs cost little, and long ones
need few comparisons."""


class NotOfTheForm(Exception):
    """Raised if a frame does not have the expected form; protobuf's classes must decode it."""


@dataclass(frozen=True, slots=True)
class Field:
    """The place of a field's value, and the number of a varint."""

    at: tuple[int, int]
    """(start, end): offsets of the value in the message."""
    varint: int | None

    @property
    def span(self) -> tuple[int, int]:
        """Raises NotOfTheForm for a varint instead of bytes."""
        if self.varint is not None:
            raise NotOfTheForm
        return self.at

    @property
    def number(self) -> int:
        """Raises NotOfTheForm for bytes instead of a varint."""
        if self.varint is None:
            raise NotOfTheForm
        return self.varint


ABSENT = Field((0, 0), 0)
"""Placeholder for an omitted number."""


def fields(frame: bytes, start: int, end: int) -> dict[int, Field]:
    """Return the fields of a message at frame[start:end] by number.

    Raises:
        NotOfTheForm: a field comes twice, is neither varint nor bytes, or does not end within the message.
    """
    found: dict[int, Field] = {}
    while start < end:
        tag, start = _read_varint(frame, start, end)
        value_start = start
        number, start = _read_varint(frame, start, end)
        field = Field((value_start, start), number)
        if tag & 7 == _BYTES:
            field = Field((start, start + number), None)
            start += number
        if tag & 7 not in (_VARINT, _BYTES) or tag >> 3 in found or start > end:
            raise NotOfTheForm
        found[tag >> 3] = field
    return found


def _read_varint(frame: bytes, start: int, end: int) -> tuple[int, int]:
    value = 0
    for index in range(min(_VARINT_BYTES_MAX, end - start)):
        byte = frame[start + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if index and not byte:
                raise NotOfTheForm  # padded with zeros
            return value, start + index + 1
    raise NotOfTheForm


def varint(value: int) -> bytes:
    """Return a number as protobuf writes it."""
    value &= (1 << 64) - 1
    octets = bytearray()
    while value >= 0x80:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)


def run_of(
    octets: np.ndarray, table: FrameTable, first: int, frame: np.ndarray, common: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return frames first, first + 1, ... as rows, as long as they agree with `frame` in the common bits.

    Returns:
        (rows, starts): uint8 of shape (count, len(frame)), count >= 1 as frame `first` is `frame`; where they begin.
    """
    compared = np.flatnonzero(common)
    mask, wanted = common[compared], frame[compared] & common[compared]
    size, count, look = len(frame), 0, _LOOK_FRAMES
    goes_on = True
    while goes_on:
        some = slice(first + count, first + count + look)
        fits = table.ends[some] - table.starts[some] == size
        is_equal = bool(fits.all())
        starts = table.starts[some] if is_equal else table.starts[some][: int(np.argmin(fits))]
        rows = _rows_at(octets, starts, size)
        agrees = ((rows[:, compared] & mask) == wanted).all(axis=1)
        agreeing = len(starts) if agrees.all() else int(np.argmin(agrees))
        if not count:
            found = rows[:agreeing]  # Most runs end here.
        count += agreeing
        goes_on = is_equal and count == some.stop - first
        look *= _LOOK_MORE
    starts = table.starts[first : first + count]
    return found if len(found) == count else _rows_at(octets, starts, size), starts


def _rows_at(octets: np.ndarray, starts: np.ndarray, size: int) -> np.ndarray:
    if len(starts) > 1 and equal_step(starts) == size + LENGTH_BYTES:
        rows = np.ndarray((len(starts), size), np.uint8, octets.data, starts.item(0), (size + LENGTH_BYTES, 1))
        rows.flags.writeable = False
        return rows
    return octets[starts[:, None] + np.arange(size)]


def values_in(rows: np.ndarray, span: tuple[int, int]) -> np.ndarray:
    """Return the numbers whose varints are in columns `span` of the rows, int64."""
    start, end = span
    sevens = (rows[:, start:end] & np.uint8(0x7F)).astype(np.uint64) << _SHIFTS[: end - start]
    return np.bitwise_or.reduce(sevens, axis=1).view(np.int64)


def widths(values: np.ndarray) -> np.ndarray:
    """Return how many bytes the varint of each int64 takes; one number where that is the same for all."""
    if len(values) == 1:
        # 0.8 us, where the array below takes 3.7. The response to one read has six such numbers.
        return np.array([len(varint(values.item(0)))])
    low, high = int(values.min()), int(values.max())
    if low >= 0 and len(varint(low)) == len(varint(high)):
        return np.array([len(varint(low))])
    return np.where(values < 0, _VARINT_BYTES_MAX, 1 + np.searchsorted(_WIDTH_LIMITS, values, side="right"))


def equal_widths(numbers: Sequence[np.ndarray]) -> Iterator[tuple[slice, tuple[int, ...]]]:
    """Yield pieces in which the varints of each column have one width, and the widths; see `equal_pieces`."""
    return equal_pieces(len(numbers[0]), [widths(column) for column in numbers])


def equal_pieces(count: int, columns: Sequence[np.ndarray]) -> Iterator[tuple[slice, tuple[int, ...]]]:
    """Yield pieces of `count` rows in which each column has one number, and these numbers.

    `columns`: a number for each row, or one number for all rows.
    """
    differs = np.zeros(max(0, count - 1), bool)
    for column in columns:
        if len(column) > 1:
            differs |= column[1:] != column[:-1]
    edges = [0, *(np.flatnonzero(differs) + 1).tolist(), count]
    for start, end in itertools.pairwise(edges):
        if start < end:
            yield slice(start, end), tuple(int(column[min(start, len(column) - 1)]) for column in columns)


_PIECES_MAX = 16
"""Rows that would be in more pieces than this are sorted first: a piece costs as much as some hundred rows in it."""
_COLUMN_BITS = 5
"""Bits of a number in a column, which is the width of a varint."""


def order_of_few_pieces(count: int, columns: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return an order of `count` rows with fewer pieces (`equal_pieces`), None if there are few already.

    Rows with equal numbers in the columns keep their order. For answers, which need no order.
    """
    several = [column for column in columns if len(column) > 1]
    if not several or count <= _PIECES_MAX:
        return None
    key = np.zeros(count, np.int64)
    for column in several:
        key = key << _COLUMN_BITS | column
    if np.count_nonzero(key[1:] != key[:-1]) < _PIECES_MAX:
        return None
    return np.argsort(key, kind="stable")


def big_endian(values: np.ndarray) -> np.ndarray:
    """Return uint8 (n, 4): each number as the length word of a frame."""
    return values.astype(">u4").view(np.uint8).reshape(-1, LENGTH_BYTES)


def rows_of(count: int, *pieces: bytes | np.ndarray | tuple[np.ndarray, int]) -> np.ndarray:
    """Return uint8 rows made of constant bytes, of uint8 columns (count, width), and of varints: (values, width)."""
    template = bytearray()
    columns: list[tuple[int, np.ndarray]] = []
    for piece in pieces:
        at = len(template)
        if isinstance(piece, bytes):
            template += piece
        elif isinstance(piece, np.ndarray):
            template += bytes(piece.shape[1])
            columns.append((at, piece))
        elif len(piece[0]) == 1 or (piece[0][0] == piece[0][-1] and (piece[0] == piece[0][0]).all()):
            template += varint(piece[0].item(0))
        else:
            values, width = piece
            octets = (values.view(np.uint64)[:, None] >> _SHIFTS[:width]).astype(np.uint8) | np.uint8(0x80)
            octets[:, -1] &= 0x7F
            template += bytes(width)
            columns.append((at, octets))
    rows = np.empty((count, len(template)), np.uint8)
    rows[:] = np.frombuffer(template, np.uint8)
    for at, octets in columns:
        rows[:, at : at + octets.shape[1]] = octets
    return rows


_OPERATION_AT = 5
"""Where the operation of a frame is, if its header has the usual form."""


def operation_runs(octets: np.ndarray, table: FrameTable) -> list[int]:
    """Return where runs of frames with the same operation end, for at least one frame that is not empty.

    A frame of another form may belong to any run.
    """
    operations = octets[np.minimum(table.starts + _OPERATION_AT, table.ends - 1)]
    breaks = np.flatnonzero(operations[1:] != operations[:-1]) + 1
    return [*breaks.tolist(), len(table)]


WALK_FRAMES_MAX = 1024
_WALK_FRAMES_FIRST = 64
"""Limits of the frames in one walk, and in the first one, which shows whether a longer one is of use: if frames of many
forms alternate, each walk reads some without use."""


class Walk:
    """Decodes frames in step, one part of their form at a time.

    `at` is the offset of each frame's next byte. Frames that are not of the form drop out: their values are
    meaningless, and `count` returns how many leading frames are of the form to their end.
    """

    def __init__(self, octets: np.ndarray, table: FrameTable, first: int, frames_max: int = WALK_FRAMES_MAX) -> None:
        """Begin at frames first, first + 1, ...; at most `frames_max`."""
        self._octets = octets
        self._last = len(octets) - 1
        """The offset of the last byte of the buffer: nothing beyond it is read."""
        self._fits = np.ones(min(len(table) - first, frames_max), bool)
        """Whether each frame has the form so far. Only cleared."""
        self._ends = table.ends[first : first + len(self._fits)]
        self.at = table.starts[first : first + len(self._fits)].copy()
        """The offset of each frame's next byte. Only grows."""

    def bytes(self, expected: bytes) -> None:
        """Skip bytes that all frames must have."""
        for octet in expected:
            self._fits &= self._next() == octet
            self.at += 1

    def field(self, tag: int) -> np.ndarray:
        """Skip the tag of an optional field; return which frames have it."""
        has = (self._next() == tag) & (self.at < self._ends)
        self.at += has
        return has

    def number(self, where: np.ndarray | None = None) -> np.ndarray:
        """Skip a varint; return its values, int64. `where`: only in these frames, 0 elsewhere."""
        goes_on = np.ones(len(self.at), bool) if where is None else where.copy()
        values = np.zeros(len(self.at), np.uint64)
        for index in range(_VARINT_BYTES_MAX):
            octet = self._next()
            values |= np.where(goes_on, octet & np.uint8(0x7F), 0).astype(np.uint64) << np.uint64(7 * index)
            self.at += goes_on
            goes_on &= octet >= 0x80
            if not goes_on.any():
                break
        self._fits &= ~goes_on
        return values.view(np.int64)

    def length(self, where: np.ndarray | None = None) -> np.ndarray:
        """Skip a length; return where its value ends, which is within the frame."""
        ends = self.at + 0
        lengths = self.number(where)
        self._fits &= (lengths >= 0) & (lengths <= self._ends - self.at)
        np.copyto(ends, self.at + lengths, where=self._fits)
        return ends

    def go_to(self, places: np.ndarray) -> None:
        """Skip all bytes before the given offsets."""
        self.at = places.copy()

    def keep(self, is_so: np.ndarray) -> None:
        """Drop all other frames."""
        self._fits &= is_so

    def keep_at(self, places: np.ndarray) -> None:
        """Drop frames whose next byte is not at these offsets."""
        self._fits &= self.at == places

    def count(self) -> int:
        """Return how many frames from the first on are of the form, and end here."""
        self.keep_at(self._ends)
        return len(self._fits) if self._fits.all() else int(np.argmin(self._fits))

    def _next(self) -> np.ndarray:
        # A frame that dropped out may point anywhere.
        return self._octets[np.clip(self.at, 0, self._last)]


def skip_header(walk: Walk, first_byte: int, head: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Skip the header of a message up to its txnId; return where the header ends, and the txnIds.

    Args:
        head: the header's bytes before the txnId, which has tag 0x18.
    """
    walk.bytes(bytes((first_byte,)))
    ends = walk.length()
    walk.bytes(head + b"\x18")
    return ends, walk.number()


def walked(
    decode: Callable[[Walk], tuple[np.ndarray, ...]], octets: np.ndarray, table: FrameTable, first: int
) -> tuple[np.ndarray, ...]:
    """Return what `decode` returns for frames first, first + 1, ...: arrays of the leading ones of its form."""
    found = decode(Walk(octets, table, first, _WALK_FRAMES_FIRST))
    return found if len(found[0]) < _WALK_FRAMES_FIRST else decode(Walk(octets, table, first))
