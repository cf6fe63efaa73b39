"""Protobuf fields of many messages at once, as arrays. PURE.

The metadata of a message is a few small protobuf fields, and a topic has millions of messages: an object for each
would cost more than all the rest. Here the cursors of all messages advance together, one field a step.

A message is a run of (tag, value); tag = number << 3 | wire type. Wire types: 0 varint, 1 eight bytes, 2 varint size
and bytes, 5 four bytes; groups (3, 4) are refused, as Pulsar does not use them. If a field occurs twice, the last
one counts. A known number with another wire type is passed over, as protobuf does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

FIELDS_MAX = 4096
"""Most fields of one message, properties included. A message with more is refused: each field costs a step for all."""
_VARINT_BYTES_MAX = 10
_NUMBER_MAX = 63
"""Greatest field number that can be requested."""

_EVERY = slice(None)
_FIXED_BYTES = {1: 8, 5: 4}
_WRONG_VARINT = "a number that does not end"
_WRONG_TAG = "a field of no kind that protobuf has"
_OUTSIDE = "a field that ends beyond it"


class MalformedFields(ValueError):
    """Messages are not protobuf; `rows` are the indexes, among those that were read, of some of them."""

    def __init__(self, rows: np.ndarray, reason: str) -> None:
        super().__init__(reason)
        self.rows = rows


@dataclass(frozen=True, slots=True)
class Occurrences:
    """Each occurrence of a repeated field, in the order of messages: bytes [starts[i], ends[i]) of message rows[i]."""

    rows: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)


class Fields:
    """The wanted fields of n messages. Nothing is allocated for a field that no message has."""

    def __init__(self, count: int, numbers: Iterable[int], spans: Iterable[int], repeated: Iterable[int]) -> None:
        self.count = count
        """How many messages there are."""
        self._numbers = frozenset(numbers)
        """The requested number fields. Constant."""
        self._spans = frozenset(spans)
        """The requested bytes fields. Constant."""
        self._values: dict[int, np.ndarray] = {}
        """The last value of each number field that a message has; 0: this message lacks it."""
        self._has: dict[int, np.ndarray] = {}
        """Which messages have the number field; its keys are those of `_values`."""
        self._bounds: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        """Where the last value of each bytes field that a message has begins and ends; -1: this message lacks it."""
        self._found: dict[int, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {number: [] for number in repeated}
        """All occurrences of repeated fields, in order."""

    def is_absent(self, number: int) -> bool:
        """Whether no message has a field."""
        return number not in self._values and number not in self._bounds

    def value(self, number: int) -> np.ndarray:
        """Return int64 (n,): a number's 64 bits; 0 where it is absent."""
        found = self._values.get(number)
        return self._same(0, self._numbers, number) if found is None else found

    def int32(self, number: int) -> np.ndarray:
        """Return int64 (n,): the low 32 bits of a number, as a signed number."""
        return self.value(number).astype(np.int32).astype(np.int64)

    def flag(self, number: int) -> np.ndarray:
        return self.value(number) != 0

    def has(self, number: int) -> np.ndarray:
        """Return bool (n,): where the field is present."""
        if number in self._has:
            return self._has[number]
        if number in self._bounds:
            return self._bounds[number][0] >= 0
        return np.zeros(self.count, bool)

    def span(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return int64 (n,), int64 (n,): where the field's bytes begin and end; -1 where it is absent."""
        found = self._bounds.get(number)
        if found is None:
            absent = self._same(-1, self._spans, number)
            return absent, absent
        return found

    def part(self, chosen: np.ndarray) -> Fields:
        """Return the fields of the messages of these indexes, which ascend."""
        found = Fields(len(chosen), self._numbers, self._spans, self._found)
        found._values = {number: values[chosen] for number, values in self._values.items()}
        found._has = {number: has[chosen] for number, has in self._has.items()}
        found._bounds = {number: (starts[chosen], ends[chosen]) for number, (starts, ends) in self._bounds.items()}
        places = np.full(self.count, -1, np.int64)
        places[chosen] = np.arange(len(chosen))
        for number in self._found:
            each = self.occurrences(number)
            rows = places[each.rows]
            kept = rows >= 0
            if kept.any():
                found._found[number] = [(rows[kept], each.starts[kept], each.ends[kept])]
        return found

    def _same(self, value: int, known: frozenset[int], number: int) -> np.ndarray:
        if number not in known:
            raise KeyError(number)
        return np.full(self.count, value, np.int64)

    def occurrences(self, number: int) -> Occurrences:
        """Return a repeated field."""
        found = self._found[number]
        if not found:
            nothing = np.zeros(0, np.int64)
            return Occurrences(nothing, nothing, nothing)
        rows, starts, ends = (np.concatenate(parts) for parts in zip(*found))
        order = np.argsort(rows, kind="stable")
        return Occurrences(rows[order], starts[order], ends[order])

    def _put(self, rows: np.ndarray, numbers: np.ndarray, is_span: np.ndarray, at: tuple[np.ndarray, ...]) -> None:
        values, starts, ends = at
        for number in np.flatnonzero(np.bincount(numbers)).tolist():
            for kind in (True, False):
                chosen = np.flatnonzero((numbers == number) & (is_span == kind))
                if kind:
                    self._put_span(rows[chosen], number, starts[chosen], ends[chosen])
                else:
                    self._put_number(rows[chosen], number, values[chosen])

    def _put_number(self, rows: np.ndarray, number: int, values: np.ndarray) -> None:
        if not len(rows) or number not in self._numbers:
            return
        if number not in self._values:
            self._values[number] = np.zeros(self.count, np.int64)
            self._has[number] = np.zeros(self.count, bool)
        places = self._places(rows)
        self._values[number][places] = values
        self._has[number][places] = True

    def _put_span(self, rows: np.ndarray, number: int, starts: np.ndarray, ends: np.ndarray) -> None:
        if not len(rows):
            return
        if number in self._spans:
            if number not in self._bounds:
                self._bounds[number] = (np.full(self.count, -1, np.int64), np.full(self.count, -1, np.int64))
            places = self._places(rows)
            for held, found in zip(self._bounds[number], (starts, ends)):
                held[places] = found
        elif number in self._found:
            self._found[number].append((rows, starts, ends))

    def _places(self, rows: np.ndarray) -> np.ndarray | slice:
        return _EVERY if len(rows) == self.count else rows


def fields_of(
    data: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    *,
    numbers: Iterable[int] = (),
    spans: Iterable[int] = (),
    repeated: Iterable[int] = (),
) -> Fields:
    """Return fields of the messages data[starts[i]:ends[i]].

    Args:
        data: uint8; only the bytes of messages are read.
        numbers: fields of wire type varint.
        spans: fields of bytes.
        repeated: fields of bytes that may occur several times; each occurrence counts.

    Raises:
        MalformedFields: a message is not protobuf, or has more than FIELDS_MAX fields.
    """
    fields = Fields(len(starts), numbers, spans, repeated)
    rows = np.flatnonzero(starts < ends)
    at, end = starts[rows], ends[rows]
    for _ in range(FIELDS_MAX):
        if not len(rows):
            return fields
        first = int(data[at[0]])
        if first < 0x80 and (data[at] == first).all():
            # Messages of one producer have the same fields: their tags are one number.
            at = _take_same(fields, first, (data, at + 1, end), rows)
        else:
            at = _take_mixed(fields, data, at, end, rows)
        goes_on = at < end
        if not goes_on.all():
            rows, at, end = rows[goes_on], at[goes_on], end[goes_on]
    if len(rows):
        raise MalformedFields(rows, f"more than {FIELDS_MAX} fields")
    return fields


def _take_same(
    fields: Fields, tag: int, place: tuple[np.ndarray, np.ndarray, np.ndarray], rows: np.ndarray
) -> np.ndarray:
    """Take from each message the field with the same tag whose value begins at `place`; return where it ends."""
    data, at, end = place
    kind, number = tag & 7, tag >> 3
    if kind in _FIXED_BYTES:
        _check((number > 0) & (_FIXED_BYTES[kind] <= end - at), rows, _OUTSIDE)
        return at + _FIXED_BYTES[kind]
    _check(np.full(len(rows), kind in (0, 2) and number > 0), rows, _WRONG_TAG)
    values, at = _varints(data, at, end, rows)
    start = at
    if kind == 2:
        _check((values >= 0) & (values <= end - at), rows, _OUTSIDE)
        at = at + values
        fields._put_span(rows, number, start, at)
    else:
        fields._put_number(rows, number, values)
    return at


def _take_mixed(fields: Fields, data: np.ndarray, at: np.ndarray, end: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Take one field from each message; return where it ends."""
    tags, at = _varints(data, at, end, rows)
    kinds, field_numbers = tags & 7, (tags >> 3) & 0x1FFF_FFFF
    has_varint = (kinds == 0) | (kinds == 2)
    values = np.zeros(len(rows), np.int64)
    if has_varint.all():
        values, at = _varints(data, at, end, rows)
    else:
        chosen = np.flatnonzero(has_varint)
        values[chosen], at[chosen] = _varints(data, at[chosen], end[chosen], rows[chosen])
        sizes = np.where(kinds == 1, 8, np.where(kinds == 5, 4, 0))
        _check(has_varint | (sizes > 0), rows, _WRONG_TAG)
        at = at + sizes
    _check(field_numbers > 0, rows, _WRONG_TAG)
    is_span = kinds == 2
    sizes = np.where(is_span, values, 0)
    _check((sizes >= 0) & (sizes <= end - at), rows, _OUTSIDE)
    field_starts, at = at, at + sizes
    field_numbers[~has_varint | (field_numbers > _NUMBER_MAX)] = 0
    fields._put(rows, field_numbers, is_span, (values, field_starts, at))
    return at


def _varints(data: np.ndarray, at: np.ndarray, end: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return int64 (n,), the varints at these places, and where each ends."""
    _check(at < end, rows, _OUTSIDE)
    octets = data[at]
    values = (octets & 0x7F).astype(np.int64)
    at = at + 1
    goes_on = octets >= 0x80
    longer: np.ndarray | slice = _EVERY
    shift = 7
    while goes_on.any():
        if not goes_on.all():
            longer = np.flatnonzero(goes_on) if isinstance(longer, slice) else longer[goes_on]
        if shift >= 7 * _VARINT_BYTES_MAX:
            raise MalformedFields(rows[longer], _WRONG_VARINT)
        _check(at[longer] < end[longer], rows[longer], _WRONG_VARINT)
        octets = data[at[longer]]
        values[longer] |= (octets & 0x7F).astype(np.int64) << shift
        at[longer] += 1
        goes_on = octets >= 0x80
        shift += 7
    return values, at


def _check(is_right: np.ndarray, rows: np.ndarray, reason: str) -> None:
    if not is_right.all():
        raise MalformedFields(rows[~is_right], reason)
