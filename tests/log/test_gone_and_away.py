"""What logs do when a ledger, a node or the metadata store is gone in the middle of a call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import pytest

from bkspark.errors import ConfigurationError, LedgerFenced, MetadataAccessDenied, MetadataError, NoSuchLog, NoSuchNode
from bkspark.log import SegmentOwner
from bkspark.log.consumers import consumer_path
from bkspark.log.delta import delta_path
from bkspark.log.election import Election
from bkspark.log.formats import log_path
from bkspark.log.heads import Change
from bkspark.log.positions import BEGINNING, Position
from bkspark.log.routing import Part, RoutedCommits
from bkspark.log.store import LogStore
from bkspark.log.times import OpenTimes, open_path
from bkspark.log.watching import LogWatch
from bkspark.log.writer import LedgerOptions
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.tree import Operation, Stat
from tests.ledger.in_process import InProcessCluster, run
from tests.log.logs import ONE
from tests.log.world import JOB, WatchingTree, World, closed, in_world

ELECTION = "/bkspark/elections/x"
run_on_one = partial(run, bookies=1)


class Meddling(MemoryTree):
    """A session in whose calls something happens first: `before` maps a call's name to it, once each."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, 1 << 41, 10.0)
        self.before: dict[tuple[str, str], Callable[[], Awaitable[object]]] = {}
        self.transactions = 0
        self.reads: list[str] = []

    async def _meet(self, call: str, path: str) -> None:
        then = self.before.pop((call, path), None)
        if then is not None:
            await then()

    async def get(self, path: str) -> tuple[bytes, Stat]:
        self.reads.append(path)
        await self._meet("get", path)
        return await super().get(path)

    async def children(self, path: str) -> list[str]:
        await self._meet("children", path)
        return await super().children(path)

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        await self._meet("set", path)
        return await super().set(path, data, version)

    async def transaction(self, operations: Sequence[Operation]) -> None:
        self.transactions += 1
        await self._meet("transaction", "")
        await super().transaction(operations)


async def lost_connection() -> None:
    raise MetadataError("the connection to the metadata store was lost")


# ---- writers ----


def test_writer_whose_ledger_another_client_closed_elsewhere_is_overtaken(tmp_path):
    """§5.6: a ledger that is closed with another end is not this writer's any more, whichever call finds out."""

    async def test(cluster: InProcessCluster) -> None:
        for call in ("roll", "close"):
            client = cluster.client()
            writer = await client.log(call).open_for_writing(**ONE)
            await writer.append(b"x")
            ledgers = (await client.context()).ledgers
            stored = await ledgers.read(writer.ledger_id)
            await ledgers.write(writer.ledger_id, stored.metadata.closed(7, 70), stored.version)
            with pytest.raises(LedgerFenced, match="another client opened the log"):
                await getattr(writer, call)()
            if call == "roll":
                with pytest.raises(LedgerFenced, match="another client opened the log"):
                    await writer.append(b"y")
            writer.abandon()

    run_on_one(tmp_path, test)


