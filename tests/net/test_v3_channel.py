"""BookieV3Channel against a peer that answers in every way that docs/protocol.md §2 allows, and in some others."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from bkspark.core.metadata import DigestType, Fragment, LedgerMetadata
from bkspark.entries import EntryBatch
from bkspark.errors import AuthenticationFailed, BookieUnavailable, ProtocolError, ReadFailed, RequestTimeout
from bkspark.ledger.reader import last_entries
from bkspark.net.connection import AddListener
from bkspark.net.responses import BAD_DIGEST
from bkspark.net.v3_channel import BookieV3Channel
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.adds import AddSealer, WireProtocol
from bkspark.wire.digest import EntryDigest, master_key
from bkspark.wire.flags import AddFlags
from bkspark.wire.framing import scan_frames
from tests.ledger.fanning import Wire, receive, settled
from tests.ledger.fanning import play as play_without_sockets
from tests.net.v3_peer import play, play_pool, response
from tests.polling import until

DIGEST = EntryDigest(DigestType.CRC32C, b"")
KEY = master_key(b"")
LEDGER = 5


def stored(entry_id: int, payload: bytes, lac: int = -1) -> bytes:
    """Return an entry as a bookie has it."""
    return bytes(DIGEST.seal(EntryBatch.of([payload], LEDGER, entry_id), lac, 0).buffer[4:])


def entry(request: protocol.Request, body: bytes | None, status: int = 0) -> protocol.Response:
    asked = request.readRequest
    inner = protocol.ReadResponse(status=status, ledgerId=asked.ledgerId, entryId=asked.entryId)
    if body is not None:
        inner.body = body
    return response(request, status, readResponse=inner)


def test_answers_in_any_order_reach_the_reads_that_asked():
    requests = []

    def answer(request):
        requests.append(request)
        if len(requests) < 40:
            return []
        return [entry(one, stored(one.readRequest.entryId, b"%d" % one.readRequest.entryId)) for one in requests[::-1]]

    async def test(channel):
        groups = [channel.read_entries(LEDGER, np.arange(first, first + 20), DIGEST) for first in (0, 10)]
        for first, answers in zip((0, 10), await asyncio.gather(*groups)):
            assert [bytes(payload) for payload in answers.payloads] == [b"%d" % i for i in range(first, first + 20)]

    play(answer, test)
    assert len({request.header.txnId for request in requests}) == 40


def test_explicit_lac_is_sent_with_its_digest_and_the_key_of_the_ledger():
    requests = []

    def answer(request):
        requests.append(request)
        inner = protocol.WriteLacResponse(status=0, ledgerId=request.writeLacRequest.ledgerId)
        return [response(request, 0, writeLacResponse=inner)]

    async def test(channel):
        assert await channel.write_lac(LEDGER, 41, DIGEST, KEY) == v2.Status.EOK

    play(answer, test)
    (asked,) = [request.writeLacRequest for request in requests]
    assert (asked.ledgerId, asked.lac, asked.masterKey) == (LEDGER, 41, KEY)
    assert DIGEST.open_lac(asked.body, LEDGER) == 41


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (402, v2.Status.ENOLEDGER),
        (403, v2.Status.ENOENTRY),
        (501, v2.Status.EIO),
        (502, v2.Status.EUA),
        (506, v2.Status.ETOOMANYREQUESTS),
        (507, v2.Status.EUNKNOWNLEDGERSTATE),
    ],
)
@pytest.mark.parametrize("has_message", [True, False], ids=["with its message", "without"])
def test_status_of_a_read_is_returned_if_only_the_outer_one_is_present_too(status, expected, has_message):
    """§2.5: trust the inner message when present, fall back to the outer."""

    async def test(channel):
        answers = await channel.read_entries(LEDGER, np.array([3]), DIGEST)
        assert (answers.statuses.tolist(), answers.payloads) == ([expected], [None])
        assert (await channel.read_last_entry(LEDGER, DIGEST)).status == expected

    play(lambda request: [entry(request, None, status) if has_message else response(request, status)], test)


def test_entry_with_another_id_or_wrong_bytes_is_a_digest_failure():
    bodies = {0: stored(1, b"other"), 1: stored(1, b"right"), 2: stored(2, b"bent")[:-1] + b"!", 3: b"short"}

    async def test(channel):
        answers = await channel.read_entries(LEDGER, np.arange(4), DIGEST)
        assert answers.statuses.tolist() == [BAD_DIGEST, 0, BAD_DIGEST, BAD_DIGEST]
        assert bytes(answers.payloads[1]) == b"right"

    play(lambda request: [entry(request, bodies[request.readRequest.entryId])], test)


def test_flags_of_reads_become_fields():
    seen = []

    def answer(request):
        seen.append(request)
        return [entry(request, stored(max(0, request.readRequest.entryId), b"x"))]

    async def test(channel):
        flags = v2.DO_FENCING | v2.HIGH_PRIORITY
        await channel.read_entries(LEDGER, np.array([7]), DIGEST, flags, KEY)
        await channel.read_last_entry(LEDGER, DIGEST, flags, KEY)
        await channel.read_entries(LEDGER, np.array([7]), DIGEST)

    play(answer, test)
    for request in seen[:2]:
        assert (request.header.priority, request.readRequest.flag) == (100, protocol.ReadRequest.FENCE_LEDGER)
        assert request.readRequest.masterKey == KEY
    assert not seen[2].readRequest.HasField("masterKey")
    assert not seen[2].readRequest.HasField("flag")
    assert not seen[2].header.HasField("priority")


def added(request: protocol.Request, status: int = 0) -> protocol.Response:
    asked = request.addRequest
    inner = protocol.AddResponse(status=status, ledgerId=asked.ledgerId, entryId=asked.entryId)
    return response(request, status, addResponse=inner)


def listening(channel):
    """Return (replies so far, a future of the error that ended the connection)."""
    replies, lost = [], asyncio.get_running_loop().create_future()
    channel.listen_adds(
        LEDGER,
        AddListener(lambda ids, statuses, _: replies.extend(zip(ids.tolist(), statuses.tolist())), lost.set_result),
    )
    return replies, lost


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (AddFlags(), (0, False, 0)),
        (AddFlags(is_recovery=True, is_urgent=True), (100, True, 0)),
        (AddFlags(is_deferred=True), (0, False, v3.DEFERRED_SYNC)),
    ],
)
def test_adds_carry_their_flags_and_their_statuses_come_back(flags, expected):
    seen = []

    def answer(request):
        seen.append(request)
        return [added(request, {3: 506, 4: 504}.get(request.addRequest.entryId, 0))]

    async def test(channel):
        replies, _ = listening(channel)
        sealer = AddSealer(WireProtocol.V3, DIGEST, KEY, v3.TxnIds(), flags)
        channel.send_adds(sealer.seal(EntryBatch.of([b"x" * i for i in range(6)], LEDGER, 0), -1, 0).buffer)
        await until(lambda: len(replies) == 6, "six replies")
        assert [status for _, status in sorted(replies)] == [0, 0, 0, 106, 104, 0]

    play(answer, test)
    for request in seen:
        add = request.addRequest
        assert (request.header.priority, add.HasField("flag"), add.writeFlags) == expected
        assert DIGEST.open_entry(add.body, LEDGER, add.entryId).payload == b"x" * add.entryId
    assert len({request.header.txnId for request in seen}) == 6


def test_deferred_adds_go_by_v3_whatever_the_client_speaks():
    assert AddSealer(WireProtocol.V2, DIGEST, KEY, v3.TxnIds(), AddFlags(is_deferred=True)).protocol is WireProtocol.V3


def test_refusal_that_names_no_add_ends_the_connection():
    """§2.5: before authentication a bookie answers header and outer status only."""

    async def test(channel):
        _, lost = listening(channel)
        sealer = AddSealer(WireProtocol.V3, DIGEST, KEY, v3.TxnIds())
        channel.send_adds(sealer.seal(EntryBatch.of([b"x"], LEDGER, 0), -1, 0).buffer)
        assert "serves only authenticated clients" in str(await asyncio.wait_for(lost, 60))

    play(lambda request: [response(request, 502)], test)


def test_bytes_that_are_not_a_response_end_the_connection_and_fail_waiting_callers():
    async def test(channel):
        with pytest.raises(ProtocolError, match="peer"):
            await channel.force(LEDGER)
        with pytest.raises(ProtocolError):
            await channel.force(LEDGER)

    play(lambda request: [b"\x00\x00\x00\x03abc"], test)


def test_answer_to_nobodys_request_is_passed_over():
    def answer(request):
        stray = protocol.Response(header=v3.header(protocol.FORCE_LEDGER, 1 << 60), status=0)
        read = protocol.Response(header=v3.header(protocol.READ_ENTRY, 1 << 60), status=403)
        inner = protocol.ForceLedgerResponse(status=0, ledgerId=LEDGER)
        return [stray, read, response(request, forceLedgerResponse=inner)]

    async def test(channel):
        assert await channel.force(LEDGER) == v2.Status.EOK

    play(answer, test)


def test_long_poll_may_take_its_wait_longer_than_an_ordinary_answer():
    """The read time-out is 10 ms here, and begins after the wait."""

    async def test(channel):
        with pytest.raises(RequestTimeout):
            await channel.force(LEDGER)
        polled = await channel.poll_entry(LEDGER, 6, 30.0, DIGEST)
        assert (polled.lac, polled.entry.payload) == (9, b"seven")

    def answer(request):
        read = request.readRequest
        if request.header.operation != protocol.READ_ENTRY:
            return []
        assert (read.entryId, read.previousLAC, read.timeOut) == (-1, 6, 30_000)
        inner = protocol.ReadResponse(status=0, ledgerId=LEDGER, entryId=7, body=stored(7, b"seven"), maxLAC=9)
        return [response(request, readResponse=inner)]

    play(answer, test, read_timeout_s=0.01)


@pytest.mark.parametrize(("entry_id", "status"), [(7, v2.EOK), (6, BAD_DIGEST), (8, BAD_DIGEST)])
def test_long_poll_takes_no_other_entry_than_the_next_one(entry_id, status):
    async def test(channel):
        polled = await channel.poll_entry(LEDGER, 6, 30.0, DIGEST)
        assert (polled.status, polled.lac, polled.entry is not None) == (status, 9, status == v2.EOK)

    def answer(request):
        body = stored(entry_id, b"entry")
        return [
            response(
                request, readResponse=protocol.ReadResponse(ledgerId=LEDGER, entryId=7, status=0, body=body, maxLAC=9)
            )
        ]

    play(answer, test)


def test_second_answer_to_a_read_is_passed_over():
    """It comes while another read of the same group is not answered."""

    async def test():
        channel, wire = BookieV3Channel("a", 1 << 20, 30.0, v3.TxnIds()), Wire()
        channel.connection_made(wire)
        reading = asyncio.ensure_future(channel.read_entries(LEDGER, np.array([1, 2]), DIGEST))
        await settled()
        table = scan_frames(wire.sent, len(wire.sent))
        asked = [v3.decode_request(wire.sent[start:end]) for start, end in zip(table.starts, table.ends)]
        for number, entry_id in ((0, 1), (0, 1), (1, 2)):
            inner = protocol.ReadResponse(ledgerId=LEDGER, entryId=entry_id, status=0, body=stored(entry_id, b"entry"))
            receive(channel, v3.encode_message(response(asked[number], readResponse=inner)))
        found = await reading
        assert found.statuses.tolist() == [v2.EOK, v2.EOK]
        assert [at.tolist() for at, _ in found.pieces] == [[0], [1]]

    play_without_sockets(test)


def test_explicit_lac_counts_beside_a_bookies_eio():
    """§2.8 quirk: an explicit LAC and no entry is EIO with lacBody set at a Java bookie."""

    async def test(channel):
        heard = await channel.read_lac(LEDGER, DIGEST)
        assert (heard.status, heard.lac, heard.entry) == (v2.Status.EOK, 41, None)

    def answer(request):
        inner = protocol.ReadLacResponse(status=501, ledgerId=LEDGER, lacBody=DIGEST.seal_lac(LEDGER, 41))
        return [response(request, 501, readLacResponse=inner)]

    play(answer, test)


@pytest.mark.parametrize(
    "lac_body", [DIGEST.seal_lac(LEDGER + 1, 41), DIGEST.seal_lac(LEDGER, 41)[:-1], b"", b"x" * 20], ids=repr
)
def test_explicit_lac_of_another_ledger_or_with_wrong_bytes_is_not_believed(lac_body):
    async def test(channel):
        heard = await channel.read_lac(LEDGER, DIGEST)
        assert (heard.status, heard.lac) == (BAD_DIGEST, None)

    def answer(request):
        return [
            response(request, readLacResponse=protocol.ReadLacResponse(status=0, ledgerId=LEDGER, lacBody=lac_body))
        ]

    play(answer, test)


@pytest.mark.parametrize(
    "reported", [{}, {"totalDiskCapacity": 9}, {"freeDiskSpace": 0}, {"totalDiskCapacity": 9, "freeDiskSpace": 3}]
)
def test_disk_space_is_what_the_bookie_reports_and_unknown_where_it_reports_nothing(reported):
    """A disk of which nothing is known is not a full one."""

    async def test(channel):
        space = await channel.disk_space()
        assert (space.total_bytes, space.free_bytes) == (
            reported.get("totalDiskCapacity"),
            reported.get("freeDiskSpace"),
        )

    def answer(request):
        return [response(request, getBookieInfoResponse=protocol.GetBookieInfoResponse(status=0, **reported))]

    play(answer, test)


def test_answer_to_start_tls_that_refuses_it_ends_the_connection_as_a_refusal_of_the_client():
    """Apache's bookie sends it when it refuses a client's certificate: the connection serves nothing any more."""

    async def test() -> None:
        channel = BookieV3Channel("a", 1 << 20, 5.0, v3.TxnIds())
        channel.connection_made(Wire())
        good = protocol.Response(header=v3.header(protocol.START_TLS, 7), status=v3.StatusCode.EOK)
        receive(channel, v3.encode_message(good))
        assert channel.lost is None
        refusal = protocol.Response(header=v3.header(protocol.START_TLS, 7), status=v3.StatusCode.EUA)
        receive(channel, v3.encode_message(refusal))
        assert isinstance(channel.lost, AuthenticationFailed)
        assert "refuses this client's certificate" in str(channel.lost)

    play_without_sockets(test)


def test_bookie_that_does_not_tell_its_disk_space_is_an_error_that_names_it():
    async def test(channel):
        with pytest.raises(BookieUnavailable, match="peer does not report its disk space"):
            await channel.disk_space()

    play(lambda request: [response(request, 404)], test)


def test_bookie_that_refuses_a_client_its_disk_space_says_what_it_may_demand():
    """`cluster health` showed `status 102` where only TLS was missing."""

    async def test(channel):
        with pytest.raises(AuthenticationFailed, match="serves only authenticated clients, or only TLS"):
            await channel.disk_space()

    play(lambda request: [response(request, 502)], test)


@pytest.mark.parametrize("status", [403, 501], ids=["no entry", "EIO"])
def test_nothing_in_the_answer_about_the_lac_is_certain_only_if_the_last_entry_is_missing_too(status):
    """Apache's bookies answer READ_LAC with "no entry" also where a disk failed."""

    def answer(request):
        if request.header.operation == protocol.READ_LAC:
            return [response(request, 403, readLacResponse=protocol.ReadLacResponse(status=403, ledgerId=LEDGER))]
        assert request.readRequest.entryId == -1
        return [entry(request, None, status)]

    async def test(pool):
        metadata = LedgerMetadata(2, 2, 2, (Fragment(0, ("b:1", "b:2")),))
        if status == 403:
            assert (await last_entries(pool, LEDGER, metadata, DIGEST)).lac == -1
        else:
            with pytest.raises(ReadFailed):
                await last_entries(pool, LEDGER, metadata, DIGEST)

    play_pool(answer, test)
