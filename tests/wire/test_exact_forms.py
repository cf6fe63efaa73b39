"""Messages at the exact limits of their forms, and those that differ from them by one part."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError, DecryptionFailed, ProtocolError
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3, v3_adds, v3_reads
from bkspark.wire.adds import AddSealer, WireProtocol
from bkspark.wire.digest import DigestType, EntryDigest
from bkspark.wire.encrypted_entries import (
    KEYS_MAX,
    RECORD_BYTES_MAX,
    RECORD_KEY,
    TAG_BYTES,
    EncryptionRecord,
    EntrySealer,
    KeyRing,
)
from bkspark.wire.flags import AddFlags
from bkspark.wire.framing import count_leading, scan_frames
from bkspark.wire.local_reads import ENTRIES_MAX, LocalRead, decode_reply, encode_found
from bkspark.wire.start_tls import ANSWER_BYTES_MAX, encode_start_tls, is_auth_request, is_refusal, take_answer
from bkspark.wire.status import Status
from bkspark.wire.v3_fields import NotOfTheForm, fields
from bkspark.wire.v3_single_read import decode_single_read

KEY = bytes(range(20))
DIGEST = EntryDigest(DigestType.CRC32C, b"")
PAYLOAD = b"payload"


# ---- START_TLS (docs/protocol.md §2.12) ----


def tls_answer(txn_id: int = 7, status: int = v3.StatusCode.EOK, **message: protocol.StartTLSResponse) -> bytes:
    header = v3.header(protocol.START_TLS, txn_id)
    return v3.encode_message(protocol.Response(header=header, status=status, **message))


STARTED = tls_answer(startTLSResponse=protocol.StartTLSResponse())


def test_answer_to_start_tls_is_taken_when_it_is_complete_and_alone() -> None:
    for end in range(len(STARTED)):
        assert take_answer(STARTED[:end], 7) is None
    assert take_answer(STARTED, 7) is v3.StatusCode.EOK
    assert take_answer(tls_answer(status=v3.StatusCode.EBADREQ), 7) is v3.StatusCode.EBADREQ
    assert is_refusal(tls_answer(status=v3.StatusCode.EBADREQ)[4:])
    assert not is_refusal(STARTED[4:])


@pytest.mark.parametrize(
    ("received", "why"),
    [
        (STARTED + b"x", "bytes in clear after its answer"),
        (tls_answer(8, startTLSResponse=protocol.StartTLSResponse()), "the response to another request"),
        (tls_answer(), "its answer to START_TLS lacks the message"),
        ((ANSWER_BYTES_MAX + 1).to_bytes(4, "big"), f"a frame of {ANSWER_BYTES_MAX + 1} bytes"),
    ],
)
def test_anything_else_than_the_answer_to_start_tls_is_an_error(received: bytes, why: str) -> None:
    """A man in the middle could put it there."""
    with pytest.raises(ProtocolError, match=why):
        take_answer(received, 7)
    assert take_answer(ANSWER_BYTES_MAX.to_bytes(4, "big"), 7) is None


@pytest.mark.parametrize("version", [0, 1, 2])
def test_auth_requests_of_all_versions_are_recognised(version: int) -> None:
    assert is_auth_request(v2.header_word(v2.AUTH, version=version).to_bytes(4, "big"))
    assert not is_auth_request(v2.header_word(v2.ADD, version=version).to_bytes(4, "big"))
    assert not is_auth_request(encode_start_tls(1)[4:])


# ---- encryption ----


def test_a_key_file_has_as_many_keys_as_the_limit() -> None:
    lines = [f"key-{n} {base64.b64encode(n.to_bytes(32, 'big')).decode()}\n".encode() for n in range(KEYS_MAX + 1)]
    assert KeyRing.parse(b"".join(lines[:-1]), "/keys").newest == f"key-{KEYS_MAX - 1}"
    with pytest.raises(ConfigurationError, match=f"has {KEYS_MAX + 1} keys"):
        KeyRing.parse(b"".join(lines), "/keys")


def test_a_record_has_its_version_and_at_most_the_limit_of_bytes() -> None:
    facts = {"version": 1, "cipher": "AES-256-GCM", "keyId": "k", "wrappedKey": base64.b64encode(bytes(40)).decode()}
    longest = json.dumps(facts).encode().ljust(RECORD_BYTES_MAX)
    assert EncryptionRecord.of(5, {RECORD_KEY: longest}) is not None
    for stored in (longest + b" ", json.dumps({**facts, "version": 2}).encode()):
        with pytest.raises(DecryptionFailed, match="a newer version wrote it, or it is damaged"):
            EncryptionRecord.of(5, {RECORD_KEY: stored})


# ---- adds ----


@pytest.mark.parametrize("wire_protocol", WireProtocol)
@pytest.mark.parametrize("is_encrypted", [False, True])
def test_largest_entry_of_a_writer_fits_the_frame_and_one_more_byte_does_not(
    wire_protocol: WireProtocol, is_encrypted: bool
) -> None:
    limit = 1000
    sealer = AddSealer(
        wire_protocol, DIGEST, KEY, v3.TxnIds(), encryption=EntrySealer(5, bytes(32)) if is_encrypted else None
    )
    size = sealer.entry_bytes_max(limit)
    frame = sealer.seal_single(bytes(size), 5, 0, -1, 0).buffer
    assert len(frame) - 4 <= limit
    if wire_protocol is WireProtocol.V2:
        assert len(frame) - 4 == limit
    plain = AddSealer(wire_protocol, DIGEST, KEY, v3.TxnIds()).entry_bytes_max(limit)
    assert size == plain - TAG_BYTES * is_encrypted


def test_sealer_knows_the_lac_of_its_newest_frame() -> None:
    """An explicit LAC is sent only if no add has carried it (docs/protocol.md §5.10)."""
    sealer = AddSealer(WireProtocol.V2, DIGEST, KEY, v3.TxnIds())
    assert sealer.lac == -1
    sealer.seal_single(PAYLOAD, 5, 8, 7, 0)
    assert sealer.lac == 7
    sealer.seal(EntryBatch.of([PAYLOAD], 5, 9), 8, 0)
    assert sealer.lac == 8


@pytest.mark.parametrize("is_recovery", [False, True])
def test_flags_of_adds_are_those_of_their_writer(is_recovery: bool) -> None:
    flags = AddFlags(is_recovery=is_recovery, is_urgent=True)
    frame = AddSealer(WireProtocol.V2, DIGEST, KEY, v3.TxnIds(), flags).seal_single(PAYLOAD, 5, 0, -1, 0).buffer
    expected = v2.HIGH_PRIORITY | (v2.RECOVERY_ADD if is_recovery else 0)
    assert int.from_bytes(frame[4:8], "big") & 0xFFFF == expected
    flags = AddFlags(is_deferred=True, bypasses_journal=is_recovery)
    frame = AddSealer(WireProtocol.V2, DIGEST, KEY, v3.TxnIds(), flags).seal_single(PAYLOAD, 5, 0, -1, 0).buffer
    add = v3.decode_request(bytes(frame[4:])).addRequest
    assert (add.writeFlags, add.bypassJournal) == (v3.DEFERRED_SYNC, is_recovery)


def add_frame(entry_id: int, size: int = 7, flags: AddFlags = AddFlags()) -> bytes:
    sealer = AddSealer(WireProtocol.V3, DIGEST, KEY, v3.TxnIds(), flags)
    return bytes(sealer.seal_single(bytes(size), 5, entry_id, -1, 0).buffer)


def decoded_adds(frames: bytes, first: int = 0) -> v3_adds.AddRequests | None:
    return v3_adds.decode_adds(np.frombuffer(frames, np.uint8), scan_frames(frames, len(frames)), first)


@pytest.mark.parametrize("sizes", [(7,) * 6, (7, 8, 9, 7, 8, 9)], ids=["of one size", "of several sizes"])
def test_adds_whose_flag_comes_first_are_each_found(sizes: tuple[int, ...]) -> None:
    """As Apache's clients write them."""
    flag, frames = b"\xa0\x06\x01", b""
    for entry_id, size in enumerate(sizes):
        frame = add_frame(entry_id, size, AddFlags(is_recovery=True))
        assert frame.endswith(flag)
        at = frame.index(b"\xaa\x06") + 3
        frames += frame[:at] + flag + frame[at : -len(flag)]
    ids: list[int] = []
    while len(ids) < len(sizes):
        found = decoded_adds(frames, len(ids))
        assert found is not None
        assert found.is_recovery
        assert len(found)
        ids += found.entry_ids.tolist()
    assert ids == list(range(len(sizes)))


