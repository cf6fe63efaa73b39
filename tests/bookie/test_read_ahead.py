"""The read-ahead cache of `DbLedgerStorage`: which entries it returns, how long it keeps them, and what they cost."""

from __future__ import annotations

import numpy as np

from bookie_service.storage.io.framed_entries import FramedEntries
from bookie_service.storage.ledgers.read_ahead import ReadAheadCache, part_of

RUN_BYTES = 400


def run(first_entry: int, *sizes: int, is_full: bool = False) -> FramedEntries:
    """FramedEntries of given sizes; item i consists of the byte `first_entry + i`."""
    buffer = b"".join(bytes([(first_entry + row) % 256]) * size for row, size in enumerate(sizes))
    return FramedEntries(first_entry, buffer, np.array(sizes, np.int64), is_full)


def cost(held: FramedEntries) -> int:
    return len(held.buffer) + held.sizes.nbytes + RUN_BYTES


def seen(items: FramedEntries | None) -> tuple[int, list[int], bytes, bool] | None:
    return items and (items.first_entry, items.sizes.tolist(), bytes(items.buffer), items.is_full)


# ---- a part of a run ----


def test_part_begins_at_the_entry_and_ends_at_the_limits() -> None:
    held = run(10, 5, 6, 7, 8)
    assert seen(part_of(held, 10, 9, 99)) == (10, [5, 6, 7, 8], bytes(held.buffer), False)
    assert seen(part_of(held, 11, 2, 99)) == (11, [6, 7], b"\x0b" * 6 + b"\x0c" * 7, False)
    assert seen(part_of(held, 13, 1, 99)) == (13, [8], b"\x0d" * 8, False)


def test_part_is_full_where_the_bytes_and_not_the_count_end_it() -> None:
    """The reader takes a full part as: more lies here."""
    held = run(10, 5, 6, 7, 8)
    assert seen(part_of(held, 11, 9, 13)) == (11, [6, 7], b"\x0b" * 6 + b"\x0c" * 7, True)
    assert seen(part_of(held, 11, 9, 12)) == (11, [6], b"\x0b" * 6, True)
    assert seen(part_of(held, 11, 9, 0)) == (11, [6], b"\x0b" * 6, True), "at least one entry"
    assert seen(part_of(held, 11, 1, 0)) == (11, [6], b"\x0b" * 6, False)
    assert seen(part_of(run(10, 5, 6, is_full=True), 10, 9, 99)) == (10, [5, 6], b"\x0a" * 5 + b"\x0b" * 6, True)
    assert not part_of(run(10, 5, 6, is_full=True), 10, 2, 99).is_full


# ---- the cache ----


def test_cache_returns_what_a_run_holds_from_an_entry_on() -> None:
    cache = ReadAheadCache(1 << 20)
    cache.keep(1, run(10, 5, 6), cache.epoch)
    cache.keep(1, run(20, 7), cache.epoch)
    cache.keep(2, run(0, 9), cache.epoch)
    assert seen(cache.find(1, 10, 9, 99)) == seen(run(10, 5, 6))
    assert seen(cache.find(1, 11, 9, 99)) == (11, [6], b"\x0b" * 6, False)
    assert seen(cache.find(1, 20, 9, 99)) == seen(run(20, 7))
    assert seen(cache.find(2, 0, 9, 99)) == seen(run(0, 9))
    for ledger_id, entry in ((1, 9), (1, 12), (1, 19), (1, 21), (2, 1), (3, 0)):
        assert cache.find(ledger_id, entry, 9, 99) is None


def test_run_replaces_the_one_that_begins_at_the_same_entry() -> None:
    cache = ReadAheadCache(1 << 20)
    cache.keep(1, run(10, 5), cache.epoch)
    cache.keep(1, run(10, 5, 6), cache.epoch)
    assert seen(cache.find(1, 11, 9, 99)) == (11, [6], b"\x0b" * 6, False)
    assert cache.used == cost(run(10, 5, 6))


def test_kept_run_does_not_change_with_the_memory_it_was_read_into() -> None:
    cache, memory = ReadAheadCache(1 << 20), bytearray(b"abcde")
    cache.keep(1, FramedEntries(3, memoryview(memory), np.array([5], np.int64)), cache.epoch)
    memory[:] = b"xxxxx"
    assert seen(cache.find(1, 3, 1, 9)) == (3, [5], b"abcde", False)


def test_run_that_was_read_while_a_flush_ended_is_not_kept() -> None:
    cache = ReadAheadCache(1 << 20)
    epoch = cache.epoch
    cache.forget(set())
    cache.keep(1, run(10, 5), epoch)
    assert cache.find(1, 10, 9, 99) is None
    cache.keep(1, run(10, 5), cache.epoch)
    assert cache.find(1, 10, 9, 99) is not None


def test_forget_lets_go_of_all_runs_of_ledgers_and_of_no_others() -> None:
    cache = ReadAheadCache(1 << 20)
    for ledger_id in (1, 2):
        for first in (10, 20, 30):
            cache.keep(ledger_id, run(first, 5), cache.epoch)
    cache.forget({1, 99})
    assert [cache.find(1, first, 9, 99) for first in (10, 20, 30)] == [None] * 3
    assert all(cache.find(2, first, 9, 99) for first in (10, 20, 30))
    assert cache.used == 3 * cost(run(10, 5))
    cache.forget({2})
    assert cache.used == 0


def test_least_recently_used_runs_make_room() -> None:
    cache = ReadAheadCache(3 * cost(run(0, 5)))
    for first in (10, 20, 30):
        cache.keep(1, run(first, 5), cache.epoch)
    cache.find(1, 10, 9, 99)
    cache.keep(1, run(40, 5), cache.epoch)
    assert [first for first in (10, 20, 30, 40) if cache.find(1, first, 9, 99)] == [10, 30, 40]
    assert cache.used == 3 * cost(run(0, 5))


def test_run_larger_than_the_cache_is_not_kept_and_throws_nothing_out() -> None:
    cache = ReadAheadCache(cost(run(0, 5)))
    cache.keep(1, run(10, 5), cache.epoch)
    cache.keep(1, run(20, 6), cache.epoch)
    assert cache.find(1, 20, 9, 99) is None
    assert cache.find(1, 10, 9, 99) is not None
    nothing = ReadAheadCache(0)
    nothing.keep(1, run(10, 5), nothing.epoch)
    assert (nothing.find(1, 10, 9, 99), nothing.used) == (None, 0)


def test_every_use_of_the_cache_holds_its_lock_once() -> None:
    """Reads find and keep runs on the event loop while a flush forgets some on its thread."""

    class Lock:
        held = 0

        def __enter__(self) -> None:
            self.held += 1

        def __exit__(self, *_: object) -> None:
            pass

    cache, lock = ReadAheadCache(1 << 20), Lock()
    cache._lock = lock  # type: ignore[assignment]
    cache.keep(1, run(10, 5), cache.epoch)
    assert lock.held == 1
    cache.find(1, 10, 1, 99)
    assert lock.held == 2
    cache.forget({1})
    assert lock.held == 3
