"""Values of PROTOBUF_NATIVE topics, by the descriptor that the schema carries. PURE.

The schema is JSON: `fileDescriptorSet` (Base64), `rootMessageTypeName`, `rootFileDescriptorName`. A message is a
struct; an enum its name, uint32 a long, uint64 a decimal(20, 0); a field that may be absent and is, is null.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from bkspark.errors import ConfigurationError
from bkspark.pulsar.avro import DEPTH_MAX, TYPES_MAX, refused
from bkspark.pulsar.malformed import each

_F = FieldDescriptor
_TYPES = {
    _F.CPPTYPE_INT32: pa.int32(), _F.CPPTYPE_INT64: pa.int64(), _F.CPPTYPE_UINT32: pa.int64(),
    _F.CPPTYPE_UINT64: pa.decimal128(20, 0), _F.CPPTYPE_DOUBLE: pa.float64(), _F.CPPTYPE_FLOAT: pa.float32(),
    _F.CPPTYPE_BOOL: pa.bool_(), _F.CPPTYPE_ENUM: pa.string(),
}  # fmt: skip


def descriptor_of(definition: bytes) -> Descriptor:
    """Return the message type of a schema.

    Raises:
        ConfigurationError: the schema does not contain one.
    """
    try:
        found = json.loads(definition)
        files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(found["fileDescriptorSet"]))
        name = found["rootMessageTypeName"]
        # A pool of its own: names of different topics may collide.
        pool = descriptor_pool.DescriptorPool()
        left = {each.name: each for each in files.file}
        while left:
            ready = [each for each in left.values() if not any(needed in left for needed in each.dependency)]
            if not ready:
                raise ValueError("its files depend on each other")
            for each in ready:
                pool.Add(left.pop(each.name))
        return pool.FindMessageTypeByName(name)
    except (ValueError, KeyError, TypeError, DecodeError, RecursionError) as error:
        raise ConfigurationError(
            f"the topic's PROTOBUF_NATIVE schema cannot be used ({error}): read the bytes with valueFormat=raw"
        ) from None


def arrow_of_descriptor(descriptor: Descriptor) -> pa.DataType:
    """Return the type of a message.

    Raises:
        ConfigurationError: Spark has no type for it: a message contains itself, or it has too many types.
    """
    return _Types().of_message(descriptor, ())


class _Types:
    """The types of one message and of all in it."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[pa.DataType, int]] = {}
        """The type of each message by full name, and how many types it has."""
        self._count = 0
        """Types so far; only grows."""

    def of_message(self, descriptor: Descriptor, above: tuple[str, ...]) -> pa.DataType:
        name = descriptor.full_name
        if name in above:
            raise refused(f"has a message {name!r} that holds itself, which Spark has no type for")
        if len(above) > DEPTH_MAX:
            raise refused(f"has more than {DEPTH_MAX} messages within each other")
        if name not in self._made:
            before = self._count
            inside = (*above, name)
            made = pa.struct([pa.field(each.name, self._of_field(each, inside)) for each in descriptor.fields])
            self._made[name] = made, self._count - before + 1
        else:
            self._take(self._made[name][1])
        return self._made[name][0]

    def _take(self, count: int) -> None:
        self._count += count
        if self._count > TYPES_MAX:
            raise refused(f"has more than {TYPES_MAX} types")

    def _of_field(self, field: FieldDescriptor, above: tuple[str, ...]) -> pa.DataType:
        self._take(1)
        if _is_map(field):
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            return pa.map_(self._of_one(key, above), self._of_one(value, above))
        one = self._of_one(field, above)
        return pa.list_(one) if field.is_repeated else one

    def _of_one(self, field: FieldDescriptor, above: tuple[str, ...]) -> pa.DataType:
        if field.cpp_type == _F.CPPTYPE_MESSAGE:
            return self.of_message(field.message_type, above)
        if field.cpp_type == _F.CPPTYPE_STRING:
            return pa.binary() if field.type == _F.TYPE_BYTES else pa.string()
        return _TYPES[field.cpp_type]


def _is_map(field: FieldDescriptor) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def protobuf_decoder(written: bytes, newest: bytes) -> Callable[[pa.Array], pa.Array]:
    """Return the decoder of messages: takes binary, returns structs of the newest schema's type.

    Values of an older version of the same message are read by the newest version, as protobuf does it: fields are found
    by their numbers, and a field that was not written has its default. Values of another message are read by their own
    version, and their fields are found by their names.

    Raises:
        ConfigurationError, ValueError: nothing can be read by these schemas.
    """
    descriptor = descriptor_of(newest)
    wanted = arrow_of_descriptor(descriptor)
    if written != newest:
        descriptor = _reader_of(written, descriptor)
    made = message_factory.GetMessageClass(descriptor)

    def row(value: bytes) -> dict[str, Any]:
        try:
            return _cells(made.FromString(value), descriptor)
        except DecodeError as error:
            raise ValueError(f"it is not a {descriptor.full_name}: {error}") from None

    return lambda values: pa.array(each(row, values.to_pylist()), wanted)


def _reader_of(written: bytes, newest: Descriptor) -> Descriptor:
    """Return the message type with which to read values of an older version."""
    try:
        own = descriptor_of(written)
    except ConfigurationError as error:
        raise ValueError(f"an older version cannot be used: {error}") from None
    return newest if own.full_name == newest.full_name else own


def _cells(message: Any, descriptor: Descriptor) -> dict[str, Any]:
    # Attributes of the message itself, such as DESCRIPTOR, may be fields.
    return {field.name: _cell(message, field) for field in descriptor.fields}


def _cell(message: Any, field: FieldDescriptor) -> Any:
    value = getattr(message, field.name)
    if _is_map(field):
        inner = field.message_type.fields_by_name["value"]
        return [(key, _single(each, inner)) for key, each in value.items()]
    if field.is_repeated:
        return [_single(each, field) for each in value]
    if field.has_presence and not type(message).HasField(message, field.name):
        return None
    return _single(value, field)


def _single(value: Any, field: FieldDescriptor) -> Any:
    if field.cpp_type == _F.CPPTYPE_MESSAGE:
        return _cells(value, field.message_type)
    if field.cpp_type == _F.CPPTYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return Decimal(value) if field.cpp_type == _F.CPPTYPE_UINT64 else value
