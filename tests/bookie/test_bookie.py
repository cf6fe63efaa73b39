"""What a bookie answers over the wire. Sections are those of the interoperability reference."""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2
from bkspark.wire.digest import master_key
from bkspark.wire.status import Status
from bookie_service.engine.bookie import Bookie
from bookie_service.engine.bookie_environment import BookieClient, BookieOptions
from bookie_service.engine.disk_watch import DiskOptions
from bookie_service.engine.single_reads import SingleReads
from bookie_service.formats.index import LAYOUT, UNKNOWN_KEY
from bookie_service.network.connection_options import ConnectionOptions
from bookie_service.network.connections import ConnectionLimits
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.bookie.faulty_files import FaultyFiles
from tests.bookie.serving import KEY, Peer, Serving, adds, service_options, split, stored
from tests.polling import wait_until

OTHER_KEY = master_key(b"other")
PAYLOADS = [bytes([65 + i]) * (i + 1) for i in range(20)]


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with Serving(service_options(tmp_path)) as running:
        yield running


@pytest.fixture
def peer(serving: Serving) -> Iterator[Peer]:
    with serving.connect() as connected:
        yield connected


# ---- adds ----


def test_added_entry_is_returned_verbatim(peer: Peer) -> None:
    frame = adds(5, 7, [b"hello"])
    peer.send(frame)
    reply = peer.reply()
    assert (reply.status, reply.ledger_id, reply.entry_id) == (Status.EOK, 5, 7)
    assert peer.read(5, 7).body == frame[28:]


def test_reference_vector_is_answered_with_the_reference_reply(peer: Peer) -> None:
    peer.send(
        bytes.fromhex(
            "00000041020100002e2a69d870796fe05c0e77c52a29ce5e4222b758"
            "0000000000000005000000000000000700000000000000060000000000000069"
            "9486248768656c6c6f"
        )
    )
    assert peer.frame() == bytes.fromhex("020100000000000000000000000000050000000000000007")


def test_pipelined_adds_of_many_sizes_and_ledgers_are_all_stored(peer: Peer) -> None:
    frames = b""
    for entry_id, payload in enumerate(PAYLOADS):
        for ledger_id in (3, 1, 2):
            frames += adds(ledger_id, entry_id, [payload])
    peer.send(frames)
    assert {reply.status for reply in peer.replies(60)} == {Status.EOK}
    for ledger_id in (1, 2, 3):
        assert split(peer.batch_read(ledger_id, 0).body) == [
            stored(ledger_id, entry_id, payload) for entry_id, payload in enumerate(PAYLOADS)
        ]


def test_adding_an_entry_again_is_not_an_error(peer: Peer) -> None:
    assert peer.add(5, 0, [b"same", b"bytes"]) == [Status.EOK] * 2
    assert peer.add(5, 0, [b"same"]) == [Status.EOK]
    assert peer.read(5, 0).body == stored(5, 0, b"same")


def test_entries_may_arrive_in_any_order_and_with_gaps(peer: Peer) -> None:
    for entry_id in (7, 3, 9, 1, 8):
        assert peer.add(5, entry_id, [b"%d" % entry_id]) == [Status.EOK]
    assert peer.read(5, 3).body == stored(5, 3, b"3")
    assert peer.read(5, 2).status == Status.ENOENTRY
    assert split(peer.batch_read(5, 7).body) == [stored(5, entry_id, b"%d" % entry_id) for entry_id in (7, 8, 9)]


def test_wrong_master_key_is_refused_and_stores_nothing(peer: Peer) -> None:
    assert peer.add(5, 0, [b"mine"]) == [Status.EOK]
    assert peer.add(5, 1, [b"theirs"], key=OTHER_KEY) == [Status.EUA]
    assert peer.read(5, 1).status == Status.ENOENTRY


def test_one_wrong_key_among_many_refuses_only_that_add(peer: Peer) -> None:
    peer.send(adds(5, 0, [b"a"]) + adds(5, 1, [b"b"], key=OTHER_KEY) + adds(5, 2, [b"c"]))
    assert {reply.entry_id: reply.status for reply in peer.replies(3)} == {0: 0, 1: Status.EUA, 2: 0}
    assert peer.read(5, 2).body == stored(5, 2, b"c")


