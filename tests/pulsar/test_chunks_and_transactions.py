"""Chunks are joined and transactions judged as Pulsar's consumers and brokers do it."""

from __future__ import annotations

import pytest

from bkspark.entries import EntryBatch
from bkspark.pulsar import chunks
from bkspark.pulsar.chunks import ChunkGatherer
from bkspark.pulsar.entries import decode_entries
from bkspark.pulsar.message_ids import EARLIEST_MESSAGE, LATEST_MESSAGE, MessageId
from bkspark.pulsar.metadata import EntryPosition
from bkspark.pulsar.pulsar_formats_pb2 import MessageIdData
from bkspark.pulsar.transactions import Transactions
from tests.pulsar.entries import Message, chunked, decoded, gathered, marker, single


def test_chunks_of_two_messages_may_alternate() -> None:
    one, two = chunked(Message(b"abc"), 1, 1), chunked(Message(b"xyz"), 1, 2)
    assert gathered(ChunkGatherer(), decoded(one[0], two[0], two[1], one[1], one[2], two[2])) == [b"abc", b"xyz"]


def test_message_names_its_first_chunk_and_not_a_later_one() -> None:
    one, entries = ChunkGatherer(), decoded(single(Message(b"p")), *chunked(Message(b"abc"), 1))
    (uuid,) = (found for row in (1, 2, 3) if (found := one.take(entries, row)) is not None)
    joined = one.join(uuid)
    assert joined is not None
    assert (bytes(joined.payload), joined.ledger_id, joined.entry_id) == (b"abc", 7, 1)


def test_chunk_sent_again_is_passed_over_and_first_one_begins_again() -> None:
    one = chunked(Message(b"abc"), 1)
    assert gathered(ChunkGatherer(), decoded(one[0], one[1], one[1], one[2], one[2])) == [b"abc"]
    assert gathered(ChunkGatherer(), decoded(one[0], one[1], *one)) == [b"abc"]


def test_first_chunk_begins_another_message_of_the_same_name() -> None:
    """A producer that starts again may use a name again, before the message that had it was complete."""
    earlier, later = chunked(Message(b"abc"), 1), chunked(Message(b"xyz"), 1)
    assert gathered(ChunkGatherer(), decoded(*earlier[:2], *later)) == [b"xyz"]


def test_message_that_is_sent_whole_again_is_a_second_message() -> None:
    one = chunked(Message(b"abc"), 1)
    assert gathered(ChunkGatherer(), decoded(*one, *one)) == [b"abc", b"abc"]


def test_message_of_exactly_the_limit_of_incomplete_ones_is_whole_and_its_bytes_are_given_back() -> None:
    gatherer = ChunkGatherer(bytes_max=9)
    for value in (b"a" * 9, b"z" * 9):
        assert gathered(gatherer, decoded(*chunked(Message(value), 3))) == [value]
        assert gatherer.held_bytes == 0


def test_only_the_latest_incomplete_messages_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "LATEST_MAX", 2)
    one, two, three = (chunked(Message(b"ab"), 1, number) for number in (1, 2, 3))
    gatherer = ChunkGatherer()
    assert gathered(gatherer, decoded(one[0], two[0], three[0])) == []
    assert gatherer.held_bytes == 2
    assert gathered(gatherer, decoded(two[1], three[1])) == [b"ab", b"ab"]
    with pytest.raises(ValueError, match="only 1 are stored"):
        gathered(gatherer, decoded(one[1]))


def test_only_the_latest_complete_messages_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "LATEST_MAX", 2)
    one, two, three = (chunked(Message(b"ab"), 1, number) for number in (1, 2, 3))
    gatherer = ChunkGatherer()
    assert gathered(gatherer, decoded(*one, *two, *three, two[1], three[1])) == [b"ab"] * 3
    with pytest.raises(ValueError, match="only 1 are stored"):
        gathered(gatherer, decoded(one[1]))


