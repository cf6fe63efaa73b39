"""Edges of protobuf fields, of arrays over their bytes and of the columns that are made of them."""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import numpy as np
import pyarrow as pa
import pytest

from bkspark.entries import EntryBatch
from bkspark.errors import MetadataFormat
from bkspark.pulsar import message_columns as columns
from bkspark.pulsar.chunks import ChunkGatherer
from bkspark.pulsar.compression import decompress
from bkspark.pulsar.entries import MalformedEntry, decode_entries
from bkspark.pulsar.fields import Fields, MalformedFields, fields_of
from bkspark.pulsar.malformed import MalformedValues
from bkspark.pulsar.messages import Joined, Messages, messages_of
from bkspark.pulsar.metadata import decode_cursor_entry, decode_managed_ledger
from bkspark.pulsar.pulsar_formats_pb2 import ManagedLedgerInfo, MessageIdData, PositionInfo, SchemaInfo
from bkspark.pulsar.schemas import STORED_TYPES, Schema, decode_schema
from bkspark.pulsar.slices import binary_array, bounds_of
from bkspark.pulsar.values import decoder_of
from tests.pulsar.entries import Message, batch, chunked, decoded, framed, gathered, metadata_of, single

MIB = 1 << 20
BEYOND = b"\xfd" + b"\xff" * 8 + b"\x01"
"""A varint of 2**64 - 3, which as a signed number is -3."""


def fields(*stored: bytes) -> Fields:
    held = EntryBatch.of(stored)
    data = np.frombuffer(held.buffer, np.uint8)
    return fields_of(data, held.offsets[:-1], held.offsets[1:], numbers=(3,), spans=(2,), repeated=(1,))


def messages(*stored: bytes) -> Messages:
    entries = decoded(*stored)
    return messages_of(entries, np.arange(len(entries)), {})


# ---- fields ----


@pytest.mark.parametrize(("tag", "size"), [(0x2D, 4), (0x29, 8)])
def test_unknown_field_of_a_fixed_size_may_be_the_last_one(tag: int, size: int) -> None:
    whole = b"\x18\x05" + bytes([tag]) + bytes(size)
    assert fields(whole, whole).value(3).tolist() == [5, 5]
    with pytest.raises(MalformedFields, match="ends beyond it"):
        fields(whole, whole[:-1])


def test_numbers_of_32_bits_are_the_low_ones_with_their_sign() -> None:
    """Protobuf writes a negative int32 in ten bytes, and drops what is above 32 bits when it reads one."""
    found = fields(b"\x18\x85\x80\x80\x80\x10", b"\x18\xff\xff\xff\xff\x0f", b"\x18" + BEYOND)
    assert found.value(3).tolist() == [(1 << 32) + 5, (1 << 32) - 1, -3]
    assert found.int32(3).tolist() == [5, -1, -3]


@pytest.mark.parametrize("other", [b"\x18\x05", b"\x12\x01k"])
def test_size_of_bytes_that_is_negative_as_a_signed_number_is_refused(other: bytes) -> None:
    """It would lead back, and the same field would be read again."""
    for row, stored in ((0, [b"\x12" + BEYOND, other]), (1, [other, b"\x12" + BEYOND])):
        with pytest.raises(MalformedFields, match="ends beyond it") as caught:
            fields(*stored)
        assert caught.value.rows.tolist() == [row]


def test_field_of_a_great_number_costs_no_memory() -> None:
    great = b"\xf8\xff\xff\xff\x0f\x01"  # field 2**29 - 1
    tracemalloc.start()
    try:
        found = fields(great + b"\x18\x05", b"\x18\x06" + great)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.value(3).tolist() == [5, 6]
    assert peak < MIB


# ---- entries ----


def test_broker_metadata_may_lack_the_time_the_index_or_both() -> None:
    """Which interceptors a broker has decides what its metadata have."""
    plain = single(Message(b"v"))
    heads = [b"", b"\x08\x07", b"\x10\x09", b"\x08\x07\x10\x09"]
    found = decoded(*(struct.pack(">Hi", 0x0E02, len(head)) + head + plain for head in heads))
    assert found.broker_times.tolist() == [-1, 7, -1, 7]
    assert found.indexes.tolist() == [-1, -1, 9, 9]


