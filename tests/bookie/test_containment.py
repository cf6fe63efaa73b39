"""Containment: an unexpected error in a request that changes nothing ends that request, or its connection, alone.

An error in the answer to one request ended the bookie. Errors are
planted below each kind of request of both protocols. Only an error of a change may end the process (scenario S28).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3, v3_adds, v3_reads
from bkspark.wire.local_reads import LocalRead, socket_name
from bookie_service.engine.disk_watch import DiskWatch
from bookie_service.network import connection, known_responses, response_encoders, v2_requests, v3_requests
from bookie_service.network.local_reads import LocalReadServer
from bookie_service.network.request_stream import FEW
from bookie_service.network.v3_long_poll import LongPollRead
from bookie_service.storage.index.index import IndexReader
from bookie_service.storage.ledgers.base import BaseLedgerStorage
from tests.bookie.serving import KEY, Serving, adds, service_options, stored
from tests.bookie.v3_peer import PIGGYBACK, V3Peer, request

GOOD, BAD = 5, 6
PAYLOADS = [b"payload %d" % i for i in range(8)]
ERROR = "planted"


class Defect:
    """An error in the product, raised as long as `is_on`."""

    def __init__(self) -> None:
        self.is_on = False
        self.raised = 0

    def plant(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, where: Callable[..., bool]) -> None:
        """Have a function raise where `where(*arguments)` holds."""
        old = getattr(owner, name)

        def faulty(*arguments: Any, **named: Any) -> Any:
            if self.is_on and where(*arguments):
                self.raised += 1
                raise RuntimeError(ERROR)
            return old(*arguments, **named)

        monkeypatch.setattr(owner, name, faulty)


@pytest.fixture
def defect() -> Defect:
    return Defect()


def names_bad(_: object, ledger: Any, *__: object) -> bool:
    """Hold where a method of a store is asked for the bad ledger."""
    asked = ledger if isinstance(ledger, list) else [ledger]
    return any(getattr(each, "ledger_id", each) == BAD for each in asked)


def always(*_: object) -> bool:
    return True


class Bench:
    """A bookie with two ledgers, a client of either protocol, and a client that must not notice anything."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self.bystander = serving.connect()
        self.v2 = serving.connect()
        self.v3 = V3Peer(serving.port)
        for ledger_id in (GOOD, BAD):
            assert set(self.bystander.add(ledger_id, 0, PAYLOADS)) == {v2.Status.EOK}

    def check(self, caplog: pytest.LogCaptureFixture, defect: Defect) -> None:
        """Check that the error came, was logged with its traceback, and affected no other request."""
        assert defect.raised
        defect.is_on = False
        assert self.serving.failure is None
        assert self.bystander.read(GOOD, 3).body == stored(GOOD, 3, PAYLOADS[3])
        assert self.bystander.add(GOOD, 8, [b"more"]) == [v2.Status.EOK]
        with_traceback = [record for record in caplog.records if record.exc_info]
        assert with_traceback
        assert all(ERROR in str(record.exc_info[1]) for record in with_traceback if record.exc_info)

    def close(self) -> None:
        for peer in (self.bystander, self.v2, self.v3):
            peer.close()


@pytest.fixture
def bench(tmp_path: Path, request: pytest.FixtureRequest, defect: Defect) -> Iterator[Bench]:
    # What is planted must be there before the bookie is made.
    for plant in getattr(request, "param", ()):
        defect.plant(request.getfixturevalue("monkeypatch"), *plant)
    with Serving(service_options(tmp_path)) as serving:
        made = Bench(serving)
        yield made
        made.close()


reading_the_ledger = pytest.mark.parametrize(
    "bench", [[(BaseLedgerStorage, "read", names_bad), (BaseLedgerStorage, "read_each", names_bad)]], indirect=True
)
looking_it_up = pytest.mark.parametrize("bench", [[(BaseLedgerStorage, "ledger", names_bad)]], indirect=True)


@reading_the_ledger
def test_v2_reads_in_one_run_fail_alone(bench: Bench, caplog: pytest.LogCaptureFixture, defect: Defect) -> None:
    defect.is_on = True
    asked = [(GOOD, 0), (BAD, 1), (GOOD, 1), (BAD, -1), (GOOD, 5), (77, 0), (BAD, 2)]
    bench.v2.send(b"".join(v2.encode_reads(ledger_id, np.array([entry_id])) for ledger_id, entry_id in asked))
    statuses = {(reply.ledger_id, reply.entry_id): reply.status for reply in bench.v2.replies(len(asked))}
    right = {GOOD: v2.Status.EOK, BAD: v2.Status.EIO, 77: v2.Status.ENOLEDGER}
    assert statuses == {(ledger_id, entry_id): right[ledger_id] for ledger_id, entry_id in asked}
    assert bench.v2.read(GOOD, 0).status == v2.Status.EOK, "the connection goes on"
    bench.check(caplog, defect)


