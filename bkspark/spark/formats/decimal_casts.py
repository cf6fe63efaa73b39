"""Converts Arrow columns to other types, as Arrow does, but never a decimal to another number. PURE.

Arrow multiplies a decimal to bring it to a larger scale, and often does not notice that the product has more than 128
bits: 9223372036854775807 became 46826544.8154... as a decimal(38,30). Therefore a column of decimals first gets as many
digits before the point as the wanted type has: Arrow checks that each value has no more, and then every product fits.

Arrow refuses all whole numbers for a decimal that cannot hold every number of their type. `converted_each` makes them
decimals first, of which each is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.types as kinds

_WHOLE = pa.decimal128(20, 0)
"""Holds all whole numbers of Arrow."""
_WIDTH_OF_MOST = 128
"""Bits of Spark's decimals, and of most others."""

A = TypeVar("A", pa.Array, pa.ChunkedArray)
_Leaf = Callable[[pa.DataType, pa.Decimal128Type], pa.DataType]
"""Returns the next type of values on their way to a decimal."""


def converted(column: A, kind: pa.DataType) -> A:
    """Return a column in another type.

    Raises:
        pa.ArrowException: the type cannot be converted, or a value does not fit.
    """
    return _in_steps(column, kind, (_values_of_dictionary, _wide, _with_room))


def converted_each(column: A, kind: pa.DataType) -> A:
    """As `converted`, but whole numbers may become decimals that cannot hold every number of their type."""
    return _in_steps(column, kind, (_values_of_dictionary, _of_whole, _wide, _with_room))


def _in_steps(column: A, kind: pa.DataType, leaves: Sequence[_Leaf]) -> A:
    for leaf in leaves:
        between = _between(column.type, kind, leaf)
        if between != column.type:
            column = column.cast(between)
    return column if column.type == kind else column.cast(kind)


def _values_of_dictionary(found: pa.DataType, _: pa.Decimal128Type) -> pa.DataType:
    return found.value_type if kinds.is_dictionary(found) else found


def _of_whole(found: pa.DataType, _: pa.Decimal128Type) -> pa.DataType:
    return _WHOLE if kinds.is_integer(found) else found


def _wide(found: pa.DataType, _: pa.Decimal128Type) -> pa.DataType:
    is_narrow = kinds.is_decimal(found) and found.bit_width < _WIDTH_OF_MOST
    return pa.decimal128(found.precision, found.scale) if is_narrow else found


def _with_room(found: pa.DataType, wanted: pa.Decimal128Type) -> pa.DataType:
    """Return the decimal that has the digits before the point of the wanted one, and those after it of the found."""
    if not kinds.is_decimal(found) or found.scale >= wanted.scale:
        return found  # Arrow checks a division
    make = pa.decimal128 if found.bit_width == _WIDTH_OF_MOST else pa.decimal256
    return make(max(1, wanted.precision - wanted.scale + found.scale), found.scale)


def _between(found: pa.DataType, wanted: pa.DataType, leaf: _Leaf) -> pa.DataType:
    """Return a type on the way to another one: `found`, with what becomes decimals changed."""
    if kinds.is_decimal128(wanted):
        return leaf(found, wanted)
    if kinds.is_struct(found) and kinds.is_struct(wanted):
        targets = {member.name: member.type for member in wanted}
        return pa.struct(
            [member.with_type(_between(member.type, targets.get(member.name, member.type), leaf)) for member in found]
        )
    if kinds.is_map(found) and kinds.is_map(wanted):
        key = _between(found.key_type, wanted.key_type, leaf)
        item = _between(found.item_type, wanted.item_type, leaf)
        is_same = key == found.key_type and item == found.item_type
        return found if is_same else pa.map_(key, item)
    if kinds.is_list(wanted) and not kinds.is_map(found):
        return _list_between(found, wanted, leaf)
    return found


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
    return found
