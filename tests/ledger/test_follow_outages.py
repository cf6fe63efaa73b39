"""Followers of ledgers and logs while bookies or the metadata store are away, or a bookie lies; in virtual time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from random import Random
from typing import Any

import pytest

from bkspark.client import Client, LedgerReader, WriterOptions
from bkspark.core.tail import TailLimits
from bkspark.errors import (
    BookieUnavailable,
    BookKeeperError,
    DataLoss,
    MetadataError,
    NoSuchLedger,
    ReadFailed,
)
from bkspark.ledger.tail import TailWatch
from bkspark.net.v3_channel import BookieV3Channel, PollResponse
from bkspark.wire.status import Status
from tests.crash.images import Loss
from tests.planting import around, changed
from tests.simulation.full_cluster import URI, Cluster, DelayedTree

CALL_TIMEOUT_S = 10.0


class Outages(DelayedTree):
    """A session at a metadata store that answers nothing while `is_away`."""

    is_away = False

    async def _on_the_way(self) -> None:
        if self.is_away:
            await asyncio.sleep(CALL_TIMEOUT_S)
            raise MetadataError(f"ZooKeeper did not answer in {CALL_TIMEOUT_S:g} s")
        await super()._on_the_way()


class World:
    """A cluster, a client that writes and one that reads, whose metadata store may be away."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.tree = Outages(cluster, cluster.store)
        self.writing = Client(URI, tree=cluster.session(), digest="mac", password=b"pw")
        self.reading = Client(URI, tree=self.tree, password=b"pw")
        self.got: list[bytes] = []

    def follow(self, batches: Any) -> asyncio.Task[None]:
        async def follow() -> None:
            async for batch in batches:
                self.got += batch

        return asyncio.ensure_future(follow())

    async def outage(self, what: str, seconds: float) -> None:
        """Let the metadata store, or two of three bookies, be away for a time."""
        if what == "store":
            self.tree.is_away = True
        else:
            for bookie in self.cluster.bookies[:2]:
                await bookie.crash(next(iter(Loss)))
        await asyncio.sleep(seconds)
        self.tree.is_away = False
        for bookie in self.cluster.bookies:
            await bookie.start()


def play(test: Callable[[World], Awaitable[None]], seed: int = 2) -> None:
    cluster = Cluster(Random(seed), 3)

    async def call() -> None:
        await cluster.start()
        world = World(cluster)
        try:
            await test(world)
        finally:
            await world.reading.close()
            await world.writing.close()

    cluster.run(call())


@pytest.mark.parametrize("seconds", [0.3, 20.0, 50.0])
@pytest.mark.parametrize("what", ["store", "bookies"])
def test_ledgers_follower_survives_what_its_writer_survives(what: str, seconds: float) -> None:
    """A metadata store away for one call, or bookies away for 0.3 s, ended every follower for good."""

    async def test(world: World) -> None:
        writer = await world.writing.create(ensemble=3, write_quorum=3, ack_quorum=2)
        await writer.append(b"0")
        await writer.append(b"1")
        following = world.follow((await world.reading.open(writer.ledger_id)).follow())
        await asyncio.sleep(2)
        await world.outage(what, seconds)
        for number in range(2, 6):
            await writer.append(b"%d" % number)
        await writer.close()
        await asyncio.wait_for(following, 60)
        assert world.got == [b"%d" % number for number in range(6)]

    play(test)


@pytest.mark.parametrize("what", ["store", "bookies"])
def test_logs_follower_survives_what_its_writer_survives(what: str) -> None:
    async def test(world: World) -> None:
        log = world.writing.log("clicks")
        writer = await log.open_for_writing()
        await writer.append(b"0")
        following = world.follow(world.reading.log("clicks").follow())
        await asyncio.sleep(2)
        for number in (1, 2):
            await world.outage(what, 20.0)
            await writer.append(b"%d" % number)
            await writer.roll()
        async with asyncio.timeout(120):
            while len(world.got) < 3:
                await asyncio.sleep(0.1)
        assert world.got == [b"0", b"1", b"2"]
        following.cancel()
        await writer.close()

    play(test)


