"""Frames that Apache's client and bookies sent each other (`python -m tests.interop.capture` made them): ours are the
same, byte for byte, and we read out of them what they say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bkspark.entries import EntryBatch
from bkspark.errors import DigestMismatch
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3, v3_adds, v3_reads
from bkspark.wire.digest import DigestType, EntryDigest, master_key
from bkspark.wire.framing import scan_frames
from bookie_service.network.v2_requests import NO_AUTHENTICATION
from bookie_service.network.v3_responses import response as v3_response
from bookie_service.storage.io.framed_entries import FramedEntries

GOLDEN: dict[str, list[str]] = json.loads((Path(__file__).parent / "golden" / "apache.json").read_text())
KEY = master_key(b"secret")
"""Calls.java's password."""

ANSWERED = ("ADD_ENTRY", "READ_ENTRY", "WRITE_LAC", "READ_LAC", "FORCE_LEDGER", "GET_BOOKIE_INFO")
KINDS = {
    *(f"v2 request {what}" for what in ("1 0", "1 6", "2 0", "2 1", "2 5", "3 AUTH", "7 0")),
    *(f"v2 response {what}" for what in ("1 0", "1 104", "2 0", "2 1", "2 2", "3 AUTH", "7 0")),
    "v3 request AUTH authPluginName,payload",
    "v3 response AUTH EOK",
    *(f"v3 response {name} EOK" for name in (*ANSWERED, "GET_LIST_OF_ENTRIES_OF_LEDGER")),
}
"""What must be among them; also, V3's requests by the fields that they have."""


def frames(beginning: str) -> list[bytes]:
    return [bytes.fromhex(frame) for kind, kept in GOLDEN.items() if kind.startswith(beginning) for frame in kept]


def carrying_data(beginning: str) -> list[bytes]:
    return [frame for frame in frames(beginning) if frame[5] != v2.AUTH]


DATA_REQUESTS, DATA_RESPONSES = carrying_data("v2 request"), carrying_data("v2 response")


def test_every_kind_of_frame_is_among_them() -> None:
    assert set(GOLDEN) >= KINDS
    fields = {
        (kind.split()[2], name)
        for kind in GOLDEN
        if kind.startswith("v3 request")
        for name in kind.split()[3].split(",")
    }
    assert {
        ("ADD_ENTRY", "writeFlags"),
        ("ADD_ENTRY", "flag"),
        ("READ_ENTRY", "masterKey"),
        ("READ_ENTRY", "timeOut"),
        ("WRITE_LAC", "lac"),
        ("READ_LAC", "ledgerId"),
        ("FORCE_LEDGER", "ledgerId"),
        ("GET_LIST_OF_ENTRIES_OF_LEDGER", "ledgerId"),
        ("GET_BOOKIE_INFO", "requested"),
    } <= fields


def is_sealed(entry: bytes, ledger_id: int, entry_id: int) -> bool:
    """Whether some digest with the password fits an entry."""
    for digest in DigestType:
        try:
            EntryDigest(digest, b"secret").open_entry(entry, ledger_id, entry_id)
        except DigestMismatch:
            continue
        return True
    return False


def test_authentication_without_a_plugin_is_answered_as_apaches_bookies_do() -> None:
    """Apache's client shows its token to a bookie that wants none, in V2 and V3."""
    for request, response in zip(frames("v2 request 3"), frames("v2 response 3"), strict=True):
        found = v2.decode_requests(request, scan_frames(request, len(request)))
        assert found.opcodes.tolist() == [v2.AUTH]
        assert protocol.AuthMessage.FromString(request[8:]).authPluginName == "bkspark-token"
        assert v2.encode_auth_reply(NO_AUTHENTICATION.SerializeToString()) == response
    for response in frames("v3 response AUTH"):
        message = v3.decode_response(response[4:])
        request = protocol.Request(header=message.header)
        assert v3_response(request, v3.StatusCode.EOK, authResponse=NO_AUTHENTICATION) == response


@pytest.mark.parametrize("frame", DATA_REQUESTS, ids=lambda frame: frame[4:8].hex())
def test_v2_requests_are_ours(frame: bytes) -> None:
    found = v2.decode_requests(frame, scan_frames(frame, len(frame)))
    ledger_id, entry_id, flags = found.ledger_ids.item(0), found.entry_ids.item(0), found.flags.item(0)
    if found.opcodes.item(0) == v2.ADD:
        entry = frame[8 + len(KEY) :]
        assert is_sealed(entry, ledger_id, entry_id)
        batch = EntryBatch(entry, np.array([0, len(entry)]), ledger_id, entry_id)
        assert v2.encode_stored_adds(batch, KEY, flags)[0] == frame
    elif found.opcodes.item(0) == v2.READ:
        key = KEY if flags & v2.DO_FENCING else None
        assert v2.encode_reads(ledger_id, np.array([entry_id]), flags, key) == frame
    else:
        request_id, count, size = v2.decode_batch_read_limits(frame, found.starts.item(0))
        assert v2.encode_batch_read(ledger_id, entry_id, request_id, count, size) == frame


