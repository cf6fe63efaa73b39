"""Targets of what brokers and producers of Pulsar store: any producer writes these bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError, MetadataFormat
from bkspark.pulsar import message_columns as columns
from bkspark.pulsar import metadata
from bkspark.pulsar import pulsar_formats_pb2 as formats
from bkspark.pulsar.chunks import ChunkGatherer
from bkspark.pulsar.entries import decode_entries
from bkspark.pulsar.malformed import MALFORMED
from bkspark.pulsar.message_ids import MessageId
from bkspark.pulsar.messages import Messages, messages_of
from bkspark.pulsar.names import TopicName
from bkspark.pulsar.schemas import STORED_TYPES, Schema, decode_schema
from bkspark.pulsar.values import decoder_of, key_value_decoder
from tests.fuzzing.target import Draw, Target
from tests.pulsar.entries import CODECS, Message, batch, chunked, marker, single

_MESSAGES = [Message(b"value", "key", [("a", "1"), ("a", "2")], 5), Message(None), Message(b"x" * 100)]


def _messages(data: bytes) -> Messages:
    """An entry as it is stored; the first byte chooses between a topic's and a compacted ledger's."""
    stored = EntryBatch.of([b"\xff" * 9, data[1:], b"\xff" * 9])
    is_compacted = bool(data[:1] == b"\1")
    entries = decode_entries(EntryBatch(stored.buffer, stored.offsets[1:3], 5, 7), is_compacted=is_compacted)
    gatherer = ChunkGatherer()
    joined = {}
    if entries.is_chunk[0]:
        uuid = gatherer.take(entries, 0)
        found = None if uuid is None else gatherer.join(uuid)
        if found is None:
            raise ValueError("a chunk that no message ends with")
        joined[0] = found
    return messages_of(entries, np.arange(1), joined, is_raw=entries.is_encrypted)


def _columns_fit(messages: Messages) -> None:
    for make in (columns.values, columns.keys, columns.properties, columns.event_times, columns.encryptions):
        try:
            found = make(messages)
        except ValueError:
            continue
        found.validate(full=True)
        assert len(found) == len(messages)
    identities = columns.message_ids(messages, 3).to_pylist()
    assert all(formats.MessageIdData.FromString(each).partition == 3 for each in identities)
    assert (messages.starts <= messages.ends).all()
    assert not len(messages) or messages.ends.max() <= len(messages.content)


def _entry_seeds() -> Iterator[bytes]:
    for codec in CODECS:
        yield b"\0" + batch(_MESSAGES, codec=codec, broker=(1, 2))
        yield b"\0" + single(_MESSAGES[0], codec=codec)
    # Without a checksum, changes get further.
    yield b"\0" + batch(_MESSAGES)[6:]
    yield b"\0" + single(_MESSAGES[0], codec=1)[6:]
    yield b"\0" + chunked(Message(b"whole"), 100)[0][6:]
    yield b"\0" + marker(21, (1, 2))[6:]
    inner = batch(_MESSAGES)[6:]
    identity = formats.MessageIdData(ledgerId=5, entryId=6, partition=-1).SerializeToString()
    yield b"\1" + len(identity).to_bytes(4) + identity + len(inner).to_bytes(4) + inner


def _stored(data: bytes) -> object:
    draw = Draw(data)
    kind, rest = draw.below(6), draw.rest()
    if kind == 0:
        return metadata.decode_managed_ledger(rest, "/p")
    if kind == 1:
        return metadata.decode_cursor(rest, "/p").acknowledged_in(3, 5)
    if kind == 2:
        return metadata.decode_cursor_entry(rest, 5, "/p").acknowledged_in(3, 5)
    if kind == 3:
        return metadata.decode_partitions(rest, "/p")
    if kind == 4:
        return metadata.decode_schema_locator(rest, "/p")
    info, _ = metadata.decode_schema_entry(rest, "/p")
    return decode_schema(0, info, "/p").arrow_type()


def _stored_seeds() -> Iterator[bytes]:
    info = formats.ManagedLedgerInfo()
    info.ledgerInfo.add(ledgerId=3, entries=5, size=100, timestamp=1)
    info.ledgerInfo.add(ledgerId=4, timestamp=0)
    yield b"\0" + info.SerializeToString()
    header = formats.CompressedInfo(compressionType=0, uncompressedSize=0).SerializeToString()
    yield b"\0\x47\x78" + len(header).to_bytes(4) + header + info.SerializeToString()
    cursor = formats.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=3, markDeleteEntryId=2)
    cursor.individualDeletedMessages.add().upperEndpoint.ledgerId = 3
    yield b"\1" + cursor.SerializeToString()
    yield b"\2" + formats.PositionInfo(ledgerId=3, entryId=4).SerializeToString()
    yield b'\3{"partitions": 3}'
    position = formats.SchemaPosition(ledgerId=3, entryId=0)
    yield b"\4" + formats.SchemaLocator(index=[formats.IndexEntry(version=0, position=position)]).SerializeToString()
    for kind, definition in (("AVRO", b'{"type": "record", "name": "R", "fields": []}'), ("KEY_VALUE", bytes(8))):
        found = formats.SchemaInfo(type=STORED_TYPES.index(kind) + 1, schema=definition)
        yield b"\5" + formats.SchemaEntry(schema_data=found.SerializeToString()).SerializeToString()


_FIELDS = b'[{"name": "i", "type": "int"}, {"name": "s", "type": ["null", "string"]}]'
_RECORD = b'{"type": "record", "name": "R", "fields": %b}' % _FIELDS
_PLAIN = [Schema(0, kind) for kind in STORED_TYPES if kind not in ("AVRO", "JSON", "PROTOBUF_NATIVE", "KEY_VALUE")]
_DECIMAL = b'{"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 4}'
_RICH_FIELDS = b"""[{"name": "p", "type": %b}, {"name": "d", "type": ["null", "double"]},
    {"name": "b", "type": "bytes"}, {"name": "m", "type": {"type": "map", "values": "float"}},
    {"name": "u", "type": ["string", "long"]},
    {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "y", "type": ["null", {"type": "int", "logicalType": "date"}]},
    {"name": "l", "type": ["null", {"type": "long", "logicalType": "local-timestamp-micros"}]},
    {"name": "e", "type": ["null", {"type": "enum", "name": "E", "symbols": ["A"]}]}]"""
_RICH = b'{"type": "record", "name": "R", "fields": %b}' % (_RICH_FIELDS % _DECIMAL)
_SCHEMAS = [*_PLAIN, *(Schema(0, kind, record) for record in (_RECORD, _RICH) for kind in ("JSON", "AVRO"))]
_KEY_VALUE = Schema(0, "KEY_VALUE", b"", {}, Schema(0, "STRING"), Schema(0, "INT32"))


def _value(data: bytes) -> pa.Array:
    draw = Draw(data)
    place, rest = draw.below(len(_SCHEMAS) + 1), draw.rest()
    values = pa.array([rest, None], pa.binary())
    if place == len(_SCHEMAS):
        return key_value_decoder(_KEY_VALUE, _KEY_VALUE)(values, values)
    return decoder_of(_SCHEMAS[place])(values)


def _value_seeds() -> Iterator[bytes]:
    for place in range(len(_SCHEMAS) + 1):
        yield bytes([place]) + bytes(8)
    for place, schema in enumerate(_SCHEMAS):
        if schema.kind == "JSON":
            yield bytes([place]) + b'{"i": 1, "s": "x"}'
            yield bytes([place]) + b'{"p": 1.25E-3, "d": "NaN", "b": "eA==", "m": {"a": 1.5}, "u": "x", "t": 1500}'
            yield bytes([place]) + b'{"t": 1.500000000, "y": [2020, 1, 2], "l": [2020, 1, 2, 3, 4, 5, 6], "e": 7}'


def _value_fits(found: pa.Array) -> None:
    found.validate(full=True)
    assert len(found) == 2


def _name(data: bytes) -> TopicName:
    text = data.decode("utf-8", "replace")
    with contextlib.suppress(ValueError):
        assert MessageId.parse(str(MessageId.parse(text))) == MessageId.parse(text)
    return TopicName.parse(text)


def _name_is_path_again(name: TopicName) -> None:
    assert TopicName.parse(str(name)) == name
    assert TopicName.of_managed_ledger(name.managed_ledger) == name
    assert "/../" not in name.managed_ledger_path


TARGETS = (
    Target(
        "pulsar-entry",
        _messages,
        (ValueError,),
        _columns_fit,
        _entry_seeds,
        (b"\x0e\x01", b"\x0e\x02"),
        seconds_max=1.0,
    ),
    Target("pulsar-metadata", _stored, (MetadataFormat, ConfigurationError), None, _stored_seeds, (b"\x47\x78",)),
    Target(
        "pulsar-value",
        _value,
        (*MALFORMED, ConfigurationError),
        _value_fits,
        _value_seeds,
        (b"E-999999999", b'"NaN"'),
    ),
    Target(
        "pulsar-names",
        _name,
        (ConfigurationError,),
        _name_is_path_again,
        lambda: [b"persistent://t/n/a b%~*", b"t/n/l-partition-3", b"12:3:-1:4", "persistent://t/c/n/ü/x".encode()],
        (b"persistent://", b"-partition-"),
    ),
)

# Arrow loads half of itself when it is first used: no input is to pay for that.
_columns_fit(_messages(next(_entry_seeds())))
