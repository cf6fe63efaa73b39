"""What one look for entries returns when the index leads it astray, and how far it goes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bkspark.wire.status import Status
from bookie_service.storage.index.index import LedgerUpdate
from bookie_service.storage.io.byte_source import CachedSource
from bookie_service.storage.io.framed_entries import FramedEntries
from bookie_service.storage.ledgers import base
from bookie_service.storage.ledgers.interface import LookResult
from bookie_service.storage.ledgers.read_ahead import ReadAheadCache
from tests.bookie.changing import add, entry
from tests.bookie.collecting import Bench
from tests.bookie.stepped_twins import restarted, twin_of
from tests.crash.simulated_files import SimulatedFiles
from tests.crash.twins import BookieTwin

ITEM_BYTES = 39


@pytest.fixture
def twin() -> BookieTwin:
    """A bookie with entries 0 to 5 of ledgers 4 and 5 in an entry log."""
    twin = twin_of()
    held = [(ledger_id, entry_id) for ledger_id in (4, 5) for entry_id in range(6)]
    assert add(twin, *held) == [Status.EOK] * 12
    twin.checkpoint()
    return twin


def look(twin: BookieTwin, ledger_id: int, entry_ids: list[int]) -> LookResult:
    ledger = twin.store.ledger(ledger_id)
    assert ledger is not None
    return twin.store.read_each([ledger], [len(entry_ids)], np.array(entry_ids), 1 << 20, CachedSource(1 << 20))


def taken(found: LookResult) -> list[int]:
    return sorted(entry_id for _, entries in found.pieces for entry_id in entries.entry_ids.tolist())


@pytest.mark.parametrize("other", [(5, 3), (4, 4)])
def test_position_that_leads_to_another_entry_returns_nothing(twin: BookieTwin, other: tuple[int, int]) -> None:
    wrong = twin.store.index.positions(other[0], other[1], 1)
    with twin.store.writing:
        twin.store.move([LedgerUpdate(4, None, np.array([3]), wrong)])
    found = look(twin, 4, [2, 3, 5])
    assert (taken(found), found.odd.tolist(), found.missing.tolist()) == ([2, 5], [1], [])


@pytest.mark.parametrize("length", [0, 15, ITEM_BYTES * 30, 1 << 30])
def test_entry_whose_length_is_damaged_is_not_returned(twin: BookieTwin, length: int) -> None:
    position = twin.store.index.positions(4, 3, 1).item(0)
    (log_id,) = twin.store.logs._paths
    file = SimulatedFiles(twin.disk).open(str(twin.store.logs.path(log_id)))
    file.write([length.to_bytes(4, "big")], (position & 0xFFFFFFFF) - 4)
    found = look(twin, 4, [2, 3, 5])
    assert (taken(found), found.odd.tolist(), found.missing.tolist()) == ([2, 5], [1], [])


def test_entry_that_would_reach_beyond_the_bytes_that_were_read_is_not_returned(twin: BookieTwin) -> None:
    position = twin.store.index.positions(4, 3, 1).item(0)
    (log_id,) = twin.store.logs._paths
    file = SimulatedFiles(twin.disk).open(str(twin.store.logs.path(log_id)))
    file.write([(ITEM_BYTES - 4 + 1).to_bytes(4, "big")], (position & 0xFFFFFFFF) - 4)
    found = look(twin, 4, [1, 2, 3])
    assert (taken(found), found.odd.tolist(), found.missing.tolist()) == ([1, 2], [2], [])


def test_look_that_takes_everything_from_memory_goes_on_in_the_logs(twin: BookieTwin) -> None:
    assert add(twin, (4, 6), (4, 7)) == [Status.EOK] * 2
    found = look(twin, 4, [1, 3, 6, 7, 9])
    assert (taken(found), found.odd.tolist(), found.missing.tolist()) == ([1, 3, 6, 7], [], [4])


def test_shortest_entry_is_found(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(1, range(3), size=0)
    bench.flush()
    ledger = bench.store.ledger(1)
    assert ledger is not None
    found = bench.store.read_each([ledger], [3], np.arange(3), 1 << 20, CachedSource(1 << 20))
    assert (taken(found), found.odd.tolist()) == ([0, 1, 2], [])
    bench.store.close()


def test_read_ahead_counts_look_ups_and_those_that_found_something() -> None:
    cache = ReadAheadCache(1 << 20)
    assert (cache.hits, cache.lookups, cache.used) == (0, 0, 0)
    cache.keep(4, FramedEntries(0, memoryview(b"abcdef"), np.array([3, 3]), False), cache.epoch)
    assert cache.find(4, 1, 1, 100) is not None
    assert (cache.hits, cache.lookups) == (1, 1)
    assert cache.find(4, 2, 1, 100) is None
    assert cache.find(5, 0, 1, 100) is None
    assert (cache.hits, cache.lookups) == (1, 3)
    cache.pass_by()
    assert (cache.hits, cache.lookups) == (1, 4)


def test_few_ledgers_are_kept_in_memory_though_the_oldest_must_stay(
    twin: BookieTwin, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert add(twin, *((ledger_id, 0) for ledger_id in range(10, 40))) == [Status.EOK] * 30
    twin.checkpoint()
    again = restarted(twin)
    monkeypatch.setattr(base, "LEDGERS_MAX", 4)
    assert add(again, (10, 1), (11, 1)) == [Status.EOK] * 2
    for ledger_id in range(12, 40):
        assert again.store.ledger(ledger_id) is not None
        assert len(again.store._ledgers) <= 4 + 1  # type: ignore[attr-defined]
    assert add(again, (10, 2)) == [Status.EOK]
    again.checkpoint()
    assert [again.read(10, each)[2] for each in range(3)] == [entry(10, each) for each in range(3)]
