"""Writers of logs whose metadata store is away for longer than a change of the log is repeated.

The outcome of such a change is unknown. Readers do not pass an open ledger, so a ledger that entered the list without
its writer knowing must not stay open before acknowledged entries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import pytest

from bkspark.client import Client
from bkspark.entries import EntryBatch
from bkspark.errors import LedgerFenced, MetadataAccessDenied, MetadataError
from bkspark.log import Log
from bkspark.log.delta import delta_path
from bkspark.log.epochs import Output
from bkspark.log.formats import Publisher
from bkspark.log.heads import CONNECTION_LOSSES_MAX
from bkspark.log.routed_epochs import RoutedCommitter, RoutedOutput
from bkspark.log.writer import LedgerOptions, RollLimits
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.tree import Operation, Stat
from tests.ledger.in_process import URI, InProcessCluster, run
from tests.log.logs import ONE, numbers, publish, read_all, until
from tests.log.world import OutageTree, WatchingTree

T = TypeVar("T")
HEAD = "/bkspark/logs/clicks"
REPEATED = CONNECTION_LOSSES_MAX - 1


@pytest.mark.parametrize("continues", [True, False])
@pytest.mark.parametrize("rolls", [True, False])
def test_ledger_that_may_have_been_added_in_an_outage_hides_no_later_entry(tmp_path, rolls, continues):
    async def test(cluster: InProcessCluster) -> None:
        tree = OutageTree(cluster.store, HEAD, REPEATED)
        async with Client(URI, tree=tree) as client:
            log = cluster.client().log("clicks")
            writer = await client.log("clicks").open_for_writing(**ONE)
            await writer.append_many(numbers(0, 10))
            if not rolls:
                await publish(log, numbers(10, 20))

                async def lets_readers_pass() -> bool:
                    return (await log.snapshot()).open_ordinals == ()

                await until(lets_readers_pass, "the writer to close its ledger")
            tree.begins = 0
            with pytest.raises(MetadataError, match="whether the change took effect is unknown"):
                await (writer.roll() if rolls else writer.append(b"not written"))
            count = 10 if rolls else 20
            if continues:
                await writer.append_many(numbers(count, count + 9))
                await writer.append(b"%06d" % (count + 9))  # it says that the nine are confirmed
                assert (await read_all(log))[: count + 9] == numbers(0, count + 9)
                count += 10
            await writer.close()
            await publish(log, numbers(count, count + 10))
            assert await read_all(log) == numbers(0, count + 10)
            assert (await log.snapshot()).open_ordinals == ()

    run(tmp_path, test)


def test_ledger_that_was_added_in_an_outage_is_closed_with_the_writer_although_the_watch_was_lost(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        tree = OutageTree(cluster.store, HEAD, REPEATED)
        async with Client(URI, tree=tree) as client:
            log = cluster.client().log("clicks")
            writer = await client.log("clicks").open_for_writing(**ONE)
            await writer.append_many(numbers(0, 10))
            cluster.store.lose_watches()
            tree.begins = 0
            with pytest.raises(MetadataError, match="whether the change took effect is unknown"):
                await writer.roll()
            await writer.close()
            await publish(log, numbers(10, 20))
            assert await read_all(log) == numbers(0, 20)
            assert (await log.snapshot()).open_ordinals == ()

    run(tmp_path, test, bookies=1)


@pytest.mark.parametrize("noticed_by", ["append", "close", "close after an outage of the bookie"])
def test_ledger_that_was_added_in_an_outage_is_closed_although_the_writers_own_cannot_be(tmp_path, noticed_by):
    """Another client closes the writer's ledger, so readers pass that. The ledger that was added must not stop them."""

    async def test(cluster: InProcessCluster) -> None:
        tree, (bookie,) = OutageTree(cluster.store, HEAD, REPEATED), cluster.bookies
        async with Client(URI, tree=tree) as client:
            log = cluster.client().log("clicks")
            writer = await client.log("clicks").open_for_writing(**ONE)
            await writer.append_many(numbers(0, 10))
            await cluster.client().recover(writer.ledger_id)
            with pytest.raises(LedgerFenced):
                await writer.append(b"not written")
            tree.begins = 0
            if noticed_by == "close after an outage of the bookie":
                tree.then = bookie.stop
            with pytest.raises(MetadataError, match="whether the change took effect is unknown"):
                await writer.roll()
            if noticed_by != "close":
                with pytest.raises(LedgerFenced):
                    await writer.append(b"not written")
            if tree.then is not None:
                await bookie.start()
            if noticed_by != "append":
                with pytest.raises(LedgerFenced):
                    await writer.close()
            assert len(await log.snapshot()) == 2
            await publish(log, numbers(10, 20))
            assert await read_all(log) == numbers(0, 20)

    run(tmp_path, test, bookies=1)