def test_writer_that_has_ended_watches_its_log_no_more(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("x")
        await log.create()
        await client.context()
        for is_closed in (True, False):
            writer = await log.open_for_writing(**ONE)
            watched = [path for path in cluster.store.watched if path.startswith("/bkspark")]
            assert watched == [log_path("x")]
            await writer.close() if is_closed else writer.abandon()
            assert [path for path in cluster.store.watched if path.startswith("/bkspark")] == []

    run_on_one(tmp_path, test)


def test_ledger_that_is_gone_is_retired_without_an_error(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("x")
        await log.create()
        writers = [await log.create_attempt(SegmentOwner("job", "j"), LedgerOptions(1, 1, 1)) for _ in range(2)]
        ids = [writer.ledger_id for writer in writers]
        await client.delete(ids[0])
        await log.retire(ids)
        assert await (await log.store()).attempts.pending_ids("x") == set()
        assert [ledger_id async for ledger_id in client.ledgers()] == []

    run_on_one(tmp_path, test)


@in_world
async def test_notes_of_times_are_dropped_with_the_ledger_that_they_are_of(world: World) -> None:
    """The ledger was cut off, or closed by another process, since."""
    times = OpenTimes()
    times.note(0, 3, 1_000)
    await world.store.note_times("x", 5, times)
    assert await world.store.heads.open_times("x", 5, 0) is None


@in_world
async def test_notes_of_times_that_no_ledger_has_any_more_go_with_a_vacuum(world: World) -> None:
    await world.server.session().create(open_path(log_path("x"), 5), b"", make_parents=True)
    await world.vacuum()
    assert await world.nodes("times") == []


# ---- heads ----


@in_world
async def test_log_that_is_deleted_between_its_head_and_its_delta_does_not_exist(world: World) -> None:
    for ledger_id in (1, 2):
        await world.stage(ledger_id)
        await RoutedCommits(world.store).publish([Part("x", tuple(closed(ledger_id)))], "j1")
    tree = Meddling(world.server)

    async def delete() -> None:
        assert await world.store.delete("x", world.delete, closed=[])

    tree.before["get", delta_path("x")] = delete
    with pytest.raises(NoSuchLog):
        await LogStore(tree, "/ledgers").snapshot("x")


@pytest.mark.parametrize("folder", ["pages", "pending", "condemned"])
def test_folder_that_was_removed_by_hand_while_its_log_is_deleted_is_named(folder: str) -> None:
    """A writer is not the cause, so stopping writers would not help."""

    @in_world
    async def test(world: World) -> None:
        tree = Meddling(world.server)

        async def remove() -> None:
            for child in await world.nodes(folder):
                await world.server.session().delete(f"{log_path('x')}/{folder}/{child}")
            await world.server.session().delete(f"{log_path('x')}/{folder}")

        async def hide() -> None:
            tree.before["transaction", ""] = remove

        tree.before["children", f"{log_path('x')}/consumers"] = hide
        with pytest.raises(MetadataError, match=f"node {log_path('x')}/{folder} does not exist"):
            await LogStore(tree, "/ledgers").delete("x", world.delete, closed=[])
        with pytest.raises(MetadataError, match=f"node {log_path('x')}/{folder} does not exist"):
            await LogStore(tree, "/ledgers").delete("x", world.delete, closed=[])

    test()


@in_world
async def test_reader_of_a_log_whose_node_may_not_be_read_is_listed_with_the_error(world: World) -> None:
    tree = Meddling(world.server)
    for name in ("a", "b"):
        await tree.create(consumer_path("x", name), b"", make_parents=True)

    async def deny() -> None:
        raise MetadataAccessDenied("this client may not read here")

    tree.before["get", consumer_path("x", "b")] = deny
    (_, (name, error)) = await LogStore(tree, "/ledgers").consumers.listed("x")
    assert name == "b"
    assert isinstance(error, MetadataAccessDenied)


@in_world
async def test_change_that_is_denied_is_not_tried_again(world: World) -> None:
    tries = []

    async def decide(head: object) -> Change[None]:
        tries.append(head)
        raise MetadataAccessDenied("this client may not write here")

    with pytest.raises(MetadataAccessDenied, match="may not write here"):
        await world.store.heads.change("x", decide)
    assert len(tries) == 1


def test_commit_prepares_only_the_log_again_that_another_process_changed():
    """The other logs are not read once more."""

    async def test() -> None:
        server = MemoryStore()
        tree, other, names = Meddling(server), LogStore(server.session(), "/ledgers"), ("a", "b", "c")
        store = LogStore(tree, "/ledgers")

        async def parts(first_id: int) -> list[Part]:
            for number, name in enumerate(names):
                await store.attempts.add(name, first_id + number, JOB)
            return [Part(name, tuple(closed(first_id + number))) for number, name in enumerate(names)]

        for name in names:
            await store.create(name)
        assert await RoutedCommits(store).publish(await parts(0), "j1")
        later = await parts(10)
        await other.attempts.add("b", 9, JOB)
        tree.before["transaction", ""] = partial(other.append_ledgers, "b", closed(9))
        tree.reads.clear()
        tree.transactions = 0
        assert await RoutedCommits(store).publish(later, "j2")
        assert tree.transactions == 2
        assert [tree.reads.count(log_path(name)) for name in names] == [1, 2, 1]

    asyncio.run(test())


# ---- elections and watches ----


def test_contender_that_resigns_leaves_the_queue_though_the_store_is_away_at_first():
    async def test() -> None:
        store = MemoryStore()
        tree = Meddling(store)
        contender = Election(tree, ELECTION, "it", retry_pause_s=0.0)
        await contender.win()
        tree.before["children", ELECTION] = lost_connection
        await contender.resign()
        assert await store.session().children(ELECTION) == []

    asyncio.run(test())


@in_world
async def test_watch_that_has_ended_leaves_nothing_though_a_delta_came_meanwhile(world: World) -> None:
    calls = []
    before = len(world.server.watched)
    watch = LogWatch(world.server.session(), "x", lambda: calls.append(1))
    await watch.begin(is_routed=True)
    assert len(world.server.watched) == before + 2
    watch.end()
    assert len(world.server.watched) == before
    late = LogWatch(world.server.session(), "x", lambda: calls.append(1))
    late.end()
    await late._follow_delta()
    assert len(world.server.watched) == before
    assert len(calls) == 1


@in_world
async def test_watch_that_could_not_be_set_is_not_tried_again_after_its_end(world: World) -> None:
    tree = WatchingTree(world.server, delta_path("x"))
    tree.failures = 2
    watch = LogWatch(tree, "x", lambda: None)
    await watch.begin(is_routed=True)
    watch.end()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@in_world
async def test_watch_that_ends_while_it_is_set_leaves_nothing_running(world: World) -> None:
    tree = WatchingTree(world.server, delta_path("x"))
    watch = LogWatch(tree, "x", lambda: None)

    async def end() -> None:
        watch.end()

    tree.before = end
    await watch.begin(is_routed=True)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert delta_path("x") not in world.server.watched


# ---- registered readers ----


@in_world
async def test_reader_that_was_removed_does_not_take_its_name_back_from_the_next_one(world: World) -> None:
    """The node of the next one has the version that its own had. The reader that registered last has the name."""
    consumers = world.store.consumers
    stale = await consumers.register("x", "etl", BEGINNING, 60_000)
    assert await consumers.remove("x", "etl")
    with pytest.raises(NoSuchNode, match="consumers/etl does not exist"):
        await consumers.advance("x", stale, BEGINNING)
    other = await consumers.register("x", "etl", BEGINNING, 60_000)
    assert (stale.version, other.version) == (0, 0)
    with pytest.raises(ConfigurationError, match="another reader has registered under this name"):
        await consumers.advance("x", stale, BEGINNING)
    assert await consumers.all("x") == [other]
    assert (await consumers.advance("x", other, BEGINNING)).version == 1


@pytest.mark.parametrize("changes", [2, 3])
def test_registration_that_changes_in_the_middle_of_a_move_is_moved_nevertheless_three_times_at_most(
    changes: int,
) -> None:
    """A caller that was cancelled may have left a call in progress."""

    async def test(world: World) -> None:
        tree = Meddling(world.server)
        mine, theirs, path = LogStore(tree, "/ledgers").consumers, world.store.consumers, consumer_path("x", "etl")
        consumer = await mine.register("x", "etl", BEGINNING, 60_000)
        left = changes

        async def move() -> None:
            nonlocal left
            await theirs.advance("x", consumer, Position(0, -1, 0))
            left -= 1
            if left:
                tree.before["set", path] = move

        tree.before["set", path] = move
        world.server.now_ms = 4711
        if changes == 3:
            with pytest.raises(MetadataError, match="was changed repeatedly meanwhile"):
                await mine.advance("x", consumer, BEGINNING)
        else:
            moved = await mine.advance("x", consumer, BEGINNING)
            assert [moved] == await theirs.all("x")
            assert (moved.version, moved.written_ms) == (3, 4711)

    in_world(test)()


@in_world
async def test_move_whose_answer_was_lost_is_not_taken_back_by_the_next_one(world: World) -> None:
    consumers = world.store.consumers
    before = await consumers.register("x", "etl", BEGINNING, 60_000)
    there = Position(3, 12, 5)
    await consumers.advance("x", before, there)
    assert (await consumers.advance("x", before, BEGINNING)).position == there
    assert [each.position for each in await consumers.all("x")] == [there]


@in_world
async def test_registration_that_another_reader_takes_before_it_is_confirmed_fails(world: World) -> None:
    tree = Meddling(world.server)
    mine, others, path = LogStore(tree, "/ledgers").consumers, world.store.consumers, consumer_path("x", "etl")

    async def take() -> None:
        await others.register("x", "etl", BEGINNING, 60_000)

    async def remove() -> None:
        await others.remove("x", "etl")

    for meanwhile in (take, remove):
        tree.before["get", path] = meanwhile
        with pytest.raises(ConfigurationError, match="another reader has registered under this name"):
            await mine.register("x", "etl", BEGINNING, 60_000)


# ---- the lists of many logs ----


@in_world
async def test_lists_that_routed_commits_change_each_time_they_are_read_are_refused(world: World) -> None:
    commits, committed = RoutedCommits(world.store), 0

    async def names() -> list[str]:
        nonlocal committed
        committed += 1
        await world.stage(committed)
        assert await commits.publish([Part("x", tuple(closed(committed)))], "j1", None)
        return ["x", "y"]

    with pytest.raises(MetadataError, match="routed commits came while 1 logs were read, 100 times"):
        await commits.snapshots(names)
    assert committed == 100
