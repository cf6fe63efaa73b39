"""A snapshot of a log reads its list of ledgers from pages and the head: every range, forwards and backwards."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from bkspark.errors import ConfigurationError, DataLoss, LogExists, MetadataError, MetadataFormat
from bkspark.log import formats
from bkspark.log.attempts import is_superseded
from bkspark.log.formats import (
    TAIL_LEDGERS_MAX,
    LogHead,
    PageRef,
    PendingLedger,
    SchemaRef,
    SegmentFacts,
    SegmentOwner,
    log_path,
)
from bkspark.log.heads import HeadStore, StoredHead
from bkspark.log.positions import BEGINNING, Position, check_offset, parse_place
from bkspark.log.retention import Retention
from bkspark.log.snapshot import LogSnapshot
from bkspark.log.store import LogStore
from bkspark.log.times import (
    RECENT_MAX,
    Mark,
    OpenMarks,
    TimeIndex,
    TimePageRef,
    decode_open,
    encode_page,
    index_from_json,
    index_to_json,
    open_path,
    pages_of,
)
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.tree import Stat
from tests.log.routed_logs import Logs, in_logs
from tests.log.world import World, in_world

TOKEN = "00000000000000aa"
FIRST = 2
"""The first ledger that is left: the pages begin at 0, 3 and 5, the tail at 9."""
LEDGERS = [SegmentFacts(100 + ordinal, ordinal, 10 * ordinal) for ordinal in range(12)]
PAGES = {0: 3, 3: 5, 5: 9}


def head(**members: object) -> LogHead:
    values = {
        "log_id": TOKEN,
        "root": "/ledgers",
        "changes": (TOKEN,),
        "first_ordinal": FIRST,
        "start": Position(FIRST, 102, 1),
        "pages": tuple(PageRef(f"{first}-{TOKEN}") for first in PAGES),
        "tail_ordinal": 9,
        "tail": tuple(LEDGERS[9:]),
    }
    return LogHead(**{**values, **members})


def with_snapshot(
    test: Callable[[LogSnapshot], Awaitable[None]], *, extra: int = 0, gone: int | None = None, **members: object
) -> None:
    """Run a test with the snapshot of such a log.

    Each page holds `extra` ledgers that are not part of it any more; the page that begins at `gone` is not there.
    """

    async def call() -> None:
        tree = MemoryStore().session()
        for first, end in PAGES.items():
            if first == gone:
                continue
            page = formats.encode_page(first, [*LEDGERS[first:end], *LEDGERS[:extra]])
            await tree.create(f"{log_path('x')}/pages/{first}-{TOKEN}", page, make_parents=True)
        await test(LogSnapshot(HeadStore(tree, "/ledgers"), "x", StoredHead(head(**members), 4)))

    asyncio.run(call())


@pytest.mark.parametrize("extra", [0, 2])
def test_every_range_is_read_once_and_in_order(extra: int) -> None:
    async def test(snapshot: LogSnapshot) -> None:
        for first in range(14):
            for end in (*range(14), None):
                there = range(max(first, FIRST), 12 if end is None else min(end, 12))
                found = await snapshot.ledgers(first, end)
                assert [it.ordinal for it in found] == list(there)
                assert [it.ledger_id for it in found] == [100 + ordinal for ordinal in there]
                if there:
                    assert all([run async for run in snapshot.runs(first, end)]), "no run is empty"
        assert (len(snapshot), snapshot.version) == (10, 4)

    with_snapshot(test, extra=extra)


def test_log_without_a_tail_is_read_to_its_last_page() -> None:
    async def test(snapshot: LogSnapshot) -> None:
        assert [[it.ordinal for it in run] async for run in snapshot.runs()] == [[2], [3, 4], [5, 6, 7, 8]]
        assert [it.ordinal async for it in snapshot.last_before(99)] == list(range(8, 1, -1))

    with_snapshot(test, tail=())


def test_page_that_has_nothing_of_a_range_is_not_read() -> None:
    async def test(snapshot: LogSnapshot) -> None:
        assert [it.ordinal for it in await snapshot.ledgers(5, 10)] == [5, 6, 7, 8, 9]
        assert [it.ordinal for it in await snapshot.ledgers(0, 3)] == [2]
        assert [run[:2] async for run in snapshot.closed_runs(5, 9)] == [(5, 9)]

    with_snapshot(test, gone=3)


def test_ledgers_before_an_ordinal_come_backwards() -> None:
    async def test(snapshot: LogSnapshot) -> None:
        for before in range(14):
            found = [it.ordinal async for it in snapshot.last_before(before)]
            assert found == list(range(min(before, 12) - 1, FIRST - 1, -1))

    with_snapshot(test)


def test_amounts_of_pages_are_those_of_the_range() -> None:
    async def test(snapshot: LogSnapshot) -> None:
        for first in range(10):
            for end in range(14):
                found = [run async for run in snapshot.closed_runs(first, end)]
                parts = [(max(first, FIRST, begin), min(end, stop)) for begin, stop in PAGES.items()]
                assert found == [
                    (
                        begin,
                        stop,
                        sum(it.last_entry + 1 for it in LEDGERS[begin:stop]),
                        sum(it.length for it in LEDGERS[begin:stop]),
                    )
                    for begin, stop in parts
                    if begin < stop
                ]

    with_snapshot(test)


def test_one_ledger_is_found_by_its_ordinal() -> None:
    async def test(snapshot: LogSnapshot) -> None:
        for ordinal in range(FIRST, 12):
            assert (await snapshot.ledger(ordinal)).ledger_id == 100 + ordinal
        for ordinal in (-1, 1, 12):
            with pytest.raises(IndexError, match=rf"\[2, 12\), not {ordinal}"):
                await snapshot.ledger(ordinal)

    with_snapshot(test)


def test_position_is_located_if_its_ledger_is_at_its_ordinal() -> None:
    async def test(snapshot: LogSnapshot) -> None:
        assert await snapshot.locate(Position(4, 104, 3)) == (4, 3)
        assert await snapshot.locate(Position.beginning(5)) == (5, 0)
        assert await snapshot.locate(Position.beginning(12)) == (12, 0)
        assert await snapshot.locate(Position(FIRST, 102, 1)) == (FIRST, 1)
        with pytest.raises(ConfigurationError, match="has ledger 104 at ordinal 4"):
            await snapshot.locate(Position(4, 105, 3))
        with pytest.raises(DataLoss):
            await snapshot.locate(Position(FIRST, 102, 0))

    with_snapshot(test)


def test_page_that_holds_too_few_ledgers_is_refused() -> None:
    async def test(snapshot: LogSnapshot) -> None:
        with pytest.raises(MetadataFormat, match="holds 4 ledgers, not 5"):
            await snapshot.ledgers()

    with_snapshot(test, tail_ordinal=10, tail=tuple(LEDGERS[10:]))


# ---- positions ----


def test_text_of_a_position_is_the_position() -> None:
    for position in (BEGINNING, Position(0, 0, 0), Position(3, 12, 5), Position.beginning(7)):
        assert Position.parse(str(position)) == position
        assert Position.parse(position.to_json()) == position
        assert parse_place(str(position)) == parse_place(position.to_json()) == position
        assert check_offset("start", str(position)) == position
        assert check_offset("start", position) is position
    assert (parse_place(" Earliest "), parse_place("LATEST")) == ("earliest", "latest")
    assert Position.beginning() == Position(0, -1, 0)


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"version": True}, {"ledger": -2}, {"ledger": -1}, {"entry": -1}, {"ordinal": -1}, {"more": 1}],
    ids=str,
)
def test_other_objects_are_not_positions(change: dict[str, object]) -> None:
    members = {**Position(3, 12, 5).to_json(), **change}
    with pytest.raises(ConfigurationError, match="position"):
        Position.parse(members)
    with pytest.raises(ConfigurationError, match="position"):
        parse_place(members)
    with pytest.raises(ConfigurationError, match="start must be earliest, latest or a position"):
        check_offset("start", members)
    with pytest.raises(ConfigurationError, match="start: 'soon' is not earliest, latest or a position"):
        check_offset("start", "soon")


# ---- formats ----


def test_nodes_have_no_spaces_and_sorted_members() -> None:
    assert encode_page([Mark(1, 2, 3)]) == b'{"marks":[[1,2,3]],"version":1}'


@pytest.mark.parametrize("item", [["5"], [5.0], [5, 1, 1, "2"], [5, 1, 1, -2], [5, 1, 1, 0], [], [1, 2, 3, 4, 5], 5])
def test_item_that_is_not_whole_numbers_is_no_ledger(item: object) -> None:
    data = b'{"first_ordinal":7,"ledgers":[[4,1,1],%s],"version":1}' % repr(item).replace("'", '"').encode()
    with pytest.raises(MetadataFormat, match="/path"):
        formats.decode_page(data, "/path")


@pytest.mark.parametrize("item", [[1], [1, 2, 3], "12", [1, 2.0], [-1, 2], {"1": 2, "3": 4}], ids=str)
def test_noted_time_is_an_entry_and_a_time(item: object) -> None:
    good = {"marks": [[0, 5]], "until": 3, "version": 1}
    assert decode_open(json.dumps(good).encode(), 4, 2) == OpenMarks((Mark(4, 0, 5),), 3, 2)
    with pytest.raises(ValueError, match=r"not (\[entry, time\]|a whole number)"):
        decode_open(json.dumps({**good, "marks": [item]}).encode(), 4, 2)


def test_attempt_is_superseded_by_a_later_or_the_same_epoch_of_its_query_alone() -> None:
    of_log = head(last_epochs=(("q", 5),))
    for owner, expected in (
        (SegmentOwner("query", "q", epoch=5), True),
        (SegmentOwner("query", "q", epoch=4), True),
        (SegmentOwner("query", "q", epoch=6), False),
        (SegmentOwner("query", "other", epoch=1), False),
        (SegmentOwner("query", "q"), False),
        (SegmentOwner("job", "q", epoch=4), False),
        (SegmentOwner("job", "q"), False),
    ):
        assert is_superseded(PendingLedger(7, owner, 0), of_log) == expected


def test_ledger_of_a_query_without_an_epoch_is_shared() -> None:
    assert SegmentOwner("query", "q").shares
    assert not SegmentOwner("query", "q", epoch=0).shares
    assert not SegmentOwner("job", "q").shares


def test_time_index_that_does_not_ascend_is_refused() -> None:
    def index(*pages: tuple[int, int], mark: tuple[int, int] = (9, 90)) -> TimeIndex:
        refs = tuple(TimePageRef(ordinal, 0, ms, 5, TOKEN) for ordinal, ms in pages)
        return TimeIndex(refs, (Mark(mark[0], 0, mark[1]),))

    for good in (index((1, 10), (2, 10)), index((1, 90))):
        assert index_from_json(index_to_json(good)) == good
    for bad in (index((2, 10), (2, 20)), index((1, 20), (2, 10)), index((9, 10)), index((1, 91))):
        with pytest.raises(ValueError, match="does not ascend"):
            index_from_json(index_to_json(bad))


def test_pages_of_a_range_of_entries_are_those_whose_marks_apply_there() -> None:
    pages = tuple(TimePageRef(ordinal, 5, ordinal, 9, TOKEN) for ordinal in (1, 4, 7))
    index, ends = TimeIndex(pages, (Mark(9, 0, 99),)), {1: (4, 5), 4: (7, 5), 7: (9, 0)}
    for first in range(12):
        for end in range(first + 1, 12):
            applies = [at for at, after in ends.items() if (at, 5) < (end, 0) and after > (first, 0)]
            assert [ref.ordinal for ref in pages_of(index, (first, 0), (end, 0))] == applies
    assert pages_of(index, (4, 5), (7, 5)) == pages[1:2]


def test_schemas_that_do_not_ascend_are_refused() -> None:
    first = SchemaRef(1, 1, "a" * 32)
    for second, is_good in (((2, 2), True), ((1, 2), False), ((2, 1), False), ((0, 2), False)):
        refs = (first, SchemaRef(*second, "b" * 32))
        data = formats.encode_head(head(schemas=refs, has_slices=True))
        if is_good:
            assert formats.decode_head(data, "/path").schemas == refs
        else:
            with pytest.raises(MetadataFormat, match="schemas does not ascend"):
                formats.decode_head(data, "/path")
    for second, third in (((5, 2), (3, 3)), ((5, 3), (6, 2))):
        refs = (first, SchemaRef(*second, "b" * 32), SchemaRef(*third, "c" * 32))
        with pytest.raises(MetadataFormat, match="schemas does not ascend"):
            formats.decode_head(formats.encode_head(head(schemas=refs, has_slices=True)), "/path")


def test_version_of_a_head_is_the_lowest_that_can_say_it() -> None:
    versions = [
        head(),
        head(has_slices=True),
        head(last_epochs=(("q", 1, "run"),)),
        head(schemas=(SchemaRef(0, 1, "a" * 32),)),
        head(retention=Retention(bytes=5)),
        head(is_routed=True),
    ]
    assert [each.version for each in versions] == [1, 2, 3, 4, 5, 6]
    assert head(times=TimeIndex((), (Mark(1, 0, 5),))).version == 5


def test_node_that_is_too_large_is_not_written() -> None:
    with pytest.raises(MetadataError, match="the limit is 1000000"):
        formats.encode_condemned(range(10**18, 10**18 + 50_001))
    assert len(formats.encode_condemned(range(10**18, 10**18 + 49_000))) <= 1_000_000


# ---- the store ----


def test_clock_of_a_store_at_one_time_is_stopped() -> None:
    async def call() -> None:
        now = itertools.count(5)
        store = LogStore(MemoryStore().session(), "/ledgers", lambda: next(now))
        still = store.at_one_time()
        assert [still.clock_ms(), still.clock_ms(), store.clock_ms()] == [5, 5, 6]

    asyncio.run(call())


def test_log_is_found_if_it_is_there() -> None:
    async def call() -> None:
        store = LogStore(MemoryStore().session(), "/ledgers")
        await store.create("x")
        await store.create("x", exist_ok=True)
        with pytest.raises(LogExists):
            await store.create("x")
        found = await store.find("x")
        assert found is not None
        assert found.name == "x"
        assert await store.find("y") is None

    asyncio.run(call())


class ImpatientTree(MemoryTree):
    """A session that makes a test fail if it reads without an end."""

    reads = 0

    async def get(self, path: str) -> tuple[bytes, Stat]:
        self.reads += 1
        assert self.reads < 100
        return await super().get(path)


@in_world
async def test_times_of_an_open_ledger_without_a_node_of_times_are_unknown(world: World) -> None:
    await world.store.attempts.add("x", 5, SegmentOwner("writer", "a" * 16))
    assert await world.store.open_writer("x", 5, "a" * 16, []) == 0
    await world.server.session().delete(open_path(log_path("x"), 5))
    snapshot = await LogStore(ImpatientTree(world.server, 1_020, 10.0), "/ledgers").snapshot("x")
    timeline = await snapshot.times((0, 0), (1, 0))
    assert [(mark.ordinal, mark.entry_id) for mark in timeline.marks] == [(0, 0)]


@in_world
async def test_times_of_a_log_that_was_created_again_meanwhile_are_lost(world: World) -> None:
    await world.store.attempts.add("x", 5, SegmentOwner("writer", "a" * 16))
    assert await world.store.open_writer("x", 5, "a" * 16, []) == 0
    snapshot = await world.store.snapshot("x")

    async def delete(ledger_id: int) -> None:
        return None

    assert await world.store.delete("x", delete, closed=[0])
    await world.store.create("x")
    with pytest.raises(DataLoss, match="created again"):
        await snapshot.times((0, 0), (1, 0))


@in_world
async def test_page_of_times_that_was_removed_by_hand_is_an_error_that_names_it(world: World) -> None:
    world.store.clock_ms = partial(next, itertools.count(1_000, 1_000))
    for ledger_id in range(RECENT_MAX + 1):
        await world.publish(ledger_id)
    snapshot = await LogStore(ImpatientTree(world.server, 1_021, 10.0), "/ledgers").snapshot("x")
    (page,) = snapshot.head.times.pages
    path = f"{log_path('x')}/pages/{page.name}"
    await world.server.session().delete(path)
    with pytest.raises(MetadataFormat, match=f"{path} does not exist, although the log names it"):
        await snapshot.first_at(2_000)


@in_logs("a", "b")
async def test_page_of_times_of_a_log_in_routed_commits_that_was_removed_by_hand_is_an_error(logs: Logs) -> None:
    """The changes of routed commits are not in the head's node."""
    logs.store.clock_ms = partial(next, itertools.count(1_000, 1_000))
    for ledger_id in range(0, 2 * RECENT_MAX + 20, 2):
        assert await logs.commit(a=ledger_id, b=ledger_id + 1)
    snapshot = await LogStore(ImpatientTree(logs.server, 1_021, 10.0), "/ledgers").snapshot("a")
    (page,) = snapshot.head.times.pages
    path = f"{log_path('a')}/pages/{page.name}"
    await logs.server.session().delete(path)
    with pytest.raises(MetadataFormat, match=f"{path} does not exist, although the log names it"):
        await snapshot.first_at(2_000)


