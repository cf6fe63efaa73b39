"""A V3 read that comes alone is read as protobuf reads it, or left to others: docs/protocol.md §2."""

from __future__ import annotations

import random

import pytest

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3, v3_reads
from bkspark.wire.v3_fields import varint
from bkspark.wire.v3_single_read import SINGLE_READ_BYTES_MAX, decode_single_read, encode_single_read_response

KEY = bytes(range(20))
NUMBERS = (0, 1, 127, 128, 16383, 16384, 1 << 31, (1 << 63) - 1)
FENCE = b"\xa0\x06\x01"


def request_of(txn_id: int, ledger_id: int, entry_id: int, key: bytes | None, priority: int) -> protocol.Request:
    header = v3.header(protocol.READ_ENTRY, txn_id, priority)
    return protocol.Request(header=header, readRequest=v3_reads.read_message(ledger_id, entry_id, key))


@pytest.mark.parametrize("seed", range(200))
def test_reads_and_their_answers_are_what_protobuf_reads_and_writes(seed: int) -> None:
    chance = random.Random(seed)
    txn_id, ledger_id, entry_id = (chance.choice([*NUMBERS, chance.getrandbits(chance.randrange(64))]) for _ in "123")
    key, priority = chance.choice([None, KEY]), chance.choice([0, 1, 100])
    frame = request_of(txn_id, ledger_id, entry_id, key, priority).SerializeToString()
    assert len(frame) <= SINGLE_READ_BYTES_MAX
    read = decode_single_read(frame)
    assert read is not None
    assert read[1:] == (ledger_id, entry_id, key)
    entry, lac = chance.randbytes(chance.choice([0, 1, 95, 200, 17_000])), chance.choice([None, -1, 0, 300])
    answer = encode_single_read_response(read.txn_id, ledger_id, entry_id, memoryview(entry), lac)
    found = protocol.ReadResponse(status=0, ledgerId=ledger_id, entryId=entry_id, body=entry, maxLAC=lac)
    header = v3.header(protocol.READ_ENTRY, txn_id)
    assert answer == v3.encode_message(protocol.Response(header=header, status=0, readResponse=found))


def test_flag_may_come_first_as_apaches_clients_write_it() -> None:
    frame = request_of(5, 6, 7, KEY, 0).SerializeToString()
    assert frame.endswith(FENCE)
    at = frame.index(b"\xa2\x06") + 3
    turned = frame[:at] + FENCE + frame[at : -len(FENCE)]
    assert protocol.Request.FromString(turned).readRequest.flag == protocol.ReadRequest.FENCE_LEDGER
    assert decode_single_read(turned) == decode_single_read(frame)
    for odd in (frame[:at] + FENCE + frame[at:], frame[: -len(FENCE)], turned[: at + len(FENCE)]):
        assert decode_single_read(odd) is None


@pytest.mark.parametrize(
    "change", [{"previousLAC": 3}, {"timeOut": 9}, {"flag": protocol.ReadRequest.ENTRY_PIGGYBACK}, {"entryId": -1}]
)
def test_other_reads_are_left_to_protobuf(change: dict[str, int]) -> None:
    request = request_of(5, 6, 7, None, 0)
    for name, value in change.items():
        setattr(request.readRequest, name, value)
    assert decode_single_read(request.SerializeToString()) is None


@pytest.mark.parametrize("seed", range(20))
def test_changed_bytes_are_read_as_protobuf_reads_them_or_not_at_all(seed: int) -> None:
    chance = random.Random(seed)
    frame = request_of(300, 70_000, 5, chance.choice([None, KEY]), chance.choice([0, 100])).SerializeToString()
    taken = 0
    for _ in range(300):
        changed = bytearray(frame)
        changed[chance.randrange(len(frame))] = chance.randrange(256)
        read = decode_single_read(bytes(changed))
        if read is None:
            continue
        taken += 1
        request = protocol.Request.FromString(bytes(changed))
        assert varint(request.header.txnId).rstrip(b"\x00") or not request.header.txnId
        assert (request.header.version, request.header.operation) == (protocol.VERSION_THREE, protocol.READ_ENTRY)
        asked = request.readRequest
        assert (asked.ledgerId, asked.entryId) == (read.ledger_id, read.entry_id)
        assert asked.HasField("flag") == (read.fencing_key is not None)
        assert asked.masterKey == (read.fencing_key or b"")
    assert taken
