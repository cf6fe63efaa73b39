"""A reader of topics' entries that is written for clarity: one entry and one message at a time, by protobuf's own
classes. Reads of Spark are compared with it."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import crc32c
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from bkspark.pulsar import pulsar_formats_pb2 as formats

Row = dict[str, Any]
TIME_MS_MAX = (1 << 63) // 1000 - 1


def _class_of(name: str) -> Any:
    """Return the class of a message of Pulsar. Its texts are bytes, and what it contains is parsed only where it is
    wanted."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"bkspark.pulsar.{name}"))


def _pool_with_bytes() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto()
    formats.DESCRIPTOR.CopyToProto(file)
    for message in file.message_type:
        for member in message.field:
            if member.type in (member.TYPE_STRING, member.TYPE_MESSAGE) and message.name != "MessageIdData":
                member.type = member.TYPE_BYTES
                member.ClearField("type_name")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


_POOL = _pool_with_bytes()
_Broker, _Metadata, _Single, _KeyValue = map(
    _class_of, ("BrokerEntryMetadata", "MessageMetadata", "SingleMessageMetadata", "KeyValue")
)


class MalformedError(Exception):
    """An entry is not one of Pulsar's."""


@dataclass(frozen=True)
class Malformed:
    """Takes the place of the rows of an entry that is malformed."""

    ledger_id: int
    entry_id: int
    stored: bytes


@dataclass
class _Entry:
    ledger_id: int
    entry_id: int
    stored: bytes
    metadata: Any
    payload: bytes
    broker: Any


