"""What opening, rolling, closing and publishing leave in a log's head, and when a ledger or the store is gone."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

import pytest

from bkspark.client import Client
from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError, LedgerClosed, LedgerFenced, MetadataError, NoSuchLedger, VersionPublished
from bkspark.log import Log, Position, SegmentFacts, SegmentOwner, expiry, reading
from bkspark.log.epochs import EpochCommitter, Output
from bkspark.log.sharing import SharedLedger
from bkspark.log.writer import LedgerOptions, RollLimits
from bkspark.metadata.memory import MemoryTree
from tests.ledger.in_process import URI, InProcessCluster, run
from tests.log.logs import ONE, numbers, publish, read_all
from tests.log.world import World, in_world

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


def test_error_in_the_body_leaves_the_ledger_as_it_is_and_closes_nothing(tmp_path):
    """Closing would say that all of it is there."""

    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("x")
        writer = await log.open_for_writing(**ONE)

        async def write() -> None:
            async with writer:
                await writer.append(b"a")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await write()
        (shown,) = (await log.show())["ledgers"]
        assert shown["state"] == "OPEN"
        with pytest.raises(LedgerClosed, match="went away"):
            await writer.append(b"b")
        async with await log.open_for_writing(**ONE) as writer:
            await writer.append(b"c")
        assert await read_all(log) == [b"a", b"c"]

    run_on_one(tmp_path, test)


def test_log_is_not_truncated_after_a_ledger_that_is_being_written(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("x")
        writer = await log.open_for_writing(**ONE)
        await writer.append(b"a")
        await writer.append(b"b")
        writer._stop_watching()  # it would close its ledger when a job publishes
        (job,) = await publish(log, numbers(1, 3))
        with pytest.raises(ConfigurationError, match="a ledger before that is being written"):
            await log.truncate(Position(1, job, 1))
        assert len((await log.show())["ledgers"]) == 2
        await log.recover()
        assert await log.truncate(Position(1, job, 1)) == 1
        writer.abandon()

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
        shared = CountingLedger(log, SegmentOwner("query", "q"), OPTIONS, LIMITS)
        commit._shared = shared
        writer = await log.create_attempt(SegmentOwner("query", "q", 0, 0, 0), OPTIONS)
        await writer.append(b"own")
        closed = await writer.close()
        own = Output(ledgers=(SegmentFacts(writer.ledger_id, closed.last_entry, closed.length),))
        outputs = [Output(entries=(rows(b"a"), rows(b"b"))), Output(entries=(rows(b"c"),)), own]
        outputs += [Output(entries=(rows(b"d"),)), Output(entries=(rows(),)), Output(entries=(rows(b"e"), rows()))]
        assert await commit.append(outputs, ("q", 0))
        assert shared.appends == [3, 2]
        assert await read_all(log) == [b"a", b"b", b"c", b"own", b"d", b"e"]

    run_on_one(tmp_path, test)


def test_shared_ledger_that_cannot_be_closed_when_it_is_due_is_retired(tmp_path):
    """Another client has recovered it: the next append goes to another ledger, and the epoch does not fail."""

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("x")
        await log.create()
        shared = SharedLedger(log, SegmentOwner("query", "q"), OPTIONS, RollLimits(1, None))
        first = (await shared.append([rows(b"one")])).ledger_id
        ledgers_ = (await client.context()).ledgers
        stored = await ledgers_.read(first)
        await ledgers_.write(first, stored.metadata.closed(7, 70), stored.version)
        await shared.roll_if_due()
        assert shared.ledger_id is None
        assert await pending(log) == set()
        assert (await shared.append([rows(b"two")])).ledger_id != first

    run_on_one(tmp_path, test)


def test_shared_ledger_of_a_log_that_was_deleted_is_named_with_its_log_when_it_is_closed(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("x")
        await log.create()
        shared = SharedLedger(log, SegmentOwner("query", "q"), OPTIONS, LIMITS)
        ledger_id = (await shared.append([rows(b"one")])).ledger_id
        await log.delete()
        with pytest.raises(NoSuchLedger, match=f"ledger {ledger_id} of log x does not exist any more: the log was"):
            await shared.close()

    run_on_one(tmp_path, test)


@pytest.mark.parametrize("appends_again", [False, True])
def test_error_for_a_shared_ledger_that_was_removed_after_its_rows_were_published_does_not_call_them_unpublished(
    tmp_path, appends_again
):
    """It said that no row is published, and to write the rows again."""

    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("x")
        await log.create()
        shared = SharedLedger(log, SegmentOwner("query", "q"), OPTIONS, LIMITS)
        facts = await shared.append([rows(b"one")])
        await log.publish([facts], publisher=("q", 0), shared=(facts.ledger_id,))
        shared.note_published()
        if appends_again:
            await shared.append([rows(b"two")])
        await log.overwrite([])
        with pytest.raises(NoSuchLedger) as raised:
            await shared.close()
        assert ("the rows in it are not published" in str(raised.value)) == appends_again
        assert shared.ledger_id is None

    run_on_one(tmp_path, test)


def test_shared_ledger_that_a_vacuum_removed_is_not_called_that_of_a_deleted_log(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("x")
        await log.create()
        shared = SharedLedger(log, SegmentOwner("query", "q", 3), OPTIONS, LIMITS)
        await shared.append([rows(b"one")])
        assert await log.vacuum(older_than_s=0)
        with pytest.raises(NoSuchLedger, match="the log was deleted, or its attempt was given up by an abort, or by a"):
            await shared.close()

    run_on_one(tmp_path, test)


def test_error_for_a_ledger_that_is_gone_keeps_whether_another_has_its_id():
    error = NoSuchLedger("x", ledger_id=7)
    assert not reading.deleted_meanwhile(error, "x").is_replaced
    error.is_replaced = True
    named = reading.deleted_meanwhile(error, "x")
    assert named.is_replaced
    assert "and another ledger was created with its id" in str(named)


def test_shared_ledger_is_kept_while_it_is_neither_large_nor_old(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("x")
        await log.create()
        commit = EpochCommitter(log, "q", OPTIONS, RollLimits(1 << 30, 600.0))
        for epoch in range(5):
            assert await commit.append([Output(entries=(rows(b"x"),))], ("q", epoch))
        assert len(await ledgers(client)) == 1
        assert len(await pending(log)) == 1
        await commit.close()
        assert await pending(log) == set()

    run_on_one(tmp_path, test)


def test_epoch_of_empty_batches_makes_no_ledger(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("x")
        await log.create()
        assert await EpochCommitter(log, "q", OPTIONS, LIMITS).append([Output(entries=(rows(), rows()))], ("q", 0))
        assert await ledgers(client) == []
        assert await EpochCommitter(log, "q", OPTIONS, LIMITS).append([Output(), Output()], ("q", 1))
        assert await EpochCommitter(log, "q", OPTIONS, LIMITS).append([], ("q", 2))

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


def test_change_that_took_effect_is_not_a_failure_when_what_it_condemned_cannot_be_deleted_yet(tmp_path):
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


@in_world
async def test_each_name_has_its_own_last_version(world: World) -> None:
    """One that another name's made forgotten would be published twice."""
    for publisher in (("a", 1), ("b", 1), ("a", 2, "q1"), ("b", 5), ("a", 3, "q1"), ("a", 4, "q2")):
        assert (await world.store.append_ledgers("x", [], publisher=publisher)).is_new
    head = (await world.store.snapshot("x")).head
    assert head.last_epochs == (("a", 1), ("b", 5), ("a", 3, "q1"), ("a", 4, "q2"))
    for publisher in (("b", 5), ("b", 1), ("a", 1), ("a", 3, "q1"), ("a", 4, "q2")):
        assert not (await world.store.append_ledgers("x", [], publisher=publisher)).is_new
    with pytest.raises(VersionPublished, match="by query q2"):
        await world.store.append_ledgers("x", [], publisher=("a", 4, "q1"))


