"""What an open writer does by itself: regular ticks, waking callers, and ending its work; in virtual time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from bkspark.client import AdvancedLedgerWriter, Client
from bkspark.core import effects
from bkspark.core.tail import TailLimits
from bkspark.errors import ClientClosed, LedgerFenced, MetadataError, MetadataFormat, NotEnoughBookies, TlsFailed
from bkspark.ledger.tail import TailWatch
from bkspark.ledger.writer_run import STORE_AWAY_S, TICK_S
from bkspark.net.pool import NetOptions
from tests.crash.images import Loss
from tests.ledger.after_calls import ticks, timers
from tests.ledger.closing_clients import World, does_nothing, play
from tests.ledger.holders import PATIENT, Holder, with_bookies
from tests.ledger.hostile import HostileBookie
from tests.ledger.hostile import World as HostileWorld
from tests.simulation.full_cluster import URI
from tests.simulation.full_links import TO_BOOKIE

LONG_S = 600.0
"""A time that only a test that fails waits for: it is virtual."""


def test_callers_that_wait_for_room_go_on_when_bookies_answer() -> None:
    async def test(world: World) -> None:
        async with asyncio.timeout(LONG_S):
            appended = await asyncio.gather(*(world.writer.append_many([b"%d" % number]) for number in range(5)))
        assert appended == list(range(5))

    play(test, pending_entries_max=1)


def test_call_that_waits_for_room_goes_before_one_that_finds_room_again() -> None:
    """The window is empty in the turn in which the third call is made, and the second has not sent its entry yet."""

    async def test(world: World) -> None:
        async def one_after_the_other() -> list[int]:
            return [await world.writer.append(b"first"), await world.writer.append(b"third")]

        async with asyncio.timeout(LONG_S):
            ids = await asyncio.gather(one_after_the_other(), world.writer.append_many([b"second"]))
        assert ids == [[0, 2], 1]

    play(test, pending_entries_max=1)


def test_single_entries_wait_for_room_as_batches_do() -> None:
    async def test(world: World) -> None:
        for bookie in world.ensemble:
            does_nothing(bookie)
        appends = [asyncio.ensure_future(world.writer.append(b"x")) for _ in range(5)]
        for append in appends:
            await asyncio.wait([append], timeout=0.1)
        # One call sends its entry, and the four others, which came together, send theirs when it is acknowledged.
        assert world.writer.core.pending.next_entry == 1
        world.writer.abandon()
        await asyncio.gather(*appends, return_exceptions=True)

    play(test, pending_entries_max=1)


def test_call_waits_while_the_bytes_in_flight_are_at_their_limit() -> None:
    async def test(world: World) -> None:
        for bookie in world.ensemble:
            does_nothing(bookie)
        await world.writer.submit([bytes(100)])
        waiting = asyncio.ensure_future(world.writer.submit([b"x"]))
        await asyncio.wait([waiting], timeout=0.1)
        assert (waiting.done(), world.writer.core.pending.next_entry) == (False, 1)
        world.writer.abandon()
        await asyncio.gather(waiting, return_exceptions=True)

    play(test, pending_bytes_max=100)


@pytest.mark.parametrize(("sizes", "pieces"), [([1] * 2000, [1024, 976]), ([100 * 1024] * 6, [5, 1])])
def test_batch_is_sent_in_pieces_of_1024_entries_and_512_kib(sizes: list[int], pieces: list[int]) -> None:
    async def test(world: World) -> None:
        for bookie in world.ensemble:
            does_nothing(bookie)
        await world.writer.submit([bytes(size) for size in sizes])
        assert [len(piece) for piece in world.writer.core.pending.batches] == pieces
        world.writer.abandon()
        await asyncio.sleep(0)

    play(test)


def test_bookie_that_owes_an_answer_for_too_long_is_found_by_the_regular_tick() -> None:
    async def test(world: World) -> None:
        silent = world.ensemble[0]
        does_nothing(silent)
        await world.writer.append(b"0")
        async with asyncio.timeout(LONG_S):
            while silent in world.ensemble:
                await asyncio.sleep(0.1)
        assert (await world.stored()).fragments[-1].bookies == tuple(world.writer.core.slots.ensemble)

    play(test, add_timeout_s=1.0)


def test_write_of_metadata_that_is_under_way_is_given_up_with_the_writer() -> None:
    async def test(world: World) -> None:
        lost = world.ensemble[0]
        does_nothing(lost)
        world.tree.is_holding = True
        await world.writer.append(b"0")
        await lost.crash(next(iter(Loss)))
        await world.tree.written.wait()
        world.writer.abandon()
        await asyncio.sleep(0)
        assert world.tree.answer.cancelled()

    play(test)


def test_tick_that_the_core_asks_for_twice_comes_once_and_ends_with_the_writer() -> None:
    async def test(world: World) -> None:
        run = world.writer.run
        run.perform([effects.CallAfter(10**9), effects.CallAfter(2 * 10**9)])
        (tick,) = timers("WriterRun._tick_once")
        assert tick.when() == asyncio.get_running_loop().time() + 1.0
        await asyncio.sleep(1.5)
        assert timers("WriterRun._tick_once") == []
        run.perform([effects.CallAfter(10**9)])
        assert len(timers("WriterRun._tick_once")) == 1, "the next one is made when the core asks again"
        world.writer.abandon()
        assert ticks() == []

    play(test)


@pytest.mark.parametrize(
    ("error", "least_s", "most_s"),
    [(MetadataFormat("damaged"), 0.0, 10.0), (MetadataError("ZooKeeper is away"), STORE_AWAY_S - 1, STORE_AWAY_S + 10)],
    ids=["damaged", "away"],
)
def test_store_that_names_no_bookies_is_asked_again_for_a_limited_time_and_only_if_it_is_away(
    error: MetadataError, least_s: float, most_s: float
) -> None:
    async def fail(*_: Any, **__: Any) -> Any:
        raise error

    async def test(world: World) -> None:
        lost = world.ensemble[0]
        does_nothing(lost)
        await world.writer.append(b"0")
        for call in ("children", "get", "exists", "watch", "watch_children"):
            setattr(world.tree, call, fail)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        ended = loop.create_future()
        world.writer.run.on_failed = ended.set_result
        await lost.crash(next(iter(Loss)))
        async with asyncio.timeout(LONG_S):
            assert await ended is error
        assert least_s <= loop.time() - began_s <= most_s

    play(test, add_timeout_s=1.0)


def test_writer_replaces_a_bookie_though_the_rack_map_cannot_be_decoded() -> None:
    """It was made when the map could be read, or there was none: a map that is wrong now ends no writer."""

    async def test(world: World) -> None:
        await world.writer.append(b"0")
        await world.cluster.store.session().create("/ledgers/bookies", b"nonsense")
        lost = world.ensemble[0]
        await lost.crash(next(iter(Loss)))
        async with asyncio.timeout(LONG_S):
            while lost in world.ensemble:
                await world.writer.append(b"more")
        assert world.writer.core.error is None

    play(test, add_timeout_s=1.0)


@pytest.mark.parametrize(
    "effect_for",
    [effects.DropIfSilent, lambda bookie: effects.FindBookies((bookie,))],
    ids=["DropIfSilent", "FindBookies"],
)
def test_connection_to_a_bookie_that_is_silent_is_dropped(effect_for: Callable[[str], effects.WriterEffect]) -> None:
    """It may be half-open; its bookie can be reached by another one."""

    async def test(world: World) -> None:
        await world.writer.append(b"0")
        await asyncio.sleep(1.0)  # until every bookie is connected
        silent = world.ensemble[0]
        (before,) = [link for link in world.cluster.links if link.bookie is silent]
        world.writer.run.perform([effect_for(silent.id)])
        await asyncio.sleep(0)
        assert before in world.cluster.links, "it has received something lately"
        await asyncio.sleep(NetOptions().read_timeout_s + 1.0)
        world.writer.run.perform([effect_for(silent.id)])
        await asyncio.sleep(0)
        assert before not in world.cluster.links

    play(test)


@pytest.mark.parametrize("is_extra", [False, True])
def test_tick_reports_connections_with_too_many_unsent_bytes(is_extra: bool) -> None:
    async def test(world: World) -> None:
        await world.writer.append(b"0")
        await asyncio.sleep(1.0)  # until every bookie is connected
        world.cluster.socket_bytes = 0
        slow = world.ensemble[0]
        for link in world.cluster.links:
            if link.bookie is slow:
                link.hold(TO_BOOKIE, LONG_S)
        await world.writer.append(bytes(2000))
        if is_extra:
            world.writer.run._tick_once()
        else:
            await asyncio.sleep(2 * TICK_S)
        assert [slot.is_congested for slot in world.writer.core.slots.all] == [True, False, False]

    play(test, lag_bytes_max=1000)


REFUSAL = "the certificate of a bookie is not trusted"


def test_writer_that_has_too_few_bookies_names_the_last_refusal_by_one_as_the_likely_cause() -> None:
    async def test(world: World) -> None:
        world.writer.run.fanout.handshake_error = TlsFailed(REFUSAL)
        for bookie in world.cluster.bookies:
            await bookie.crash(next(iter(Loss)))
        with pytest.raises(NotEnoughBookies, match=REFUSAL):
            await world.writer.append(b"0")

    play(test, add_timeout_s=1.0)


def test_writer_that_ends_for_another_reason_names_no_refusal() -> None:
    async def test(world: World) -> None:
        world.writer.run.fanout.handshake_error = TlsFailed(REFUSAL)
        async with Client(URI, tree=world.cluster.session()) as other:
            await other.recover(world.writer.ledger_id)
        with pytest.raises(LedgerFenced) as raised:
            await world.writer.append(b"0")
        assert REFUSAL not in str(raised.value)
        assert ticks() == [], "the writer has ended, though its owner keeps it"

    play(test)


def test_entries_that_wait_for_room_when_the_writer_ends_fail_and_nothing_is_reported_later() -> None:
    reported: list[dict[str, Any]] = []

    async def test(world: World) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
        for bookie in world.ensemble:
            does_nothing(bookie)
        writer = AdvancedLedgerWriter(world.writer)
        appends = [asyncio.ensure_future(writer.append(entry_id, b"x")) for entry_id in (0, 1, 2, 4)]
        await asyncio.sleep(0.1)
        assert world.writer.core.pending.next_entry < 3, "the window has no room for all"
        writer.abandon()
        for ended in await asyncio.gather(*appends, return_exceptions=True):
            assert isinstance(ended, ClientClosed)

    play(test, pending_entries_max=1)
    gc.collect()
    assert reported == []


def test_tail_has_one_timer_and_none_after_its_end() -> None:
    async def test(world: HostileWorld, bookie: HostileBookie) -> None:
        client = world.client(net=PATIENT)
        reader = await client.open(await world.ledger(bookie), recover=False)
        watch = TailWatch(await client.context(), reader, TailLimits())
        waiting = asyncio.ensure_future(watch.wait_beyond(9))
        while not timers("TailWatch._tick"):
            await asyncio.sleep(0)
        for _ in range(3):
            watch.perform([effects.CallAfter(10**12)])
            assert len(timers("TailWatch._tick")) == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await watch.aclose()
        assert timers("TailWatch._tick") == []

    with_bookies(Holder(range(3)))(test)
