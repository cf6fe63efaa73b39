"""What a log shows of itself, how old leftovers are found, and when a change gives up."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError, MetadataError, MetadataFormat, MetadataVersion, NoSuchLog, NoSuchNode
from bkspark.log import Position, SegmentOwner, reading
from bkspark.log.attempts import AttemptStore
from bkspark.log.formats import TAIL_LEDGERS_MAX, LogHead, SegmentFacts
from bkspark.log.heads import LOST_RACES_MAX, MISSING_MAX, Change, HeadStore
from bkspark.log.sharing import SharedLedger
from bkspark.log.store import LogStore
from bkspark.log.writer import LedgerOptions, RollLimits
from bkspark.metadata.memory import MemoryStore, MemoryTree
from tests.ledger.in_process import InProcessCluster, run
from tests.log.logs import ONE, numbers, publish, read_all
from tests.log.world import CountingTree, World, closed, in_world

run_on_one = partial(run, bookies=1)
OPTIONS = LedgerOptions(1, 1, 1)
HOUR_MS = 3_600_000


# ---- show ----


def test_log_shows_each_ledger_with_its_bounds_and_state(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("x")
        await log.create()
        first, second = await publish(log, numbers(0, 5), numbers(5, 8))
        writer = await log.open_for_writing(**ONE)
        await writer.append(b"open")
        await log.truncate(Position(0, first, 2))
        await client.delete(second)
        shown = await log.show()
        assert shown["log"] == "x"
        assert [(it["first_entry"], it["last_entry"], it["state"], it["length"]) for it in shown["ledgers"]] == [
            (2, 4, "CLOSED", 30),
            (0, 2, "CLOSED", 18),
            (0, -1, "OPEN", 0),
        ]
        await client.delete(shown["ledgers"][2]["ledger"])
        assert (await log.show())["ledgers"][2] == {
            "ledger": shown["ledgers"][2]["ledger"],
            "first_entry": 0,
            "last_entry": -1,
            "state": "MISSING",
            "length": 0,
        }
        writer.abandon()

    run_on_one(tmp_path, test)


def test_slice_of_a_shared_ledger_is_open_while_more_of_the_ledger_may_follow(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("x")
        await log.create()
        shared = SharedLedger(log, SegmentOwner("query", "q"), OPTIONS, RollLimits(1 << 30, None))
        await shared.append([EntryBatch.of([b"nobody's"])])
        facts = await shared.append([EntryBatch.of([b"a", b"bc"])])
        await log.publish([facts], shared=(facts.ledger_id,))
        shared.note_published()
        (shown,) = (await log.show())["ledgers"]
        expected = {"ledger": facts.ledger_id, "first_entry": 1, "last_entry": 2, "length": 3}
        assert shown == {**expected, "state": "OPEN"}
        await shared.close()
        (shown,) = (await log.show())["ledgers"]
        assert shown == {**expected, "state": "CLOSED"}
        assert await read_all(log) == [b"a", b"bc"]

    run_on_one(tmp_path, test)


# ---- leftovers ----


def test_shared_ledgers_are_retired_by_their_age_in_seconds(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("x")
        await log.create()
        ids = []
        for hours in (0, 1, 2):
            cluster.store.now_ms = 1_000_000 + hours * HOUR_MS
            writer = await log.create_attempt(SegmentOwner("query", f"q{hours}"), OPTIONS)
            writer.abandon()
            ids.append(writer.ledger_id)
        assert await log.retire_older(ids[2], 2 * 3600.0 + 1) == 0
        assert await log.retire_older(ids[0], 0.0) == 0
        assert await log.retire_older(ids[2], 2 * 3600.0 - 1) == 1
        left = await (await log.store()).attempts.pending_ids("x")
        assert left == set(ids[1:])
        assert await log.retire_older(ids[2], 0.0) == 1

    run_on_one(tmp_path, test)


def test_shared_ledger_that_is_dropped_is_deleted_and_the_next_append_takes_another(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("x")
        await log.create()
        shared = SharedLedger(log, SegmentOwner("query", "q"), OPTIONS, RollLimits(1 << 30, None))
        assert shared.ledger_id is None
        await shared.drop()
        first = await shared.append([EntryBatch.of([b"a"])])
        assert shared.ledger_id == first.ledger_id
        await shared.drop()
        assert shared.ledger_id is None
        assert [ledger async for ledger in client.ledgers()] == []
        second = await shared.append([EntryBatch.of([b"a"])])
        assert second.ledger_id != first.ledger_id
        await shared.close()
        # Nothing of it was published, so it stays registered until a vacuum finds it.
        assert await (await log.store()).attempts.pending_ids("x") == {second.ledger_id}

    run_on_one(tmp_path, test)


def test_shared_ledger_rolls_at_its_size_and_ends_its_registration_when_all_is_published(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("x")
        await log.create()
        shared = SharedLedger(log, SegmentOwner("query", "q"), OPTIONS, RollLimits(6, None))
        await shared.roll_if_due()
        first = await shared.append([EntryBatch.of([b"12345"])])
        await shared.roll_if_due()
        assert shared.ledger_id == first.ledger_id
        second = await shared.append([EntryBatch.of([b"6"])])
        assert (second.ledger_id, second.first_entry, second.last_entry, second.length) == (first.ledger_id, 1, 1, 1)
        await log.publish([first, second], shared=(first.ledger_id,))
        shared.note_published()
        await shared.roll_if_due()
        assert shared.ledger_id is None
        assert await (await log.store()).attempts.pending_ids("x") == set()

    run_on_one(tmp_path, test)


# ---- changes that give up ----


class BusyTree(MemoryTree):
    """A session in which another client is always faster."""

    def __init__(self, server: MemoryStore) -> None:
        super().__init__(server, 1_000, 10.0)
        self.tries = 0

    async def transaction(self, operations) -> None:
        self.tries += 1
        raise MetadataVersion("the node has another version")


@in_world
async def test_change_that_others_always_forestall_gives_up_after_many_tries(world: World) -> None:
    tree = BusyTree(world.server)

    async def decide(head: LogHead) -> Change[int]:
        return Change(head, 7)

    with pytest.raises(MetadataError, match=f"others changed it {LOST_RACES_MAX} times"):
        await HeadStore(tree, "/ledgers").change("x", decide)
    assert tree.tries == LOST_RACES_MAX


@in_world
async def test_change_that_needs_a_missing_node_fails_after_few_tries(world: World) -> None:
    """It read the head and the missing page a thousand times, and then said that others changed the log."""
    await world.publish(*range(TAIL_LEDGERS_MAX + 1))
    (page,) = await world.nodes("pages")
    more = range(1000, 1000 + TAIL_LEDGERS_MAX + 1)
    await world.stage(*more)
    tree = CountingTree(world.server)
    await tree.delete(f"/bkspark/logs/x/pages/{page}")
    message = f"log x: metadata node .*/pages/{page} does not exist, and no process has"
    with pytest.raises(MetadataFormat, match=message):
        await LogStore(tree, "/ledgers").append_ledgers("x", closed(*more))
    assert tree.reads.count(f"/bkspark/logs/x/pages/{page}") == MISSING_MAX


@in_world
async def test_change_goes_on_as_long_as_others_change_what_it_needs(world: World) -> None:
    tries = 0

    async def decide(head: LogHead) -> Change[int]:
        nonlocal tries
        tries += 1
        if tries <= 2 * MISSING_MAX:
            await world.publish(tries)
            raise NoSuchNode("metadata node /bkspark/logs/x/pages/0 does not exist")
        return Change(head, 7)

    assert await HeadStore(world.server.session(), "/ledgers").change("x", decide) == 7


@in_world
async def test_decision_that_leaves_the_head_writes_nothing(world: World) -> None:
    tree = BusyTree(world.server)

    async def decide(head: LogHead) -> Change[int]:
        return Change(None, 7)

    assert await HeadStore(tree, "/ledgers").change("x", decide) == 7
    assert tree.tries == 0


class ForgettingTree(MemoryTree):
    """A session in which the log is deleted just before the first transaction."""

    is_deleted = False

    async def transaction(self, operations):
        self.is_deleted = True
        raise NoSuchNode("a metadata node does not exist")

    async def get(self, path):
        if self.is_deleted:
            raise NoSuchNode(f"metadata node {path} does not exist")
        return await super().get(path)


@in_world
async def test_attempt_at_a_log_that_is_deleted_meanwhile_is_refused(world: World) -> None:
    store = HeadStore(ForgettingTree(world.server, 1_000, 10.0), "/ledgers")
    with pytest.raises(NoSuchLog, match="x"):
        await AttemptStore(store).add("x", 7, SegmentOwner("job", "j"))


# ---- truncating at the end of the last ledger ----


@in_world
async def test_last_slice_stays_when_the_log_is_truncated_at_its_end_while_its_ledger_is_pending(world: World) -> None:
    """The slice may grow: the next one joins it."""
    await world.stage(5, 6)
    await world.store.append_ledgers("x", [SegmentFacts(5, 9, 100), SegmentFacts(6, 9, 100)], shared=[6])
    at_end = Position(1, 6, 10)
    assert await world.store.truncate("x", at_end, at_ledger_end=True, closed=[]) == 1
    assert await world.ids() == [6]
    await world.store.attempts.forget_published("x", [6])
    assert await world.store.truncate("x", at_end, at_ledger_end=True, closed=[]) == 0
    await world.stage(7)
    await world.store.append_ledgers("x", [SegmentFacts(7, 3, 40)])
    assert await world.store.truncate("x", Position(2, 7, 1), at_ledger_end=False, closed=[]) == 1
    assert await world.ids() == [7]


def test_position_before_the_start_truncates_nothing() -> None:
    async def test() -> None:
        world = World()
        await world.store.create("x")
        await world.publish(1, 2, 3)
        assert await world.store.truncate("x", Position(1, 2, 4), at_ledger_end=False, closed=[]) == 1
        for position in (Position(1, 2, 4), Position(1, 2, 3), Position(0, 1, 10), Position(0, 1, 2)):
            assert await world.store.truncate("x", position, at_ledger_end=False, closed=[]) == 0
        assert await world.ids() == [2, 3]
        assert (await world.store.snapshot("x")).start == Position(1, 2, 4)

    asyncio.run(test())


@in_world
async def test_ledger_that_was_published_while_it_is_condemned_stays(world: World) -> None:
    """Only those of the chosen ledgers are removed that are still pending, and in no list, when the head is changed."""
    await world.stage(5, 6, 7)
    chosen = await world.store.attempts.pending("x")
    await world.store.append_ledgers("x", [SegmentFacts(5, 9, 100)])
    await world.store.attempts.forget_published("x", [6])

    def select(pending, head) -> bool:
        return True

    class Before(type(world.store.attempts)):
        async def _choose(self, name, select):
            head, _ = await super()._choose(name, select)
            return head, chosen

    assert await Before(world.store.heads).discard("x", select, world.delete) == 1
    assert world.deleted == [7]
    assert await world.ids() == [5]


# ---- what is read between two positions ----


def test_ranges_leave_out_ledgers_without_entries_between_the_positions(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("x")
        await log.create()
        first, _, third = await publish(log, numbers(0, 4), [], numbers(4, 6))
        snapshot = await log.snapshot()

        async def between(start: Position, end: Position) -> list[tuple[int, int, int]]:
            found = [it async for it, _ in reading.ranges(client, snapshot, start, end, is_latest=False)]
            return [(it.ledger_id, it.first_entry, it.end_entry) for it in found]

        end = Position(2, third, 2)
        assert await between(snapshot.start, end) == [(first, 0, 4), (third, 0, 2)]
        assert await between(Position(0, first, 1), Position(0, first, 3)) == [(first, 1, 3)]
        assert await between(Position(0, first, 4), Position(2, third, 1)) == [(third, 0, 1)]
        assert await between(Position(0, first, 3), Position(0, first, 3)) == []
        assert await between(end, end) == []
        with pytest.raises(ConfigurationError, match="lies beyond that"):
            await between(snapshot.start, Position(2, third, 3))

    run_on_one(tmp_path, test)


def test_nothing_is_read_past_a_ledger_that_may_still_grow(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("x")
        writer = await log.open_for_writing(**ONE)
        await writer.append(b"0")
        (job,) = await publish(log, numbers(1, 3))
        listed = await (await log.snapshot()).ledgers()
        assert [it.ledger_id for it in listed][-1] == job
        with pytest.raises(ConfigurationError, match="lies beyond that"):
            await read_all(log, "earliest", Position(1, job, 1))
        writer.abandon()

    run_on_one(tmp_path, test)
