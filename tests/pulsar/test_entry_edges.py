"""Edges of entries and codecs: the largest, the smallest, and what ends just where it must not."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from bkspark.entries import EntryBatch
from bkspark.pulsar import message_columns, messages
from bkspark.pulsar.compression import decompress
from bkspark.pulsar.entries import MalformedEntry, decode_entries
from bkspark.pulsar.message_columns import schema_versions
from bkspark.pulsar.pulsar_formats_pb2 import MessageIdData, SingleMessageMetadata
from tests.pulsar.entries import CODECS, Message, chunked, compacted, compressed, framed, metadata_of, single


def test_entry_of_a_compacted_ledger_holds_nothing_after_the_topics_entry() -> None:
    whole = compacted(3, 1, single(Message(b"a")))
    assert decode_entries(EntryBatch.of([whole]), is_compacted=True).entry_ids.tolist() == [1]
    with pytest.raises(MalformedEntry, match="it holds more than an id and an entry"):
        decode_entries(EntryBatch.of([whole + b"x"]), is_compacted=True)


@pytest.mark.parametrize("identity", ["", "ledgerId", "entryId", "greatest ledgerId", "greatest entryId"])
def test_id_in_a_compacted_ledger_that_is_none_of_an_entry_is_malformed(identity: str) -> None:
    greatest, _, name = identity.rpartition(" ")
    fields = dict.fromkeys([name] if name else [], 3)
    if greatest:
        fields = {"ledgerId": 3, "entryId": 3, name: (1 << 64) - 1}
    head, stored = MessageIdData(**fields).SerializeToString(), single(Message(b"a"))
    entry = struct.pack(">i", len(head)) + head + struct.pack(">i", len(stored)) + stored
    whole = EntryBatch.of([compacted(3, 1, stored), entry])
    with pytest.raises(MalformedEntry, match="its message id is not that of an entry") as raised:
        decode_entries(whole, is_compacted=True)
    assert np.atleast_1d(raised.value.rows).tolist() == [1]


@pytest.mark.parametrize("broker", [None, (1, 1)], ids=["plain", "with broker metadata"])
def test_entry_without_a_checksum_is_read_as_one_with_it(broker: tuple[int, int] | None) -> None:
    """Checksums are optional in Pulsar's protocol."""
    entries = [framed(metadata_of(), b"value", checksum=has, broker=broker) for has in (True, False, True)]
    assert len(entries[0]) == len(entries[1]) + 6
    found = messages.messages_of(decode_entries(EntryBatch.of(entries)), np.arange(3), {})
    assert message_columns.values(found).to_pylist() == [b"value"] * 3


def test_entry_that_ends_with_its_checksum_lacks_its_metadata() -> None:
    with pytest.raises(MalformedEntry, match="it ends within its message metadata"):
        decode_entries(EntryBatch.of([struct.pack(">HI", 0x0E01, 0)]))
    with pytest.raises(MalformedEntry, match="it ends within its checksum"):
        decode_entries(EntryBatch.of([struct.pack(">HH", 0x0E01, 0)]))


def test_message_of_one_chunk_is_whole() -> None:
    found = decode_entries(EntryBatch.of([*chunked(Message(b"ab"), 2), *chunked(Message(b"ab"), 1)]))
    assert found.is_chunk.tolist() == [False, True, True]


def test_codecs_of_later_versions_of_pulsar_are_unknown() -> None:
    with pytest.raises(ValueError, match=f"its compression {len(CODECS)} is unknown"):
        decompress(len(CODECS), memoryview(b""), 0)


def test_nothing_follows_the_size_of_an_empty_snappy_block() -> None:
    assert bytes(decompress(4, memoryview(b"\0"), 0)) == b""
    with pytest.raises(ValueError, match="hold bytes where their size says none"):
        decompress(4, memoryview(b"\0\0"), 0)


def test_message_in_chunks_may_be_larger_than_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "UNCOMPRESSED_BYTES_MAX", 10)
    monkeypatch.setattr(messages, "CHUNKED_BYTES_MAX", 20)

    def value_of(size: int, *, is_chunked: bool) -> int:
        found = decode_entries(EntryBatch.of([single(Message(bytes(size)), codec=2)]))
        whole = {0: messages.Joined(memoryview(compressed(2, bytes(size))), 7, 0)} if is_chunked else {}
        taken = messages.messages_of(found, np.arange(1), whole)
        return int(taken.ends[0] - taken.starts[0])

    assert (value_of(10, is_chunked=False), value_of(20, is_chunked=True)) == (10, 20)
    for size, is_chunked in ((11, False), (21, True)):
        with pytest.raises(MalformedEntry, match=f"it says to have {size} bytes, more than {size - 1}"):
            value_of(size, is_chunked=is_chunked)


def test_message_of_a_batch_without_a_sequence_id_has_that_of_the_batch_and_its_place() -> None:
    own = ({}, {"sequence_id": 7}, {})
    heads = [SingleMessageMetadata(payload_size=1, **given).SerializeToString() for given in own]
    payload = b"".join(struct.pack(">I", len(head)) + head + b"v" for head in heads)
    stored = framed(metadata_of(40, num_messages_in_batch=3, uncompressed_size=len(payload)), payload)
    found = messages.messages_of(decode_entries(EntryBatch.of([stored])), np.arange(1), {})
    assert found.sequence_ids.tolist() == [40, 7, 42]


def test_first_eight_bytes_of_a_schema_version_of_old_producers_count() -> None:
    """Before Pulsar 2.4 a version had 64 bytes."""
    stored = single(Message(b"v"), schema_version=(5).to_bytes(8) + bytes(range(56)))
    found = messages.messages_of(decode_entries(EntryBatch.of([stored])), np.arange(1), {})
    assert schema_versions(found).tolist() == [5]
