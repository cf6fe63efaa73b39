"""What a bookie must not forget or confuse: reports that come late, packets of other ledgers, ledgers that are written.

Each test is about one step of a bookie without threads.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.status import Status
from bookie_service.gc.gc_policy import UnlistedLedgers
from bookie_service.storage.index.manifest import IndexManifest, IndexManifestWriter
from bookie_service.storage.io.disk_threads import DiskThreads
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.io.placed_file import PlacedFile
from bookie_service.storage.ledgers.interface import Flush
from bookie_service.storage.ledgers.tombstones import KEPT_S, Tombstones
from tests.bookie.changing import Client, add, fence
from tests.bookie.deferred_adds import BYPASSING, DEFERRED
from tests.bookie.serving import KEY, adds, stored
from tests.bookie.simulated_connections import ServedBookie, SimulatedSocket
from tests.bookie.stepped_twins import new_disk
from tests.bookie.taken_adds import after_crash, new_twin, offer, run_of
from tests.bookie.v3_peer import FENCE, PIGGYBACK, add_frames, request
from tests.crash.simulated_files import SimulatedFiles
from tests.crash.twins import lac_packet


def ask(served: ServedBookie, peer: SimulatedSocket, operation: int, **message: Any) -> protocol.Response | None:
    """Send a V3 request; return the answer, or None if there is none after some turns."""
    peer.sent.clear()
    peer.received += v3.encode_message(request(operation, 7, **message))
    for _ in range(6):
        served.turn()
    return v3.decode_response(bytes(peer.sent[4:])) if peer.sent else None


# ---- ledgers ----


def test_a_lac_of_another_ledger_is_never_kept() -> None:
    twin = new_twin()
    add(twin, (5, 0))
    ledger = twin.store.ledger(5)
    assert ledger is not None
    with pytest.raises(ValueError, match="of ledger 6 for ledger 5"):
        twin.store.advance_lac(ledger, lac_packet(6, 3))
    assert twin.header(5).explicit_lac == b""


def test_a_ledger_that_was_written_during_a_pass_is_not_dropped_by_it() -> None:
    """Its deletion was proven before the entry came: a repair may have brought it back."""
    twin = new_twin()
    add(twin, (5, 0), (6, 0))
    twin.checkpoint()
    twin.store.watch.begin()
    add(twin, (5, 1))
    twin.checkpoint()
    assert twin.store.drop([5, 6]) == [6]
    twin.store.watch.end()
    assert twin.store.drop([5]) == [5]


def test_a_fence_is_remembered_before_the_index_gives_up_its_ledger() -> None:
    twin = new_twin()
    add(twin, (5, 0))
    fence(twin, 5)
    twin.checkpoint()

    def fault(operation: str, path: str) -> OSError | None:
        return OSError(errno.EIO, "Input/output error", path) if "indexFiles" in path else None

    twin.disk.fault = fault
    with pytest.raises(OSError, match="Input/output"):
        twin.store.prepare_drop([5], [5], 1)
    twin.disk.fault = None
    assert 5 in twin.store.tombstones
    assert 5 in after_crash(twin).store.tombstones


def test_a_ledger_that_is_dropped_again_is_remembered_from_then_on() -> None:
    files = SimulatedFiles(new_disk("/a"))
    tombstones = Tombstones(files, ["/a"])
    tombstones.remember([5], 1000)
    tombstones.remember([5], 2000)
    tombstones.remember([], 1000 + KEPT_S)
    assert 5 in tombstones
    tombstones.remember([], 2000 + KEPT_S)
    assert 5 not in tombstones


def test_parts_of_a_listing_that_overlap_take_nothing_back() -> None:
    found = UnlistedLedgers(np.array([1, 2, 3, 4, 5]))
    found.note(np.array([1, 3]))
    found.note(np.array([2, 4]))
    assert found.ledger_ids().tolist() == [5]


def test_the_only_directory_takes_a_file_that_should_go_elsewhere(tmp_path: Any) -> None:
    file = PlacedFile(LocalFiles(), [str(tmp_path)], "name", lambda data: int(data))
    file.replace(LocalFiles(), lambda generation: b"%d" % generation)
    file.replace(LocalFiles(), lambda generation: b"%d" % generation, elsewhere=True)
    assert (tmp_path / "name").read_bytes() == b"2"


# ---- requests ----


@pytest.mark.parametrize("key", [b"", b"k" * 19, b"k" * 21])
def test_a_key_of_another_length_opens_and_begins_no_ledger(key: bytes) -> None:
    served = ServedBookie()
    peer = served.connect()
    body = stored(5, 0, b"one")
    answer = ask(served, peer, protocol.ADD_ENTRY, ledgerId=5, entryId=0, masterKey=key, body=body)
    assert answer is not None
    assert answer.status == v3.StatusCode.EUA
    answer = ask(served, peer, protocol.READ_ENTRY, ledgerId=5, entryId=0, masterKey=key, flag=FENCE)
    assert answer is not None
    assert answer.status == v3.StatusCode.EUA
    assert served.bookie.view.ledger(5) is None


def test_a_list_of_a_ledger_in_limbo_is_not_a_certain_answer() -> None:
    """An entry that is missing in it would count as lost here, or as never written."""
    served = ServedBookie()
    peer = served.connect()
    peer.received += adds(5, 0, [b"one"])
    served.turns_until(lambda: bool(peer.sent))
    peer = served.connect()
    answer = ask(served, peer, protocol.GET_LIST_OF_ENTRIES_OF_LEDGER, ledgerId=5)
    assert answer is not None
    assert answer.status == v3.StatusCode.EOK
    served.twin.store.limbo.begin([5])
    answer = ask(served, peer, protocol.GET_LIST_OF_ENTRIES_OF_LEDGER, ledgerId=5)
    assert answer is not None
    assert answer.status == v3.code_of(Status.EUNKNOWNLEDGERSTATE)


@pytest.mark.parametrize(
    ("previous_lac", "timeout_ms", "waits"), [(-1, 60_000, True), (-2, 60_000, False), (-1, 0, False)]
)
def test_a_long_poll_waits_for_a_lac_above_its_own_and_only_if_it_may(
    previous_lac: int, timeout_ms: int, waits: bool
) -> None:
    served = ServedBookie()
    peer = served.connect()
    peer.received += adds(5, 0, [b"one"])
    served.turns_until(lambda: bool(peer.sent))
    polling = served.connect()
    poll = {"ledgerId": 5, "entryId": -1, "previousLAC": previous_lac, "timeOut": timeout_ms, "flag": PIGGYBACK}
    answer = ask(served, polling, protocol.READ_ENTRY, **poll)
    assert (answer is None) == waits
    assert served.bookie.owes(served.connections[polling]) == waits


def test_a_peer_that_took_most_of_its_replies_is_served_again() -> None:
    served = ServedBookie()
    connected = served.connect()
    connection = served.connections[connected]
    connected.takes = 0
    connection.send((bytes(2 << 20),))
    assert not connection.is_taking
    connected.takes = (2 << 20) - (512 << 10)
    served.turns_until(lambda: not connected.takes)
    assert not connection.is_taking
    connected.takes = 300 << 10
    served.turn()
    assert connection.is_taking
    assert len(connected.sent) < 2 << 20


def test_the_keys_of_a_recovery_are_compared_for_each_read() -> None:
    """Reads that fence one ledger are one step only if they carry the same key."""
    served = ServedBookie()
    peer = served.connect()
    peer.received += adds(5, 0, [b"one"])
    served.turns_until(lambda: bool(peer.sent))
    peer = served.connect()
    right, wrong = (v2.encode_reads(5, np.array([0]), v2.DO_FENCING, key) for key in (KEY, b"o" * 20))
    peer.received += right + wrong + right
    served.turns_until(lambda: peer.sent.count(b"\x02\x02\x00\x00") >= 3)
    statuses, at = [], 0
    while at < len(peer.sent):
        statuses.append(int.from_bytes(peer.sent[at + 8 : at + 12], "big"))
        at += 4 + int.from_bytes(peer.sent[at : at + 4], "big")
    assert sorted(statuses) == [Status.EOK, Status.EOK, Status.EUA]


# ---- what is acknowledged ----


def test_a_run_of_ordinary_adds_is_acknowledged_after_its_sync() -> None:
    twin, client = new_twin(), Client()
    add(twin, (5, 0))
    assert offer(twin, client, run_of(5, [1, 2]))
    while not client.sent:
        assert after_crash(twin).read(5, 2)[0] == Status.ENOENTRY
        twin.journals[0].step()
    assert client.statuses == [Status.EOK] * 2
    assert after_crash(twin).read(5, 2)[0] == Status.EOK


def test_a_new_ledger_is_known_with_its_key_when_its_first_deferred_add_is_acknowledged() -> None:
    """Only later adds may be lost by a power cut: without the key, a stranger could begin the ledger."""
    served = ServedBookie()
    peer = served.connect()
    peer.received += add_frames(5, 0, [b"one", b"two"], 1, **DEFERRED)
    served.turns_until(lambda: bool(peer.sent))
    assert after_crash(served.twin).header(5).master_key == KEY


def test_a_flush_that_only_makes_room_answers_no_force() -> None:
    """The positions of its entries may still be in memory alone."""
    served = ServedBookie()
    peer, forcing = served.connect(), served.connect()
    peer.received += add_frames(5, 0, [b"one"], 1, **BYPASSING)
    served.turns_until(lambda: bool(peer.sent))
    assert served.bookie.checkpoint(advances_checkpoint=False)
    forcing.received += v3.encode_message(request(protocol.FORCE_LEDGER, 7, ledgerId=5))
    served.turn()
    assert served.twin.checkpoints.step()
    served.turn()
    assert not forcing.sent
    assert served.twin.checkpoints.step()
    served.turns_until(lambda: bool(forcing.sent), 10)


def test_a_flush_that_a_late_disk_keeps_from_the_marks_answers_no_force() -> None:
    served = ServedBookie()
    peer = served.connect()
    peer.received += add_frames(5, 0, [b"one"], 1, **BYPASSING)
    served.turns_until(lambda: bool(peer.sent))
    write: Callable[..., None] = served.twin.store.write_flush

    def write_flush(flush: Flush, **named: Any) -> None:
        write(flush, **named)
        flush.advances_checkpoint = False

    served.twin.store.write_flush = write_flush  # type: ignore[method-assign]
    peer.sent.clear()
    peer.received += v3.encode_message(request(protocol.FORCE_LEDGER, 7, ledgerId=5))
    served.turn()
    assert served.twin.checkpoints.step()
    served.turn()
    assert not peer.sent
    served.twin.store.write_flush = write  # type: ignore[method-assign]
    assert served.bookie.checkpoint()
    assert served.twin.checkpoints.step()
    served.turns_until(lambda: bool(peer.sent), 10)


def test_every_add_asks_for_a_sync_but_a_deferred_one_to_a_known_ledger() -> None:
    served = ServedBookie()
    peer, thread = served.connect(), served.twin.journals[0].thread
    submit: Callable[..., int] = thread.submit
    deferred: list[bool] = []

    def noting(records: Any, **named: Any) -> int:
        deferred.append(named.get("deferred", False))
        return submit(records, **named)

    thread.submit = noting  # type: ignore[method-assign]
    for number, (ledger_id, first_entry, flags) in enumerate(
        ((5, 0, {}), (5, 9, {}), (6, 0, DEFERRED), (6, 9, DEFERRED))
    ):
        peer.sent.clear()
        peer.received += add_frames(ledger_id, first_entry, [b"x"] * 9, 10 * number, **flags)
        served.turns_until(lambda: bool(peer.sent))
    assert deferred == [False, False, False, True]


def test_fence_of_a_returned_ledger_does_not_depend_on_the_list_of_dropped_ones() -> None:
    twin = new_twin()
    add(twin, (5, 0))
    fence(twin, 5)
    twin.checkpoint()
    twin.store.prepare_drop([5], [5], 1000)
    assert twin.store.drop([5]) == [5]
    twin.store.sync_dropped([5])
    assert add(twin, (5, 0), flags=v2.RECOVERY_ADD) == [Status.EOK]
    twin.store.tombstones.remember([], 1000 + KEPT_S)
    assert after_crash(twin).header(5).fenced


def test_threads_of_directories_end_with_the_storage() -> None:
    before = set(threading.enumerate())
    disks = DiskThreads(["/a", "/b"])
    assert disks.run({1: lambda: 7})[1].result() == 7
    (started,) = set(threading.enumerate()) - before
    disks.stop()
    assert not started.is_alive()
    disks.stop()


def test_the_generation_of_the_headers_is_in_every_later_version_of_the_list() -> None:
    """A list that is rewritten without it would say that there are no headers, and no fences in them."""
    files = SimulatedFiles(new_disk("/a"))
    manifest = IndexManifestWriter(files, ["/a"], rows_beside=0)
    manifest.note({5: 600})
    manifest.note_headers(3, 200)
    assert IndexManifest(files, ["/a"]).headers == (3, 200)
    for size in range(1, 20):
        manifest.note({5: 600 + size})
    manifest.note({5: 0})
    assert IndexManifest(files, ["/a"]).headers == (3, 200)
    manifest.forget_headers()
    assert IndexManifest(files, ["/a"]).headers is None
