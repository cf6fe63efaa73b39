"""Logs on real bookie services: written, rolled, taken over, read and followed as one sequence of entries."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from bkspark.client import Client
from bkspark.entries import EntryBatch
from bkspark.errors import (
    BookKeeperError,
    ConfigurationError,
    DataLoss,
    LedgerClosed,
    LedgerFenced,
    LogExists,
    NoSuchLedger,
    NoSuchLog,
    NotEnoughBookies,
)
from bkspark.log import LedgerFacts, Log, Owner, Position
from bkspark.log.positions import BEGINNING
from bkspark.log.writer import LedgerOptions
from bkspark.metadata.memory import MemoryStore, MemoryTree
from tests.client.in_process import URI, InProcessCluster, run
from tests.log.world import FailingTree

ONE = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%06d" % number for number in range(first, end)]


async def read_all(log: Log, *places: object) -> list[bytes]:
    return [entry async for batch in log.read(*places) for entry in batch]


async def publish(log: Log, *payloads: list[bytes], owner: str = "job") -> list[int]:
    """Publish a ledger for each list of payloads; return their ids."""
    facts = []
    for partition, entries in enumerate(payloads):
        writer = await log.create_attempt(Owner("job", owner, partition=partition), LedgerOptions(1, 1, 1))
        if entries:
            await writer.append_many(entries)
        metadata = await writer.close()
        facts.append(LedgerFacts(writer.ledger_id, metadata.last_entry, metadata.length))
    await log.publish(facts)
    return [ledger.ledger_id for ledger in facts]


class NotingTree(MemoryTree):
    """A session that notes every call."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, 1 << 40, 10.0)
        self.calls: list[str] = []
        for name in ("get", "exists", "children", "create", "set", "delete", "transaction", "watch", "watch_children"):
            setattr(self, name, self._noting(name))

    def _noting(self, name):
        call = getattr(self, name)

        def noting(*arguments, **named):
            self.calls.append(f"{name} {arguments[0]}")
            return call(*arguments, **named)

        return noting


async def until(condition, what: str) -> None:
    """Wait until a coroutine function returns true."""
    async with asyncio.timeout(120):
        while not await condition():
            await asyncio.sleep(0.01)


# ---- writing ----


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


