"""A log's ledger was deleted, and another one was created with its id: that is not the log's, and stays as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from bkspark.client import Client
from bkspark.errors import (
    ConfigurationError,
    DataLoss,
    LedgerFenced,
    MetadataAccessDenied,
    MetadataFormat,
    NoSuchLedger,
    NoSuchLog,
)
from bkspark.ledger import LedgerWriter
from bkspark.log import Log, Position, SegmentFacts, SegmentOwner
from bkspark.log.heads import new_token
from bkspark.metadata import paths
from bkspark.metadata.memory import MemoryTree
from bkspark.metadata.tree import ANY_VERSION, Stat
from bkspark.metadata.uri import LedgerManager
from tests.ledger.in_process import URI, InProcessCluster, run
from tests.log.logs import ONE, numbers, publish, read_all

HOUR_S = 3_600


async def take(
    client: Client,
    ledger_id: int,
    entries: list[bytes],
    *,
    closes: bool = True,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Delete a ledger and create another one with its id."""
    await client.delete(ledger_id)
    writer = await client.create(ledger_id=ledger_id, metadata=metadata, **ONE)
    await writer.append_many(entries)
    if closes:
        await writer.close()


@pytest.mark.parametrize(
    "metadata",
    [{}, {"application": "bkspark"}, {"application": "bkspark", "log": "views"}, {"log": "views"}],
    ids=["none", "of no log", "of another log", "naming another log"],
)
def test_entries_of_a_ledger_that_took_the_id_of_a_listed_one_are_data_loss(tmp_path, metadata):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("clicks")
        await log.create()
        first, second = await publish(log, numbers(0, 10), numbers(10, 20))
        await take(client, first, numbers(70, 80), metadata=metadata)
        with pytest.raises(DataLoss, match=f"ledger {first} of log clicks .*another ledger.* truncate") as raised:
            await read_all(log)
        assert raised.value.ledger_id == first
        with pytest.raises(DataLoss, match=f"ledger {first} of log clicks .*another ledger"):
            await asyncio.wait_for(anext(log.follow()), 30)
        rest = [each for each in (await log.show())["ledgers"] if each["ledger"] == second]
        assert await read_all(log, Position(1, second, 0)) == numbers(10, 20)
        assert rest[0]["state"] == "CLOSED"

    run(tmp_path, test, bookies=2)


@pytest.mark.parametrize("closes", [True, False])
def test_ledger_that_took_the_id_of_an_open_one_is_not_read_fenced_or_listed(tmp_path, closes):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("clicks")
        writer = await log.open_for_writing(**ONE)
        await writer.append_many(numbers(0, 3))
        writer.abandon()
        taken = (await log.show())["ledgers"][0]["ledger"]
        await client.delete(taken)
        other = await client.create(ledger_id=taken, **ONE)
        await other.append_many(numbers(70, 80))
        if closes:
            await other.close()
        assert (await log.show())["ledgers"][0]["state"] == "MISSING"
        with pytest.raises(DataLoss, match=f"ledger {taken} of log clicks .*another ledger"):
            await read_all(log)
        async with await log.open_for_writing(**ONE) as writer:
            await writer.append_many(numbers(3, 5))
        with pytest.raises(DataLoss, match=f"ledger {taken} of log clicks"):
            await read_all(log)
        if not closes:
            assert await other.append(b"still its writer's") == 10
            await other.close()

    run(tmp_path, test, bookies=2)


