"""Logs on real bookie services: written, rolled, taken over."""

from __future__ import annotations

import asyncio
import inspect
from datetime import UTC, datetime

import pytest

from bkspark.client import Client
from bkspark.entries import EntryBatch
from bkspark.errors import (
    BookKeeperError,
    ConfigurationError,
    LedgerClosed,
    LedgerFenced,
    NotEnoughBookies,
)
from bkspark.log import LedgerOptions, Log
from bkspark.log.writer import RollLimits
from tests.ledger.in_process import URI, InProcessCluster, run
from tests.log.clocks import without_times
from tests.log.logs import ONE, NotingTree, numbers, publish, read_all, until
from tests.log.world import FailingTree


def test_log_that_is_opened_for_writing_gets_ledgers_with_the_default_options():
    options = LedgerOptions()
    defaults = {name: each.default for name, each in inspect.signature(Log.open_for_writing).parameters.items()}
    names = ("ensemble", "write_quorum", "ack_quorum", "ledger_type", "metadata")
    assert {name: defaults[name] for name in names} == {name: getattr(options, name) for name in names}
    limits = RollLimits()
    assert (defaults["roll_bytes"], defaults["roll_seconds"]) == (limits.roll_bytes, limits.roll_seconds)


@pytest.mark.parametrize("identity", ["", b"host:1", 5, None])
def test_contender_without_a_name_is_refused(tmp_path, identity):
    async def test(cluster: InProcessCluster) -> None:
        with pytest.raises(ConfigurationError, match="identity must be text"):
            await cluster.client().log("clicks").election(identity)

    run(tmp_path, test, bookies=1)


