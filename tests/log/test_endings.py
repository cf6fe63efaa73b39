"""What opening, rolling, closing and publishing leave in a log's head, and when a ledger or the store is gone."""

from __future__ import annotations

from functools import partial

import pytest

from bkspark.client import Client
from bkspark.entries import EntryBatch
from bkspark.errors import LedgerFenced, MetadataError
from bkspark.log import LedgerFacts, Log, Owner
from bkspark.log.epochs import EpochCommitter, Output
from bkspark.log.sharing import SharedLedger
from bkspark.log.writer import LedgerOptions, RollLimits
from bkspark.metadata.memory import MemoryTree
from tests.client.in_process import URI, InProcessCluster, run
from tests.log.logs import ONE, numbers, publish, read_all

run_on_one = partial(run, bookies=1)
OPTIONS = LedgerOptions(1, 1, 1)
LIMITS = RollLimits(1 << 30, None)


async def ledgers(client: Client) -> list[int]:
    return [ledger_id async for ledger_id in client.ledgers()]


async def pending(log: Log) -> set[int]:
    return await (await log.store()).attempts.pending_ids(log.name)


def rows(*texts: bytes) -> EntryBatch:
    return EntryBatch.of(list(texts))


# ---- writers ----


def test_writer_that_was_closed_gives_the_log_back(tmp_path):
    """A head that names a writer, or an open ledger, sends the next one to fence what is closed already."""

    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("x")
        writer = await log.open_for_writing(**ONE)
        await writer.append_many(numbers(0, 3))
        head = (await log.snapshot()).head
        assert head.writer is not None
        assert len(head.open_ordinals) == 1
        await writer.close()
        head = (await log.snapshot()).head
        assert head.writer is None
        assert head.open_ordinals == ()
        assert [(it.last_entry, it.length) for it in head.tail] == [(2, 18)]
        assert await pending(log) == set()

    run_on_one(tmp_path, test)


def test_ledger_that_a_fenced_writer_could_not_add_is_deleted(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("x")
        old = await log.open_for_writing(**ONE)
        await old.append(b"old")
        new = await cluster.client().log("x").open_for_writing(**ONE)
        before = await ledgers(client)
        with pytest.raises(LedgerFenced):
            await old.roll()
        assert await ledgers(client) == before
        assert len(await pending(log)) == 0
        await new.close()
        old.abandon()

    run_on_one(tmp_path, test)


def test_log_whose_open_ledger_was_deleted_by_itself_can_be_opened_and_says_what_is_missing(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("x")
        writer = await log.open_for_writing(**ONE)
        await writer.append(b"lost")
        lost = writer.ledger_id
        writer.abandon()
        await client.delete(lost)
        async with await log.open_for_writing(**ONE) as writer:
            await writer.append(b"kept")
        shown = (await log.show())["ledgers"]
        assert [(it["ledger"], it["state"]) for it in shown] == [(lost, "MISSING"), (lost + 1, "CLOSED")]

    run_on_one(tmp_path, test)


# ---- epochs ----


class CountingLedger(SharedLedger):
    """A shared ledger that notes how many batches each append has."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.appends: list[int] = []

    async def append(self, batches):
        self.appends.append(len(batches))
        return await super().append(batches)


def test_rows_of_all_tasks_between_two_ledgers_travel_as_one_append(tmp_path):
    """One append waits for bookies once; one for each of a thousand tasks would wait a thousand times."""

    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("x")
        await log.create()
        commit = EpochCommitter(log, "q", OPTIONS, LIMITS)
        shared = CountingLedger(log, Owner("query", "q"), OPTIONS, LIMITS)
        commit._shared = shared
        writer = await log.create_attempt(Owner("query", "q", 0, 0, 0), OPTIONS)
        await writer.append(b"own")
        closed = await writer.close()
        own = Output(ledgers=(LedgerFacts(writer.ledger_id, closed.last_entry, closed.length),))
        outputs = [Output(entries=(rows(b"a"), rows(b"b"))), Output(entries=(rows(b"c"),)), own]
        outputs += [Output(entries=(rows(b"d"),)), Output(entries=(rows(),)), Output(entries=(rows(b"e"), rows()))]
        assert await commit.append(outputs, ("q", 0))
        assert shared.appends == [3, 2]
        assert await read_all(log) == [b"a", b"b", b"c", b"own", b"d", b"e"]

    run_on_one(tmp_path, test)


def test_epoch_of_empty_batches_makes_no_ledger(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("x")
        await log.create()
        assert await EpochCommitter(log, "q", OPTIONS, LIMITS).append([Output(entries=(rows(), rows()))], ("q", 0))
        assert await ledgers(client) == []

    run_on_one(tmp_path, test)


def test_whole_content_that_cannot_be_swapped_leaves_no_ledger(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("x")
        await log.create()
        await publish(log, numbers(0, 2))
        before = await ledgers(client)
        commit = EpochCommitter(log, "q", OPTIONS, LIMITS)
        broken = Output(entries=(rows(b"a"), rows(bytes(6_000_000))))
        with pytest.raises(ValueError, match="nettyMaxFrameSizeBytes"):
            await commit.overwrite([broken], ("q", 0))
        assert await ledgers(client) == before
        assert await pending(log) == set()
        assert await read_all(log) == numbers(0, 2)

    run_on_one(tmp_path, test)


# ---- the store ----


class UnsweepableTree(MemoryTree):
    """A session in which no list of condemned ledgers can be read."""

    async def get(self, path: str):
        if "/condemned/" in path:
            raise MetadataError("the connection to the metadata store was lost")
        return await super().get(path)


def test_change_that_took_effect_is_no_failure_when_what_it_condemned_cannot_be_deleted_yet(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        other = cluster.client()
        await other.log("x").create()
        first, second = await publish(other.log("x"), numbers(0, 3), numbers(3, 5))
        async with Client(URI, tree=UnsweepableTree(cluster.store, 1_000, 10.0)) as client:
            assert (await client.log("x").overwrite([])).is_new
        assert await read_all(other.log("x")) == []
        assert await ledgers(other) == [first, second]
        # They are listed as condemned: the next sweep finds them.
        assert await other.log("x").vacuum(older_than_s=10**10) == 2
        assert await ledgers(other) == []

    run_on_one(tmp_path, test)