def test_logs_follower_survives_the_removal_of_a_ledger_that_it_has_read() -> None:
    """The store is away for the follower while the ledger is closed and removed. No entry is lost."""

    async def test(world: World) -> None:
        options = WriterOptions(explicit_lac_interval_s=0.1)
        writing = Client(URI, tree=world.cluster.session(), digest="mac", password=b"pw", writer=options)
        log = writing.log("clicks")
        writer = await log.open_for_writing()
        await writer.append(b"0")
        following = world.follow(world.reading.log("clicks").follow())
        async with asyncio.timeout(60):
            while not world.got:
                await asyncio.sleep(0.1)
        world.tree.is_away = True
        await writer.roll()
        assert await log.truncate(await writer.append(b"1")) == 1
        world.tree.is_away = False
        await writer.append(b"2")
        async with asyncio.timeout(60):
            while world.got != [b"0", b"1", b"2"]:
                assert not following.done(), following
                await asyncio.sleep(0.1)
        following.cancel()
        await writer.close()
        await writing.close()

    play(test)


@pytest.mark.parametrize("kind", ["ledger", "log"])
@pytest.mark.parametrize(("what", "error"), [("store and bookies", MetadataError), ("bookies", ReadFailed)])
def test_follower_ends_when_its_patience_is_over(what: str, error: type[BookKeeperError], kind: str) -> None:
    async def test(world: World) -> None:
        log = world.writing.log("clicks")
        writer = await log.open_for_writing()
        await writer.append(b"0")
        assert writer.ledger_id is not None
        loop = asyncio.get_running_loop()
        if kind == "log":
            batches: Any = world.reading.log("clicks").follow(patience_s=15.0)
        else:
            batches = (await world.reading.open(writer.ledger_id)).follow(patience_s=15.0)
        following = world.follow(batches)
        await asyncio.sleep(2)
        began = loop.time()
        world.tree.is_away = "store" in what
        for bookie in world.cluster.bookies:
            await bookie.crash(next(iter(Loss)))
        with pytest.raises(error):
            await asyncio.wait_for(following, 200)
        # From the last answer on: a follower hears something every five seconds.
        assert 15.0 - 5.0 <= loop.time() - began <= 15.0 + 2 * CALL_TIMEOUT_S + 5.0

    play(test)


def test_follower_of_a_deleted_ledger_ends_at_once() -> None:
    async def test(world: World) -> None:
        log = world.writing.log("clicks")
        writer = await log.open_for_writing()
        await writer.append(b"0")
        assert writer.ledger_id is not None
        one = world.follow((await world.reading.open(writer.ledger_id)).follow())
        other = world.follow(world.reading.log("clicks").follow())
        await asyncio.sleep(2)
        await world.writing.delete(writer.ledger_id)
        with pytest.raises(NoSuchLedger):
            await asyncio.wait_for(one, 10)
        with pytest.raises(DataLoss, match=f"ledger {writer.ledger_id} of log clicks was deleted"):
            await asyncio.wait_for(other, 10)

    play(test)


@pytest.mark.parametrize("hint", [3, 1000, 2**62])
def test_lac_that_a_long_poll_tells_is_a_hint_until_a_digest_proves_it(hint: int) -> None:
    """One bookie of three said 1000; the reader believed it and ended with NoSuchEntry."""

    async def test(world: World) -> None:
        writer = await world.writing.create(ensemble=3, write_quorum=3, ack_quorum=2)
        await writer.append_many([b"0", b"1"])
        liar = world.cluster.bookies[0].id

        def make(old: Any) -> Any:
            async def poll(self: Any, ledger_id: int, previous_lac: int, wait_s: float, digest: Any) -> PollResponse:
                answer = await old(self, ledger_id, previous_lac, wait_s, digest)
                return PollResponse(answer.status, hint, answer.entry) if self.bookie == liar else answer

            return poll

        with changed(BookieV3Channel, "poll_entry", make):
            reader = await world.reading.open(writer.ledger_id)
            following = world.follow(reader.follow())
            for number in range(2, 8):
                await writer.append(b"%d" % number)
                await asyncio.sleep(5)
                assert reader.last_entry < number
            await writer.close()
            await asyncio.wait_for(following, 60)
        assert world.got == [b"%d" % number for number in range(8)]

    play(test)


def test_follower_gets_entries_by_long_polls_while_the_metadata_store_is_away() -> None:
    """Each long before the next look at all bookies: the LAC that the next add carries ends a poll."""

    async def test(world: World) -> None:
        loop = asyncio.get_running_loop()
        writer = await world.writing.create(ensemble=3, write_quorum=3, ack_quorum=2)
        await writer.append(b"0")
        following = world.follow((await world.reading.open(writer.ledger_id)).follow())
        await asyncio.sleep(1)
        world.tree.is_away = True
        for number in range(1, 30):
            await writer.append(b"%d" % number)
            before = loop.time()
            while len(world.got) < number:  # all but the last one
                await asyncio.sleep(0.001)
            assert loop.time() - before < 0.5
            await asyncio.sleep(0.3)
        assert world.got == [b"%d" % number for number in range(29)]
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await writer.close()

    play(test)


