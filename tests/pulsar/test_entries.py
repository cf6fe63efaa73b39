"""Entries to messages, against entries made by protobuf's own classes in Pulsar's layout."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from bkspark.entries import EntryBatch
from bkspark.pulsar import entries as fields_of_entry
from bkspark.pulsar import message_columns as columns
from bkspark.pulsar.compression import decompress
from bkspark.pulsar.entries import Entries, MalformedEntry, decode_entries
from bkspark.pulsar.fields import FIELDS_MAX, fields_of
from bkspark.pulsar.messages import Joined, Messages, messages_of
from bkspark.pulsar.pulsar_formats_pb2 import MessageIdData, MessageMetadata, SingleMessageMetadata
from tests.pulsar.entries import (
    CODECS,
    PUBLISHED_MS,
    Message,
    batch,
    chunked,
    compressed,
    framed,
    marker,
    metadata_of,
    single,
)


def run(*stored: bytes, ledger: int = 12, first: int = 3) -> Entries:
    # Between other bytes: nothing may depend on where a buffer begins.
    whole = EntryBatch.of([b"\xff" * 7, *stored, b"\xff" * 7])
    return decode_entries(EntryBatch(whole.buffer, whole.offsets[1:-1], ledger, first))


def all_messages(entries: Entries) -> Messages:
    return messages_of(entries, np.arange(len(entries)), {})


MESSAGES = [
    Message(b"one", "k1", [("a", "1"), ("b", "2")], 17),
    Message(b"", None),
    Message(None, "gone"),
    Message(b"x" * 5000, "k2", [("a", "1"), ("a", "2")]),
]


@pytest.mark.parametrize("codec", CODECS, ids=CODECS.values())
@pytest.mark.parametrize("is_batched", [False, True])
def test_each_message_comes_out_as_it_was_given_whatever_the_codec(codec: int, is_batched: bool) -> None:
    stored = (
        [batch(MESSAGES, 100, codec)]
        if is_batched
        else [single(each, 100 + at, codec) for at, each in enumerate(MESSAGES)]
    )
    found = all_messages(run(*stored))
    assert columns.values(found).to_pylist() == [each.value for each in MESSAGES]
    assert columns.keys(found).to_pylist() == [each.key.encode() if each.key else None for each in MESSAGES]
    assert [dict(each) for each in columns.properties(found).to_pylist()] == [
        dict(each.properties) for each in MESSAGES
    ]
    assert columns.event_times(found).cast("int64").to_pylist() == [17000, None, None, None]
    assert found.sequence_ids.tolist() == [100, 101, 102, 103]
    assert columns.publish_times(found).tolist() == [PUBLISHED_MS + 100 + (0 if is_batched else at) for at in range(4)]


def test_batches_and_single_messages_of_all_codecs_mix_in_one_run() -> None:
    luck = random.Random(1)
    stored, expected = [], []
    for _ in range(60):
        codec = luck.randrange(5)
        some = [luck.choice(MESSAGES) for _ in range(luck.randrange(1, 5))]
        if luck.random() < 0.5:
            stored.append(batch(some, codec=codec))
            expected += some
        else:
            stored.append(single(some[0], codec=codec))
            expected.append(some[0])
    found = all_messages(run(*stored))
    assert columns.values(found).to_pylist() == [each.value for each in expected]
    assert columns.keys(found).to_pylist() == [each.key.encode() if each.key else None for each in expected]
    assert [dict(each) for each in columns.properties(found).to_pylist()] == [
        dict(each.properties) for each in expected
    ]


def test_messages_that_look_alike_but_are_not_are_split_as_they_are() -> None:
    """The bytes of the payload's size, at the place where the messages before have it, may be part of a key."""
    alike = [Message(b"v" * 8, "key") for _ in range(40)]
    # A key of one byte more, which holds the field's bytes at that place, and no sequence id: as long as the others.
    odd = Message(b"v" * 8, "ke\x18\x08" + "y" * 4)
    for place in (3, 20, 39):
        messages = [*alike[:place], odd, *alike[place + 1 :]]
        found = all_messages(run(batch(messages)))
        assert columns.keys(found).to_pylist() == [(each.key or "").encode() for each in messages]
        assert columns.values(found).to_pylist() == [each.value for each in messages]


def test_batch_of_one_is_a_batch_because_the_field_is_there() -> None:
    """C++ and Python producers write such batches; a test for more than one message misreads them."""
    found = all_messages(run(batch([Message(b"v", "k")], codec=2, is_finished=True)))
    assert columns.values(found).to_pylist() == [b"v"]
    assert columns.message_ids(found, -1).to_pylist() == [bytes.fromhex("080c100320003001")]