@reading_the_ledger
def test_v2_batch_read(bench: Bench, caplog: pytest.LogCaptureFixture, defect: Defect) -> None:
    defect.is_on = True
    bad = bench.v2.batch_read(BAD, 0)
    assert (bad.status, bad.request_id, bad.body) == (v2.Status.EIO, 99, b"")
    assert bench.v2.batch_read(GOOD, 0).status == v2.Status.EOK
    bench.check(caplog, defect)


@reading_the_ledger
def test_reads_after_a_fence(bench: Bench, caplog: pytest.LogCaptureFixture, defect: Defect) -> None:
    """The fence is set, and durable; only the read after it fails."""
    defect.is_on = True
    assert bench.v2.read(BAD, -1, v2.DO_FENCING).status == v2.Status.EIO
    assert bench.v2.batch_read(BAD, 0, flags=v2.DO_FENCING).status == v2.Status.EIO
    assert bench.v2.add(BAD, 8, [b"late"]) == [v2.Status.EFENCED]
    bench.check(caplog, defect)


@reading_the_ledger
def test_v3_reads_in_one_run_fail_alone(bench: Bench, caplog: pytest.LogCaptureFixture, defect: Defect) -> None:
    defect.is_on = True
    asked = [(GOOD, 0), (BAD, 1), (GOOD, 1), (BAD, -1), (GOOD, 5)]
    txn_ids = {
        bench.v3.ask(protocol.READ_ENTRY, ledgerId=ledger_id, entryId=entry_id): ledger_id
        for ledger_id, entry_id in asked
    }
    answers = {answer.header.txnId: answer.status for answer in (bench.v3.answer() for _ in asked)}
    right = {GOOD: v3.StatusCode.EOK, BAD: v3.StatusCode.EIO}
    assert answers == {txn_id: right[ledger_id] for txn_id, ledger_id in txn_ids.items()}
    bench.check(caplog, defect)


@reading_the_ledger
def test_v3_lac_reads_in_one_run_fail_alone(bench: Bench, caplog: pytest.LogCaptureFixture, defect: Defect) -> None:
    defect.is_on = True
    asked = [GOOD, BAD, 77, GOOD, BAD]
    frames = [v3.encode_message(request(protocol.READ_LAC, i, ledgerId=each)) for i, each in enumerate(asked)]
    bench.v3.send(b"".join(frames))
    answers = {answer.header.txnId: answer.status for answer in (bench.v3.answer() for _ in asked)}
    right = {GOOD: v3.StatusCode.EOK, BAD: v3.StatusCode.EIO, 77: v3.StatusCode.ENOENTRY}
    assert answers == {i: right[ledger_id] for i, ledger_id in enumerate(asked)}
    bench.check(caplog, defect)


@looking_it_up
@pytest.mark.parametrize(
    ("operation", "fields"),
    [
        (protocol.READ_ENTRY, {"entryId": 0}),
        (protocol.READ_ENTRY, {"entryId": -1, "previousLAC": 5, "timeOut": 60_000, "flag": PIGGYBACK}),
        (protocol.READ_ENTRY, {"entryId": 0, "previousLAC": 5}),
        (protocol.READ_LAC, {}),
        (protocol.GET_LIST_OF_ENTRIES_OF_LEDGER, {}),
    ],
)
def test_v3_request_for_a_ledger_whose_lookup_fails(
    bench: Bench, caplog: pytest.LogCaptureFixture, defect: Defect, operation: int, fields: dict[str, int]
) -> None:
    defect.is_on = True
    assert bench.v3.call(operation, ledgerId=BAD, **fields).status == v3.StatusCode.EIO
    assert bench.v3.read_entry(GOOD, 0).status == v3.StatusCode.EOK, "the connection goes on"
    bench.check(caplog, defect)


