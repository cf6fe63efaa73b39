"""What one change of a log's head does beside its list: slices, times, registrations, and what it leaves alone."""

from __future__ import annotations

import asyncio

import pytest

from bkspark.errors import LedgerFenced, MetadataError, VersionPublished
from bkspark.log.formats import Publisher, SegmentFacts
from bkspark.log.heads import CONNECTION_LOSSES_MAX
from bkspark.log.positions import Position
from bkspark.log.publication import AppendOutcome
from bkspark.log.retention import Retention
from bkspark.log.store import LogStore
from bkspark.log.times import RECENT_MAX, Mark, OpenTimes
from bkspark.metadata.memory import Fault, MemoryTree
from bkspark.metadata.tree import ANY_VERSION, Stat
from tests.log.world import PrecededTransaction, World, closed, in_world, slice_of

WRITER = "a" * 16


async def opened(world: World, ledger_id: int) -> int:
    await world.stage(ledger_id)
    ordinal = await world.store.open_writer("x", ledger_id, WRITER, [])
    assert ordinal is not None
    return ordinal


@in_world
async def test_slice_that_continues_the_last_one_extends_its_item(world: World) -> None:
    await world.publish(4)
    await world.stage(5)
    first = await world.store.append_ledgers("x", [slice_of(5, 0, 9)], shared=[5])
    more = await world.store.append_ledgers("x", [slice_of(5, 10, 19), slice_of(5, 20, 24)], shared=[5])
    apart = await world.store.append_ledgers("x", [slice_of(5, 30, 39)], shared=[5])
    assert [outcome.first_ordinal for outcome in (first, more, apart)] == [1, 1, 2]
    ledgers = await (await world.store.snapshot("x")).ledgers()
    assert [(it.ledger_id, it.first_entry, it.last_entry, it.length) for it in ledgers] == [
        (4, 0, 9, 1000),
        (5, 0, 24, 250),
        (5, 30, 39, 100),
    ]
    assert await world.pending() == [5]


@in_world
async def test_ledger_of_which_no_more_comes_is_no_longer_pending(world: World) -> None:
    await world.stage(5, 6)
    await world.store.append_ledgers("x", [slice_of(5, 0, 9), slice_of(6, 0, 9)], shared=[6])
    assert await world.pending() == [6]
    assert (await world.store.snapshot("x")).head.has_slices


@in_world
async def test_log_without_slices_says_so(world: World) -> None:
    await world.publish(4, 5)
    assert not (await world.store.snapshot("x")).head.has_slices


@in_world
async def test_slices_on_both_sides_of_a_cut_keep_their_ledger(world: World) -> None:
    await world.stage(5, 6)
    await world.store.append_ledgers("x", [slice_of(5, 0, 9), slice_of(6, 0, 9), slice_of(5, 20, 29)], shared=[5])
    assert await world.store.truncate("x", Position(2, 5, 20), at_ledger_end=False, closed=[]) == 1
    await world.vacuum()
    assert (await world.ids(), world.deleted, await world.pending()) == ([5], [6], [5])
    await world.publish(7)
    assert await world.store.truncate("x", Position(3, 7, 0), at_ledger_end=False, closed=[]) == 1
    await world.vacuum()
    assert (await world.ids(), world.deleted, await world.pending()) == ([7], [6, 5], [])


@in_world
async def test_last_slice_of_a_growing_ledger_stays_when_the_log_is_truncated_at_its_end(world: World) -> None:
    await world.stage(5)
    await world.store.append_ledgers("x", [slice_of(5, 0, 9)], shared=[5])
    assert await world.store.truncate("x", Position(0, 5, 10), at_ledger_end=True, closed=[]) == 0
    assert (await world.ids(), await world.pending()) == ([5], [5])
    await world.store.append_ledgers("x", [slice_of(5, 10, 19)])
    assert await world.store.truncate("x", Position(0, 5, 20), at_ledger_end=True, closed=[]) == 1
    await world.vacuum()
    assert (await world.ids(), world.deleted) == ([], [5])


@in_world
async def test_outcome_of_a_publication_names_its_place_and_version(world: World) -> None:
    first = await world.publish(4, 5, publisher=Publisher("q", 3, "run"))
    again = await world.publish(6, publisher=Publisher("q", 2, "run"))
    assert (first, again) == (AppendOutcome(True, 0, 3), AppendOutcome(False, None, 3))
    assert (await world.ids(), await world.pending()) == ([4, 5], [6])
    replaced = await world.store.replace_ledgers("x", closed(6), closed=[], publisher=Publisher("q", 4, "run"))
    await world.stage(7)
    repeated = await world.store.replace_ledgers("x", closed(7), closed=[], publisher=Publisher("q", 4, "run"))
    assert (replaced, repeated) == (AppendOutcome(True, 2, 4), AppendOutcome(False, None, 4))
    assert (await world.ids(), await world.pending()) == ([6], [7])
    with pytest.raises(VersionPublished):
        await world.store.replace_ledgers("x", closed(7), closed=[], publisher=Publisher("q", 4, "other"))
    assert await world.ids() == [6]