def test_entries_are_read_back_across_rolls_with_their_positions(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        positions = []
        async with await log.open_for_writing(roll_bytes=100) as writer:
            for first in range(0, 100, 10):
                positions += await writer.append_many(numbers(first, first + 10))
            positions.append(await writer.append(b"last"))
        snapshot = await log.snapshot()
        assert len(snapshot) == 6
        assert snapshot.open_ordinals == ()
        assert all(ledger.last_entry == 19 for ledger in (await snapshot.ledgers())[:-1])
        batches = [batch async for batch in log.read()]
        assert [entry for batch in batches for entry in batch] == [*numbers(0, 100), b"last"]
        assert [position for batch in batches for position in batch.positions] == positions
        assert sorted(positions) == positions
        assert await read_all(log, positions[37]) == [*numbers(37, 100), b"last"]
        assert await read_all(log, str(positions[37]), positions[63]) == numbers(37, 63)
        assert batches[-1].end == await log.latest()
        assert await read_all(log, await log.latest()) == []

    run(tmp_path, test)


def test_submissions_under_way_at_a_roll_keep_their_order(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        async with await log.open_for_writing(roll_bytes=200) as writer:
            waiting = [await writer.submit(numbers(i, i + 5)) for i in range(0, 500, 5)]
            ranges = [await future for future in waiting]
        assert [len(positions) for positions in ranges] == [5] * 100
        assert await read_all(log) == numbers(0, 500)
        assert len(await log.snapshot()) > 10

    run(tmp_path, test)


def test_single_appends_made_at_once_get_consecutive_positions(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        async with await log.open_for_writing(**ONE) as writer:
            positions = await asyncio.gather(*(writer.append(entry) for entry in numbers(0, 200)))
            with pytest.raises(TypeError, match="bytes, not str"):
                await writer.append("text")
        assert [position.entry_id for position in positions] == list(range(200))
        assert await read_all(log) == numbers(0, 200)

    run(tmp_path, test)


def test_roll_closes_no_ledger_before_the_next_one_is_there(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("clicks")
        async with await log.open_for_writing(ensemble=2, write_quorum=2, ack_quorum=1) as writer:
            first = await writer.append(b"0")
            await cluster.bookies[0].stop()
            with pytest.raises(NotEnoughBookies):
                await writer.roll()
            assert not (await client.metadata(first.ledger_id)).is_closed
            assert (await writer.append(b"1")).ledger_id == first.ledger_id
            await cluster.bookies[0].start()
            await writer.roll()
            assert (await client.metadata(first.ledger_id)).is_closed
            assert (await writer.append(b"2")).ledger_id != first.ledger_id
        assert await read_all(log) == [b"0", b"1", b"2"]

    run(tmp_path, test, bookies=2)


def test_close_waits_for_entries_that_wait_for_company(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        writer = await log.open_for_writing(**ONE)
        calls = [asyncio.ensure_future(writer.append(entry)) for entry in numbers(0, 5)]
        await asyncio.sleep(0)
        await writer.close()
        assert [call.result().entry_id for call in calls] == list(range(5))
        assert await read_all(log) == numbers(0, 5)

    run(tmp_path, test)


def test_a_batch_object_and_an_empty_one_are_appended(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        async with await log.open_for_writing() as writer:
            assert len(await writer.append_many(EntryBatch.of([b"a", b"b"]))) == 2
            assert list(await writer.append_many([])) == []
        assert await read_all(log) == [b"a", b"b"]

    run(tmp_path, test)


def test_process_that_opens_a_log_takes_it_from_the_writer_before(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        first = await cluster.client().log("clicks").open_for_writing()
        await first.append_many(numbers(0, 10))
        log = cluster.client().log("clicks")
        second = await log.open_for_writing()
        with pytest.raises(LedgerFenced):
            await first.append(b"late")
        await second.append_many(numbers(10, 20))
        with pytest.raises(BookKeeperError):
            await first.close()
        await second.close()
        assert await read_all(log) == numbers(0, 20)
        assert (await log.snapshot()).open_ordinals == ()

    run(tmp_path, test)


def test_one_of_many_concurrent_openers_keeps_the_log_and_no_acknowledged_entry_is_lost(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        acknowledged: list[bytes] = []

        async def write(number: int) -> bool:
            log = cluster.client().log("clicks")
            try:
                writer = await log.open_for_writing(**ONE)
                for i in range(20):
                    entry = b"%d-%d" % (number, i)
                    await writer.append(entry)
                    acknowledged.append(entry)
                await writer.close()
            except LedgerFenced:
                return False
            return True

        outcomes = await asyncio.gather(*(write(number) for number in range(4)))
        assert any(outcomes)
        log = cluster.client().log("clicks")
        await log.recover()
        stored = await read_all(log)
        assert set(acknowledged) <= set(stored)
        assert len(stored) == len(set(stored))

    run(tmp_path, test)


def test_a_log_whose_writer_died_is_opened_at_its_last_acknowledged_entry_or_later(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        writer = await cluster.client().log("clicks").open_for_writing(roll_bytes=50)
        await writer.append_many(numbers(0, 10))
        await writer.append_many(numbers(10, 15))
        writer.abandon()
        log = cluster.client().log("clicks")
        async with await log.open_for_writing() as writer:
            await writer.append_many(numbers(15, 20))
        assert await read_all(log) == numbers(0, 20)
        assert all(ledger.last_entry is not None for ledger in await (await log.snapshot()).ledgers())

    run(tmp_path, test)


def test_a_writer_that_is_overtaken_by_a_job_lets_readers_pass_and_continues_after_it(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        async with await log.open_for_writing(**ONE) as writer:
            await writer.append_many(numbers(0, 10))
            await publish(log, numbers(10, 20), numbers(20, 30))

            async def all_is_readable() -> bool:
                return await read_all(log) == numbers(0, 30)

            await until(all_is_readable, "the overtaken writer's ledger to be closed")
            assert writer.ledger_id is None
            await writer.append_many(numbers(30, 40))
            await publish(log, numbers(40, 50))
        assert await read_all(log) == numbers(0, 50)
        assert len(await log.snapshot()) == 5

    run(tmp_path, test)


def test_a_writer_reads_the_list_when_it_changed_and_not_for_each_append(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        tree = NotingTree(cluster.store)
        async with Client(URI, tree=tree) as client:
            writer = await client.log("clicks").open_for_writing(**ONE)
            await writer.append_many(numbers(0, 10))
            await publish(cluster.client().log("clicks"), numbers(10, 20))

            async def has_looked() -> bool:
                return writer.ledger_id is None

            await until(has_looked, "the writer to let readers pass")
            await writer.append_many(numbers(20, 30))
            tree.calls.clear()
            for first in range(30, 60, 10):
                await writer.append_many(numbers(first, first + 10))
            assert [call for call in tree.calls if call.startswith("get /bkspark")] == []
            await writer.close()

    run(tmp_path, test)


def test_roll_reads_as_little_after_many_others(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        tree = NotingTree(cluster.store)
        async with Client(URI, tree=tree) as client:
            writer = await client.log("clicks").open_for_writing(**ONE)
            reads = []
            for number in range(6):
                await writer.append(b"%d" % number)
                tree.calls.clear()
                await writer.roll()
                reads.append(sum(call.startswith("get ") and "/times/" in call for call in tree.calls))
            await writer.close()
        assert reads == [0, 1, 1, 1, 1, 1], "the times of the ledger that the roll before closed"

    run(tmp_path, test)


def test_an_overtaken_writer_that_could_not_check_still_continues_after_the_job(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        tree = FailingTree(cluster.store, "/bkspark/logs/clicks")
        async with Client(URI, tree=tree) as client:
            writer = await client.log("clicks").open_for_writing(**ONE)
            await writer.append_many(numbers(0, 10))
            tree.failures = 1
            log = cluster.client().log("clicks")
            await publish(log, numbers(10, 20))

            async def has_failed() -> bool:
                return tree.failures == 0

            await until(has_failed, "the writer to look and fail")
            await writer.append_many(numbers(20, 30))
            await writer.close()
        assert await read_all(log) == numbers(0, 30)

    run(tmp_path, test)


def test_a_dead_writers_ledger_holds_readers_until_the_log_is_recovered(tmp_path):
    """Its end is not known before: reading on would skip what a recovery may still find in it."""

    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        writer = await log.open_for_writing(**ONE)
        await writer.append_many(numbers(0, 5))
        await writer.append(b"%06d" % 5)
        writer.abandon()
        await publish(log, numbers(6, 10))
        assert await read_all(log) == numbers(0, 5)
        assert await log.recover() == [(await (await log.snapshot()).ledger(0)).ledger_id]
        assert await read_all(log) == numbers(0, 10)
        changes = cluster.store.writes
        assert await log.recover() == []
        assert cluster.store.writes == changes, "nothing is left to recover"

    run(tmp_path, test)


def test_close_after_a_writer_was_given_up_leaves_its_log_to_the_next_one(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        writer = await log.open_for_writing(**ONE)
        writer.abandon()
        before = (await log.snapshot()).head
        await writer.close()
        assert (await log.snapshot()).head == before

    run(tmp_path, test)


def test_a_closed_writer_takes_no_more_and_closes_twice(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        writer = await cluster.client().log("clicks").open_for_writing()
        await writer.close()
        await writer.close()
        with pytest.raises(LedgerClosed, match="clicks"):
            await writer.append(b"x")

    run(tmp_path, test)


def test_too_few_bookies_leave_no_log_no_ledger_and_no_fence(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        with pytest.raises(NotEnoughBookies):
            await client.log("clicks").open_for_writing(ensemble=4)
        assert await client.logs() == []
        writer = await client.log("clicks").open_for_writing()
        with pytest.raises(NotEnoughBookies):
            await client.log("clicks").open_for_writing(ensemble=4)
        await writer.append(b"still mine")
        await writer.close()

    run(tmp_path, test)


def test_a_log_of_another_ledgers_root_leaves_no_ledger(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        from bkspark.log import LogStore

        await LogStore(cluster.store.session(), "/other").create("clicks")
        client = cluster.client()
        with pytest.raises(ConfigurationError, match="/other"):
            await client.log("clicks").open_for_writing()
        assert [ledger_id async for ledger_id in client.ledgers()] == []

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *[({"roll_bytes": value}, "roll_bytes") for value in (0, 1.5, "1", True)],
        *[({"roll_seconds": value}, "roll_seconds") for value in (0, "5", True, float("nan"))],
        ({"ensemble": 1}, "quorum"),
        ({"ledger_type": "X"}, "ledger_type"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_made(tmp_path, options, message):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        with pytest.raises(ConfigurationError, match=message):
            await client.log("clicks").open_for_writing(**options)
        assert await client.logs() == []

    run(tmp_path, test)


def test_a_writer_rolls_on_request_and_when_its_ledger_is_old(tmp_path):
    """Rolling by size, time or call adds the new ledger before it closes the old one."""

    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        async with await log.open_for_writing(**ONE) as writer:
            await writer.append_many(numbers(0, 5))
            await writer.roll()
            # What a reader gets past is closed; the new ledger is listed already.
            assert await read_all(log) == numbers(0, 5)
            assert len(await log.snapshot()) == 2
            await writer.append_many(numbers(5, 7))
        async with await log.open_for_writing(**ONE, roll_seconds=1e-9) as writer:
            for number in range(7, 10):
                await writer.append_many(numbers(number, number + 1))
        assert len(await log.snapshot()) == 2 + 3
        assert await read_all(log) == numbers(0, 10)

    run(tmp_path, test)


def test_time_in_a_log_without_times_means_the_first_ledger_that_was_still_open_then(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        for moment_ms in (1000, 2000, 3000):
            cluster.store.now_ms = moment_ms
            async with await log.open_for_writing(**ONE) as writer:
                await writer.append_many(numbers(moment_ms, moment_ms + 2))
        await (await log.store()).heads.change("clicks", without_times)
        for moment_ms, first in ((0, 1000), (1000, 1000), (1001, 2000), (2500, 3000)):
            place = await log.at_time(datetime.fromtimestamp(moment_ms / 1000, UTC))
            assert (await read_all(log, place))[0] == numbers(first, first + 1)[0]
        # A time without zone is UTC; after all ledgers comes the end.
        assert await log.at_time(datetime(2000, 1, 1)) == await log.latest()

    run(tmp_path, test)


def test_end_of_a_ledger_of_one_entry_is_a_place_of_a_time_too(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        for moment_ms in (1000, 2000):
            cluster.store.now_ms = moment_ms
            async with await log.open_for_writing(**ONE) as writer:
                await writer.append(b"%d" % moment_ms)
        await (await log.store()).heads.change("clicks", without_times)
        assert await log.at_time(datetime(2000, 1, 1)) == await log.latest()
        assert await log.at_time(datetime.fromtimestamp(1.5, UTC)) != await log.earliest()
        assert await read_all(log, await log.at_time(datetime.fromtimestamp(1.5, UTC))) == [b"2000"]

    run(tmp_path, test)


def test_entries_of_no_bytes_make_a_ledger_old_too(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        async with await log.open_for_writing(**ONE, roll_seconds=1e-9) as writer:
            for _ in range(3):
                await writer.append(b"")
        assert len((await log.show())["ledgers"]) == 3

    run(tmp_path, test)


def test_an_entry_that_is_too_large_fails_alone_and_before_anything_is_made(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        async with await log.open_for_writing(**ONE, roll_bytes=1) as writer:
            appends = (writer.append(entry) for entry in (b"a", bytes(6_000_000), b"b"))
            first, refused, last = await asyncio.gather(*appends, return_exceptions=True)
            assert "nettyMaxFrameSizeBytes" in str(refused)
            assert (first.entry_id, last.entry_id) == (0, 1)
            with pytest.raises(ValueError, match="nettyMaxFrameSizeBytes"):
                await writer.append_many([bytes(6_000_000)])
        assert await read_all(log) == [b"a", b"b"]
        assert len((await log.show())["ledgers"]) == 1

    run(tmp_path, test)


def test_largest_entry_of_a_ledger_is_the_largest_of_a_log(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        async with await client.create(**ONE) as ledger:
            largest = bytes(ledger.entry_bytes_max)
        async with await client.log("clicks").open_for_writing(**ONE) as writer:
            await writer.append(largest)
            await writer.append_many([largest])
            for append in (writer.append(largest + b"x"), writer.append_many([largest + b"x"])):
                with pytest.raises(ValueError, match="nettyMaxFrameSizeBytes"):
                    await append

    run(tmp_path, test)


def test_append_that_is_cancelled_during_a_roll_hides_no_later_entry_from_readers(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        async with await log.open_for_writing(**ONE, roll_bytes=1) as writer:
            await writer.append(b"first")
            for turns in range(15):
                under_way = asyncio.ensure_future(writer.append_many([b"cancelled"]))
                for _ in range(turns):
                    await asyncio.sleep(0)
                under_way.cancel()
                await asyncio.gather(under_way, return_exceptions=True)
                await writer.append(b"%d" % turns)
        states = [ledger["state"] for ledger in (await log.show())["ledgers"]]
        assert set(states) == {"CLOSED"}
        read = [entry for entry in await read_all(log) if entry != b"cancelled"]
        assert read == [b"first", *(b"%d" % turns for turns in range(15))]

    run(tmp_path, test)
