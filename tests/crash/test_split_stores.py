"""One key-value store for each ledger directory, and the defects that only show there."""

from __future__ import annotations

from typing import Any

import pytest

from bookie_service.formats.key_value_index import StoreCommit
from bookie_service.gc import gc_policy
from bookie_service.gc.garbage_collector import GarbageCollector
from bookie_service.storage.index import key_value_index, split_layout
from bookie_service.storage.index.index import StoredLedger
from bookie_service.storage.index.key_value_index import KeyValueIndex
from bookie_service.storage.index.split_index import SplitIndex
from bookie_service.storage.io.kept_key_values import KeptKeyValues
from tests.crash.audit import Violation
from tests.crash.split_stores import (
    collect_beside_a_closed_home,
    crash_creation,
    exchange_stores,
    fail_within_a_flush,
    fill_disk,
    lose_each_store,
    lose_records,
)
from tests.planting import Plant, around, both, changed, replaced

SHARE = 0.15


@pytest.mark.parametrize("directories", [2, 3])
def test_crash_while_the_stores_are_created_loses_nothing(directories: int) -> None:
    assert crash_creation(directories, SHARE) > 30


@pytest.mark.parametrize("directories", [2, 3])
def test_bookie_does_not_start_without_one_of_its_stores(directories: int) -> None:
    lose_each_store(directories)


@pytest.mark.parametrize("directories", [2, 3])
def test_store_whose_record_is_lost_is_not_the_only_store(directories: int) -> None:
    lose_records(directories)


def test_store_of_another_directory_is_refused() -> None:
    exchange_stores(2)


@pytest.mark.parametrize("lateness", [0.0, 0.5])
@pytest.mark.parametrize("place", [0, 1])
def test_full_directory_stops_only_adds_to_its_own_ledgers(place: int, lateness: float) -> None:
    fill_disk(2, place, lateness=lateness)


@pytest.mark.parametrize("place", [0, 1])
def test_garbage_collection_keeps_the_entries_of_ledgers_whose_disk_fails(place: int) -> None:
    collect_beside_a_closed_home(2, place)


@pytest.mark.parametrize("puts_per_write", [8, 1024])
@pytest.mark.parametrize("syncs", range(6))
def test_disk_that_fails_within_a_flush_leaves_in_limbo_what_the_flush_lost(syncs: int, puts_per_write: int) -> None:
    with replaced(key_value_index, "_PUTS_PER_WRITE", puts_per_write):
        fail_within_a_flush(2, 1, syncs)


def _created_at_once() -> Plant:
    """The first record of a directory says that all stores were created."""

    def make(old: Any) -> Any:
        def commit(self: Any, home: int) -> Any:
            return StoreCommit(0, self.stores, home, False)

        return commit

    return changed(split_layout.SplitLayout, "commit", make)


def _lost_store_is_new() -> Plant:
    """A store that is missing is created."""

    def make(old: Any) -> Any:
        def init(self: KeyValueIndex, *arguments: Any, **named: Any) -> None:
            old(self, *arguments, **{**named, "may_be_new": True})

        return init

    def existing(directories: Any, found: Any, hidden: Any) -> Any:
        return split_layout.SplitLayout(len(directories), hidden, is_being_created=True)

    return both(changed(KeyValueIndex, "__init__", make), replaced(split_layout, "_existing", existing))


def _mark_without_the_full_store() -> Plant:
    """The marks advance although no disk has what a store lacks."""
    return replaced(SplitIndex, "_save", lambda self, home, left: True)


def _nothing_kept() -> Plant:
    """Rows that a full store does not take are dropped."""
    return replaced(KeptKeyValues, "_keep", lambda self, puts, removed: None)


def _closed_home_is_empty() -> Plant:
    """A home that cannot be read denies its ledgers."""

    def stored(self: SplitIndex, ledger_id: int) -> Any:
        if self.is_hidden(ledger_id):
            return StoredLedger(None, -1, is_whole=True)
        return self._homes[ledger_id % len(self._paths)].stored(ledger_id)

    return both(
        replaced(SplitIndex, "stored", stored),
        replaced(SplitIndex, "header", lambda self, ledger_id: None),
    )


def _hidden_ledgers_count_as_deleted() -> Plant:
    """Garbage collection takes an incomplete list of ledgers for a complete one."""

    def measure(self: GarbageCollector, log_id: int, held: Any) -> Any:
        facts = self._compactor.facts(log_id, self._pace())
        return gc_policy.usage(log_id, facts.log_bytes, facts.ledger_ids, facts.ledger_bytes, held)

    return replaced(GarbageCollector, "_measure", measure)


def _sync_covers_later_rows() -> Plant:
    """A sync that begins within a flush is taken to cover all rows of the flush."""

    def begin(old: Any, self: KeyValueIndex) -> Any:
        self._holding = set()
        return old(self)

    return around(KeyValueIndex, "begin_sync", begin)


def test_planted_sync_that_covers_later_rows_is_found() -> None:
    with _sync_covers_later_rows(), pytest.raises(Violation):
        fail_within_a_flush(2, 1, 1)


def test_planted_acceptance_of_a_lost_store_is_found() -> None:
    with _lost_store_is_new(), pytest.raises(Violation):
        lose_each_store(2)


@pytest.mark.parametrize("plant", [_mark_without_the_full_store, _nothing_kept])
def test_planted_defect_of_full_disks_is_found(plant: Any) -> None:
    with plant(), pytest.raises(Violation):
        fill_disk(2, 1)


@pytest.mark.parametrize("plant", [_closed_home_is_empty, _hidden_ledgers_count_as_deleted])
def test_planted_defect_beside_a_closed_home_is_found(plant: Any) -> None:
    with plant(), pytest.raises(Violation):
        collect_beside_a_closed_home(2, 1)


def test_planted_creation_without_a_record_of_it_is_found() -> None:
    with _created_at_once(), pytest.raises(Violation):
        crash_creation(2)