def test_trap_16_an_all_zero_key_counts_as_unknown_and_the_next_one_is_kept_and_checked(tmp_path: Path) -> None:
    """Apache's rebuilding of an index leaves zeros; an owner's key must not be refused for them, nor two be taken."""
    options = service_options(tmp_path)
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.add(5, 0, [b"unknown"], key=UNKNOWN_KEY) == [Status.EOK]
        assert peer.add(5, 1, [b"mine"]) == [Status.EOK]
        assert peer.add(5, 2, [b"theirs"], key=OTHER_KEY) == [Status.EUA]
        assert peer.add(5, 2, [b"nobody's"], key=UNKNOWN_KEY) == [Status.EUA]
        assert peer.add(6, 0, [b"unknown"], key=UNKNOWN_KEY) == [Status.EOK]
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.add(5, 2, [b"theirs"], key=OTHER_KEY) == [Status.EUA]
        assert peer.add(5, 2, [b"mine"]) == [Status.EOK]
        assert peer.add(6, 1, [b"mine"]) == [Status.EOK]
        assert peer.add(6, 2, [b"theirs"], key=OTHER_KEY) == [Status.EUA]


@pytest.mark.parametrize(("ledger_id", "entry_id"), [(-1, 0), (5, -1), (5, 1 << 62)])
def test_ids_that_cannot_be_stored_are_a_bad_request_without_a_trace(peer: Peer, ledger_id: int, entry_id: int) -> None:
    frame = bytearray(adds(5, 0, [b"x"]))
    frame[28:44] = struct.pack(">qq", ledger_id, entry_id)
    peer.send(bytes(frame))
    assert peer.reply().status == Status.EBADREQ
    assert peer.read(5, v2.LAST_ENTRY).status == Status.ENOLEDGER


def test_read_only_bookie_takes_high_priority_adds_and_fences_only(tmp_path: Path) -> None:
    options = service_options(tmp_path, disks=DiskOptions(is_forced_read_only=True))
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.add(5, 0, [b"x"]) == [Status.EREADONLY]
        assert peer.add(5, 0, [b"x"], v2.RECOVERY_ADD | v2.HIGH_PRIORITY) == [Status.EOK]
        assert peer.read(5, 0, v2.DO_FENCING).status == Status.EOK


# ---- reads ----


def test_unknown_ledger_and_missing_entry_have_different_answers(peer: Peer) -> None:
    peer.add(5, 0, [b"x"])
    assert peer.read(6, 0).status == Status.ENOLEDGER
    assert peer.read(5, 1).status == Status.ENOENTRY


def test_read_of_last_entry_returns_the_highest_id_and_echoes_minus_one(peer: Peer) -> None:
    peer.add(5, 9, [b"nine"])
    peer.add(5, 4, [b"four"])
    reply = peer.read(5, v2.LAST_ENTRY)
    assert (reply.entry_id, reply.body) == (-1, stored(5, 9, b"nine"))


def test_pipelined_reads_are_all_answered(peer: Peer) -> None:
    peer.add(5, 0, PAYLOADS)
    peer.add(6, 0, PAYLOADS[:3])
    asked = [(5, 0), (5, 1), (5, 2), (6, 1), (5, -1), (5, 19), (5, 20), (7, 0), (6, 2), (6, 3)]
    for ledger_id, entry_id in asked:
        peer.send(v2.encode_reads(ledger_id, np.array([entry_id])))
    replies = {(reply.ledger_id, reply.entry_id): reply for reply in peer.replies(len(asked))}
    assert replies[5, 2].body == stored(5, 2, PAYLOADS[2])
    assert replies[6, 1].body == stored(6, 1, PAYLOADS[1])
    assert replies[5, -1].body == stored(5, 19, PAYLOADS[19])
    statuses = {key: replies[key].status for key in ((5, 20), (7, 0), (6, 3))}
    assert statuses == {(5, 20): Status.ENOENTRY, (7, 0): Status.ENOLEDGER, (6, 3): Status.ENOENTRY}


