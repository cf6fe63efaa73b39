"""Schemas of topics: from what Pulsar stores to the Arrow types of values. PURE.

    BYTES, none          binary
    STRING               string
    BOOLEAN INT8 … INT64 FLOAT DOUBLE        the same
    DATE                 date, of the day in UTC; LOCAL_DATE date
    TIMESTAMP, INSTANT   timestamp; LOCAL_DATE_TIME timestamp without zone
    TIME                 long, ms of the day; LOCAL_TIME long, ns of the day
    AVRO, JSON           the record of its Avro schema, as struct
    PROTOBUF_NATIVE      the message of its descriptor, as struct
    PROTOBUF             binary
    KEY_VALUE            key and value, each of a schema of its own

Avro: int + date is date, bytes or fixed + decimal decimal, long + timestamp-millis or -micros timestamp, enum string,
[null, T] a T that may be null, [int, long] long, [float, double] double, another union a struct of member0, member1, …
A record that holds itself has no type in Spark, and is refused.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from bkspark.errors import ConfigurationError, MetadataFormat
from bkspark.pulsar import pulsar_formats_pb2 as formats

BYTES = "BYTES"
STORED_TYPES = (
    BYTES, "STRING", "JSON", "PROTOBUF", "AVRO", "BOOLEAN", "INT8", "INT16", "INT32", "INT64", "FLOAT", "DOUBLE",
    "DATE", "TIME", "TIMESTAMP", "KEY_VALUE", "INSTANT", "LOCAL_DATE", "LOCAL_TIME", "LOCAL_DATE_TIME",
    "PROTOBUF_NATIVE",
)  # fmt: skip
"""Schema types by the stored number minus one: the stored number is one more than that of the wire protocol."""
AVRO_READ_OFFSET = "__AVRO_READ_OFFSET__"
INLINE, SEPARATED = "INLINE", "SEPARATED"
_SIZE = struct.Struct(">i")
_UTC_US = pa.timestamp("us", "UTC")

PRIMITIVES: dict[str, pa.DataType] = {
    BYTES: pa.binary(),
    "PROTOBUF": pa.binary(),
    "STRING": pa.string(),
    "BOOLEAN": pa.bool_(),
    "INT8": pa.int8(),
    "INT16": pa.int16(),
    "INT32": pa.int32(),
    "INT64": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": pa.date32(),
    "TIME": pa.int64(),
    "TIMESTAMP": _UTC_US,
    "INSTANT": _UTC_US,
    "LOCAL_DATE": pa.date32(),
    "LOCAL_TIME": pa.int64(),
    "LOCAL_DATE_TIME": pa.timestamp("us"),
}


@dataclass(frozen=True)
class Schema:
    """One version of a topic's schema. `key` and `value` are those of KEY_VALUE's parts."""

    version: int
    kind: str
    definition: bytes = b""
    properties: dict[str, str] = field(default_factory=dict)
    key: Schema | None = None
    value: Schema | None = None

    @property
    def is_separated(self) -> bool:
        """Whether the key of a KEY_VALUE is the key of its message, and not part of the payload."""
        return self.properties.get("kv.encoding.type", INLINE) == SEPARATED

    def arrow_type(self) -> pa.DataType:
        """Return the type of a value.

        Raises:
            ConfigurationError: Spark has no type for it.
        """
        if self.kind in PRIMITIVES:
            charset = self.properties.get("__charset", "UTF-8")
            return PRIMITIVES[self.kind] if charset.upper() in ("UTF-8", "UTF8", "US-ASCII") else pa.binary()
        if self.kind in ("AVRO", "JSON"):
            return arrow_of_avro(self.avro())
        if self.kind == "PROTOBUF_NATIVE":
            from bkspark.pulsar.protobuf_values import arrow_of_descriptor, descriptor_of

            return arrow_of_descriptor(descriptor_of(self.definition))
        assert self.key is not None
        assert self.value is not None
        return pa.struct({"key": self.key.arrow_type(), "value": self.value.arrow_type()})

    def avro(self) -> Any:
        """Return the Avro schema of an AVRO or JSON schema, as JSON."""
        try:
            return json.loads(self.definition)
        except (ValueError, RecursionError):
            raise ConfigurationError(
                f"version {self.version} of the topic's schema is {self.kind}, but not an Avro schema: "
                "read the bytes with valueFormat=raw"
            ) from None


RAW = Schema(-1, BYTES)
"""The schema of messages that were produced without a schema."""


def decode_schema(version: int, info: formats.SchemaInfo, source: str) -> Schema:
    """Return a stored schema.

    Raises:
        MetadataFormat: its type is unknown, or a KEY_VALUE schema lacks its two parts.
    """
    if not 0 < info.type <= len(STORED_TYPES):
        raise MetadataFormat(f"{source}: its type {info.type} is unknown")
    kind = STORED_TYPES[info.type - 1]
    properties = {each.key: each.value for each in info.props}
    if kind != "KEY_VALUE":
        return Schema(version, kind, info.schema, properties)
    parts = []
    rest = info.schema
    for name in ("key", "value"):
        size = _SIZE.unpack_from(rest)[0] if len(rest) >= _SIZE.size else -1
        if not 0 <= size <= len(rest) - _SIZE.size:
            raise MetadataFormat(f"{source}: it holds no schema of a key and of a value")
        definition, rest = rest[_SIZE.size : _SIZE.size + size], rest[_SIZE.size + size :]
        part_kind = properties.get(f"{name}.schema.type", BYTES)
        part_kind = BYTES if part_kind == "NONE" else part_kind
        if part_kind not in STORED_TYPES or part_kind == "KEY_VALUE":
            raise MetadataFormat(f"{source}: the type {part_kind!r} of its {name} is unknown")
        try:
            own = json.loads(properties.get(f"{name}.schema.properties") or "{}")
        except ValueError:
            own = None
        if not isinstance(own, dict):
            raise MetadataFormat(f"{source}: the properties of its {name} are not a JSON object")
        parts.append(Schema(version, part_kind, definition, {str(k): str(v) for k, v in own.items()}))
    return Schema(version, kind, b"", properties, parts[0], parts[1])


# ---- Avro ----

_AVRO = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
}  # fmt: skip
_TIMES = {"timestamp-millis": pa.timestamp("ms", "UTC"), "timestamp-micros": _UTC_US}
_PRECISION_MAX = 38


def arrow_of_avro(avro: Any) -> pa.DataType:
    """Return the type of values of an Avro schema, timestamps in microseconds."""
    return _in_microseconds(stored_type(avro))


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return _UTC_US
    if pa.types.is_struct(kind):
        return pa.struct(
            [kind.field(i).with_type(_in_microseconds(kind.field(i).type)) for i in range(kind.num_fields)]
        )
    if pa.types.is_list(kind):
        return pa.list_(_in_microseconds(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _in_microseconds(kind.item_type))
    return kind


def stored_type(avro: Any, named: dict[str, pa.DataType | None] | None = None) -> pa.DataType:
    """Return the type of values of an Avro schema with timestamps as they are stored, in ms or µs.

    Raises:
        ConfigurationError: Spark has no type for it, or it is not an Avro schema.
    """
    known = {} if named is None else named
    if isinstance(avro, list):
        return _union_type(avro, known)
    if isinstance(avro, str):
        if avro in _AVRO:
            return _AVRO[avro]
        if avro in known:
            found = known[avro]
            if found is None:
                raise ConfigurationError(
                    f"the topic's schema has a record {avro!r} that holds itself, which Spark has no type for: "
                    "read the bytes with valueFormat=raw"
                )
            return found
    if not isinstance(avro, dict):
        raise ConfigurationError(
            f"the topic's schema holds {str(avro)[:80]!r}, which is not an Avro type: use valueFormat=raw"
        )
    kind, logical = avro.get("type"), avro.get("logicalType")
    if isinstance(kind, (dict, list)):
        return stored_type(kind, known)
    names = _names(avro)
    if kind == "record":
        known |= dict.fromkeys(names)
        made = pa.struct([pa.field(each["name"], stored_type(each["type"], known)) for each in avro.get("fields", [])])
        known |= dict.fromkeys(names, made)
        return made
    if kind == "enum":
        known |= dict.fromkeys(names, pa.string())
        return pa.string()
    if kind == "array":
        return pa.list_(stored_type(avro.get("items"), known))
    if kind == "map":
        return pa.map_(pa.string(), stored_type(avro.get("values"), known))
    if logical == "decimal" and kind in ("bytes", "fixed") and 0 < avro.get("precision", 0) <= _PRECISION_MAX:
        made = pa.decimal128(avro["precision"], avro.get("scale", 0))
    elif kind == "fixed":
        made = pa.binary()
    elif kind == "int" and logical == "date":
        made = pa.date32()
    elif kind == "long" and logical in _TIMES:
        made = _TIMES[logical]
    else:
        return stored_type(kind, known)
    known |= dict.fromkeys(names, made)
    return made


def _names(avro: dict[str, Any]) -> list[str]:
    name = avro.get("name")
    if not isinstance(name, str):
        return []
    namespace = avro.get("namespace")
    return [name, f"{namespace}.{name}"] if namespace else [name]


def _union_type(members: list[Any], known: dict[str, pa.DataType | None]) -> pa.DataType:
    others = [each for each in members if each != "null"]
    if not others:
        return pa.null()
    types = [stored_type(each, known) for each in others]
    if len(types) == 1:
        return types[0]
    if set(types) == {pa.int32(), pa.int64()}:
        return pa.int64()
    if set(types) == {pa.float32(), pa.float64()}:
        return pa.float64()
    return pa.struct({f"member{place}": kind for place, kind in enumerate(types)})