def test_message_of_a_batch_does_not_inherit_the_key_of_the_entry() -> None:
    found = all_messages(run(batch([Message(b"1", "first"), Message(b"2")])))
    assert columns.keys(found).to_pylist() == [b"first", None]


def test_keys_that_were_bytes_are_decoded_from_base64() -> None:
    coded = {"partition_key_b64_encoded": True}
    found = all_messages(
        run(single(Message(b"1", "/wA=", more=coded)), batch([Message(b"2", "AQI=", more=coded), Message(b"3", "k")]))
    )
    assert columns.keys(found).to_pylist() == [b"\xff\0", b"\1\2", b"k"]


def test_message_ids_are_the_bytes_of_javas_to_byte_array() -> None:
    """The first two were printed by Pulsar 4.0.7."""
    assert columns.message_ids(all_messages(run(single(Message(b"")))), -1).to_pylist() == [
        bytes.fromhex("080c10033000")
    ]
    of_batch = all_messages(run(batch([Message(b"")] * 10)))
    assert columns.message_ids(of_batch, 1)[4].as_py() == bytes.fromhex("080c100318012004300a")
    for ledger, entry, partition in ((127, 128, 0), (1 << 40, 1 << 33, 300), (0, 0, -1)):
        ids = columns.message_ids(all_messages(run(single(Message(b"")), ledger=ledger, first=entry)), partition)
        parsed = MessageIdData.FromString(ids[0].as_py())
        assert (parsed.ledgerId, parsed.entryId, parsed.partition) == (ledger, entry, partition)


@pytest.mark.parametrize("partition", [-1, 0, 127, 128, 70_000])
@pytest.mark.parametrize("sizes", [[None], [1], [3, 3], [127, 128, 129], [None, 2, None, 300], [130, None]])
def test_message_ids_of_mixed_entries_are_what_protobuf_writes(sizes: list[int | None], partition: int) -> None:
    """None: a message that is not of a batch."""
    for ledger, first in ((0, 0), (127, 126), (1 << 40, 16_383)):
        stored = [single(Message(b"v")) if size is None else batch([Message(b"v")] * size) for size in sizes]
        wanted = []
        for entry, size in enumerate(sizes, first):
            named = {"ledgerId": ledger, "entryId": entry} | ({"partition": partition} if partition >= 0 else {})
            if size is None:
                wanted.append(MessageIdData(**named, batch_size=0).SerializeToString())
            for index in range(size or 0):
                wanted.append(MessageIdData(**named, batch_index=index, batch_size=size).SerializeToString())
        messages = all_messages(run(*stored, ledger=ledger, first=first))
        assert columns.message_ids(messages, partition).to_pylist() == wanted


def test_chunked_message_has_the_id_of_its_last_chunk_and_names_the_first() -> None:
    value = bytes(range(256)) * 40
    stored = chunked(Message(value), 100, codec=1)
    entries = run(*stored)
    parts = [bytes(entries.data[a:b]) for a, b in zip(entries.payload_starts, entries.payload_ends)]
    last = len(stored) - 1
    found = messages_of(entries, np.array([last]), {last: Joined(memoryview(b"".join(parts)), 12, 3)})
    assert columns.values(found).to_pylist() == [value]
    parsed = MessageIdData.FromString(columns.message_ids(found, -1)[0].as_py())
    assert (parsed.entryId, parsed.first_chunk_message_id.entryId) == (3 + last, 3)


def test_index_of_the_broker_is_that_of_the_last_message_of_an_entry() -> None:
    found = all_messages(
        run(batch([Message(b"")] * 3, broker=(1000, 2)), single(Message(b""), broker=(1001, 3)), single(Message(b"")))
    )
    assert found.indexes.tolist() == [0, 1, 2, 3, -1]
    assert found.entries.broker_times.tolist() == [1000, 1001, -1]


def test_markers_transactions_and_encryption_are_known_from_metadata() -> None:
    sealed = metadata_of(num_messages_in_batch=3, encryption_algo="AES", encryption_param=b"iv")
    sealed.encryption_keys.add(key="k1", value=b"secret")
    entries = run(
        marker(10),
        single(Message(b""), txnid_most_bits=1, txnid_least_bits=5),
        marker(22, (1, 5)),
        framed(sealed, b"?" * 20),
    )
    assert entries.is_marker.tolist() == [True, False, True, False]
    assert entries.has_transaction.tolist() == [False, True, True, False]
    assert entries.is_encrypted.tolist() == [False, False, False, True]
    raw = messages_of(entries, np.array([3]), {}, is_raw=entries.is_encrypted)
    assert columns.values(raw).to_pylist() == [b"?" * 20]
    facts = columns.encryptions(raw).to_pylist()[0]
    assert (facts["keys"], facts["algo"], facts["param"], facts["messages"]) == (["k1"], "AES", b"iv", 3)
    assert (facts["chunkUuid"], facts["chunk"], facts["chunks"]) == (None, None, None)