def test_batch_read_returns_the_first_entry_whatever_its_size(peer: Peer) -> None:
    peer.add(5, 0, [b"x" * 1000] * 3)
    assert split(peer.batch_read(5, 0, bytes_max=1).body) == [stored(5, 0, b"x" * 1000)]
    assert len(split(peer.batch_read(5, 0, bytes_max=-5).body)) == 1


def test_batch_read_accounts_36_bytes_and_4_for_each_entry(peer: Peer) -> None:
    peer.add(5, 0, [b"x" * 100] * 10)
    entry_bytes = len(stored(5, 0, b"x" * 100))
    assert len(split(peer.batch_read(5, 0, bytes_max=36 + 3 * (entry_bytes + 4)).body)) == 3
    assert len(split(peer.batch_read(5, 0, bytes_max=36 + 3 * (entry_bytes + 4) - 1).body)) == 2


def test_batch_read_stops_at_count_and_at_the_first_missing_entry(peer: Peer) -> None:
    peer.add(5, 0, PAYLOADS[:5])
    peer.add(5, 6, PAYLOADS[6:8])
    assert len(split(peer.batch_read(5, 0, entries_max=3).body)) == 3
    assert len(split(peer.batch_read(5, 0).body)) == 5
    reply = peer.batch_read(5, 5)
    assert (reply.status, reply.request_id, reply.body) == (Status.ENOENTRY, 99, b"")
    assert peer.batch_read(9, 0).status == Status.ENOLEDGER


def test_reads_across_write_cache_and_entry_logs_join(tmp_path: Path) -> None:
    first, second = PAYLOADS[:12], PAYLOADS[12:]
    with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
        peer.add(5, 0, first)
    with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
        peer.add(5, 12, second)
        expected = [stored(5, entry_id, payload) for entry_id, payload in enumerate(PAYLOADS)]
        assert split(peer.batch_read(5, 0).body) == expected
        peer.send(v2.encode_reads(5, np.arange(20)))
        assert [reply.body for reply in sorted(peer.replies(20), key=lambda reply: reply.entry_id)] == expected


def test_damaged_entry_is_an_io_error_never_a_negative(tmp_path: Path) -> None:
    with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
        peer.add(5, 0, PAYLOADS)
    (log,) = tmp_path.glob("ledgers/current/*.log")
    content = bytearray(log.read_bytes())
    at = content.index(stored(5, 3, PAYLOADS[3]))
    content[at + 15] ^= 1
    log.write_bytes(content)
    with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
        assert peer.read(5, 3).status == Status.EIO
        assert peer.batch_read(5, 3).status == Status.EIO
        assert peer.read(5, 4).body == stored(5, 4, PAYLOADS[4])
        assert len(split(peer.batch_read(5, 0).body)) == 3


def test_p26_lost_entry_log_is_an_io_error_never_a_negative(tmp_path: Path) -> None:
    """#2908: that a recovery counts no such answer: tests/simulation, "error is negative"."""
    with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
        peer.add(5, 0, PAYLOADS)
    (log,) = tmp_path.glob("ledgers/current/*.log")
    log.unlink()
    with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
        assert peer.read(5, 3).status == Status.EIO


def test_damaged_index_header_is_an_io_error_never_an_unknown_ledger(tmp_path: Path) -> None:
    with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
        peer.add(5, 0, PAYLOADS)
    (index,) = tmp_path.glob("ledgers/current/*/*/5.idx")
    index.write_bytes(bytes(LAYOUT.positions_at) + index.read_bytes()[LAYOUT.positions_at :])
    with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
        assert peer.read(5, 3).status == Status.EIO
        assert peer.add(5, 20, [b"x"]) == [Status.EIO]
        assert peer.read(5, 0, v2.DO_FENCING).status == Status.EIO


# ---- fences ----


def test_fenced_ledger_refuses_adds_but_takes_recovery_adds(peer: Peer) -> None:
    peer.add(5, 0, [b"a", b"b"])
    reply = peer.read(5, v2.LAST_ENTRY, v2.DO_FENCING)
    assert (reply.status, reply.body) == (Status.EOK, stored(5, 1, b"b"))
    assert peer.add(5, 2, [b"late"]) == [Status.EFENCED]
    assert peer.add(5, 1, [b"b", b"c"], v2.RECOVERY_ADD | v2.HIGH_PRIORITY) == [Status.EOK] * 2
    assert peer.read(5, v2.LAST_ENTRY).body == stored(5, 2, b"c")