@pytest.mark.parametrize("entry_bytes", [0, 200], ids=["entries that fit", "longer entries"])
@pytest.mark.parametrize("change", [1, -1])
def test_add_whose_lengths_are_wrong_ends_the_run_before_it(entry_bytes: int, change: int) -> None:
    whole, broken = add_frame(0, 7), bytearray(add_frame(1, 8 + entry_bytes))
    add_at = broken.index(b"\xaa\x06") + 2
    body_at = broken.index(b"\x1a\x14" + KEY + b"\x22") + 23
    for at in (add_at, body_at):
        wrong = bytearray(broken)
        wrong[at] += change
        found = decoded_adds(whole + bytes(wrong) + add_frame(2, 9))
        assert found is not None
        assert found.entry_ids.tolist() == [0]


@pytest.mark.parametrize(
    "length", [b"\xff" * 9 + b"\x01", b"\x80" * 10, b"\xff\xff\x7f"], ids=["below 0", "endless", "far"]
)
def test_add_whose_length_is_unreadable_ends_the_run_before_it(length: bytes) -> None:
    body = add_frame(1, 8)[4:]
    at = body.index(b"\x1a\x14" + KEY + b"\x22") + 23
    body = body[:at] + length + body[at + 1 :]
    add_at = body.index(b"\xaa\x06") + 2
    body = body[:add_at] + bytes((body[add_at] + len(length) - 1,)) + body[add_at + 1 :]
    found = decoded_adds(add_frame(0, 7) + len(body).to_bytes(4, "big") + body + add_frame(2, 9))
    assert found is not None
    assert found.entry_ids.tolist() == [0]


