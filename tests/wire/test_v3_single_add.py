"""A V3 add that comes alone is read as protobuf reads it, or left to protobuf: docs/protocol.md §2."""

from __future__ import annotations

import random
import struct

import pytest

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3
from bkspark.wire.framing import FRAME_BYTES_MAX
from bkspark.wire.single_add import SingleAdd
from bkspark.wire.v3_single_add import decode_single_add

KEY = bytes(range(20))
NUMBERS = (0, 1, 127, 128, 16383, 16384, 1 << 31, (1 << 63) - 1)


def frame_of(txn_id: int, ledger_id: int, entry_id: int, payload: bytes = b"payload", **others: int) -> bytes:
    header = v3.header(protocol.ADD_ENTRY, txn_id, others.pop("priority", 0))
    body = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 9) + payload
    add = protocol.AddRequest(ledgerId=ledger_id, entryId=entry_id, masterKey=KEY, body=body, **others)
    return v3.encode_message(protocol.Request(header=header, addRequest=add))


def decoded(frame: bytes) -> SingleAdd | None:
    return decode_single_add(memoryview(frame), len(frame), FRAME_BYTES_MAX)


def check(frame: bytes, add: SingleAdd) -> None:
    """What was decoded is what protobuf decodes, and its answer what protobuf writes."""
    request = protocol.Request.FromString(frame[4:])
    asked = request.addRequest
    assert (add.ledger_id, add.entry_id, add.master_key) == (asked.ledgerId, asked.entryId, asked.masterKey)
    assert frame[add.entry_at : add.entry_at + add.size] == asked.body
    assert (add.ledger_id, add.entry_id, add.lac) == struct.unpack_from(">qqq", asked.body)
    assert add.is_recovery == (asked.HasField("flag") and asked.flag == protocol.AddRequest.RECOVERY_ADD)
    assert not asked.writeFlags
    assert not asked.bypassJournal
    answer = protocol.Response.FromString(add.acknowledgement(add.ledger_id, add.entry_id)[4:])
    assert (answer.header.txnId, answer.status) == (request.header.txnId, v3.StatusCode.EOK)
    assert (answer.addResponse.ledgerId, answer.addResponse.entryId) == (asked.ledgerId, asked.entryId)


@pytest.mark.parametrize("seed", range(300))
def test_adds_are_read_as_protobuf_reads_them(seed: int) -> None:
    chance = random.Random(seed)
    txn_id, ledger_id, entry_id = (chance.choice([*NUMBERS, chance.getrandbits(chance.randrange(64))]) for _ in "123")
    payload = chance.randbytes(chance.choice([0, 7, 95, 96, 300, 17_000]))
    priority, is_recovery = chance.choice([0, 1, 100]), chance.random() < 0.5
    flags = {"flag": protocol.AddRequest.RECOVERY_ADD} if is_recovery else {}
    frame = frame_of(txn_id, ledger_id, entry_id, payload, priority=priority, **flags)
    add = decoded(frame)
    assert add is not None
    check(frame, add)
    written = protocol.Response(
        header=v3.header(protocol.ADD_ENTRY, txn_id),
        status=0,
        addResponse=protocol.AddResponse(status=0, ledgerId=ledger_id, entryId=entry_id),
    )
    assert add.acknowledgement(ledger_id, entry_id) == v3.encode_message(written)


def test_flag_of_a_recovery_comes_first_as_apaches_client_writes_it() -> None:
    """A frame that Apache's client 4.18 sent, but for the entry."""
    frame = frame_of(0x23, 0, 7, flag=protocol.AddRequest.RECOVERY_ADD, priority=100)
    body = frame[frame.index(KEY) + 20 : -3]
    add = bytes.fromhex("a00601080010071a14") + KEY + body
    head = bytes.fromhex("0a080803100218232064aa06") + bytes((len(add),))
    sent = (len(head) + len(add)).to_bytes(4, "big") + head + add
    assert len(sent) == len(frame)
    found = decoded(sent)
    assert found is not None
    assert found.is_recovery
    check(sent, found)


@pytest.mark.parametrize("seed", range(20))
def test_changed_bytes_are_read_as_protobuf_reads_them_or_not_at_all(seed: int) -> None:
    chance = random.Random(seed)
    found = 0
    for _ in range(500):
        frame = bytearray(frame_of(300, 5, 200, flag=protocol.AddRequest.RECOVERY_ADD))
        for _ in range(chance.randint(1, 3)):
            # Mostly before the entry and after it, where the fields are.
            at = chance.choice([chance.randrange(60), len(frame) - 1 - chance.randrange(4)])
            frame[at] = chance.randrange(256)
        add = decoded(bytes(frame))
        if add is not None:
            found += 1
            check(bytes(frame), add)
    assert found > 10


@pytest.mark.parametrize(
    "frame",
    [
        frame_of(1, 5, 7) + b"\0",
        frame_of(1, 5, 7)[:-1],
        frame_of(1, 5, 7) * 2,
        frame_of(1, 5, 7, writeFlags=1),
        frame_of(1, 5, 7, bypassJournal=1),
        v3.encode_message(protocol.Request(header=v3.header(protocol.READ_ENTRY, 1))),
        frame_of(1, 5, 7).replace(struct.pack(">qq", 5, 7), struct.pack(">qq", 5, 8)),
        b"",
        b"\0\0\0\1\x0a",
    ],
)
def test_everything_else_is_left_to_others(frame: bytes) -> None:
    assert decoded(frame) is None


def test_frames_above_the_limit_are_left_to_the_scan_which_refuses_them() -> None:
    frame = frame_of(1, 5, 7)
    assert decode_single_add(memoryview(frame), len(frame), len(frame) - 5) is None