def test_follower_learns_of_the_close_at_once_and_leaves_no_watch() -> None:
    async def test(world: World) -> None:
        loop = asyncio.get_running_loop()
        writer = await world.writing.create(ensemble=3, write_quorum=3, ack_quorum=2)
        await writer.append(b"0")
        await writer.append(b"1")
        reader = await world.reading.open(writer.ledger_id)
        watches = len(world.cluster.store.watched)
        following = world.follow(reader.follow())
        await asyncio.sleep(7)
        assert world.got == [b"0"]
        assert len(world.cluster.store.watched) == watches + 1
        await writer.close()
        closed = loop.time()
        await following
        # Long before the next look, which comes every five seconds.
        assert loop.time() - closed < 0.5
        assert world.got == [b"0", b"1"]
        assert len(world.cluster.store.watched) == watches

    play(test)


def test_follower_that_is_left_ends_all_its_work() -> None:
    async def test(world: World) -> None:
        writer = await world.writing.create(ensemble=3, write_quorum=3, ack_quorum=2)
        await writer.append_many([b"0", b"1"])
        reader = await world.reading.open(writer.ledger_id)
        before = asyncio.all_tasks()
        following = world.follow(reader.follow())
        await asyncio.sleep(2)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        assert not [task for task in asyncio.all_tasks() - before if "Driver._run" in str(task.get_coro())]
        asked = reader.last_entry
        await writer.append(b"2")
        await asyncio.sleep(20)
        assert reader.last_entry == asked
        await writer.close()

    play(test)


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_entry_that_came_with_a_poll_is_given_once_it_is_proven(is_confirmed: bool) -> None:
    """The poll's LAC is a hint: a bookie that says too much sends the entry along, too."""

    async def test(world: World) -> None:
        writer = await world.writing.create(ensemble=3, write_quorum=3, ack_quorum=2)
        await writer.append_many([b"0", b"1"])
        reader = await world.reading.open(writer.ledger_id)
        assert reader.last_entry == -1
        watch = TailWatch(await world.reading.context(), reader)
        async with aclosing(watch):
            waiting = asyncio.ensure_future(watch.wait_beyond(-1))
            await asyncio.sleep(1)
            if is_confirmed:
                await writer.append(b"2")  # carries LAC 1
                await waiting
                assert reader.last_entry == 1
                entries = [watch.take_entry(entry_id) for entry_id in (1, 0)]
                assert entries == [None, None]  # whatever came along is given for the first entry asked for, or dropped
            else:
                await asyncio.sleep(10)
                assert (waiting.done(), reader.last_entry) == (False, -1)
                assert watch.take_entry(0) is None
                waiting.cancel()
        await writer.close()

    play(test)


def test_late_answer_to_an_earlier_poll_does_not_displace_the_entry_of_a_newer_one() -> None:
    """Two bookies are polled; one answers the first poll when the other has answered its second one."""

    async def test(world: World) -> None:
        writer = await world.writing.create(ensemble=3, write_quorum=3, ack_quorum=2)
        for payload in (b"0", b"1"):
            await writer.append(payload)
        polled: list[tuple[str, int]] = []
        newer = asyncio.Event()

        async def poll(old: Any, channel: BookieV3Channel, ledger_id: int, lac: int, *more: Any) -> PollResponse:
            polled.append((channel.bookie, lac))
            is_late = len(polled) == 2
            answer: PollResponse = await old(channel, ledger_id, lac, *more)
            if is_late:
                await newer.wait()
            elif lac == 1:
                newer.set()
            return answer

        reader = await world.reading.open(writer.ledger_id)
        with around(BookieV3Channel, "poll_entry", poll):
            async with aclosing(TailWatch(await world.reading.context(), reader)) as watch:
                for number in (2, 3):
                    waiting = asyncio.ensure_future(watch.wait_beyond(number - 2))
                    await asyncio.sleep(1)
                    await writer.append(b"%d" % number)
                    await waiting
                    early = watch.take_entry(number - 1)
                    assert early is not None
                    assert list(early) == [b"%d" % (number - 1)]
        assert newer.is_set()
        await writer.close()

    play(test)


