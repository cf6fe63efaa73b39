"""Reads that wait for the LAC (docs/protocol.md §2.7, long poll), and lists of entries (§2.9)."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3
from bkspark.wire.entry_lists import decode_entry_list
from bkspark.wire.v3 import StatusCode
from bookie_service.engine.bookie_environment import BookieOptions
from bookie_service.engine.long_polls import LongPolls
from bookie_service.engine.shares import ShareLimits
from bookie_service.metrics.requests import LONG_POLL, READ_ENTRY
from tests.bookie.cold_files import ColdFiles
from tests.bookie.serving import KEY, Serving, service_options
from tests.bookie.v3_peer import FENCE, PIGGYBACK, V3Peer, request
from tests.crash.twins import AtOnce, lac_packet
from tests.polling import wait_until

LEDGER = 5
LONG_MS = 600_000


def entry(entry_id: int, lac: int, ledger_id: int = LEDGER) -> bytes:
    return struct.pack(">qqqq", ledger_id, entry_id, lac, 0) + b"payload %d" % entry_id


def add(peer: V3Peer, entry_id: int, lac: int, ledger_id: int = LEDGER) -> None:
    body = entry(entry_id, lac, ledger_id)
    added = peer.call(protocol.ADD_ENTRY, ledgerId=ledger_id, entryId=entry_id, masterKey=KEY, body=body)
    assert added.status == StatusCode.EOK


def write_lac(peer: V3Peer, lac: int) -> None:
    packet = lac_packet(LEDGER, lac)
    written = peer.call(protocol.WRITE_LAC, ledgerId=LEDGER, lac=lac, masterKey=KEY, body=packet)
    assert written.status == StatusCode.EOK


def poll(peer: V3Peer, previous_lac: int, **others: Any) -> int:
    """Request the entry after `previous_lac`, and wait long for it; return the txnId."""
    asked = {"entryId": -1, "flag": PIGGYBACK, "timeOut": LONG_MS, "ledgerId": LEDGER, **others}
    return peer.ask(protocol.READ_ENTRY, previousLAC=previous_lac, **asked)


def is_waiting(peer: V3Peer, txn_id: int) -> bool:
    """Return whether a request that was sent before this one is not answered: later ones are answered first."""
    marker = peer.ask(protocol.GET_BOOKIE_INFO, requested=0)
    answer = peer.answer()
    assert answer.header.txnId in (marker, txn_id)
    return answer.header.txnId == marker


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with Serving(service_options(tmp_path, bookie=BookieOptions(long_polls=ShareLimits(2, 2, 2)))) as serving:
        yield serving


@pytest.fixture
def peer(serving: Serving) -> Iterator[V3Peer]:
    with V3Peer(serving.port) as peer:
        yield peer


@pytest.fixture
def writer(serving: Serving) -> Iterator[V3Peer]:
    with V3Peer(serving.port) as writer:
        add(writer, 0, -1)
        yield writer


def test_poll_waits_for_the_lac_and_brings_the_next_entry(peer: V3Peer, writer: V3Peer) -> None:
    txn_id = poll(peer, -1)
    assert is_waiting(peer, txn_id)
    add(writer, 1, 0)
    answer = peer.answer()
    read = answer.readResponse
    assert (answer.header.txnId, read.status, read.entryId, read.body) == (txn_id, StatusCode.EOK, 0, entry(0, -1))
    assert read.maxLAC == 0
    assert read.lacUpdateTimestamp > 1_600_000_000_000


def test_poll_counts_once_with_the_time_that_it_waited(serving: Serving, peer: V3Peer, writer: V3Peer) -> None:
    """Apache's READ_ENTRY_LONG_POLL_REQUEST. The read of its entry is not counted beside it."""

    def counted() -> tuple[int, int]:
        times = serving.service.times
        times.reads.fold()
        return times.succeeded.count(LONG_POLL), times.succeeded.count(READ_ENTRY)

    txn_id = poll(peer, 0)
    assert is_waiting(peer, txn_id)
    waits_ns = time.monotonic_ns()
    for _ in range(20):
        assert is_waiting(peer, txn_id)
    waited_us = (time.monotonic_ns() - waits_ns) // 1000
    assert serving.call(counted) == (0, 0)
    add(writer, 1, 0)
    add(writer, 2, 1)
    assert peer.answer().header.txnId == txn_id
    assert serving.call(counted) == (1, 0)
    assert serving.service.times.succeeded.sum(LONG_POLL) >= waited_us


def test_poll_for_a_lac_that_is_known_already_is_answered_at_once(peer: V3Peer, writer: V3Peer) -> None:
    for entry_id in range(1, 5):
        add(writer, entry_id, entry_id - 1)
    poll(peer, 1)
    read = peer.answer().readResponse
    assert (read.entryId, read.body, read.maxLAC) == (2, entry(2, 1), 3)
    assert not read.HasField("lacUpdateTimestamp")


