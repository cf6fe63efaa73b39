"""The log store on the tree in memory: a change is whole, done once, and found out about when its answer is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from bkspark.errors import (
    ConfigurationError,
    DataLoss,
    LogExists,
    MetadataError,
    NoSuchLog,
    VersionPublished,
)
from bkspark.log.formats import (
    CHANGES_MAX,
    LAST_EPOCHS_MAX,
    QUERIES_OF_A_NAME_MAX,
    TAIL_LEDGERS_MAX,
    SegmentFacts,
)
from bkspark.log.positions import BEGINNING
from bkspark.log.store import LogStore
from bkspark.metadata.memory import Fault
from tests.log.world import JOB, LaggingTree, RacingTree, World, closed, in_world

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
    await world.publish(1, publisher=("q1", 5))
    assert (await head_of(world))["last_epochs"] == [["q1", 5]]
    await world.publish(2, publisher=("app", 0, "q1"))
    assert (await head_of(world))["last_epochs"] == [["q1", 5], ["app", 0, "q1"]]
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
    for ledgers in ([SegmentFacts(1)], closed(1, 1)):
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


@pytest.mark.parametrize(("others", "is_known"), [(CHANGES_MAX - 1, True), (CHANGES_MAX, False)])
def test_a_change_is_recognised_as_long_as_the_head_names_it_and_never_made_again(others: int, is_known: bool) -> None:
    @in_world
    async def test(world: World) -> None:
        async def other_changes() -> None:
            for epoch in range(others):
                await world.store.append_ledgers("x", [], publisher=("other", epoch))

        await world.stage(1)
        late = LogStore(RacingTree(world.server, other_changes), "/ledgers")
        if is_known:
            assert (await late.append_ledgers("x", closed(1))).first_ordinal == 0
        else:
            with pytest.raises(MetadataError, match="it is unknown whether it took effect"):
                await late.append_ledgers("x", closed(1))
        assert await world.ids() == [1]

    test()


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