@dataclass
class SlowReader:
    """Reads the entries of one topic or partition, in order.

    `aborted`: ids of transactions whose messages are left out, None for all messages. `encrypted`: `skip` or `raw`.
    """

    partition: int = -1
    aborted: Collection[tuple[int, int]] | None = None
    encrypted: str = "skip"
    _chunks: dict[str, dict[str, Any]] = field(default_factory=dict)
    _complete: dict[str, tuple[int, int]] = field(default_factory=dict)

    def read(self, ledger_id: int, first_entry: int, stored: Sequence[bytes]) -> Iterator[Row | Malformed]:
        for number, each in enumerate(stored, first_entry):
            try:
                yield from self._rows(_parsed(ledger_id, number, each))
            except (MalformedError, DecodeError, UnicodeDecodeError, ValueError):
                yield Malformed(ledger_id, number, each)

    def _rows(self, entry: _Entry) -> list[Row]:
        metadata = entry.metadata
        if metadata.HasField("marker_type"):
            return []
        txn = (_signed(metadata.txnid_most_bits), _signed(metadata.txnid_least_bits))
        has_txn = metadata.HasField("txnid_most_bits") and metadata.HasField("txnid_least_bits")
        if self.aborted is not None and has_txn and txn in self.aborted:
            return []
        if len(metadata.encryption_keys):
            return [] if self.encrypted == "skip" else [self._row(entry, entry.payload, None, -1)]
        payload, first = entry.payload, None
        if metadata.num_chunks_from_msg > 1:
            joined = self._joined(entry)
            if joined is None:
                return []
            payload, first = joined
        payload = _decompressed(metadata.compression, payload, metadata.uncompressed_size)
        if not metadata.HasField("num_messages_in_batch"):
            return [self._row(entry, payload, None, -1, first)]
        return self._batch(entry, payload, first)

    def _batch(self, entry: _Entry, payload: bytes, first: tuple[int, int] | None) -> list[Row]:
        rows, at = [], 0
        for index in range(entry.metadata.num_messages_in_batch):
            single, at = _sized(payload, at)
            one = _Single.FromString(single)
            end = at + one.payload_size
            if not one.HasField("payload_size") or not at <= end <= len(payload):
                raise MalformedError
            if not one.compacted_out:
                rows.append(self._row(entry, payload[at:end], one, index, first))
            at = end
        if at != len(payload):
            raise MalformedError
        return rows

    def _joined(self, entry: _Entry) -> tuple[bytes, tuple[int, int]] | None:
        """Return a message's payload and the place of its first chunk with its last chunk; None with others."""
        metadata = entry.metadata
        uuid = metadata.uuid.decode("utf-8", "replace")
        count, chunk = metadata.num_chunks_from_msg, metadata.chunk_id
        if not uuid or not 0 <= chunk < count <= 100_000:
            raise MalformedError
        size = metadata.total_chunk_msg_size if metadata.HasField("total_chunk_msg_size") else -1
        if chunk and self._complete.get(uuid) == (count, size):
            return None
        self._complete.pop(uuid, None)
        if chunk == 0:
            self._chunks.pop(uuid, None)
        held = self._chunks.setdefault(uuid, {"facts": (count, size), "parts": {}, "first": (0, 0)})
        if held["facts"] != (count, size):
            raise MalformedError
        if chunk not in held["parts"]:
            held["parts"][chunk] = entry.payload
            if chunk == 0:
                held["first"] = (entry.ledger_id, entry.entry_id)
        if chunk < count - 1:
            return None
        del self._chunks[uuid]
        self._complete[uuid] = (count, size)
        whole = b"".join(part for _, part in sorted(held["parts"].items()))
        if len(held["parts"]) < count or size not in (-1, len(whole)):
            raise MalformedError
        return whole, held["first"]

    def _row(self, entry: _Entry, value: bytes, single: Any, index: int, first: tuple[int, int] | None = None) -> Row:
        metadata = entry.metadata
        own = metadata if single is None else single
        txn = metadata.HasField("txnid_most_bits") and metadata.HasField("txnid_least_bits")
        return {
            "value": None if _inherited(metadata, single, "null_value") else value,
            "__key": _key(own),
            "__messageId": self._message_id(entry, index, first),
            "__publishTime": _time(_signed(metadata.publish_time)),
            "__eventTime": _time(_signed(_inherited(metadata, single, "event_time"))) or None,
            "__messageProperties": _properties(own),
            "__partition": self.partition if self.partition >= 0 else None,
            "__ledgerId": entry.ledger_id,
            "__entryId": entry.entry_id,
            "__batchIndex": index if single is not None else None,
            "__sequenceId": _sequence(metadata, single, index),
            "__producerName": metadata.producer_name.decode(),
            "__orderingKey": own.ordering_key if own.HasField("ordering_key") else None,
            "__schemaVersion": _schema_version(metadata),
            "__index": _index(entry, single, index),
            "__brokerTime": _time(max(0, _signed(entry.broker.broker_timestamp))) or None,
            "__replicatedFrom": metadata.replicated_from.decode() if metadata.HasField("replicated_from") else None,
            "__deliverAt": _time(max(0, metadata.deliver_at_time)) or None,
            "__txnId": f"({_signed(metadata.txnid_most_bits)},{_signed(metadata.txnid_least_bits)})" if txn else None,
        }

    def _message_id(self, entry: _Entry, index: int, first: tuple[int, int] | None) -> bytes:
        found = self.plain_id(entry.ledger_id, entry.entry_id)
        found.batch_size = 0
        if index >= 0:
            found.batch_index, found.batch_size = index, entry.metadata.num_messages_in_batch
        if first is not None:
            inner = self.plain_id(*first)
            inner.batch_size = 0
            found.first_chunk_message_id.CopyFrom(inner)
        return found.SerializeToString()

    def plain_id(self, ledger_id: int, entry_id: int) -> formats.MessageIdData:
        found = formats.MessageIdData(ledgerId=ledger_id, entryId=entry_id)
        if self.partition >= 0:
            found.partition = self.partition
        return found


def _parsed(ledger_id: int, entry_id: int, stored: bytes) -> _Entry:
    broker, at = _Broker(), 0
    if stored[:2] == b"\x0e\x02":
        found, at = _sized(stored, 2)
        broker = _Broker.FromString(found)
    if stored[at : at + 2] == b"\x0e\x01":
        at += 6
        if at > len(stored) or struct.unpack(">I", stored[at - 4 : at])[0] != crc32c.crc32c(stored[at:]):
            raise MalformedError
    found, at = _sized(stored, at)
    metadata = _Metadata.FromString(found)
    if not all(metadata.HasField(name) for name in ("producer_name", "sequence_id", "publish_time")):
        raise MalformedError
    payload = stored[at:]
    size = len(payload) if not metadata.compression else metadata.uncompressed_size
    if metadata.HasField("num_messages_in_batch") and not 0 <= metadata.num_messages_in_batch * 6 <= size:
        raise MalformedError
    return _Entry(ledger_id, entry_id, stored, metadata, payload, broker)


