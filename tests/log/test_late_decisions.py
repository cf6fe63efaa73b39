"""Changes of a log that were decided on what it was before: others have changed, or replaced, the log meanwhile."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

import pytest

from bkspark.client import Client
from bkspark.errors import DataLoss, LogExists, MetadataError, MetadataFormat
from bkspark.log.consumers import ConsumerRegistration
from bkspark.log.formats import TAIL_LEDGERS_MAX, SegmentFacts, SegmentOwner, encode_pending, log_path
from bkspark.log.heads import CONNECTION_LOSSES_MAX
from bkspark.log.positions import BEGINNING, Position
from bkspark.log.routing import Part, RoutedCommits
from bkspark.log.snapshot import LogSnapshot
from bkspark.log.store import ENDED_MAX, LogStore
from bkspark.log.unregistered import delete_unregistered
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.tree import Operation, Stat
from bkspark.metadata.uri import MetadataUri
from tests.log.world import (
    JOB,
    OutageTree,
    PrecededTransaction,
    PrecededTree,
    World,
    closed,
    everything,
    in_world,
    slice_of,
)

URI = "zk://127.0.0.1:2181/ledgers"
WRITER, OTHER = "a" * 16, "b" * 16
SHARER = SegmentOwner("query", "q1")
_ids = itertools.count(10_000)


async def listed(world: World) -> list[tuple[int, int, int | None]]:
    ledgers = await (await world.store.snapshot("x")).ledgers()
    return [(each.ledger_id, each.first_entry, each.last_entry) for each in ledgers]


async def create_again(world: World) -> None:
    """Delete the log, and create another one of its name."""
    assert await world.store.delete("x", world.delete, closed=[])
    await world.store.create("x")


@pytest.mark.parametrize("is_last", [True, False])
def test_entries_that_a_slice_grew_by_stay_when_the_log_is_truncated_at_its_earlier_end(is_last: bool) -> None:
    """The slice had its end there when the truncation looked, and was extended before the truncation took effect."""

    @in_world
    async def test(world: World) -> None:
        await world.stage(5, owner=SHARER)
        await world.store.append_ledgers("x", [slice_of(5, 0, 9)], shared=[5])
        end = Position(0, 5, 10)
        await world.store.append_ledgers("x", [slice_of(5, 10, 19)])
        if not is_last:
            await world.publish(6)
        assert await world.store.truncate("x", end, at_ledger_end=True, closed=[]) == 0
        assert (await world.store.snapshot("x")).start == end
        assert await listed(world) == [(5, 0, 19), *([] if is_last else [(6, 0, 9)])]

    test()


@in_world
async def test_attempt_is_registered_for_the_log_that_was_created_again_meanwhile(world: World) -> None:
    """Its place in the list of the former log would hide that it is listed in the new one, and it would be deleted."""
    await world.publish(*range(3))
    late = LogStore(PrecededTransaction(world.server, partial(create_again, world)), "/ledgers")
    await late.attempts.add("x", 9, SHARER)
    await world.store.append_ledgers("x", [slice_of(9, 0, 9)], shared=[9])
    assert await world.store.attempts.condemn("x", everything) == []
    assert await listed(world) == [(9, 0, 9)]


@in_world
async def test_writer_that_fenced_a_log_of_the_same_name_fences_the_new_one_too(world: World) -> None:
    """The open ledgers of both logs have the same ordinal."""
    await world.stage(1)
    assert await world.store.open_writer("x", 1, WRITER, []) == 0
    fenced = [(0, SegmentFacts(1, 4, 50))]
    assert await world.store.delete("x", world.delete, closed=[0])
    await world.store.create("x")
    await world.stage(2, 3)
    assert await world.store.open_writer("x", 2, OTHER, []) == 0
    assert await world.store.open_writer("x", 3, WRITER, fenced) is None
    assert await listed(world) == [(2, 0, None)]
    assert (await world.store.snapshot("x")).head.writer == OTHER


@in_world
async def test_reader_that_lost_its_name_does_not_end_the_registration_of_the_next_one(world: World) -> None:
    """Retention would remove what the next one has not read."""
    consumers = world.store.consumers
    first = ConsumerRegistration(consumers, "x", await consumers.register("x", "etl", BEGINNING, 60_000))
    second = ConsumerRegistration(consumers, "x", await consumers.register("x", "etl", BEGINNING, 60_000))
    await first.end()
    assert [each.name for each in await consumers.all("x")] == ["etl"]
    await second.move(BEGINNING)
    await second.end()
    assert await consumers.all("x") == []
    await second.end()
    # The node of the next one has the version that its own had.
    third = ConsumerRegistration(consumers, "x", await consumers.register("x", "etl", BEGINNING, 60_000))
    await consumers.remove("x", "etl")
    await consumers.register("x", "etl", BEGINNING, 60_000)
    await third.end()
    assert [each.name for each in await consumers.all("x")] == ["etl"]


@in_world
async def test_log_is_deleted_although_a_reader_ends_its_registration_meanwhile(world: World) -> None:
    consumers = world.store.consumers
    await consumers.register("x", "etl", BEGINNING, 60_000)
    await world.publish(1)
    tree = EndingTree(world.server, partial(consumers.remove, "x", "etl"))
    assert await LogStore(tree, "/ledgers").delete("x", world.delete, closed=[])
    assert tree.has_acted
    assert await world.store.names() == []


class EndingTree(PrecededTree):
    """A reader's registration ends after it was listed with the log that is being deleted."""

    async def children(self, path: str) -> list[str]:
        found = await super().children(path)
        if path.endswith("/consumers"):
            await self._act()
        return found


