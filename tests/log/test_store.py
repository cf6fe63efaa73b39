"""The log store on the tree in memory: a change is whole, done once, and found out about when its answer is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from bkspark.errors import (
    ConfigurationError,
    DataLoss,
    LedgerFenced,
    LogExists,
    MetadataError,
    NoSuchLog,
    VersionPublished,
)
from bkspark.log.formats import (
    LAST_EPOCHS_MAX,
    PAGE_LEDGERS_MAX,
    QUERIES_OF_A_NAME_MAX,
    TAIL_LEDGERS_MAX,
    LedgerFacts,
    PageRef,
    encode_head,
)
from bkspark.log.positions import BEGINNING, Position
from bkspark.log.store import LogStore
from bkspark.metadata.memory import Fault
from tests.log.world import JOB, CountingTree, LaggingTree, RacingTree, World, closed, in_world

# ---- whole logs ----


@in_world
async def test_a_new_log_is_listed_and_empty(world: World) -> None:
    await world.store.create("a")
    assert await world.store.names() == ["a", "x"]
    snapshot = await world.store.snapshot("x")
    assert (len(snapshot), snapshot.start, snapshot.version, await snapshot.ledgers()) == (0, BEGINNING, 0, [])


def test_a_metadata_store_without_logs_lists_none() -> None:
    assert asyncio.run(World().store.names()) == []


@in_world
async def test_a_log_is_created_once(world: World) -> None:
    with pytest.raises(LogExists, match="x"):
        await world.store.create("x")
    await world.store.create("x", exist_ok=True)


@in_world
async def test_a_log_that_does_not_exist_is_named_with_the_remedy(world: World) -> None:
    with pytest.raises(NoSuchLog, match="log y does not exist"):
        await world.store.snapshot("y")
    with pytest.raises(NoSuchLog):
        await world.store.attempts.add("y", 1, JOB)


@in_world
async def test_a_log_of_another_ledgers_root_is_refused(world: World) -> None:
    other = world.another_store("/other")
    with pytest.raises(ConfigurationError, match="belongs to the cluster at /ledgers, the metadata URI names /other"):
        await other.snapshot("x")
    with pytest.raises(ConfigurationError, match="belongs to"):
        await other.create("x", exist_ok=True)


# ---- publishing ----


@in_world
async def test_ledgers_come_into_the_list_together_and_in_order(world: World) -> None:
    await world.publish(5, 3, 4)
    outcome = await world.publish(1)
    assert outcome.first_ordinal == 3
    snapshot = await world.store.snapshot("x")
    assert [(ledger.ordinal, ledger.ledger_id, ledger.last_entry) for ledger in await snapshot.ledgers()] == [
        (0, 5, 9),
        (1, 3, 9),
        (2, 4, 9),
        (3, 1, 9),
    ]
    assert await world.pending() == []


@in_world
async def test_ledgers_that_only_an_empty_log_may_get_are_refused_once_it_holds_one(world: World) -> None:
    """Spark's mode errorIfExists."""
    await world.stage(1, 2)
    assert (await world.store.append_ledgers("x", closed(1), only_if_empty=True)).is_new
    with pytest.raises(LogExists, match="was to be written only while it holds none"):
        await world.store.append_ledgers("x", closed(2), only_if_empty=True)
    assert (await world.ids(), await world.pending()) == ([1], [2])


@in_world
async def test_a_snapshot_stays_as_it_was(world: World) -> None:
    await world.publish(1)
    before = await world.store.snapshot("x")
    await world.publish(2)
    assert [ledger.ledger_id for ledger in await before.ledgers()] == [1]
    assert await world.ids() == [1, 2]


@in_world
async def test_racing_publishers_are_all_published_once_and_whole(world: World) -> None:
    async def publish(number: int) -> None:
        store = world.another_store()
        ids = range(number * 100, number * 100 + 3)
        await world.stage(*ids)
        await store.append_ledgers("x", closed(*ids))

    await asyncio.gather(*(publish(number) for number in range(20)))
    ids = await world.ids()
    assert len(ids) == 60
    assert sorted(ids[::3]) == [number * 100 for number in range(20)]
    assert all(ids[i : i + 3] == [ids[i], ids[i] + 1, ids[i] + 2] for i in range(0, 60, 3))


