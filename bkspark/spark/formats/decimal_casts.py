"""Converts Arrow columns to other types, as Arrow does, but never a decimal to another number. PURE.

Arrow multiplies a decimal to bring it to a larger scale, and often does not notice that the product has more than 128
bits: 9223372036854775807 became 46826544.8154... as a decimal(38,30). Therefore a column of decimals first gets as many
digits before the point as the wanted type has: Arrow checks that each value has no more, and then every product fits.

Arrow multiplies the number in a text, too. Therefore texts first become decimals of 256 bits with the wanted scale.
Arrow refuses a product that is smaller than the number, so a product with at most 38 digits belongs to a number with at
most 38 digits, and no such product is too large for 256 bits. Arrow does not check whether the digits of the text
themselves, multiplied by an exponent, need more than 256 bits: 2**256 + 5 became 5. It also looks the exponent up in a
table of 76 powers of ten, without a check that it is there: 1e-10000000 ended the process. Therefore texts of more
than 76 digits, or 76 places after the point, with those that an exponent adds, are refused before. None of them fits a
decimal of 38 digits, except with zeros after the point.

Arrow refuses all whole numbers for a decimal that cannot hold every number of their type. `converted_each` makes them
decimals first, of which each is checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from bkspark.spark.formats.nested import parts_of

_WHOLE = pa.decimal128(20, 0)
"""Holds all whole numbers of Arrow."""
_WIDTH_OF_MOST = 128
"""Bits of Spark's decimals, and of most others."""
_PRECISION_MAX = 76
"""Digits of decimals of 256 bits."""
_NUMBER = re.compile(r"[+-]?(?P<whole>\d*)(?:\.(?P<places>\d*))?(?:[eE](?P<exponent>[+-]?\d+))?", re.ASCII)
"""A text that Arrow may take for a number. The time of a match is in proportion to the text, whatever it is."""
_EXPONENT_CHARACTERS_MAX = 9
"""Characters of the longest exponent that Python may turn into a number; longer ones are refused."""
_SHOWN_MAX = 50
"""Characters of a text that a message shows, at most."""
_TYPES_MAX = 1024
"""Types of which is remembered whether a decimal is in them."""

A = TypeVar("A", pa.Array, pa.ChunkedArray)
_Leaf = Callable[[pa.DataType, pa.Decimal128Type], pa.DataType]
"""Returns the next type of values on their way to a decimal."""


def converted(column: A, kind: pa.DataType) -> A:
    """Return a column in another type.

    Raises:
        pa.ArrowInvalid: a value does not fit.
        pa.ArrowException: the type cannot be converted.
    """
    return _in_steps(column, kind, (_values_of_dictionary, _wide, _with_room))


def converted_each(column: A, kind: pa.DataType) -> A:
    """As `converted`, but whole numbers may become decimals that cannot hold every number of their type."""
    return _in_steps(column, kind, (_values_of_dictionary, _of_whole, _wide, _with_room))


def _in_steps(column: A, kind: pa.DataType, leaves: Sequence[_Leaf]) -> A:
    for leaf in leaves if _has_decimal(kind) else ():
        between = _between(column.type, kind, leaf)
        if between != column.type:
            for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
                _check_digits(chunk, between)
            column = column.cast(between)
    return column if column.type == kind else column.cast(kind)


def _values_of_dictionary(found: pa.DataType, _: pa.Decimal128Type) -> pa.DataType:
    return found.value_type if kinds.is_dictionary(found) else found


def _of_whole(found: pa.DataType, _: pa.Decimal128Type) -> pa.DataType:
    return _WHOLE if kinds.is_integer(found) else found


def _is_text(kind: pa.DataType) -> bool:
    return kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind)


def _check_digits(column: pa.Array, wanted: pa.DataType) -> None:
    """Raise pa.ArrowInvalid if a text that becomes a decimal has more digits than a decimal of 256 bits."""
    if column.type == wanted or not len(column):
        return
    if column.type.num_fields:
        inner = [wanted.field(i) for i in range(wanted.num_fields)] if kinds.is_struct(wanted) else _inner(wanted)
        for part, field in zip(parts_of(column), inner):
            _check_digits(part, field.type)
    elif _is_text(column.type):
        texts = column.cast(pa.large_string())
        is_long = pc.greater(pc.utf8_length(texts), _PRECISION_MAX)
        for text in texts.filter(pc.or_(is_long, pc.match_substring_regex(texts, "[eE]"))).to_pylist():
            if (match := _NUMBER.fullmatch(text)) is None or _has_too_many_digits(match):
                shown = text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."
                raise pa.ArrowInvalid(f"'{shown}' is no number, or has more than {_PRECISION_MAX} digits or places")


