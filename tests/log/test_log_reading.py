"""Logs on real bookie services: read and followed as one sequence of entries, from any position."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from bkspark.client import Client
from bkspark.errors import (
    ConfigurationError,
    DataLoss,
    LogExists,
    NoSuchLog,
)
from bkspark.log import Position, SegmentFacts, SegmentOwner
from bkspark.log.positions import BEGINNING
from bkspark.wire.digest import EntryDigest
from tests.ledger.in_process import URI, InProcessCluster, run
from tests.log.logs import ONE, NotingTree, numbers, publish, read_all, until


@pytest.mark.parametrize("ledgers", [0, 30, 2_500])
def test_opening_for_writing_takes_few_metadata_operations_however_long_the_log_is(tmp_path, ledgers):
    """At most 22. The longest has a full page of ledgers, and more after it."""

    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        async with await log.open_for_writing(**ONE):
            pass
        store = await log.store()
        for first in range(0, ledgers, 500):
            facts = [SegmentFacts(1_000 + number, 0, 1) for number in range(first, min(first + 500, ledgers))]
            for one in facts:
                await store.attempts.add("clicks", one.ledger_id, SegmentOwner("job", "job"))
            await store.append_ledgers("clicks", facts)
        tree = NotingTree(cluster.store)
        # A client that is new, and has looked for nothing yet.
        client = Client(URI, tree=tree)
        first = await client.log("clicks").open_for_writing(**ONE)
        assert len(tree.calls) <= 22, "\n".join(tree.calls)
        await first.append(b"left behind in an open ledger")
        tree.calls.clear()
        second = await client.log("clicks").open_for_writing(**ONE)
        assert len(tree.calls) <= 22, "\n".join(tree.calls)
        assert await read_all(client.log("clicks"), await client.log("clicks").latest()) == []
        for writer in (first, second):
            writer.abandon()
        await client.close()

    run(tmp_path, test)


def test_a_new_log_reads_empty_and_a_missing_one_is_named(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("clicks")
        with pytest.raises(NoSuchLog, match="clicks"):
            await read_all(log)
        await log.create()
        with pytest.raises(LogExists):
            await log.create()
        assert await read_all(log) == []
        assert await log.earliest() == await log.latest() == BEGINNING
        assert await client.logs() == ["clicks"]
        with pytest.raises(ConfigurationError, match="letters"):
            client.log("a/b")

    run(tmp_path, test)


def test_the_latest_position_keeps_its_text_when_nothing_is_there_to_read(tmp_path):
    """Spark compares offsets as text: another text for the same place would be read as new data."""

    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        await log.create()
        await publish(log, [], [])
        assert await log.latest() == BEGINNING
        ledger_id = (await publish(log, numbers(0, 3)))[0]
        latest = Position(2, ledger_id, 3)
        assert await log.latest() == latest
        await publish(log, [], [])
        assert await log.latest() == latest
        writer = await log.open_for_writing(**ONE)
        assert await log.latest() == latest
        await writer.append_many(numbers(3, 5))
        await writer.append(b"moves the last confirmed entry along")
        seen = await log.latest()
        assert seen == Position(5, writer.ledger_id, 2)
        await writer.close()
        assert await log.latest() == Position(5, seen.ledger_id, 3)

    run(tmp_path, test)


def test_reading_stops_at_the_first_open_ledger_and_fences_nothing(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        writer = await log.open_for_writing(**ONE)
        await writer.append_many(numbers(0, 5))
        await writer.append(b"confirms")
        assert await read_all(log) == numbers(0, 5)
        await writer.append(b"still writing")
        end = await log.latest()
        with pytest.raises(ConfigurationError, match="can be read up to"):
            await read_all(log, "earliest", Position(end.ordinal, end.ledger_id, 100))
        await writer.close()

    run(tmp_path, test)


def test_a_position_of_another_log_is_refused(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        await log.create()
        (ledger_id,) = await publish(log, numbers(0, 3))
        with pytest.raises(ConfigurationError, match="belongs to another log"):
            await read_all(log, Position(0, ledger_id + 1, 1))
        with pytest.raises(DataLoss, match="ends before ordinal 1"):
            await read_all(log, Position(7, ledger_id, 1))
        with pytest.raises(ConfigurationError, match="not earliest, latest or a position"):
            await read_all(log, "yesterday")

    run(tmp_path, test)


def test_a_follower_sees_every_entry_once_through_rolls_jobs_and_takeovers(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        await log.create()
        seen: list[bytes] = []

        async def follow() -> None:
            async for batch in cluster.client().log("clicks").follow():
                seen.extend(batch)

        following = asyncio.ensure_future(follow())
        writer = await log.open_for_writing(roll_bytes=60, **ONE)
        for first in range(0, 40, 10):
            await writer.append_many(numbers(first, first + 10))
        await publish(log, numbers(40, 50))
        writer.abandon()
        async with await log.open_for_writing(**ONE) as writer:
            await writer.append_many(numbers(50, 60))

        async def has_all() -> bool:
            return len(seen) >= 60

        await until(has_all, "the follower")
        following.cancel()
        assert seen == numbers(0, 60)

    run(tmp_path, test)


def test_follower_of_a_log_that_is_deleted_and_created_again_ends_and_skips_nothing(tmp_path):
    """It has read nothing yet, so that its position names no ledger of the former log."""

    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        await log.create()
        await publish(log, numbers(0, 5))
        await log.overwrite([])
        following = cluster.client().log("clicks").follow()
        first = asyncio.ensure_future(anext(following))
        client, facts = cluster.client(), []
        for first_number in (10, 20):
            writer = await client.create(**ONE)
            await writer.append_many(numbers(first_number, first_number + 5))
            closed = await writer.close()
            facts.append(SegmentFacts(writer.ledger_id, closed.last_entry, closed.length))
        await until(lambda: is_watched(cluster, "/bkspark/logs/clicks"), "the follower to wait")
        # The follower does not look at the log in between: none of these calls waits.
        await log.delete()
        await log.create()
        store = await log.store()
        for one in facts:
            await store.attempts.add("clicks", one.ledger_id, SegmentOwner("job", "job"))
        await store.append_ledgers("clicks", facts)
        with pytest.raises(DataLoss, match="log clicks was deleted and created again"):
            await first

    run(tmp_path, test, bookies=1)


async def is_watched(cluster: InProcessCluster, path: str) -> bool:
    return path in cluster.store.watched


def test_follower_goes_on_without_the_news_of_a_change(tmp_path):
    """A metadata server may lose the events of its clients."""

    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        await log.create()
        await publish(log, numbers(0, 5))
        following = cluster.client().log("clicks").follow()
        assert list(await anext(following)) == numbers(0, 5)
        cluster.store.lose_watches()
        await publish(log, numbers(5, 10))
        assert list(await asyncio.wait_for(anext(following), 30)) == numbers(5, 10)
        await following.aclose()

    run(tmp_path, test)


def test_a_read_to_the_end_keeps_the_end_that_it_found_when_other_bookies_answer_later(tmp_path):
    """Two bookies lag behind the one that reported the end of an open ledger, which dies before that ledger's turn."""

    async def test(cluster: InProcessCluster) -> None:
        ahead, *lagging = cluster.bookies
        writer = await cluster.client().log("clicks").open_for_writing()
        await writer.append_many(numbers(0, 5))
        await writer.roll()
        for number in range(5, 15):
            position = await writer.append(b"%06d" % number)
        for bookie in lagging:
            await bookie.stop()
        # Tells that entry 9 of this ledger is confirmed, and reaches one bookie.
        pending = await writer.submit([b"on its way"])
        await until_held(cluster.client(), ahead.id, position.ledger_id, 10)
        writer.abandon()
        await asyncio.wait([pending])
        await lagging[0].start()

        found = []
        async for batch in cluster.client().log("clicks").read():
            found += batch
            if len(found) == 5:
                await ahead.stop()
                await lagging[1].start()
        assert found == numbers(0, 15)

    run(tmp_path, test)


async def until_held(client: Client, bookie: str, ledger_id: int, entry_id: int) -> None:
    """Wait until a bookie holds an entry."""
    channel = await (await client.context()).pool.channel(bookie)
    digest = EntryDigest((await client.metadata(ledger_id)).digest, b"")
    while (await channel.read_entries(ledger_id, np.array([entry_id]), digest)).payloads[0] is None:
        await asyncio.sleep(0.01)