@in_world
async def test_an_epoch_is_published_once_however_often_it_is_committed(world: World) -> None:
    """SP4: after a crash Spark commits the same batch again, with new ledgers."""
    assert (await world.publish(1, publisher=("q", 7))).is_new
    for epoch in (7, 3):
        outcome = await world.publish(100 + epoch, publisher=("q", epoch))
        assert (outcome.is_new, outcome.last_epoch, outcome.first_ordinal) == (False, 7, None)
    assert (await world.publish(2, publisher=("q", 8))).is_new
    assert (await world.publish(3, publisher=("other", 7))).is_new
    assert await world.ids() == [1, 2, 3]
    assert await world.pending() == [103, 107]


@in_world
async def test_a_version_that_another_query_published_is_refused_and_nothing_changes(world: World) -> None:
    """A query with a new checkpoint counts from 0 again, and has other rows in the same numbers."""
    for version in range(4):
        assert (await world.publish(version, publisher=("app", version, "q1"))).is_new
    before = await world.store.snapshot("x")
    for version in (0, 3):
        refused = f"version {version} of 'app' .*another query.* up to version 3"
        with pytest.raises(VersionPublished, match=refused) as it:
            await world.publish(100 + version, publisher=("app", version, "q2"))
        assert it.value.last_version == 3
        with pytest.raises(VersionPublished):
            await world.store.replace_ledgers("x", [], closed=(), publisher=("app", version, "q2"))
    assert (await world.store.snapshot("x")).version == before.version
    assert (await world.publish(4, publisher=("app", 4, "q2"))).is_new
    assert await world.ids() == [0, 1, 2, 3, 4]


@in_world
async def test_a_query_repeats_its_own_version_though_another_published_later_ones(world: World) -> None:
    """q1 died between its commit and Spark's note of it; q2 went on under its name from version 2."""
    await world.publish(1, publisher=("app", 1, "q1"))
    await world.publish(2, publisher=("app", 2, "q2"))
    assert not (await world.publish(101, publisher=("app", 1, "q1"))).is_new
    with pytest.raises(VersionPublished):
        await world.publish(102, publisher=("app", 2, "q1"))
    assert not (await world.publish(103, publisher=("app", 2, "q2"))).is_new
    assert await world.ids() == [1, 2]


@in_world
async def test_versions_without_a_query_are_distinguished_from_those_of_queries(world: World) -> None:
    """Jobs started by hand have no query, and neither have names of logs that an older bkspark wrote."""
    await world.publish(1, publisher=("app", 5))
    assert not (await world.publish(101, publisher=("app", 5))).is_new
    assert not (await world.publish(102, publisher=("app", 2))).is_new
    with pytest.raises(VersionPublished, match="it is not known by which query"):
        await world.publish(103, publisher=("app", 5, "q1"))
    assert (await world.publish(2, publisher=("app", 6, "q1"))).is_new
    with pytest.raises(VersionPublished, match="by query q1"):
        await world.publish(104, publisher=("app", 6))
    assert await world.ids() == [1, 2]


@in_world
async def test_a_head_names_no_query_until_a_query_publishes_under_a_name(world: World) -> None:
    """An older bkspark reads the heads of logs that use no txnAppId in a stream."""
    await world.publish(1, publisher=("q1", 5))
    assert (await head_of(world))["version"] == 1
    await world.publish(2, publisher=("app", 0, "q1"))
    head = await head_of(world)
    assert (head["version"], head["last_epochs"]) == (3, [["q1", 5], ["app", 0, "q1"]])
    assert await world.ids() == [1, 2]


async def head_of(world: World) -> dict[str, Any]:
    return json.loads((await world.server.session().get("/bkspark/logs/x"))[0])