def test_add_with_an_unknown_flag_or_a_field_twice_is_left_to_protobufs_classes() -> None:
    frame = add_frame(0, 7, AddFlags(is_recovery=True))
    assert decoded_adds(frame) is not None
    assert decoded_adds(frame[:-1] + b"\x02") is None
    with pytest.raises(NotOfTheForm):
        fields(b"\x08\x01\x08\x02", 0, 4)
    assert {number: each.number for number, each in fields(b"\x08\x01\x10\x02", 0, 4).items()} == {1: 1, 2: 2}


# ---- reads ----


def test_key_fences_nothing_without_the_flag_and_the_flag_nothing_without_the_key() -> None:
    """Such reads are left to protobuf's classes: a plain read must not fence (docs/protocol.md §2.7)."""
    header, fence = v3.header(protocol.READ_ENTRY, 3), protocol.ReadRequest.FENCE_LEDGER
    whole = protocol.ReadRequest(ledgerId=5, entryId=6, masterKey=KEY, flag=fence)
    found = decode_single_read(protocol.Request(header=header, readRequest=whole).SerializeToString())
    assert found is not None
    assert found.fencing_key == KEY
    for half in (
        protocol.ReadRequest(ledgerId=5, entryId=6, masterKey=KEY),
        protocol.ReadRequest(ledgerId=5, entryId=6, flag=fence),
    ):
        body = protocol.Request(header=header, readRequest=half).SerializeToString()
        assert decode_single_read(body) is None
        frame = v3.encode_message(protocol.Request(header=header, readRequest=half))
        assert v3_reads.decode_reads(np.frombuffer(frame, np.uint8), scan_frames(frame, len(frame)), 0) is None