def test_truncation_overwrite_and_deletion_leave_a_ledger_that_took_an_id(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        for way in ("truncate", "overwrite", "delete", "expire"):
            log = client.log(way)
            await log.create()
            first, second = await publish(log, numbers(0, 10), numbers(10, 20))
            await take(client, first, numbers(70, 80))
            match way:
                case "truncate":
                    end = Position(0, first, 10)
                    assert await log.truncate(end) == 1
                case "overwrite":
                    await log.overwrite([])
                case "delete":
                    await log.delete()
                case "expire":
                    await log.set_retention(bytes=1)
                    assert await log.expire() == 1
            reader = await client.open(first)
            assert [entry async for batch in reader.batches() for entry in batch] == numbers(70, 80)
            if way in ("overwrite", "delete"):
                with pytest.raises(NoSuchLedger):
                    await client.open(second)

    run(tmp_path, test, bookies=2)


def test_open_recover_and_delete_find_only_a_ledger_that_has_the_wanted_metadata(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        writer = await client.create(metadata={"team": "blue", "kind": b"x"}, **ONE)
        one = writer.ledger_id
        await writer.append(b"1")
        with pytest.raises(NoSuchLedger, match=f"ledger {one} .*another ledger.*team") as raised:
            await client.open(one, having={"team": "red"})
        assert raised.value.ledger_id == one
        for call in (client.open, client.metadata, client.recover, client.delete):
            with pytest.raises(NoSuchLedger, match=f"ledger {one} .*another ledger.*colour"):
                await call(one, having={"team": "blue", "colour": "any"})
        with pytest.raises(ConfigurationError, match="having"):
            await client.open(one, having="team")
        assert await writer.append(b"2") == 1  # nothing was fenced
        assert (await client.open(one, having={"team": "blue"})).ledger_id == one
        assert (await client.metadata(one, having={"team": "blue"})).custom_metadata["kind"] == b"x"
        assert (await client.recover(one, having={"team": b"blue"})).last_entry == 1
        await client.delete(one, having={"kind": b"x"})
        with pytest.raises(NoSuchLedger):
            await client.open(one)

    run(tmp_path, test, bookies=1)


async def create_early(client: Client, log: Log) -> LedgerWriter:
    """Create a pending ledger of a log as early builds did: there, the user's own `application` replaced bkspark's."""
    writer = await client.create(metadata={"application": "billing", "log": log.name}, **ONE)
    store = await log.store()
    await store.attempts.add(log.name, writer.ledger_id, SegmentOwner("job", "early", partition=writer.ledger_id))
    return writer


def test_ledgers_of_early_builds_with_an_application_of_their_own_belong_to_the_log(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("clicks")
        await log.create()
        closed, still_open = await create_early(client, log), await create_early(client, log)
        await closed.append_many(numbers(0, 3))
        end = await closed.close()
        await still_open.append_many(numbers(3, 5))
        ids = [closed.ledger_id, still_open.ledger_id]
        await log.publish([SegmentFacts(ids[0], end.last_entry, end.length)])
        await (await log.store()).open_writer("clicks", ids[1], new_token(), [])
        assert [each["state"] for each in (await log.show())["ledgers"]] == ["CLOSED", "OPEN"]
        async with await log.open_for_writing(**ONE) as writer:
            with pytest.raises(LedgerFenced):
                await still_open.append(b"late")
            await writer.append_many(numbers(5, 7))
        assert await read_all(log) == numbers(0, 7)
        await log.truncate(Position(0, ids[0], 3))
        assert ids[0] not in [ledger_id async for ledger_id in client.ledgers()]
        await log.delete()
        assert [ledger_id async for ledger_id in client.ledgers()] == []

    run(tmp_path, test, bookies=2)


def ledger_node(ledger_id: int) -> str:
    return "/ledgers" + paths.ledger_path(ledger_id, LedgerManager.HIERARCHICAL)


class DeniedTree(MemoryTree):
    """A session that may not read one node."""

    denied = ""

    async def get(self, path: str) -> tuple[bytes, Stat]:
        if path == self.denied:
            raise MetadataAccessDenied(f"{path} may not be read")
        return await super().get(path)


@pytest.mark.parametrize("way", ["truncate", "overwrite", "delete", "expire"])
@pytest.mark.parametrize("is_denied", [False, True], ids=["damaged", "denied"])
def test_ledger_whose_metadata_cannot_be_read_is_deleted_with_the_others(tmp_path, is_denied, way):
    """Nothing says that it is another ledger."""

    async def test(cluster: InProcessCluster) -> None:
        tree = DeniedTree(cluster.store, session_id=1_010, timeout_s=10.0)
        async with Client(URI, tree=tree) as client:
            log = client.log("clicks")
            await log.create()
            first, second, third = await publish(log, numbers(0, 10), numbers(10, 20), numbers(20, 30))
            if is_denied:
                tree.denied = ledger_node(first)
            else:
                await tree.set(ledger_node(first), b"damaged", ANY_VERSION)
            with pytest.raises(MetadataAccessDenied if is_denied else MetadataFormat):
                await client.metadata(first)
            match way:
                case "truncate":
                    assert await log.truncate(Position(1, second, 10)) == 2
                case "overwrite":
                    await log.overwrite([])
                case "delete":
                    await log.delete()
                case "expire":
                    await log.set_retention(bytes=1)
                    assert await log.expire() == 2
            left = [third] if way in ("truncate", "expire") else []
            assert [ledger_id async for ledger_id in client.ledgers()] == left
            if way == "delete":
                with pytest.raises(NoSuchLog):
                    await log.show()
                await log.create()
            assert await log.vacuum(older_than_s=HOUR_S) == 0

    run(tmp_path, test, bookies=1)


def test_log_that_is_followed_ends_when_another_ledger_takes_the_id_of_its_open_one(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("clicks")
        writer = await log.open_for_writing(**ONE)
        await writer.append_many(numbers(0, 3))
        await writer.append_many(numbers(3, 4))  # confirms those before it
        taken = (await log.show())["ledgers"][0]["ledger"]
        found: list[bytes] = []

        async def follow() -> None:
            async for batch in log.follow():
                found.extend(batch)
                if writer.ledger_id is not None:
                    writer.abandon()
                    await take(client, taken, numbers(70, 80))

        with pytest.raises(DataLoss, match=f"ledger {taken} of log clicks .*another one was created under its id"):
            await asyncio.wait_for(follow(), 60)
        assert found in (numbers(0, 3), numbers(0, 4))

    run(tmp_path, test, bookies=1)