@pytest.mark.parametrize("fails", ["change", "watch"])
def test_log_that_may_have_been_opened_in_an_outage_hides_no_later_entry(tmp_path, fails):
    """The process that could not open it does not try again."""

    async def test(cluster: InProcessCluster) -> None:
        outage, watching = OutageTree(cluster.store, HEAD, REPEATED), WatchingTree(cluster.store, HEAD)
        log = cluster.client().log("clicks")
        await publish(await created(log), numbers(0, 10))
        outage.begins, watching.failures = 0, 1
        async with Client(URI, tree=outage if fails == "change" else watching) as client:
            with pytest.raises(MetadataError, match="unknown" if fails == "change" else "lost"):
                await client.log("clicks").open_for_writing(**ONE)
        assert len(await log.snapshot()) == 2
        await publish(log, numbers(10, 20))
        assert await read_all(log) == numbers(0, 20)

    run(tmp_path, test, bookies=1)


async def created(log: Log) -> Log:
    await log.create()
    return log


class DenyingTree(MemoryTree):
    """A session that may not change one node."""

    def __init__(self, server: MemoryStore) -> None:
        super().__init__(server, session_id=1_012, timeout_s=10.0)
        self.denied: str | None = None

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        if path == self.denied:
            raise MetadataAccessDenied(f"the store refuses the write of {path}")
        return await super().set(path, data, version)


def test_writer_whose_ledger_cannot_be_closed_at_a_roll_ends(tmp_path):
    """Readers do not pass the open ledger, so they would not get what is appended after it."""

    async def test(cluster: InProcessCluster) -> None:
        tree = DenyingTree(cluster.store)
        async with Client(URI, tree=tree) as client:
            log = cluster.client().log("clicks")
            writer = await client.log("clicks").open_for_writing(**ONE)
            await writer.append_many(numbers(0, 10))
            tree.denied = f"/ledgers/00/0000/L{writer.ledger_id:04d}"
            for call in (writer.roll, partial(writer.append, b"not written"), writer.close):
                with pytest.raises(MetadataAccessDenied):
                    await call()
        async with await log.open_for_writing(**ONE) as another:
            await another.append_many(numbers(10, 20))
        assert await read_all(log) == numbers(0, 20)

    run(tmp_path, test, bookies=1)


class HungTree(MemoryTree):
    """A session that never answers a read of the registered readers, as each expiry makes it. While `hangs` is set, it
    does not answer transactions either."""

    def __init__(self, server: MemoryStore) -> None:
        super().__init__(server, session_id=1_011, timeout_s=10.0)
        self.hangs = False
        self.has_hung_expiry = asyncio.Event()
        self.has_hung_transaction = asyncio.Event()

    async def children(self, path: str) -> list[str]:
        if path.endswith("/consumers"):
            self.has_hung_expiry.set()
            await asyncio.Event().wait()
        return await super().children(path)

    async def transaction(self, operations: Sequence[Operation]) -> None:
        if self.hangs:
            self.has_hung_transaction.set()
            await asyncio.Event().wait()
        await super().transaction(operations)


def test_writer_that_is_abandoned_or_closed_leaves_nothing_running(tmp_path):
    """It notes times, removes expired ledgers, and rolls, while the metadata store does not answer."""

    async def test(cluster: InProcessCluster) -> None:
        tree = HungTree(cluster.store)
        async with Client(URI, tree=tree) as client:
            log = await created(client.log("clicks"))
            await publish(log, [b"0"])
            before = asyncio.all_tasks()
            closed = await log.open_for_writing(**ONE)
            await closed.append(b"1")
            assert asyncio.all_tasks() - before, "it is to note the time of the append"
            await closed.close()
            assert all(task.cancelling() for task in asyncio.all_tasks() - before)
            await log.set_retention(bytes=1)
            writer = await log.open_for_writing(**ONE)
            await writer.append(b"2")
            await writer.roll()
            await writer.append(b"3")
            tree.hangs = True
            rolling = asyncio.ensure_future(writer.roll())
            await tree.has_hung_transaction.wait()
            await tree.has_hung_expiry.wait()
            running = asyncio.all_tasks() - before - {rolling}
            writer.abandon()
            assert all(task.cancelling() for task in running)
            tree.hangs = False
            await asyncio.wait([rolling, *running])
            assert rolling.cancelled()

    run(tmp_path, test, bookies=1)