def _inner(kind: pa.DataType) -> list[pa.Field]:
    return [kind.key_field, kind.item_field] if kinds.is_map(kind) else [kind.value_field]


def _has_too_many_digits(number: re.Match[str]) -> bool:
    places, exponent = number["places"] or "", number["exponent"] or "0"
    if len(exponent) > _EXPONENT_CHARACTERS_MAX:
        return True
    digits, scale = (number["whole"] + places).lstrip("0"), len(places) - int(exponent)
    return len(digits) + max(0, -scale) > _PRECISION_MAX or scale > _PRECISION_MAX


def _wide(found: pa.DataType, wanted: pa.Decimal128Type) -> pa.DataType:
    if _is_text(found):
        return pa.decimal256(_PRECISION_MAX, wanted.scale)
    is_narrow = kinds.is_decimal(found) and found.bit_width < _WIDTH_OF_MOST
    return pa.decimal128(found.precision, found.scale) if is_narrow else found


def _with_room(found: pa.DataType, wanted: pa.Decimal128Type) -> pa.DataType:
    """Return the decimal that has the digits before the point of the wanted one, and those after it of the found."""
    if not kinds.is_decimal(found) or found.scale >= wanted.scale:
        return found  # Arrow checks a division
    make = pa.decimal128 if found.bit_width == _WIDTH_OF_MOST else pa.decimal256
    return make(max(1, wanted.precision - wanted.scale + found.scale), found.scale)


@lru_cache(_TYPES_MAX)
def _has_decimal(kind: pa.DataType) -> bool:
    return kinds.is_decimal128(kind) or any(_has_decimal(kind.field(at).type) for at in range(kind.num_fields))


def _between(found: pa.DataType, wanted: pa.DataType, leaf: _Leaf) -> pa.DataType:
    """Return a type on the way to another one: `found`, with what becomes decimals changed.

    Raises:
        pa.ArrowNotImplementedError: Arrow would have to convert decimals alone.
    """
    if kinds.is_null(found) or found == wanted or not _has_decimal(wanted):
        return found
    if kinds.is_decimal128(wanted):
        return leaf(found, wanted)
    if kinds.is_struct(found) and kinds.is_struct(wanted) and not (_is_ambiguous(found) or _is_ambiguous(wanted)):
        targets = {member.name: member.type for member in wanted}
        return pa.struct(
            [member.with_type(_between(member.type, targets.get(member.name, member.type), leaf)) for member in found]
        )
    if kinds.is_map(found) and kinds.is_map(wanted):
        key = _between(found.key_type, wanted.key_type, leaf)
        item = _between(found.item_type, wanted.item_type, leaf)
        is_same = key == found.key_type and item == found.item_type
        return found if is_same else pa.map_(key, item)
    if kinds.is_list(wanted):
        return _list_between(found, wanted, leaf)
    raise _refusal(found, wanted)


def _is_ambiguous(members: Iterable[pa.Field]) -> bool:
    """Return whether two members of a struct have one name."""
    names = [member.name for member in members]
    return len(set(names)) < len(names)


def _refusal(found: pa.DataType, wanted: pa.DataType) -> pa.ArrowNotImplementedError:
    return pa.ArrowNotImplementedError(f"the decimals in {wanted} cannot be made from {found}")


def _list_between(found: pa.DataType, wanted: pa.ListType, leaf: _Leaf) -> pa.DataType:
    makers: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], pa.DataType]], ...] = (
        (kinds.is_list, pa.list_),
        (kinds.is_large_list, pa.large_list),
        (kinds.is_fixed_size_list, lambda value: pa.list_(value, found.list_size)),
    )
    for is_one, make in makers:
        if is_one(found):
            value = _between(found.value_type, wanted.value_type, leaf)
            return found if value == found.value_type else make(value)
    raise _refusal(found, wanted)