@pytest.mark.parametrize("refusal", [Status.EIO, Status.ENOENTRY, Status.EUA, BookieUnavailable("it does not know V3")])
def test_bookies_that_refuse_long_polls_are_polled_rarely(refusal: Status | BookieUnavailable) -> None:
    """They are asked again after a pause for bookies that failed, not after the one for bookies without news."""
    limits, watched_s = TailLimits(), 35.0
    polled: list[str] = []

    async def refuse(old: Any, channel: BookieV3Channel, *arguments: Any) -> PollResponse:
        polled.append(channel.bookie)
        if isinstance(refusal, BookieUnavailable):
            raise refusal
        return PollResponse(refusal, None, None)

    async def test(world: World) -> None:
        writer = await world.writing.create(ensemble=3, write_quorum=3, ack_quorum=2)
        await writer.append(b"0")
        reader = await world.reading.open(writer.ledger_id)
        with around(BookieV3Channel, "poll_entry", refuse):
            following = world.follow(reader.follow())
            await asyncio.sleep(watched_s)
        assert len(set(polled)) == 3
        assert len(polled) <= 3 * (1 + watched_s // (limits.retry_ns / 1e9))
        following.cancel()
        await writer.close()

    play(test)


def test_close_of_a_ledger_right_after_its_metadata_were_read_is_noticed() -> None:
    """The watch is set before they are read: otherwise the follower would learn of the close by its next look alone."""

    async def test(world: World) -> None:
        loop = asyncio.get_running_loop()
        writer = await world.writing.create(ensemble=3, write_quorum=3, ack_quorum=2)
        await writer.append(b"0")
        reader = await world.reading.open(writer.ledger_id)

        async def closing(old: Any, refreshed: LedgerReader) -> int:
            lac: int = await old(refreshed)
            await writer.close()
            return lac

        began = loop.time()
        with around(LedgerReader, "refresh", closing):
            async with asyncio.timeout(60):
                await world.follow(reader.follow())
        assert world.got == [b"0"]
        assert loop.time() - began < TailLimits().look_ns / 1e9

    play(test)


def test_bookie_that_cannot_prove_its_hint_does_not_delay_the_entry() -> None:
    """All bookies are asked for their last entries then, by plain reads."""
    reported: list[object] = []

    async def fail(old: Any, *arguments: Any) -> Any:
        raise BookieUnavailable("the bookie dropped the connection")

    async def test(world: World) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: reported.append(context))
        writer = await world.writing.create(ensemble=3, write_quorum=3, ack_quorum=2)
        for payload in (b"0", b"1"):
            await writer.append(payload)
        reader = await world.reading.open(writer.ledger_id)
        following = world.follow(reader.follow())
        await asyncio.sleep(1.0)
        with around(BookieV3Channel, "read_lac", fail):
            began = loop.time()
            await writer.append(b"2")
            while world.got != [b"0", b"1"]:
                await asyncio.sleep(0.01)
        assert loop.time() - began < TailLimits().look_ns / 2e9
        following.cancel()
        await writer.close()

    play(test)
    gc.collect()
    assert reported == []


def test_patience_of_a_follower_begins_again_with_every_entry() -> None:
    """Two outages of 40 s, with a few entries between them, are borne by a follower that waits for 60 s."""

    async def test(world: World) -> None:
        loop = asyncio.get_running_loop()
        writer = await world.writing.create(ensemble=3, write_quorum=3, ack_quorum=2)
        payloads = [b"%d" % number for number in range(40)]
        await writer.append_many(payloads)
        await writer.close()

        def let_reads(status: Status | None) -> None:
            for bookie in world.cluster.bookies:
                bookie.read_error = status

        ends: list[float] = []
        reader = await world.reading.open(writer.ledger_id)
        async for batch in reader.follow(batch_bytes=1, patience_s=60.0):
            world.got += batch
            if len(ends) < 2 and (not ends or loop.time() > ends[-1]):
                let_reads(Status.EIO)
                loop.call_later(40.0, let_reads, None)
                ends.append(loop.time() + 40.0)
        assert (world.got, len(ends)) == (payloads, 2)

    play(test)


def test_follower_of_an_idle_ledger_polls_repeatedly_and_watches_its_metadata_from_the_first_wait() -> None:
    """§5.8: an empty answer moves it to the next bookie; an error is not reported."""

    async def test(world: World) -> None:
        reported: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
        writer = await world.writing.create(ensemble=3, write_quorum=3, ack_quorum=2)
        await writer.append_many([b"0", b"1"])
        reader = await world.reading.open(writer.ledger_id)
        watches = len(world.cluster.store.watched)
        async with aclosing(TailWatch(await world.reading.context(), reader)) as watch:
            waiting = asyncio.ensure_future(watch.wait_beyond(5))
            await asyncio.sleep(1)
            assert len(world.cluster.store.watched) == watches + 1
            await asyncio.sleep(300)
            assert not waiting.done()
            await writer.close()
            await waiting
        assert reader.last_entry == 1
        assert reported == []

    play(test)
