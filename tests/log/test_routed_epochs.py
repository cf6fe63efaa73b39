"""Epochs whose rows go to many logs, on real bookie services: shared ledgers, writers and readers beside, clean-up."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from bkspark.client import Client
from bkspark.entries import EntryBatch
from bkspark.errors import DataLoss, MetadataFormat, NoSuchLedger, SchemaMismatch, VersionPublished
from bkspark.log import Log, SegmentFacts, SegmentOwner, routed_epochs
from bkspark.log.epochs import LEDGERS_TRIED_MAX, EpochCommitter, Output
from bkspark.log.formats import Publisher, log_path
from bkspark.log.routed_epochs import RoutedCommitter, RoutedOutput
from bkspark.log.routing import RoutedCommits
from bkspark.log.schemas import SchemaChange, StoredSchema
from bkspark.log.writer import LedgerOptions, RollLimits
from bkspark.metadata.tree import ANY_VERSION
from bkspark.tasks import CALLS_AT_ONCE
from tests.ledger.in_process import InProcessCluster, run
from tests.log.logs import ONE, read_all, until
from tests.planting import around

OPTIONS = LedgerOptions(1, 1, 1)
LIMITS = RollLimits(1 << 30, None)
JOB = SegmentOwner("job", "j")
NAMES = ("a", "b", "c")
run_on_one = partial(run, bookies=1)


def committer(client: Client) -> RoutedCommitter:
    return RoutedCommitter(client, "q", LIMITS)


def rows(log: str, *texts: str) -> RoutedOutput:
    return RoutedOutput(log, (Output(entries=(EntryBatch.of([text.encode() for text in texts]),)),), OPTIONS)


async def make(client: Client, *names: str) -> list[Log]:
    logs = [client.log(name) for name in names]
    for log in logs:
        await log.create()
    return logs


async def content(client: Client) -> dict[str, list[str]]:
    return {name: [entry.decode() for entry in await read_all(client.log(name))] for name in await client.logs()}


async def ledger_ids(client: Client) -> set[int]:
    return {ledger_id async for ledger_id in client.ledgers()}


def test_epochs_share_one_ledger_for_each_log(tmp_path) -> None:
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        await make(client, *NAMES)
        commit = committer(client)
        for epoch in range(20):
            parts = [rows(name, f"{name}{epoch}") for name in NAMES if (epoch + ord(name)) % 3]
            assert await commit.append(parts, Publisher("q", epoch))
        assert await content(client) == {
            name: [f"{name}{epoch}" for epoch in range(20) if (epoch + ord(name)) % 3] for name in NAMES
        }
        assert len(await ledger_ids(client)) == 3
        await commit.close()

    run_on_one(tmp_path, test)


def test_shared_ledger_is_closed_when_an_epoch_brings_other_options(tmp_path) -> None:
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        await make(client, "a")
        commit = committer(client)
        others = replace(OPTIONS, metadata={"team": b"x"})
        for epoch, options in enumerate((OPTIONS, others, others)):
            assert await commit.append([replace(rows("a", str(epoch)), options=options)], Publisher("q", epoch))
        first, second = sorted(await ledger_ids(client))
        assert (await client.metadata(first)).is_closed
        assert not (await client.metadata(second)).is_closed
        assert await content(client) == {"a": ["0", "1", "2"]}
        await commit.close()

    run_on_one(tmp_path, test)


def test_shared_ledger_of_a_log_rolls_at_its_size_between_epochs(tmp_path) -> None:
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        await make(client, "a", "b")
        commit = RoutedCommitter(client, "q", RollLimits(3, None))
        for epoch in range(3):
            assert await commit.append([rows("a", f"{epoch}2"), rows("b", f"{epoch}")], Publisher("q", epoch))
        assert [each["last_entry"] for each in (await client.log("a").show())["ledgers"]] == [1, 0]
        assert [each["last_entry"] for each in (await client.log("b").show())["ledgers"]] == [2]
        assert await content(client) == {"a": ["02", "12", "22"], "b": ["0", "1", "2"]}
        await commit.close()

    run_on_one(tmp_path, test)


def test_a_repeated_epoch_shows_nothing_new_in_any_log(tmp_path) -> None:
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        await make(client, *NAMES)
        first, second = committer(client), committer(client)
        assert await first.append([rows("a", "1"), rows("b", "2")], Publisher("q", 0))
        assert not await second.append([rows("a", "1"), rows("b", "2"), rows("c", "3")], Publisher("q", 0))
        with pytest.raises(VersionPublished):
            await second.append([rows("c", "3")], Publisher("q", 0, "another query"))
        assert await second.append([rows("a", "4")], Publisher("q", 1))
        assert await content(client) == {"a": ["1", "4"], "b": ["2"], "c": []}

    run_on_one(tmp_path, test)


def test_epoch_that_another_process_published_meanwhile_leaves_no_ledger_of_this_one_in_any_log(tmp_path) -> None:
    """Between the check and the change. Otherwise the next epoch would publish these rows, too."""

    async def not_yet(old: object, commits: RoutedCommits, publisher: object) -> bool:
        return False

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        await make(client, *NAMES)
        first, second = committer(client), committer(client)
        assert await first.append([rows("a", "1"), rows("b", "2")], Publisher("q", 0))
        with around(RoutedCommits, "has_published", not_yet):
            assert not await second.append([rows("a", "1"), rows("b", "2")], Publisher("q", 0))
        assert len(await ledger_ids(client)) == 2
        assert await second.append([rows("a", "3")], Publisher("q", 1))
        assert await content(client) == {"a": ["1", "3"], "b": ["2"], "c": []}

    run_on_one(tmp_path, test)


def test_rows_whose_shared_ledger_was_taken_away_go_to_another_one(tmp_path) -> None:
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        logs = await make(client, *NAMES)
        commit = committer(client)
        assert await commit.append([rows("a", "1"), rows("b", "2")], Publisher("q", 0))
        assert await cluster.client().log("a").retire_shared(created_before_ms=1 << 60) == 0
        assert await commit.append([rows("a", "3"), rows("b", "4")], Publisher("q", 1))
        await logs[1].overwrite([])
        assert await commit.append([rows("a", "5"), rows("b", "6")], Publisher("q", 2))
        assert await content(client) == {"a": ["1", "3", "5"], "b": ["6"], "c": []}

    run_on_one(tmp_path, test)


def test_epoch_whose_shared_ledgers_are_always_lost_is_not_tried_for_ever(tmp_path) -> None:
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        await make(client, *NAMES)
        tried: list[int] = []

        async def lost(old: object, commit: RoutedCommitter, *_: object) -> bool:
            tried.append(1)
            raise DataLoss("a ledger is gone", ledger_id=7)

        with around(RoutedCommitter, "_append_once", lost), pytest.raises(DataLoss):
            await committer(client).append([rows("a", "1"), rows("b", "2")], Publisher("q", 0))
        assert len(tried) == LEDGERS_TRIED_MAX

    run_on_one(tmp_path, test)


def test_published_epoch_is_published_whatever_becomes_of_ledgers_that_are_closed_after_it(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of the least recently used ledger was deleted: closing that ledger failed the epoch of other logs."""

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        await make(client, *NAMES)
        commit = committer(client)
        assert await commit.append([rows("a", "1"), rows("b", "2")], Publisher("q", 0))
        await cluster.client().log("a").delete()
        monkeypatch.setattr(routed_epochs, "OPEN_MAX", 1)
        assert await commit.append([rows("c", "3")], Publisher("q", 1))
        assert await content(client) == {"b": ["2"], "c": ["3"]}
        await commit.close()

    run_on_one(tmp_path, test)