@in_logs("a", "b")
async def test_times_of_an_open_ledger_without_a_node_are_unknown_in_a_log_in_routed_commits(logs: Logs) -> None:
    await logs.store.attempts.add("a", 5, SegmentOwner("writer", "a" * 16))
    assert await logs.store.open_writer("a", 5, "a" * 16, []) == 0
    for ledger_id in range(10, 16, 2):
        assert await logs.commit(a=ledger_id, b=ledger_id + 1)
    await logs.server.session().delete(open_path(log_path("a"), 5))
    snapshot = await LogStore(ImpatientTree(logs.server, 1_020, 10.0), "/ledgers").snapshot("a")
    timeline = await snapshot.times((0, 0), (4, 0))
    assert timeline.marks[0].place == (0, 0)


class BusyTree(MemoryTree):
    """A session before whose next reads of pages of times (`left`) other clients act."""

    def __init__(self, server: MemoryStore, act: Callable[[], Awaitable[object]]) -> None:
        super().__init__(server, 1_022, 10.0)
        self.left = 0
        self._act = act

    async def get(self, path: str) -> tuple[bytes, Stat]:
        if "/pages/t" in path and self.left:
            self.left -= 1
            await self._act()
        return await super().get(path)


async def busy_log(world: World, count: int) -> tuple[BusyTree, LogSnapshot]:
    """Return a snapshot of a log with a page of times, and its tree: others publish `count` times before a read."""
    world.store.clock_ms = partial(next, itertools.count(1_000, 1_000))
    ids = itertools.count()

    async def publish(count: int) -> None:
        for _ in range(count):
            await world.publish(next(ids))

    await publish(RECENT_MAX + 1)
    tree = BusyTree(world.server, partial(publish, count))
    return tree, await LogStore(tree, "/ledgers").snapshot("x")


