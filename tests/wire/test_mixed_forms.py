"""Frames of several forms one after the other, and frames whose parts do not fit (docs/protocol.md §2)."""

from __future__ import annotations

import numpy as np
import pytest

from bkspark.entries import EntryBatch
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3, v3_lacs
from bkspark.wire.digest import DigestType, EntryDigest
from bkspark.wire.framing import scan_frames
from bkspark.wire.lac import LacBounds
from bkspark.wire.v3_fields import Walk

LEDGER = 5
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


def test_last_add_synced_is_a_number_of_any_width_in_each_answer() -> None:
    synced = np.array([3, -1, 1 << 40, 200, 3])
    ids = np.arange(5) + 200
    data = v3.encode_add_responses(ids + 100, np.zeros(5, np.int64), np.full(5, 7), ids, synced)
    expected = b"".join(v3.encode_message(answer(7, entry_id, each)) for entry_id, each in zip(ids, synced.tolist()))
    assert data == expected


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
