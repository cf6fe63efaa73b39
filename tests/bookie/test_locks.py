"""What threads share is locked while it is used. A test cannot see a race, so it counts how often a lock is taken."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bookie_service.gc.compaction_pace import CompactionPace, PaceLimit
from bookie_service.storage.index.index_pages import IndexPages
from bookie_service.storage.io.disk_threads import DiskThreads
from bookie_service.storage.io.file_places import FilePlaces
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.io.key_values import KeyValueOptions
from bookie_service.storage.io.rocks import RocksKeyValues
from bookie_service.storage.ledgers.limbo import Limbo
from bookie_service.storage.logs.entry_log import EntryLogs
from bookie_service.storage.logs.log_appenders import AppendPart
from tests.bookie.changing import add
from tests.bookie.flushes import CountedLock
from tests.bookie.stepped_twins import twin_of

EMPTY = np.empty(0, np.int64)


def locked(owner: Any, attribute: str) -> CountedLock:
    """Replace a lock by one that counts how often it is taken."""
    lock = CountedLock()
    assert isinstance(getattr(owner, attribute), type(threading.Lock()))
    setattr(owner, attribute, lock)
    return lock


def times_taken(lock: CountedLock, *calls: Callable[[], object]) -> list[int]:
    """Return how often each call takes the lock, and gives it back."""
    taken = []
    for call in calls:
        before = lock.taken
        call()
        assert not lock.locked()
        taken.append(lock.taken - before)
    return taken


def test_pages_of_the_index_are_locked_by_readers_and_by_the_flush() -> None:
    pages = IndexPages(512, 1 << 20)
    lock = locked(pages, "_lock")
    slots, positions = np.arange(3), np.arange(1, 4)
    calls = (
        lambda: pages.change(7, 0, slots, positions, lambda: EMPTY),
        lambda: pages.find(7, 0, 1),
        lambda: pages.page(7, 0),
        lambda: pages.numbers(7, 0, 1),
        lambda: pages.written([(7, 0)]),
        lambda: pages.keep(7, 1, positions, pages.changes),
        lambda: pages.forget(7),
        lambda: pages.change(8, 0, slots, positions, lambda: EMPTY),
        lambda: pages.make_room(),
        lambda: pages.evict([(8, 0)]),
    )
    assert times_taken(lock, *calls) == [1] * len(calls)


def test_list_of_ledgers_in_limbo_is_changed_by_one_thread_at_a_time(tmp_path: Path) -> None:
    limbo = Limbo(LocalFiles(), [str(tmp_path)])
    lock = locked(limbo, "_changing")
    assert times_taken(lock, lambda: limbo.begin([4, 5]), lambda: limbo.end([4]), limbo.keep) == [1, 1, 1]
    assert limbo.ledger_ids.tolist() == [5]


def test_places_of_files_are_recorded_by_one_thread_at_a_time(tmp_path: Path) -> None:
    places = FilePlaces(LocalFiles(), str(tmp_path))
    lock = locked(places, "_noting")
    assert times_taken(lock, lambda: places.note("limbo", 1)) == [1]


def test_copies_that_run_at_once_are_counted_together() -> None:
    pace = CompactionPace(lambda: PaceLimit(0, counts_bytes=False), threading.Event())
    lock = locked(pace, "_lock")
    assert times_taken(lock, lambda: pace(3, 30), lambda: pace(4, 40)) == [1, 1]
    assert pace._done == 7


def test_part_of_a_flush_is_ended_by_one_side() -> None:
    part = AppendPart()
    lock = locked(part, "_lock")
    assert times_taken(lock, part.ends) == [1]
    assert not part.ends()


def test_work_of_a_disk_is_given_in_order_and_its_lateness_noted_by_one_thread() -> None:
    threads = DiskThreads(["/a", "/b"])
    giving, noting = CountedLock(), locked(threads, "_noting")
    threads._giving[1] = giving  # type: ignore[call-overload]
    held: Future[int] = Future()
    threads.waits, threads.stall_s = False, 0.0
    given = threads.run({1: held.result})
    assert (giving.taken, noting.taken) == (1, 1)
    held.set_result(3)
    threads.settle()
    threads.stop()
    assert (given[1].result(), giving.taken, noting.taken) == (3, 1, 2)


def test_entry_logs_are_numbered_and_listed_by_one_thread_at_a_time(tmp_path: Path) -> None:
    logs = EntryLogs(LocalFiles(), [str(tmp_path)])
    numbering = locked(logs, "_numbering")
    creating = CountedLock()
    logs._creating[str(tmp_path)] = creating  # type: ignore[assignment]
    made: list[Any] = []
    # A new log takes a number, and is then listed.
    assert times_taken(numbering, lambda: made.append(logs.create(str(tmp_path)))) == [2]
    assert times_taken(numbering, lambda: made.append(logs.create_temporary(".tmp"))) == [1]
    assert creating.taken == 2
    calls = (
        lambda: logs.adopt(made[1].log_id, ".tmp"),
        lambda: logs.rotate_appended(set()),
        lambda: logs.discard(made[0].log_id),
    )
    assert times_taken(numbering, *calls) == [1, 1, 1]
    for each in made:
        each.close()


def test_key_value_store_is_used_by_one_thread_at_a_time(tmp_path: Path) -> None:
    store = RocksKeyValues(str(tmp_path), KeyValueOptions())
    using, syncing = locked(store, "_using"), locked(store, "_syncing")
    puts = [(b"%03d" % number, b"x") for number in range(5)]
    calls = (
        lambda: store.write(puts),
        lambda: store.get([b"003"]),
        lambda: store.last(b"000", b"999"),
        store.key_count,
        store.sync,
        store.close,
    )
    assert times_taken(using, *calls) == [1] * len(calls)
    assert syncing.taken == 1
    again = RocksKeyValues(str(tmp_path), KeyValueOptions())
    using = locked(again, "_using")
    # The second look finds that there are no more.
    assert times_taken(using, lambda: list(again.keys(b"000", b"999"))) == [2]
    again.close()


@pytest.mark.parametrize("change", ["flush", "seal", "disown", "accept", "keep"])
def test_records_of_the_index_are_changed_while_no_flush_writes(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    twin = twin_of()
    add(twin, (4, 0), (5, 0))
    store = twin.store
    flush = store.begin_flush()
    assert flush is not None
    lock = CountedLock()
    monkeypatch.setattr(store, "writing", lock)
    is_locked: list[bool] = []
    twin.disk.before_operation = lambda operation, path: is_locked.append(lock.locked())
    changes: dict[str, Callable[[], object]] = {
        "flush": lambda: store.write_flush(flush),
        "seal": store.seal_logs,
        "disown": lambda: store.prepare_drop([4], [], 1000),
        "accept": lambda: store.end_limbo([4]),
        "keep": store.keep_records,
    }
    changes[change]()
    assert lock.taken == 1
    if change == "flush":
        assert is_locked
        assert all(is_locked)
