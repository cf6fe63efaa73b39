"""Decodes payloads into values by a topic's schema, a whole column at a time if the type has a fixed size.

Numbers are big-endian. AVRO is Avro's binary form without a header; JSON is UTF-8 text of one object, which Java's
Jackson wrote by the Avro schema. KEY_VALUE is `i32 size, key, i32 size, value`, sizes of -1 for null, or with SEPARATED
encoding the value alone, whose key is that of the message.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from bkspark.decimals import for_arrow
from bkspark.errors import ConfigurationError
from bkspark.pulsar.schemas import AVRO_READ_OFFSET, PRIMITIVES, Schema, arrow_of_avro, stored_type
from bkspark.pulsar.slices import big_endian, binary_array, bounds_of, text_array

ValueDecoder = Callable[[pa.Array], pa.Array]
"""Takes binary, returns as many values; null for null. Raises ValueError if a value is malformed."""

_SIZE_BYTES = 4
_NANOS_OF_DAY = 86_400_000_000_000
# All errors that the parsers and Arrow raise for hostile bytes.
MALFORMED = (
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,
    EOFError,
    RecursionError,
    AttributeError,
    pa.ArrowException,
)

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
    if schema.kind == "STRING" and schema.arrow_type() == pa.string():
        return lambda values: text_array(values, "value")
    if schema.kind in PRIMITIVES:
        return lambda values: values
    if schema.kind == "JSON":
        return _json_decoder(target)
    if schema.kind == "AVRO":
        return _avro_decoder(schema, target)
    if schema.kind == "PROTOBUF_NATIVE":
        from bkspark.pulsar.protobuf_values import protobuf_decoder

        return protobuf_decoder(schema.definition, target.arrow_type())
    raise ConfigurationError(f"values of {schema.kind} are decoded with their keys")


def key_value_of(schema: Schema, newest: Schema, values: pa.Array, keys: pa.Array) -> pa.Array:
    """Return struct<key, value> of KEY_VALUE messages; `keys` are those of the messages.

    Raises:
        ValueError: a payload is not a key and a value, or one of these is malformed.
    """
    assert schema.key is not None
    assert schema.value is not None
    if not schema.is_separated:
        keys, values = _split(values)
    parts = [
        decoder_of(schema.key, newest.key)(keys),
        decoder_of(schema.value, newest.value)(values),
    ]
    return pa.StructArray.from_arrays(parts, ["key", "value"])


def _split(payloads: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return keys and values of payloads that are i32 size, key, i32 size, value; size -1 is null."""
    if not len(payloads):
        return payloads, payloads
    data, at, ends, is_there = bounds_of(payloads)
    found = []
    for _ in range(2):
        if (is_there & (ends - at < _SIZE_BYTES)).any():
            raise ValueError("it ends before the size of its key or value")
        sizes = np.full(len(at), -1, np.int64)
        sizes[is_there] = big_endian(data, at[is_there], _SIZE_BYTES).astype(np.uint32).view(np.int32)
        starts = np.where(is_there, at + _SIZE_BYTES, at)
        at = starts + np.maximum(sizes, 0)
        is_wrong = (sizes < -1) | (at > ends)
        if is_wrong.any():
            raise ValueError(f"its key or value has {int(sizes[np.argmax(is_wrong)])} bytes, more than there are")
        found.append(binary_array(data.data, starts, at, is_there & (sizes >= 0)))
    if (at < ends).any():
        raise ValueError(f"{int((ends - at).max())} bytes follow its value")
    return found[0], found[1]