@in_world
async def test_a_name_keeps_its_last_version_however_many_queries_used_it(world: World) -> None:
    await world.store.append_ledgers("x", [], publisher=("other", 3))
    for number in range(2 * QUERIES_OF_A_NAME_MAX):
        await world.store.append_ledgers("x", [], publisher=("app", number, f"q{number}"))
    head = (await world.store.snapshot("x")).head
    assert len(head.last_epochs) == QUERIES_OF_A_NAME_MAX + 1
    assert head.last_epochs[0] == ("other", 3)
    # What is forgotten of a name is refused, and never written twice.
    with pytest.raises(VersionPublished):
        await world.store.append_ledgers("x", [], publisher=("app", 0, "q0"))


@in_world
async def test_the_same_commit_twice_publishes_its_ledgers_once(world: World) -> None:
    await world.publish(1, 2, publisher=("q", 0))
    outcome = await world.store.append_ledgers("x", closed(1, 2), publisher=("q", 0))
    assert not outcome.is_new
    assert await world.ids() == [1, 2]


@in_world
async def test_one_of_two_drivers_that_commit_an_epoch_wins(world: World) -> None:
    """SP9: a paused driver wakes up while another one runs the query from the same checkpoint."""
    stores = [world.another_store(), world.another_store()]
    await world.stage(0, 1)
    outcomes = await asyncio.gather(
        *(store.append_ledgers("x", closed(i), publisher=("q", 4)) for i, store in enumerate(stores))
    )
    assert sorted(outcome.is_new for outcome in outcomes) == [False, True]
    assert len(await world.ids()) == 1


@pytest.mark.slow
@in_world
async def test_the_queries_that_published_last_are_remembered(world: World) -> None:
    for number in range(LAST_EPOCHS_MAX + 1):
        await world.store.append_ledgers("x", [], publisher=(f"q{number}", 0))
        if number == 500:
            await world.store.append_ledgers("x", [], publisher=("q0", 1))
    assert not (await world.store.append_ledgers("x", [], publisher=("q0", 1))).is_new
    assert len((await world.store.snapshot("x")).head.last_epochs) == LAST_EPOCHS_MAX


@in_world
async def test_a_ledger_that_is_not_pending_is_not_published(world: World) -> None:
    await world.stage(1)
    with pytest.raises(DataLoss, match="ledger 2 is not pending"):
        await world.store.append_ledgers("x", closed(1, 2))
    assert await world.ids() == []


@in_world
async def test_a_publication_that_cannot_be_right_is_refused_before_anything_happens(world: World) -> None:
    await world.stage(1)
    for ledgers in ([LedgerFacts(1)], closed(1, 1)):
        with pytest.raises(ValueError, match="ledger"):
            await world.store.append_ledgers("x", ledgers)
    with pytest.raises(ConfigurationError, match="epoch"):
        await world.store.append_ledgers("x", closed(1), publisher=("q", -1))
    assert await world.ids() == []


# ---- lost connections ----


async def _published_under_fault(fault: Fault, at: int, ids: Sequence[int]) -> tuple[list[int], int]:
    """Publish with one write of the publication failing; return what is listed, and how many writes there were."""
    world = World()
    await world.store.create("x")
    await world.publish(*range(TAIL_LEDGERS_MAX - 1))
    await world.stage(*ids)
    first = world.server.writes
    world.server.faults[first + at] = fault
    outcome = await world.store.append_ledgers("x", closed(*ids), publisher=("q", 1))
    assert outcome.is_new
    assert outcome.first_ordinal == TAIL_LEDGERS_MAX - 1
    return (await world.ids())[TAIL_LEDGERS_MAX - 1 :], world.server.writes - first


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("ids", [[1000], [1000, 1001, 1002]])
def test_a_connection_lost_around_the_change_neither_loses_nor_doubles_it(fault: Fault, ids: list[int]) -> None:
    # The second publication spills into a page, so its page's creation is hit too; the last writes tidy up.
    changes = 1 if len(ids) == 1 else 2
    for at in range(changes):
        listed, _ = asyncio.run(_published_under_fault(fault, at, ids))
        assert listed == ids


