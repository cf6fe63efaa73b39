"""Taking ledgers out of a log, and writing it: nothing that is open is taken away, and nothing is left over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

import pytest

from bkspark.errors import (
    ConfigurationError,
    DataLoss,
    LedgerFenced,
    MetadataError,
    NoSuchLog,
)
from bkspark.log.formats import SegmentFacts, SegmentOwner, deletion_node, log_path
from bkspark.log.positions import Position
from bkspark.log.store import LogStore
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.tree import Operation, Stat
from tests.log.world import World, closed, in_world, slice_of

# ---- truncating, overwriting, deleting ----


@in_world
async def test_truncating_takes_ledgers_from_the_front_and_deletes_them(world: World) -> None:
    await world.publish(10, 11, 12)
    gone = await world.store.truncate("x", Position(1, 11, 4), at_ledger_end=False, closed=())
    assert gone == 1
    snapshot = await world.store.snapshot("x")
    assert (snapshot.first_ordinal, snapshot.start) == (1, Position(1, 11, 4))
    assert await world.ids() == [11, 12]
    assert await world.store.attempts.sweep("x", world.delete) == 1
    assert world.deleted == [10]


@in_world
async def test_truncating_at_a_ledgers_end_takes_that_ledger_and_keeps_the_position_valid(world: World) -> None:
    await world.publish(10, 11)
    end = Position(0, 10, 10)
    assert await world.store.truncate("x", end, at_ledger_end=True, closed=()) == 1
    snapshot = await world.store.snapshot("x")
    assert (snapshot.first_ordinal, snapshot.start) == (1, end)
    assert await world.store.truncate("x", end, at_ledger_end=True, closed=()) == 0


@in_world
async def test_truncating_at_a_place_in_a_ledger_that_is_gone_changes_nothing(world: World) -> None:
    """Nothing of that ledger is in the log, also after the end of it that the log's start names."""
    await world.publish(10, 11)
    start = Position(0, 10, 10)
    assert await world.store.truncate("x", start, at_ledger_end=True, closed=()) == 1
    for entry_id in (9, 10, 11):
        for is_end in (False, True):
            before = Position(0, 10, entry_id)
            assert await world.store.truncate("x", before, at_ledger_end=is_end, closed=()) == 0
    assert (await world.ids(), (await world.store.snapshot("x")).start) == ([11], start)


@in_world
async def test_shared_ledger_of_which_a_later_slice_stays_is_not_deleted_with_its_earlier_ones(
    world: World,
) -> None:
    await world.stage(5, owner=SegmentOwner("query", "q1"))
    await world.store.append_ledgers("x", [slice_of(5, 0, 4)], shared=[5])
    await world.publish(6)
    await world.store.append_ledgers("x", [slice_of(5, 5, 9)], shared=[5])
    assert await world.store.truncate("x", Position(1, 6, 10), at_ledger_end=True, closed=()) == 1
    await world.store.attempts.sweep("x", world.delete)
    assert (await world.ids(), world.deleted) == ([5], [6])


@in_world
async def test_a_log_truncated_to_nothing_goes_on_with_new_ordinals(world: World) -> None:
    await world.publish(*range(300))
    assert await world.store.truncate("x", Position(299, 299, 10), at_ledger_end=True, closed=()) == 300
    assert (await world.publish(500)).first_ordinal == 300
    assert await world.ids() == [500]


@in_world
async def test_truncating_at_a_position_of_another_log_is_refused(world: World) -> None:
    await world.publish(10, 11)
    with pytest.raises(ConfigurationError, match="has ledger 11 at ordinal 1"):
        await world.store.truncate("x", Position(1, 99, 4), at_ledger_end=False, closed=())
    with pytest.raises(DataLoss, match="ends before ordinal 2"):
        await world.store.truncate("x", Position(2, 99, 4), at_ledger_end=False, closed=())
    assert await world.ids() == [10, 11]


@in_world
async def test_overwriting_swaps_the_list_at_once_and_condemns_the_old_ledgers(world: World) -> None:
    await world.publish(*range(250))
    await world.stage(900, 901)
    outcome = await world.store.replace_ledgers("x", closed(900, 901), closed=(), publisher=("q", 1))
    assert (outcome.is_new, outcome.first_ordinal) == (True, 250)
    assert await world.ids() == [900, 901]
    assert (await world.store.snapshot("x")).start == Position.beginning(250)
    assert await world.store.attempts.sweep("x", world.delete) == 250
    assert sorted(world.deleted) == list(range(250))
    assert await world.store.attempts.sweep("x", world.delete) == 0
    assert not (await world.store.replace_ledgers("x", [], closed=(), publisher=("q", 1))).is_new
    assert await world.ids() == [900, 901]


