"""READ_LAC as arrays against protobuf's classes."""

from __future__ import annotations

import numpy as np
import pytest

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3, v3_lacs
from bkspark.wire.framing import scan_frames


def request(txn_id: int, ledger_id: int, priority: int = 0) -> protocol.Request:
    message = protocol.ReadLacRequest(ledgerId=ledger_id)
    return protocol.Request(header=v3.header(protocol.READ_LAC, txn_id, priority), readLacRequest=message)


def decoded(data: bytes) -> list[tuple[int, int]]:
    """Return (txnId, ledger) of each request, as far as the frames are of the form."""
    octets, table = np.frombuffer(data, np.uint8), scan_frames(data, len(data))
    found: list[tuple[int, int]] = []
    while len(found) < len(table):
        run = v3_lacs.decode_lac_reads(octets, table, len(found))
        if run is None:
            break
        assert len(run)
        found += zip(run.txn_ids.tolist(), run.ledger_ids.tolist())
    return found


@pytest.mark.parametrize("seed", range(4))
def test_requests_are_read_as_protobuf_reads_them(seed: int) -> None:
    random = np.random.default_rng(seed)
    asked = [(int(random.integers(1 << random.integers(1, 62))), int(random.integers(-5, 1 << 62))) for _ in range(200)]
    data = b"".join(v3.encode_message(request(txn_id, ledger_id, 100 * (seed % 2))) for txn_id, ledger_id in asked)
    assert decoded(data) == asked


def test_requests_of_one_layout_are_one_run() -> None:
    data = b"".join(v3.encode_message(request(i, 1000 + i)) for i in range(128, 1128))
    table = scan_frames(data, len(data))
    run = v3_lacs.decode_lac_reads(np.frombuffer(data, np.uint8), table, 0)
    assert run is not None
    assert len(run) == 1000


@pytest.mark.parametrize(
    "message",
    [
        protocol.Request(
            header=v3.header(protocol.READ_ENTRY, 1), readRequest=protocol.ReadRequest(ledgerId=7, entryId=7)
        ),
        protocol.Request(header=v3.header(protocol.READ_LAC, 1)),
        protocol.Request(
            header=v3.header(protocol.READ_LAC, 1), forceLedgerRequest=protocol.ForceLedgerRequest(ledgerId=7)
        ),
    ],
)
def test_other_frames_are_left_to_protobuf(message: protocol.Request) -> None:
    assert decoded(v3.encode_message(message)) == []


def test_frames_cut_anywhere_are_left_to_protobuf_or_read_alike() -> None:
    whole = request(300, 1 << 40).SerializeToString()
    for end in range(len(whole)):
        frame = end.to_bytes(4, "big") + whole[:end]
        assert decoded(frame) == []


@pytest.mark.parametrize("seed", range(3))
def test_failures_are_written_as_protobuf_does(seed: int) -> None:
    random = np.random.default_rng(seed)
    txn_ids = random.integers(0, 1 << 40, 60)
    ledger_ids = random.integers(-3, 1 << 62, 60)
    data = v3_lacs.encode_lac_failures(txn_ids, v3.StatusCode.ENOENTRY, ledger_ids)
    expected = b""
    for txn_id, ledger_id in zip(txn_ids.tolist(), ledger_ids.tolist()):
        answer = protocol.ReadLacResponse(status=v3.StatusCode.ENOENTRY, ledgerId=ledger_id)
        header = v3.header(protocol.READ_LAC, txn_id)
        expected += v3.encode_message(
            protocol.Response(header=header, status=v3.StatusCode.ENOENTRY, readLacResponse=answer)
        )
    assert data == expected


def test_an_answer_has_what_is_known() -> None:
    for packet, entry in ((b"", b"entry"), (b"packet", b"entry"), (b"packet", None)):
        body = v3_lacs.encode_lac(-1, 7, packet, entry)[4:]
        response = v3.decode_response(body)
        found = response.readLacResponse
        assert (response.status, response.header.txnId, found.status, found.ledgerId) == (0, (1 << 64) - 1, 0, 7)
        assert (found.lacBody, found.lastEntryBody) == (packet, entry or b"")
        assert found.HasField("lastEntryBody") == (entry is not None)
