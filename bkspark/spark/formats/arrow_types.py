"""Arrow types that other programs write and Spark lacks, and the types that replace them. PURE.

pandas and polars write unsigned numbers, half floats, string views and times of other units, which Spark cannot
exchange. In the columns of a read, each becomes the narrowest type of Spark's that has all its values.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from bkspark.spark.formats.nested import mapped

_INSTEAD = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
    pa.time32("s"): pa.time64("ns"),
    pa.time32("ms"): pa.time64("ns"),
}


def of_spark(kind: pa.DataType) -> pa.DataType:
    """Return the type that replaces one that Spark may lack; parts of nested types are replaced, too."""
    return _with_parts(kind, lambda part: _INSTEAD.get(part, part))


def is_finer_than_spark(kind: pa.DataType) -> bool:
    """Return whether a type, or a part of it, has times in nanoseconds."""
    if kinds.is_timestamp(kind) or kinds.is_duration(kind):
        return kind.unit == "ns"
    if kinds.is_dictionary(kind):
        return is_finer_than_spark(kind.value_type)
    return any(is_finer_than_spark(kind.field(i).type) for i in range(kind.num_fields))


def in_microseconds(kind: pa.DataType) -> pa.DataType:
    """Return a type with microseconds in place of nanoseconds."""

    def coarser(part: pa.DataType) -> pa.DataType:
        if kinds.is_timestamp(part):
            return pa.timestamp("us", part.tz)
        return pa.duration("us") if kinds.is_duration(part) else part

    return _with_parts(kind, coarser)


def rounded_to_microseconds(column: pa.Array) -> pa.Array:
    """Return a column with microseconds in place of nanoseconds, rounded down as Spark rounds. Arrow rounds toward
    zero."""
    return mapped(in_plain_lists(column), _rounded)


def in_plain_lists(column: pa.Array) -> pa.Array:
    """Return a column with lists of the kind that Spark has, and values in place of dictionaries."""
    kind = _with_parts(column.type, lambda part: part)
    return column if column.type == kind else column.cast(kind)


def _rounded(column: pa.Array) -> pa.Array:
    kind = column.type
    if not is_finer_than_spark(kind):
        return column
    kind = in_microseconds(kind)
    nanoseconds = column.cast(pa.int64()).fill_null(0).to_numpy()
    return pa.array(nanoseconds // 1000, pa.int64(), mask=np.asarray(column.is_null())).cast(kind)


def _with_parts(kind: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return the type with each part replaced by `leaf` of it; dictionaries are replaced by their value type."""
    if kinds.is_dictionary(kind):
        return _with_parts(kind.value_type, leaf)
    if kinds.is_struct(kind):
        return pa.struct([member.with_type(_with_parts(member.type, leaf)) for member in kind])
    if kinds.is_map(kind):
        key, item = (field.with_type(_with_parts(field.type, leaf)) for field in (kind.key_field, kind.item_field))
        return pa.map_(key, item)
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_with_parts(kind.value_type, leaf)))
    return leaf(kind)
