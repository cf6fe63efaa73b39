"""What peers can make a bookie hold, over real sockets: admission, never growth."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from bkspark.entries import EntryBatch
from bkspark.wire import v2
from bkspark.wire.status import Status
from bookie_service.network.connection_options import ConnectionOptions
from bookie_service.network.connections import ConnectionLimits
from bookie_service.network.memory_budget import UNCOUNTED_BYTES, Budget
from tests.bookie.served_process import ServedProcess
from tests.bookie.serving import DIGEST, KEY, Peer, Serving, service_options, stored
from tests.polling import wait_until

_MIB = 1 << 20
PEERS = 200


@contextlib.contextmanager
def connected(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Give sockets that never wait, with small buffers in the operating system."""
    peers = []
    try:
        for _ in range(count):
            peer = socket.socket()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
            peers.append(peer)
            peer.connect(("127.0.0.1", port))
            peer.setblocking(False)
        yield peers
    finally:
        for peer in peers:
            peer.close()


def send_what_goes(peers: list[socket.socket], data: bytes) -> int:
    """Send `data` on each socket until no socket takes any more; return the bytes sent."""
    sent = dict.fromkeys(peers, 0)
    total, before = 0, -1
    while total > before:
        before = total
        for peer in list(sent):
            try:
                count = peer.send(memoryview(data)[sent[peer] :])
            except BlockingIOError:
                continue
            except ConnectionError:
                del sent[peer]
                continue
            sent[peer] += count
            total += count
    return total


def is_closed(peer: socket.socket) -> bool:
    try:
        while data := peer.recv(_MIB):
            del data
        return True
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def part_of_frame(frame_bytes: int, size: int) -> bytes:
    """Return the first bytes of an add of `frame_bytes` bytes."""
    return (frame_bytes.to_bytes(4, "big") + v2.header_word(v2.ADD).to_bytes(4, "big")).ljust(size, b"\0")


def serve_adds_and_reads(peer: Peer, first_entry: int, count: int = 500) -> None:
    """Check that a peer gets what it asks for."""
    payloads = [b"%d" % i for i in range(count)]
    assert set(peer.add(5, first_entry, payloads)) == {Status.EOK}
    assert peer.read(5, first_entry + count - 1).body == stored(5, first_entry + count - 1, payloads[-1])


