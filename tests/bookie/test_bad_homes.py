"""What clients and the collector get while the disk of one home of several fails, is full or late."""

from __future__ import annotations

import pytest

from bkspark.wire.status import Status
from tests.bookie.changing import Statuses
from tests.crash.history import History
from tests.crash.relaxed import DeferringClient, defer
from tests.crash.split_stores import failing_disk, split_setup
from tests.crash.twins import BookieTwin

# ---- forces ----


def deferring(*, bypasses_journal: bool) -> BookieTwin:
    """Return a bookie with two homes, and two deferred adds to ledgers 1 and 2 that no flush has."""
    setup = split_setup(2)
    twin = BookieTwin(setup.new_disk(), setup, History())
    client = DeferringClient(twin.history)
    for entry_ids in (range(2), range(2, 4)):
        twin.checkpoint()
        for ledger_id in (1, 2):
            defer(twin, client, ledger_id, entry_ids, bypasses_journal=bypasses_journal)
    return twin


def force(twin: BookieTwin, ledger_id: int) -> Statuses:
    client = Statuses()
    with twin.loop.serving():
        twin.bookie.force(client, ledger_id, lambda status: (bytes([status]),))
    return client


@pytest.mark.parametrize("bypasses_journal", [False, True])
def test_force_of_a_ledger_whose_disk_has_failed_is_an_error(bypasses_journal: bool) -> None:
    twin = deferring(bypasses_journal=bypasses_journal)
    twin.disk.fault = failing_disk(1)
    twin.checkpoint()
    forced = {ledger_id: force(twin, ledger_id) for ledger_id in (1, 2)}
    twin.checkpoint()
    assert {ledger_id: client.got for ledger_id, client in forced.items()} == {1: [Status.EIO], 2: [Status.EOK]}
    assert twin.read(1, 3)[0] == Status.EIO


def test_force_that_waits_for_a_flush_in_which_the_disk_of_its_ledger_fails_is_an_error() -> None:
    twin = deferring(bypasses_journal=True)
    twin.disk.fault = failing_disk(1)
    forced = {ledger_id: force(twin, ledger_id) for ledger_id in (1, 2)}
    assert [client.got for client in forced.values()] == [[], []]
    twin.settle()
    assert {ledger_id: client.got for ledger_id, client in forced.items()} == {1: [Status.EIO], 2: [Status.EOK]}


def test_entries_that_a_flush_lost_with_a_disk_never_count_as_synced() -> None:
    twin = deferring(bypasses_journal=True)
    cursor, _ = twin.bookie._deferrals._unflushed[1]
    twin.disk.fault = failing_disk(1)
    twin.checkpoint()
    assert cursor.last_synced == 1
