"""Epochs through shared ledgers, on real bookie services: one CAS an epoch, few ledgers, positions that stay valid."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import pytest

from bkspark.client import Client, LedgerWriter
from bkspark.entries import EntryBatch, as_batch
from bkspark.errors import DataLoss, MetadataError, NoSuchLedger, SchemaMismatch, VersionPublished
from bkspark.log import Log, SegmentFacts, SegmentOwner
from bkspark.log.epochs import LEDGERS_TRIED_MAX, EpochCommitter, Output, listed
from bkspark.log.positions import Position
from bkspark.log.schemas import SchemaChange, StoredSchema
from bkspark.log.sharing import RETIRE_MARGIN_S, SHARED_AGE_S, SharedLedger
from bkspark.log.writer import LedgerOptions, RollLimits
from tests.ledger.after_calls import ticks
from tests.ledger.in_process import InProcessCluster, run
from tests.planting import around

ONE = LedgerOptions(1, 1, 1)
QUERY = "q"
run_on_one = partial(run, bookies=1)


def rows(*texts: str) -> Output:
    return Output(entries=(EntryBatch.of([text.encode() for text in texts]),))


async def new_log(client: Client, name: str = "x") -> Log:
    log = client.log(name)
    await log.create(exist_ok=True)
    return log


def committer(log: Log, *, roll_bytes: int = 1 << 30, seconds: float | None = None) -> EpochCommitter:
    return EpochCommitter(log, QUERY, ONE, RollLimits(roll_bytes, seconds))


async def ledger_of(log: Log, *texts: str, epoch: int = 0) -> Output:
    """Return a task attempt's ledger of its own."""
    writer = await log.create_attempt(SegmentOwner("query", QUERY, epoch, 0, 0), ONE)
    await writer.append_many([text.encode() for text in texts])
    closed = await writer.close()
    return Output(ledgers=(SegmentFacts(writer.ledger_id, closed.last_entry, closed.length),))


async def content(log: Log, *places: object) -> list[str]:
    return [entry.decode() async for batch in log.read(*places) for entry in batch]


async def ledgers(client: Client) -> list[int]:
    return [ledger_id async for ledger_id in client.ledgers()]


async def pending(log: Log) -> list[int]:
    return sorted(await (await log.store()).attempts.pending_ids(log.name))