def test_adds_that_come_together_end_a_poll(peer: V3Peer, writer: V3Peer) -> None:
    txn_id = poll(peer, -1)
    assert is_waiting(peer, txn_id)
    bodies = {"masterKey": KEY, "ledgerId": LEDGER}
    adds = [
        request(protocol.ADD_ENTRY, each, entryId=each, body=entry(each, each - 1), **bodies) for each in range(1, 40)
    ]
    writer.send(b"".join(map(v3.encode_message, adds)))
    assert peer.answer().readResponse.body == entry(0, -1)


def test_explicit_lac_ends_a_poll(peer: V3Peer, writer: V3Peer) -> None:
    txn_id = poll(peer, -1)
    assert is_waiting(peer, txn_id)
    write_lac(writer, 0)
    assert peer.answer().readResponse.body == entry(0, -1)


def test_trap_6_nothing_new_in_time_is_ok_without_a_body(peer: V3Peer, writer: V3Peer) -> None:
    for time_out in ({"timeOut": 1}, {"timeOut": 0}, {"timeOut": -5}):
        poll(peer, 0, **time_out)
        read = peer.answer().readResponse
        assert (read.status, read.entryId, read.HasField("body"), read.maxLAC) == (StatusCode.EOK, -1, False, -1)
    asked = {"ledgerId": LEDGER, "entryId": -1, "flag": PIGGYBACK}
    assert not peer.call(protocol.READ_ENTRY, previousLAC=0, **asked).HasField("body")


def test_trap_6_piggyback_of_a_named_entry_is_a_bad_request(peer: V3Peer, writer: V3Peer) -> None:
    poll(peer, -1, entryId=0)
    assert peer.answer().readResponse.status == StatusCode.EBADREQ


def test_entry_that_lies_on_another_bookie_is_ok_without_a_body(peer: V3Peer, writer: V3Peer) -> None:
    add(writer, 2, 1)
    poll(peer, 0)
    read = peer.answer().readResponse
    assert (read.status, read.entryId, read.HasField("body"), read.maxLAC) == (StatusCode.EOK, -1, False, 1)


def test_poll_without_piggyback_reads_the_entry_asked_for_after_the_wait(peer: V3Peer, writer: V3Peer) -> None:
    asked = {"ledgerId": LEDGER, "entryId": 1, "timeOut": LONG_MS}
    txn_id = peer.ask(protocol.READ_ENTRY, previousLAC=-1, **asked)
    assert is_waiting(peer, txn_id)
    add(writer, 1, 0)
    read = peer.answer().readResponse
    assert (read.entryId, read.body, read.maxLAC) == (1, entry(1, 0), 0)


def test_fence_ends_polls(peer: V3Peer, writer: V3Peer) -> None:
    txn_id = poll(peer, 0)
    assert is_waiting(peer, txn_id)
    writer.read_entry(LEDGER, 0, flag=FENCE, masterKey=KEY)
    read = peer.answer().readResponse
    assert (read.status, read.HasField("body"), read.maxLAC) == (StatusCode.EOK, False, -1)


def test_poll_of_an_unknown_ledger_is_refused_at_once(peer: V3Peer) -> None:
    poll(peer, -1, ledgerId=77)
    assert peer.answer().readResponse.status == StatusCode.ENOLEDGER


def test_more_polls_than_may_wait_are_too_many_until_others_end(serving: Serving, peer: V3Peer, writer: V3Peer) -> None:
    with V3Peer(serving.port) as other:
        waiting = [poll(other, 5), poll(other, 6)]
        assert is_waiting(other, waiting[0])
        poll(peer, 5)
        assert peer.answer().readResponse.status == StatusCode.ETOOMANYREQUESTS

    def is_taken() -> bool:
        poll(peer, 5, timeOut=1)
        return bool(peer.answer().readResponse.status == StatusCode.EOK)

    # The end of a connection is the end of its polls.
    wait_until(is_taken, "polls of a connection that is gone to be forgotten")


def test_poll_of_a_ledger_on_the_disk_waits_for_the_disk_first(tmp_path: Path) -> None:
    options = service_options(tmp_path)
    with Serving(options) as serving, V3Peer(serving.port) as peer:
        for entry_id in range(3):
            add(peer, entry_id, entry_id - 1)
    with Serving(options, ColdFiles()) as serving, V3Peer(serving.port) as peer:
        poll(peer, 0)
        read = peer.answer().readResponse
        assert (read.entryId, read.body, read.maxLAC) == (1, entry(1, 0), 1)
        assert peer.read_entry(LEDGER, 0).maxLAC == 1


