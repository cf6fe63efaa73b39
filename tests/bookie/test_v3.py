"""V3 at the bookie, over a socket (docs/protocol.md §2)."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3, v3_reads
from bkspark.wire.v3 import StatusCode
from bookie_service.engine.bookie_environment import BookieOptions
from bookie_service.engine.disk_watch import DiskOptions
from tests.bookie.serving import KEY, Peer, Serving, adds, service_options, stored
from tests.bookie.v3_peer import FENCE, RECOVERY, V3Peer, add_frames, request
from tests.crash.twins import lac_packet

LEDGER = 5


@pytest.fixture(scope="module")
def shared_serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(service_options(tmp_path_factory.mktemp("bookie"))) as serving:
        yield serving


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with Serving(service_options(tmp_path)) as serving:
        yield serving


@pytest.fixture
def peer(serving: Serving) -> Iterator[V3Peer]:
    with V3Peer(serving.port) as peer:
        yield peer


# ---- adds ----


def test_adds_are_stored_verbatim_and_read_in_both_protocols(serving: Serving, peer: V3Peer) -> None:
    payloads = [random.Random(i).randbytes(i * 7 % 400) for i in range(300)]
    assert peer.add_all(LEDGER, 0, payloads) == [StatusCode.EOK] * 300
    with serving.connect() as other:
        for entry_id in (0, 7, 299):
            assert other.read(LEDGER, entry_id).body == stored(LEDGER, entry_id, payloads[entry_id])
            assert peer.read_entry(LEDGER, entry_id).body == stored(LEDGER, entry_id, payloads[entry_id])


def test_adds_and_reads_of_one_buffer_are_all_answered(peer: V3Peer) -> None:
    frames = []
    for i in range(200):
        frames.append(add_frames(LEDGER + i % 3, i // 3, [bytes(i % 5 * 50)], 2 * i))
        read = request(protocol.READ_ENTRY, 2 * i + 1, ledgerId=LEDGER + i % 3, entryId=i // 3)
        frames.append(v3.encode_message(read))
    peer.send(b"".join(frames))
    answers = {answer.header.txnId: answer for answer in (peer.answer() for _ in range(400))}
    assert sorted(answers) == list(range(400))
    for i in range(200):
        assert answers[2 * i].status == StatusCode.EOK
        assert answers[2 * i + 1].readResponse.body == stored(LEDGER + i % 3, i // 3, bytes(i % 5 * 50))


def test_many_pipelined_adds_of_one_size_survive_a_crash(tmp_path: Path) -> None:
    with Serving(service_options(tmp_path)) as serving:
        with V3Peer(serving.port) as peer:
            assert set(peer.add_all(LEDGER, 0, [bytes(1000)] * 3000)) == {StatusCode.EOK}
        serving.abandon()
    with Serving(service_options(tmp_path)) as serving, V3Peer(serving.port) as peer:
        for entry_id in (0, 1500, 2999):
            assert peer.read_entry(LEDGER, entry_id).body == stored(LEDGER, entry_id, bytes(1000))


def test_wrong_master_key_is_unauthorized(peer: V3Peer) -> None:
    assert peer.add_all(LEDGER, 0, [b"a"]) == [StatusCode.EOK]
    assert peer.add_all(LEDGER, 1, [b"b"], masterKey=b"o" * 20) == [StatusCode.EUA]
    assert peer.add_all(LEDGER, 1, [b"b"], masterKey=b"short") == [StatusCode.EUA]
    assert peer.read_entry(LEDGER, 1).status == StatusCode.ENOENTRY


def test_trap_14_recovery_adds_pass_on_a_fenced_ledger_and_others_do_not(peer: V3Peer) -> None:
    assert peer.add_all(LEDGER, 0, [b"a"]) == [StatusCode.EOK]
    assert peer.read_entry(LEDGER, 0, flag=FENCE, masterKey=KEY).status == StatusCode.EOK
    assert peer.add_all(LEDGER, 1, [b"b"]) == [StatusCode.EFENCED]
    assert peer.add_all(LEDGER, 1, [b"b"], flag=RECOVERY) == [StatusCode.EOK]
    # The flag is ignored with it: what recovery adds is durable when it is answered.
    assert peer.add_all(LEDGER, 2, [b"c"], flag=RECOVERY, writeFlags=v3.DEFERRED_SYNC) == [StatusCode.EOK]


@pytest.mark.parametrize("writes", [{"body": b"x" * 15}, {"entryId": 9}, {"body": stored(LEDGER + 1, 0, b"a")}])
def test_add_that_could_not_be_read_back_is_a_bad_request(peer: V3Peer, writes: dict[str, object]) -> None:
    """Shorter than its ids, or with other ids than its request: it would be acknowledged and not found."""
    assert peer.add_all(LEDGER, 0, [b"a"], **writes) == [StatusCode.EBADREQ]
    assert peer.read_entry(LEDGER, 0).status == StatusCode.ENOLEDGER


@pytest.mark.parametrize("wrong", [1, 3])
def test_add_with_other_ids_than_its_entry_is_refused_also_if_a_short_one_comes_with_it(
    peer: V3Peer, wrong: int
) -> None:
    """A short entry has no ids to compare, and the ids of the others were not compared either."""
    bodies = [stored(LEDGER, entry_id, b"x") for entry_id in range(8)]
    bodies[wrong], bodies[6] = stored(LEDGER + 1, wrong, b"x"), b"short"
    adds = [
        request(protocol.ADD_ENTRY, 50 + entry_id, ledgerId=LEDGER, entryId=entry_id, masterKey=KEY, body=body)
        for entry_id, body in enumerate(bodies)
    ]
    peer.send(b"".join(map(v3.encode_message, adds)))
    statuses = {response.header.txnId - 50: response.status for response in (peer.answer() for _ in adds)}
    bad = {entry_id for entry_id, status in statuses.items() if status == StatusCode.EBADREQ}
    assert bad == {wrong, 6}
    assert peer.read_entry(LEDGER + 1, wrong).status == StatusCode.ENOLEDGER


def test_add_whose_fields_are_in_another_order_is_accepted(peer: V3Peer) -> None:
    made = request(protocol.ADD_ENTRY, 7, ledgerId=LEDGER, entryId=0, masterKey=KEY, body=stored(LEDGER, 0, b"a"))
    head, add = made.header.SerializeToString(), made.addRequest.SerializeToString()
    body = b"\x0a" + bytes([len(head)]) + head + b"\xaa\x06" + bytes([len(add) + 2]) + b"\x28\x00" + add
    peer.send(struct.pack(">i", len(body)) + body)
    assert (peer.answer().header.txnId, peer.read_entry(LEDGER, 0).body) == (7, stored(LEDGER, 0, b"a"))


def test_txn_ids_of_all_64_bits_are_repeated(peer: V3Peer) -> None:
    for txn_id in (0, (1 << 63) - 1, 1 << 63, (1 << 64) - 1):
        peer.send(add_frames(LEDGER, 0, [b"a"], txn_id))
        assert peer.answer().header.txnId == txn_id
        for message in ({"entryId": 0}, {"entryId": 0, "flag": FENCE, "masterKey": KEY}):
            read = request(protocol.READ_ENTRY, txn_id, ledgerId=LEDGER, **message)
            peer.send(v3.encode_message(read))
            assert peer.answer().header.txnId == txn_id


def test_deferred_adds_are_answered_and_durable_after_a_force(tmp_path: Path) -> None:
    with Serving(service_options(tmp_path)) as serving:
        with V3Peer(serving.port) as peer:
            for first in range(0, 100, 10):
                deferred = peer.add_all(LEDGER, first, [b"%d" % i for i in range(first, first + 10)], writeFlags=1)
                assert deferred == [StatusCode.EOK] * 10
            forced = peer.call(protocol.FORCE_LEDGER, ledgerId=LEDGER)
            assert (forced.status, forced.ledgerId) == (StatusCode.EOK, LEDGER)
        serving.abandon()
    with Serving(service_options(tmp_path)) as serving, V3Peer(serving.port) as peer:
        assert [peer.read_entry(LEDGER, i).body for i in (0, 99)] == [stored(LEDGER, i, b"%d" % i) for i in (0, 99)]


def test_force_of_an_unknown_ledger_is_answered(peer: V3Peer) -> None:
    assert peer.call(protocol.FORCE_LEDGER, ledgerId=1 << 40).status == StatusCode.EOK


# ---- reads ----


def test_trap_7_last_entry_read_repeats_minus_one(peer: V3Peer) -> None:
    peer.add_all(LEDGER, 0, [b"a", b"b"])
    read = peer.read_entry(LEDGER, -1)
    assert (read.status, read.entryId, read.body) == (StatusCode.EOK, -1, stored(LEDGER, 1, b"b"))


def test_plain_reads_tell_the_lac_that_the_bookie_knows_and_fencing_ones_do_not(peer: V3Peer) -> None:
    entries = [struct.pack(">qqqq", LEDGER, i, max(-1, i - 2), 0) for i in range(10)]
    for i, entry in enumerate(entries):
        assert (
            peer.call(protocol.ADD_ENTRY, ledgerId=LEDGER, entryId=i, masterKey=KEY, body=entry).status
            == StatusCode.EOK
        )
    assert peer.read_entry(LEDGER, 0).maxLAC == 7
    written = peer.call(protocol.WRITE_LAC, ledgerId=LEDGER, lac=9, masterKey=KEY, body=lac_packet(LEDGER, 9))
    assert written.status == StatusCode.EOK
    assert peer.read_entry(LEDGER, 3).maxLAC == 9
    fencing = peer.read_entry(LEDGER, 3, flag=FENCE, masterKey=KEY)
    assert (fencing.body, fencing.HasField("maxLAC")) == (entries[3], False)


def test_what_is_missing_has_its_status(peer: V3Peer) -> None:
    peer.add_all(LEDGER, 0, [b"a"])
    unknown, missing = peer.read_entry(LEDGER + 1, 3), peer.read_entry(LEDGER, 3)
    assert (unknown.status, unknown.ledgerId, unknown.entryId) == (StatusCode.ENOLEDGER, LEDGER + 1, 3)
    assert (missing.status, missing.ledgerId, missing.entryId) == (StatusCode.ENOENTRY, LEDGER, 3)
    for read in (unknown, missing):
        assert not read.HasField("body")
        assert not read.HasField("maxLAC")


def test_fencing_read_needs_the_master_key(peer: V3Peer) -> None:
    peer.add_all(LEDGER, 0, [b"a"])
    for key in ({}, {"masterKey": b""}, {"masterKey": b"o" * 20}):
        assert peer.read_entry(LEDGER, 0, flag=FENCE, **key).status == StatusCode.EUA
    assert peer.add_all(LEDGER, 1, [b"b"]) == [StatusCode.EOK]


def test_fencing_reads_that_come_together_are_distinguished_by_ledger_and_key(peer: V3Peer) -> None:
    for ledger_id in (5, 6, 7):
        peer.add_all(ledger_id, 0, [b"a", b"b", b"c", b"d"])
    other = b"o" * 20
    requests = [(5, [0, 1], KEY), (5, [2], other), (5, [3, -1], KEY), (6, [0, 9], other), (7, [1, 9, 0], KEY)]
    expected, frames, txn_id = {}, [], 1000
    for ledger_id, ids, key in requests:
        frames.append(v3_reads.encode_reads(ledger_id, np.array(ids), txn_id, key))
        for entry_id in ids:
            held = b"" if entry_id == 9 or key != KEY else stored(ledger_id, entry_id % 4, b"abcd"[entry_id % 4 :][:1])
            expected[txn_id] = (StatusCode.EUA if key != KEY else StatusCode.EOK if held else StatusCode.ENOENTRY, held)
            txn_id += 1
    peer.send(b"".join(frames))
    responses = [peer.answer() for _ in expected]
    found = {it.header.txnId: (it.readResponse.status, it.readResponse.body) for it in responses}
    assert found == expected
    assert not any(response.readResponse.HasField("maxLAC") for response in responses)
    late = [peer.add_all(ledger_id, 4, [b"late"]) for ledger_id in (5, 6, 7)]
    assert late == [[StatusCode.EFENCED], [StatusCode.EOK], [StatusCode.EFENCED]]


def test_trap_13_fence_of_an_unknown_ledger_creates_it_fenced(peer: V3Peer) -> None:
    assert peer.read_entry(LEDGER, -1, flag=FENCE, masterKey=KEY).status == StatusCode.ENOENTRY
    assert peer.add_all(LEDGER, 0, [b"a"]) == [StatusCode.EFENCED]


def test_trap_4_limbo_is_its_own_status_in_v3_and_an_io_error_in_v2(tmp_path: Path) -> None:
    options = service_options(tmp_path, bookie=BookieOptions(journals_entries=False))
    with Serving(options) as serving:
        with V3Peer(serving.port) as peer:
            peer.add_all(LEDGER, 0, [b"a"])
        serving.abandon()
    with Serving(options, suspects=[LEDGER]) as serving, V3Peer(serving.port) as peer, serving.connect() as other:
        assert peer.read_entry(LEDGER, 0).status == StatusCode.EUNKNOWNLEDGERSTATE
        assert peer.call(protocol.READ_LAC, ledgerId=LEDGER).status == StatusCode.EUNKNOWNLEDGERSTATE
        assert other.read(LEDGER, 0).status == v2.Status.EIO


# ---- LACs ----


def test_trap_5_read_lac_tells_what_there_is_and_no_entry_where_there_is_nothing(peer: V3Peer) -> None:
    assert peer.call(protocol.READ_LAC, ledgerId=LEDGER).status == StatusCode.ENOENTRY
    write = {"ledgerId": LEDGER, "lac": 3, "masterKey": KEY, "body": lac_packet(LEDGER, 3)}
    assert peer.call(protocol.WRITE_LAC, **write).status == StatusCode.EOK
    read = peer.call(protocol.READ_LAC, ledgerId=LEDGER)
    assert (read.status, read.lacBody, read.HasField("lastEntryBody")) == (StatusCode.EOK, lac_packet(LEDGER, 3), False)
    peer.add_all(LEDGER, 4, [b"a"])
    read = peer.call(protocol.READ_LAC, ledgerId=LEDGER)
    assert (read.lacBody, read.lastEntryBody) == (lac_packet(LEDGER, 3), stored(LEDGER, 4, b"a"))


def test_lac_is_refused_for_its_own_reasons(peer: V3Peer) -> None:
    peer.add_all(LEDGER, 0, [b"a"])
    write = {"ledgerId": LEDGER, "lac": 3, "masterKey": KEY, "body": lac_packet(LEDGER, 3)}
    assert peer.call(protocol.WRITE_LAC, **{**write, "masterKey": b"o" * 20}).status == StatusCode.EUA
    assert peer.call(protocol.WRITE_LAC, **{**write, "body": b"short"}).status == StatusCode.EBADREQ
    assert peer.call(protocol.READ_LAC, ledgerId=LEDGER).lacBody == b""


@pytest.mark.parametrize("key", [b"", b"k" * 3, b"k" * 1000])
def test_lac_of_an_unknown_ledger_needs_a_whole_master_key_and_the_bookie_starts_again(
    tmp_path: Path, key: bytes
) -> None:
    with Serving(service_options(tmp_path)) as serving:
        with V3Peer(serving.port) as peer:
            write = {"ledgerId": LEDGER, "lac": 3, "body": lac_packet(LEDGER, 3)}
            assert peer.call(protocol.WRITE_LAC, **write, masterKey=key).status == StatusCode.EUA
            assert peer.call(protocol.WRITE_LAC, **write, masterKey=KEY).status == StatusCode.EOK
        serving.abandon()
    with Serving(service_options(tmp_path)) as serving, V3Peer(serving.port) as peer:
        assert peer.call(protocol.READ_LAC, ledgerId=LEDGER).lacBody == lac_packet(LEDGER, 3)


# ---- the bookie itself ----


def test_bookie_tells_the_space_it_is_asked_for(tmp_path: Path, peer: V3Peer) -> None:
    disk = os.statvfs(tmp_path)
    both = peer.call(protocol.GET_BOOKIE_INFO, requested=3)
    assert both.totalDiskCapacity == disk.f_blocks * disk.f_frsize
    assert 0 < both.freeDiskSpace <= both.totalDiskCapacity
    total = peer.call(protocol.GET_BOOKIE_INFO, requested=1)
    assert (total.HasField("totalDiskCapacity"), total.HasField("freeDiskSpace")) == (True, False)
    nothing = peer.call(protocol.GET_BOOKIE_INFO)
    assert (nothing.status, nothing.HasField("totalDiskCapacity")) == (StatusCode.EOK, False)


def test_read_only_bookie_takes_high_priority_recovery_adds_alone(tmp_path: Path) -> None:
    options = service_options(tmp_path, disks=DiskOptions(is_forced_read_only=True))
    with Serving(options) as serving, V3Peer(serving.port) as peer:
        assert peer.add_all(LEDGER, 0, [b"a"]) == [StatusCode.EREADONLY]
        assert peer.add_all(LEDGER, 0, [b"a"], flag=RECOVERY) == [StatusCode.EREADONLY]
        assert peer.add_all(LEDGER, 0, [b"a"], flag=RECOVERY, priority=1) == [StatusCode.EOK]
        write = {"ledgerId": LEDGER, "lac": 3, "masterKey": KEY, "body": lac_packet(LEDGER, 3)}
        assert peer.call(protocol.WRITE_LAC, priority=100, **write).status == StatusCode.EREADONLY
        assert peer.read_entry(LEDGER, 0).body == stored(LEDGER, 0, b"a")


# ---- one port for both ----


def test_auth_is_answered_with_the_disabled_plugin(peer: V3Peer) -> None:
    message = protocol.AuthMessage(authPluginName="sasl", payload=b"token")
    peer.send(v3.encode_message(protocol.Request(header=v3.header(protocol.AUTH, 3), authRequest=message)))
    response = peer.answer()
    assert (response.status, response.authResponse.authPluginName) == (StatusCode.EOK, "AuthDisabledPlugin")


def test_trap_8_start_tls_is_refused_and_the_connection_may_go_on_in_v2(serving: Serving, peer: V3Peer) -> None:
    """Item 2 of the conformance checklist: V3, then V2 after START_TLS, even in one buffer; never back."""
    start_tls = protocol.Request(header=v3.header(protocol.START_TLS, 9), startTLSRequest=protocol.StartTLSRequest())
    peer.send(v3.encode_message(start_tls) + adds(LEDGER, 0, [b"a"]))
    response = peer.answer()
    assert (response.header.operation, response.header.txnId, response.status) == (
        protocol.START_TLS,
        9,
        StatusCode.EBADREQ,
    )
    assert peer.reply().status == v2.Status.EOK
    assert peer.read(LEDGER, 0).body == stored(LEDGER, 0, b"a")
    peer.ask(protocol.READ_ENTRY, ledgerId=LEDGER, entryId=0)
    assert peer.frame() is None


def test_item_2_v2_and_v3_are_distinguished_by_the_first_byte_of_each_connection(shared_serving: Serving) -> None:
    with V3Peer(shared_serving.port) as peer, shared_serving.connect() as other:
        assert peer.add_all(70, 0, [b"a"]) == [StatusCode.EOK]
        assert other.add(70, 1, [b"b"]) == [v2.Status.EOK]
        assert peer.read_entry(70, 1).body == other.read(70, 1).body == stored(70, 1, b"b")


def test_version_that_is_not_three_is_refused_in_the_operations_own_message(shared_serving: Serving) -> None:
    with V3Peer(shared_serving.port) as peer:
        for operation, message in (
            (protocol.READ_ENTRY, {"ledgerId": 1, "entryId": 2}),
            (protocol.ADD_ENTRY, {"ledgerId": 1, "entryId": 2, "masterKey": KEY, "body": bytes(40)}),
            (protocol.READ_LAC, {"ledgerId": 1}),
            (protocol.FORCE_LEDGER, {"ledgerId": 1}),
            (protocol.GET_BOOKIE_INFO, {"requested": 3}),
        ):
            made = request(operation, 4, **message)
            made.header.version = protocol.VERSION_TWO
            peer.send(v3.encode_message(made))
            response = peer.answer()
            assert response.status == StatusCode.EBADVERSION
            assert response.header.operation == operation


@pytest.mark.parametrize(
    "operation",
    [
        protocol.READ_ENTRY,
        protocol.ADD_ENTRY,
        protocol.RANGE_READ_ENTRY,
        protocol.RANGE_ADD_ENTRY,
        protocol.WRITE_LAC,
        protocol.READ_LAC,
        protocol.GET_BOOKIE_INFO,
        protocol.FORCE_LEDGER,
        protocol.GET_LIST_OF_ENTRIES_OF_LEDGER,
        protocol.BATCH_READ_ENTRY,
    ],
)
def test_operation_that_is_not_served_or_has_no_message_is_a_bad_request(
    shared_serving: Serving, operation: int
) -> None:
    with V3Peer(shared_serving.port) as peer:
        peer.send(v3.encode_message(protocol.Request(header=v3.header(operation, 6))))
        response = peer.answer()
        assert (response.header.operation, response.header.txnId) == (operation, 6)
        assert response.status == StatusCode.EBADREQ
        assert peer.add_all(71, 0, [b"a"]) == [StatusCode.EOK]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\x0a\xff\xff\xff\xff\xff", id="no message"),
        pytest.param(b"\x0a\x06\x08\x03\x10\x63\x18\x01", id="unknown operation"),
        pytest.param(b"\x0a\x06\x08\x09\x10\x01\x18\x01", id="unknown version"),
        pytest.param(b"\x0a\x04\x08\x03\x10\x01", id="no txnId"),
        pytest.param(b"\x0a\x00", id="empty header"),
        pytest.param(b"\x0a", id="half a header"),
    ],
)
def test_frame_that_is_not_a_request_closes_the_connection(shared_serving: Serving, body: bytes) -> None:
    with V3Peer(shared_serving.port) as peer:
        peer.send(struct.pack(">i", len(body)) + body)
        assert peer.frame() is None


def test_frame_above_the_limit_closes_the_connection_and_one_just_below_is_taken(shared_serving: Serving) -> None:
    with V3Peer(shared_serving.port) as peer:
        payload = bytes(5 * 1024 * 1024 - 200)
        assert peer.add_all(72, 0, [payload]) == [StatusCode.EOK]
        assert peer.read_entry(72, 0).body == stored(72, 0, payload)
        peer.send(struct.pack(">i", 6 << 20) + b"\x0a")
        assert peer.frame() is None


def test_damaged_requests_never_hurt_other_connections(shared_serving: Serving) -> None:
    choice = random.Random(7)
    messages = [
        add_frames(73, 0, [b"payload"], 1, flag=RECOVERY, writeFlags=1, priority=100),
        v3.encode_message(request(protocol.READ_ENTRY, 1, ledgerId=73, entryId=0, flag=FENCE, masterKey=KEY)),
        v3.encode_message(request(protocol.READ_ENTRY, 2, ledgerId=73, entryId=0)),
        v3.encode_message(request(protocol.GET_BOOKIE_INFO, 2, requested=3)),
        v3.encode_message(request(protocol.WRITE_LAC, 3, ledgerId=73, lac=1, masterKey=KEY, body=lac_packet(73, 1))),
    ]
    for _ in range(300):
        damaged = bytearray(b"".join(choice.sample(messages, 3)))
        for _ in range(choice.randint(1, 3)):
            damaged[choice.randrange(len(damaged))] = choice.randrange(256)
        with Peer(shared_serving.port) as broken:
            broken.send(bytes(damaged))
    with V3Peer(shared_serving.port) as peer:
        assert peer.add_all(74, 0, [b"x"]) == [StatusCode.EOK]
    assert shared_serving.failure is None
