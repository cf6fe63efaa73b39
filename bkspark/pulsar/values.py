"""Decodes payloads into values by a topic's schema, a whole column at a time if the type has a fixed size.

Numbers are big-endian. Records are parsed one by one (`bkspark.pulsar.records`). KEY_VALUE is `i32 size, key, i32 size,
value`, sizes of -1 for null, or with SEPARATED encoding the value alone, whose key is that of the message.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from bkspark.errors import ConfigurationError
from bkspark.pulsar.malformed import MalformedValues, each, refuse
from bkspark.pulsar.records import JsonDecoder, ValueDecoder, avro_decoder
from bkspark.pulsar.schemas import PRIMITIVES, Schema
from bkspark.pulsar.slices import big_endian, binary_array, bounds_of, text_array

KeyValueDecoder = Callable[[pa.Array, pa.Array], pa.Array]

_SIZE_BYTES = 4
_NANOS_OF_DAY = 86_400_000_000_000
_INT32 = np.iinfo(np.int32)
_MILLIS_MAX = (1 << 63) // 1000 - 1
_BEYOND = "one of its times is beyond the range of a timestamp"

_FIXED: dict[str, Any] = {
    "BOOLEAN": "u1", "INT8": "i1", "INT16": ">i2", "INT32": ">i4", "INT64": ">i8", "FLOAT": ">f4", "DOUBLE": ">f8",
    "DATE": ">i8", "TIME": ">i8", "TIMESTAMP": ">i8", "LOCAL_DATE": ">i8", "LOCAL_TIME": ">i8",
    "INSTANT": [("seconds", ">i8"), ("nanos", ">i4")], "LOCAL_DATE_TIME": [("days", ">i8"), ("nanos", ">i8")],
}  # fmt: skip


def decoder_of(schema: Schema, newest: Schema | None = None) -> ValueDecoder:
    """Return the decoder of values that were written with `schema`.

    Args:
        newest: the schema whose type the values get; AVRO values are resolved to it.

    Raises:
        ConfigurationError: its type is not one that can be decoded here.
    """
    target = newest if newest is not None and newest.kind == schema.kind else schema
    if schema.kind in _FIXED:
        return partial(_fixed, schema.kind)
    if schema.kind == "STRING" and schema.charset is not None:
        return partial(_text, schema.charset)
    if schema.kind in PRIMITIVES:
        return lambda values: values
    if schema.kind == "JSON":
        return JsonDecoder(schema, target)
    if schema.kind == "AVRO":
        return avro_decoder(schema, target)
    if schema.kind == "PROTOBUF_NATIVE":
        from bkspark.pulsar.protobuf_values import protobuf_decoder

        return protobuf_decoder(schema.definition, target.definition)
    raise ConfigurationError(f"values of {schema.kind} are decoded with their keys")


def key_value_decoder(schema: Schema, newest: Schema) -> KeyValueDecoder:
    """Return the decoder of KEY_VALUE messages: takes their values and keys, and returns struct<key, value>. It raises
    ValueError if a payload is not a key and a value, or one of these is malformed. Arguments as of `decoder_of`.

    Raises:
        ConfigurationError: a part is of a type that cannot be decoded here.
        ValueError: a part is of another type in the newest version.
    """
    assert schema.key is not None
    assert schema.value is not None
    assert newest.key is not None
    assert newest.value is not None
    for name, written, wanted in (("key", schema.key, newest.key), ("value", schema.value, newest.value)):
        if written.kind != wanted.kind:
            raise ValueError(
                f"its {name} was written with a schema of {written.kind}, but the topic's newest is {wanted.kind}; use "
                "valueFormat=raw"
            )
    parts = decoder_of(schema.key, newest.key), decoder_of(schema.value, newest.value)

    def decode(values: pa.Array, keys: pa.Array) -> pa.Array:
        found = (keys, values) if schema.is_separated else _split(values)
        return pa.StructArray.from_arrays([part(each) for part, each in zip(parts, found)], ["key", "value"])

    return decode


def _split(payloads: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return keys and values of payloads that are i32 size, key, i32 size, value; size -1 is null."""
    if not len(payloads):
        return payloads, payloads
    data, at, ends, is_there = bounds_of(payloads)
    found = []
    for _ in range(2):
        refuse(is_there & (ends - at < _SIZE_BYTES), "it ends before the size of its key or value")
        sizes = np.full(len(at), -1, np.int64)
        sizes[is_there] = big_endian(data, at[is_there], _SIZE_BYTES).astype(np.uint32).view(np.int32)
        starts = np.where(is_there, at + _SIZE_BYTES, at)
        at = starts + np.maximum(sizes, 0)
        is_wrong = (sizes < -1) | (at > ends)
        if is_wrong.any():
            size = int(sizes[np.argmax(is_wrong)])
            refuse(is_wrong, f"its key or value has {size} bytes, more than there are")
        found.append(binary_array(data.data, starts, at, is_there & (sizes >= 0)))
    refuse(at < ends, f"{int((ends - at).max())} bytes follow its value")
    return found[0], found[1]


