"""A process ends or stalls after it has created its ledger and before it registers it: a vacuum finds the ledger."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from bkspark.client import Client
from bkspark.errors import BookKeeperError, ConfigurationError, MetadataVersion
from bkspark.ledger import LedgerWriter
from bkspark.log import Log, SegmentFacts, SegmentOwner
from bkspark.log.writer import LedgerOptions, create_ledger
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.tree import Operation, Stat
from tests.ledger.in_process import URI, InProcessCluster, run
from tests.log.logs import ONE, numbers, publish, read_all

OPTIONS = LedgerOptions(1, 1, 1)
OWNER = SegmentOwner("job", "j", partition=0)
HOUR_S = 3_600
"""The tree in memory gives nodes the creation time 0: everything is older than an hour."""


async def ledgers(client: Client) -> list[int]:
    return [ledger_id async for ledger_id in client.ledgers()]


async def killed(client: Client, name: str = "clicks") -> int:
    """Leave what a process leaves that ends after it has created its ledger."""
    writer = await create_ledger(client, name, OPTIONS)
    writer.abandon()
    return writer.ledger_id


def test_vacuum_deletes_what_a_process_left_that_ended_before_it_registered_its_ledger(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("clicks")
        await log.create()
        listed = await publish(log, numbers(0, 5))
        left = await killed(client)
        assert await log.vacuum(older_than_s=10**10) == 0, "the ledger is younger than the limit"
        assert left in await ledgers(client)
        assert await log.vacuum(older_than_s=HOUR_S) == 1
        assert await ledgers(client) == listed
        assert await log.vacuum(older_than_s=HOUR_S) == 0
        assert await read_all(log) == numbers(0, 5)

    run(tmp_path, test)


def test_vacuum_leaves_every_other_ledger(tmp_path):
    """Ledgers of other logs and applications, one that names the log and has an entry, one of the log's writer."""

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("clicks")
        await log.create()
        await client.log("views").create()
        writer = await log.open_for_writing(**ONE)
        await writer.append_many(numbers(0, 5))
        await killed(client, "views")
        plain = [await client.create(**ONE, metadata=custom) for custom in ({}, {"log": "clicks"})]
        held = await create_ledger(client, "clicks", OPTIONS)
        await held.append(b"an entry that no attempt of ours writes before it is registered")
        before = await ledgers(client)
        assert await log.vacuum(older_than_s=HOUR_S) == 0
        assert await ledgers(client) == before
        await writer.append_many(numbers(5, 10))
        await plain[1].append(b"its writer was not fenced")
        await writer.close()
        assert await read_all(log) == numbers(0, 10)
        for each in (*plain, held):
            each.abandon()

    run(tmp_path, test)