@in_world
async def test_page_of_times_that_is_replaced_again_and_again_while_it_is_read_is_found(world: World) -> None:
    tree, snapshot = await busy_log(world, RECENT_MAX // 2 + 1)
    tree.left = 2
    assert await snapshot.first_at(2_000) == (1, 0)
    assert tree.left == 0


@in_world
async def test_page_of_times_that_is_removed_by_hand_from_a_busy_log_is_an_error(world: World) -> None:
    """Other clients change the log before each read of the page. None of them replaces the page."""
    tree, snapshot = await busy_log(world, 1)
    (page,) = snapshot.head.times.pages
    await world.server.session().delete(f"{log_path('x')}/pages/{page.name}")
    tree.left = 20
    with pytest.raises(MetadataFormat, match=f"{page.name} does not exist, although the log names it"):
        await snapshot.first_at(2_000)
    assert tree.left == 19


def test_page_of_times_that_is_replaced_before_every_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bkspark.log.snapshot.LOST_RACES_MAX", 5)

    @in_world
    async def test(world: World) -> None:
        tree, snapshot = await busy_log(world, RECENT_MAX // 2 + 1)
        tree.left = 20
        with pytest.raises(MetadataError, match="others changed it 5 times while its times were being read"):
            await snapshot.first_at(2_000)

    test()


def test_page_of_times_is_not_lost_if_a_truncation_removes_it_between_two_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An open ledger has no node of times, and the process no longer caches the page when it reads the page again."""
    monkeypatch.setattr("bkspark.log.times.RECENT_MAX", 4)
    monkeypatch.setattr("bkspark.log.times.PAGE_MARKS_MAX", 2)
    monkeypatch.setattr("bkspark.log.heads.PAGES_CACHED_MAX", 1)

    @in_world
    async def test(world: World) -> None:
        world.store.clock_ms = partial(next, itertools.count(1_000, 1_000))
        await world.publish(*range(4))
        for ledger_id in range(4, 12):
            await world.publish(ledger_id)
        await world.store.attempts.add("x", 50, SegmentOwner("writer", "a" * 16))
        end = await world.store.open_writer("x", 50, "a" * 16, [])
        await world.server.session().delete(open_path(log_path("x"), 50))
        reads = itertools.count()

        async def truncate_at_last() -> None:
            if next(reads) == count:
                before = Position.beginning(10)
                assert await world.store.truncate("x", before, at_ledger_end=False, closed=[]) == 10

        tree = BusyTree(world.server, truncate_at_last)
        snapshot = await LogStore(tree, "/ledgers").snapshot("x")
        count = len(snapshot.head.times.pages)
        assert count >= 2
        tree.left = 100
        timeline = await snapshot.times((0, 0), (end + 1, 0))
        assert timeline.marks[-1].ordinal == end

    test()


@in_world
async def test_list_of_a_log_that_was_created_again_meanwhile_is_not_that_of_the_new_log(world: World) -> None:
    await world.publish(*range(TAIL_LEDGERS_MAX + 1))
    snapshot = await world.another_store().snapshot("x")
    assert await world.store.delete("x", world.delete, closed=[])
    await world.store.create("x")
    await world.publish(*range(1_000, 1_001 + TAIL_LEDGERS_MAX))
    with pytest.raises(DataLoss, match="created again"):
        await snapshot.ledgers()


@in_world
async def test_time_after_all_others_is_not_in_an_open_ledger_before_the_last_one(world: World) -> None:
    """What a writer has not noted there yet is before what others have published."""
    world.store.clock_ms = partial(next, itertools.count(1_000, 1_000))
    await world.store.attempts.add("x", 5, SegmentOwner("writer", "a" * 16))
    assert await world.store.open_writer("x", 5, "a" * 16, []) == 0
    await world.publish(6)
    snapshot = await world.store.snapshot("x")
    assert snapshot.open_ordinals == (0,)
    assert await snapshot.first_at(50_000) is None