def test_fencing_an_unknown_ledger_creates_it_fenced(peer: Peer) -> None:
    assert peer.read(5, 0, v2.DO_FENCING).status == Status.ENOENTRY
    assert peer.add(5, 0, [b"x"]) == [Status.EFENCED]
    assert peer.add(5, 0, [b"x"], v2.RECOVERY_ADD, key=OTHER_KEY) == [Status.EUA]


def test_p22_two_connections_that_name_a_ledger_first_at_the_same_time_mean_the_same_one(serving: Serving) -> None:
    """#4701: were there two descriptors of it, a fence of one would not bar adds by the other."""
    with serving.connect() as owner, serving.connect() as recoverer:
        for ledger_id in range(100, 150):
            first, second = (owner, recoverer) if ledger_id % 2 else (recoverer, owner)
            for peer in (first, second):
                if peer is owner:
                    peer.send(adds(ledger_id, 0, [b"raced"]))
                else:
                    peer.send(v2.encode_reads(ledger_id, np.array([0]), v2.DO_FENCING, KEY))
            added, fenced = owner.reply().status, recoverer.reply()
            assert (added, fenced.status) != (Status.EFENCED, Status.EOK)
            assert owner.add(ledger_id, 1, [b"late"]) == recoverer.add(ledger_id, 1, [b"late"]) == [Status.EFENCED]
            held = recoverer.read(ledger_id, 0)
            assert held.status == (Status.EOK if added == Status.EOK else Status.ENOENTRY)


def test_x04_refused_key_is_not_logged_nor_is_the_stored_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
        peer.add(5, 0, [b"x"])
        assert peer.add(5, 1, [b"x"], key=OTHER_KEY) == [Status.EUA]
        assert peer.read(5, 0, v2.DO_FENCING, key=OTHER_KEY).status == Status.EUA
    said = caplog.text + repr([record.args for record in caplog.records])
    for key in (KEY, OTHER_KEY):
        for secret in (
            key.hex(),
            repr(key)[2:-1],
            str(list(key))[1:-1],
            ", ".join(str(b - (b > 127) * 256) for b in key),
        ):
            assert secret not in said


def test_fence_with_a_wrong_key_changes_nothing(peer: Peer) -> None:
    """Scenario S03."""
    peer.add(5, 0, [b"a"])
    assert peer.read(5, 0, v2.DO_FENCING, key=OTHER_KEY).status == Status.EUA
    assert peer.add(5, 1, [b"b"]) == [Status.EOK]


def test_fencing_reads_that_come_together_are_distinguished_by_ledger_and_key(peer: Peer) -> None:
    for ledger_id in (5, 6, 7):
        peer.add(ledger_id, 0, PAYLOADS[:4])
    requests = [(5, [0, 1], KEY), (5, [2], OTHER_KEY), (5, [3, -1], KEY), (6, [0, 9], OTHER_KEY), (7, [1, 0], KEY)]
    peer.send(b"".join(v2.encode_reads(ledger, np.array(ids), v2.DO_FENCING, key) for ledger, ids, key in requests))
    answers = {(it.ledger_id, it.entry_id): (it.status, it.body) for it in peer.replies(9)}
    for ledger_id, ids, key in requests:
        for entry_id in ids:
            held = stored(ledger_id, entry_id % 4, PAYLOADS[entry_id % 4])
            expected = (Status.EOK, held) if key == KEY else (Status.EUA, b"")
            assert answers[ledger_id, entry_id] == expected
    assert [peer.add(ledger_id, 4, [b"late"]) for ledger_id in (5, 6, 7)] == [[Status.EFENCED], [0], [Status.EFENCED]]