@in_world
async def test_a_change_whose_answer_was_lost_is_recognised_though_others_changed_the_log_since(world: World) -> None:
    other = world.another_store()
    await world.stage(1, 2)
    racing = RacingTree(world.server, lambda: other.append_ledgers("x", closed(2)))
    outcome = await LogStore(racing, "/ledgers").append_ledgers("x", closed(1))
    assert (outcome.is_new, outcome.first_ordinal) == (True, 0)
    assert await world.ids() == [1, 2]


@in_world
async def test_an_outcome_that_cannot_be_determined_is_reported_as_unknown(world: World) -> None:
    async def many_changes() -> None:
        for epoch in range(40):
            await world.store.append_ledgers("x", [], publisher=("other", epoch))

    await world.stage(1)
    racing = RacingTree(world.server, many_changes)
    with pytest.raises(MetadataError, match="it is unknown whether it took effect"):
        await LogStore(racing, "/ledgers").append_ledgers("x", closed(1))


@in_world
async def test_a_store_that_stays_away_ends_a_change_with_an_error(world: World) -> None:
    await world.stage(1)
    first = world.server.writes
    world.server.faults.update(dict.fromkeys(range(first, first + 100), Fault.LOST_BEFORE))
    with pytest.raises(MetadataError, match="whether the change took effect is unknown"):
        await world.store.append_ledgers("x", closed(1))
    world.server.faults.clear()
    assert await world.ids() == []
    assert await world.pending() == [1]


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("at", range(3))
def test_a_creation_whose_answer_was_lost_is_found_out(fault: Fault, at: int) -> None:
    async def run() -> None:
        world = World()
        await world.store.create("other")
        world.server.faults[world.server.writes + at] = fault
        await world.store.create("x")
        await world.store.attempts.add("x", 1, JOB)
        await world.store.attempts.add("x", 2, JOB)
        assert await world.pending() == [1, 2]

    if fault is Fault.LOST_BEFORE and at > 0:
        # Registering an attempt is not repeated: the caller has nothing at stake yet.
        with pytest.raises(MetadataError, match="lost"):
            asyncio.run(run())
    else:
        asyncio.run(run())


@in_world
async def test_what_others_have_just_written_is_seen_through_a_server_that_lags(world: World) -> None:
    """An attempt in another process opens a log just created; the driver publishes ledgers just registered."""
    for path, ledger_id in (("/bkspark", 1), ("/bkspark/logs/x/pending", 2)):
        await world.stage(ledger_id)
        store = LogStore(LaggingTree(world.server, path), "/ledgers")
        assert (await store.append_ledgers("x", closed(ledger_id))).is_new
    with pytest.raises(NoSuchLog):
        await store.snapshot("y")


# ---- long logs ----


@in_world
async def test_a_log_of_5000_ledgers_reads_back_in_order_and_its_nodes_stay_small(world: World) -> None:
    ids = list(range(10**18, 10**18 + 5_000))
    for start in range(0, 4_000, 150):
        await world.publish(*ids[start : min(start + 150, 4_000)])
    await world.publish(*ids[4_000:])
    assert await world.ids() == ids
    snapshot = await world.store.snapshot("x")
    assert [ref.first_ordinal for ref in snapshot.head.pages] == [0, PAGE_LEDGERS_MAX, 2 * PAGE_LEDGERS_MAX]
    tree = world.server.session()
    pages = await tree.children("/bkspark/logs/x/pages")
    assert sorted(pages) == sorted(ref.name for ref in snapshot.head.pages)
    sizes = [len((await tree.get(f"/bkspark/logs/x/pages/{page}"))[0]) for page in pages]
    assert max(sizes) < 200_000
    assert len((await tree.get("/bkspark/logs/x"))[0]) < 20_000


@in_world
async def test_part_of_a_long_log_is_read_without_its_other_pages(world: World) -> None:
    await world.publish(*range(6_500))
    counting = CountingTree(world.server)
    snapshot = await LogStore(counting, "/ledgers").snapshot("x")
    assert [ledger.ledger_id for ledger in await snapshot.ledgers(2_500, 2_503)] == [2_500, 2_501, 2_502]
    assert (await snapshot.ledger(2_499)).ledger_id == 2_499
    assert counting.reads == ["/bkspark/logs/x", f"/bkspark/logs/x/pages/{snapshot.head.pages[1].name}"]