@in_world
async def test_a_sweep_that_fails_is_finished_by_the_next(world: World) -> None:
    await world.publish(1, 2)
    await world.store.replace_ledgers("x", [], closed=())

    async def failing(ledger_id: int) -> None:
        raise MetadataError("away")

    with pytest.raises(MetadataError):
        await world.store.attempts.sweep("x", failing)
    assert await world.store.attempts.sweep("x", world.delete) == 2


@in_world
async def test_a_deleted_log_leaves_no_node_and_no_ledger(world: World) -> None:
    await world.publish(*range(2_300))
    await world.stage(5_000)
    assert await world.store.delete("x", world.delete, closed=())
    assert sorted(world.deleted) == [*range(2_300), 5_000]
    assert await world.store.names() == []
    with pytest.raises(NoSuchLog):
        await world.store.snapshot("x")
    await world.store.create("x")
    assert await world.ids() == []


@in_world
async def test_an_interrupted_deletion_hides_the_log_and_is_finished_by_another_call(world: World) -> None:
    await world.publish(1)

    async def failing(ledger_id: int) -> None:
        raise MetadataError("away")

    with pytest.raises(MetadataError):
        await world.store.delete("x", failing, closed=())
    with pytest.raises(NoSuchLog, match="being deleted"):
        await world.store.snapshot("x")
    with pytest.raises(NoSuchLog, match="being deleted"):
        await world.store.create("x")
    assert await world.store.delete("x", world.delete, closed=())
    assert world.deleted == [1]
    assert await world.store.names() == []


class _Overtaken(MemoryTree):
    """A session in which others act once: before the `number`th call after its first transaction."""

    def __init__(self, server: MemoryStore, number: int, act: Callable[[], Awaitable[None]]) -> None:
        super().__init__(server, session_id=1_010, timeout_s=10.0)
        self.has_acted = False
        self._act = act
        self._left: int | None = None
        self._number = number

    async def _meet(self) -> None:
        if self._left is None:
            return
        if self._left == 0:
            self.has_acted = True
            await self._act()
        self._left -= 1

    async def get(self, path: str) -> tuple[bytes, Stat]:
        await self._meet()
        return await super().get(path)

    async def children(self, path: str) -> list[str]:
        await self._meet()
        return await super().children(path)

    async def transaction(self, operations: Sequence[Operation]) -> None:
        await self._meet()
        await super().transaction(operations)
        if self._left is None:
            self._left = self._number


# A head's version counts the changes of its log, from 0 on. So for each difference in the numbers of publishes the
# versions of the two logs are the same at other steps.
@pytest.mark.parametrize(("old", "staged"), [(0, []), (1, [4])])
@pytest.mark.parametrize("more", [0, 1, 2, 3])
def test_a_deletion_that_another_call_finishes_takes_nothing_of_the_next_log_of_its_name(
    more: int, old: int, staged: list[int]
) -> None:
    """Whichever step the other call and the creation come before, and however often the logs were changed."""
    listed = [*range(10, 10 + old + more)]

    async def overtaken_at(number: int) -> bool:
        world = World()
        await world.store.create("x")
        for ledger_id in range(20, 20 + old):
            await world.publish(ledger_id)
        await world.stage(2)

        async def delete_and_create() -> None:
            assert await world.store.delete("x", world.delete, closed=())
            await world.store.create("x")
            for ledger_id in listed:
                await world.publish(ledger_id)
            await world.stage(*staged)

        tree = _Overtaken(world.server, number, delete_and_create)
        with contextlib.suppress(NoSuchLog):
            assert await LogStore(tree, "/ledgers").delete("x", world.delete, closed=())
        if tree.has_acted:
            assert (await world.ids(), await world.pending()) == (listed, staged)
            assert set(world.deleted) == {2, *range(20, 20 + old)}
            assert await world.nodes("condemned") == []
        else:
            assert await world.store.names() == []
        return tree.has_acted

    numbers = 0
    while asyncio.run(overtaken_at(numbers)):
        numbers += 1
    assert numbers > 10


