"""Requests that change something, on a bookie without threads: refusals, damaged ledgers, forces and flushes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bkspark.errors import StorageDamaged
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.framing import FRAME_BYTES_MAX
from bkspark.wire.status import Status
from bookie_service.engine.bookie_environment import BookieOptions
from tests.bookie.changing import KEY, OTHER_KEY, Client, Statuses, add, entry, fence, mark, write_lac
from tests.bookie.deferred_adds import BYPASSING
from tests.bookie.simulated_connections import ServedBookie, SimulatedSocket
from tests.bookie.v3_peer import add_frames, request
from tests.crash.history import History
from tests.crash.twins import BookieTwin, Setup, add_frame, lac_packet


@pytest.fixture
def twin() -> BookieTwin:
    setup = Setup()
    return BookieTwin(setup.new_disk(), setup, History())


# ---- ledgers that cannot be read ----


@pytest.mark.parametrize("error", [StorageDamaged("its header is damaged"), OSError(5, "Input/output error")])
def test_change_of_a_ledger_that_cannot_be_read_is_an_error_and_hurts_no_other(
    twin: BookieTwin, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    assert add(twin, (5, 0), (6, 0)) == [Status.EOK] * 2
    find = twin.store.ledger

    def ledger(ledger_id: int) -> Any:
        if ledger_id == 5:
            raise error
        return find(ledger_id)

    monkeypatch.setattr(twin.store, "ledger", ledger)
    assert add(twin, (5, 1)) == [Status.EIO]
    assert add(twin, (5, 1), (6, 1), (5, 2), (6, 2)) == [Status.EIO, Status.EOK, Status.EIO, Status.EOK]
    assert fence(twin, 5) == [Status.EIO]
    assert write_lac(twin, 5, 0) == [Status.EIO]
    assert write_lac(twin, 6, 0) == [Status.EOK]
    assert fence(twin, 6) == [Status.EOK]
    monkeypatch.setattr(twin.store, "ledger", find)
    assert add(twin, (5, 1)) == [Status.EOK]
    assert twin.read(5, 2)[0] == Status.ENOENTRY
    assert not twin.header(5).fenced


# ---- single adds ----


def single(twin: BookieTwin, client: Client, ledger_id: int, entry_id: int, key: bytes = KEY) -> bool:
    octets = np.frombuffer(bytearray(add_frame(key, entry(ledger_id, entry_id))), np.uint8)
    found = v2.decode_single_add(octets.data, len(octets), FRAME_BYTES_MAX)
    assert found is not None
    return twin.bookie.add_single(client, octets, found)


def test_client_that_adds_alone_is_answered_at_once_with_one_sync_each(twin: BookieTwin) -> None:
    client = Client()
    assert add(twin, (5, 0)) == [Status.EOK]
    for entry_id in range(1, 6):
        assert single(twin, client, 5, entry_id)
        # The first ones wait for company: another client may add as well.
        assert len(client.statuses) == (0 if entry_id <= twin.setup.serial_writer_after else entry_id)
        if entry_id <= twin.setup.serial_writer_after:
            twin.settle()
    assert client.statuses == [Status.EOK] * 5
    # Another client adds: the count begins again.
    assert add(twin, (6, 0)) == [Status.EOK]
    assert single(twin, client, 5, 6)
    assert len(client.statuses) == 5
    twin.settle()
    assert client.statuses == [Status.EOK] * 6
    other = Client()
    assert single(twin, other, 6, 1)
    assert other.statuses == []
    assert single(twin, client, 5, 7)
    assert len(client.statuses) == 6
    twin.settle()
    assert (len(other.statuses), len(client.statuses)) == (1, 7)
    assert [twin.read(5, entry_id)[2] for entry_id in range(8)] == [entry(5, entry_id) for entry_id in range(8)]


def test_single_add_that_a_rule_bars_is_handled_as_a_run(twin: BookieTwin) -> None:
    client = Client()
    add(twin, (5, 0), (6, 0), (7, 0))
    fence(twin, 6)
    twin.store.limbo.begin([7])
    assert not single(twin, client, 5, 1, OTHER_KEY)
    assert not single(twin, client, 6, 1)
    assert not single(twin, client, 7, 1)
    assert not single(twin, client, 8, 0)
    assert not single(twin, client, 5, -1)
    twin.store.create_ledger(9, bytes(20))
    assert not single(twin, client, 9, 0, bytes(20))
    assert client.sent == b""
    assert single(twin, client, 5, 1)
    twin.settle()
    assert client.statuses == [Status.EOK]


def test_single_add_without_room_is_handled_as_a_run(twin: BookieTwin) -> None:
    client = Client()
    add(twin, (5, 0))
    entry_id = 1
    while single(twin, client, 5, entry_id):
        twin.settle()
        entry_id += 1
        assert entry_id < 1000
    size = 4 + len(entry(5, 0)) + 16
    assert twin.store.active.room < size
    assert client.statuses == [Status.EOK] * (entry_id - 1)


# ---- fences and LACs that make ledgers ----


def test_fence_and_lac_of_a_known_ledger_leave_its_key_as_it_is(twin: BookieTwin) -> None:
    assert add(twin, (5, 0)) == [Status.EOK]
    assert fence(twin, 5, OTHER_KEY) == [Status.EUA]
    assert write_lac(twin, 5, 0, OTHER_KEY) == [Status.EUA]
    assert write_lac(twin, 5, 0) == [Status.EOK]
    assert fence(twin, 5) == [Status.EOK]
    again = BookieTwin(twin.disk, twin.setup, twin.history.after_crash())
    assert again.header(5) == (True, KEY, lac_packet(5, 0))


def test_known_ledgers_are_fenced_and_get_lacs_where_no_unknown_one_finds_room(twin: BookieTwin) -> None:
    assert add(twin, (5, 0)) == [Status.EOK]
    ledger_id = 100
    while twin.store.active.room > 0:
        twin.store.create_ledger(ledger_id, KEY)
        ledger_id += 1
    assert twin.bookie.checkpoint()
    while twin.store.active.room > 0:
        twin.store.create_ledger(ledger_id, KEY)
        ledger_id += 1
    lac, client = Statuses(), Client()
    answer = lac_packet(7, 0)
    assert twin.bookie.write_lac(lac, 7, KEY, answer, lambda status: (bytes([status]),)) == 0
    assert lac.got == []
    assert twin.bookie.write_lac(lac, 5, KEY, lac_packet(5, 0), lambda status: (bytes([status]),)) is None
    twin.serve(client, v2.encode_reads(5, np.array([0]), v2.DO_FENCING, KEY))
    while not twin.journals[0].is_idle:
        twin.journals[0].step()
    assert lac.got == [Status.EOK]
    assert client.statuses == [Status.EOK]
    twin.settle()
    assert lac.resumed
    assert twin.bookie.write_lac(lac, 7, KEY, answer, lambda status: (bytes([status]),)) is None


# ---- forces ----


def forces_answered(peer: SimulatedSocket) -> list[tuple[int, int]]:
    """Return (txnId, status) of the answers to forces so far."""
    found, at = [], 0
    while at < len(peer.sent):
        end = at + 4 + int.from_bytes(peer.sent[at : at + 4], "big")
        response = protocol.Response.FromString(bytes(peer.sent[at + 4 : end]))
        if response.header.operation == protocol.FORCE_LEDGER:
            found.append((response.header.txnId, response.status))
        at = end
    return found


def test_force_waits_for_the_flush_of_what_bypasses_the_journal_and_only_for_that() -> None:
    served = ServedBookie(options=BookieOptions(forces_max=3))
    peer = served.connect()

    def bypass(ledger_id: int) -> None:
        peer.received += add_frames(ledger_id, 0, [b"x"], 1, **BYPASSING)
        served.turn()
        served.turn()

    def force(ledger_id: int, txn_id: int) -> None:
        peer.received += v3.encode_message(request(protocol.FORCE_LEDGER, txn_id, ledgerId=ledger_id))
        for _ in range(3):
            served.turn()

    def flush() -> None:
        assert served.twin.checkpoints.step()
        for _ in range(3):
            served.turn()

    bypass(5)
    force(5, 50)
    bypass(6)
    force(6, 60)
    force(5, 51)
    assert forces_answered(peer) == []
    for ledger_id, txn_id in ((5, 52), (6, 61)):
        force(ledger_id, txn_id)
    force(7, 70)
    assert forces_answered(peer) == [
        (52, v3.code_of(Status.ETOOMANYREQUESTS)),
        (61, v3.code_of(Status.ETOOMANYREQUESTS)),
        (70, v3.code_of(Status.EOK)),
    ]
    flush()
    assert forces_answered(peer)[3:] == [(50, v3.code_of(Status.EOK)), (51, v3.Status.EOK)]
    flush()
    assert forces_answered(peer)[5:] == [(60, v3.code_of(Status.EOK))]
    force(6, 62)
    assert forces_answered(peer)[6:] == [(62, v3.code_of(Status.EOK))], "all of it is flushed"
    assert served.twin.checkpoints.is_idle


# ---- checkpoints ----


def test_checkpoint_that_makes_room_moves_no_mark_and_another_one_does(twin: BookieTwin) -> None:
    begin = mark(twin)
    assert not twin.bookie.checkpoint()
    assert twin.checkpoints.is_idle
    add(twin, (5, 0))
    assert twin.bookie.checkpoint(advances_checkpoint=False)
    assert not twin.bookie.checkpoint(), "one runs already"
    twin.settle()
    assert mark(twin) == begin
    assert twin.bookie.checkpoint()
    twin.settle()
    assert mark(twin) != begin


def test_bookie_that_was_stuck_looks_at_its_disks_when_a_checkpoint_is_done(
    twin: BookieTwin, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[bool] = []
    look = twin.disks.check_now

    def counted(waiting_bytes: int) -> None:
        looks.append(twin.disks.is_stuck)
        look(waiting_bytes)

    monkeypatch.setattr(twin.disks, "check_now", counted)
    add(twin, (5, 0))
    twin.bookie.checkpoint()
    twin.settle()
    assert looks == []
    add(twin, (5, 1))
    twin.bookie.checkpoint()
    twin.bookie.on_checkpoint_stuck()
    assert looks == [True]
    twin.settle()
    assert looks == [True, False]
    assert not twin.disks.is_stuck


# ---- reads after fences ----


def test_many_reads_after_one_fence_are_all_answered_over_several_turns() -> None:
    served = ServedBookie()
    peers = [served.connect(f"10.0.0.{number}") for number in range(200)]
    for entry_id in range(3):
        peers[0].received += add_frame(KEY, entry(5, entry_id))
        served.turn()
    peers[0].sent.clear()
    for peer in peers:
        peer.received += v2.encode_reads(5, np.array([0, 1, 2, v2.LAST_ENTRY]), v2.DO_FENCING, KEY)
    expected = [entry(5, entry_id) for entry_id in (0, 1, 2, 2)]
    answer_bytes = sum(28 + len(each) for each in expected)
    served.turns_until(lambda: all(len(peer.sent) >= answer_bytes for peer in peers))
    for peer in peers:
        found, at = [], 0
        while at < len(peer.sent):
            end = at + 4 + int.from_bytes(peer.sent[at : at + 4], "big")
            found.append(bytes(peer.sent[at + 28 : end]))
            at = end
        assert found == expected
    assert served.failures == []


# ---- several journals ----


def test_each_ledger_has_its_journal_of_several() -> None:
    """A fence and the adds that it bars are in one journal, so replay sees them in their order."""
    setup = Setup(journals=2)
    twin = BookieTwin(setup.new_disk(), setup, History())
    client = Client()
    twin.serve(client, add_frame(KEY, entry(4, 0)) + add_frame(KEY, entry(6, 0)))
    assert [journal.is_idle for journal in twin.journals] == [False, True]
    twin.settle()
    twin.serve(client, add_frame(KEY, entry(5, 0)) + add_frame(KEY, entry(7, 0)))
    assert [journal.is_idle for journal in twin.journals] == [True, False]
    twin.settle()
    twin.serve(client, b"".join(add_frame(KEY, entry(ledger_id, 1)) for ledger_id in (4, 5, 6, 7)))
    assert [journal.is_idle for journal in twin.journals] == [False, False]
    twin.settle()
    assert client.statuses == [Status.EOK] * 8
    for ledger_id in (4, 5):
        lac, force = Statuses(), Statuses()
        twin.serve(client, v2.encode_reads(ledger_id, np.array([0]), v2.DO_FENCING, KEY))
        twin.bookie.write_lac(lac, ledger_id, KEY, lac_packet(ledger_id, 0), lambda status: (bytes([status]),))
        twin.bookie.force(force, ledger_id, lambda status: (bytes([status]),))
        assert [journal.is_idle for journal in twin.journals] == [ledger_id == 5, ledger_id == 4]
        twin.settle()
        assert (lac.got, force.got) == ([Status.EOK], [Status.EOK])
    assert client.statuses == [Status.EOK] * 10
