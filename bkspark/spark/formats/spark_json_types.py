"""Types of columns that Spark's own JSON source finds (its `JsonInferSchema`), also used for MessagePack. PURE.

    null in each entry         string
    whole numbers              bigint; with some beyond it a decimal of as many digits; above 38 digits a double
    whole numbers, fractions   double
    objects                    a struct with the members of all of them, each of its own type
    arrays                     an array of the type of all elements
    other values together      string

Otherwise than there, an object without members is a struct without members, where Spark's source has no column.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from bkspark.decimals import PRECISION_MAX

_BIGINT_END = 1 << 63
_BIGINT_DIGITS = 20
"""Digits of a bigint among decimals, as Spark counts them."""
_LEAVES = {
    type(None): pa.null(),
    bool: pa.bool_(),
    float: pa.float64(),
    bytes: pa.binary(),
    datetime: pa.timestamp("us", "UTC"),
}


def type_of(values: Iterable[Any]) -> pa.DataType:
    """Return the type of a column with these values."""
    return without_null_type(_type_of_all(values))


def _type_of_all(values: Iterable[Any]) -> pa.DataType:
    return functools.reduce(_of_both, map(_type_of_one, values), pa.null())


def _type_of_one(value: Any) -> pa.DataType:
    if type(value) is int:
        return _whole(value)
    if type(value) is list:
        return pa.list_(_type_of_all(value))
    if type(value) is dict and all(type(name) is str for name in value):
        return pa.struct([(name, _type_of_one(member)) for name, member in value.items()])
    return _LEAVES.get(type(value), pa.string())


def _whole(value: int) -> pa.DataType:
    if -_BIGINT_END <= value < _BIGINT_END:
        return pa.int64()
    # Not by its text, which Python refuses to make of thousands of digits.
    is_decimal = abs(value) < 10**PRECISION_MAX
    return pa.decimal128(len(str(abs(value))), 0) if is_decimal else pa.float64()


def _of_both(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one == other or kinds.is_null(other):
        return one
    if kinds.is_null(one):
        return other
    if kinds.is_struct(one) and kinds.is_struct(other):
        members = {member.name: member.type for member in one}
        for member in other:
            members[member.name] = _of_both(members.get(member.name, pa.null()), member.type)
        return pa.struct(list(members.items()))
    if kinds.is_list(one) and kinds.is_list(other):
        return pa.list_(_of_both(one.value_type, other.value_type))
    if not (_is_number(one) and _is_number(other)):
        return pa.string()
    if kinds.is_floating(one) or kinds.is_floating(other):
        return pa.float64()
    return pa.decimal128(max(_digits(one), _digits(other)), 0)


def _is_number(kind: pa.DataType) -> bool:
    return kinds.is_int64(kind) or kinds.is_float64(kind) or kinds.is_decimal(kind)


def _digits(kind: pa.DataType) -> int:
    return int(kind.precision) if kinds.is_decimal(kind) else _BIGINT_DIGITS


def without_null_type(kind: pa.DataType) -> pa.DataType:
    """Return the type with string for what is null in each entry."""
    if kinds.is_null(kind):
        return pa.string()
    if kinds.is_list(kind):
        return pa.list_(without_null_type(kind.value_type))
    if kinds.is_struct(kind):
        return pa.struct([member.with_type(without_null_type(member.type)) for member in kind])
    return kind