def test_a_deletion_is_finished_whose_node_an_earlier_build_has_not_written_or_has_removed() -> None:
    """Earlier builds remove it at any step: they see a list of condemned ledgers that the head does not name."""

    async def overtaken_at(number: int) -> bool:
        world = World()
        await world.store.create("x")
        await world.publish(1)
        await world.stage(2)

        async def remove_node() -> None:
            log_id = (await world.store.heads.read("x", even_if_deleted=True)).head.log_id
            await world.server.session().delete(f"{log_path('x')}/{deletion_node(log_id)}")

        tree = _Overtaken(world.server, number, remove_node)
        assert await LogStore(tree, "/ledgers").delete("x", world.delete, closed=())
        assert await world.store.names() == []
        assert set(world.deleted) == {1, 2}
        return tree.has_acted

    numbers = 0
    while asyncio.run(overtaken_at(numbers)):
        numbers += 1
    assert numbers > 10


@in_world
async def test_node_of_a_deletion_is_not_written_for_a_log_that_is_not_being_deleted(world: World) -> None:
    await world.store.heads.mark_deleted("x")
    assert await world.nodes("condemned") == []


# ---- writing ----


@in_world
async def test_a_writer_has_fenced_what_is_open_before_it_gets_the_log(world: World) -> None:
    await world.stage(1, 2, 3)
    assert await world.store.open_writer("x", 1, "a" * 16, ()) == 0
    assert await world.store.open_writer("x", 2, "b" * 16, ()) is None
    assert await world.store.open_writer("x", 2, "b" * 16, [(0, SegmentFacts(1, 4, 50))]) == 1
    snapshot = await world.store.snapshot("x")
    assert snapshot.open_ordinals == (1,)
    assert [ledger.last_entry for ledger in await snapshot.ledgers()] == [4, None]
    with pytest.raises(LedgerFenced, match="opened for writing by another client"):
        await world.store.add_writer_ledger("x", 3, "a" * 16, ())
    assert await world.pending() == [3]


@in_world
async def test_a_writer_rolls_and_ends_and_leaves_no_ledger_open(world: World) -> None:
    writer = "a" * 16
    await world.stage(1, 2, 3)
    await world.store.open_writer("x", 1, writer, ())
    assert await world.store.add_writer_ledger("x", 2, writer, ()) == 1
    assert (await world.store.snapshot("x")).open_ordinals == (0, 1)
    assert await world.store.add_writer_ledger("x", 3, writer, [(0, SegmentFacts(1, 4, 50))]) == 2
    ends = [(1, SegmentFacts(2, 5, 60)), (2, SegmentFacts(3, -1, 0))]
    await world.store.record_closed("x", writer, ends, is_end=True)
    snapshot = await world.store.snapshot("x")
    assert (snapshot.open_ordinals, snapshot.head.writer) == ((), None)
    assert [ledger.last_entry for ledger in await snapshot.ledgers()] == [4, 5, -1]


@in_world
async def test_each_of_two_that_open_a_log_at_once_has_fenced_the_one_before(world: World) -> None:
    await world.stage(1, 2)
    tokens = ["a" * 16, "b" * 16]
    outcomes = await asyncio.gather(
        *(world.another_store().open_writer("x", i + 1, token, ()) for i, token in enumerate(tokens))
    )
    assert sorted(outcomes, key=str) == [0, None]


@in_world
async def test_open_ledgers_are_neither_overwritten_nor_truncated_nor_deleted_before_they_are_closed(
    world: World,
) -> None:
    await world.stage(1)
    await world.store.open_writer("x", 1, "a" * 16, ())
    await world.publish(2)
    assert await world.store.replace_ledgers("x", [], closed=()) is None
    assert await world.store.truncate("x", Position(1, 2, 5), at_ledger_end=False, closed=()) is None
    assert not await world.store.delete("x", world.delete, closed=())
    assert await world.ids() == [1, 2]
    assert await world.store.truncate("x", Position(1, 2, 5), at_ledger_end=False, closed=[0]) == 1


@in_world
async def test_an_overwritten_log_is_lost_to_its_writer(world: World) -> None:
    await world.stage(1, 2)
    await world.store.open_writer("x", 1, "a" * 16, ())
    await world.store.replace_ledgers("x", [], closed=[0])
    with pytest.raises(LedgerFenced):
        await world.store.add_writer_ledger("x", 2, "a" * 16, ())


@in_world
async def test_an_open_ledger_stays_where_its_end_can_be_noted(world: World) -> None:
    await world.publish(*range(150))
    await world.stage(500)
    await world.store.open_writer("x", 500, "a" * 16, ())
    await world.publish(*range(1_000, 1_100))
    await world.store.record_closed("x", "a" * 16, [(150, SegmentFacts(500, 7, 70))], is_end=True)
    snapshot = await world.store.snapshot("x")
    assert len(snapshot.head.pages) == 1
    assert (await snapshot.ledger(150)).last_entry == 7
