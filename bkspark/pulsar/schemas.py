"""Schemas of topics: from what Pulsar stores to the Arrow types of values. PURE.

BYTES, none          binary
STRING               string; binary if its charset is not one that every Java has
BOOLEAN INT8 … INT64 FLOAT DOUBLE        the same
DATE                 date, of the day in UTC; LOCAL_DATE date
TIMESTAMP, INSTANT   timestamp; LOCAL_DATE_TIME timestamp without zone
TIME                 long, ms of the day; LOCAL_TIME long, ns of the day
AVRO, JSON           the record of its Avro schema, as struct (`bkspark.pulsar.avro`)
PROTOBUF_NATIVE      the message of its descriptor, as struct
PROTOBUF             binary
KEY_VALUE            key and value, each of a schema of its own

"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from bkspark.errors import ConfigurationError, MetadataFormat
from bkspark.pulsar import pulsar_formats_pb2 as formats
from bkspark.pulsar.avro import arrow_of_avro, with_full_names
from bkspark.pulsar.jackson import with_dates

BYTES = "BYTES"
STORED_TYPES = (
    BYTES, "STRING", "JSON", "PROTOBUF", "AVRO", "BOOLEAN", "INT8", "INT16", "INT32", "INT64", "FLOAT", "DOUBLE",
    "DATE", "TIME", "TIMESTAMP", "KEY_VALUE", "INSTANT", "LOCAL_DATE", "LOCAL_TIME", "LOCAL_DATE_TIME",
    "PROTOBUF_NATIVE",
)  # fmt: skip
"""Schema types by the stored number minus one: the stored number is one more than that of the wire protocol."""
AVRO_READ_OFFSET = "__AVRO_READ_OFFSET__"
INLINE, SEPARATED = "INLINE", "SEPARATED"
_REMEDY = ": read the bytes with valueFormat=raw"
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
_CHARSETS = {
    "UTF-8": "utf-8", "UTF8": "utf-8", "US-ASCII": "utf-8", "ISO-8859-1": "latin-1", "UTF-16": "utf-16",
    "UTF-16BE": "utf-16-be", "UTF-16LE": "utf-16-le",
}  # fmt: skip
"""The charsets that every Java has, by their names there, as Python calls them."""


@dataclass(frozen=True)
class Schema:
    """One version of a topic's schema. `key` and `value` are those of KEY_VALUE's parts."""

    version: int
    kind: str
    """Pulsar's name of its type, such as "AVRO", "JSON", "STRING" or "KEY_VALUE"."""
    definition: bytes = b""
    """What the type needs: of AVRO and JSON, an Avro schema as JSON."""
    properties: dict[str, str] = field(default_factory=dict)
    """What the producer stored with it, by name."""
    key: Schema | None = None
    value: Schema | None = None

    @property
    def is_separated(self) -> bool:
        """Whether the key of a KEY_VALUE is the key of its message, and not part of the payload."""
        return self.properties.get("kv.encoding.type", INLINE) == SEPARATED

    @property
    def charset(self) -> str | None:
        """Python's name of the charset of a STRING; None if it is unknown."""
        return _CHARSETS.get(self.properties.get("__charset", "UTF-8").upper())

    def arrow_type(self) -> pa.DataType:
        """Return the type of a value.

        Raises:
            ConfigurationError: Spark has no type for it.
        """
        if self.kind in PRIMITIVES:
            return pa.binary() if self.kind == "STRING" and self.charset is None else PRIMITIVES[self.kind]
        if self.kind in ("AVRO", "JSON"):
            return arrow_of_avro(self.avro())
        if self.kind == "PROTOBUF_NATIVE":
            from bkspark.pulsar.protobuf_values import arrow_of_descriptor, descriptor_of

            return arrow_of_descriptor(descriptor_of(self.definition))
        assert self.key is not None
        assert self.value is not None
        return pa.struct({"key": self.key.arrow_type(), "value": self.value.arrow_type()})

    def avro(self) -> Any:
        """Return the Avro schema of an AVRO or JSON schema, as JSON, with full names; of JSON, with Java's dates as the
        times that Jackson writes.

        Raises:
            ConfigurationError: the definition is not an Avro schema.
        """
        try:
            found = json.loads(self.definition)
        except (ValueError, RecursionError):
            raise ConfigurationError(
                f"version {self.version} of the topic's schema is {self.kind}, but not an Avro schema: "
                "read the bytes with valueFormat=raw"
            ) from None
        full = with_full_names(found)
        return with_dates(full) if self.kind == "JSON" else full


RAW = Schema(-1, BYTES)
"""The schema of messages that were produced without a schema."""


def decode_schema(version: int, info: formats.SchemaInfo, source: str) -> Schema:
    """Return a stored schema.

    Raises:
        MetadataFormat: its type is unknown, or a KEY_VALUE schema lacks its two parts.
    """
    if not 0 < info.type <= len(STORED_TYPES):
        raise MetadataFormat(f"{source}: its type {info.type} is unknown{_REMEDY}")
    # One that says so was stored when all before it were deleted: what follows are bytes.
    kind = BYTES if info.deleted else STORED_TYPES[info.type - 1]
    properties = {each.key: each.value for each in info.props}
    if kind != "KEY_VALUE":
        return Schema(version, kind, info.schema, properties)
    parts = []
    rest = info.schema
    for name in ("key", "value"):
        size = _SIZE.unpack_from(rest)[0] if len(rest) >= _SIZE.size else -1
        if not 0 <= size <= len(rest) - _SIZE.size:
            raise MetadataFormat(f"{source}: it holds no schema of a key and of a value{_REMEDY}")
        definition, rest = rest[_SIZE.size : _SIZE.size + size], rest[_SIZE.size + size :]
        part_kind = properties.get(f"{name}.schema.type", BYTES)
        part_kind = BYTES if part_kind == "NONE" else part_kind
        if part_kind not in STORED_TYPES or part_kind == "KEY_VALUE":
            raise MetadataFormat(f"{source}: the type {part_kind!r} of its {name} is unknown{_REMEDY}")
        try:
            own = json.loads(properties.get(f"{name}.schema.properties") or "{}")
        except (ValueError, RecursionError):
            own = None
        if not isinstance(own, dict):
            raise MetadataFormat(f"{source}: the properties of its {name} are not a JSON object{_REMEDY}")
        parts.append(Schema(version, part_kind, definition, {str(k): str(v) for k, v in own.items()}))
    return Schema(version, kind, b"", properties, parts[0], parts[1])
