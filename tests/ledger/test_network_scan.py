"""A scan over the network in the caller's thread yields a checked prefix of what was requested, or nothing.

It never reports an error: the caller reads what is missing with all replicas.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bkspark.blocking import network_scan
from bkspark.blocking.network_scan import NetworkScan
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.net.pool import NetOptions
from bkspark.wire import v2
from tests.ledger.hostile import DIGEST, PAYLOAD, Asked, HostileBookie, decoded, items, reply
from tests.polling import wait_until

LEDGER = 7
COUNT = 95
PER_REQUEST = 10
OPTIONS = NetOptions(speculative_read_s=0.3)


@pytest.fixture(autouse=True)
def small_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_scan, "REQUEST_BYTES", PER_REQUEST * len(PAYLOAD))


def ledger_of(*bookies: HostileBookie, write_quorum: int | None = None) -> LedgerMetadata:
    size = len(bookies)
    return LedgerMetadata(size, write_quorum or size, 1, (Fragment(0, tuple(bookie.id for bookie in bookies)),))


def scanned(scan: NetworkScan, metadata: LedgerMetadata, first_entry: int = 0) -> int:
    """Scan the ledger; check the entries and return the id after the last one."""
    position = first_entry
    for entries in scan.read(LEDGER, metadata, first_entry, COUNT, len(PAYLOAD), DIGEST):
        assert entries.first_entry == position
        assert list(entries) == [PAYLOAD] * len(entries)
        position = entries.end_entry
    return position


def new_scan(*bookies: HostileBookie) -> NetworkScan:
    return NetworkScan({bookie.id: ("127.0.0.1", int(bookie.id.rpartition(":")[2])) for bookie in bookies}, OPTIONS)


def play(answer: Callable[[Asked], bytes | None]) -> tuple[int, bool, list[Asked]]:
    """Scan one bookie that answers so; return (end of the scan, whether the bookie may be scanned again, requests)."""

    async def call() -> tuple[int, bool, list[Asked]]:
        async with HostileBookie(answer) as bookie:
            metadata, scan = ledger_of(bookie), new_scan(bookie)
            end = await asyncio.to_thread(scanned, scan, metadata)
            may_scan = scan.can_read(metadata, 0)
            scan.close()
            return end, may_scan, bookie.asked

    return asyncio.run(asyncio.wait_for(call(), 30))


def good(asked: Asked) -> bytes:
    return reply(asked, 0, items(LEDGER, asked.entry_id, asked.entries_max))


def test_whole_ledger_is_scanned_in_requests_that_follow_each_other() -> None:
    end, may_scan, asked = play(good)
    assert (end, may_scan) == (COUNT, True)
    assert [(each.entry_id, each.entries_max) for each in asked] == [
        (at, min(10, COUNT - at)) for at in range(0, COUNT, 10)
    ]


def test_answers_need_no_order_and_those_to_other_requests_are_left_out() -> None:
    held: list[bytes] = []

    def answer(asked: Asked) -> bytes | None:
        stranger = reply(Asked(v2.BATCH_READ, LEDGER, 3, b"", request_id=10_000), 0, items(LEDGER, 3, 1))
        if asked.entry_id % 20 == 0 and asked.entry_id < 80:
            held.append(good(asked))
            return stranger
        return good(asked) + (held.pop() if held else b"")

    assert play(answer)[:2] == (COUNT, True)


def test_short_answers_are_followed_by_requests_for_the_rest() -> None:
    end, may_scan, asked = play(lambda asked: reply(asked, 0, items(LEDGER, asked.entry_id, min(3, asked.entries_max))))
    assert (end, may_scan) == (COUNT, True)
    assert {3, 6, 9} <= {each.entry_id for each in asked}


def test_entries_that_were_not_requested_are_left_out() -> None:
    assert play(lambda asked: reply(asked, 0, items(LEDGER, asked.entry_id, asked.entries_max + 5)))[0] == COUNT


BAD: dict[str, tuple[Callable[[Asked], bytes | None], bool]] = {
    "entry is missing": (lambda asked: reply(asked, v2.Status.ENOENTRY), True),
    "error": (lambda asked: reply(asked, v2.Status.EIO), True),
    "nothing": (lambda asked: reply(asked), True),
    "other entries": (lambda asked: reply(asked, 0, items(LEDGER, asked.entry_id + 1, 5)), True),
    "wrong digest": (lambda asked: reply(asked, 0, items(LEDGER, asked.entry_id, 5).replace(b"x", b"y")), True),
    "half an item": (lambda asked: reply(asked, 0, items(LEDGER, asked.entry_id, 1)[:-3]), False),
    "silence": (lambda asked: None, False),
    "frame without its end": (lambda asked: good(asked)[:-1] if asked.entry_id == 50 else None, False),
    "endless frame": (lambda asked: b"\x7f\xff\xff\xff" + bytes(100), False),
    "empty frame": (lambda asked: bytes(4), False),
    "answer to an add": (lambda asked: v2.encode_add_reply(LEDGER, asked.entry_id), False),
    "no protocol": (lambda asked: b"\x00\x00\x00\x08HTTP/1.1", False),
}


@pytest.mark.parametrize("name", BAD)
def test_scan_ends_before_what_is_wrong(name: str) -> None:
    wrong, may_scan = BAD[name]
    assert play(lambda asked: wrong(asked) if asked.entry_id >= 50 else good(asked))[:2] == (50, may_scan)


def test_bookie_that_cannot_be_reached_is_not_scanned_and_the_next_one_is() -> None:
    async def call() -> None:
        async with HostileBookie(good) as gone, HostileBookie(good) as other:
            metadata, scan = (
                ledger_of(gone, other) if LEDGER % 2 == 0 else ledger_of(other, gone),
                new_scan(gone, other),
            )
            await gone.__aexit__()
            assert await asyncio.to_thread(scanned, scan, metadata) == 0
            assert scan.can_read(metadata, 0)
            assert await asyncio.to_thread(scanned, scan, metadata) == COUNT
            scan.close()

    asyncio.run(asyncio.wait_for(call(), 30))


def test_striped_ledger_is_not_scanned() -> None:
    async def call() -> None:
        async with HostileBookie(good) as one, HostileBookie(good) as two:
            metadata, scan = ledger_of(one, two, write_quorum=1), new_scan(one, two)
            assert not scan.can_read(metadata, 0)
            assert await asyncio.to_thread(scanned, scan, metadata) == 0
            assert not one.asked
            assert not two.asked

    asyncio.run(asyncio.wait_for(call(), 30))


def test_scan_that_is_left_begins_again_where_the_caller_wants() -> None:
    async def call() -> None:
        async with HostileBookie(good) as bookie:
            metadata, scan = ledger_of(bookie), new_scan(bookie)

            def leave() -> int:
                batches = scan.read(LEDGER, metadata, 0, COUNT, len(PAYLOAD), DIGEST)
                next(batches)
                batches.close()  # type: ignore[attr-defined]
                return scanned(scan, metadata, 40)

            assert await asyncio.to_thread(leave) == COUNT
            scan.close()

    asyncio.run(asyncio.wait_for(call(), 30))


def test_last_bytes_of_a_reply_wake_the_scan_though_nothing_follows_them() -> None:
    def answer_in_two_parts(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer:
            frame = peer.recv(1 << 16)
            body = frame[4 : 4 + int.from_bytes(frame[:4], "big")]
            answer = good(decoded(body))
            peer.sendall(answer[:-1])
            wait_until(lambda: not unread_bytes(peer.getpeername()[1]), "the scan to copy what it got")
            peer.sendall(answer[-1:])
            # The scan closes the connection, or the test ends it.
            peer.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(2) as threads:
        peer = threads.submit(answer_in_two_parts, listener)
        # A scan that is not woken gives up only after the test's patience.
        scan = NetworkScan({"b1": listener.getsockname()}, NetOptions(speculative_read_s=20.0, read_timeout_s=20.0))
        batches = scan.read(LEDGER, LedgerMetadata(1, 1, 1, (Fragment(0, ("b1",)),)), 0, 1, len(PAYLOAD), DIGEST)
        found = threads.submit(next, iter(batches))
        try:
            assert list(found.result(timeout=10)) == [PAYLOAD]
        finally:
            scan.close()
            peer.result()


def unread_bytes(port: int) -> int:
    """Return how many bytes a local socket of this port has received that its program has not taken."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, _, queues, *_ = line.split()
        if int(local.partition(":")[2], 16) == port:
            return int(queues.partition(":")[2], 16)
    return 0


def test_reply_that_comes_byte_by_byte_is_given_up() -> None:
    async def trickle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write((1 << 20).to_bytes(4, "big"))
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.02)
        except ConnectionError:
            writer.close()

    async def call() -> None:
        server = await asyncio.start_server(trickle, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()[:2]
        scan = NetworkScan({"b1": address}, NetOptions(speculative_read_s=0.3, read_timeout_s=0.5))
        metadata = LedgerMetadata(1, 1, 1, (Fragment(0, ("b1",)),))
        assert await asyncio.to_thread(scanned, scan, metadata) == 0
        assert not scan.can_read(metadata, 0)
        server.close()

    asyncio.run(asyncio.wait_for(call(), 30))


@pytest.mark.parametrize("address", [("127.0.0.1", 70_000), ("no.such.host.invalid", 3181), ("a" * 300, 3181)])
def test_scan_ends_where_an_address_leads_nowhere(address: tuple[str, int]) -> None:
    scan, metadata = NetworkScan({"b1": address}, OPTIONS), LedgerMetadata(1, 1, 1, (Fragment(0, ("b1",)),))
    assert scanned(scan, metadata) == 0
    assert not scan.can_read(metadata, 0)
