"""Which record each answer waits for, and who goes on when it is durable or written: a bookie without threads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bkspark.wire import v2
from bkspark.wire.status import Status
from bookie_service.engine.bookie_environment import BookieOptions
from tests.bookie.changing import KEY, OTHER_KEY, Client, Statuses, add, entry
from tests.bookie.taken_adds import batch_of, new_twin, offer, run_of, settle_journals
from tests.crash.twins import BookieTwin, add_frame


def bypass(twin: BookieTwin, ledger_id: int, entry_id: int) -> Client:
    """Add an entry that is durable after a flush alone."""
    client = Client()
    octets, _ = twin.received(client, run_of(ledger_id, [entry_id]))
    assert twin.bookie.add(client, octets, replace(batch_of(octets), is_deferred=True, bypasses_journal=True)) == 1
    return client


def force_later(twin: BookieTwin, ledger_id: int) -> Statuses:
    client = Statuses()
    twin.bookie.force(client, ledger_id, lambda status: (bytes([status]),))
    return client


# ---- several journals ----


def test_fence_is_answered_when_the_journal_of_its_ledger_has_it_whatever_the_other_journal_has() -> None:
    """B1. A ledger's records go to journal number (ledger id mod number of journals)."""
    twin, client = new_twin(journals=2), Client()
    assert add(twin, (4, 0), (5, 0)) == [Status.EOK] * 2
    for entry_id in range(1, 6):
        assert add(twin, (4, entry_id)) == [Status.EOK]
    assert offer(twin, client, v2.encode_reads(5, np.array([0]), v2.DO_FENCING, KEY))
    assert client.statuses == []
    settle_journals(twin)
    assert client.statuses == [Status.EOK]


def test_force_covers_the_adds_of_the_journal_of_its_ledger() -> None:
    twin, client = new_twin(journals=2), Client()
    assert add(twin, (4, 0), (5, 0)) == [Status.EOK] * 2
    octets, _ = twin.received(client, run_of(5, [1]))
    assert twin.bookie.add(client, octets, replace(batch_of(octets), is_deferred=True)) == 1
    forced = force_later(twin, 5)
    while not twin.journals[0].is_idle:
        twin.journals[0].step()
    assert forced.got == []
    settle_journals(twin)
    assert forced.got == [Status.EOK]


# ---- what ends ----


def test_refused_adds_of_a_run_are_in_flight_with_it_and_leave_with_its_answer() -> None:
    twin, client = new_twin(), Client()
    assert add(twin, (5, 0)) == [Status.EOK]
    frames = [add_frame(OTHER_KEY if each % 2 else KEY, entry(5, each)) for each in range(1, 9)]
    assert offer(twin, client, b"".join(frames))
    assert twin.bookie.adds_in_flight == 8
    twin.settle()
    assert twin.bookie.adds_in_flight == 0
    assert sorted(client.statuses) == sorted([Status.EOK, Status.EUA] * 4)


def test_connection_that_waits_for_adds_in_flight_is_resumed_when_deferred_ones_are_written() -> None:
    """They are answered then, before any sync."""
    twin, client, other = new_twin(BookieOptions(adds_in_flight_max=1)), Client(), Client()
    assert add(twin, (5, 0)) == [Status.EOK]
    octets, _ = twin.received(client, run_of(5, [1]))
    assert twin.bookie.add(client, octets, replace(batch_of(octets), is_deferred=True)) == 1
    assert not offer(twin, other, run_of(5, [2]))
    twin.bookie.on_written(0, 1 << 40)
    assert (client.statuses, other.resumed, twin.bookie.adds_in_flight) == ([Status.EOK], 1, 0)


def test_bookie_takes_adds_in_the_turn_in_which_a_stuck_flush_finds_space() -> None:
    twin = new_twin()
    assert add(twin, (5, 0)) == [Status.EOK]
    assert twin.bookie.checkpoint()
    twin.bookie.on_checkpoint_stuck()
    assert twin.disks.is_read_only
    twin.settle()
    assert (twin.disks.is_stuck, twin.disks.is_read_only) == (False, False)
    assert add(twin, (5, 1)) == [Status.EOK]


def test_force_that_comes_during_a_flush_is_carried_out_by_the_next_one_which_begins_at_once() -> None:
    """docs/protocol.md §2.6: a force is answered when all earlier adds of the ledger are durable."""
    twin = new_twin()
    assert add(twin, (5, 0), (6, 0)) == [Status.EOK] * 2
    bypass(twin, 5, 1)
    first = force_later(twin, 5)
    bypass(twin, 6, 1)
    second = force_later(twin, 6)
    assert (first.got, second.got) == ([], [])
    twin.settle()
    assert (first.got, second.got) == ([Status.EOK], [Status.EOK])


def test_force_waits_for_another_flush_if_a_late_disk_kept_its_own_from_advancing_the_marks() -> None:
    """What bypassed the journal is durable once the index is, too."""
    twin = new_twin()
    assert add(twin, (5, 0)) == [Status.EOK]
    bypass(twin, 5, 1)
    forced = force_later(twin, 5)
    twin.checkpoints._queue[0].flush.advances_checkpoint = False
    while not twin.checkpoints.is_idle:
        settle_journals(twin)
        assert twin.checkpoints.run()
        twin.loop.turn()
    settle_journals(twin)
    assert forced.got == []
    bypass(twin, 5, 2)
    assert force_later(twin, 5).got == []
    twin.settle()
    assert forced.got == [Status.EOK]