@in_world
async def test_log_is_not_replaced_while_one_of_its_ledgers_may_be_open(world: World) -> None:
    ordinal = await opened(world, 4)
    await world.stage(5)
    for known in ([], [ordinal + 1]):
        assert await world.store.replace_ledgers("x", closed(5), closed=known) is None
    assert (await world.ids(), await world.pending()) == ([4], [5])
    assert await world.store.replace_ledgers("x", closed(5), closed=[ordinal]) is not None
    assert await world.ids() == [5]
    with pytest.raises(LedgerFenced):
        await world.store.add_writer_ledger("x", 5, WRITER, [])


@in_world
async def test_change_that_changes_nothing_writes_nothing(world: World) -> None:
    await world.publish(4, 5, 6)
    await world.store.set_retention("x", Retention(1000, None))
    await world.store.truncate("x", Position(1, 5, 0), at_ledger_end=False, closed=[])
    writes = world.server.writes
    await world.store.set_retention("x", Retention(1000, None))
    for before in (Position(0, 4, 5), Position(1, 5, 0)):
        assert await world.store.truncate("x", before, at_ledger_end=False, closed=[]) == 0
    await world.store.record_closed("x", "b" * 16, [], is_end=True)
    assert world.server.writes == writes
    await world.store.set_retention("x", Retention(1000, 5))
    assert (await world.store.snapshot("x")).head.retention == Retention(1000, 5)
    assert world.server.writes > writes


@in_world
async def test_writer_settles_its_ledgers_and_ends_only_when_it_says_so(world: World) -> None:
    ordinal = await opened(world, 4)
    await world.store.record_closed("x", "b" * 16, [(ordinal, SegmentFacts(4, 9, 100))], is_end=True)
    head = (await world.store.snapshot("x")).head
    assert (head.writer, head.open_ordinals) == (WRITER, (ordinal,))
    await world.store.record_closed("x", WRITER, [(ordinal, SegmentFacts(4, 9, 100))], is_end=False)
    head = (await world.store.snapshot("x")).head
    assert (head.writer, head.open_ordinals, head.tail[-1].last_entry) == (WRITER, (), 9)
    await world.store.record_closed("x", WRITER, [], is_end=True)
    assert (await world.store.snapshot("x")).head.writer is None


@in_world
async def test_ledger_that_was_cut_off_meanwhile_is_not_noted_as_closed(world: World) -> None:
    ordinal = await opened(world, 4)
    await world.publish(5)
    await world.store.truncate("x", Position(ordinal + 1, 5, 0), at_ledger_end=False, closed=[ordinal])
    assert await world.nodes("times") == []
    await world.store.record_closed("x", WRITER, [(ordinal, SegmentFacts(4, 9, 100))], is_end=True)
    head = (await world.store.snapshot("x")).head
    assert (head.writer, await world.ids(), head.first_ordinal) == (None, [5], ordinal + 1)


def noted(*marks: tuple[int, int]) -> OpenTimes:
    """Return what a writer notes: calls of ten entries, each (first entry, time)."""
    times = OpenTimes()
    for entry_id, ms in marks:
        times.note(entry_id, entry_id + 10, ms)
    return times


def test_times_that_a_writer_notes_while_its_close_is_recorded_are_not_lost() -> None:
    async def test() -> None:
        world = World()
        world.store.clock_ms = lambda: 1
        await world.store.create("x")
        ordinal = await opened(world, 4)
        await world.store.note_times("x", 4, noted((0, 100)))

        async def note_more() -> None:
            await world.store.note_times("x", 4, noted((0, 100), (10, 200)))

        late = LogStore(PrecededTransaction(world.server, note_more), "/ledgers")
        await late.record_closed("x", WRITER, [(ordinal, SegmentFacts(4, 19, 100))], is_end=True)
        marks = (await world.store.snapshot("x")).head.times.marks
        assert [mark for mark in marks if mark.ms > 1] == [Mark(ordinal, 0, 100), Mark(ordinal, 10, 200)]
        assert await world.nodes("times") == []

    asyncio.run(test())


@in_world
async def test_notes_are_recorded_up_to_what_was_written(world: World) -> None:
    await opened(world, 4)
    times = noted((0, 100))
    await world.store.note_times("x", 4, times)
    assert times.is_recorded
    times.note(10, 20, 200)
    assert not times.is_recorded


