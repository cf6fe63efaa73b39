"""Frames of several forms one after the other, and frames whose parts do not fit (docs/protocol.md §2)."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bkspark.entries import EntryBatch
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3, v3_lacs, v3_reads
from bkspark.wire.digest import DigestType, EntryDigest
from bkspark.wire.framing import scan_frames
from bkspark.wire.lac import LacBounds
from bkspark.wire.v3_fields import Walk

LEDGER = 5
WIDE_AND_NARROW = (0, 127, 128, 16384, 1 << 31, 1 << 62)
ANSWERS = [(7, 200, None), (7, 201, 3), (1 << 30, 202, None), (7, 203, -1), (7, 204, 1 << 40), (1 << 30, 205, 9)]
"""Ledger, entry and LastAddSynced of answers to adds; some of them differ in their form and not in their size."""


def answer(ledger_id: int, entry_id: int, synced: int | None) -> protocol.Response:
    added = protocol.AddResponse(status=v3.StatusCode.EOK, ledgerId=ledger_id, entryId=entry_id)
    if synced is not None:
        added.lastAddSynced = synced
    header = v3.header(protocol.ADD_ENTRY, 100 + entry_id)
    return protocol.Response(header=header, status=v3.StatusCode.EOK, addResponse=added)


@pytest.mark.parametrize("order", [1, -1], ids=["forwards", "backwards"])
def test_each_answer_of_an_add_has_its_own_last_add_synced_or_none(order: int) -> None:
    """§2.6: bookies of other programs leave the field out."""
    sent = ANSWERS[::order]
    data = b"".join(v3.encode_message(answer(*each)) for each in sent)
    octets, table = np.frombuffer(data, np.uint8), scan_frames(data, len(data))
    found: list[tuple[int, int, int | None]] = []
    while len(found) < len(sent):
        some = v3.decode_add_responses(octets, table, len(found))
        assert some is not None
        synced = [None] * len(some) if some.last_synced is None else some.last_synced.tolist()
        assert some.txn_ids.tolist() == (100 + some.entry_ids).tolist()
        found += zip(some.ledger_ids.tolist(), some.entry_ids.tolist(), synced)
    assert found == sent


@pytest.mark.parametrize("synced", [(None,), (-1, 7, 300, 1 << 40)], ids=["without", "with"])
def test_answers_of_adds_of_many_ledgers_are_one_run_whatever_their_numbers_take(
    synced: tuple[int | None, ...],
) -> None:
    """A bookie of another program answers in the order in which its threads come to an end."""
    chance = random.Random(5)
    sent = [(chance.choice(WIDE_AND_NARROW), chance.choice(WIDE_AND_NARROW), chance.choice(synced)) for _ in range(300)]
    data = b"".join(v3.encode_message(answer(*each)) for each in sent)
    octets, table = np.frombuffer(data, np.uint8), scan_frames(data, len(data))
    some = v3.decode_add_responses(octets, table, 0)
    assert some is not None
    values = [None] * len(some) if some.last_synced is None else some.last_synced.tolist()
    assert list(zip(some.ledger_ids.tolist(), some.entry_ids.tolist(), values)) == sent


def test_last_add_synced_is_a_number_of_any_width_in_each_answer() -> None:
    synced = np.array([3, -1, 1 << 40, 200, 3])
    ids = np.arange(5) + 200
    data = v3.encode_add_responses(ids + 100, np.zeros(5, np.int64), np.full(5, 7), ids, synced)
    expected = b"".join(v3.encode_message(answer(7, entry_id, each)) for entry_id, each in zip(ids, synced.tolist()))
    assert data == expected


def read(txn_id: int, ledger_id: int, entry_id: int, priority: int = 0, **others: object) -> bytes:
    message = protocol.ReadRequest(ledgerId=ledger_id, entryId=entry_id, **others)
    return v3.encode_message(
        protocol.Request(header=v3.header(protocol.READ_ENTRY, txn_id, priority), readRequest=message)
    )


@pytest.mark.parametrize("priority", [0, 100])
def test_reads_of_many_ledgers_are_one_run_whatever_their_numbers_take(priority: int) -> None:
    """Clients that read many ledgers, or one at random, send numbers of different widths in turn."""
    chance = random.Random(priority)
    asked = [tuple(chance.choice(WIDE_AND_NARROW) for _ in range(3)) for _ in range(300)]
    data = b"".join(read(*each, priority) for each in asked)
    octets, table = np.frombuffer(data, np.uint8), scan_frames(data, len(data))
    found = v3_reads.decode_reads(octets, table, 0)
    assert found is not None
    assert (len(found), found.priority, found.fencing_key) == (300, priority, None)
    assert list(zip(found.txn_ids.tolist(), found.ledger_ids.tolist(), found.entry_ids.tolist())) == asked


@pytest.mark.parametrize(
    "other",
    [
        read(1, 5, 1, 7),
        read(1, 5, 1, previousLAC=3),
        read(1, 5, 1, flag=protocol.ReadRequest.FENCE_LEDGER, masterKey=bytes(20)),
        read(1, 5, 1, masterKey=bytes(20)),
    ],
    ids=["priority", "long poll", "fence", "key"],
)
def test_read_of_another_kind_ends_a_run_of_mixed_widths(other: bytes) -> None:
    plain = [read(each, each, each) for each in WIDE_AND_NARROW]
    data = b"".join([*plain, other, *plain])
    octets, table = np.frombuffer(data, np.uint8), scan_frames(data, len(data))
    found = v3_reads.decode_reads(octets, table, 0)
    assert found is not None
    assert found.entry_ids.tolist() == list(WIDE_AND_NARROW)


def test_answers_of_one_ledger_keep_its_order_however_many_ledgers_are_answered() -> None:
    chance = random.Random(3)
    ledgers = [chance.choice((5, 500, 1 << 20, 1 << 34)) for _ in range(400)]
    entries = [100 + ledgers[:at].count(ledger) for at, ledger in enumerate(ledgers)]
    txn_ids = np.arange(60, 460)
    statuses = np.full(400, v3.StatusCode.EOK)
    data = v3.encode_add_responses(txn_ids, statuses, np.array(ledgers), np.array(entries))
    table = scan_frames(data, len(data))
    sent = [
        protocol.Response.FromString(data[start:end]).addResponse
        for start, end in zip(table.starts.tolist(), table.ends.tolist())
    ]
    assert len(sent) == 400
    for ledger in {*ledgers}:
        own = [each.entryId for each in sent if each.ledgerId == ledger]
        assert own == list(range(100, 100 + len(own)))


def test_request_for_a_lac_with_an_unknown_field_is_left_to_protobuf() -> None:
    asked = protocol.Request(
        header=v3.header(protocol.READ_LAC, 1), readLacRequest=protocol.ReadLacRequest(ledgerId=LEDGER)
    )
    asked.readLacRequest.MergeFromString(b"\xf8\x7f\x01")
    data = v3.encode_message(asked)
    octets, table = np.frombuffer(data, np.uint8), scan_frames(data, len(data))
    assert v3_lacs.decode_lac_reads(octets, table, 0) is None


@pytest.mark.parametrize("lac", [6, 9, 1 << 40])
def test_copy_in_an_open_ledger_proves_only_that_entries_before_the_last_fragment_are_confirmed(lac: int) -> None:
    """Apache's re-replication seals a copy with the LAC of its handle: that must not become the LAC of the ledger."""
    digest = EntryDigest(DigestType.CRC32C, b"", LacBounds(copies_to=4))
    copy = bytes(digest.seal(EntryBatch.of([b"x"], LEDGER, 3), lac, 0).buffer[4:])
    assert digest.open_entry(copy, LEDGER, 3).lac == 4
    assert digest.open_entry(copy, LEDGER, None).lac == 4


def walk_over(frame: bytes) -> Walk:
    """Return a walk that begins at the body of the only frame."""
    data = len(frame).to_bytes(4, "big") + frame + b"beyond it"
    return Walk(np.frombuffer(data, np.uint8), scan_frames(data, 4 + len(frame)), 0)


@pytest.mark.parametrize(
    "frame",
    [b"\x05", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x80" * 10],
    ids=["beyond the frame", "below 0", "without an end"],
)
def test_frame_with_a_length_that_cannot_be_is_not_of_the_form(frame: bytes) -> None:
    walk = walk_over(frame)
    walk.length()
    assert walk.count() == 0


def test_length_ends_where_its_value_does() -> None:
    walk = walk_over(b"\x02ab")
    ends = walk.length()
    walk.go_to(ends)
    assert walk.count() == 1
