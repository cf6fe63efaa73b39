"""V3 against protobuf's own classes: docs/protocol.md §2."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bkspark.core.metadata import DigestType
from bkspark.entries import EntryBatch
from bkspark.errors import ProtocolError
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3, v3_adds
from bkspark.wire.digest import EntryDigest
from bkspark.wire.flags import AddFlags
from bkspark.wire.framing import scan_frames
from tests.generated_modules import check_generated
from tests.wire.frames import frames_of

KEY = bytes(range(20))
IDS = (0, 1, 127, 128, 16383, 16384, (1 << 31) - 1, 1 << 31, (1 << 63) - 1)


def table_of(buffer: bytes):
    return np.frombuffer(buffer, np.uint8), scan_frames(buffer, len(buffer))


def add_message(txn_id: int, ledger: int, entry: int, body: bytes, **others) -> protocol.Request:
    head = v3.header(protocol.ADD_ENTRY, txn_id, others.pop("priority", 0))
    add = protocol.AddRequest(ledgerId=ledger, entryId=entry, masterKey=KEY, body=body, **others)
    return protocol.Request(header=head, addRequest=add)


def adds_in(buffer: bytes) -> list[tuple]:
    """All adds of a buffer, as many runs as they make."""
    octets, table = table_of(buffer)
    found, row = [], 0
    while row < len(table):
        adds = v3_adds.decode_adds(octets, table, row)
        assert adds is not None
        assert len(adds) > 0
        for i in range(len(adds)):
            body = buffer[int(adds.body_starts[i]) : int(adds.body_ends[i])]
            key = buffer[int(adds.key_starts[i]) : int(adds.key_starts[i]) + 20]
            ids = (int(adds.txn_ids[i]), int(adds.ledger_ids[i]), int(adds.entry_ids[i]))
            found.append((*ids, body, key, adds.priority, adds.is_recovery, adds.write_flags))
        row += len(adds)
    return found


@pytest.mark.parametrize("seed", range(30))
def test_adds_are_read_as_protobuf_reads_them(seed):
    chance = random.Random(seed)
    expected, frames = [], []
    others = {}
    size = 5
    for _ in range(chance.randint(1, 60)):
        if chance.random() < 0.2:
            others = {
                name: value
                for name, value in (("flag", 1), ("writeFlags", 1), ("priority", 100))
                if chance.random() < 0.4
            }
        if chance.random() < 0.2:
            size = chance.choice((0, 1, 127, 128, 300, 20000))
        ids = chance.choice(IDS), chance.choice(IDS), chance.choice((-1, *IDS))
        body = chance.randbytes(size)
        frames.append(v3.encode_message(add_message(*ids, body, **others)))
        priority, recovery, write_flags = others.get("priority", 0), "flag" in others, others.get("writeFlags", 0)
        expected.append((*ids, body, KEY, priority, recovery, write_flags))
    assert adds_in(b"".join(frames)) == expected


def test_adds_of_one_layout_are_one_run():
    frames = [v3.encode_message(add_message(1000 + i, 7, 200 + i, b"x" * 1024)) for i in range(100)]
    octets, table = table_of(b"".join(frames))
    adds = v3_adds.decode_adds(octets, table, 0)
    assert adds is not None
    assert len(adds) == 100
    assert adds.entry_ids.tolist() == list(range(200, 300))


def test_context_of_a_request_is_passed_over():
    message = add_message(1, 2, 3, b"body")
    message.requestContext.add(key="k", value="v")
    assert adds_in(v3.encode_message(message))[0][:4] == (1, 2, 3, b"body")


@pytest.mark.parametrize(
    "body",
    [
        protocol.Request(
            header=v3.header(protocol.READ_ENTRY, 5), readRequest=protocol.ReadRequest(ledgerId=1, entryId=2)
        ).SerializeToString(),
        add_message(1, 2, 3, b"body").SerializeToString() + b"\x08\x01",
        protocol.Request(header=v3.header(protocol.ADD_ENTRY, 1)).SerializeToString(),
        protocol.Request(
            header=v3.header(protocol.ADD_ENTRY, 1),
            addRequest=protocol.AddRequest(ledgerId=1, entryId=2, masterKey=b"short", body=b""),
        ).SerializeToString(),
        add_message(1, 2, 3, b"body").SerializeToString() + v3.header(3, 1).SerializeToString(),
        b"",
    ],
    ids=["a read", "a field more", "no add", "a short key", "rubbish behind", "nothing"],
)
def test_other_frames_are_left_to_protobuf(body):
    octets, table = table_of(len(body).to_bytes(4, "big") + body)
    assert v3_adds.decode_adds(octets, table, 0) is None


def test_adds_whose_numbers_are_padded_are_left_to_protobuf():
    body = add_message(1, 2, 3, b"body").SerializeToString()
    assert body[6:8] == b"\x18\x01"
    padded = b"\x0a\x07" + body[2:6] + b"\x18\x81\x00" + body[8:]
    assert v3.decode_request(padded).header.txnId == 1
    octets, table = table_of(len(padded).to_bytes(4, "big") + padded)
    assert v3_adds.decode_adds(octets, table, 0) is None


def test_every_truncation_and_random_bytes_are_not_an_add_or_an_error_of_ours():
    whole = add_message(300, 1 << 40, 70000, b"body" * 10, flag=1, writeFlags=1, priority=100).SerializeToString()
    chance = random.Random(1)
    tries = [whole[:end] for end in range(len(whole))]
    for _ in range(3000):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        tries.append(bytes(damaged))
    for body in tries:
        octets, table = table_of(len(body).to_bytes(4, "big") + body)
        found = v3_adds.decode_adds(octets, table, 0)
        try:
            message = v3.decode_request(body)
        except ProtocolError:
            # What the array codec takes is at least as strict as protobuf but for bytes it does not look at: text and
            # contexts.
            continue
        if found is not None and message.header.operation == protocol.ADD_ENTRY:
            add = message.addRequest
            assert (int(found.ledger_ids[0]), int(found.entry_ids[0])) == (add.ledgerId, add.entryId)
            assert body[int(found.body_starts[0]) - 4 : int(found.body_ends[0]) - 4] == add.body


@pytest.mark.parametrize("seed", range(10))
def test_answers_of_adds_are_written_and_read_as_protobuf_does(seed):
    chance = random.Random(seed)
    count = chance.randint(1, 200)
    txn_ids = np.array([chance.choice(IDS) for _ in range(count)], np.int64)
    statuses = np.array([chance.choice([int(status) for status in v3.StatusCode]) for _ in range(count)])
    ledgers = np.array([chance.choice(IDS) for _ in range(count)], np.int64)
    entries = np.array([chance.choice((-1, *IDS)) for _ in range(count)], np.int64)
    if seed % 2:
        txn_ids, ledgers, statuses = np.arange(100, 100 + count), np.full(count, 7), np.zeros(count, np.int64)
    buffer = v3.encode_add_responses(txn_ids, statuses, ledgers, entries)
    expected = []
    for txn_id, status, ledger_id, entry_id in zip(*(each.tolist() for each in (txn_ids, statuses, ledgers, entries))):
        added = protocol.AddResponse(status=status, ledgerId=ledger_id, entryId=entry_id)
        header = v3.header(protocol.ADD_ENTRY, txn_id)
        expected.append(protocol.Response(header=header, status=status, addResponse=added).SerializeToString())
    frames = frames_of(buffer)
    assert sorted(frames) == sorted(expected)
    sent = [protocol.Response.FromString(frame) for frame in frames]
    octets, table = table_of(buffer)
    row = 0
    while row < count:
        answers = v3.decode_add_responses(octets, table, row)
        assert answers is not None
        end = row + len(answers)
        assert answers.txn_ids.tolist() == [each.header.txnId for each in sent[row:end]]
        assert answers.statuses.tolist() == [each.status for each in sent[row:end]]
        assert answers.ledger_ids.tolist() == [each.addResponse.ledgerId for each in sent[row:end]]
        assert answers.entry_ids.tolist() == [each.addResponse.entryId for each in sent[row:end]]
        row = end


def test_other_answers_are_left_to_protobuf():
    refused = protocol.Response(header=v3.header(protocol.ADD_ENTRY, 1), status=protocol.EUA)
    octets, table = table_of(v3.encode_message(refused))
    assert v3.decode_add_responses(octets, table, 0) is None
    assert v3.decode_response(frames_of(v3.encode_message(refused))[0]).status == v3.StatusCode.EUA


@pytest.mark.parametrize("sizes", [[10] * 50, [0, 1, 99, 100, 5000, 5000, 7], [3]])
@pytest.mark.parametrize(
    ("flags", "given"),
    [
        (AddFlags(), {}),
        (AddFlags(is_recovery=True, is_urgent=True), {"flag": 1, "priority": 100}),
        (AddFlags(is_deferred=True), {"writeFlags": 1}),
        (AddFlags(is_deferred=True, bypasses_journal=True), {"writeFlags": 1, "bypassJournal": True}),
    ],
)
def test_adds_are_written_as_protobuf_does(sizes, flags, given):
    digest = EntryDigest(DigestType.CRC32C, b"pw")
    payloads = [bytes([i]) * size for i, size in enumerate(sizes)]
    sealed = digest.seal(EntryBatch.of(payloads, ledger_id=1 << 33, first_entry=120), 119, 1000)
    sent = v3.encode_adds(sealed, 1 << 33, 16380, KEY, flags)
    assert len(sent) == len(sizes)
    bounds = sealed.offsets.tolist()
    for i, frame in enumerate(frames_of(bytes(sent.buffer))):
        body = bytes(sealed.buffer[bounds[i] + 4 : bounds[i + 1]])
        assert frame == add_message(16380 + i, 1 << 33, 120 + i, body, **given).SerializeToString()
        start, end = sent.offsets[i : i + 2].tolist()
        assert bytes(sent.buffer[start + 4 : end]) == frame


def test_generated_module_is_what_its_proto_file_says(tmp_path):
    check_generated(protocol.DESCRIPTOR, "bkspark/wire/bookkeeper_protocol.proto", tmp_path)


@pytest.mark.parametrize("synced", [-1, 0, 127, 1 << 40])
def test_last_add_synced_travels_in_answers_of_adds_and_is_protobufs_field(synced):
    txn_ids, entries = np.arange(5, 9), np.arange(200, 204)
    zeros, ledgers = np.zeros(4, np.int64), np.full(4, 7)
    buffer = v3.encode_add_responses(txn_ids, zeros, ledgers, entries, np.full(4, synced))
    for row, frame in enumerate(frames_of(buffer)):
        response = v3.decode_response(frame)
        assert response.addResponse.lastAddSynced == synced
        assert (response.header.txnId, response.addResponse.entryId) == (5 + row, 200 + row)
    octets, table = table_of(buffer)
    answers = v3.decode_add_responses(octets, table, 0)
    assert len(answers) == 4
    assert answers.last_synced.tolist() == [synced] * 4
    assert answers.entry_ids.tolist() == entries.tolist()


def test_answers_of_adds_without_last_add_synced_tell_none():
    octets, table = table_of(v3.encode_add_responses(*(np.zeros(2, np.int64) for _ in range(4))))
    assert v3.decode_add_responses(octets, table, 0).last_synced is None


def test_adds_that_bypass_the_journal_are_marked_by_a_field_that_apaches_bookies_do_not_know():
    frame = v3.encode_message(add_message(1, 2, 3, b"body", writeFlags=1, bypassJournal=True))
    octets, table = table_of(frame)
    adds = v3_adds.decode_adds(octets, table, 0)
    assert (adds.bypasses_journal, adds.write_flags) == (True, v3.DEFERRED_SYNC)
    octets, table = table_of(v3.encode_message(add_message(1, 2, 3, b"body", writeFlags=1)))
    assert not v3_adds.decode_adds(octets, table, 0).bypasses_journal


@pytest.mark.parametrize("others", [{}, {"writeFlags": 1, "priority": 100, "flag": 1}], ids=["plain", "flags"])
def test_adds_whose_entries_differ_in_size_are_one_run(others):
    chance = random.Random(3)
    messages = []
    for i in range(1000):
        ids = chance.choice(IDS), chance.choice((-1, *IDS))
        messages.append(add_message(i, *ids, chance.randbytes(chance.choice((0, 1, 90, 127, 128, 3000))), **others))
        messages[-1].requestContext.add(key="k", value="v")
    octets, table = table_of(b"".join(map(v3.encode_message, messages)))
    adds = v3_adds.decode_adds(octets, table, 0)
    assert adds is not None
    assert len(adds) == 1000
    assert (adds.priority, adds.is_recovery, adds.write_flags) == ((100, True, 1) if others else (0, False, 0))
    wanted = [(m.header.txnId, m.addRequest.ledgerId, m.addRequest.entryId, m.addRequest.body) for m in messages]
    bodies = [octets[a:b].tobytes() for a, b in zip(adds.body_starts, adds.body_ends)]
    assert list(zip(adds.txn_ids.tolist(), adds.ledger_ids.tolist(), adds.entry_ids.tolist(), bodies)) == wanted


def test_adds_of_other_flags_end_a_run_of_mixed_sizes():
    messages = [add_message(i, 7, i, bytes(i % 9), writeFlags=int(i >= 500)) for i in range(1000)]
    octets, table = table_of(b"".join(map(v3.encode_message, messages)))
    adds = v3_adds.decode_adds(octets, table, 0)
    assert adds is not None
    assert len(adds) == 500
    rest = v3_adds.decode_adds(octets, table, 500)
    assert rest is not None
    assert (len(rest), rest.write_flags) == (500, 1)


TXN_ID, LEDGER, ENTRY = b"\x18\x01", b"\x08\x05", b"\x10\x06"
"""Fields of a request's header and of its add, as protobuf writes them."""


