"""How `LedgerWriter.close` ends where bookies or the metadata store fail meanwhile; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from bkspark.client import AdvancedLedgerWriter
from bkspark.core.metadata import LedgerState
from bkspark.core.pipeline import WriterState
from bkspark.errors import ClientClosed, MetadataError, RequestTimeout
from tests.crash.images import Loss
from tests.ledger.after_calls import ticks
from tests.ledger.closing_clients import World, does_nothing, play


def test_bookie_lost_in_the_turn_in_which_an_ensemble_change_ends_is_replaced_before_the_close() -> None:
    """`close` waited for the change, found another under way when it went on, and died of an assertion."""

    async def test(world: World) -> None:
        first, second, _ = world.ensemble
        does_nothing(second)
        await world.writer.append(b"0")
        world.tree.is_holding = True
        does_nothing(first)
        await world.writer.append(b"1")
        await first.crash(next(iter(Loss)))
        await world.tree.written.wait()
        closing = asyncio.ensure_future(world.writer.close())
        await asyncio.sleep(0.5)
        assert world.writer.core.state is WriterState.CHANGING
        # The change ends, and in the same turn of the loop the connection of another bookie does.
        world.tree.answer.set_result(None)
        for link in [link for link in world.cluster.links if link.bookie is second]:
            link.abort()
        closed = await closing
        assert (closed.state, closed.last_entry) == (LedgerState.CLOSED, 1)
        assert not {first.id, second.id} & set(closed.last_fragment.bookies)
        assert await world.stored() == closed

    play(test)


def test_time_out_of_the_closing_write_says_that_its_outcome_is_unknown() -> None:
    """An error said "it is left open at entry 0" of a ledger that was closed."""

    async def test(world: World) -> None:
        await world.writer.append(b"0")
        world.tree.is_holding = True
        with pytest.raises(RequestTimeout, match="whether it was closed at entry 0 is unknown") as raised:
            await world.writer.close()
        assert (raised.value.ledger_id, raised.value.entry_id) == (world.writer.ledger_id, 1)
        assert (await world.stored()).state is LedgerState.CLOSED

    play(test, close_timeout_s=1.0)


def test_close_that_times_out_before_its_write_leaves_the_ledger_open() -> None:
    async def test(world: World) -> None:
        await world.writer.append(b"0")
        for bookie in world.ensemble:
            does_nothing(bookie)
        pending = await world.writer.submit([b"1"])
        with pytest.raises(RequestTimeout, match="it is left open, its last acknowledged entry is 0"):
            await world.writer.close()
        assert (await world.stored()).state is LedgerState.OPEN
        # The writer has ended: its callers get an error, and nothing of it runs on.
        assert isinstance(pending.exception(), ClientClosed)
        assert ticks() == []
        with pytest.raises(ClientClosed):
            await world.writer.close()

    play(test, close_timeout_s=1.0)


def test_close_under_chosen_ids_times_out_though_its_entries_wait_for_room() -> None:
    """They come after the one that fills the window. The call waited for them without a limit."""

    async def test(world: World) -> None:
        for bookie in world.ensemble:
            does_nothing(bookie)
        writer = AdvancedLedgerWriter(world.writer)
        appends = [asyncio.ensure_future(writer.append(entry_id, b"x")) for entry_id in range(5)]
        await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        with pytest.raises(RequestTimeout, match="it is left open, its last acknowledged entry is -1"):
            await writer.close()
        assert asyncio.get_running_loop().time() == began + 1.0, "it is the loop's virtual time"
        assert (await world.stored()).state is LedgerState.OPEN
        outcomes = await asyncio.gather(*appends, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ClientClosed] * 5
        assert ticks() == []

    play(test, close_timeout_s=1.0, pending_entries_max=1)


def test_close_that_is_cancelled_ends_the_writer_and_leaves_the_ledger_open() -> None:
    async def test(world: World) -> None:
        for bookie in world.ensemble:
            does_nothing(bookie)
        pending = await world.writer.submit([b"0"])
        closing = asyncio.ensure_future(world.writer.close())
        await asyncio.sleep(1.0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert isinstance(pending.exception(), ClientClosed)
        assert ticks() == []
        assert (await world.stored()).state is LedgerState.OPEN

    play(test)


def test_close_that_is_cancelled_when_the_ledger_has_just_been_closed_ends_the_writer() -> None:
    async def test(world: World) -> None:
        await world.writer.append(b"0")
        world.tree.is_holding = True
        closing = asyncio.ensure_future(world.writer.close())
        await world.tree.written.wait()
        world.tree.answer.set_result(None)
        while world.writer.core.state is not WriterState.CLOSED:
            await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert ticks() == []
        assert (await world.stored()).state is LedgerState.CLOSED

    play(test)


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_sync_returns_after_the_appends_that_were_called_before_it(count: int, is_full: bool) -> None:
    """Their caller takes entries that are known to be stored for entries whose appends have returned."""
    for is_many in (False, True):
        returned: list[object] = []

        async def test(world: World, is_many: bool = is_many, returned: list[object] = returned) -> None:
            async def call(work: Awaitable[object]) -> None:
                returned.append(await work)

            writer = world.writer
            appends = [call(writer.append_many([b"x"]) if is_many else writer.append(b"x")) for _ in range(count)]
            await asyncio.gather(*appends, call(writer.sync()))
            assert returned == [*range(count), count - 1]

        play(test, pending_entries_max=1 if is_full else 100)


def test_ledger_that_is_closed_stays_closed_and_is_closed_once() -> None:
    async def test(world: World) -> None:
        await world.writer.append(b"0")
        first, second = await asyncio.gather(world.writer.close(), world.writer.close())
        assert first == second == await world.writer.close() == await world.stored()
        world.writer.abandon()
        assert (await world.stored(), world.writer.core.error, ticks()) == (first, None, [])

    play(test)


def test_close_whose_metadata_store_stays_away_says_that_its_outcome_is_unknown() -> None:
    async def test(world: World) -> None:
        await world.writer.append(b"0")
        world.tree.is_failing = True
        with pytest.raises(MetadataError, match="whether the write took effect is unknown"):
            await world.writer.close()

    play(test, close_timeout_s=120.0)