def test_closing_goes_on_after_a_ledger_that_cannot_be_closed(tmp_path) -> None:
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        await make(client, *NAMES)
        commit = committer(client)
        assert await commit.append([rows("a", "1")], Publisher("q", 0))
        (gone,) = await ledger_ids(client)
        assert await commit.append([rows("b", "2")], Publisher("q", 1))
        (other,) = await ledger_ids(client) - {gone}
        await cluster.client().log("a").delete()
        with pytest.raises(NoSuchLedger):
            await commit.close()
        assert (await client.metadata(other)).is_closed

    run_on_one(tmp_path, test)


def test_a_lost_ledger_of_one_attempt_fails_the_epoch_for_all_logs(tmp_path) -> None:
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        logs = await make(client, *NAMES)
        writer = await logs[1].create_attempt(SegmentOwner("query", "q", 0, 0, 0), OPTIONS)
        await writer.append(b"lost")
        closed = await writer.close()
        facts = SegmentFacts(writer.ledger_id, closed.last_entry, closed.length)
        await logs[1].discard("q", up_to_epoch=0)
        with pytest.raises(DataLoss, match="is not pending for log b"):
            await committer(client).append(
                [rows("a", "1"), RoutedOutput("b", (Output((facts,)),), OPTIONS)], Publisher("q", 0)
            )
        assert await content(client) == {"a": [], "b": [], "c": []}

    run_on_one(tmp_path, test)