def test_fencing_reads_of_a_recovery_are_one_run(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    serve = Bookie.fence_and_read

    def noting(bookie: Bookie, client: BookieClient, ledger_id: int, key: bytes, reads: SingleReads) -> int | None:
        runs.append((ledger_id, key, len(reads)))
        return serve(bookie, client, ledger_id, key, reads)

    monkeypatch.setattr(Bookie, "fence_and_read", noting)
    peer.send(b"".join(v2.encode_reads(ledger, np.arange(40), v2.DO_FENCING, KEY) for ledger in (5, 6)))
    assert len(list(peer.replies(80))) == 80
    assert runs == [(5, KEY, 40), (6, KEY, 40)]


def test_batch_read_may_fence(peer: Peer) -> None:
    peer.add(5, 0, [b"a", b"b"])
    assert len(split(peer.batch_read(5, 0, flags=v2.DO_FENCING).body)) == 2
    assert peer.add(5, 2, [b"late"]) == [Status.EFENCED]


@pytest.mark.parametrize("clean", [True, False])
def test_fence_key_and_entries_survive_a_restart(tmp_path: Path, clean: bool) -> None:
    """Scenarios S01, S14, S22: an abandoned process flushed nothing, so replay must bring back all three."""
    with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
        peer.add(5, 0, PAYLOADS)
        peer.read(5, 0, v2.DO_FENCING)
        peer.read(6, 0, v2.DO_FENCING)
        if not clean:
            serving.abandon()
    with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
        for ledger_id in (5, 6):
            assert peer.add(ledger_id, 20, [b"late"]) == [Status.EFENCED]
            assert peer.add(ledger_id, 20, [b"x"], v2.RECOVERY_ADD, key=OTHER_KEY) == [Status.EUA]
        assert len(split(peer.batch_read(5, 0).body)) == len(PAYLOADS)


# ---- durability ----


@pytest.mark.parametrize("operation", ["write", "sync_data"])
def test_s28_failed_journal_ends_the_service_without_a_reply(tmp_path: Path, operation: str) -> None:
    """Invariant B1, scenario S28."""
    files = FaultyFiles()
    with Serving(service_options(tmp_path), files) as serving, serving.connect() as peer:
        peer.add(5, 0, [b"durable"])
        files.fault = lambda what, path: what == operation and path.endswith(".txn")
        peer.send(adds(5, 1, [b"never acknowledged"]))
        assert peer.frame() is None
        failure = serving.wait_for_failure()
        assert isinstance(failure, OSError)
        assert failure.filename.endswith(".txn")


def test_no_answer_to_a_fencing_read_leaves_before_the_fence_is_durable(tmp_path: Path) -> None:
    """Hazard X2: the negative answer, too."""
    files = FaultyFiles()
    with Serving(service_options(tmp_path), files) as serving, serving.connect() as peer:
        files.fault = lambda what, path: what == "sync_data" and path.endswith(".txn")
        peer.send(v2.encode_reads(5, np.array([0]), v2.DO_FENCING, KEY))
        assert peer.frame() is None
        serving.wait_for_failure()


def test_failed_checkpoint_ends_the_service_and_loses_nothing(tmp_path: Path) -> None:
    options = service_options(tmp_path, checkpoint_interval_s=0.05)
    files = FaultyFiles()
    with Serving(options, files) as serving, serving.connect() as peer:
        files.fault = lambda what, path: what == "sync_data" and path.endswith(".idx")
        peer.add(5, 0, PAYLOADS)
        assert serving.wait_for_failure() is not None
    with Serving(options) as serving, serving.connect() as peer:
        assert len(split(peer.batch_read(5, 0).body)) == len(PAYLOADS)


def test_s28_error_of_our_own_in_a_change_ends_the_service(tmp_path: Path) -> None:
    """Scenario S28: state may be half changed; `test_containment` has what happens where nothing can be."""

    def bug(operation: str, path: str) -> bool:
        raise RuntimeError(f"{operation} {path}")

    with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
        peer.add(5, 0, [b"x"])
    files = FaultyFiles()
    with Serving(service_options(tmp_path), files) as serving, serving.connect() as peer:
        files.fault = bug
        peer.send(v2.encode_reads(5, np.array([0]), v2.DO_FENCING, KEY))
        assert peer.frame() is None
        assert isinstance(serving.wait_for_failure(), RuntimeError)


# ---- limits ----


def tiny_cache(directory: Path) -> object:
    """Options with a write cache that a few adds fill."""
    return service_options(
        directory,
        connection=ConnectionOptions(frame_bytes_max=4096),
        store=StoreOptions(cache_half_bytes=16 * 1024, append=AppendOptions(64 * 1024)),
    )


def test_more_adds_than_the_write_cache_holds_are_taken_as_it_empties(tmp_path: Path) -> None:
    with Serving(tiny_cache(tmp_path)) as serving, serving.connect() as peer:
        payloads = [os.urandom(200) for _ in range(2000)]
        assert set(peer.add(5, 0, payloads)) == {Status.EOK}
        entry_id = 0
        while entry_id < 2000:
            entries = split(peer.batch_read(5, entry_id).body)
            assert entries[0] == stored(5, entry_id, payloads[entry_id])
            entry_id += len(entries)
    assert len(list(tmp_path.glob("ledgers/current/*.log"))) > 3


def test_adds_beyond_the_limit_in_flight_wait_and_are_served(tmp_path: Path) -> None:
    options = service_options(tmp_path, bookie=BookieOptions(adds_in_flight_max=10))
    with Serving(options) as serving, serving.connect() as first, serving.connect() as second:
        first.send(b"".join(adds(5, i, [b"x"]) for i in range(300)))
        second.send(b"".join(adds(6, i, [b"x"]) for i in range(300)))
        assert {reply.status for reply in first.replies(300) + second.replies(300)} == {Status.EOK}


def test_peer_that_never_reads_its_replies_does_not_stop_others(tmp_path: Path) -> None:
    with Serving(service_options(tmp_path)) as serving, serving.connect() as greedy, serving.connect() as peer:
        peer.add(5, 0, [os.urandom(100_000)] * 40)
        greedy.socket.settimeout(0.2)
        request = v2.encode_batch_read(5, 0, 1, 0, 4 << 20) * 50
        with pytest.raises(TimeoutError):
            greedy.send(request * 2000)
        assert peer.read(5, 0).status == Status.EOK


def test_connection_above_the_limit_is_closed_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = service_options(tmp_path, connections=ConnectionLimits(1))
    with Serving(options) as serving, serving.connect() as first:
        assert first.add(5, 0, [b"x"]) == [Status.EOK]
        with serving.connect() as second:
            second.send(adds(5, 1, [b"x"]))
            assert second.frame() is None
        assert first.add(5, 1, [b"x"]) == [Status.EOK]
    assert (
        "refused a connection from 127.0.0.1: its address has 1 already (maxConnectionsPerAddress)" in caplog.messages
    )


def test_largest_entry_that_fits_a_frame_is_stored(peer: Peer) -> None:
    payload = os.urandom(5 * 1024 * 1024)
    assert peer.add(5, 0, [payload, b"small"]) == [Status.EOK] * 2
    assert peer.read(5, 0).body == stored(5, 0, payload)
    assert split(peer.batch_read(5, 0).body) == [stored(5, 0, payload)]


# ---- frames that are not storage requests ----


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(struct.pack(">i", 6 << 20), id="too long"),
        pytest.param(struct.pack(">i", -1), id="negative length"),
        pytest.param(struct.pack(">ii", 4, 0x02040000), id="opcode not served in V2"),
        pytest.param(struct.pack(">ii", 4, 0x05010000), id="unknown version"),
        pytest.param(struct.pack(">ii", 4, 0x02010000), id="add without a body"),
        pytest.param(struct.pack(">i", 0), id="empty frame"),
        pytest.param(struct.pack(">i", 6) + b"\x0a\xff\xff\xff\xff\xff", id="V3 that cannot be parsed"),
    ],
)
def test_s39_frame_that_is_not_the_protocol_closes_the_connection(serving: Serving, frame: bytes) -> None:
    with serving.connect() as broken:
        broken.send(frame)
        assert broken.frame() is None
    with serving.connect() as other:
        assert other.add(5, 0, [b"x"]) == [Status.EOK]


