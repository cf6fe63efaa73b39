"""Topics at random: entries of every kind that producers and brokers make, in any combination, and damaged ones."""

from __future__ import annotations

import base64
import random
import struct
from collections.abc import Callable

from bkspark.pulsar.pulsar_formats_pb2 import MessageMetadata, SingleMessageMetadata
from tests.pulsar.entries import PUBLISHED_MS, compressed, framed

TEXTS = ("", "a", "key", "ü€😀", "x" * 200)
NUMBERS = (0, 1, 127, 128, PUBLISHED_MS, (1 << 53) + 1)
TXNS = ((1, 1), (1, 2), (1 << 63, 3))


class TopicAuthor:
    """Makes the entries of a topic. The same seed makes the same entries.

    Args:
        damage: share of entries that are damaged.
        has_odd_chunks: chunks of several messages may have one name, contradict each other and be damaged.
    """

    def __init__(self, seed: int, damage: float = 0.0, *, has_odd_chunks: bool = True) -> None:
        self.chance = random.Random(seed)
        self._damage = damage
        self._has_odd_chunks = has_odd_chunks
        self._sequence = 0
        """The sequence id of the next message."""
        self._waiting: list[list[bytes]] = []
        """Chunks of messages that are not whole yet."""
        self._kinds: list[tuple[Callable[[], bytes], int]] = [
            (self._plain, 4),
            (self._batch, 5),
            (self._marker, 1),
            (self._chunk, 4),
        ]
        self._has = {name: self.often(0.5) for name in ("broker", "checksum", "txn", "encryption", "schema")}
        """What some entries of this topic have at all."""

    def often(self, share: float) -> bool:
        return self.chance.random() < share

    def entries(self, count: int) -> list[bytes]:
        makers, weights = zip(*self._kinds)
        found = [self.chance.choices(makers, weights)[0]() for _ in range(count)]
        return [
            self.damaged(entry) if self.often(self._damage) and self._may_be_odd(entry) else entry for entry in found
        ]

    # ---- kinds of entries ----

    def _plain(self) -> bytes:
        metadata, value = self._metadata(), self._value()
        self._describe(metadata)
        return self._stored(metadata, value)

    def _batch(self) -> bytes:
        metadata = self._metadata()
        count = self.chance.choice((0, 1, 1, 2, 3, 40))
        parts = []
        is_uniform = self.often(0.5)
        value = self._value()
        for place in range(count):
            value = value if is_uniform else self._value()
            one = SingleMessageMetadata(payload_size=len(value))
            if self.often(0.7):
                one.sequence_id = metadata.sequence_id + place
            if not is_uniform:
                self._describe(one)
                if self.often(0.05):
                    one.compacted_out = True
            head = one.SerializeToString()
            parts.append(struct.pack(">I", len(head)) + head + value)
        metadata.num_messages_in_batch = count
        if self.often(0.3):
            self._describe(metadata)
        self._sequence += max(0, count - 1)
        return self._stored(metadata, b"".join(parts))

    def _marker(self) -> bytes:
        metadata = self._metadata()
        metadata.marker_type = self.chance.choice((0, 10, 20, 21, 22))
        return self._stored(metadata, b"\0\1")

    def _chunk(self) -> bytes:
        """Return the next chunk of a message; those of several messages alternate, and some are repeated or gone."""
        if not self._waiting or self.often(0.3):
            self._waiting.append(self._chunks())
        chunks = self.chance.choice(self._waiting)
        found = chunks[0] if self.often(0.1) else chunks.pop(0)
        if not chunks or self.often(0.05):
            self._waiting.remove(chunks)
        return found

    def _chunks(self) -> list[bytes]:
        metadata, value = self._metadata(), self._value() + self.chance.randbytes(3)
        self._describe(metadata)
        metadata.uncompressed_size = len(value)
        whole = compressed(metadata.compression, value)
        size = self.chance.choice((1, 5, len(whole) // 2 or 1))
        parts = [whole[at : at + size] for at in range(0, len(whole), size)]
        if len(parts) > 12:
            parts = [*parts[:11], b"".join(parts[11:])]
        is_odd = self._has_odd_chunks and self.often(0.5)
        metadata.uuid = "same" if is_odd else f"p-{metadata.sequence_id}"
        metadata.num_chunks_from_msg = len(parts)
        if self.often(0.8):
            metadata.total_chunk_msg_size = len(whole)
        entries = []
        for chunk, part in enumerate(parts):
            metadata.chunk_id = chunk
            entries.append(self._framed(metadata, part))
        return entries

    # ---- their parts ----

    def _metadata(self) -> MessageMetadata:
        metadata = MessageMetadata(
            producer_name=self.chance.choice(TEXTS), sequence_id=self._sequence, publish_time=self._number()
        )
        self._sequence += 1
        if self.often(0.6):
            metadata.compression = self.chance.randrange(5)
        if self._has["schema"] and self.often(0.6):
            metadata.schema_version = struct.pack(">q", self.chance.randrange(3)) * self.chance.choice((1, 1, 8))
        if self._has["txn"] and self.often(0.4):
            metadata.txnid_most_bits, metadata.txnid_least_bits = self.chance.choice(TXNS)
        if self._has["encryption"] and self.often(0.2):
            metadata.encryption_keys.add(key="k", value=b"secret")
            metadata.encryption_algo = "AES/GCM"
        if self.often(0.1):
            metadata.replicated_from = self.chance.choice(TEXTS)
        if self.often(0.1):
            metadata.deliver_at_time = self.chance.choice((-1, *NUMBERS))
        return metadata

    def _describe(self, message: MessageMetadata | SingleMessageMetadata) -> None:
        """Give a message what a producer may give it."""
        if self.often(0.4):
            message.partition_key = self.chance.choice(TEXTS)
            if self.often(0.4):
                message.partition_key = base64.b64encode(self.chance.randbytes(self.chance.randrange(5))).decode()
                message.partition_key_b64_encoded = True
        for _ in range(self.chance.randrange(4) if self.often(0.4) else 0):
            message.properties.add(key=self.chance.choice(TEXTS), value=self.chance.choice(TEXTS))
        if self.often(0.3):
            message.event_time = self._number()
        if self.often(0.2):
            message.ordering_key = self.chance.randbytes(3)
        if self.often(0.1):
            message.null_value = self.often(0.8)

    def _number(self) -> int:
        return self.chance.choice(NUMBERS)

    def _value(self) -> bytes:
        return self.chance.choice((b"", b"v", self.chance.randbytes(9), b"ab" * 200, b"\0" * 5000))

    def _stored(self, metadata: MessageMetadata, payload: bytes) -> bytes:
        if metadata.compression or self.often(0.8):
            metadata.uncompressed_size = len(payload)
        is_finished = self.often(0.5)
        return self._framed(metadata, compressed(metadata.compression, payload, is_finished=is_finished))

    def _framed(self, metadata: MessageMetadata, payload: bytes) -> bytes:
        broker = (self._number(), self._number()) if self._has["broker"] and self.often(0.8) else None
        return framed(metadata, payload, checksum=self._has["checksum"], broker=broker)

    # ---- damage ----

    def _may_be_odd(self, entry: bytes) -> bool:
        return self._has_odd_chunks or not _parts_of(entry)[0].HasField("chunk_id")

    def damaged(self, entry: bytes) -> bytes:
        """Return an entry with one thing wrong; its checksum is often right again."""
        how = self.chance.choice((self._flipped, self._cut, self._changed, self._changed, self._junk))
        return how(entry)

    def _flipped(self, entry: bytes) -> bytes:
        """Return an entry with another bit. Not in a payload without checksum: no codec notices all such changes."""
        octets = bytearray(entry)
        end = len(entry) - (0 if self._has["checksum"] else len(_parts_of(entry)[1]))
        octets[self.chance.randrange(end)] ^= 1 << self.chance.randrange(8)
        return bytes(octets)

    def _cut(self, entry: bytes) -> bytes:
        return entry[: self.chance.randrange(len(entry))]

    def _junk(self, entry: bytes) -> bytes:
        return self.chance.choice((b"", self.chance.randbytes(20), entry + b"\0", entry[1:]))

    def _changed(self, entry: bytes) -> bytes:
        """Return an entry whose metadata say something else, with the right checksum."""
        metadata, payload = _parts_of(entry)
        change = self.chance.randrange(9)
        if change == 0:
            metadata.uncompressed_size = max(0, metadata.uncompressed_size + self.chance.choice((-1, 1, 1000)))
        elif change == 1:
            metadata.compression = self.chance.randrange(7)
        elif change == 2:
            metadata.num_messages_in_batch = self.chance.choice((-1, 0, 1, 2, 1000))
        elif change == 3:
            metadata.ClearField(self.chance.choice(("producer_name", "sequence_id", "publish_time")))
        elif change == 4 and self._has_odd_chunks:
            metadata.num_chunks_from_msg, metadata.chunk_id = self.chance.choice(((2, 0), (2, 1), (2, 5), (9, -1)))
            metadata.uuid = "same"
        elif change == 5:
            metadata.partition_key, metadata.partition_key_b64_encoded = "no base64", True
        elif change == 6:
            metadata.publish_time = (1 << 64) - self.chance.choice((1, 1 << 62))
        elif change == 7:
            metadata = MessageMetadata.FromString(metadata.SerializeToString() + b"\x22\x03\x0a\x01\xff")
        else:
            payload = payload[: self.chance.randrange(len(payload) + 1)] + self.chance.randbytes(2)
        return framed(metadata, payload, checksum=self._has["checksum"])


def _parts_of(entry: bytes) -> tuple[MessageMetadata, bytes]:
    at = 0
    if entry[:2] == b"\x0e\x02":
        at = 6 + int.from_bytes(entry[2:6])
    if entry[at : at + 2] == b"\x0e\x01":
        at += 6
    end = at + 4 + int.from_bytes(entry[at : at + 4])
    return MessageMetadata.FromString(entry[at + 4 : end]), entry[end:]