def test_batch_may_be_empty() -> None:
    found = messages(batch([]), batch([Message(b"v")]), batch([]))
    assert columns.values(found).to_pylist() == [b"v"]
    assert [len(columns.message_ids(each, 0)) for each in (found, messages(batch([])))] == [1, 0]


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_size_of_more_than_31_bits_is_not_taken_for_its_low_ones(codec: int) -> None:
    entry = single(Message(b"v" * 100), codec=codec)
    size = int.from_bytes(entry[6:10])
    metadata = metadata_of(compression=codec, uncompressed_size=(1 << 31) + 100)
    with pytest.raises(MalformedEntry, match=r"more than|cannot hold"):
        messages(framed(metadata, entry[10 + size :]))


def test_messages_are_found_where_the_key_of_one_looks_like_the_size_of_another() -> None:
    """Those that are guessed to have one size are looked at one by one before the batch is called malformed."""
    looks_alike = Message(b"12345", "a\x18\x0ab")
    given = [Message(b"0123456789", "k", event_time=300), looks_alike, Message(b"last", "x")]
    found = messages(batch(given), batch(given))
    assert columns.values(found).to_pylist() == [b"0123456789", b"12345", b"last"] * 2
    assert columns.keys(found).to_pylist() == [b"k", b"a\x18\x0ab", b"x"] * 2


def test_nothing_is_decompressed_where_the_size_is_zero() -> None:
    bomb = zlib.compress(bytes(64 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="do not hold the 0 bytes"):
            decompress(2, memoryview(bomb), 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MIB
    assert bytes(decompress(2, memoryview(zlib.compress(b"")), 0)) == b""


@pytest.mark.parametrize("size", [-1, -3, 1 << 20])
def test_compressed_node_whose_header_has_an_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(MetadataFormat, match="/a: it is compressed, and ends within its header"):
        decode_managed_ledger(struct.pack(">Hi", 0x4778, size) + b"\x08\x00\x10\x00", "/a")


def test_closed_ledger_has_at_least_zero_entries() -> None:
    info = ManagedLedgerInfo()
    info.ledgerInfo.add(ledgerId=1, entries=-3, size=-5, timestamp=9)
    (found,) = decode_managed_ledger(info.SerializeToString(), "/a").ledgers
    assert (found.entries, found.size, found.closed_ms) == (0, 0, 9)


@pytest.mark.parametrize("name", ["ledgerId", "entryId"])
def test_state_of_a_cursor_without_a_whole_position_is_refused(name: str) -> None:
    position = PositionInfo(ledgerId=4, entryId=2)
    position.ClearField(name)
    with pytest.raises(MetadataFormat, match="ledger 7: it is not a position of a cursor"):
        decode_cursor_entry(position.SerializePartialToString(), 7, "ledger 7")


def test_chunks_need_not_say_how_many_bytes_they_are_together() -> None:
    parts = []
    for chunk, value in enumerate((b"a", b"bc")):
        parts.append(framed(metadata_of(uuid="u", chunk_id=chunk, num_chunks_from_msg=2, uncompressed_size=3), value))
    assert gathered(ChunkGatherer(), decoded(*parts)) == [b"abc"]


def test_part_of_a_key_value_schema_without_a_type_is_bytes() -> None:
    """Pulsar calls it NONE or BYTES, or leaves the property out."""
    info = SchemaInfo(schema_id="s", user="", type=STORED_TYPES.index("KEY_VALUE") + 1, schema=struct.pack(">ii", 0, 0))
    info.props.add(key="key.schema.type", value="NONE")
    found = decode_schema(0, info, "version 0")
    assert found.key is not None
    assert found.value is not None
    assert (found.key.kind, found.value.kind) == ("BYTES", "BYTES")


# ---- arrays ----


def test_nulls_between_slices_hold_no_bytes() -> None:
    count, size = 1000, 100
    data = bytes(count * size)
    starts = np.arange(count) * size
    is_valid = np.arange(count) % 2 == 0
    found = binary_array(memoryview(data), starts, starts + size, is_valid)
    assert found.null_count == count // 2
    assert sum(each.size for each in found.buffers()[1:]) < len(data) + 5 * count


def test_bounds_of_what_is_null_are_empty_whatever_lies_below() -> None:
    offsets = pa.py_buffer(np.array([0, 2, 4, 6], np.int32))
    array = pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(b"\x05"), offsets, pa.py_buffer(b"aabbcc")])
    _, starts, ends, is_valid = bounds_of(array)
    assert (starts.tolist(), ends.tolist(), is_valid.tolist()) == ([0, 2, 4], [2, 2, 6], [True, False, True])