@pytest.mark.parametrize(
    ("number", "as_bytes", "goes_into_header"),
    [
        (TXN_ID, b"\x1a\x01\x00", True),
        (b"", b"\x22\x01\x00", True),
        (LEDGER, b"\x0a\x01\x00", False),
        (ENTRY, b"\x12\x01\x00", False),
        (b"", b"\x2a\x01\x00", False),
    ],
    ids=["txn id", "priority", "ledger", "entry", "write flags"],
)
def test_add_with_bytes_where_a_number_belongs_is_left_to_protobuf(
    number: bytes, as_bytes: bytes, goes_into_header: bool
) -> None:
    """A peer may send any bytes: such a frame is not of the form, and nothing else fails."""
    header = v3.header(protocol.ADD_ENTRY, 1).SerializeToString()
    add = protocol.AddRequest(ledgerId=5, entryId=6, masterKey=bytes(20), body=bytes(40)).SerializeToString()
    if goes_into_header:
        header = header.replace(number, b"") + as_bytes
    else:
        add = add.replace(number, b"", 1) + as_bytes
    body = b"\x0a%c%b\xaa\x06%c%b" % (len(header), header, len(add), add)
    frame = len(body).to_bytes(4, "big") + body
    assert v3_adds.decode_adds(np.frombuffer(frame, np.uint8), scan_frames(frame, len(frame)), 0) is None