def test_halves_of_large_frames_hold_no_more_than_the_limit(tmp_path: Path) -> None:
    """Two hundred peers send 2.5 MiB each, half a gigabyte in all, of which the bookie holds 16 MiB."""
    options = service_options(tmp_path, received_bytes_max=16 * _MIB)
    with ServedProcess(options) as bookie, bookie.connect() as peer, connected(bookie.port, PEERS) as greedy:
        serve_adds_and_reads(peer, 0)
        before = bookie.resident_bytes()
        for turn in range(1, 4):
            send_what_goes(greedy, part_of_frame(5 * _MIB, 5 * _MIB // 2) if turn == 1 else bytes(100_000))
            serve_adds_and_reads(peer, 1000 * turn)
            assert bookie.resident_bytes() - before < 16 * _MIB + PEERS * UNCOUNTED_BYTES + 16 * _MIB


def test_frames_that_stay_unfinished_give_way_to_others(tmp_path: Path) -> None:
    options = service_options(tmp_path, received_bytes_max=12 * _MIB)
    with Serving(options) as serving, serving.connect() as peer, connected(serving.port, 4) as greedy:
        send_what_goes(greedy, part_of_frame(5 * _MIB, 5 * _MIB // 2))
        payload = os.urandom(4 * _MIB)
        assert peer.add(5, 0, [payload, payload]) == [Status.EOK] * 2
        wait_until(lambda: any(map(is_closed, greedy)), "an unfinished frame to be given up")
        assert peer.read(5, 1).body == stored(5, 1, payload)


def test_more_large_frames_than_there_is_room_for_all_come_through(tmp_path: Path) -> None:
    options = service_options(tmp_path, received_bytes_max=12 * _MIB)

    def add(port: int, ledger_id: int) -> list[int]:
        with Peer(port) as peer:
            return peer.add(ledger_id, 0, [bytes(3 * _MIB) for _ in range(2)])

    with Serving(options) as serving, ThreadPoolExecutor(12) as threads:
        statuses = threads.map(lambda ledger_id: add(serving.port, ledger_id), range(12))
        assert list(statuses) == [[Status.EOK] * 2] * 12


def test_replies_that_peers_do_not_take_hold_no_more_than_the_limit(tmp_path: Path) -> None:
    options = service_options(tmp_path, reply_bytes_max=16 * _MIB)
    with ServedProcess(options) as bookie, bookie.connect() as peer, connected(bookie.port, PEERS) as greedy:
        assert set(peer.add(6, 0, [os.urandom(100_000) for _ in range(50)])) == {Status.EOK}
        serve_adds_and_reads(peer, 0)
        before = bookie.resident_bytes()
        for turn in range(1, 4):
            send_what_goes(greedy, v2.encode_batch_read(6, 0, 1, 0, 5 * _MIB) * 20)
            serve_adds_and_reads(peer, 1000 * turn)
            # Twice the limit: replies are made before it is known whether they are taken.
            assert bookie.resident_bytes() - before < 2 * 16 * _MIB + PEERS * UNCOUNTED_BYTES + 16 * _MIB


def test_add_replies_that_peers_do_not_take_end_connections_not_the_bookie(tmp_path: Path) -> None:
    """Replies to adds cannot be held back: an add in flight is answered, or its connection closed."""
    options = service_options(tmp_path, reply_bytes_max=_MIB)
    batch = EntryBatch.of([b""] * 40_000, 7, 0)
    frames = bytes(v2.encode_adds(batch, -1, 0, DIGEST, KEY).buffer)
    with Serving(options) as serving, serving.connect() as peer, connected(serving.port, 4) as greedy:
        send_what_goes(greedy, frames)
        wait_until(lambda: any(map(_is_refused, greedy)), "a connection to be closed")
        serve_adds_and_reads(peer, 0)


def test_peer_that_takes_no_replies_is_closed_after_the_time_for_it(tmp_path: Path) -> None:
    options = service_options(tmp_path, connection=ConnectionOptions(stalled_s_max=0.3))
    with Serving(options) as serving, serving.connect() as peer, connected(serving.port, 1) as greedy:
        peer.add(6, 0, [os.urandom(100_000) for _ in range(50)])
        send_what_goes(greedy, v2.encode_batch_read(6, 0, 1, 0, 5 * _MIB) * 1000)
        wait_until(lambda: _is_refused(greedy[0]), "the connection to be closed")
        # A peer that is only idle is not stalled.
        assert peer.read(6, 0).status == Status.EOK


def test_frame_that_trickles_in_ends_its_connection_after_the_time_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two peers send a byte now and then, one within the uncounted bytes and one above; a third one is only idle."""
    options = service_options(tmp_path, connection=ConnectionOptions(frame_s_max=0.5))
    with Serving(options) as serving, serving.connect() as peer, connected(serving.port, 2) as trickling:
        # One small frame at a time: it comes whole, however slow the machine.
        assert peer.add(5, 0, [b"before"]) == [Status.EOK]
        for one, size in zip(trickling, (5, 4 * UNCOUNTED_BYTES)):
            one.send(part_of_frame(_MIB, size))

        def all_closed() -> bool:
            for one in trickling:
                with contextlib.suppress(ConnectionError):
                    one.send(b"\0")
            return all(map(is_closed, trickling))

        wait_until(all_closed, "the unfinished frames to be given up")
        assert peer.add(5, 1, [b"after"]) == [Status.EOK]
    assert sum("unfinished after 0.5 s (frameTimeoutMs)" in message for message in caplog.messages) == 2


def test_connections_cost_little_and_those_above_the_limit_are_refused_and_said(tmp_path: Path) -> None:
    """benchmarks/README.md has the cost of 10,000 connections; these are 600."""
    limit = 600
    # 60 of the 600 are reserved for the cluster's bookies, if there were any.
    options = service_options(tmp_path, connections=ConnectionLimits(limit * 10 // 9, limit * 10 // 9))
    with ServedProcess(options) as bookie, bookie.connect() as peer:
        serve_adds_and_reads(peer, 0)
        before = bookie.resident_bytes()
        with connected(bookie.port, limit - 1) as others:
            for other in others:
                other.setblocking(True)
                other.sendall(v2.encode_reads(5, np.array([0])))
                assert other.recv(1000)
                other.setblocking(False)
            with connected(bookie.port, 5) as above:
                wait_until(lambda: all(map(is_closed, above)), "those above the limit to be refused")
            assert not any(map(is_closed, others))
            assert bookie.resident_bytes() - before < limit * 16 * 1024
            serve_adds_and_reads(peer, 1000)
        wait_until(lambda: _is_served(bookie), "room for another connection")


def _is_served(bookie: ServedProcess) -> bool:
    with bookie.connect() as peer, contextlib.suppress(ConnectionError):
        peer.send(v2.encode_reads(5, np.array([0])))
        return peer.frame() is not None
    return False


def _is_refused(peer: socket.socket) -> bool:
    """Return whether the other side is gone, without taking anything."""
    try:
        peer.send(b"")
        peer.send(b"\0")
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return False


def test_requests_before_the_end_of_a_connection_are_answered(tmp_path: Path) -> None:
    with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
        peer.add(6, 0, [os.urandom(100_000) for _ in range(40)])
        peer.send(v2.encode_batch_read(6, 0, 1, 0, 5 * _MIB))
        peer.socket.shutdown(socket.SHUT_WR)
        assert len(peer.reply().body) > 39 * 100_000


def test_budget_never_exceeds_its_limit() -> None:
    budget = Budget(10)
    assert budget.take(7)
    assert not budget.take(4)
    assert budget.take(3)
    budget.give(10)
    assert (budget.used, budget.room) == (0, 10)
    with pytest.raises(AssertionError):
        budget.give(1)
