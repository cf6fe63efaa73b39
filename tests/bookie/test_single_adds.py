"""Adds that come alone, on a way of their own: judged as any, durable before they are answered, in any company."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.framing import FRAME_BYTES_MAX
from bkspark.wire.single_add import SingleAdd
from bkspark.wire.status import Status
from bookie_service.engine.bookie_environment import BookieOptions
from bookie_service.network.connection_options import ConnectionOptions
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.write_cache import MemTable
from tests.bookie.faulty_files import FaultyFiles
from tests.bookie.serving import KEY, Peer, Serving, adds, service_options, stored
from tests.bookie.v3_peer import V3Peer

OTHER_KEY = bytes(range(20, 40))
MANY = 3 * BookieOptions().serial_writer_after
"""Enough that the last ones are committed at once."""


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    with Serving(service_options(tmp_path)) as serving, serving.connect() as connected:
        for entry_id in range(MANY):
            assert connected.add(5, entry_id, [b"%d" % entry_id]) == [Status.EOK]
        yield connected


def test_single_add_is_found_and_nothing_else_is() -> None:
    frame = adds(5, 7, [b"payload"])
    add = v2.decode_single_add(memoryview(frame), len(frame), FRAME_BYTES_MAX)
    assert add == SingleAdd(5, 7, -1, KEY, 28, len(frame) - 28, v2.encode_add_reply)
    others = [
        frame[:-1],
        frame + frame,
        frame + b"\0",
        adds(5, 7, [b"payload"], 8),
        v2.encode_reads(5, np.array([7])),
        v2.encode_batch_read(5, 7, 1, 1, 1),
        b"\3" + frame[1:],
        frame[:4] + b"\1" + frame[5:],
    ]
    for other in others:
        assert v2.decode_single_add(memoryview(other), len(other), FRAME_BYTES_MAX) is None
    for end in range(len(frame)):
        assert v2.decode_single_add(memoryview(frame), end, FRAME_BYTES_MAX) is None
    assert v2.decode_single_add(memoryview(frame), len(frame), len(frame) - 5) is None


def test_item_is_what_the_entry_log_holds() -> None:
    frame = np.frombuffer(adds(5, 7, [b"payload"]), np.uint8)
    add = v2.decode_single_add(frame.data, len(frame), FRAME_BYTES_MAX)
    assert add is not None
    half, entry = MemTable(4096), stored(5, 7, b"payload")
    item = half.add_single(add.ledger_id, add.entry_id, frame, add.entry_at, add.size)
    assert item == len(entry).to_bytes(4, "big") + entry
    found = half.read(5, 7, 1, 4096)
    assert found is not None
    assert found.buffer == item


def test_single_adds_are_stored_as_they_came(peer: Peer) -> None:
    for entry_id in range(MANY):
        assert peer.read(5, entry_id).body == stored(5, entry_id, b"%d" % entry_id)
    assert peer.read(5, v2.LAST_ENTRY).body == stored(5, MANY - 1, b"%d" % (MANY - 1))


def test_entry_that_comes_again_or_late_replaces_the_one_before(peer: Peer) -> None:
    for entry_id in (MANY - 1, 3, MANY + 10, MANY + 5):
        assert peer.add(5, entry_id, [b"again"]) == [Status.EOK]
        assert peer.read(5, entry_id).body == stored(5, entry_id, b"again")
    assert peer.read(5, MANY + 4).status == Status.ENOENTRY


def test_what_bars_an_add_bars_one_that_comes_alone(peer: Peer) -> None:
    assert peer.add(5, MANY, [b"x"], key=OTHER_KEY) == [Status.EUA]
    assert peer.add(5, -7, [b"x"]) == [Status.EBADREQ]
    assert peer.add(-5, 0, [b"x"]) == [Status.EBADREQ]
    assert peer.read(5, 0, v2.DO_FENCING).status == Status.EOK
    assert peer.add(5, MANY, [b"x"]) == [Status.EFENCED]
    assert peer.add(5, MANY, [b"x"], v2.RECOVERY_ADD) == [Status.EOK]


def test_full_write_cache_is_flushed_and_the_adds_go_on(tmp_path: Path) -> None:
    small = service_options(
        tmp_path, store=StoreOptions(cache_half_bytes=16 * 1024), connection=ConnectionOptions(frame_bytes_max=4096)
    )
    with Serving(small) as serving, serving.connect() as peer:
        for entry_id in range(60):
            assert peer.add(5, entry_id, [b"x" * 1000]) == [Status.EOK]
        assert peer.read(5, 0).body == stored(5, 0, b"x" * 1000)


@pytest.mark.parametrize("operation", ["write", "sync_data"])
def test_s28_single_add_is_not_answered_when_the_journal_fails(tmp_path: Path, operation: str) -> None:
    """Invariant B1, scenario S28, where the connection itself commits."""
    files = FaultyFiles()
    with Serving(service_options(tmp_path), files) as serving, serving.connect() as peer:
        for entry_id in range(MANY):
            peer.add(5, entry_id, [b"durable"])
        files.fault = lambda what, path: what == operation and path.endswith(".txn")
        peer.send(adds(5, MANY, [b"never acknowledged"]))
        assert peer.frame() is None
        assert isinstance(serving.wait_for_failure(), OSError)


def test_every_single_add_is_synced_before_its_answer_and_survives(tmp_path: Path) -> None:
    files = FaultyFiles()
    with Serving(service_options(tmp_path), files) as serving, serving.connect() as peer, serving.connect() as other:
        for entry_id in range(MANY):
            for writer, ledger_id in ((peer, 5), (other, 6)) if entry_id % 7 == 0 else ((peer, 5),):
                before = files.operations.count(("sync_data", _journal(tmp_path)))
                assert writer.add(ledger_id, entry_id, [b"%d" % entry_id]) == [Status.EOK]
                assert files.operations.count(("sync_data", _journal(tmp_path))) > before
        serving.abandon()
    with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
        for entry_id in range(MANY):
            assert peer.read(5, entry_id).body == stored(5, entry_id, b"%d" % entry_id)
        assert peer.read(6, 7).body == stored(6, 7, b"7")


def _journal(directory: Path) -> str:
    return str(directory / "journal" / "current" / "0000000000000001.txn")


@pytest.mark.parametrize("flags", [v2.RECOVERY_ADD, v2.RECOVERY_ADD | v2.HIGH_PRIORITY])
def test_adds_of_a_recovery_are_left_to_the_journals_thread(tmp_path: Path, flags: int) -> None:
    """Apache's recovery reads the next entry while it adds this one, so the event loop must not wait for the sync."""
    threads: set[str] = set()

    def note(what: str, path: str) -> bool:
        if what == "sync_data" and path.endswith(".txn"):
            threads.add(threading.current_thread().name)
        return False

    files = FaultyFiles()
    with Serving(service_options(tmp_path), files) as serving, serving.connect() as peer:
        assert peer.add(5, 0, [b"first"]) == [Status.EOK]
        assert peer.read(5, 0, v2.DO_FENCING).status == Status.EOK
        files.fault = note
        for entry_id in range(MANY):
            assert peer.add(5, entry_id, [b"%d" % entry_id], flags) == [Status.EOK]
        assert threads == {"journal-0"}


def test_single_adds_in_v3_are_judged_and_stored_as_those_in_v2(tmp_path: Path) -> None:
    with Serving(service_options(tmp_path)) as serving, serving.connect() as v2_peer:
        peer = V3Peer(serving.port)
        try:
            for entry_id in range(MANY):
                assert peer.add_all(5, entry_id, [b"%d" % entry_id]) == [v3.StatusCode.EOK]
            assert v2_peer.read(5, v2.LAST_ENTRY).body == stored(5, MANY - 1, b"%d" % (MANY - 1))
            assert v2_peer.read(5, 0, v2.DO_FENCING).status == Status.EOK
            assert peer.add_all(5, MANY, [b"x"]) == [v3.StatusCode.EFENCED]
            recovery = protocol.AddRequest.RECOVERY_ADD
            assert peer.add_all(5, MANY, [b"recovered"], flag=recovery) == [v3.StatusCode.EOK]
            assert v2_peer.read(5, MANY).body == stored(5, MANY, b"recovered")
        finally:
            peer.close()