def test_a_job_leaves_nothing_open_and_overwriting_deletes_what_was_there(tmp_path) -> None:
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        await make(client, *NAMES)
        commit = committer(client)
        assert await commit.publish_whole([rows("a", "1"), rows("b", "2")], None, JOB, is_overwrite=False)
        before = await ledger_ids(client)
        assert all([(await client.metadata(ledger_id)).is_closed for ledger_id in before])
        assert await commit.publish_whole([rows("b", "3"), rows("c", "4")], None, JOB, is_overwrite=True)
        assert await content(client) == {"a": ["1"], "b": ["3"], "c": ["4"]}
        assert len(before - await ledger_ids(client)) == 1
        for name in NAMES:
            assert await (await client.log(name).store()).attempts.pending_ids(name) == set()

    run_on_one(tmp_path, test)


def test_overwriting_takes_a_log_from_its_writer(tmp_path) -> None:
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        await make(client, *NAMES)
        writer = await cluster.client().log("a").open_for_writing(**ONE)
        await writer.append(b"old")
        assert await committer(client).publish_whole([rows("a", "new")], None, JOB, is_overwrite=True)
        assert (await content(client))["a"] == ["new"]
        with pytest.raises(NoSuchLedger):
            await client.metadata(writer.ledger_id or 0)
        writer.abandon()

    run_on_one(tmp_path, test)


@pytest.mark.parametrize("was_routed", [False, True], ids=["first commit", "later commit"])
def test_readers_pass_the_open_ledger_of_a_writer_when_rows_were_routed_after_it(tmp_path, was_routed: bool) -> None:
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        await make(client, *NAMES)
        commit = committer(client)
        if was_routed:
            await commit.append([rows("a", "earlier"), rows("b", "0")], Publisher("q", 0))
        writer = await cluster.client().log("a").open_for_writing(**ONE)
        await writer.append(b"from the writer")
        found: list[str] = []

        async def follow() -> None:
            async for batch in cluster.client().log("a").follow():
                found.extend(entry.decode() for entry in batch)
                if "from the writer again" in found:
                    return

        async def has_routed() -> bool:
            return "routed" in found

        following = asyncio.create_task(follow())
        assert await commit.append([rows("a", "routed"), rows("b", "1")], Publisher("q", 1))
        await until(has_routed, "the routed row")
        await writer.append(b"from the writer again")
        await writer.roll()
        await following
        expected = ["from the writer", "routed", "from the writer again"]
        assert found == (["earlier", *expected] if was_routed else expected)
        await writer.close()
        await commit.close()

    run_on_one(tmp_path, test)


def test_truncating_one_log_leaves_the_others_whole(tmp_path) -> None:
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        await make(client, *NAMES)
        commit = committer(client)
        for epoch in range(3):
            await commit.append([rows("a", f"{epoch}"), rows("b", f"{epoch}")], Publisher("q", epoch))
        await client.log("a").truncate(await client.log("a").latest())
        await client.log("b").delete()
        await commit.append([rows("a", "3")], Publisher("q", 3))
        assert await content(client) == {"a": ["3"], "c": []}

    run_on_one(tmp_path, test)


def test_routed_commits_remove_what_has_expired(tmp_path) -> None:
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        (kept, _, _) = await make(client, *NAMES)
        await kept.set_retention(bytes=1)
        for text in ("1", "2", "3"):
            job = RoutedCommitter(client, "j", LIMITS)
            assert await job.publish_whole([rows("a", text), rows("b", text)], None, JOB, is_overwrite=False)
            assert await content(client) == {"a": [text], "b": [str(n) for n in range(1, int(text) + 1)], "c": []}
        commit = committer(client)
        assert await commit.append([rows("a", "4"), rows("b", "4")], Publisher("q", 0))
        assert await content(client) == {"a": ["4"], "b": ["1", "2", "3", "4"], "c": []}
        await commit.close()

    run_on_one(tmp_path, test)