def test_notes_that_come_while_others_are_written_are_not_recorded_yet() -> None:
    times = noted((0, 100))

    class NotingTree(MemoryTree):
        async def set(self, path: str, data: bytes, version: int) -> Stat:
            times.note(10, 20, 200)
            return await super().set(path, data, version)

    async def test() -> None:
        world = World()
        await world.store.create("x")
        await opened(world, 4)
        await LogStore(NotingTree(world.server, 1_004, 10.0), "/ledgers").note_times("x", 4, times)
        assert (times.until, times.is_recorded) == (20, False)

    asyncio.run(test())


@in_world
async def test_pages_that_a_truncated_log_still_needs_stay(world: World) -> None:
    await world.publish(*range(900))
    await world.publish(*range(900, 1200))
    pages = set((await world.store.snapshot("x")).head.page_names)
    assert pages
    assert await world.store.truncate("x", Position(3, 3, 0), at_ledger_end=False, closed=[]) == 3
    head = (await world.store.snapshot("x")).head
    assert set(head.page_names) == pages
    assert await world.ids() == list(range(3, 1200))
    await world.store.truncate("x", Position(1199, 1199, 10), at_ledger_end=True, closed=[])
    assert (await world.ids(), await world.nodes("pages")) == ([], [])


@in_world
async def test_times_of_many_changes_move_to_pages_and_are_found_there(world: World) -> None:
    for number in range(RECENT_MAX + 20):
        world.store.clock_ms = lambda at=1000 + 10 * number: at
        await world.publish(number)
    snapshot = await world.store.snapshot("x")
    assert len(snapshot.head.times.marks) <= RECENT_MAX
    assert [await snapshot.first_at(1000 + 10 * number) for number in range(RECENT_MAX + 20)] == [
        (number, 0) for number in range(RECENT_MAX + 20)
    ]
    assert await snapshot.first_at(1000 + 10 * (RECENT_MAX + 20)) is None


@in_world
async def test_open_ledger_of_which_no_times_are_noted_is_cut_off_too(world: World) -> None:
    """An older bkspark wrote it."""
    ordinal = await opened(world, 4)
    await world.publish(5)
    await world.server.session().delete("/bkspark/logs/x/times/4", -1)
    assert await world.store.truncate("x", Position(1, 5, 0), at_ledger_end=False, closed=[ordinal]) == 1
    assert await world.ids() == [5]


@in_world
async def test_log_that_got_slices_once_keeps_saying_so(world: World) -> None:
    await world.stage(5, 6, 7)
    await world.store.append_ledgers("x", [slice_of(5, 0, 9)], shared=[5])
    await world.store.append_ledgers("x", closed(6))
    assert (await world.store.snapshot("x")).head.has_slices
    await world.store.replace_ledgers("x", closed(7), closed=[])
    assert (await world.store.snapshot("x")).head.has_slices


@in_world
async def test_log_that_is_replaced_by_a_slice_says_so(world: World) -> None:
    await world.stage(5)
    await world.store.replace_ledgers("x", [slice_of(5, 3, 9)], closed=[])
    assert (await world.store.snapshot("x")).head.has_slices


@in_world
async def test_a_change_is_tried_again_after_each_lost_connection_but_the_last(world: World) -> None:
    def lose(count: int) -> None:
        world.server.faults.update((world.server.writes + number, Fault.LOST_BEFORE) for number in range(count))

    await world.stage(7, 8)
    lose(CONNECTION_LOSSES_MAX - 1)
    await world.store.append_ledgers("x", closed(7))
    assert await world.ids() == [7]
    lose(CONNECTION_LOSSES_MAX)
    with pytest.raises(MetadataError, match="log x: "):
        await world.store.append_ledgers("x", closed(8))
    assert not world.server.faults, "one more try would have been one too many"
    assert await world.ids() == [7]


class ContendedTree(MemoryTree):
    """A session before whose next calls of `set` the same node is written by another one."""

    writes_before = 0

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        if self.writes_before:
            self.writes_before -= 1
            await super().set(path, (await self.get(path))[0], ANY_VERSION)
        return await super().set(path, data, version)


@in_world
async def test_a_reader_moves_forward_though_its_registration_was_written_twice_meanwhile(world: World) -> None:
    """The answers of its own earlier calls may have been lost."""
    await world.publish(7, 8)
    tree = ContendedTree(world.server, session_id=1_002, timeout_s=10.0)
    consumers = LogStore(tree, "/ledgers").consumers
    consumer = await consumers.register("x", "etl", Position.beginning(0), 1_000)
    tree.writes_before = 2
    consumer = await consumers.advance("x", consumer, Position(0, 7, 5))
    assert await consumers.all("x") == [consumer]
    assert consumer.position == Position(0, 7, 5)
    tree.writes_before = 3
    with pytest.raises(MetadataError, match="consumer etl of log x was changed repeatedly"):
        await consumers.advance("x", consumer, Position(1, 8, 0))
    assert (tree.writes_before, [each.position for each in await consumers.all("x")]) == (0, [Position(0, 7, 5)])
