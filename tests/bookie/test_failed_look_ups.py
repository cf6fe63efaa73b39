"""A start whose look-ups of ledgers fail never replaces what the index has of a ledger by what the journal has."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from bookie_service.formats.index import LedgerHeader
from bookie_service.storage.index.index import IndexReader
from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.crash.campaign import reopened
from tests.crash.history import History
from tests.crash.images import Loss, crash_image
from tests.crash.simulated_files import Fault, os_error
from tests.crash.split_stores import audit_limbo, put, split_setup
from tests.crash.twins import BookieTwin, Setup
from tests.planting import around

FAILING = 1, 3, 5
"""The ledgers of directory 1."""
READS_MAX = 60


def setups() -> Iterator[Setup]:
    """Yield bookies with every kind of index."""
    split = split_setup(2)
    yield split
    yield replace(split, has_one_store=True)
    yield replace(split, ledger_directories=1)
    for storage_class in (StorageClass.SORTED, StorageClass.INTERLEAVED):
        yield replace(split, store=replace(split.store, storage_class=storage_class))


def with_journal(setup: Setup) -> BookieTwin:
    """Return a bookie whose index has fences and explicit LACs, and whose journal has later adds."""
    twin = BookieTwin(setup.new_disk(), setup, History())
    put(twin, 0)
    for ledger_id in FAILING:
        twin.write_lac(ledger_id, 2)
        twin.settle()
    twin.fence(3)
    twin.checkpoint()
    for ledger_id in (*FAILING, 2, 4):
        if ledger_id != 3:
            twin.add(ledger_id, [(4, b"journaled")])
    twin.write_lac(3, 3)
    # An add of a new ledger, whose key the journal has.
    twin.add(7, [(0, b"new")])
    twin.settle()
    return twin


def failing_reads(setup: Setup, first: int, count: int) -> tuple[Fault, list[str]]:
    """Return a fault of `count` reads of the index in one directory, from number `first` on; and a list that gets the
    path of each read."""
    place = setup.ledger_directories - 1 if not setup.has_one_store else 0
    read: list[str] = []

    def fault(operation: str, path: str) -> OSError | None:
        is_index = path.startswith(f"/ledgers{place}/current/positions/") or path.endswith(".idx")
        if operation != "read" or not is_index or not path.startswith(f"/ledgers{place}/"):
            return None
        read.append(path)
        return os_error(errno.EIO, path) if first < len(read) <= first + count else None

    return fault, read


def known(twin: BookieTwin) -> list[tuple[bytes, bool, bytes]]:
    """Return what the index has of the ledgers: the key, the fence and the explicit LAC of each."""
    headers = [twin.store.index.header(ledger_id) for ledger_id in FAILING]
    return [(each.master_key, each.fenced, each.explicit_lac) for each in headers if isinstance(each, LedgerHeader)]


@pytest.mark.parametrize("setup", list(setups()), ids=["each", "one", "alone", "sorted", "interleaved"])
def test_read_that_fails_once_at_a_start_loses_no_key_fence_or_explicit_lac(setup: Setup) -> None:
    twin = with_journal(setup)
    first = ended = 0
    while True:
        disk = crash_image(twin.disk, Loss.LOST, Random(first))
        before = known(reopened(crash_image(disk, Loss.KEPT, Random(1)), setup, twin.history.after_crash()))
        disk.fault, read = failing_reads(setup, first, 1)
        started = None
        with contextlib.suppress(OSError):
            started = BookieTwin(disk, setup, twin.history.after_crash())
        disk.fault = None
        if started is None:
            ended += 1
        else:
            audit_limbo(started, except_for=started.store.index.is_hidden)
        again = reopened(crash_image(disk, Loss.LOST, Random(1)), setup, twin.history.after_crash())
        found = known(again)
        # What the journal has of a ledger that is in limbo now may be missing: its last explicit LAC.
        assert [each[:2] for each in found] == [each[:2] for each in before], f"read {first}"
        assert all(each[2] for each in found), f"read {first}"
        audit_limbo(again)
        if len(read) <= first:
            break
        first += 1
    assert 3 < first < READS_MAX
    needs_every_read = setup.store.storage_class is StorageClass.DB and not again.store.index.is_divided
    assert (ended == first) == needs_every_read


@pytest.mark.parametrize("reads", [1, READS_MAX])
def test_start_without_a_home_whose_reads_fail_in_replay_serves_the_others(reads: int) -> None:
    setup = split_setup(2)
    twin = with_journal(setup)
    first, closed = 2, 0
    while True:
        disk = crash_image(twin.disk, Loss.LOST, Random(first))
        disk.fault, read = failing_reads(setup, first, reads)
        history = twin.history.after_crash()
        started = reopened(disk, setup, history)
        disk.fault = None
        is_closed = started.store.index.has_hidden
        if len(read) <= first:
            break
        assert is_closed, f"read {first}"
        audit_limbo(started, except_for=lambda ledger_id: ledger_id % 2 == 1)
        closed += 1
        first += 1
    assert closed > 3


@pytest.mark.parametrize("directories", [1, 2])
@pytest.mark.parametrize("storage_class", [StorageClass.SORTED, StorageClass.INTERLEAVED])
def test_start_keeps_the_header_of_a_ledger_whose_positions_alone_cannot_be_read(
    storage_class: StorageClass, directories: int
) -> None:
    """A disk lost one sector of one index file, for good."""
    split = split_setup(2)
    options = replace(split.store, storage_class=storage_class)
    setup = replace(split, ledger_directories=directories, store=options)
    twin = BookieTwin(setup.new_disk(), setup, History())
    put(twin, 0)
    twin.write_lac(1, 2)
    twin.settle()
    twin.checkpoint()
    before = twin.store.index.header(1)
    assert isinstance(before, LedgerHeader)
    assert before.explicit_lac
    twin.fence(1)
    twin.settle()
    disk = crash_image(twin.disk, Loss.LOST, Random(1))

    def lost(old: Any, reader: IndexReader, ledger_id: int, *arguments: Any) -> int:
        if ledger_id == 1:
            raise os_error(errno.EIO, "1.idx")
        last: int = old(reader, ledger_id, *arguments)
        return last

    for _ in range(2):
        with around(IndexReader, "_last_entry", lost):
            started = BookieTwin(disk, setup, twin.history.after_crash())
        assert 1 in started.store.limbo
        assert 2 not in started.store.limbo
        found = started.store.index.header(1)
        assert isinstance(found, LedgerHeader)
        assert (found.master_key, found.explicit_lac, found.fenced) == (before.master_key, before.explicit_lac, True)
        disk = crash_image(disk, Loss.LOST, Random(2))