# ---- pages of the list that are gone ----


async def paged(world: World) -> LogSnapshot:
    """Publish so many ledgers that most are in a page; return the list as another process sees it, which read none."""
    await world.publish(*range(TAIL_LEDGERS_MAX + 1))
    return await world.another_store().snapshot("x")


@in_world
async def test_page_of_the_list_that_was_removed_by_hand_is_an_error_that_names_it(world: World) -> None:
    """It is not a loss of data: the ledgers are there, and the page may be restored."""
    snapshot = await paged(world)
    (page,) = snapshot.head.pages
    await world.server.session().delete(f"{log_path('x')}/pages/{page.name}")
    for _ in range(2):
        with pytest.raises(MetadataFormat, match=f"{page.name} does not exist, although the log names it"):
            await snapshot.ledgers()
        await world.publish(next(_ids))


async def nothing_open(log: str) -> list[int]:
    return []


class TruncatedTree(PrecededTree):
    """The other process comes before the first read of a page of the list."""

    async def get(self, path: str) -> tuple[bytes, Stat]:
        if "/pages/" in path:
            await self._act()
        return await super().get(path)


@pytest.mark.parametrize("change", ["condemn", "overwrite", "overwrite routed", "truncate", "delete"])
def test_change_of_a_log_that_another_process_truncates_meanwhile_is_decided_again(change: str) -> None:
    """It needs a page of the list, which the truncation has removed."""

    @in_world
    async def test(world: World) -> None:
        count = TAIL_LEDGERS_MAX + 1
        await world.publish(*range(count))
        await world.publish(1_000)
        await world.stage(2_000, 2_001)

        async def truncate() -> None:
            assert await world.store.truncate("x", Position(count, 1_000, 1), at_ledger_end=False, closed=[]) == count

        tree = TruncatedTree(world.server, truncate)
        store = LogStore(tree, "/ledgers")
        if change == "condemn":
            await world.store.attempts.add("x", 2_002, JOB)
            await world.server.session().set(f"{log_path('x')}/pending/2002", encode_pending(JOB, 0), -1)
            assert await store.attempts.condemn("x", lambda each, _: each.ledger_id == 2_002) == [2_002]
        elif change == "overwrite":
            outcome = await store.replace_ledgers("x", closed(2_000), closed=[])
            assert outcome is not None
            assert await world.ids() == [2_000]
        elif change == "overwrite routed":
            part = Part("x", tuple(closed(2_000)))
            assert await RoutedCommits(store).publish([part], "j1", fence=nothing_open)
            assert await world.ids() == [2_000]
        elif change == "truncate":
            assert await store.truncate("x", Position(5, 5, 1), at_ledger_end=False, closed=[]) == 0
            assert await world.ids() == [1_000]
        else:
            assert await store.delete("x", world.delete, closed=[])
            assert await world.store.names() == []
        assert tree.has_acted

    test()


