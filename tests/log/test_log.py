"""Logs on real bookie services: published to, truncated, shown, deleted and vacuumed."""

from __future__ import annotations

import pytest

from bkspark.client import Client
from bkspark.errors import (
    BookKeeperError,
    ConfigurationError,
    DataLoss,
    LogExists,
    NoSuchLedger,
    NoSuchLog,
)
from bkspark.log import AppendOutcome, Position, SegmentFacts, SegmentOwner
from bkspark.log.schemas import SchemaChange, StoredSchema
from bkspark.log.writer import LedgerOptions
from tests.ledger.in_process import InProcessCluster, run
from tests.log.logs import ONE, numbers, publish, read_all


def test_jobs_publish_overwrite_and_discard(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("clicks")
        await log.create()
        old = await publish(log, numbers(0, 5), numbers(5, 10))
        staged = await log.create_attempt(SegmentOwner("query", "q", epoch=4, partition=0), LedgerOptions(1, 1, 1))
        await staged.append_many(numbers(10, 15))
        metadata = await staged.close()
        loser = await log.create_attempt(SegmentOwner("query", "q", epoch=4, partition=0), LedgerOptions(1, 1, 1))
        await loser.append_many(numbers(90, 95))
        facts = SegmentFacts(staged.ledger_id, metadata.last_entry, metadata.length)
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


def test_publication_takes_all_that_it_is_given(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        await log.create()
        shared = await log.create_attempt(SegmentOwner("query", "q"), LedgerOptions(1, 1, 1))
        await shared.append_many(numbers(0, 5))
        schema = SchemaChange(StoredSchema("json", '{"fields":[],"type":"struct"}'), None)
        facts, ids = SegmentFacts(shared.ledger_id, 4, 30), [shared.ledger_id]
        assert await log.publish([facts], publisher=("q", 3), shared=ids, schema=schema) == AppendOutcome(True, 0, 3)
        snapshot = await log.snapshot()
        assert [ref.name for ref in snapshot.schemas] == [schema.stored.name]
        assert [each.ledger_id for each in await (await log.store()).attempts.pending("clicks")] == ids
        with pytest.raises(LogExists, match="to be written only while it holds none"):
            await log.publish([SegmentFacts(shared.ledger_id, 9, 30, 5)], shared=ids, only_if_empty=True)
        assert await read_all(log) == numbers(0, 5)
        await shared.close()

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
        attempt = await log.create_attempt(SegmentOwner("job", "lost"), LedgerOptions(1, 1, 1))
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
        # The beginning of a ledger is the end of what precedes it: a reader at that position loses nothing.
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


def test_truncating_between_two_ledgers_keeps_the_position_of_their_boundary(tmp_path):
    """The end of the first ledger is not recorded in the list before the writer's next roll or close."""

    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        writer = await log.open_for_writing(**ONE)
        end = (await writer.append_many(numbers(0, 3))).end
        await writer.roll()
        first = await writer.append(numbers(3, 4)[0])
        await writer.append(b"confirms")
        assert (first.ordinal, first.entry_id) == (1, 0)
        assert await log.truncate(first) == 1
        assert await log.earliest() == end
        assert await read_all(log, end) == numbers(3, 4)
        await writer.close()

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
            "published": [],
            "retention": {"age_ms": None, "bytes": None},
            "schemas": [],
            "version": 2,
        }
        await log.publish([], publisher=("q1", 7))
        await log.publish([], publisher=("app", 3, "q2"))
        assert (await log.show())["published"] == [
            {"name": "q1", "version": 7, "query": None},
            {"name": "app", "version": 3, "query": "q2"},
        ]
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
        attempt = await log.create_attempt(SegmentOwner("job", "j"), LedgerOptions(1, 1, 1))
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
        with pytest.raises(DataLoss, match=f"ledger {ids[1]} of log clicks does not exist any more: the log was"):
            await read_all(log)

    run(tmp_path, test)
