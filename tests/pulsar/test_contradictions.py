"""Entries that contradict themselves or each other: an error that says how, and never a message that was not sent."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from bkspark.pulsar.chunks import ChunkGatherer
from bkspark.pulsar.compression import LZ4, ZLIB, decompress
from bkspark.pulsar.entries import MESSAGE_BYTES_MIN, MESSAGES_MAX, MalformedEntry
from bkspark.pulsar.metadata import EntryPosition
from bkspark.pulsar.transactions import Transactions
from tests.pulsar.entries import Message, chunked, compressed, decoded, framed, gathered, marker, metadata_of, single


def test_chunks_of_one_id_belong_to_one_message() -> None:
    one, other = chunked(Message(b"abc"), 1, uuid="u"), chunked(Message(b"abcd"), 1, uuid="u")
    with pytest.raises(
        ValueError, match="message 'u' has 4 chunks and 4 bytes, and those of another chunk say 3 chunks and 3"
    ):
        gathered(ChunkGatherer(), decoded(one[0], other[1]))


def test_a_first_chunk_begins_its_message_again_with_its_own_bytes() -> None:
    one, again = chunked(Message(b"abc"), 1, uuid="u"), chunked(Message(b"xyz"), 1, uuid="u")
    assert gathered(ChunkGatherer(), decoded(one[0], one[1], *again)) == [b"xyz"]


def test_chunks_have_as_many_bytes_together_as_their_metadata_say() -> None:
    chunks = [
        framed(metadata_of(0, uuid="u", num_chunks_from_msg=2, total_chunk_msg_size=5, chunk_id=chunk), b"ab")
        for chunk in range(2)
    ]
    with pytest.raises(ValueError, match="its chunks have 4 bytes, and its metadata say 5"):
        gathered(ChunkGatherer(), decoded(*chunks))


def test_a_reader_stops_at_the_first_message_of_a_transaction() -> None:
    of_one = single(Message(b"t"), txnid_most_bits=0, txnid_least_bits=1)
    found = Transactions()
    found.take(decoded(single(Message(b"p")), of_one, of_one))
    assert found.stop == EntryPosition(7, 1)


def test_a_reader_knows_a_transaction_that_is_aborted_where_it_begins() -> None:
    found = Transactions()
    found.take(decoded(marker(22, (0, 1)), marker(22, (0, 2)), marker(22, (0, 3))))
    found.forget_before(EntryPosition(7, 1))
    assert found.aborted == {(0, 2): EntryPosition(7, 1), (0, 3): EntryPosition(7, 2)}


def test_half_of_a_transaction_id_does_not_name_a_transaction() -> None:
    assert not decoded(single(Message(b"x"), txnid_least_bits=1)).has_transaction.any()
    assert not decoded(single(Message(b"x"), txnid_most_bits=1)).has_transaction.any()
    assert decoded(single(Message(b"x"), txnid_most_bits=0, txnid_least_bits=0)).has_transaction.all()


def test_nothing_follows_a_finished_zlib_stream() -> None:
    whole = compressed(ZLIB, b"abcdef", is_finished=True)
    assert bytes(decompress(ZLIB, memoryview(whole), 6)) == b"abcdef"
    with pytest.raises(ValueError, match="do not hold the 6 bytes"):
        decompress(ZLIB, memoryview(whole + b"x"), 6)


LITERALS = bytes([0x50]) + b"after"


@pytest.mark.parametrize(("block", "match"), [
    (bytes([0x00]) + b"\0\0" + LITERALS, slice(0, 4)),
    (bytes([0x4F]) + b"abcd" + b"\0\0\1" + LITERALS, slice(4, 24)),
    (bytes([0x4F]) + b"abcd" + b"\0\0\xff\xff\0" + LITERALS, slice(4, 533)),
    (bytes([0xFF, 201]) + b"a" * 216 + b"\0\0" + b"\xff" * 200 + b"\0" + LITERALS, slice(216, 51235)),
])  # fmt: skip
def test_an_lz4_block_with_an_offset_of_zero_gives_zeros_and_no_memory_of_others(block: bytes, match: slice) -> None:
    """The format has no such offset, and its decoder does not say so: a match is copied from where it is written."""
    size = match.stop + len(LITERALS) - 1
    for octet in (b"s", b"t"):
        for _ in range(8):  # what pyarrow's pool gives again
            memoryview(pa.allocate_buffer(size + 64)).cast("B")[:] = octet * (size + 64)
        found = bytes(decompress(LZ4, memoryview(block), size))
        assert set(found[match]) == {0}
        assert found[match.stop :] == b"after"


def test_an_entry_that_ends_within_its_checksum_says_so() -> None:
    with pytest.raises(MalformedEntry, match="it ends within its checksum"):
        decoded(struct.pack(">HH", 0x0E01, 7))


@pytest.mark.parametrize(("count", "is_possible"), [(MESSAGES_MAX, True), (MESSAGES_MAX + 1, False)])
def test_a_batch_of_more_messages_than_there_may_be_is_refused_before_it_is_decompressed(
    count: int, is_possible: bool
) -> None:
    size = count * MESSAGE_BYTES_MIN
    entry = framed(metadata_of(0, num_messages_in_batch=count, compression=3, uncompressed_size=size), b"payload")
    if is_possible:
        assert len(decoded(entry)) == 1
        return
    with pytest.raises(MalformedEntry, match="too small for the messages of its batch"):
        decoded(entry)
