"""Deferred adds: when the bookie's sync cursors count them, by hand and over a socket (docs/relaxed-durability.md)."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire.v3 import StatusCode
from bookie_service.engine.deferrals import Deferrals
from bookie_service.engine.forces import Forces, WaitingForce
from bookie_service.engine.sync_cursor import RANGES_MAX
from bookie_service.storage.journal.journal_thread import FlushLimits
from tests.bookie.deferred_adds import BYPASSING, DEFERRED
from tests.bookie.serving import KEY, Serving, service_options, stored
from tests.bookie.v3_peer import FENCE, V3Peer
from tests.crash.twins import SILENT

LEDGER = 5


def ids(*entry_ids: int) -> np.ndarray:
    return np.array(entry_ids, np.int64)


def reported(deferrals: Deferrals, ledger_id: int, entry_id: int, lac: int = -1) -> int:
    """Return the LastAddSynced that goes with the answer to an add; the add itself is never durable."""
    taken = deferrals.take([(ledger_id, ids(entry_id), lac)])
    return int(taken.last_synced(ids(ledger_id))[0])


# ---- the decisions ----


def test_cursor_counts_journaled_adds_when_their_journal_says_so() -> None:
    deferrals = Deferrals(2)
    deferrals.journaled(0, 7, deferrals.take([(4, ids(0, 1), -1)]))
    deferrals.journaled(1, 3, deferrals.take([(5, ids(0), -1)]))
    deferrals.on_durable(0, 6)
    deferrals.on_durable(1, 3)
    assert (reported(deferrals, 4, 9), reported(deferrals, 5, 9)) == (-1, 0)
    deferrals.on_durable(0, 7)
    assert reported(deferrals, 4, 9) == 1


def test_answer_to_an_add_that_was_not_accepted_names_no_synced_entry_of_another_ledger() -> None:
    taken = Deferrals(1).take([(4, ids(9), 8)])
    assert taken.last_synced(ids(4, 5, 4)).tolist() == [8, -1, 8]
    assert taken.last_synced(ids(4, 4)).tolist() == [8, 8]


def test_cursor_counts_adds_that_bypass_the_journal_when_the_next_flush_is_done() -> None:
    deferrals = Deferrals(1)
    deferrals.bypassed(deferrals.take([(4, ids(0, 1), -1)]))
    deferrals.on_durable(0, 100)
    deferrals.on_flush_begun()
    deferrals.bypassed(deferrals.take([(4, ids(2), -1)]))
    assert (deferrals.is_flushing(4), deferrals.is_unflushed(4), reported(deferrals, 4, 9)) == (True, True, -1)
    deferrals.on_flush_done(lambda ledger_id: False)
    assert (deferrals.is_flushing(4), deferrals.is_unflushed(4), reported(deferrals, 4, 9)) == (False, True, 1)
    deferrals.on_flush_begun()
    deferrals.on_flush_done(lambda ledger_id: False)
    assert (deferrals.is_unflushed(4), reported(deferrals, 4, 9)) == (False, 2)


def test_flush_after_one_that_did_not_move_the_marks_covers_what_both_had() -> None:
    """A disk was late: what the first flush had is durable only when the second is done."""
    deferrals = Deferrals(1)
    forces = Forces(deferrals, 10)
    for entry_id in range(3):
        deferrals.bypassed(deferrals.take([(4 + entry_id // 2, ids(entry_id), -1)]))
        forces.add(WaitingForce(SILENT, 4 + entry_id // 2, lambda status: (b"",)))
        deferrals.on_flush_begun()
        forces.on_flush_begun()
        assert (reported(deferrals, 4, 9), reported(deferrals, 5, 9)) == (-1, -1)
    deferrals.on_flush_done(lambda ledger_id: False)
    assert [force.ledger_id for force in forces.on_flush_done()] == [4, 4, 5]
    assert reported(deferrals, 4, 9) == 1
    assert not deferrals.is_flushing(4)
    assert not forces.on_flush_done()


def test_forces_that_a_flush_carries_out_have_places_until_it_is_done() -> None:
    deferrals = Deferrals(1)
    forces = Forces(deferrals, 2)
    for entry_id in range(2):
        assert not forces.is_full
        deferrals.bypassed(deferrals.take([(4, ids(entry_id), -1)]))
        forces.add(WaitingForce(SILENT, 4, lambda status: (b"",)))
        deferrals.on_flush_begun()
        forces.on_flush_begun()
    assert (forces.is_full, forces.need_flush) == (True, False)
    assert len(forces.on_flush_done()) == 2
    assert not forces.is_full


def test_runs_of_flushes_that_did_not_move_the_marks_are_tracked_in_bounded_memory() -> None:
    deferrals = Deferrals(1)
    for entry_id in range(0, 4 * RANGES_MAX, 2):
        deferrals.bypassed(deferrals.take([(4, ids(entry_id), -1)]))
        deferrals.on_flush_begun()
    assert len(deferrals._flushing[4][1]) == RANGES_MAX


def test_adds_that_bypass_the_journal_are_tracked_in_bounded_memory_and_others_reported_as_not_synced() -> None:
    deferrals = Deferrals(1)
    for entry_id in (*range(50), *range(100, 100 + 4 * RANGES_MAX, 2)):
        deferrals.bypassed(deferrals.take([(4, ids(entry_id), -1)]))
    cursor, runs = deferrals._unflushed[4]
    assert (runs[0], len(runs)) == ((0, 49), RANGES_MAX)
    deferrals.on_flush_begun()
    deferrals.on_flush_done(lambda ledger_id: False)
    assert (cursor.last_synced, len(cursor.ranges)) == (49, RANGES_MAX - 1)


def test_add_that_comes_again_is_not_synced_before_it_is_durable_again() -> None:
    """The bookie serves the new bytes at once, and a crash may take them."""
    deferrals = Deferrals(1)
    deferrals.journaled(0, 1, deferrals.take([(4, ids(0, 1, 2), -1)]))
    deferrals.on_durable(0, 1)
    again = deferrals.take([(4, ids(1), -1)])
    assert again.last_synced(ids(4)).tolist() == [0]
    deferrals.journaled(0, 2, again)
    deferrals.on_durable(0, 2)
    assert reported(deferrals, 4, 9) == 2


def test_lac_of_an_add_counts_for_entries_before_it_alone() -> None:
    deferrals = Deferrals(1)
    assert reported(deferrals, 4, 10, lac=6) == 6
    assert reported(deferrals, 4, 11, lac=1 << 60) == 10


def test_answers_to_several_ledgers_adds_tell_of_each_its_own() -> None:
    deferrals = Deferrals(1)
    deferrals.journaled(0, 1, deferrals.take([(4, ids(0, 1), -1), (6, ids(0, 1, 2), -1)]))
    deferrals.on_durable(0, 1)
    taken = deferrals.take([(4, ids(2), -1), (6, ids(3), -1)])
    assert taken.last_synced(ids(6, 4, 8, 6)).tolist() == [2, 1, -1, 2]


# ---- over a socket ----


@pytest.fixture
def slow_to_settle(tmp_path: Path) -> Iterator[Serving]:
    """A bookie that syncs deferred adds when it is asked to, and for a long time not by itself."""
    options = service_options(
        tmp_path, flush=FlushLimits(marker_delay_ns=3_600_000_000_000), checkpoint_interval_s=3600.0
    )
    with Serving(options) as serving:
        yield serving


def add(peer: V3Peer, entry_id: int, ledger_id: int = LEDGER, **others: Any) -> Any:
    body = stored(ledger_id, entry_id, b"%d" % entry_id)
    return peer.call(protocol.ADD_ENTRY, ledgerId=ledger_id, entryId=entry_id, masterKey=KEY, body=body, **others)


def last_synced(answer: Any) -> int | None:
    return answer.lastAddSynced if answer.HasField("lastAddSynced") else None


@pytest.mark.parametrize("flags", [DEFERRED, BYPASSING], ids=["journaled", "bypassing"])
def test_answers_to_deferred_adds_tell_what_is_synced_and_answers_to_others_nothing(
    slow_to_settle: Serving, flags: dict[str, Any]
) -> None:
    with V3Peer(slow_to_settle.port) as peer:
        assert last_synced(add(peer, 0, LEDGER + 1)) is None
        add(peer, 0, **flags)
        # A new ledger's first add is synced where it is journaled, with the ledger's key.
        synced = -1 if flags is BYPASSING else 0
        assert [last_synced(add(peer, i, **flags)) for i in range(1, 5)] == [synced] * 4
        assert peer.call(protocol.FORCE_LEDGER, ledgerId=LEDGER).status == StatusCode.EOK
        assert [last_synced(add(peer, i, **flags)) for i in (5, 6, 9)] == [4, 4, 4]
        assert peer.call(protocol.FORCE_LEDGER, ledgerId=LEDGER).status == StatusCode.EOK
        # 7 and 8 are missing.
        assert last_synced(add(peer, 10, **flags)) == 6
        confirming = struct.pack(">qqqq", LEDGER, 11, 8, 0) + b"...."
        answer = peer.call(protocol.ADD_ENTRY, ledgerId=LEDGER, entryId=11, masterKey=KEY, body=confirming, **flags)
        assert last_synced(answer) == 9


def test_add_that_is_refused_among_others_tells_its_ledgers_last_add_synced(slow_to_settle: Serving) -> None:
    with V3Peer(slow_to_settle.port) as peer:
        add(peer, 0, **DEFERRED)
        assert peer.call(protocol.FORCE_LEDGER, ledgerId=LEDGER).status == StatusCode.EOK
        assert peer.read_entry(LEDGER, 0, flag=FENCE, masterKey=KEY).status == StatusCode.EOK
        refused = add(peer, 1, **DEFERRED)
        assert (refused.status, last_synced(refused)) == (StatusCode.EFENCED, None)


def numbers_in(files: Iterable[Path]) -> list[bytes]:
    """Return all payload numbers in some files, as often as they occur there."""
    return [number for path in files for number in re.findall(rb"<(\d{6})>", path.read_bytes())]


def test_adds_that_bypass_the_journal_are_written_once_and_durable_after_a_force(tmp_path: Path) -> None:
    """ "adds go to the write cache and entry log only ... a bulk load writes each byte once per bookie"."""
    payloads = [b"<%06d>" % i + bytes(200) for i in range(2000)]
    with Serving(service_options(tmp_path, checkpoint_interval_s=3600.0)) as serving:
        with V3Peer(serving.port) as peer:
            for first in range(0, 2000, 500):
                answers = peer.add_all(LEDGER, first, payloads[first : first + 500], **BYPASSING)
                assert set(answers) == {StatusCode.EOK}
            assert peer.call(protocol.FORCE_LEDGER, ledgerId=LEDGER).status == StatusCode.EOK
            assert peer.add_all(LEDGER, 2000, [b"not forced"], **BYPASSING) == [StatusCode.EOK]
            assert peer.read_entry(LEDGER, 2000).status == StatusCode.EOK
        serving.abandon()
    assert not numbers_in(tmp_path.glob("journal/current/*"))
    assert sorted(numbers_in(tmp_path.glob("ledgers/current/*.log"))) == [b"%06d" % i for i in range(2000)]
    with Serving(service_options(tmp_path)) as serving, V3Peer(serving.port) as peer:
        assert all(peer.read_entry(LEDGER, i).body == stored(LEDGER, i, payloads[i]) for i in range(0, 2000, 50))
        assert peer.read_entry(LEDGER, 2000).status == StatusCode.ENOENTRY


def test_fence_of_a_ledger_that_bypasses_the_journal_survives_a_crash(tmp_path: Path) -> None:
    with Serving(service_options(tmp_path, checkpoint_interval_s=3600.0)) as serving:
        with V3Peer(serving.port) as peer:
            assert peer.add_all(LEDGER, 0, [b"lost"], **BYPASSING) == [StatusCode.EOK]
            assert peer.read_entry(LEDGER, 0, flag=FENCE, masterKey=KEY).status == StatusCode.EOK
        serving.abandon()
    with Serving(service_options(tmp_path)) as serving, V3Peer(serving.port) as peer:
        assert peer.add_all(LEDGER, 0, [b"late"], **BYPASSING) == [StatusCode.EFENCED]
        # The key was journaled before the fence.
        assert peer.add_all(LEDGER, 0, [b"late"], masterKey=b"o" * 20, **BYPASSING) == [StatusCode.EUA]


def test_recovery_add_to_a_ledger_that_bypasses_the_journal_is_journaled(tmp_path: Path) -> None:
    """docs/protocol.md §2.6: "RECOVERY_ADD with DEFERRED_SYNC: flag ignored: recovery adds are always synced"."""
    with Serving(service_options(tmp_path, checkpoint_interval_s=3600.0)) as serving:
        with V3Peer(serving.port) as peer:
            flags = {**BYPASSING, "flag": protocol.AddRequest.RECOVERY_ADD}
            assert peer.add_all(LEDGER, 0, [b"recovered"], **flags) == [StatusCode.EOK]
        serving.abandon()
    with Serving(service_options(tmp_path)) as serving, V3Peer(serving.port) as peer:
        assert peer.read_entry(LEDGER, 0).body == stored(LEDGER, 0, b"recovered")


def test_every_force_is_answered_whatever_flush_it_meets(tmp_path: Path) -> None:
    """A force may come before, during and after a flush that began for another reason, with nothing new after it."""
    options = service_options(tmp_path, checkpoint_interval_s=0.002)
    with Serving(options) as serving, V3Peer(serving.port) as peer, V3Peer(serving.port) as other:
        for round_ in range(40):
            assert set(peer.add_all(LEDGER + round_ % 3, 4 * round_, [b"x" * 50] * 4, **BYPASSING)) == {StatusCode.EOK}
            txn_ids = [peer.ask(protocol.FORCE_LEDGER, ledgerId=LEDGER + round_ % 3) for _ in range(3)]
            other_txn_id = other.ask(protocol.FORCE_LEDGER, ledgerId=LEDGER + (round_ + 1) % 3)
            assert sorted(peer.answer().header.txnId for _ in txn_ids) == txn_ids
            assert other.answer().header.txnId == other_txn_id


def test_journaled_and_bypassing_ledgers_of_several_journals_are_forced_each(tmp_path: Path) -> None:
    journals = [str(tmp_path / "journal0"), str(tmp_path / "journal1")]
    options = service_options(tmp_path, journal_directories=journals, checkpoint_interval_s=3600.0)
    with Serving(options) as serving:
        with V3Peer(serving.port) as peer:
            for ledger_id, flags in enumerate((DEFERRED, DEFERRED, BYPASSING, BYPASSING)):
                assert peer.add_all(ledger_id, 0, [b"a", b"b"], **flags) == [StatusCode.EOK] * 2
            for ledger_id in range(4):
                assert peer.call(protocol.FORCE_LEDGER, ledgerId=ledger_id).status == StatusCode.EOK
        serving.abandon()
    with Serving(options) as serving, V3Peer(serving.port) as peer:
        for ledger_id in range(4):
            assert peer.read_entry(ledger_id, 1).body == stored(ledger_id, 1, b"b")