def test_chunks_before_the_first_one_are_of_an_earlier_message_of_that_name() -> None:
    """A search backwards ends at the first chunk: what lies before it was sent by the producer before."""
    earlier, later = chunked(Message(b"abc"), 1), chunked(Message(b"xyz"), 1)
    gatherer, entries = ChunkGatherer(), decoded(earlier[1], later[0], later[2])
    uuid = gatherer.take(entries, 2)
    assert uuid is not None
    for row in (1, 0):
        gatherer.take_earlier(entries, row, uuid)
    assert not gatherer.lacks(uuid)
    with pytest.raises(ValueError, match="only 2 are stored"):
        gatherer.join(uuid)


def test_message_whose_head_is_missing_is_malformed_until_it_is_found_earlier() -> None:
    one = chunked(Message(b"abc"), 1)
    with pytest.raises(ValueError, match="last of 3 chunks"):
        gathered(ChunkGatherer(), decoded(one[1], one[2]))
    gatherer, entries = ChunkGatherer(), decoded(*one)
    uuid = gatherer.take(entries, 2)
    assert uuid is not None
    assert gatherer.lacks(uuid)
    for row in (1, 0):
        gatherer.take_earlier(entries, row, uuid)
    joined = gatherer.join(uuid)
    assert joined is not None
    assert (bytes(joined.payload), joined.entry_id) == (b"abc", 0)


def test_last_chunk_sent_again_is_not_a_second_message_when_the_first_lies_earlier() -> None:
    one = chunked(Message(b"ab"), 1)
    gatherer, entries = ChunkGatherer(), decoded(*one, one[1])
    uuid = gatherer.take(entries, 2)
    assert uuid is not None
    gatherer.take_earlier(entries, 1, uuid)
    assert gatherer.join(uuid) is None


def test_incomplete_messages_hold_no_more_bytes_than_their_limit() -> None:
    """The oldest is dropped, as Pulsar's consumer does; when its last chunk comes, it is malformed and not lost."""
    one, two = chunked(Message(b"a" * 9), 3, 1), chunked(Message(b"z" * 9), 3, 2)
    gatherer = ChunkGatherer(bytes_max=10)
    entries = decoded(one[0], one[1], two[0], two[1], two[2], one[2])
    for row in range(4):
        assert gatherer.take(entries, row) is None
        assert gatherer.held_bytes <= 10
    last = gatherer.take(entries, 4)
    assert last is not None
    joined = gatherer.join(last)
    assert joined is not None
    assert bytes(joined.payload) == b"z" * 9
    last = gatherer.take(entries, 5)
    assert last is not None
    assert not gatherer.lacks(last)  # nothing is looked for
    with pytest.raises(ValueError, match="dropped: incomplete messages were above 10 bytes"):
        gatherer.join(last)
    assert gatherer.held_bytes == 0


def test_message_above_the_limit_of_incomplete_ones_is_malformed_once() -> None:
    large, small = chunked(Message(b"a" * 30), 3, 1), chunked(Message(b"xyz"), 1, 2)
    gatherer, refused, found = ChunkGatherer(bytes_max=10), 0, []
    entries = decoded(*large, *small)
    for row in range(len(entries)):
        uuid = gatherer.take(entries, row)
        assert gatherer.held_bytes <= 10
        try:
            joined = None if uuid is None else gatherer.join(uuid)
        except ValueError:
            refused += 1
        else:
            found += [] if joined is None else [bytes(joined.payload)]
    assert (refused, found) == (1, [b"xyz"])


def test_earlier_chunks_of_a_message_count_for_the_limit() -> None:
    large = chunked(Message(b"a" * 30), 3, 1)
    gatherer, entries = ChunkGatherer(bytes_max=10), decoded(*large)
    uuid = gatherer.take(entries, 9)
    assert uuid is not None
    row = 8
    while gatherer.lacks(uuid):
        gatherer.take_earlier(entries, row, uuid)
        assert gatherer.held_bytes <= 10
        row -= 1
    assert row >= 4
    with pytest.raises(ValueError, match="above 10 bytes"):
        gatherer.join(uuid)