def test_epoch_that_fails_leaves_no_shared_ledger_in_any_of_its_logs(tmp_path) -> None:
    """The outcome of its entries may be unknown, so that no later epoch may follow them."""

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        logs = await make(client, *NAMES)
        commit = committer(client)
        before = await ledger_ids(client)
        lost = RoutedOutput("b", (Output((SegmentFacts(1 << 40, 0, 1),)),), OPTIONS)
        with pytest.raises(DataLoss):
            await commit.append([rows("a", "1"), lost, rows("c", "2")], Publisher("q", 0))
        assert await ledger_ids(client) == before
        for log in logs:
            assert await (await log.store()).attempts.pending_ids(log.name) == set()

    run_on_one(tmp_path, test)


def test_unpublished_ledgers_of_an_owner_are_discarded_in_the_logs_that_are_named(tmp_path) -> None:
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        logs = await make(client, *NAMES)
        made = {}
        for log in logs:
            for epoch in (0, 1):
                writer = await log.create_attempt(SegmentOwner("query", "q", epoch, 0, 0), OPTIONS)
                made[log.name, epoch] = writer.ledger_id
                await writer.close()
        await committer(client).discard(["a", "b"], up_to_epoch=0)
        assert await ledger_ids(client) == set(made.values()) - {made["a", 0], made["b", 0]}
        await committer(client).discard(["a"])
        assert await ledger_ids(client) == {made["b", 1], made["c", 0], made["c", 1]}

    run_on_one(tmp_path, test)


def test_logs_that_were_deleted_do_not_keep_ledgers_from_being_discarded_in_the_others(tmp_path) -> None:
    """More logs than are asked at once."""

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        (log,) = await make(client, "a")
        await (await log.create_attempt(SegmentOwner("query", "q", 0, 0, 0), OPTIONS)).close()
        await committer(client).discard([*(f"gone{number}" for number in range(CALLS_AT_ONCE)), "a"], up_to_epoch=0)
        assert await ledger_ids(client) == set()

    run_on_one(tmp_path, test)


def test_a_log_that_cannot_be_read_does_not_keep_ledgers_from_being_discarded_in_the_others(tmp_path) -> None:
    """The others are asked after it, and not at the same time."""

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        bad, log = await make(client, "bad", "a")
        await (await log.create_attempt(SegmentOwner("query", "q", 0, 0, 0), OPTIONS)).close()
        await (await client.tree()).set(log_path("bad"), b"no head", ANY_VERSION)
        gone = [f"gone{number}" for number in range(CALLS_AT_ONCE)]
        with pytest.raises(MetadataFormat):
            await committer(client).discard([bad.name, *gone, "a"], up_to_epoch=0)
        assert await ledger_ids(client) == set()

    run_on_one(tmp_path, test)


def test_epoch_that_fails_for_another_reason_than_a_lost_ledger_is_not_tried_again(tmp_path) -> None:
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        (log,) = await make(client, "a")
        schema = SchemaChange(StoredSchema("json", '{"fields":[],"type":"struct"}'), "0" * 16)
        with pytest.raises(SchemaMismatch):
            await EpochCommitter(log, "q", OPTIONS, LIMITS).append(rows("a", "1").outputs, ("q", 0), schema)
        with pytest.raises(SchemaMismatch):
            await committer(client).append([replace(rows("a", "1"), schema=schema)], Publisher("q", 0))
        # Ids are consecutive: each failed epoch has made one ledger.
        writer = await client.create(**ONE)
        assert (writer.ledger_id, await ledger_ids(client)) == (2, {2})
        await writer.close()

    run_on_one(tmp_path, test)


def test_job_that_cannot_be_published_leaves_no_ledger(tmp_path) -> None:
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        logs = await make(client, *NAMES)
        assert await logs[0].publish([], publisher=("p", 1)) is not None
        writer = await logs[0].create_attempt(JOB, OPTIONS)
        await writer.append(b"x")
        closed = await writer.close()
        facts = SegmentFacts(writer.ledger_id, closed.last_entry, closed.length)
        await logs[0].publish([facts], publisher=("p", 2))
        before = await ledger_ids(client)
        for is_overwrite in (False, True):
            with pytest.raises(VersionPublished):
                await committer(client).publish_whole(
                    [rows("a", "1"), rows("b", "2")], Publisher("p", 2), JOB, is_overwrite=is_overwrite
                )
            assert await ledger_ids(client) == before

    run_on_one(tmp_path, test)