def test_messages_compacted_out_keep_their_place_and_are_not_delivered() -> None:
    gone = Message(b"", more={"compacted_out": True})
    found = all_messages(run(batch([gone, Message(b"left"), gone])))
    assert columns.values(found).to_pylist() == [b"left"]
    assert (found.batch_index.tolist(), found.batch_size.tolist()) == ([1], [3])


def test_entries_of_a_compacted_ledger_have_the_ids_of_the_topic() -> None:
    inner = batch([Message(b"v")])
    identity = MessageIdData(ledgerId=41, entryId=7, partition=-1).SerializeToString()
    stored = struct.pack(">i", len(identity)) + identity + struct.pack(">i", len(inner)) + inner
    entries = decode_entries(EntryBatch.of([stored], 42, 0), is_compacted=True)
    assert (entries.ledger_ids.tolist(), entries.entry_ids.tolist()) == ([41], [7])
    assert columns.values(all_messages(entries)).to_pylist() == [b"v"]


# ---- what is wrong ----


def test_every_cut_of_an_entry_is_refused() -> None:
    whole = batch(MESSAGES[:2], broker=(1, 1))
    for size in range(len(whole)):
        with pytest.raises(MalformedEntry):
            all_messages(run(single(Message(b"")), whole[:size]))


def test_every_flipped_bit_of_an_entry_with_a_checksum_is_refused() -> None:
    whole = bytearray(single(Message(b"value", "k")))
    for bit in range(8 * 6, 8 * len(whole)):
        whole[bit // 8] ^= 1 << bit % 8
        with pytest.raises(MalformedEntry):
            run(bytes(whole))
        whole[bit // 8] ^= 1 << bit % 8


def test_flipped_bits_after_a_right_checksum_are_an_error_or_other_values_but_never_out_of_bounds() -> None:
    whole = metadata_of(num_messages_in_batch=2, compression=0).SerializeToString()
    payload = batch(MESSAGES[:2])[-60:]
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        body = struct.pack(">I", len(whole)) + bytes(flipped) + payload
        try:
            columns.properties(all_messages(run(body)))
        except ValueError:
            continue


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@pytest.mark.parametrize("wrong", [-1, 1, 1 << 20, (1 << 32) - 200])
def test_size_that_is_not_what_the_payload_decompresses_to_is_refused(codec: int, wrong: int) -> None:
    """pyarrow returns as many bytes as it is asked for; the tail would be memory that held something else."""
    for value in (b"abcabcabc" * 20, b"a"):
        metadata = metadata_of(compression=codec, uncompressed_size=len(value) + wrong)
        with pytest.raises(MalformedEntry):
            columns.values(all_messages(run(framed(metadata, compressed(codec, value)))))


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@pytest.mark.parametrize("more", [1, 4, 16, 40, 5000])
def test_batch_does_not_hold_more_bytes_than_its_compressed_data_give(codec: int, more: int) -> None:
    """The last message says to be longer by as much: the batch fits its size, and the size does not fit the data."""
    value = bytes(200)
    one = SingleMessageMetadata(payload_size=len(value) + more, sequence_id=0).SerializeToString()
    payload = struct.pack(">I", len(one)) + one + value
    metadata = metadata_of(num_messages_in_batch=1, compression=codec, uncompressed_size=len(payload) + more)
    with pytest.raises(MalformedEntry):
        all_messages(run(framed(metadata, compressed(codec, payload))))


@pytest.mark.parametrize("size", [*range(1, 40), 64, 1000, 70_000])
def test_blocks_of_lz4_of_every_size_come_out(size: int) -> None:
    for value in (bytes(size), bytes(place * place % 251 for place in range(size))):
        assert bytes(decompress(1, memoryview(compressed(1, value)), size)) == value


@pytest.mark.parametrize(
    "metadata",
    [
        MessageMetadata(producer_name="p", sequence_id=1),
        metadata_of(num_messages_in_batch=2_000_000),
        metadata_of(num_messages_in_batch=-1),
        metadata_of(num_messages_in_batch=3),
        metadata_of(compression=9, uncompressed_size=1),
    ],
)
def test_metadata_that_do_not_fit_the_payload_are_refused(metadata: MessageMetadata) -> None:
    with pytest.raises(MalformedEntry):
        all_messages(run(framed(metadata, b"payload")))


def test_too_many_fields_are_refused_before_they_cost_time() -> None:
    metadata = metadata_of()
    for number in range(FIELDS_MAX):
        metadata.properties.add(key=str(number), value="")
    with pytest.raises(MalformedEntry, match="more than 4096 fields"):
        run(framed(metadata, b""))


def test_text_that_is_not_utf8_is_refused() -> None:
    good = single(Message(b"v", properties=[("name", "value")]))
    body = good[6:].replace(b"value", b"va\xffue")
    with pytest.raises(ValueError, match="UTF-8"):
        columns.properties(all_messages(run(body)))


# ---- fields, against protobuf ----


def test_fields_are_those_that_protobuf_reads() -> None:
    luck = random.Random(7)
    made, stored = [], []
    for _ in range(300):
        message = SingleMessageMetadata()
        for name, kind in (
            ("partition_key", str),
            ("payload_size", int),
            ("event_time", int),
            ("sequence_id", int),
            ("null_value", bool),
        ):
            if luck.random() < 0.5:
                value = {
                    str: "k" * luck.randrange(300),
                    int: luck.choice((0, 1, 127, 128, 2**31 - 1)),
                    bool: luck.random() < 0.5,
                }[kind]
                setattr(message, name, value)
        for _ in range(luck.randrange(4)):
            message.properties.add(key="a" * luck.randrange(4), value="v")
        # A field given twice, and one that is not known, too.
        twice = (
            SingleMessageMetadata(payload_size=luck.randrange(1000)).SerializeToString() if luck.random() < 0.3 else b""
        )
        unknown = bytes.fromhex("a1060102030405060708ad0601020304b2060378797ab80601") if luck.random() < 0.3 else b""
        stored.append(unknown + message.SerializeToString() + twice)
        made.append(SingleMessageMetadata.FromString(stored[-1]))
    batch_ = EntryBatch.of(stored)
    data = np.frombuffer(batch_.buffer, np.uint8)
    found = fields_of(data, batch_.offsets[:-1], batch_.offsets[1:], numbers=(3, 5, 8, 9), spans=(2,), repeated=(1,))
    for number, name in ((3, "payload_size"), (5, "event_time"), (8, "sequence_id"), (9, "null_value")):
        assert found.value(number).tolist() == [getattr(each, name) for each in made]
        assert found.has(number).tolist() == [each.HasField(name) for each in made]
    starts, ends = found.span(2)
    assert [None if a < 0 else data[a:b].tobytes().decode() for a, b in zip(starts, ends)] == [
        each.partition_key if each.HasField("partition_key") else None for each in made
    ]
    assert len(found.occurrences(1)) == sum(len(each.properties) for each in made)
    assert MessageMetadata.DESCRIPTOR.fields_by_name["partition_key"].number == fields_of_entry.KEY


def payloads_one_by_one(batched: bytes, count: int) -> list[bytes] | None:
    """Return the payload of each message of a batch as protobuf's own classes find it; None: it is not a batch."""
    found, at = [], 0
    for _ in range(count):
        meta_end = at + 4 + int.from_bytes(batched[at : at + 4])
        one = SingleMessageMetadata()
        try:
            one.MergeFromString(batched[at + 4 : meta_end])
        except DecodeError:
            return None
        at = meta_end + one.payload_size
        if not one.HasField("payload_size") or one.payload_size < 0 or at > len(batched):
            return None
        if not one.compacted_out:
            found.append(batched[meta_end:at])
    return found if at == len(batched) else None


def test_batches_of_runs_and_of_damaged_bytes_are_split_as_one_by_one() -> None:
    """Messages of one size are found together; only a message's own bytes decide where it ends."""
    luck = random.Random(5)
    split, refused = 0, 0
    for _ in range(400):
        size, messages = 30, []
        for _ in range(luck.randrange(1, 60)):
            if luck.random() < 0.1:
                size = luck.choice((0, 1, 127, 128, 300, 17_000))
            key = f"k{luck.randrange(1000)}" if luck.random() < 0.7 else None
            # What looks like the field of a size may be anywhere in a payload.
            messages.append(Message((b"\x18\x08\x00\x00" * size)[:size], key))
        whole = batch(messages)
        at = len(whole) - run(whole).uncompressed_sizes.item()
        batched = bytearray(whole[at:])
        is_damaged = luck.random() < 0.6
        if is_damaged:
            batched[luck.randrange(min(len(batched), 60))] ^= 1 << luck.randrange(8)
        expected = payloads_one_by_one(bytes(batched), len(messages))
        try:
            found = all_messages(run(framed(metadata_of(num_messages_in_batch=len(messages)), bytes(batched))))
        except ValueError:
            assert is_damaged
            refused += 1
            continue
        bounds = zip(found.starts.tolist(), found.ends.tolist())
        assert [bytes(found.content[start:end]) for start, end in bounds] == expected
        split += 1
    assert split > 150
    assert refused > 50


def test_snappy_that_says_to_be_empty_and_is_not_is_refused() -> None:
    assert bytes(decompress(4, memoryview(b"\0"), 0)) == b""
    with pytest.raises(ValueError, match="SNAPPY"):
        decompress(4, memoryview(b"\0junk"), 0)