@pytest.mark.parametrize(
    ("word", "answered"),
    [
        (0x00000001, 0x00000001),
        (0x00000002, 0x00000002),
        (0x00000007, 0x00000007),
        (0x01010006, 0x01010000),
        (0x01020001, 0x01020000),
        (0x03020001, 0x03020000),
        (0x7F070000, 0x7F070000),
        (-0x7FFE0000, -0x7FFE0000),
    ],
)
def test_request_of_another_version_of_v2_is_answered_with_its_ids_and_the_connection_goes_on(
    peer: Peer, word: int, answered: int
) -> None:
    opcode = word if word >> 24 == 0 else word >> 16 & 0xFF
    ids = struct.pack(">qq", 5, 7)
    bodies = {v2.ADD: KEY + ids, v2.READ: ids, v2.BATCH_READ: ids + struct.pack(">qiq", 99, 10, 1000)}
    assert peer.add(5, 0, [b"x"]) == [Status.EOK]
    body = struct.pack(">i", word) + bodies[opcode]
    peer.send(len(body).to_bytes(4, "big") + body)
    expected = struct.pack(">iiqq", answered, Status.EBADVERSION, 5, 7)
    assert peer.frame() == expected + (struct.pack(">q", 99) if opcode == v2.BATCH_READ else b"")
    assert peer.add(5, 1, [b"x"]) == [Status.EOK], "not fenced, and the connection goes on"
    assert peer.read(5, 7).status == Status.ENOENTRY


