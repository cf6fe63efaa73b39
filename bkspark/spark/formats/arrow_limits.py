"""Limits of what the rows of one Arrow entry take in memory, checked before memory is allocated for them.

An entry is at most a few MiB. Its rows may take any amount of memory: compressed zeros, a dictionary in which many rows
refer to one long text, or a list of 2^31 nulls, which take no bytes. PURE.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from bkspark.arrow_sizes import uncompressed_bytes

ENTRY_BYTES_MAX = 128 << 20
"""Limit of the rows of one entry, decompressed and converted: an entry with more is malformed, and none is written."""
EXPANSION_MAX = 1 << 15
"""The most bytes that a byte of LZ4 or Zstandard can expand to: four bytes are a Zstandard block of 128 KiB at most.
Smaller entries are not checked for what they claim: Arrow notices a wrong claim before it fills the memory."""
ROWS_MAX = 1 << 20
"""Rows of an entry that has less than a bit of data for each, because its columns are all null, or absent."""
CELLS_MAX = 1 << 26
"""Rows of such an entry times columns of the read: absent columns become nulls in memory."""
_OFFSET_BYTES = 4
_VIEW_NUMBERS = 4
"""Numbers of 32 bits in a view of a text; the first one is its length."""


def check_expansion(payload: pa.Buffer) -> None:
    """Raise ValueError if an entry's compressed buffers claim more than ENTRY_BYTES_MAX, or are damaged."""
    if payload.size * EXPANSION_MAX <= ENTRY_BYTES_MAX:
        return
    _check(sum(map(uncompressed_bytes, pa.ipc.MessageReader.open_stream(payload))))


def check_rows(table: pa.Table, columns: int) -> None:
    """Raise ValueError for rows that the entry only claims: a few bytes can name 2^62 rows without data."""
    rows, bits = table.num_rows, 8 * table.nbytes
    if rows > bits and (rows > ROWS_MAX or rows * columns > CELLS_MAX):
        raise ValueError(f"it claims {rows} rows of {columns} columns, and has {table.nbytes} bytes of data")


def check_conversions(found: Iterable[tuple[pa.ChunkedArray, pa.DataType]]) -> None:
    """Raise ValueError if columns, converted to the wanted types, take more than ENTRY_BYTES_MAX together."""
    _check(sum(bytes_as(chunk, wanted) for column, wanted in found for chunk in column.chunks))


def check_nulls_added(count: int, types: Iterable[pa.DataType]) -> None:
    """Raise ValueError if null columns of some types take more than ENTRY_BYTES_MAX together."""
    _check(sum(null_bytes(count, kind) for kind in types))


def _check(byte_count: int) -> None:
    if byte_count > ENTRY_BYTES_MAX:
        raise ValueError(f"its rows take {byte_count} bytes in memory, above the limit of {ENTRY_BYTES_MAX}")


def bytes_as(array: pa.Array, wanted: pa.DataType) -> int:
    """Return how many bytes a valid array takes when it is converted, as an upper bound; without its validity bits."""
    found, count = array.type, len(array)
    if kinds.is_null(found):
        return null_bytes(count, wanted)
    if kinds.is_dictionary(found):
        return _bytes_of_dictionary(array, wanted)
    if kinds.is_struct(wanted):
        return _bytes_of_struct(array, wanted)
    if kinds.is_map(wanted):
        inner = ((array.keys, wanted.key_type), (array.items, wanted.item_type))
        return _OFFSET_BYTES * count + sum(bytes_as(part, kind) for part, kind in inner)
    if kinds.is_list(wanted):
        # The whole child is converted, and not only what lists refer to.
        return _OFFSET_BYTES * count + bytes_as(array.values, wanted.value_type)
    if _is_of_bytes(wanted):
        return _OFFSET_BYTES * count + (_bytes_of_views(array) if _is_view(found) else array.nbytes)
    return null_bytes(count, wanted)


def null_bytes(count: int, kind: pa.DataType) -> int:
    """Return how many bytes that many nulls of a type take."""
    if kinds.is_struct(kind):
        return sum(null_bytes(count, member.type) for member in kind)
    if kinds.is_fixed_size_list(kind):
        return null_bytes(count * kind.list_size, kind.value_type)
    if _is_of_bytes(kind) or kinds.is_nested(kind):
        return _OFFSET_BYTES * count
    return 0 if kinds.is_null(kind) else -(-count * kind.bit_width // 8)


def _bytes_of_struct(array: pa.StructArray, wanted: pa.StructType) -> int:
    places = {member.name: place for place, member in enumerate(array.type)}
    return sum(
        bytes_as(array.field(places[member.name]), member.type)
        if member.name in places
        else null_bytes(len(array), member.type)
        for member in wanted
    )


def _bytes_of_dictionary(array: pa.DictionaryArray, wanted: pa.DataType) -> int:
    values = array.dictionary
    if _is_of_bytes(values.type):
        lengths = pc.binary_length(values).fill_null(0).cast(pa.int64())
        return _OFFSET_BYTES * len(array) + (pc.sum(lengths.take(array.indices)).as_py() or 0)
    if values.type.num_fields or _is_view(values.type) or kinds.is_dictionary(values.type):
        return len(array) * int(values.nbytes)
    return null_bytes(len(array), wanted)


def _is_of_bytes(kind: pa.DataType) -> bool:
    return kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_binary(kind) or kinds.is_large_binary(kind)


def _is_view(kind: pa.DataType) -> bool:
    return bool(kinds.is_string_view(kind) or kinds.is_binary_view(kind))


def _bytes_of_views(array: pa.Array) -> int:
    # Many views may refer to the same bytes.
    views = array.buffers()[1]
    if views is None:
        return 0
    first = array.offset * _VIEW_NUMBERS
    lengths = np.frombuffer(views, np.int32)[first : first + len(array) * _VIEW_NUMBERS : _VIEW_NUMBERS]
    return int(lengths[np.asarray(array.is_valid())].sum(dtype=np.int64))
