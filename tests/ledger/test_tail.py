"""Readers at the end of an open ledger, on real bookie services: docs/protocol.md §2.7, §2.8, §5.8 to §5.10."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from bkspark.core.tail import TailLimits
from bkspark.core.writer_options import WriterOptions
from bkspark.entries import EntryBatch
from bkspark.ledger.tail import TailWatch
from bkspark.net.pool import NetOptions
from tests.ledger.in_process import run

NEVER_NS = 1 << 60
POLLS_ONLY = TailLimits(look_ns=NEVER_NS, pause_ns_min=NEVER_NS, pause_ns_max=NEVER_NS)
"""The reader learns everything from long polls, without refreshes."""

TELLS = WriterOptions(explicit_lac_interval_s=0.02)


async def polled(cluster, ledger_id):
    """Return when a long poll waits at a bookie: an entry is sent along with the answer to one that was there first."""
    bookies = [bookie.service.bookie for bookie in cluster.bookies if bookie.service is not None]
    async with asyncio.timeout(120):
        while not any(ledger_id in bookie.long_polls.by_ledger for bookie in bookies):
            await asyncio.sleep(0.005)


@pytest.mark.long_except(
    "(1, 1, 1)-v2",
    "(3, 3, 2)-v3",
    "(3, 2, 2)-v2",
    "(3, 2, 1)-v2",
    "(4, 2, 2)-v3",
    reason="each protocol and each ensemble is in one of these",
)
@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["v2", "v3"])
@pytest.mark.parametrize("quorums", [(1, 1, 1), (3, 3, 2), (3, 2, 2), (3, 2, 1), (4, 2, 2)], ids=str)
def test_long_polls_bring_every_entry_of_a_writer_that_goes_on(tmp_path, quorums, protocol):
    """The LAC that the next add carries ends the poll; §2.7, step 2."""

    async def test(cluster):
        client = cluster.client(wire_protocol=protocol)
        writer = await client.create(
            ensemble=quorums[0], write_quorum=quorums[1], ack_quorum=quorums[2], ledger_type="PD_JOURNAL"
        )
        reader = await client.open(writer.ledger_id, recover=False)
        watch = TailWatch(await client.context(), reader, POLLS_ONLY)
        await writer.append(b"entry 0")
        sent_along = 0
        async with aclosing(watch):
            for number in range(1, 12):
                waiting = asyncio.ensure_future(watch.wait_beyond(number - 2))
                await polled(cluster, writer.ledger_id)
                await writer.append(b"entry %d" % number)
                await waiting
                assert reader.last_entry == number - 1
                early = watch.take_entry(number - 1)
                sent_along += early is not None
                assert early is None or list(early) == [b"entry %d" % (number - 1)]
        assert sent_along > 0
        writer.abandon()

    run(tmp_path, test, bookies=4)


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2), (3, 2, 1)], ids=str)
def test_last_entry_of_a_writer_that_falls_silent_is_delivered_by_its_explicit_lac(tmp_path, quorums):
    """P32: LACs of readers go stale while the writer idles; explicit LAC is the cure."""

    async def test(cluster):
        client = cluster.client(writer=TELLS)
        writer = await client.create(ensemble=quorums[0], write_quorum=quorums[1], ack_quorum=quorums[2])
        reader = await client.open(writer.ledger_id, recover=False)
        async with aclosing(reader.follow()) as batches:
            for number in range(4):
                await writer.append(b"entry %d" % number)
                assert list(await anext(batches)) == [b"entry %d" % number]
            # A reader that opens it now sees it, too: READ_LAC returns the explicit LAC.
            assert (await client.open(writer.ledger_id, recover=False)).last_entry == 3
            await writer.close()
            with pytest.raises(StopAsyncIteration):
                await anext(batches)

    run(tmp_path, test)


def test_follower_goes_on_when_the_bookies_it_polls_die_and_are_replaced(tmp_path):
    async def test(cluster):
        client = cluster.client(writer=TELLS)
        writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        reader = await client.open(writer.ledger_id, recover=False)
        await writer.append(b"first")
        async with aclosing(reader.follow()) as batches:
            assert list(await anext(batches)) == [b"first"]
            for number in range(2):
                await cluster.bookie(writer.metadata.last_fragment.bookies[number]).stop()
                await writer.append(b"%d" % number)
                assert list(await anext(batches)) == [b"%d" % number]
        writer.abandon()

    run(tmp_path, test, bookies=5)


def test_follower_of_a_ledger_that_is_recovered_reads_to_its_end_and_ends(tmp_path):
    async def test(cluster):
        client, other = cluster.client(), cluster.client()
        writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        await writer.append_many([b"%d" % number for number in range(10)])
        reader = await client.open(writer.ledger_id, recover=False)

        async def follow():
            return [entry async for batch in reader.follow() for entry in batch]

        following = asyncio.ensure_future(follow())
        await other.recover(writer.ledger_id)
        assert await following == [b"%d" % number for number in range(10)]
        writer.abandon()

    run(tmp_path, test)


def test_entry_that_came_with_a_lac_which_is_not_proven_is_not_delivered(tmp_path):
    async def test(cluster):
        client = cluster.client()
        writer = await client.create(ensemble=1, write_quorum=1, ack_quorum=1)
        for number in range(2):
            await writer.append(b"%d" % number)
        reader = await client.open(writer.ledger_id, recover=False)
        assert reader.last_entry == 0
        async with aclosing(TailWatch(await client.context(), reader, POLLS_ONLY)) as watch:
            for entry_id, expected in ((0, [b"early"]), (1, None)):
                watch._early = EntryBatch.of([b"early"], writer.ledger_id, entry_id)
                early = watch.take_entry(entry_id)
                assert (None if early is None else list(early)) == expected
        writer.abandon()

    run(tmp_path, test, bookies=1)


def test_follower_that_has_ended_watches_no_metadata(tmp_path):
    async def test(cluster):
        client = cluster.client()
        writer = await client.create(ensemble=1, write_quorum=1, ack_quorum=1)
        await writer.append(b"an entry")
        reader = await client.open(writer.ledger_id, recover=False)
        before = cluster.store.watched
        async with aclosing(TailWatch(await client.context(), reader)) as watch:
            waiting = asyncio.ensure_future(watch.wait_beyond(-1))
            await polled(cluster, writer.ledger_id)
            assert len(cluster.store.watched) > len(before)
            waiting.cancel()
            await asyncio.wait([waiting])
        assert cluster.store.watched == before
        writer.abandon()

    run(tmp_path, test, bookies=1)


async def _mute(reader, writer):
    """A bookie that takes requests and never answers."""
    try:
        while await reader.read(1 << 16):
            pass
    finally:
        writer.close()


def test_bookie_that_never_answers_costs_a_second_request_and_not_the_time_out(tmp_path):
    """§5.9, step 3: the read of a slow replica is sent to the next one, too; the first valid answer wins."""

    async def test(cluster):
        async with await cluster.client().create(ensemble=2, write_quorum=2, ack_quorum=2) as writer:
            await writer.append_many([b"%d" % number for number in range(300)])
        for bookie_id in writer.metadata.last_fragment.bookies:
            bookie = cluster.bookie(bookie_id)
            await bookie.stop()
            mute = await asyncio.start_server(_mute, "127.0.0.1", int(bookie_id.rpartition(":")[2]))
            # No read ends by a time-out here: it would take longer than the test may.
            client = cluster.client(net=NetOptions(read_timeout_s=3600.0, speculative_read_s=0.05))
            found = [entry async for batch in (await client.open(writer.ledger_id)).batches() for entry in batch]
            assert found == [b"%d" % number for number in range(300)]
            await client.close()
            mute.close()
            await mute.wait_closed()
            await bookie.start()

    run(tmp_path, test)