# ---- columns ----


def test_times_are_up_to_the_last_that_a_timestamp_holds() -> None:
    last = (1 << 63) // 1000 - 1
    found = columns.times(np.array([-last, last])).cast(pa.int64()).to_pylist()
    assert found == [-last * 1000, last * 1000]
    with pytest.raises(MalformedValues, match="beyond the range"):
        columns.times(np.array([0, last + 1]))


def test_event_time_before_1970_is_not_null() -> None:
    found = messages(single(Message(b"", event_time=(1 << 64) - 5)), single(Message(b"")))
    assert columns.event_times(found).cast(pa.int64()).to_pylist() == [-5000, None]


@pytest.mark.parametrize("partition", [-1, 0, 3])
def test_id_of_a_message_in_chunks_has_its_partition_twice(partition: int) -> None:
    entries = decoded(*chunked(Message(b"ab"), 1))
    found = messages_of(entries, np.array([1]), {1: Joined(memoryview(b"ab"), 12, 3)})
    parsed = MessageIdData.FromString(columns.message_ids(found, partition)[0].as_py())
    assert [parsed.partition, parsed.first_chunk_message_id.partition] == [partition] * 2


def test_encryption_says_how_many_messages_of_how_many_bytes_an_entry_has() -> None:
    stored = []
    for more in ({"num_messages_in_batch": 3, "compression": 4}, {"compression": 5}, {"compression": 7}):
        metadata = metadata_of(uncompressed_size=(1 << 31) + 5, **more)
        metadata.encryption_keys.add(key="k", value=b"sealed")
        stored.append(framed(metadata, b"?"))
    entries = decode_entries(EntryBatch.of(stored))
    found = messages_of(entries, np.arange(3), {}, is_raw=np.ones(3, bool))
    shown = [(each["messages"], each["compression"]) for each in columns.encryptions(found).to_pylist()]
    assert shown == [(3, "SNAPPY"), (1, "5"), (1, "7")]
    assert {each["uncompressedSize"] for each in columns.encryptions(found).to_pylist()} == {(1 << 31) + 5}


@pytest.mark.parametrize("part", [b"\x0a\x01k", b"\x12\x01v"])
def test_property_without_its_key_or_its_value_is_malformed(part: bytes) -> None:
    metadata = metadata_of().SerializeToString() + b"\x22" + bytes([len(part)]) + part
    stored = struct.pack(">I", len(metadata)) + metadata
    with pytest.raises(MalformedValues, match="lacks its key or value") as caught:
        columns.properties(messages(single(Message(b"")), stored))
    assert caught.value.rows.tolist() == [1]


@pytest.mark.parametrize(
    ("kind", "form", "end"), [("INSTANT", ">qi", 10**9), ("LOCAL_DATE_TIME", ">qq", 86_400 * 10**9)]
)
def test_nanoseconds_are_those_of_one_second_or_of_one_day(kind: str, form: str, end: int) -> None:
    decode = decoder_of(Schema(0, kind))
    (found,) = decode(pa.array([struct.pack(form, 0, end - 1)])).cast(pa.int64()).to_pylist()
    assert found == end // 1000 - 1
    for wrong in (end, -1):
        with pytest.raises(MalformedValues, match="not a time of day"):
            decode(pa.array([struct.pack(form, 0, wrong)]))