def test_a_batch_object_and_an_empty_one_are_appended(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        async with await log.open_for_writing() as writer:
            assert len(await writer.append_many(EntryBatch.of([b"a", b"b"]))) == 2
            assert list(await writer.append_many([])) == []
        assert await read_all(log) == [b"a", b"b"]

    run(tmp_path, test)


def test_who_opens_a_log_takes_it_from_the_writer_before(tmp_path):
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


def test_of_many_that_open_a_log_at_once_one_keeps_it_and_no_acknowledged_entry_is_lost(tmp_path):
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


def test_a_log_whose_writer_died_is_opened_at_its_last_acknowledged_entry_or_behind(tmp_path):
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


def test_a_writer_that_is_overtaken_by_a_job_lets_readers_pass_and_goes_on_behind(tmp_path):
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


def test_an_overtaken_writer_that_could_not_look_goes_on_behind_all_the_same(tmp_path):
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
        assert await log.recover() == []

    run(tmp_path, test)


def test_a_closed_writer_takes_no_more_and_closes_twice(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        writer = await cluster.client().log("clicks").open_for_writing()
        await writer.close()
        await writer.close()
        with pytest.raises(LedgerClosed, match="clicks"):
            await writer.append(b"x")

    run(tmp_path, test)


def test_too_few_bookies_leave_no_log_no_ledger_and_no_fence_behind(tmp_path):
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


def test_a_log_of_another_ledgers_root_leaves_no_ledger_behind(tmp_path):
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
        ({"roll_bytes": 0}, "roll_bytes"),
        ({"roll_seconds": 0}, "roll_seconds"),
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


def test_a_writer_rolls_when_told_and_when_its_ledger_is_old(tmp_path):
    """issue: "rolling by size, time or call adds the new before it closes the old"."""

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


def test_a_time_is_the_place_of_the_first_ledger_that_was_not_closed_before(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        for moment_ms in (1000, 2000, 3000):
            cluster.store.now_ms = moment_ms
            async with await log.open_for_writing(**ONE) as writer:
                await writer.append_many(numbers(moment_ms, moment_ms + 2))
        for moment_ms, first in ((0, 1000), (1000, 1000), (1001, 2000), (2500, 3000)):
            place = await log.at_time(datetime.fromtimestamp(moment_ms / 1000, UTC))
            assert (await read_all(log, place))[0] == numbers(first, first + 1)[0]
        # A place without zone is UTC; behind all ledgers is the end.
        assert await log.at_time(datetime(2000, 1, 1)) == await log.latest()

    run(tmp_path, test)


# ---- positions and reading ----


@pytest.mark.parametrize("ledgers", [0, 30, 2_500])
def test_opening_for_writing_takes_few_metadata_operations_however_long_the_log_is(tmp_path, ledgers):
    """Issue 5: at most 20. The longest has a full page of ledgers, and more behind it."""

    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        async with await log.open_for_writing(**ONE):
            pass
        store = await log.store()
        for first in range(0, ledgers, 500):
            facts = [LedgerFacts(1_000 + number, 0, 1) for number in range(first, min(first + 500, ledgers))]
            for one in facts:
                await store.attempts.add("clicks", one.ledger_id, Owner("job", "job"))
            await store.append_ledgers("clicks", facts)
        tree = NotingTree(cluster.store)
        # A client that is new, and has looked for nothing yet.
        client = Client(URI, tree=tree)
        first = await client.log("clicks").open_for_writing(**ONE)
        assert len(tree.calls) <= 20, "\n".join(tree.calls)
        await first.append(b"left behind in an open ledger")
        tree.calls.clear()
        second = await client.log("clicks").open_for_writing(**ONE)
        assert len(tree.calls) <= 20, "\n".join(tree.calls)
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


# ---- publishing ----


def test_jobs_publish_overwrite_and_discard(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("clicks")
        await log.create()
        old = await publish(log, numbers(0, 5), numbers(5, 10))
        staged = await log.create_attempt(Owner("query", "q", epoch=4, partition=0), LedgerOptions(1, 1, 1))
        await staged.append_many(numbers(10, 15))
        metadata = await staged.close()
        loser = await log.create_attempt(Owner("query", "q", epoch=4, partition=0), LedgerOptions(1, 1, 1))
        await loser.append_many(numbers(90, 95))
        facts = LedgerFacts(staged.ledger_id, metadata.last_entry, metadata.length)
        assert (await log.overwrite([facts], publisher=("q", 4))).is_new
        assert await read_all(log) == numbers(10, 15)
        for ledger_id in old:
            with pytest.raises(NoSuchLedger):
                await client.metadata(ledger_id)
        assert not (await log.publish([facts], publisher=("q", 4))).is_new
        assert await log.discard("q", up_to_epoch=3) == 0
        assert await log.discard("q", up_to_epoch=4) == 1
        with pytest.raises(NoSuchLedger):
            await client.metadata(loser.ledger_id)
        assert await read_all(log) == numbers(10, 15)
        loser.abandon()

    run(tmp_path, test)


def test_overwriting_takes_the_log_from_its_writer(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        writer = await log.open_for_writing(**ONE)
        await writer.append_many(numbers(0, 5))
        await log.overwrite([])
        with pytest.raises(BookKeeperError):
            await writer.append(b"x")
        assert await read_all(log) == []

    run(tmp_path, test)


def test_vacuum_deletes_dead_attempts_and_nothing_published(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("clicks")
        await log.create()
        await publish(log, numbers(0, 5))
        attempt = await log.create_attempt(Owner("job", "lost"), LedgerOptions(1, 1, 1))
        await attempt.append_many(numbers(5, 10))
        attempt.abandon()
        # The tree in memory gives nodes the creation time 0: everything is older than an hour.
        assert await log.vacuum(older_than_s=10**10) == 0
        assert await log.vacuum(older_than_s=3_600) == 1
        assert await log.vacuum(older_than_s=3_600) == 0
        with pytest.raises(NoSuchLedger):
            await client.metadata(attempt.ledger_id)
        assert await read_all(log) == numbers(0, 5)

    run(tmp_path, test)


# ---- truncating, showing, deleting ----


def test_truncating_forgets_what_is_before_a_position(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("clicks")
        await log.create()
        ids = await publish(log, numbers(0, 5), numbers(5, 10), [], numbers(10, 15))
        middle = Position(1, ids[1], 2)
        assert await log.truncate(middle) == 1
        assert await read_all(log) == numbers(7, 15)
        with pytest.raises(DataLoss, match="truncated or overwritten"):
            await read_all(log, Position(0, ids[0], 5))
        # The beginning of a ledger is the end of what precedes it: a reader that stands there loses nothing.
        assert await log.truncate(Position(3, ids[3], 0)) == 1
        assert await log.earliest() == Position(1, ids[1], 5)
        assert await read_all(log, Position(1, ids[1], 5)) == numbers(10, 15)
        with pytest.raises(NoSuchLedger):
            await client.metadata(ids[0])
        with pytest.raises(ConfigurationError, match="ends at entry 4"):
            await log.truncate(Position(3, ids[3], 9))
        assert await log.truncate("latest") == 2
        assert await log.truncate("latest") == 0
        assert await read_all(log) == []
        await publish(log, numbers(15, 20))
        assert await read_all(log) == numbers(15, 20)

    run(tmp_path, test)


def test_truncating_spares_what_is_being_written(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        writer = await log.open_for_writing(**ONE)
        await writer.append_many(numbers(0, 5))
        await writer.append(b"confirms")
        assert await log.truncate("latest") == 0
        await writer.append(b"more")
        await writer.close()
        assert await read_all(log) == [b"confirms", b"more"]

    run(tmp_path, test)


def test_show_tells_open_closed_and_missing_ledgers(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("clicks")
        await log.create()
        (first,) = await publish(log, numbers(0, 5))
        dead = await log.open_for_writing(**ONE)
        dead.abandon()
        second = (await (await log.snapshot()).ledgers())[1].ledger_id
        shown = await log.show()
        assert shown == {
            "log": "clicks",
            "ledgers": [
                {"ledger": first, "first_entry": 0, "last_entry": 4, "state": "CLOSED", "length": 30},
                {"ledger": second, "first_entry": 0, "last_entry": -1, "state": "OPEN", "length": 0},
            ],
            "version": 2,
        }
        await log.truncate(Position(0, first, 2))
        assert (await log.show())["ledgers"][0]["first_entry"] == 2
        assert await log.recover() == [second]
        assert (await log.show())["ledgers"][1]["state"] == "CLOSED"
        await client.delete(second)
        assert (await log.show())["ledgers"][1]["state"] == "CLOSED"

    run(tmp_path, test)


def test_a_deleted_log_takes_its_ledgers_along_and_fences_its_writer(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("clicks")
        writer = await log.open_for_writing(**ONE)
        await writer.append_many(numbers(0, 5))
        attempt = await log.create_attempt(Owner("job", "j"), LedgerOptions(1, 1, 1))
        attempt.abandon()
        await log.delete()
        with pytest.raises(BookKeeperError):
            await writer.append(b"x")
        assert [ledger_id async for ledger_id in client.ledgers()] == []
        assert await client.logs() == []
        with pytest.raises(NoSuchLog):
            await log.delete()

    run(tmp_path, test)


def test_a_ledger_deleted_by_itself_is_data_loss_that_names_it(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client: Client = cluster.client()
        log = client.log("clicks")
        await log.create()
        ids = await publish(log, numbers(0, 5), numbers(5, 10))
        await client.delete(ids[1])
        with pytest.raises(DataLoss, match=f"ledger {ids[1]} of log clicks does not exist any more"):
            await read_all(log)

    run(tmp_path, test)