async def repeated(call: Callable[[], Awaitable[T]]) -> T:
    """Return what a call returns; after an outage it is made again."""
    try:
        return await call()
    except MetadataError:
        return await call()


@pytest.mark.parametrize("takes_effect", [True, False])
@pytest.mark.parametrize("begins", range(8))
def test_outage_at_any_change_of_a_log_loses_and_hides_nothing(tmp_path, begins, takes_effect):
    """A writer that rolls, and is overtaken by a job; each call is repeated after the outage."""

    async def test(cluster: InProcessCluster) -> None:
        tree = OutageTree(cluster.store, HEAD, REPEATED)
        async with Client(URI, tree=tree) as client:
            log = cluster.client().log("clicks")
            await log.create()
            tree.begins, tree.takes_effect = begins, takes_effect
            writer = await repeated(lambda: client.log("clicks").open_for_writing(**ONE))
            for first in range(0, 60, 20):
                await repeated(lambda first=first: writer.append_many(numbers(first, first + 10)))
                await repeated(writer.roll)
                await publish(log, numbers(first + 10, first + 15))
                await repeated(lambda first=first: writer.append_many(numbers(first + 15, first + 20)))
            try:
                await writer.close()
            except MetadataError:
                # It is closed for good. The next one that writes finishes the log.
                await (await client.log("clicks").open_for_writing(**ONE)).close()
            assert tree.begins is None, "there was an outage"
            await publish(log, numbers(60, 65))
            assert sorted(await read_all(log)) == numbers(0, 65)

    run(tmp_path, test)


async def lets_readers_pass(log: Log) -> bool:
    return (await log.snapshot()).open_ordinals == ()


async def has_ledgers(log: Log, count: int) -> bool:
    return len(await log.snapshot()) == count


def test_job_that_publishes_while_a_writer_opens_the_log_is_noticed(tmp_path):
    """Otherwise readers would wait before the writer's ledger until the writer appends."""

    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        tree = WatchingTree(cluster.store, HEAD)
        tree.before = lambda: publish(log, numbers(0, 5))
        async with Client(URI, tree=tree) as client:
            writer = await client.log("clicks").open_for_writing(**ONE)
            await until(lambda: lets_readers_pass(log), "the writer to let readers pass")
            assert await read_all(log) == numbers(0, 5)
            await writer.append_many(numbers(5, 10))
            await writer.close()
        assert await read_all(log) == numbers(0, 10)

    run(tmp_path, test)


def test_job_that_publishes_while_a_writer_checks_the_log_is_noticed(tmp_path):
    """The writer has read the list without the job's ledger when the watch tells it of the change."""

    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("clicks")
        tree = WatchingTree(cluster.store, HEAD)
        async with Client(URI, tree=tree) as client:
            writer = await client.log("clicks").open_for_writing(**ONE)
            tree.after_read = lambda: publish(log, numbers(0, 5))
            await until(lambda: has_ledgers(log, 2), "the job to publish")
            await until(lambda: lets_readers_pass(log), "the writer to let readers pass")
            assert await read_all(log) == numbers(0, 5)
            await writer.close()

    run(tmp_path, test)


@pytest.mark.parametrize("is_routed", [True, False])
def test_routed_commit_is_noticed_although_the_watch_for_it_failed_at_first(tmp_path, is_routed):
    """A routed commit changes the log's delta alone."""

    async def commit(client: Client, version: int, entries: list[bytes]) -> None:
        committer = RoutedCommitter(client, "job", RollLimits())
        output = RoutedOutput("clicks", (Output((), (EntryBatch.of(entries),)),), LedgerOptions(1, 1, 1))
        await committer.append([output], Publisher("job", version))
        await committer.close()

    async def test(cluster: InProcessCluster) -> None:
        other = cluster.client()
        log = other.log("clicks")
        await log.create()
        tree = WatchingTree(cluster.store, delta_path("clicks"))
        async with Client(URI, tree=tree) as client:
            if is_routed:
                await commit(other, 0, numbers(0, 5))
            tree.failures = 1
            writer = await client.log("clicks").open_for_writing(**ONE)
            if not is_routed:
                await commit(other, 0, numbers(0, 5))

            async def has_failed() -> bool:
                return not tree.failures

            await until(has_failed, "the watch to fail")
            await commit(other, 1, numbers(5, 10))
            await until(lambda: lets_readers_pass(log), "the writer to let readers pass")
            assert await read_all(log) == numbers(0, 10)
            await writer.close()

    run(tmp_path, test)