def of_transaction(number: int) -> bytes:
    return single(Message(b"t"), txnid_most_bits=0, txnid_least_bits=number)


def test_committed_ones_are_seen_aborted_ones_are_not_and_open_ones_stop_the_reader() -> None:
    """plain, t1, commit, t2, abort, t3 open, plain, as seen of a broker."""
    plain = single(Message(b"p"))
    found = Transactions()
    found.take(
        decoded(
            plain,
            of_transaction(1),
            marker(21, (0, 1)),
            of_transaction(2),
            marker(22, (0, 2)),
            of_transaction(3),
            plain,
        )
    )
    assert found.aborted == {(0, 2): EntryPosition(7, 4)}
    assert found.stop == EntryPosition(7, 5)
    found.take(decode_entries(EntryBatch.of([marker(21, (0, 3))], 7, 7)))
    assert found.stop is None


def test_first_message_of_an_open_transaction_stops_the_reader_not_its_last() -> None:
    found = Transactions()
    found.take(decoded(single(Message(b"p")), of_transaction(1), of_transaction(1)))
    found.take(decode_entries(EntryBatch.of([of_transaction(1)], 8, 0)))
    assert found.stop == EntryPosition(7, 1)


def test_oldest_open_transaction_stops_the_reader_not_the_first_that_was_seen() -> None:
    found = Transactions()
    found.take(decoded(of_transaction(1), of_transaction(2), of_transaction(1), marker(22, (0, 1))))
    assert found.stop == EntryPosition(7, 1)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("12:3", MessageId(12, 3)),
        ("12:3:-1", MessageId(12, 3)),
        ("12:3:0:4", MessageId(12, 3, 4, 0)),
        ("12:3:2", MessageId(12, 3, partition=2)),
        ([8, 12, 16, 3, 24, 2], MessageId(12, 3, partition=2)),
        ([8, 12, 16, 3, 32, 4, 48, 10], MessageId(12, 3, 4)),
        ([8, -116, 1, 16, 3], MessageId(140, 3)),
        ("12:-1:-1", MessageId(12, -1)),
        ("-1:-1:-1", EARLIEST_MESSAGE),
        ([8, *[-1] * 9, 1, 16, *[-1] * 9, 1, 48, 0], EARLIEST_MESSAGE),
        ([8, *[-1] * 8, 127, 16, *[-1] * 8, 127, 48, 0], LATEST_MESSAGE),
    ],
)
def test_message_ids_are_read_as_users_write_them(value: object, wanted: MessageId) -> None:
    assert MessageId.parse(value) == wanted
    assert MessageId.parse(str(wanted)) == wanted


@pytest.mark.parametrize(
    "value",
    [
        "",
        "12",
        "12:",
        "-1:3",
        MessageIdData(ledgerId=(1 << 64) - 1, entryId=0).SerializeToString(),
        "12:-2",
        "12:3:x",
        "12:3:-2",
        [8, *[-1] * 9, 1, 16, 3],
        [256],
        [8],
        ["8"],
        None,
        5,
        "99999999999999999999:1",
    ],
)
def test_what_is_not_a_message_id_is_refused(value: object) -> None:
    with pytest.raises(ValueError):
        MessageId.parse(value)


def test_bytes_of_a_message_id_are_signed_or_not() -> None:
    octets = MessageIdData(ledgerId=16383, entryId=128).SerializeToString()
    assert 255 in octets
    signed = [each - 256 if each > 127 else each for each in octets]
    for given in (list(octets), signed, octets):
        assert MessageId.parse(given) == MessageId(16383, 128)
    for wrong in (256, -129):
        with pytest.raises(ValueError, match="is not a list of bytes"):
            MessageId.parse([wrong])