@pytest.mark.parametrize("frame", DATA_RESPONSES, ids=lambda frame: f"{frame[4:12].hex()}-{len(frame)}")
def test_v2_responses_are_ours(frame: bytes) -> None:
    found = v2.decode_replies(frame, scan_frames(frame, len(frame)))
    status, ledger_id, entry_id = found.statuses.item(0), found.ledger_ids.item(0), found.entry_ids.item(0)
    body = frame[found.body_starts.item(0) : found.body_ends.item(0)]
    if found.opcodes.item(0) == v2.BATCH_READ:
        request_id = found.request_ids.item(0)
        assert v2.encode_batch_reply_head(ledger_id, entry_id, request_id, status, len(body)) + body == frame
    elif body:
        item = len(body).to_bytes(4, "big") + body
        assert is_sealed(body, ledger_id, int.from_bytes(body[8:16], "big"))
        placed = FramedEntries(entry_id, item, np.array([len(item)])).placed(entry_id)
        assert bytes(v2.encode_read_replies(np.array([ledger_id]), placed)) == frame
    else:
        opcode = found.opcodes.item(0)
        assert v2.encode_replies(opcode, status, np.array([ledger_id]), np.array([entry_id])) == frame


@pytest.mark.parametrize("frame", frames("v3 request"), ids=lambda frame: frame[:16].hex())
def test_v3_requests_are_what_our_schema_writes(frame: bytes) -> None:
    """Apache writes fields in the order in which its schema names them, hence `flag`, number 100, before the others."""
    message = v3.decode_request(frame[4:])
    ours = v3.encode_message(message)
    assert sorted(ours) == sorted(frame)
    has_flag = message.addRequest.HasField("flag") or message.readRequest.HasField("flag")
    assert has_flag or ours == frame


@pytest.mark.parametrize("frame", frames("v3 response"), ids=lambda frame: frame[:16].hex())
def test_v3_responses_are_what_our_schema_writes(frame: bytes) -> None:
    assert v3.encode_message(v3.decode_response(frame[4:])) == frame


@pytest.mark.parametrize("frame", frames("v3 request ADD_ENTRY"), ids=lambda frame: frame[:16].hex())
def test_v3_adds_are_read_as_arrays(frame: bytes) -> None:
    adds = v3_adds.decode_adds(np.frombuffer(bytearray(frame), np.uint8), scan_frames(frame, len(frame)), 0)
    assert adds is not None
    assert frame[adds.key_starts.item(0) :][:20] == KEY
    entry = frame[adds.body_starts.item(0) : adds.body_ends.item(0)]
    assert is_sealed(entry, adds.ledger_ids.item(0), adds.entry_ids.item(0))


@pytest.mark.parametrize("frame", frames("v3 request READ_ENTRY entryId,ledgerId"), ids=lambda frame: frame[:16].hex())
def test_v3_reads_are_read_as_arrays_and_ours(frame: bytes) -> None:
    reads = v3_reads.decode_reads(np.frombuffer(frame, np.uint8), scan_frames(frame, len(frame)), 0)
    assert reads is not None
    first = reads.txn_ids.item(0)
    assert v3_reads.encode_reads(reads.ledger_ids.item(0), reads.entry_ids, first, None, reads.priority) == frame


@pytest.mark.parametrize("frame", frames("v3 response ADD_ENTRY"), ids=lambda frame: frame[:16].hex())
def test_v3_answers_of_adds_are_read_as_arrays_and_ours(frame: bytes) -> None:
    found = v3.decode_add_responses(np.frombuffer(frame, np.uint8), scan_frames(frame, len(frame)), 0)
    assert found is not None
    txn_ids = np.array([v3.decode_response(frame[4:]).header.txnId])
    assert v3.encode_add_responses(txn_ids, found.statuses, found.ledger_ids, found.entry_ids) == frame


@pytest.mark.parametrize("frame", frames("v3 response READ_ENTRY EOK"), ids=lambda frame: frame[:16].hex())
def test_v3_answers_of_reads_are_read_as_arrays(frame: bytes) -> None:
    found = v3_reads.decode_read_responses(np.frombuffer(frame, np.uint8), scan_frames(frame, len(frame)), 0)
    assert found is not None
    message = v3.decode_response(frame[4:])
    entry = frame[found.body_starts.item(0) : found.body_ends.item(0)]
    assert (found.txn_ids.item(0), entry) == (message.header.txnId, message.readResponse.body)