@in_world
async def test_sweep_continues_after_a_list_that_another_sweep_has_finished(world: World) -> None:
    await world.stage(1, 2, 3)
    for ledger_id in (1, 2, 3):
        await world.store.attempts.condemn("x", lambda pending, _, wanted=ledger_id: pending.ledger_id == wanted)
    lists = (await world.store.snapshot("x")).head.condemned
    assert len(lists) == 3
    await world.server.session().delete(f"/bkspark/logs/x/condemned/{lists[0]}")
    assert await world.store.attempts.sweep("x", world.delete) == 2
    assert world.deleted == [2, 3]
    assert (await world.store.snapshot("x")).head.condemned == ()
    assert await world.nodes("condemned") == []


def test_writer_deletes_what_its_logs_retention_does_not_keep(tmp_path, monkeypatch):
    monkeypatch.setattr(expiry, "INTERVAL_S", 0.0)

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("x")
        await log.create()
        await log.set_retention(bytes=1)
        await publish(log, numbers(0, 5), numbers(5, 10))
        before = set(await ledgers(client))
        async with await log.open_for_writing(**ONE) as writer:
            for _ in range(3):
                await writer.append(b"x")
                await writer.roll()
        assert before.isdisjoint(await ledgers(client))
        assert set(await read_all(log)) == {b"x"}

    run_on_one(tmp_path, test)


def test_registration_of_a_reader_ends_as_many_seconds_later_as_it_asked_for(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        cluster.store.now_ms = 5_000
        log = cluster.client().log("x")
        await log.create()
        await log.register_consumer("reader", expiry_s=2.5)
        (state,) = await log.consumers()
        assert state.expires == datetime.fromtimestamp(7.5, UTC)

    run_on_one(tmp_path, test)


def test_place_before_the_logs_start_is_its_start_and_small_batches_are_small(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("x")
        await log.create()
        await publish(log, numbers(0, 5), numbers(5, 10))
        sizes = [len(batch) async for batch in log.read(batch_bytes=1)]
        assert sum(sizes) == 10
        assert max(sizes) < 5
        second = (await (await log.snapshot()).ledgers())[1]
        await log.truncate(Position(1, second.ledger_id, 0))
        snapshot = await log.snapshot()
        assert snapshot.first_ordinal == 1
        assert await reading.at_place(log._open_listed, snapshot, (0, 3)) == snapshot.start

    run_on_one(tmp_path, test)


def test_epoch_of_ledgers_alone_is_published(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("x")
        await log.create()
        writer = await log.create_attempt(SegmentOwner("query", "q", 0, 0, 0), OPTIONS)
        await writer.append_many(numbers(0, 3))
        closed = await writer.close()
        output = Output((SegmentFacts(writer.ledger_id, closed.last_entry, closed.length),))
        assert await EpochCommitter(log, "q", OPTIONS, LIMITS).append([output], ("q", 0))
        assert await read_all(log) == numbers(0, 3)

    run_on_one(tmp_path, test)


def test_quorums_of_a_logs_ledgers_are_those_of_a_ledger():
    with pytest.raises(ConfigurationError, match="E >= Qw >= Qa >= 1"):
        LedgerOptions(2, 3, 2)
