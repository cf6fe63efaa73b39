"""Entries as Pulsar's producers and brokers write them, made by protobuf's own classes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import crc32c
import pyarrow as pa

from bkspark.entries import EntryBatch
from bkspark.pulsar.chunks import ChunkGatherer
from bkspark.pulsar.entries import Entries, decode_entries
from bkspark.pulsar.pulsar_formats_pb2 import (
    BrokerEntryMetadata,
    MessageIdData,
    MessageMetadata,
    SingleMessageMetadata,
)

CODECS = {0: "none", 1: "lz4", 2: "zlib", 3: "zstd", 4: "snappy"}
PUBLISHED_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Message:
    """What a producer is given. A value of None is a null value."""

    value: bytes | None = b""
    key: str | None = None
    properties: Sequence[tuple[str, str]] = ()
    event_time: int = 0
    more: dict[str, object] = field(default_factory=dict)
    """Further fields of its metadata."""


def compressed(codec: int, payload: bytes, *, is_finished: bool = False) -> bytes:
    """Return a payload as a producer compresses it; `is_finished`: zlib's stream is ended, as C++ does."""
    if codec == 2:
        stream = zlib.compressobj()
        return stream.compress(payload) + stream.flush(zlib.Z_FINISH if is_finished else zlib.Z_SYNC_FLUSH)
    names = {1: "lz4_raw", 3: "zstd", 4: "snappy"}
    return pa.Codec(names[codec]).compress(payload, asbytes=True) if codec else payload


def framed(
    metadata: MessageMetadata, payload: bytes, *, checksum: bool = True, broker: tuple[int, int] | None = None
) -> bytes:
    """Return an entry of these metadata and this payload, as it is stored."""
    head = metadata.SerializeToString()
    body = struct.pack(">I", len(head)) + head + payload
    if checksum:
        body = struct.pack(">HI", 0x0E01, crc32c.crc32c(body)) + body
    if broker is not None:
        found = BrokerEntryMetadata(broker_timestamp=broker[0], index=broker[1]).SerializeToString()
        body = struct.pack(">Hi", 0x0E02, len(found)) + found + body
    return body


def metadata_of(sequence: int = 0, **more: object) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=PUBLISHED_MS + sequence, **more)


def single(
    message: Message, sequence: int = 0, codec: int = 0, *, broker: tuple[int, int] | None = None, **more: object
) -> bytes:
    """Return the entry of one message that is not batched."""
    value = message.value or b""
    metadata = metadata_of(sequence, uncompressed_size=len(value), compression=codec, **message.more, **more)
    _describe(metadata, message)
    return framed(metadata, compressed(codec, value), broker=broker)


def batch(
    messages: Sequence[Message],
    sequence: int = 0,
    codec: int = 0,
    *,
    broker: tuple[int, int] | None = None,
    is_finished: bool = False,
    **more: object,
) -> bytes:
    """Return the entry of a batch."""
    parts = []
    for place, message in enumerate(messages):
        one = SingleMessageMetadata(
            payload_size=len(message.value or b""), sequence_id=sequence + place, **message.more
        )
        _describe(one, message)
        head = one.SerializeToString()
        parts.append(struct.pack(">I", len(head)) + head + (message.value or b""))
    payload = b"".join(parts)
    metadata = metadata_of(
        sequence, num_messages_in_batch=len(messages), compression=codec, uncompressed_size=len(payload), **more
    )
    if messages and messages[0].key is not None:
        metadata.partition_key = messages[0].key
    return framed(metadata, compressed(codec, payload, is_finished=is_finished), broker=broker)


def chunked(message: Message, sizes: int, sequence: int = 0, codec: int = 0, uuid: str | None = None) -> list[bytes]:
    """Return the entries of a message in chunks of at most `sizes` bytes."""
    whole = compressed(codec, message.value or b"")
    parts = [whole[at : at + sizes] for at in range(0, len(whole), sizes)]
    entries = []
    for chunk, part in enumerate(parts):
        metadata = metadata_of(
            sequence,
            uuid=uuid or f"p-{sequence}",
            chunk_id=chunk,
            num_chunks_from_msg=len(parts),
            compression=codec,
            total_chunk_msg_size=len(whole),
            uncompressed_size=len(message.value or b""),
            **message.more,
        )
        _describe(metadata, message)
        entries.append(framed(metadata, part))
    return entries


def marker(kind: int, txn: tuple[int, int] | None = None) -> bytes:
    metadata = metadata_of(0, marker_type=kind)
    metadata.sequence_id = (1 << 64) - 1
    if txn is not None:
        metadata.txnid_most_bits, metadata.txnid_least_bits = txn
    return framed(metadata, b"\0\1\2")


def _describe(metadata: MessageMetadata | SingleMessageMetadata, message: Message) -> None:
    if message.key is not None:
        metadata.partition_key = message.key
    for name, value in message.properties:
        metadata.properties.add(key=name, value=value)
    if message.event_time:
        metadata.event_time = message.event_time
    if message.value is None:
        metadata.null_value = True


def compacted(ledger: int, entry: int, stored: bytes) -> bytes:
    """Return the entry of a compacted ledger that holds a topic's entry."""
    identity = MessageIdData(ledgerId=ledger, entryId=entry, partition=-1).SerializeToString()
    return struct.pack(">i", len(identity)) + identity + struct.pack(">i", len(stored)) + stored


def decoded(*stored: bytes) -> Entries:
    return decode_entries(EntryBatch.of(stored, 7, 0))


def gathered(gatherer: ChunkGatherer, entries: Entries) -> list[bytes]:
    found = []
    for row in range(len(entries)):
        uuid = gatherer.take(entries, row)
        if uuid is not None:
            joined = gatherer.join(uuid)
            if joined is not None:
                found.append(bytes(joined.payload))
    return found