@in_world
async def test_appending_to_a_long_log_reads_and_writes_no_full_page(world: World) -> None:
    await world.publish(*range(6_000))
    full = (await world.store.snapshot("x")).head.pages
    counting = CountingTree(world.server)
    store = LogStore(counting, "/ledgers")
    for start in range(10_000, 10_900, 100):
        await world.stage(*range(start, start + 100))
        await store.append_ledgers("x", closed(*range(start, start + 100)))
    snapshot = await store.snapshot("x")
    assert snapshot.head.pages[:3] == full[:3]
    read = {path.rpartition("/")[2] for path in counting.reads if "/pages/" in path}
    assert not read & {ref.name for ref in full[:3]}
    assert [ledger.ledger_id for ledger in await snapshot.ledgers(5_999, 6_101)] == [
        5_999,
        *range(10_000, 10_100),
        10_100,
    ]


@in_world
async def test_a_million_ledgers_fit_into_the_head(world: World) -> None:
    """Built by hand from full pages: only their names are in the head."""
    head = (await world.store.snapshot("x")).head
    pages = tuple(PageRef(f"{first}-{'a' * 16}") for first in range(0, 1_000_000, PAGE_LEDGERS_MAX))
    epochs = tuple((f"{'q' * 190}{number}", 1 << 62) for number in range(LAST_EPOCHS_MAX))
    largest = LedgerFacts((1 << 63) - 1, (1 << 63) - 2, (1 << 63) - 1)
    full = replace(
        head,
        pages=pages,
        tail_ordinal=1_000_000,
        tail=(largest,) * TAIL_LEDGERS_MAX,
        last_epochs=epochs,
        changes=("a",) * 32,
    )
    assert len(encode_head(full)) < 400_000


@in_world
async def test_a_snapshot_reads_on_when_its_last_page_was_rewritten(world: World) -> None:
    await world.publish(*range(300))
    before = await world.another_store().snapshot("x")
    await world.publish(*range(300, 600))
    assert [ledger.ledger_id for ledger in await before.ledgers()] == list(range(300))


@in_world
async def test_a_snapshot_of_what_was_truncated_meanwhile_says_so(world: World) -> None:
    await world.publish(*range(4_100))
    before = await world.another_store().snapshot("x")
    await world.store.truncate("x", Position(3_000, 3_000, 5), at_ledger_end=False, closed=())
    with pytest.raises(DataLoss, match="truncated"):
        await before.ledgers()
    assert (await before.ledger(4_050)).ledger_id == 4_050


@in_world
async def test_the_list_is_read_backwards_from_any_ordinal(world: World) -> None:
    await world.publish(*range(2_300))
    await world.publish(5_000)
    snapshot = await world.store.snapshot("x")
    backwards = [ledger.ledger_id async for ledger in snapshot.last_before(2_301)]
    assert backwards == [5_000, *range(2_299, -1, -1)]
    assert [ledger.ledger_id async for ledger in snapshot.last_before(2)] == [1, 0]


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


# ---- writing ----


@in_world
async def test_a_writer_has_fenced_what_is_open_before_it_gets_the_log(world: World) -> None:
    await world.stage(1, 2, 3)
    assert await world.store.open_writer("x", 1, "a" * 16, ()) == 0
    assert await world.store.open_writer("x", 2, "b" * 16, ()) is None
    assert await world.store.open_writer("x", 2, "b" * 16, [(0, LedgerFacts(1, 4, 50))]) == 1
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
    assert await world.store.add_writer_ledger("x", 3, writer, [(0, LedgerFacts(1, 4, 50))]) == 2
    ends = [(1, LedgerFacts(2, 5, 60)), (2, LedgerFacts(3, -1, 0))]
    await world.store.settle_writer("x", writer, ends, is_end=True)
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
    await world.store.settle_writer("x", "a" * 16, [(150, LedgerFacts(500, 7, 70))], is_end=True)
    snapshot = await world.store.snapshot("x")
    assert len(snapshot.head.pages) == 1
    assert (await snapshot.ledger(150)).last_entry == 7