def test_long_poll_that_fails_when_it_is_woken(
    bench: Bench, caplog: pytest.LogCaptureFixture, defect: Defect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence that wakes it is another client's, and is set nevertheless."""
    defect.plant(monkeypatch, LongPollRead, "_answer", always)
    bench.v3.ask(protocol.READ_ENTRY, ledgerId=BAD, entryId=-1, previousLAC=5, timeOut=60_000, flag=PIGGYBACK)
    bench.v3.ask(protocol.READ_ENTRY, ledgerId=BAD, entryId=0)
    assert bench.v3.answer().status == v3.StatusCode.EOK, "it came after the poll, which waits"
    defect.is_on = True
    assert bench.v2.read(BAD, 0, v2.DO_FENCING).status == v2.Status.EOK
    assert bench.v3.answer().status == v3.StatusCode.EIO
    bench.check(caplog, defect)


@pytest.mark.parametrize("bench", [[(IndexReader, "extents", names_bad)]], indirect=True)
def test_list_that_fails_beside_the_event_loop(bench: Bench, caplog: pytest.LogCaptureFixture, defect: Defect) -> None:
    defect.is_on = True
    listed = protocol.GET_LIST_OF_ENTRIES_OF_LEDGER
    assert bench.v3.call(listed, ledgerId=BAD).status == v3.StatusCode.EIO
    assert bench.v3.call(listed, ledgerId=GOOD).status == v3.StatusCode.EOK
    bench.check(caplog, defect)


@pytest.mark.parametrize("bench", [[(DiskWatch, "ledger_space", always)]], indirect=True)
def test_question_for_disk_space(bench: Bench, caplog: pytest.LogCaptureFixture, defect: Defect) -> None:
    defect.is_on = True
    assert bench.v3.call(protocol.GET_BOOKIE_INFO, requested=3).status == v3.StatusCode.EIO
    assert bench.v3.read_entry(GOOD, 0).status == v3.StatusCode.EOK, "the connection goes on"
    bench.check(caplog, defect)


V3_READ = request(protocol.READ_ENTRY, 1, ledgerId=GOOD, entryId=0)
V3_ADD = request(protocol.ADD_ENTRY, 1, ledgerId=GOOD, entryId=20, masterKey=KEY, body=stored(GOOD, 20, b"x"))


@pytest.mark.parametrize(
    ("owner", "name", "frame"),
    [
        (v2, "encode_read_replies", v2.encode_reads(GOOD, np.array([0]))),
        (response_encoders, "encode_single_read_response", v3.encode_message(V3_READ)),
        (v3_reads, "encode_read_responses", 3 * v3.encode_message(V3_READ)),
    ],
)
def test_answer_that_cannot_be_encoded(
    bench: Bench,
    caplog: pytest.LogCaptureFixture,
    defect: Defect,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    frame: bytes,
) -> None:
    defect.plant(monkeypatch, owner, name, always)
    defect.is_on = True
    bench.v2.send(frame)
    if owner is v2:
        assert bench.v2.reply().status == v2.Status.EIO
    else:
        answer = bench.v2.frame()
        assert answer is not None
        assert protocol.Response.FromString(answer).status == v3.StatusCode.EIO
    bench.check(caplog, defect)


V2_FRAMES = {
    "add": adds(GOOD, 20, [b"x"]) * 2,
    "read": v2.encode_reads(GOOD, np.array([0])),
    "batch read": v2.encode_batch_read(GOOD, 0, 1, 1, 100),
    "auth": v2.encode_auth_reply(b""),
}


@pytest.mark.parametrize(
    ("owner", "name", "frames"),
    [
        *((v2, "decode_requests", frames) for frames in V2_FRAMES.values()),
        (v2, "decode_batch_read_limits", V2_FRAMES["batch read"]),
        (connection, "scan_frames", V2_FRAMES["read"]),
        (v2_requests.V2RequestStream, "_next", V2_FRAMES["add"]),
        (known_responses.KnownResponse, "proceed", V2_FRAMES["auth"]),
        (v3_requests, "decode_single_add", v3.encode_message(V3_ADD)),
        (v3_requests, "decode_single_read", v3.encode_message(V3_READ)),
        (v3_adds, "decode_adds", FEW * v3.encode_message(V3_ADD) + v3.encode_message(V3_ADD)),
        (v3_reads, "decode_reads", FEW * v3.encode_message(V3_READ) + v3.encode_message(V3_READ)),
        (v3, "decode_request", v3.encode_message(request(protocol.GET_BOOKIE_INFO, 1))),
    ],
)
def test_bytes_that_cannot_be_decoded_end_their_connection_alone(
    bench: Bench,
    caplog: pytest.LogCaptureFixture,
    defect: Defect,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    frames: bytes,
) -> None:
    defect.plant(monkeypatch, owner, name, always)
    defect.is_on = True
    bench.v2.send(frames)
    assert bench.v2.frame() is None
    bench.check(caplog, defect)


def test_local_read_that_fails_ends_its_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    """A client that asks over the local socket has the network, where it is answered."""

    class Failing:
        def ledger(self, ledger_id: int) -> None:
            raise RuntimeError(ERROR)

    async def ask() -> bytes:
        served = ("127.0.0.1", 1)
        local = LocalReadServer(Failing(), "id", served)  # type: ignore[arg-type]
        asking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        asking.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(asking, socket_name(1))
            message = LocalRead("id", socket.inet_aton("127.0.0.1"), GOOD, 0, 10, 1 << 20).encode()
            await asyncio.get_running_loop().sock_sendall(asking, message)
            return await asyncio.get_running_loop().sock_recv(asking, 100)
        finally:
            asking.close()
            local.close()

    assert asyncio.run(ask()) == b""
    assert [record.exc_info is not None for record in caplog.records] == [True]
