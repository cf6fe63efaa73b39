"""Plain V3 reads against protobuf's own classes: bookkeeper-interop.md §2.7."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3, v3_reads
from bkspark.wire.framing import scan_frames

IDS = (0, 1, 127, 128, 16383, 16384, (1 << 31) - 1, 1 << 31, (1 << 63) - 1)


def table_of(buffer: bytes):
    return np.frombuffer(buffer, np.uint8), scan_frames(buffer, len(buffer))


def read_message(txn_id: int, ledger: int, entry: int, priority: int = 0, **others) -> protocol.Request:
    read = protocol.ReadRequest(ledgerId=ledger, entryId=entry, **others)
    return protocol.Request(header=v3.header(protocol.READ_ENTRY, txn_id, priority), readRequest=read)


@pytest.mark.parametrize("seed", range(20))
def test_reads_are_read_as_protobuf_reads_them(seed):
    chance = random.Random(seed)
    priority, expected, frames = 0, [], []
    for _ in range(chance.randint(1, 400)):
        if chance.random() < 0.02:
            priority = chance.choice((0, 100))
        ids = (chance.choice(IDS[: 1 + seed % 9]), chance.choice(IDS[: 1 + seed % 5]), chance.choice((-1, 1, 1, 300)))
        frames.append(v3.encode_message(read_message(*ids, priority)))
        expected.append((*ids, priority))
    octets, table = table_of(b"".join(frames))
    found = []
    while len(found) < len(table):
        reads = v3_reads.decode_reads(octets, table, len(found))
        assert reads is not None
        assert len(reads) > 0
        ids = zip(reads.txn_ids.tolist(), reads.ledger_ids.tolist(), reads.entry_ids.tolist())
        found += [(*each, reads.priority) for each in ids]
    assert found == expected


def test_reads_of_one_layout_are_one_run():
    octets, table = table_of(b"".join(v3.encode_message(read_message(1000 + i, 7, 200 + i)) for i in range(5000)))
    reads = v3_reads.decode_reads(octets, table, 3)
    assert reads is not None
    assert reads.entry_ids.tolist() == list(range(203, 5200))


@pytest.mark.parametrize(
    "message",
    [
        read_message(1, 2, 3, flag=protocol.ReadRequest.FENCE_LEDGER, masterKey=bytes(20)),
        read_message(1, 2, 3, previousLAC=-1),
        read_message(1, 2, 3, flag=protocol.ReadRequest.ENTRY_PIGGYBACK),
        protocol.Request(header=v3.header(protocol.READ_ENTRY, 1)),
        protocol.Request(header=v3.header(protocol.ADD_ENTRY, 1), readRequest=read_message(1, 2, 3).readRequest),
    ],
    ids=["fence", "long poll", "flag", "no read", "another operation"],
)
def test_other_frames_are_left_to_protobuf(message):
    octets, table = table_of(v3.encode_message(message))
    assert v3_reads.decode_reads(octets, table, 0) is None


@pytest.mark.parametrize("seed", range(10))
def test_answers_are_written_as_protobuf_does(seed):
    chance = random.Random(seed)
    first_entry = chance.choice((0, 100, 16300, 1 << 31))
    sizes, entries = [], []
    size = 40
    for _ in range(chance.randint(1, 200)):
        size = chance.choice((16, 100, 127, 128, 1000, 20000)) if chance.random() < 0.2 else size
        entries.append(chance.randbytes(size))
        sizes.append(4 + size)
    items = b"".join(len(entry).to_bytes(4, "big") + entry for entry in entries)
    txn_ids = np.arange(len(entries)) + chance.choice(IDS[:-1])
    lac = chance.choice((None, -1, 5, 1 << 40))
    ledger = chance.choice(IDS)
    answers = v3_reads.encode_read_responses(txn_ids, ledger, first_entry, items, np.array(sizes), lac)
    expected = []
    for i, entry in enumerate(entries):
        read = protocol.ReadResponse(status=0, ledgerId=ledger, entryId=first_entry + i, body=entry, maxLAC=lac)
        header = v3.header(protocol.READ_ENTRY, int(txn_ids[i]))
        expected.append(v3.encode_message(protocol.Response(header=header, status=0, readResponse=read)))
    assert answers == b"".join(expected)


def test_failures_are_written_as_protobuf_does():
    ids = np.array([-1, 5, 300]), np.array([7, 7, 1 << 40])
    answers = v3_reads.encode_read_failures(np.array([1, 2, 300]), v3.Status.ENOENTRY, ids[1], ids[0])
    expected = []
    for txn_id, ledger, entry in zip((1, 2, 300), ids[1].tolist(), ids[0].tolist()):
        read = protocol.ReadResponse(status=v3.Status.ENOENTRY, ledgerId=ledger, entryId=entry)
        header = v3.header(protocol.READ_ENTRY, txn_id)
        message = protocol.Response(header=header, status=v3.Status.ENOENTRY, readResponse=read)
        expected.append(v3.encode_message(message))
    assert answers == b"".join(expected)


@pytest.mark.parametrize("key", [None, bytes(range(20))], ids=["plain", "fencing"])
@pytest.mark.parametrize("priority", [0, 100])
def test_reads_are_written_as_protobuf_writes_them(key, priority):
    entry_ids = np.array([-1, 0, 5, 126, 127, 128, 129, 20_000, (1 << 63) - 1])
    first_txn_id = 120
    expected = []
    for txn_id, entry_id in enumerate(entry_ids.tolist(), first_txn_id):
        message = v3_reads.read_message(300, entry_id, key)
        head = v3.header(protocol.READ_ENTRY, txn_id, priority)
        expected.append(v3.encode_message(protocol.Request(header=head, readRequest=message)))
    assert v3_reads.encode_reads(300, entry_ids, first_txn_id, key, priority) == b"".join(expected)


def test_unknown_status_codes_count_as_no_certain_answer():
    codes = np.array([0, 402, 507, 1, -1, 508, 1 << 40])
    assert v3.to_v2(codes).tolist() == [0, 1, 107, 101, 101, 101, 101]