def test_requests_of_several_versions_in_one_buffer_are_all_answered(peer: Peer) -> None:
    reads = [
        struct.pack(">iiqq", 20, word, 5, entry_id) for entry_id, word in enumerate((0x02020000, 0x01020000, 2) * 3)
    ]
    peer.send(b"".join(reads))
    answers = sorted((peer.frame() or b"" for _ in reads), key=lambda answer: answer[16:24])
    statuses = [struct.unpack_from(">i", answer, 4)[0] for answer in answers]
    assert statuses == [Status.ENOLEDGER, Status.EBADVERSION, Status.EBADVERSION] * 3


def test_s39_random_bytes_never_hurt_other_connections(serving: Serving, peer: Peer) -> None:
    random = np.random.default_rng(7)
    valid = adds(5, 0, [b"payload"]) + v2.encode_batch_read(5, 0, 1, 5, 1000)
    for _ in range(200):
        damaged = bytearray(valid)
        for _ in range(3):
            damaged[random.integers(len(damaged))] = random.integers(256)
        with serving.connect() as broken:
            broken.send(bytes(damaged))
    assert peer.add(77, 0, [b"x"]) == [Status.EOK]


def test_auth_is_answered_with_the_disabled_plugin(peer: Peer) -> None:
    message = protocol.AuthMessage(authPluginName="sasl", payload=b"token").SerializeToString()
    peer.send(v2.encode_auth_reply(message))
    body = peer.frame()
    assert body is not None
    assert body[:4] == bytes.fromhex("02030000")
    answer = protocol.AuthMessage.FromString(body[4:])
    assert (answer.authPluginName, answer.payload) == ("AuthDisabledPlugin", b"")
    assert peer.add(5, 0, [b"x"]) == [Status.EOK]


def test_several_journals_share_the_ledgers(tmp_path: Path) -> None:
    options = service_options(tmp_path)
    options = replace(
        options,
        journal_directories=[str(tmp_path / f"journal{i}") for i in range(3)],
        ledger_directories=[str(tmp_path / f"ledgers{i}") for i in range(2)],
    )
    frames = b"".join(adds(ledger_id, i, [b"%d" % i]) for i in range(20) for ledger_id in range(10))
    with Serving(options) as serving, serving.connect() as peer:
        peer.send(frames)
        assert {reply.status for reply in peer.replies(200)} == {Status.EOK}
        for ledger_id in range(10):
            assert peer.read(ledger_id, -1, v2.DO_FENCING).status == Status.EOK
        serving.abandon()
    with Serving(options) as serving, serving.connect() as peer:
        for ledger_id in range(10):
            assert len(split(peer.batch_read(ledger_id, 0).body)) == 20
            assert peer.add(ledger_id, 20, [b"x"]) == [Status.EFENCED]


def test_checkpoints_empty_the_cache_while_serving(tmp_path: Path) -> None:
    options = service_options(tmp_path, checkpoint_interval_s=0.05)
    with Serving(options) as serving, serving.connect() as peer:
        peer.add(5, 0, PAYLOADS)
        wait_until(lambda: any(tmp_path.glob("ledgers/current/*/*/5.idx")), "the index file of a checkpoint")
        peer.add(5, 20, PAYLOADS)
        assert len(split(peer.batch_read(5, 0).body)) == 40