class Client:
    """A connection whose time never comes."""

    def __init__(self, address: str = "10.0.0.1") -> None:
        self.address = address
        self.cancelled = 0

    def call_later(self, seconds: float, callback: object) -> Client:
        return self

    def cancel(self) -> None:
        self.cancelled += 1


class Poll:
    """A poll that records its results."""

    def __init__(self, client: Client, ledger_id: int, previous_lac: int) -> None:
        self.client, self.ledger_id, self.previous_lac = client, ledger_id, previous_lac
        self.reported: list[int | None] = []

    def wake(self, lac: int | None) -> None:
        self.reported.append(lac)


class Promises:
    """Stands in for the readings: whatever is promised is done."""

    def enqueue(self, reading: object, turn: object) -> None:
        """Nothing to do."""


def new_polls(lacs: dict[int, int], limits: ShareLimits) -> LongPolls:
    return LongPolls(limits, 60.0, lambda ledger_id: lacs[ledger_id], Promises(), AtOnce())  # type: ignore[arg-type]


def test_waiters_are_woken_once_and_leave_no_state() -> None:
    lacs = {1: 5, 2: 0}
    polls, first, second = new_polls(lacs, ShareLimits.of(10)), Client(), Client()
    a, b, c = Poll(first, 1, 5), Poll(second, 1, 7), Poll(second, 2, 7)
    assert all(polls.wait(poll, 60) for poll in (a, b, c))
    for lac in (5, 6, 6):
        lacs[1] = lac
        polls.touch(1)
    assert (a.reported, b.reported, len(polls), 1 in polls.by_ledger) == ([6], [], 2, True)
    polls.touch(1, is_fenced=True)
    assert (b.reported, 1 in polls.by_ledger, 2 in polls.by_ledger) == ([None], False, True)
    polls.forget(second)
    assert (len(polls), 2 in polls.by_ledger, first.cancelled + second.cancelled) == (0, False, 3)


def test_a_ledger_that_cannot_be_read_does_not_block_the_polls_of_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    polls, client = new_polls({2: 9}, ShareLimits.of(10)), Client()
    unknown, known = Poll(client, 1, 5), Poll(client, 2, 5)
    assert polls.wait(unknown, 60)
    assert polls.wait(known, 60)
    for ledger_id in (1, 2):
        polls.touch(ledger_id)
    assert (unknown.reported, known.reported, len(polls)) == ([], [9], 1)
    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_one_connection_and_one_address_leave_places_to_others() -> None:
    """One peer with 10,000 polls must not keep every other follower out."""
    polls = new_polls({}, ShareLimits.of(40))
    greedy, beside, elsewhere = Client("10.0.0.1"), Client("10.0.0.1"), Client("10.0.0.2")
    assert sum(polls.wait(Poll(greedy, 1, 0), 60) for _ in range(100)) == 10
    assert sum(polls.wait(Poll(beside, 1, 0), 60) for _ in range(100)) == 10
    assert sum(polls.wait(Poll(Client("10.0.0.1"), 1, 0), 60) for _ in range(100)) == 0
    assert sum(polls.wait(Poll(elsewhere, 1, 0), 60) for _ in range(100)) == 10
    polls.forget(greedy)
    assert polls.wait(Poll(beside, 1, 0), 60) is False, "a connection has half of what its address may have"
    assert sum(polls.wait(Poll(Client("10.0.0.1"), 1, 0), 60) for _ in range(100)) > 0


# ---- lists of entries ----


def listed(peer: V3Peer, ledger_id: int = LEDGER) -> list[int]:
    found = peer.call(protocol.GET_LIST_OF_ENTRIES_OF_LEDGER, ledgerId=ledger_id)
    assert found.status == StatusCode.EOK
    runs = decode_entry_list(found.availabilityOfEntriesOfLedger)
    return np.concatenate([start + np.arange(size) for start, size in zip(runs.starts, runs.sizes)]).tolist()


def test_list_names_what_is_held_in_memory_and_on_the_disk(tmp_path: Path) -> None:
    ids = [*range(0, 40, 4), *range(1, 40, 4), 100, 101, 102, 300_000, 300_002]
    options = service_options(tmp_path)
    with Serving(options) as serving, V3Peer(serving.port) as peer:
        for entry_id in ids:
            add(peer, entry_id, -1)
        assert listed(peer) == sorted(ids)
    with Serving(options) as serving, V3Peer(serving.port) as peer:
        assert listed(peer) == sorted(ids)
        add(peer, 103, -1)
        add(peer, 4, -1)
        assert listed(peer) == sorted([*ids, 103])


def test_list_of_an_unknown_ledger_is_refused(peer: V3Peer) -> None:
    assert peer.call(protocol.GET_LIST_OF_ENTRIES_OF_LEDGER, ledgerId=77).status == StatusCode.ENOLEDGER
