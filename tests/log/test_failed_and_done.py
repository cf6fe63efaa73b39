"""What a log's calls leave when they are done, when a part of them fails, and when others are faster."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

import pytest

from bkspark.client import Client
from bkspark.errors import (
    ConfigurationError,
    LedgerFenced,
    LogExists,
    MetadataAccessDenied,
    MetadataError,
    MetadataFormat,
    MetadataVersion,
    NoSuchLog,
)
from bkspark.ids import ENTRY_ID_MAX
from bkspark.log import SegmentOwner, attempts, formats, times, writer
from bkspark.log import store as log_store
from bkspark.log.consumers import consumer_path
from bkspark.log.formats import PAGES, Publisher, SegmentFacts, decode_head, encode_head, log_path
from bkspark.log.listing import own_logs
from bkspark.log.positions import Position
from bkspark.log.routing import Part, RoutedCommits
from bkspark.log.schemas import SchemaChange, StoredSchema
from bkspark.log.store import LogStore
from bkspark.log.times import Mark, OpenMarks, TimeIndex, TimePageRef
from bkspark.log.writer import LedgerOptions
from bkspark.metadata.tree import ANY_VERSION, Callback, Check
from tests.ledger.in_process import URI, InProcessCluster, run
from tests.log.logs import ONE
from tests.log.routed_logs import Q0, Logs, in_logs
from tests.log.world import CountingTree, PrecededTransaction, WatchingTree, World, closed, in_world, slice_of
from tests.metadata.meanwhile import Meanwhile

run_on_one = partial(run, bookies=1)


@in_logs("a", "b")
async def test_routed_commit_ends_the_registrations_of_its_whole_ledgers_and_of_no_shared_one(logs: Logs) -> None:
    whole, part = await logs.part("a", 1, 2), await logs.part("b", 3, 4)
    assert await logs.commits.publish([whole, Part("b", part.ledgers, shared=(4,))], "j1", Q0)
    assert await logs.store.attempts.pending_ids("a") == set()
    assert await logs.store.attempts.pending_ids("b") == {4}


@in_world
async def test_log_of_another_cluster_and_one_that_is_being_deleted_are_not_found(world: World) -> None:
    await world.publish(1)
    assert await world.store.find("x") is not None
    assert await world.another_store("/other").find("x") is None

    async def failing(ledger_id: int) -> None:
        raise MetadataError("away")

    with contextlib.suppress(MetadataError):
        await world.store.delete("x", failing, closed=())
    assert await world.store.find("x") is None


@in_world
async def test_schema_is_read_once(world: World) -> None:
    stored = StoredSchema("arrow", '{"fields":["read once"],"type":"struct"}')
    await world.stage(1)
    await world.store.append_ledgers("x", closed(1), schema=SchemaChange(stored, None))
    tree = CountingTree(world.server)
    heads = LogStore(tree, "/ledgers").heads
    assert [await heads.schema("x", stored.name) for _ in range(3)] == [stored] * 3
    assert len(tree.reads) == 1


@in_world
async def test_page_of_times_is_read_once(world: World) -> None:
    marks = (Mark(0, 0, 1_000), Mark(1, 0, 2_000))
    ref = TimePageRef(*marks[0], len(marks), "0" * 16)
    await world.server.session().create(f"{log_path('x')}/{PAGES}/{ref.name}", times.encode_page(marks))
    tree = CountingTree(world.server)
    heads = LogStore(tree, "/ledgers").heads
    assert [await heads.time_page("x", ref) for _ in range(3)] == [marks] * 3
    assert len(tree.reads) == 1


@in_world
async def test_schema_that_others_write_at_the_same_time_is_published(world: World) -> None:
    """They make the folder, too."""
    stored = StoredSchema("arrow", '{"fields":["at once"],"type":"struct"}')

    async def write() -> None:
        await world.store.heads.write_schema("x", stored)

    tree = Meanwhile(world.server, create=write)
    await world.stage(1)
    change = SchemaChange(stored, None)
    await LogStore(tree, "/ledgers").append_ledgers("x", closed(1), schema=change)
    assert [ref.name for ref in (await world.store.snapshot("x")).head.schemas] == [stored.name]


@in_world
async def test_registrations_of_more_ledgers_than_one_transaction_takes_end_after_the_change(world: World) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_store, "ENDED_MAX", 1)
        await world.publish(1, 2, 3)
        assert await world.pending() == []
        await world.stage(4, 5, 6)
        await world.store.replace_ledgers("x", closed(4, 5, 6), closed=())
        assert (await world.ids(), await world.pending()) == ([4, 5, 6], [])


def test_log_that_others_create_while_the_connection_is_lost_is_not_taken_for_ones_own() -> None:
    async def test() -> None:
        world = World()

        async def create_and_lose() -> None:
            await world.store.create("x")
            raise MetadataError("the connection to the metadata store was lost")

        with pytest.raises(LogExists):
            await LogStore(PrecededTransaction(world.server, create_and_lose), "/ledgers").create("x")

    asyncio.run(test())


@in_world
async def test_log_that_is_created_again_before_its_delta_is_read_is_read_as_the_new_one(world: World) -> None:
    await world.stage(1)
    assert await RoutedCommits(world.store).publish([Part("x", tuple(closed(1)))], "j1", Q0)
    tree = Meanwhile(world.server)

    async def create_again() -> None:
        assert await world.store.delete("x", world.delete, closed=())
        await world.store.create("x")

    async def before_the_delta() -> None:
        tree.before["get"] = create_again

    tree.before["get"] = before_the_delta
    assert len(await LogStore(tree, "/ledgers").snapshot("x")) == 0


@in_world
async def test_registered_reader_that_expires_at_once_is_damage(world: World) -> None:
    reader = await world.store.consumers.register("x", "etl", Position.beginning(0), 1)
    assert await world.store.consumers.all("x") == [reader]
    path = consumer_path("x", "etl")
    data = (await world.server.session().get(path))[0]
    await world.server.session().set(path, data.replace(b'"expiry_ms":1,', b'"expiry_ms":0,'), ANY_VERSION)
    with pytest.raises(MetadataFormat, match="its expiry is 0 ms, not 1 to"):
        await world.store.consumers.all("x")


@in_world
async def test_ledger_that_was_deleted_before_its_first_entry_was_noted_brings_no_time(world: World) -> None:
    world.store.clock_ms = lambda: 1_000
    await world.publish(1)
    await world.stage(2, 3)
    assert await world.store.open_writer("x", 2, "a" * 16, ()) == 1
    world.store.clock_ms = lambda: 9_000
    assert await world.store.open_writer("x", 3, "b" * 16, [(1, SegmentFacts(2))]) == 2
    assert [mark.ordinal for mark in (await world.store.snapshot("x")).head.times.marks] == [0, 2]


@in_world
async def test_largest_version_of_a_publisher_is_published_and_none_above_it(world: World) -> None:
    await world.publish(1, publisher=Publisher("q", ENTRY_ID_MAX))
    with pytest.raises(ConfigurationError, match="whole number"):
        await world.publish(2, publisher=Publisher("q", ENTRY_ID_MAX + 1))


@in_world
async def test_head_that_begins_before_ordinal_0_or_before_an_entry_0_is_damaged(world: World) -> None:
    data = (await world.server.session().get(log_path("x")))[0]
    assert b'"start":[0,-1,0]' in data
    for start in (b"[-1,-1,0]", b"[0,-1,-1]", b"[0,-1]", b"[0,-1,0,0]"):
        with pytest.raises(MetadataFormat, match="start"):
            decode_head(data.replace(b'"start":[0,-1,0]', b'"start":' + start), "/p")


@in_world
async def test_node_of_exactly_the_largest_size_is_written(world: World) -> None:
    head = (await world.store.snapshot("x")).head
    size = len(encode_head(head))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "NODE_BYTES_MAX", size)
        assert len(encode_head(head)) == size
        patch.setattr(formats, "NODE_BYTES_MAX", size - 1)
        with pytest.raises(MetadataError, match=f"would have {size} bytes, the limit is {size - 1}"):
            encode_head(head)


def test_pages_of_times_are_read_again_only_for_a_ledger_that_begins_before_the_marks_of_the_head() -> None:
    page = TimePageRef(*Mark(0, 0, 1_000), 2, "0" * 16)
    index = TimeIndex((page,), (Mark(3, 5, 3_000), Mark(4, 0, 4_000)))
    for place, pages in (((3, 4), (page,)), ((3, 5), ()), ((3, 6), ())):
        assert times.to_unpack(index, OpenMarks((Mark(*place, 3_500),), 9), 3, 9) == pages


# ---- attempts and what is condemned ----


@in_world
async def test_ledger_whose_metadata_were_changed_is_not_registered_and_one_of_a_log_that_was_is(world: World) -> None:
    """A vacuum changes the metadata of an attempt that it regards as dead. A change of the log alone matters not."""
    tree = world.server.session()
    await tree.create("/ledger", b"")

    async def change_log() -> None:
        await world.publish(2)

    store = LogStore(PrecededTransaction(world.server, change_log), "/ledgers")
    await store.attempts.add("x", 1, SegmentOwner("job", "j"), unchanged=Check("/ledger", 0))
    await tree.set("/ledger", b"", 0)
    with pytest.raises(MetadataVersion, match="ledger 3 was closed or deleted before it was registered"):
        await store.attempts.add("x", 3, SegmentOwner("job", "j"), unchanged=Check("/ledger", 0))
    assert await world.pending() == [1]


@in_world
async def test_attempt_that_may_not_be_registered_fails_at_once(world: World) -> None:
    async def deny() -> None:
        error = MetadataAccessDenied("access denied")
        error.node = log_path("x")
        raise error

    store = LogStore(PrecededTransaction(world.server, deny), "/ledgers")
    with pytest.raises(MetadataAccessDenied):
        await store.attempts.add("x", 1, SegmentOwner("job", "j"))
    assert await world.pending() == []


@in_world
async def test_sweep_leaves_the_ledgers_that_were_condemned_meanwhile_for_the_next_one(world: World) -> None:
    await world.publish(1, 2, 3)
    await world.store.truncate("x", Position(1, 2, 0), at_ledger_end=False, closed=())

    async def delete(ledger_id: int) -> None:
        await world.delete(ledger_id)
        if ledger_id == 1:
            await world.store.truncate("x", Position(2, 3, 0), at_ledger_end=False, closed=())

    assert await world.store.attempts.sweep("x", delete) == 1
    assert len((await world.store.snapshot("x")).head.condemned) == 1
    assert await world.store.attempts.sweep("x", delete) == 1
    assert (await world.store.snapshot("x")).head.condemned == ()
    assert world.deleted == [1, 2]


@in_world
async def test_as_many_lists_of_condemned_ledgers_wait_as_are_allowed(world: World) -> None:
    await world.publish(*range(10))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempts, "CONDEMNED_LISTS_MAX", 2)
        for end in (1, 2):
            await world.store.truncate("x", Position(end, end, 0), at_ledger_end=False, closed=())
        with pytest.raises(MetadataError, match="has 2 lists of ledgers that wait to be deleted"):
            await world.store.truncate("x", Position(3, 3, 0), at_ledger_end=False, closed=())
        await world.vacuum()
        await world.store.truncate("x", Position(3, 3, 0), at_ledger_end=False, closed=())


@in_world
async def test_more_shared_ledgers_than_one_transaction_takes_are_not_dropped_at_once(world: World) -> None:
    for ledger_id in (1, 2):
        await world.stage(ledger_id)
        await world.store.append_ledgers("x", [slice_of(ledger_id, 0, 4)], shared=[ledger_id])
    await world.publish(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_store, "SHARED_DROPPED_MAX", 1)
        with pytest.raises(MetadataError, match="log x has 2 shared ledgers to drop at once: vacuum the log first"):
            await world.store.truncate("x", Position(2, 3, 0), at_ledger_end=False, closed=())
        assert await world.ids() == [1, 2, 3]
        assert await world.store.truncate("x", Position(1, 2, 0), at_ledger_end=False, closed=()) == 1


@in_world
async def test_head_says_that_it_has_slices_once_it_has_one(world: World) -> None:
    """Earlier versions cannot read such a head."""
    await world.publish(1)
    assert not (await world.store.snapshot("x")).head.has_slices
    await world.stage(2)
    await world.store.append_ledgers("x", [slice_of(2, 0, 4)], shared=[2])
    assert (await world.store.snapshot("x")).head.has_slices


@in_world
async def test_replacement_says_what_it_published(world: World) -> None:
    await world.publish(1)
    await world.stage(2)
    outcome = await world.store.replace_ledgers("x", closed(2), closed=(), publisher=Publisher("q", 3))
    assert outcome is not None
    assert (outcome.is_new, outcome.first_ordinal, outcome.last_epoch) == (True, 1, 3)


# ---- with bookies ----


async def damage(cluster: InProcessCluster, ledger_id: int) -> None:
    """Overwrite a ledger's metadata."""
    node = await (await cluster.client().context()).ledgers.as_created(ledger_id)
    await cluster.store.session().set(node.path, b"damaged", ANY_VERSION)


