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


def arrow_of_descriptor(descriptor: Descriptor, above: tuple[str, ...] = ()) -> pa.DataType:
    """Return the type of a message.

    Raises:
        ConfigurationError: a message contains itself, for which Spark has no type.
    """
    if descriptor.full_name in above:
        raise ConfigurationError(
            f"the topic's schema has a message {descriptor.full_name!r} that holds itself, which Spark has no type "
            "for: read the bytes with valueFormat=raw"
        )
    inside = (*above, descriptor.full_name)
    return pa.struct([pa.field(each.name, _field_type(each, inside)) for each in descriptor.fields])


def _field_type(field: FieldDescriptor, above: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return pa.map_(_single_type(key, above), _single_type(value, above))
    single = _single_type(field, above)
    return pa.list_(single) if field.is_repeated else single


def _single_type(field: FieldDescriptor, above: tuple[str, ...]) -> pa.DataType:
    if field.cpp_type == _F.CPPTYPE_MESSAGE:
        return arrow_of_descriptor(field.message_type, above)
    if field.cpp_type == _F.CPPTYPE_STRING:
        return pa.binary() if field.type == _F.TYPE_BYTES else pa.string()
    return _TYPES[field.cpp_type]


def _is_map(field: FieldDescriptor) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def protobuf_decoder(definition: bytes, wanted: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    """Return the decoder of messages: takes binary, returns structs of the type wanted. Raises ValueError then."""
    descriptor = descriptor_of(definition)
    made = message_factory.GetMessageClass(descriptor)

    def row(value: bytes) -> dict[str, Any]:
        try:
            return _cells(made.FromString(value))
        except DecodeError as error:
            raise ValueError(f"it is not a {descriptor.full_name}: {error}") from None

    return lambda values: pa.array([None if value is None else row(value) for value in values.to_pylist()], wanted)


def _cells(message: Any) -> dict[str, Any]:
    return {field.name: _cell(message, field) for field in message.DESCRIPTOR.fields}


def _cell(message: Any, field: FieldDescriptor) -> Any:
    value = getattr(message, field.name)
    if _is_map(field):
        inner = field.message_type.fields_by_name["value"]
        return [(key, _single(each, inner)) for key, each in value.items()]
    if field.is_repeated:
        return [_single(each, field) for each in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _single(value, field)


def _single(value: Any, field: FieldDescriptor) -> Any:
    if field.cpp_type == _F.CPPTYPE_MESSAGE:
        return _cells(value)
    if field.cpp_type == _F.CPPTYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return Decimal(value) if field.cpp_type == _F.CPPTYPE_UINT64 else value