def test_ledger_whose_bookies_do_not_answer_is_left_to_the_next_vacuum(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("clicks")
        await log.create()
        left = await killed(client)
        bookie = cluster.bookie((await client.metadata(left)).fragments[0].bookies[0])
        await bookie.stop()
        assert await log.vacuum(older_than_s=HOUR_S) == 0
        assert await ledgers(client) == [left]
        await bookie.start()
        assert await log.vacuum(older_than_s=HOUR_S) == 1

    run(tmp_path, test)


def test_process_that_registers_after_the_vacuum_fails_and_has_written_nothing(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("clicks")
        await log.create()
        store = await log.store()
        stalled = await create_ledger(client, "clicks", OPTIONS)
        unchanged = await (await client.context()).ledgers.as_created(stalled.ledger_id)
        await log.vacuum(older_than_s=HOUR_S)
        with pytest.raises(MetadataVersion, match="a vacuum regarded its attempt as dead"):
            await store.attempts.add("clicks", stalled.ledger_id, OWNER, unchanged=unchanged)
        assert await store.attempts.pending_ids("clicks") == set()
        stalled.abandon()

    run(tmp_path, test)


class LateTree(MemoryTree):
    """A session whose server does not know yet what is pending, until the session catches up."""

    is_late = True

    async def children(self, path: str) -> list[str]:
        return [] if self.is_late and path.endswith("/pending") else await super().children(path)

    async def catch_up(self) -> None:
        self.is_late = False
        await super().catch_up()


def test_vacuum_through_a_server_that_lags_keeps_what_is_registered(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("clicks")
        await log.create()
        registered = await create_ledger(client, "clicks", OPTIONS)
        await (await log.store()).attempts.add("clicks", registered.ledger_id, OWNER)
        tree = LateTree(cluster.store, session_id=1_011, timeout_s=10.0)
        async with Client(URI, tree=tree) as late:
            assert await late.log("clicks").vacuum(older_than_s=HOUR_S) == 0
            assert not tree.is_late
        assert await ledgers(client) == [registered.ledger_id]
        registered.abandon()

    run(tmp_path, test)


class LookingTree(MemoryTree):
    """A session that reads a ledger's metadata; `then` runs before its next look at what is pending."""

    def __init__(self, server: MemoryStore, then: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(server, session_id=1_012, timeout_s=10.0)
        self._then = then
        self._has_read = False

    async def get(self, path: str) -> tuple[bytes, Stat]:
        self._has_read = self._has_read or path.startswith("/ledgers/00/")
        return await super().get(path)

    async def children(self, path: str) -> list[str]:
        if path.endswith("/pending") and self._has_read:
            self._has_read = False
            await self._then()
        return await super().children(path)


def test_vacuum_does_not_fence_a_ledger_that_takes_the_id_of_one_it_has_found(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("clicks")
        await log.create()
        left = await killed(client)
        taken: list[LedgerWriter] = []

        async def take() -> None:
            await client.delete(left)
            taken.append(await client.create(ledger_id=left, **ONE))

        async with Client(URI, tree=LookingTree(cluster.store, take)) as looking:
            assert await looking.log("clicks").vacuum(older_than_s=HOUR_S) == 0
        assert await taken[0].append(b"its writer was not fenced") == 0
        assert await ledgers(client) == [left]
        await taken[0].close()

    run(tmp_path, test)


class StallingTree(MemoryTree):
    """A session that stalls before one of its writes, until `then` has run."""

    def __init__(self, server: MemoryStore, at: int, then: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(server, session_id=1_010, timeout_s=10.0)
        self._left = at
        self._then = then

    @property
    def has_stalled(self) -> bool:
        return self._left < 0

    async def _stall(self) -> None:
        self._left -= 1
        if self._left == -1:
            await self._then()

    async def create(self, path: str, data: bytes = b"", **options: Any) -> tuple[str, Stat]:
        await self._stall()
        return await super().create(path, data, **options)

    async def set(self, path: str, data: bytes, version: int) -> Any:
        await self._stall()
        return await super().set(path, data, version)

    async def transaction(self, operations: Sequence[Operation]) -> None:
        await self._stall()
        await super().transaction(operations)


async def _job(log: Log) -> None:
    attempt = await log.create_attempt(OWNER, OPTIONS)
    await attempt.append_many(numbers(0, 5))
    closed = await attempt.close()
    await log.publish([SegmentFacts(attempt.ledger_id, closed.last_entry, closed.length)])


async def _writer(log: Log) -> None:
    async with await log.open_for_writing(**ONE) as writer:
        await writer.append_many(numbers(0, 5))


@pytest.mark.parametrize("work", [_job, _writer])
def test_vacuum_at_any_write_of_a_living_process_loses_nothing_that_was_acknowledged(tmp_path, work):
    """The process gets through or fails; what it published is there, and nothing else stays."""
    outcomes = set()

    async def test(cluster: InProcessCluster) -> None:
        for at in range(100):
            client = cluster.client()
            log = client.log(f"clicks{at}")
            await log.create()
            tree = StallingTree(cluster.store, at, lambda log=log: log.vacuum(older_than_s=HOUR_S))
            stalling = Client(URI, tree=tree)
            try:
                await work(stalling.log(log.name))
                is_done = True
            except BookKeeperError:
                is_done = False
            await stalling.close()
            outcomes.add((is_done, tree.has_stalled))
            await log.recover()
            assert await read_all(log) in ([numbers(0, 5)] if is_done else [[], numbers(0, 5)])
            await log.vacuum(older_than_s=HOUR_S)
            wanted = [listed.ledger_id for listed in await (await log.snapshot()).ledgers()]
            assert await ledgers(client) == wanted
            await log.delete()
            if not tree.has_stalled:
                return
        raise AssertionError("the work makes more than a hundred writes")

    run(tmp_path, test)
    assert outcomes == {(True, True), (False, True), (True, False)}


def test_users_metadata_cannot_name_another_log(tmp_path):
    """A vacuum of that log would find the ledger."""
    for key in ("log", "application"):
        with pytest.raises(ConfigurationError, match=f"'{key}' is what bkspark writes itself"):
            LedgerOptions(1, 1, 1, metadata={key: "views"})