def test_writer_whose_log_was_deleted_does_not_create_it_again(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("x")
        async with await log.open_for_writing(**ONE) as ours:
            await ours.append(b"1")
        other = await log.open_for_writing(**ONE)
        cluster.store.lose_watches()
        await cluster.client().log("x").delete()
        with pytest.raises(NoSuchLog):
            await other.roll()
        other.abandon()
        assert await cluster.client().logs() == []

    run_on_one(tmp_path, test)


def test_append_returns_its_place_in_the_log_and_the_id_of_its_ledger(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client().log("x")
        async with await cluster.client().create(**ONE):
            pass  # a ledger that is not the log's
        async with await log.open_for_writing(**ONE) as ours:
            position = await ours.append(b"1")
            assert position == Position(0, ours.ledger_id, 0)
            assert position.ledger_id != position.ordinal

    run_on_one(tmp_path, test)


def test_log_that_is_always_opened_by_others_first_leaves_no_ledger(tmp_path, monkeypatch):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("x")
        monkeypatch.setattr(writer, "OPEN_TRIES_MAX", 0)
        with pytest.raises(LedgerFenced, match="log x is opened for writing by others repeatedly"):
            await log.open_for_writing(**ONE)
        assert await (await log.store()).attempts.pending_ids("x") == set()
        assert [ledger_id async for ledger_id in client.ledgers()] == []

    run_on_one(tmp_path, test)


def test_log_that_cannot_be_opened_because_its_last_ledger_is_damaged_keeps_no_other(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("x")
        dead = await log.open_for_writing(**ONE)
        ledger_id = dead.ledger_id
        dead.abandon()
        await damage(cluster, ledger_id)
        with pytest.raises(MetadataFormat):
            await log.open_for_writing(**ONE)
        assert await (await log.store()).attempts.pending_ids("x") == set()
        assert [ledger.ledger_id for ledger in await (await log.snapshot()).ledgers()] == [ledger_id]

    run_on_one(tmp_path, test)


class _AwayAfterWatch(WatchingTree):
    """A session that fails a watch, and every later read of the node."""

    async def watch(self, path: str, callback: Callback) -> Callback:
        try:
            return await super().watch(path, callback)
        except MetadataError as error:
            self.after_read = partial(_fail, MetadataError("the metadata store is away"))
            raise error


async def _fail(error: MetadataError) -> None:
    raise error


def test_error_that_ended_the_opening_of_a_log_is_raised_and_not_the_next_one(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        tree = _AwayAfterWatch(cluster.store, log_path("x"))
        tree.failures = 1
        async with Client(URI, tree=tree) as client:
            with pytest.raises(MetadataError, match="connection to the metadata store was lost"):
                await client.log("x").open_for_writing(**ONE)

    run_on_one(tmp_path, test)


def test_ledger_that_cannot_be_closed_stays_registered_and_the_others_are_retired(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = client.log("x")
        await log.create()
        made = [await log.create_attempt(SegmentOwner("job", "j"), LedgerOptions(1, 1, 1)) for _ in range(2)]
        damaged, whole = (each.ledger_id for each in made)
        await damage(cluster, damaged)
        assert await log.retire([damaged, whole]) == 1
        assert await (await log.store()).attempts.pending_ids("x") == {damaged}
        for each in made:
            each.abandon()

    run_on_one(tmp_path, test)


def test_log_that_cannot_be_read_is_listed_with_its_error_and_the_others_with_their_lists(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        for name in "abc":
            await client.log(name).create()
        await cluster.store.session().set(log_path("b"), b"damaged", ANY_VERSION)
        found = dict([each async for each in own_logs(client)])
        assert list(found) == ["a", "b", "c"]
        assert isinstance(found["b"], MetadataFormat)
        assert [found[name].name for name in "ac"] == ["a", "c"]

    run_on_one(tmp_path, test)