def _sized(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the bytes that follow their size, and where they end."""
    if len(data) < at + 4:
        raise MalformedError
    end = at + 4 + struct.unpack(">I", data[at : at + 4])[0]
    if end > len(data):
        raise MalformedError
    return data[at + 4 : end], end


def _decompressed(codec: int, data: bytes, size: int) -> bytes:
    if not codec:
        return data
    if codec == 2:
        stream = zlib.decompressobj()
        try:
            found = stream.decompress(data)
        except zlib.error:
            raise MalformedError from None
        if stream.unused_data:
            raise MalformedError
    elif codec == 1:
        found = _lz4(data)
    elif codec in (3, 4):
        try:
            found = pa.Codec({3: "zstd", 4: "snappy"}[codec]).decompress(data, size, asbytes=True)
        except (pa.ArrowException, OSError, ValueError):
            raise MalformedError from None
        if codec == 4 and _varint(data) != size:
            raise MalformedError
    else:
        raise MalformedError
    if len(found) != size:
        raise MalformedError
    return found


def _lz4(data: bytes) -> bytes:
    """Return what a raw block of LZ4 decompresses to, byte by byte."""
    found, at = bytearray(), 0
    try:
        while at < len(data):
            token = data[at]
            literals, at = _lz4_length(data, at + 1, token >> 4)
            if at + literals > len(data):
                raise MalformedError
            found += data[at : at + literals]
            at += literals
            if at == len(data):
                if token & 15:  # the last sequence has no match
                    raise MalformedError
                return bytes(found)
            offset = data[at] | data[at + 1] << 8
            matched, at = _lz4_length(data, at + 2, token & 15)
            if not 0 < offset <= len(found):
                raise MalformedError
            for _ in range(matched + 4):
                found.append(found[-offset])
    except IndexError:
        raise MalformedError from None
    return bytes(found)


def _lz4_length(data: bytes, at: int, length: int) -> tuple[int, int]:
    if length == 15:
        while True:
            length += data[at]
            at += 1
            if data[at - 1] != 255:
                break
    return length, at


def _varint(data: bytes) -> int:
    found = 0
    for place, octet in enumerate(data[:5]):
        found |= (octet & 0x7F) << 7 * place
        if octet < 0x80:
            return found
    raise MalformedError


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _inherited(metadata: Any, single: Any, name: str) -> Any:
    """Return a field of a batch's message, or that of its entry if it lacks it."""
    return getattr(single if single is not None and single.HasField(name) else metadata, name)


def _sequence(metadata: Any, single: Any, index: int) -> int:
    if single is None:
        return _signed(metadata.sequence_id)
    if single.HasField("sequence_id"):
        return _signed(single.sequence_id)
    return _signed((metadata.sequence_id + index) & (1 << 64) - 1)


def _index(entry: _Entry, single: Any, index: int) -> int | None:
    last = _signed(entry.broker.index) if entry.broker.HasField("index") else -1
    found = last if single is None or last < 0 else last - entry.metadata.num_messages_in_batch + 1 + index
    return found if found >= 0 else None


def _key(own: Any) -> bytes | None:
    if not own.HasField("partition_key"):
        return None
    if not own.partition_key_b64_encoded:
        return bytes(own.partition_key)
    return base64.b64decode(own.partition_key, validate=True)


def _properties(own: Any) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for each in map(_KeyValue.FromString, own.properties):
        if not (each.HasField("key") and each.HasField("value")):
            raise MalformedError
        name, value = each.key.decode(), each.value.decode()
        found.pop(name, None)  # the last one counts, also for the order
        found[name] = value
    return list(found.items())


def _schema_version(metadata: Any) -> int | None:
    held = metadata.schema_version
    if not metadata.HasField("schema_version") or len(held) not in (8, 64):
        return None
    found = int.from_bytes(held[:8], signed=True)
    return found if found >= 0 else None


def _time(milliseconds: int) -> int:
    """Return microseconds."""
    if abs(milliseconds) > TIME_MS_MAX:
        raise MalformedError
    return milliseconds * 1000