def test_many_small_epochs_are_one_ledger_and_one_item_of_the_list(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = await new_log(client)
        commit = committer(log)
        for epoch in range(300):
            assert await commit.append([rows(f"{epoch}a"), Output(), rows(f"{epoch}b")], (QUERY, epoch))
            await commit.discard(epoch)
        snapshot = await log.snapshot()
        assert len(snapshot) == 1
        assert len(await ledgers(client)) == 1
        head, _ = await (await client.tree()).get("/bkspark/logs/x")
        assert len(head) < 4_000  # most of it is the latest times
        expected = [f"{epoch}{part}" for epoch in range(300) for part in "ab"]
        # The ledger is open, and its last entries are confirmed only by the list.
        assert not (await client.metadata((await snapshot.ledger(0)).ledger_id)).is_closed
        assert await content(log) == expected
        assert await content(cluster.client().log("x")) == expected

    run_on_one(tmp_path, test)


def test_entries_of_adjacent_outputs_are_one_slice_and_a_ledger_ends_it() -> None:
    class Noting:
        """A shared ledger that notes how many entries come together."""

        def __init__(self) -> None:
            self.appended: list[int] = []

        async def append(self, batches: Sequence[EntryBatch]) -> SegmentFacts:
            self.appended.append(sum(map(len, batches)))
            return SegmentFacts(1)

    shared = Noting()
    some = [Output(entries=(as_batch([b"x"] * count),)) for count in (1, 2, 3, 4)]
    outputs = [Output(), *some[:2], Output(), Output((SegmentFacts(7, 9, 100),)), *some[2:], Output()]
    assert [each.ledger_id for each in asyncio.run(listed(outputs, shared))] == [1, 7, 1]  # type: ignore[arg-type]
    assert shared.appended == [3, 7]


def test_a_repeated_epoch_appends_nothing_visible(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = await new_log(client)
        first, second = committer(log), committer(log)
        assert await first.append([rows("a")], (QUERY, 0))
        assert not await second.append([rows("again")], (QUERY, 0))
        assert not await first.append([rows("again")], (QUERY, 0))
        assert await first.append([rows("b")], (QUERY, 1))
        assert await content(log) == ["a", "b"]
        assert len(await ledgers(client)) == 1

    run_on_one(tmp_path, test)


def test_an_epoch_of_another_query_with_the_same_name_fails_and_appends_nothing(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = await new_log(client)
        first, second = committer(log), committer(log)
        for epoch in (0, 1):
            assert await first.append([rows(f"a{epoch}")], ("app", epoch, "q1"))
        for change in (second.append, second.overwrite):
            with pytest.raises(VersionPublished, match="by query q1"):
                await change([rows("b0", "b1", "b2")], ("app", 0, "q2"))
        assert await second.append([Output()], ("app", 0, "q2"))  # no row is lost
        assert not await first.append([rows("a1")], ("app", 1, "q1"))
        assert await second.append([rows("b3")], ("app", 2, "q2"))
        assert await content(log) == ["a0", "a1", "b3"]
        await first.close()
        await second.close()
        assert await pending(log) == []

    run_on_one(tmp_path, test)


def test_one_of_two_queries_that_publish_a_version_of_a_name_at_once_fails(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = await new_log(client)
        results = await asyncio.gather(
            *(committer(log).append([rows(query)], ("app", 0, query)) for query in ("q1", "q2")), return_exceptions=True
        )
        assert sorted(map(str, map(type, results))) == sorted(map(str, (bool, VersionPublished)))
        winner = ("q1", "q2")[results.index(True)]
        assert await content(log) == [winner]
        assert len(await ledgers(client)) == len(await pending(log)) == 1

    run_on_one(tmp_path, test)


def test_processes_that_take_turns_each_keep_to_their_ledger(tmp_path):
    """Spark hands commits to whichever of its workers is idle."""

    async def test(cluster: InProcessCluster) -> None:
        client, other = cluster.client(), cluster.client()
        log = await new_log(client)
        workers = [committer(log), committer(other.log("x"))]
        for epoch in range(40):
            assert await workers[epoch % 2].append([rows(str(epoch))], (QUERY, epoch))
        assert await content(log) == [str(epoch) for epoch in range(40)]
        assert len(await ledgers(client)) == 2
        listed = await (await log.snapshot()).ledgers()
        assert [(item.first_entry, item.last_entry) for item in listed] == [(n // 2, n // 2) for n in range(40)]
        position = Position(7, listed[7].ledger_id, 4)
        assert await content(log, position) == [str(epoch) for epoch in range(8, 40)]

    run_on_one(tmp_path, test)


def test_rows_and_ledgers_of_an_epoch_keep_the_order_of_partitions(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = await new_log(cluster.client())
        commit = committer(log)
        outputs = [rows("a", "b"), await ledger_of(log, "c", "d"), rows("e"), Output(), rows("f")]
        assert await commit.append(outputs, (QUERY, 0))
        assert await commit.append([rows("g")], (QUERY, 1))
        assert await content(log) == list("abcdefg")
        shown = (await log.show())["ledgers"]
        assert [(ledger["first_entry"], ledger["last_entry"], ledger["state"]) for ledger in shown] == [
            (0, 1, "OPEN"), (0, 1, "CLOSED"), (2, 4, "OPEN")
        ]  # fmt: skip
        position = Position(2, shown[2]["ledger"], 3)
        assert await content(log, position) == ["f", "g"]
        assert await content(log, Position.beginning(1)) == list("cdefg")

    run_on_one(tmp_path, test)


@pytest.mark.parametrize("limits", [{"roll_bytes": 25}, {"seconds": 1e-9}])
def test_shared_ledgers_roll_by_size_and_by_time(tmp_path, limits):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = await new_log(client)
        commit = committer(log, **limits)
        for epoch in range(6):
            assert await commit.append([rows("0123456789")], (QUERY, epoch))
        await commit.close()
        made = await ledgers(client)
        assert len(made) == (2 if "roll_bytes" in limits else 6)
        assert all([(await client.metadata(ledger_id)).is_closed for ledger_id in made])
        assert await pending(log) == []
        assert await content(log) == ["0123456789"] * 6

    run_on_one(tmp_path, test)


def test_a_reader_that_follows_gets_each_epoch_once_and_nothing_unpublished(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = await new_log(cluster.client())
        commit = committer(log)
        await commit.append([rows("0")], (QUERY, 0))
        following = cluster.client().log("x").follow()
        found = [(await anext(following))[0]]
        for epoch in range(1, 5):
            # What was appended for an epoch that is not published lies in the ledger, before the next.
            if epoch == 3:
                await commit._shared.append([EntryBatch.of([b"nobody's"])])
            await commit.append([rows(str(epoch))], (QUERY, epoch))
            found.append((await anext(following))[0])
        await following.aclose()
        assert found == [b"0", b"1", b"2", b"3", b"4"]
        assert await content(log) == list("01234")

    run_on_one(tmp_path, test)


def test_positions_of_older_logs_stay_valid_when_slices_follow(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = await new_log(cluster.client())
        output = await ledger_of(log, "a", "b")
        await log.publish(output.ledgers, publisher=(QUERY, 0))
        old = await log.latest()
        assert not (await log.snapshot()).head.has_slices
        commit = committer(log)
        await commit.append([rows("c")], (QUERY, 1))
        middle = await log.latest()
        await commit.append([rows("d")], (QUERY, 2))
        assert await content(log, old) == ["c", "d"]
        assert await content(log, middle) == ["d"]
        assert await content(log, old, middle) == ["c"]
        assert (await log.snapshot()).head.has_slices

    run_on_one(tmp_path, test)


async def epochs(commit: EpochCommitter, numbers: Sequence[int]) -> None:
    for epoch in numbers:
        assert await commit.append([rows(str(epoch))], (QUERY, epoch))


def test_truncation_keeps_a_shared_ledger_while_any_slice_of_it_is_listed_or_may_follow(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = await new_log(client)
        one, two = committer(log), committer(log)
        await epochs(one, [0, 1])
        await epochs(two, [2])
        await epochs(one, [3])
        # Before the last slice of ledger `one`: its first one goes, and ledger `two`, which is still shared.
        listed = await (await log.snapshot()).ledgers()
        await log.truncate(Position(2, listed[2].ledger_id, 2))
        assert await content(log) == ["3"]
        assert await ledgers(client) == [listed[0].ledger_id]
        await epochs(two, [4])  # its ledger is gone: it takes another
        await epochs(one, [5])
        assert await content(log) == ["3", "4", "5"]
        # At the very end: the last slice may grow, so its ledger stays.
        end = await log.latest()
        await log.truncate(end)
        assert await content(log) == []
        assert listed[0].ledger_id in await ledgers(client)
        await epochs(one, [6])
        assert await content(log, end) == ["6"]

    run_on_one(tmp_path, test)


@pytest.mark.parametrize("change", ["overwrite", "delete", "vacuum", "fence"])
def test_a_shared_ledger_that_is_taken_away_is_replaced_by_another(tmp_path, change):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = await new_log(client)
        commit = committer(log)
        await epochs(commit, [0])
        (ledger_id,) = await ledgers(client)
        before = ["0"]
        if change == "overwrite":
            await log.overwrite([])
            before = []
        elif change == "delete":
            await log.delete()
            await new_log(client)
            before = []
        elif change == "vacuum":
            # From its view the ledger's process is long dead: the ledger is closed, and published slices stay.
            assert await log.retire_shared(created_before_ms=1 << 62) == 0
            assert await pending(log) == []
            assert (await client.metadata(ledger_id)).is_closed
        else:
            await client.recover(ledger_id)
        assert await content(log) == before
        await epochs(commit, [1, 2])
        assert await content(log) == [*before, "1", "2"]
        assert len(await ledgers(client)) == 1 + len(before)

    run_on_one(tmp_path, test)


def test_what_a_killed_process_left_is_closed_when_it_is_old_and_deleted_unless_published(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = await new_log(client)
        published, unpublished = committer(log), committer(log)
        await epochs(published, [0])
        slice_ = await unpublished._shared.append([EntryBatch.of([b"x"])])
        now_ms = int(time.time() * 1000)
        assert await log.retire_shared(created_before_ms=0) == 0
        assert len(await pending(log)) == 2
        cluster.store.now_ms = now_ms
        assert await log.retire_shared(created_before_ms=now_ms + 1) == 1
        assert await pending(log) == []
        with pytest.raises(NoSuchLedger):
            await client.metadata(slice_.ledger_id)
        assert await content(log) == ["0"]

    run_on_one(tmp_path, test)


def test_an_attempts_ledger_that_is_gone_fails_the_epoch_and_the_next_try_succeeds(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = await new_log(cluster.client())
        commit = committer(log)
        lost = await ledger_of(log, "x")
        await log.discard(QUERY, up_to_epoch=0)
        with pytest.raises(DataLoss, match="run the job again"):
            await commit.append([rows("a"), lost], (QUERY, 0))
        assert await content(log) == []
        assert await commit.append([rows("a"), await ledger_of(log, "b")], (QUERY, 0))
        assert await content(log) == ["a", "b"]

    run_on_one(tmp_path, test)


def test_complete_mode_swaps_the_content_and_leaves_no_other_ledger(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = await new_log(client)
        commit = committer(log)
        for epoch in range(5):
            outputs = [rows(f"{epoch}a"), await ledger_of(log, f"{epoch}b", epoch=epoch), rows(f"{epoch}c")]
            assert await commit.overwrite(outputs, (QUERY, epoch))
            assert not await commit.overwrite([rows("again")], (QUERY, epoch))
            assert await content(log) == [f"{epoch}a", f"{epoch}b", f"{epoch}c"]
            assert len(await ledgers(client)) == 2
        assert await pending(log) == []

    run_on_one(tmp_path, test)


def test_loser_of_two_that_replace_the_content_for_one_epoch_leaves_no_ledger(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = await new_log(client)
        both = [committer(log).overwrite([rows(text)], (QUERY, 0)) for text in "ab"]
        assert sorted(await asyncio.gather(*both)) == [False, True]
        assert len(await content(log)) == 1
        assert len(await ledgers(client)) == 1
        assert await pending(log) == []

    run_on_one(tmp_path, test)


def test_content_that_has_another_schema_is_not_replaced_and_no_ledger_is_left(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = await new_log(client)
        schema = SchemaChange(StoredSchema("json", '{"fields":[],"type":"struct"}'), "0" * 16)
        with pytest.raises(SchemaMismatch):
            await committer(log).overwrite([rows("a")], (QUERY, 0), schema)
        assert await ledgers(client) == []
        assert await pending(log) == []

    run_on_one(tmp_path, test)


def test_shared_ledger_whose_entries_are_not_published_stays_registered_when_it_is_closed(tmp_path):
    """Also after one that was published: it would stay for ever, as no vacuum deletes a ledger with entries."""

    async def test(cluster: InProcessCluster) -> None:
        log = await new_log(cluster.client())
        shared = SharedLedger(log, SegmentOwner("query", QUERY), ONE, RollLimits(1 << 30, None))
        await shared.append(rows("a").entries)
        shared.note_published()
        await shared.close()
        assert await pending(log) == []
        await shared.append(rows("b").entries)
        second = shared.ledger_id
        await shared.close()
        assert await pending(log) == [second]

    run_on_one(tmp_path, test)


def test_opening_for_writing_and_epochs_go_on_side_by_side(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = await new_log(cluster.client())
        commit = committer(log)
        await epochs(commit, [0])
        async with await log.open_for_writing(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
            await writer.append(b"w")
            await epochs(commit, [1])
        await epochs(commit, [2])
        assert await content(log) == ["0", "w", "1", "2"]

    run_on_one(tmp_path, test)


def test_epoch_that_another_process_published_meanwhile_leaves_no_ledger_of_this_one(tmp_path):
    """Between the check and the change; the rows that were appended here are not part of the log."""

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = await new_log(client)
        first, second = committer(log), committer(log)
        assert await first.append([rows("a")], (QUERY, 0))

        async def not_yet(old: object, log: Log, publisher: object) -> bool:
            return False

        with around(Log, "has_published", not_yet):
            assert not await second.append([rows("again")], (QUERY, 0))
        assert len(await ledgers(client)) == 1
        assert await second.append([rows("b")], (QUERY, 1))
        assert await content(log) == ["a", "b"]

    run_on_one(tmp_path, test)


@pytest.mark.parametrize(("is_own", "tries"), [(True, 1), (False, LEDGERS_TRIED_MAX)])
def test_epoch_is_tried_again_for_a_lost_shared_ledger_alone_and_not_for_ever(tmp_path, is_own, tries):
    async def test(cluster: InProcessCluster) -> None:
        log = await new_log(cluster.client())
        output = await ledger_of(log, "a")
        own = output.ledgers[0].ledger_id
        made: list[int] = []

        async def lost(old: object, commit: EpochCommitter, *_: object) -> bool:
            made.append(1)
            raise DataLoss("a ledger is gone", ledger_id=own if is_own else own + 1)

        with around(EpochCommitter, "_append_once", lost), pytest.raises(DataLoss):
            await committer(log).append([output, rows("b")], (QUERY, 0))
        assert len(made) == tries

    run_on_one(tmp_path, test)


def test_repeated_replacement_of_the_content_makes_no_ledger(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = await new_log(client)
        assert await committer(log).overwrite([rows("a")], (QUERY, 0))
        before = await ledgers(client)
        made: list[SegmentOwner] = []

        async def noted(old: Callable[..., Awaitable[object]], log: Log, owner: SegmentOwner, *more: object) -> object:
            made.append(owner)
            return await old(log, owner, *more)

        with around(Log, "create_attempt", noted):
            assert not await committer(log).overwrite([rows("again")], (QUERY, 0))
        assert (made, await ledgers(client), await content(log)) == ([], before, ["a"])

    run_on_one(tmp_path, test)


def test_replacement_whose_ledger_cannot_be_closed_leaves_no_ledger(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = await new_log(client)

        async def fail(old: object, shared: SharedLedger) -> None:
            raise MetadataError("the metadata store is away")

        with around(SharedLedger, "close", fail), pytest.raises(MetadataError):
            await committer(log).overwrite([rows("a")], (QUERY, 0))
        assert (await ledgers(client), await pending(log), await content(log)) == ([], [], [])

    run_on_one(tmp_path, test)


def test_batches_without_entries_begin_no_ledger(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = await new_log(client)
        commit = committer(log)
        assert await commit.append([Output(entries=(EntryBatch.of([]),))], (QUERY, 0))
        assert await ledgers(client) == []
        assert await commit.append([rows("a"), Output(entries=(EntryBatch.of([]),)), rows("b")], (QUERY, 1))
        assert await content(log) == ["a", "b"]

    run_on_one(tmp_path, test)


def test_bytes_of_a_slice_are_those_of_its_entries(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        log = await new_log(cluster.client())
        commit = committer(log)
        for epoch, text in enumerate(("a", "bb", "ccc")):
            assert await commit.append([rows(text)], (QUERY, epoch))
            listed = await (await log.snapshot()).ledger(0)
            assert listed.length == sum(range(1, epoch + 2))

    run_on_one(tmp_path, test)


@pytest.mark.parametrize(("seconds", "age_s"), [(None, SHARED_AGE_S), (60.0, 60.0)])
def test_ledgers_that_dead_processes_left_are_looked_for_when_one_begins_and_a_failure_hinders_nothing(
    tmp_path, seconds, age_s
):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = await new_log(client)
        looked: list[tuple[int, float]] = []

        async def fail(old: object, log: Log, ledger_id: int, older_s: float) -> None:
            looked.append((ledger_id, older_s))
            raise MetadataError("the metadata store is away")

        commit = committer(log, seconds=seconds)
        with around(Log, "retire_older", fail):
            for epoch in range(2):
                assert await commit.append([rows("a")], (QUERY, epoch))
        assert looked == [(*await ledgers(client), age_s + RETIRE_MARGIN_S)]

    run_on_one(tmp_path, test)


def test_shared_ledger_that_is_due_and_cannot_be_closed_is_retired_and_replaced(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        log = await new_log(client)
        commit = committer(log, roll_bytes=1)
        assert await commit.append([rows("a")], (QUERY, 0))
        retired: list[int] = []
        (old_id,) = await ledgers(client)

        async def fail(old: object, writer: LedgerWriter) -> None:
            raise MetadataError("the metadata store is away")

        async def noted(old: Callable[..., Awaitable[None]], log: Log, ids: Sequence[int]) -> None:
            retired.extend(ids)
            await old(log, ids)

        with around(LedgerWriter, "close", fail), around(Log, "retire", noted):
            assert await commit.append([rows("b")], (QUERY, 1))
        assert (retired, len(await ledgers(client)), await content(log)) == ([old_id], 2, ["a", "b"])

    run_on_one(tmp_path, test)


def test_epoch_that_fails_ends_its_ledger_though_that_cannot_be_retired(tmp_path):
    """The error is that of the epoch."""

    async def fail(old: object, log: Log, ids: Sequence[int]) -> None:
        raise MetadataError("the metadata store is away")

    async def refused(old: object, log: Log, *_: object, **more: object) -> None:
        raise SchemaMismatch("the log has another schema")

    async def test(cluster: InProcessCluster) -> None:
        log = await new_log(cluster.client())
        commit = committer(log)
        assert await commit.append([rows("a")], (QUERY, 0))
        assert len(ticks()) > 0
        with around(Log, "retire", fail), around(Log, "publish", refused), pytest.raises(SchemaMismatch):
            await commit.append([rows("b")], (QUERY, 1))
        assert ticks() == []

    run_on_one(tmp_path, test)