def _text(charset: str, values: pa.Array) -> pa.Array:
    if charset == "utf-8":
        return text_array(values, "value")
    return pa.array(each(partial(_decoded, charset), values.to_pylist()), pa.string())


def _decoded(charset: str, octets: bytes) -> str:
    if charset == "utf-16" and not octets.startswith((codecs.BOM_UTF16_BE, codecs.BOM_UTF16_LE)):
        charset = "utf-16-be"  # Java's order where none is given, which Python's is not
    try:
        return octets.decode(charset)
    except UnicodeDecodeError:
        raise ValueError(f"its value is not {charset}") from None


def _fixed(kind: str, values: pa.Array) -> pa.Array:
    layout = np.dtype(_FIXED[kind])
    is_null = np.asarray(values.is_null())
    held = values.drop_null()
    offsets = np.frombuffer(held.buffers()[1], np.int32, len(held) + 1, held.offset * 4) if len(held) else np.zeros(1)
    sizes = np.diff(offsets)
    is_wrong = sizes != layout.itemsize
    if is_wrong.any():
        size = int(sizes[np.argmax(is_wrong)])
        rows = np.flatnonzero(~is_null)[is_wrong]
        raise MalformedValues(rows, f"a value of {kind} has {layout.itemsize} bytes, this one {size}")
    found = np.zeros(len(values), layout)
    if len(held):
        data = memoryview(held.buffers()[2])[int(offsets[0]) : int(offsets[-1])]
        found[~is_null] = np.frombuffer(data, layout)
    return _typed(kind, found, is_null)


def _typed(kind: str, found: np.ndarray, is_null: np.ndarray) -> pa.Array:
    wanted = PRIMITIVES[kind]
    if kind == "BOOLEAN":
        return pa.array(found != 0, wanted, mask=is_null)
    if kind == "DATE":
        return _days(found.astype(np.int64) // 86_400_000, is_null)
    if kind == "LOCAL_DATE":
        return _days(found.astype(np.int64), is_null)
    if kind == "TIMESTAMP":
        whole = found.astype(np.int64)
        refuse((whole < -_MILLIS_MAX) | (whole > _MILLIS_MAX), _BEYOND)
        return pa.array(whole, pa.timestamp("ms", "UTC"), mask=is_null).cast(wanted)
    if kind == "INSTANT":
        _check_range(found["nanos"], 1_000_000_000)
        return _micros(found["seconds"], 1_000_000, found["nanos"], is_null, wanted)
    if kind == "LOCAL_DATE_TIME":
        _check_range(found["nanos"], _NANOS_OF_DAY)
        return _micros(found["days"], 86_400_000_000, found["nanos"], is_null, wanted)
    return pa.array(found.astype(layout_of(wanted)), wanted, mask=is_null)


def _days(days: np.ndarray, is_null: np.ndarray) -> pa.Array:
    refuse((days < _INT32.min) | (days > _INT32.max), "it is a day beyond the range of a date")
    return pa.array(days.astype(np.int32), pa.date32(), mask=is_null)


def layout_of(kind: pa.DataType) -> np.dtype:
    """Return the numpy type of an Arrow type of fixed width."""
    return np.dtype(kind.to_pandas_dtype())


def _check_range(nanos: np.ndarray, end: int) -> None:
    refuse((nanos < 0) | (nanos >= end), "its nanoseconds are not a time of day")


def _micros(whole: np.ndarray, factor: int, nanos: np.ndarray, is_null: np.ndarray, wanted: pa.DataType) -> pa.Array:
    whole = whole.astype(np.int64)
    limit = (1 << 62) // factor
    refuse((whole < -limit) | (whole > limit), _BEYOND)
    return pa.array(whole * factor + nanos // 1000, pa.int64(), mask=is_null).cast(wanted)