def _fixed(kind: str, values: pa.Array) -> pa.Array:
    layout = np.dtype(_FIXED[kind])
    is_null = np.asarray(values.is_null())
    held = values.drop_null()
    offsets = np.frombuffer(held.buffers()[1], np.int32, len(held) + 1, held.offset * 4) if len(held) else np.zeros(1)
    sizes = np.diff(offsets)
    if (sizes != layout.itemsize).any():
        wrong = int(sizes[np.argmax(sizes != layout.itemsize)])
        raise ValueError(f"a value of {kind} has {layout.itemsize} bytes, this one {wrong}")
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
        return pa.array(found.astype(np.int64) // 86_400_000, pa.int64(), mask=is_null).cast(pa.int32()).cast(wanted)
    if kind == "LOCAL_DATE":
        return pa.array(found.astype(np.int64), pa.int64(), mask=is_null).cast(pa.int32()).cast(wanted)
    if kind == "TIMESTAMP":
        return pa.array(found.astype(np.int64), pa.timestamp("ms", "UTC"), mask=is_null).cast(wanted)
    if kind == "INSTANT":
        _check_range(found["nanos"], 1_000_000_000)
        return _micros(found["seconds"], 1_000_000, found["nanos"], is_null, wanted)
    if kind == "LOCAL_DATE_TIME":
        _check_range(found["nanos"], _NANOS_OF_DAY)
        return _micros(found["days"], 86_400_000_000, found["nanos"], is_null, wanted)
    return pa.array(found.astype(layout_of(wanted)), wanted, mask=is_null)


def layout_of(kind: pa.DataType) -> np.dtype:
    return np.dtype(kind.to_pandas_dtype())


def _check_range(nanos: np.ndarray, end: int) -> None:
    if ((nanos < 0) | (nanos >= end)).any():
        raise ValueError("its nanoseconds are not a time of day")


def _micros(whole: np.ndarray, factor: int, nanos: np.ndarray, is_null: np.ndarray, wanted: pa.DataType) -> pa.Array:
    whole = whole.astype(np.int64)
    if len(whole) and int(np.abs(whole).max()) > (1 << 62) // factor:
        raise ValueError("one of its times is beyond the range of a timestamp")
    return pa.array(whole * factor + nanos // 1000, pa.int64(), mask=is_null).cast(wanted)


# ---- records ----


def _records(rows: Sequence[Any], stored: pa.DataType, wanted: pa.DataType) -> pa.Array:
    found = pa.array(rows, stored)
    return found if stored == wanted else found.cast(wanted)


def _json_decoder(target: Schema) -> ValueDecoder:
    avro = target.avro()
    stored, wanted = stored_type(avro), arrow_of_avro(avro)
    convert = _converter(avro, {}, is_json=True)
    # A float cannot have all digits of a decimal.
    parse = partial(json.loads, parse_float=Decimal) if b'"decimal"' in target.definition else json.loads

    def decode(values: pa.Array) -> pa.Array:
        rows = [None if value is None else _object(parse(value)) for value in values.to_pylist()]
        if convert is not None:
            rows = [None if row is None else convert(row) for row in rows]
        return _records(rows, stored, wanted)

    return decode


def _object(found: Any) -> Any:
    if found is not None and not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__} where a JSON object is expected")
    return found


def _avro_decoder(schema: Schema, target: Schema) -> ValueDecoder:
    fastavro = _fastavro()
    writer, reader = _without_times(schema.avro()), _without_times(target.avro())
    parsed = fastavro.parse_schema(writer)
    # Resolving costs ten times as much, so it is done only if the schemas differ.
    resolved = None if writer == reader else fastavro.parse_schema(_renamed(reader, writer))
    stored, wanted = stored_type(target.avro()), arrow_of_avro(target.avro())
    convert = _converter(target.avro(), {}, is_json=False)
    skipped = _read_offset(schema)

    def row(value: bytes) -> Any:
        stream = io.BytesIO(value)
        stream.seek(skipped)
        try:
            found = fastavro.schemaless_reader(stream, parsed, resolved)
        except Exception as error:  # bytes of another schema can cause errors of any type
            raise ValueError(f"it is not a record of its schema: {type(error).__name__}: {str(error)[:200]}") from None
        if stream.tell() != len(value):
            raise ValueError(f"{len(value) - stream.tell()} bytes follow its record: another schema wrote it")
        return found if convert is None else convert(found)

    return lambda values: _records(
        [None if value is None else row(value) for value in values.to_pylist()], stored, wanted
    )


def _renamed(reader: Any, writer: Any) -> Any:
    """Return the reader's record with the writer's name: Java ignores the names of records when it resolves them."""
    if not isinstance(reader, dict) or not isinstance(writer, dict):
        return reader
    names = {key: writer[key] for key in ("name", "namespace") if key in writer}
    return {key: value for key, value in reader.items() if key not in ("name", "namespace")} | names


def _read_offset(schema: Schema) -> int:
    found = schema.properties.get(AVRO_READ_OFFSET, "0")
    return int(found) if found.isdecimal() else 0


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError:
        raise ConfigurationError(
            "the topic's schema is AVRO: install bkspark[avro], or read the bytes with valueFormat=raw"
        ) from None
    return fastavro


def _without_times(avro: Any) -> Any:
    """Return an Avro schema whose dates and times are plain numbers, which Arrow accepts as they are."""
    if isinstance(avro, list):
        return [_without_times(each) for each in avro]
    if not isinstance(avro, dict):
        return avro
    kept = {key: _without_times(value) for key, value in avro.items() if key not in ("default", "logicalType")}
    kept |= {key: avro[key] for key in ("default",) if key in avro}
    if avro.get("logicalType") == "decimal":
        kept["logicalType"] = "decimal"
    return kept


Converter = Callable[[Any], Any]


def _converter(avro: Any, named: dict[str, Converter | None], *, is_json: bool) -> Converter | None:
    """Return a function that converts a parsed value for Arrow; None if Arrow accepts it as it is."""
    again = partial(_converter, named=named, is_json=is_json)
    if isinstance(avro, list):
        return _union_converter(avro, again)
    if isinstance(avro, str):
        return _OF_JSON[avro] if is_json and avro in _OF_JSON else named.get(avro)
    kind = avro.get("type")
    if isinstance(kind, (dict, list)):
        return again(kind)
    if kind == "record":
        inner = {each["name"]: again(each["type"]) for each in avro.get("fields", [])}
        changing = {name: convert for name, convert in inner.items() if convert is not None}
        made: Converter | None = partial(_converted_record, changing) if changing else None
    elif kind == "array":
        item = again(avro.get("items"))
        made = None if item is None else partial(_converted_items, item)
    elif kind == "map":
        item = again(avro.get("values"))
        made = partial(_pairs, item)
    elif avro.get("logicalType") == "decimal":
        made = _decimal
    else:
        made = _OF_JSON.get(kind) if is_json else None
    if isinstance(avro.get("name"), str):
        named[avro["name"]] = made
        if avro.get("namespace"):
            named[f"{avro['namespace']}.{avro['name']}"] = made
    return made


def _decimal(value: Any) -> Decimal:
    return for_arrow(value if isinstance(value, Decimal) else Decimal(str(value)))


def _float(value: Any) -> float:
    """Return a float from JSON, which lacks some numbers: Jackson writes "NaN", "Infinity" and "-Infinity"."""
    if isinstance(value, str) and value not in ("NaN", "Infinity", "-Infinity"):
        raise ValueError(f"it holds the text {value[:40]!r} where a number is expected")
    if isinstance(value, bool):
        raise ValueError("it holds a boolean where a number is expected")
    return float(value)


_OF_JSON: dict[str, Converter] = {
    "bytes": base64.b64decode,
    "fixed": base64.b64decode,
    "float": _float,
    "double": _float,
}


def _converted_record(changing: dict[str, Converter], record: dict[str, Any]) -> dict[str, Any]:
    found = dict(record)
    for name, convert in changing.items():
        if found.get(name) is not None:
            found[name] = convert(found[name])
    return found


def _converted_items(item: Converter, values: list[Any]) -> list[Any]:
    return [None if value is None else item(value) for value in values]


def _pairs(item: Converter | None, value: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, each if item is None or each is None else item(each)) for name, each in value.items()]


_PYTHON = {
    "boolean": (bool,), "int": (int,), "long": (int,), "float": (float, int, Decimal), "string": (str,),
    "double": (float, int, Decimal),
    "enum": (str,), "bytes": (bytes,), "fixed": (bytes,), "array": (list,), "record": (dict,), "map": (dict,),
}  # fmt: skip


def _union_converter(members: list[Any], again: Callable[[Any], Converter | None]) -> Converter | None:
    others = [each for each in members if each != "null"]
    converters = [again(each) for each in others]
    if len(others) <= 1:
        return converters[0] if converters else None
    names = [each if isinstance(each, str) else each.get("type") for each in others]
    if set(names) in ({"int", "long"}, {"float", "double"}):
        return converters[0]

    def convert(value: Any) -> dict[str, Any]:
        for place, name in enumerate(names):
            kinds = _PYTHON.get(str(name), (dict,))
            if isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds):
                inner = converters[place]
                return {f"member{place}": value if inner is None else inner(value)}
        raise ValueError(f"it holds a {type(value).__name__}, which is not a member of its union")

    return convert