@in_world
async def test_vacuum_goes_on_when_a_truncation_shortens_the_list_that_it_reads(world: World) -> None:
    count = TAIL_LEDGERS_MAX + 1
    await BookieRegistry(world.server.session(), MetadataUri.parse(URI)).initialize_cluster()
    await world.publish(*range(count))
    await world.publish(1_000)

    async def truncate() -> None:
        assert await world.store.truncate("x", Position(count, 1_000, 1), at_ledger_end=False, closed=[]) == count

    tree = TruncatedTree(world.server, truncate)
    async with Client(URI, tree=world.server.session()) as client:
        store = LogStore(tree, "/ledgers")
        assert await delete_unregistered(client, store, "x", world.delete, created_before_ms=1) == 0
    assert tree.has_acted


@in_world
async def test_list_that_a_truncation_shortens_while_it_is_read_is_data_loss(world: World) -> None:
    """A reader of the former list asked for what is gone."""
    snapshot = await paged(world)
    await world.publish(1_000)
    before = Position(TAIL_LEDGERS_MAX + 1, 1_000, 1)
    await world.store.truncate("x", before, at_ledger_end=False, closed=[])
    with pytest.raises(DataLoss, match="was truncated, overwritten or created again"):
        await snapshot.ledgers()


# ---- a change whose outcome is unknown, and that is made again ----


@pytest.mark.parametrize("change", ["append", "overwrite"])
@pytest.mark.parametrize("count", [1, ENDED_MAX + 1])
def test_ledgers_that_are_published_again_after_an_unknown_outcome_are_in_the_log_once(change: str, count: int) -> None:
    """The caller does not know that they are in the log. Overwritten by themselves, they were deleted."""

    @in_world
    async def test(world: World) -> None:
        await world.publish(5_000)
        ids = range(count)
        await world.stage(*ids)
        tree = OutageTree(world.server, log_path("x"), CONNECTION_LOSSES_MAX - 1)
        store = LogStore(tree, "/ledgers")
        tree.begins = 0

        async def publish() -> object:
            if change == "append":
                return await store.append_ledgers("x", closed(*ids))
            return await store.replace_ledgers("x", closed(*ids), closed=[])

        with pytest.raises(MetadataError, match="whether the change took effect is unknown"):
            await publish()
        with pytest.raises(DataLoss, match=r"published already.*: read the log first"):
            await publish()
        await world.store.attempts.sweep("x", world.delete)
        assert sorted(set(await world.ids()) - {5_000}) == list(ids)
        assert world.deleted == ([] if change == "append" else [5_000])
        assert len(await world.ids()) == count + (change == "append")

    test()


class LateTree(MemoryTree):
    """A session whose first transaction gets no answer, and takes effect just before the second one."""

    def __init__(self, server: MemoryStore) -> None:
        super().__init__(server, session_id=1_013, timeout_s=10.0)
        self._late: Sequence[Operation] | None = None
        self._has_lost = False

    async def transaction(self, operations: Sequence[Operation]) -> None:
        if not self._has_lost:
            self._has_lost, self._late = True, operations
            raise MetadataError("the connection to the metadata store was lost")
        if self._late is not None:
            late, self._late = self._late, None
            await super().transaction(late)
        await super().transaction(operations)


@in_world
async def test_log_whose_creation_takes_effect_late_is_created_once(world: World) -> None:
    store = LogStore(LateTree(world.server), "/ledgers")
    await store.create("y")
    with pytest.raises(LogExists):
        await store.create("y")
    assert await store.names() == ["x", "y"]