def read_answers(*entries: bytes, status: int = 0) -> bytes:
    return b"".join(
        v3.encode_message(
            protocol.Response(
                header=v3.header(protocol.READ_ENTRY, number),
                status=0,
                readResponse=protocol.ReadResponse(status=status, ledgerId=5, entryId=number, body=entry),
            )
        )
        for number, entry in enumerate(entries)
    )


def decoded(frames: bytes) -> v3_reads.ReadResponses | None:
    return v3_reads.decode_read_responses(np.frombuffer(frames, np.uint8), scan_frames(frames, len(frames)), 0)


@pytest.mark.parametrize("entries", [(b"a", b"b"), (b"a", b"longer")], ids=["of one size", "of two sizes"])
def test_answer_whose_inner_lengths_are_wrong_is_not_of_the_form(entries: tuple[bytes, bytes]) -> None:
    frames = read_answers(*entries)
    assert decoded(frames) is not None
    for at in (5, frames.index(b"\xa2\x06") + 2):
        for change in (1, -1):
            broken = bytearray(frames)
            broken[at] += change
            assert decoded(bytes(broken)) is None


def test_answer_with_a_status_beyond_any_number_is_not_of_the_form() -> None:
    """A hostile bookie's status must not be more than an array of numbers takes."""
    frames = read_answers(b"a", b"b")
    status = b"\xff" * 9 + b"\x01"
    broken = b""
    for body in (frames[4 : len(frames) // 2], frames[len(frames) // 2 + 4 :]):
        at = body.index(b"\xa2\x06")
        read = b"\x08" + status + body[at + 5 :]
        body = body[:at] + b"\xa2\x06" + bytes((len(read),)) + read
        broken += len(body).to_bytes(4, "big") + body
    found = decoded(broken)
    assert found is None or (found.statuses == -1).all()


# ---- frames and local reads ----


def test_empty_frame_begins_with_no_byte() -> None:
    """The next frame's length could be taken for it."""
    octets = np.frombuffer(bytes(4) + b"\0\0\0\1\0", np.uint8)
    table = scan_frames(octets.data, len(octets))
    assert len(table) == 2
    assert count_leading(octets, table, 0) == 0
    assert count_leading(octets, table.take(slice(1, 2)), 0) == 1


def test_local_read_is_of_at_most_the_limit_of_entries() -> None:
    read = LocalRead("b", bytes(4), 5, 0, ENTRIES_MAX, 1)
    assert LocalRead.decode(read.encode()) == read
    for wrong in (LocalRead("b", bytes(4), 5, 0, ENTRIES_MAX + 1, 1), LocalRead("b", bytes(4), 5, 0, 1, 0)):
        with pytest.raises(ProtocolError, match="a local read of"):
            LocalRead.decode(wrong.encode())


def test_offset_in_a_local_answer_is_below_its_limit() -> None:
    last = np.array([(1 << 56) - 1])
    found = decode_reply(encode_found(last))
    assert found is not None
    assert found.tolist() == last.tolist()
    with pytest.raises(ProtocolError, match="offset 72057594037927936"):
        decode_reply(encode_found(last + 1))


def test_state_that_a_v2_peer_does_not_know_is_as_uncertain_to_it_as_eio() -> None:
    """It must not pass for a negative answer, from which a recovery would conclude that an entry is not there."""
    assert v2.code_of(Status.EUNKNOWNLEDGERSTATE) == Status.EIO
    for status in (Status.EOK, Status.ENOENTRY, Status.ENOLEDGER, Status.EFENCED, Status.EUA):
        assert v2.code_of(status) == status
