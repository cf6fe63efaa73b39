"""What a writer may have in flight before its callers wait, bound by bound, and whom it wakes when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from bkspark.core.relaxed import RelaxedDurability
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import LedgerFenced
from bkspark.ledger.window import AppendWindow
from bkspark.wire.status import Status
from tests.core.writing import SECOND_NS, Writer


class Bench:
    """A window on a core whose bookies answer when the test says so."""

    def __init__(self, quorums: tuple[int, int, int] = (3, 3, 2), relaxed: Any = None, **options: Any) -> None:
        self.options = WriterOptions(**options)
        self.writer = Writer(quorums, options=self.options, relaxed=relaxed)
        self.congested: Sequence[int] = ()
        self.window = AppendWindow(self.writer.core, self.options, lambda: self.congested)

    def add(self, count: int, payload_bytes: int = 1) -> None:
        self.writer.add(count)
        self.window.add(self.writer.core.pending.next_entry - 1, payload_bytes)

    def reply(self, *slots: int) -> None:
        """Let bookies answer all that was added."""
        for slot in slots:
            self.writer.reply(slot, *range(self.writer.core.pending.next_entry))
        self.window.acknowledge(self.writer.core.pending.acknowledged)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_window_is_full_above_its_entries_and_has_room_at_them() -> None:
    async def test() -> None:
        bench = Bench(pending_entries_max=10, lag_entries_max=1000)
        assert bench.window.is_idle()
        for _ in range(9):
            bench.add(1)
        assert not bench.window.is_full()
        assert not bench.window.is_idle(), "something is in flight"
        bench.add(1)
        assert bench.window.is_full()
        bench.reply(0)
        assert bench.window.is_full(), "one bookie is no quorum"
        bench.reply(1)
        assert bench.window.is_idle()

    run(test)


def test_window_is_full_from_its_bytes_on_and_counts_those_that_are_not_acknowledged() -> None:
    async def test() -> None:
        bench = Bench(pending_bytes_max=100)
        bench.add(1, 60)
        bench.add(1, 39)
        assert not bench.window.is_full()
        bench.add(1, 1)
        assert bench.window.is_full()
        for slot in (0, 1):
            bench.writer.reply(slot, 0)
        bench.window.acknowledge(0)
        assert not bench.window.is_full()
        bench.add(1, 59)
        assert not bench.window.is_full()
        bench.add(1, 1)
        assert bench.window.is_full()

    run(test)


def test_callers_wait_for_a_bookie_that_owes_too_many_answers() -> None:
    async def test() -> None:
        bench = Bench(lag_entries_max=20)
        bench.add(19)
        bench.reply(0, 1)
        assert not bench.window.is_full()
        bench.add(1)
        bench.reply(0, 1)
        assert bench.window.is_full()
        bench.reply(2)
        assert bench.window.is_idle()

    run(test)


def test_entries_that_are_kept_for_a_bookie_are_bounded_by_both_limits_together() -> None:
    async def test() -> None:
        bench = Bench(pending_bytes_max=10, lag_bytes_max=20)
        bench.add(29)
        bench.reply(0, 1)
        kept = bench.writer.core.pending.kept_bytes
        assert kept == 29
        assert not bench.window.is_full()
        bench.add(1)
        bench.reply(0, 1)
        assert bench.window.is_full()

    run(test)


def test_what_is_not_synced_has_a_limit_of_its_own_where_bookies_are_replaced() -> None:
    async def test() -> None:
        bench = Bench(relaxed=RelaxedDurability(changes_ensemble=True, unsynced_bytes_max=5))
        bench.add(4)
        bench.reply(0, 1, 2)
        assert not bench.window.is_full()
        bench.add(1)
        bench.reply(0, 1, 2)
        assert bench.window.is_full()

    run(test)


def test_full_connection_holds_callers_back_only_if_its_bookie_may() -> None:
    async def test() -> None:
        bench = Bench()
        bench.add(5)
        bench.reply(0, 1)
        bench.congested = (2,)
        assert bench.window.is_full()
        for _ in range(2):
            bench.writer.take(bench.writer.core.on_tick(3 * SECOND_NS, congested=[2]))
        assert not bench.window.is_full(), "a bookie that is left out delays no other"
        bench.congested = (2, 0)
        assert bench.window.is_full()
        bench.congested = ()
        assert not bench.window.is_full()

    run(test)


def test_caller_that_waits_for_room_goes_on_when_there_is_room_and_not_before() -> None:
    async def test() -> None:
        bench = Bench(pending_bytes_max=2)
        bench.window.look_for_room()
        bench.add(1)
        bench.add(1)
        waiting = asyncio.ensure_future(bench.window.wait_for_room())
        await asyncio.sleep(0)
        bench.window.look_for_room()
        await asyncio.sleep(0)
        assert not waiting.done()
        bench.reply(0, 1)
        bench.window.look_for_room()
        bench.window.look_for_room()
        await waiting
        await bench.window.wait_for_room()

    run(test)


def test_caller_waits_again_when_the_room_was_taken_before_its_turn() -> None:
    async def test() -> None:
        bench = Bench(pending_bytes_max=2)
        bench.add(1, 2)
        waiting = asyncio.ensure_future(bench.window.wait_for_room())
        await asyncio.sleep(0)
        bench.reply(0, 1)
        bench.window.look_for_room()
        bench.add(1, 2)
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waiting.done()
        bench.reply(0, 1)
        bench.window.look_for_room()
        await waiting

    run(test)


def test_waits_end_in_order_and_only_up_to_what_is_acknowledged_or_confirmed() -> None:
    async def test() -> None:
        bench = Bench()
        bench.add(1)
        first = bench.window.wait_for(0)
        bench.add(1)
        second, synced = bench.window.wait_for(1), bench.window.wait_for_sync(1)
        bench.window.acknowledge(0)
        assert (first.result(), second.done()) == (0, False)
        bench.window.acknowledge(1)
        assert (second.result(), synced.done()) == (1, False)
        bench.window.confirm(0)
        assert not synced.done()
        bench.window.confirm(1)
        assert synced.result() == 1

    run(test)


def test_wait_for_what_is_acknowledged_already_is_over_at_once() -> None:
    async def test() -> None:
        bench = Bench()
        bench.add(3)
        bench.reply(0, 1)
        assert bench.window.wait_for(2).result() == 2
        bench.add(1)
        assert not bench.window.wait_for(3).done()

    run(test)


def test_cancelled_wait_is_in_nobodys_way() -> None:
    async def test() -> None:
        bench = Bench()
        bench.add(1)
        first, second = bench.window.wait_for(0), bench.window.wait_for(0)
        first.cancel()
        bench.window.acknowledge(0)
        assert second.result() == 0
        bench.add(1)
        third, fourth = bench.window.wait_for(1), bench.window.wait_for(1)
        third.cancel()
        bench.window.fail(LedgerFenced("another client recovers the ledger"))
        with pytest.raises(LedgerFenced):
            await fourth

    run(test)


def test_end_of_the_writer_fails_all_waits_and_lets_the_caller_without_room_see_it() -> None:
    async def test() -> None:
        bench = Bench(pending_bytes_max=1)
        bench.add(1)
        waits = [bench.window.wait_for(0), bench.window.wait_for_sync(0)]
        room = asyncio.ensure_future(bench.window.wait_for_room())
        await asyncio.sleep(0)
        bench.writer.reply(0, 0, status=Status.EFENCED)
        error = bench.writer.core.error
        assert isinstance(error, LedgerFenced)
        bench.window.fail(error)
        await room
        for future in waits:
            with pytest.raises(LedgerFenced):
                await future
        assert bench.window.is_idle(), "nothing is in flight any more"
        with pytest.raises(LedgerFenced):
            bench.window.wait_for(0)

    run(test)
