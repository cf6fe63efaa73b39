"""Routed commits: many logs in one transaction, all or none, also where calls fail and others change the logs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections.abc import Awaitable, Callable, Sequence

import pytest

from bkspark.errors import (
    DataLoss,
    MetadataAccessDenied,
    MetadataError,
    MetadataFormat,
    NoSuchLog,
    SchemaMismatch,
    VersionPublished,
)
from bkspark.log import routing
from bkspark.log.delta import DELTA_BYTES_MAX, delta_path
from bkspark.log.formats import Publisher, SegmentFacts, SegmentOwner
from bkspark.log.positions import Position
from bkspark.log.routing import ROUTED_ROOT, Part, RoutedCommits
from bkspark.log.schemas import SchemaChange, StoredSchema
from bkspark.log.store import LogStore
from bkspark.metadata.memory import Fault, MemoryStore, MemoryTree
from bkspark.metadata.tree import ANY_VERSION, Operation, Set, Stat
from tests.log.routed_logs import Q0, Logs, in_logs
from tests.log.world import JOB, TurningTree, closed
from tests.planting import changed


@in_logs("a", "b", "c")
async def test_a_commit_is_in_all_of_its_logs(logs: Logs) -> None:
    assert await logs.commit(a=1, b=2)
    assert await logs.content() == {"a": [1], "b": [2], "c": []}
    assert await logs.store.attempts.pending_ids("a") == set()


@in_logs("a", "b")
async def test_a_delta_of_a_version_that_the_head_never_had_is_damage(logs: Logs) -> None:
    assert await logs.commit(a=1, b=2)
    await logs.store.heads.tree.set(delta_path("a"), b'{"base":1000,"changed":{},"version":1}', ANY_VERSION)
    with pytest.raises(MetadataFormat, match=delta_path("a")):
        await logs.another_store().snapshot("a")


@in_logs("a", "b")
async def test_each_log_of_a_commit_gets_one_mark_of_its_time(logs: Logs) -> None:
    now_ms = 1_000
    commits = RoutedCommits(LogStore(TurningTree(logs.server), "/ledgers", lambda: now_ms))
    for epoch in range(300):
        now_ms = 1_000 + epoch
        parts = [await logs.part("a", 2 * epoch), await logs.part("b", 2 * epoch + 1)]
        assert await commits.publish(parts, "q", Publisher("q", epoch))
        assert len(logs.server.node(delta_path("a")).data) <= 2 * DELTA_BYTES_MAX
    for name in logs.names:
        timeline = await (await logs.another_store().snapshot(name)).times((0, 0), (300, 0))
        assert [timeline.of_entries(each, 0, 1) for each in range(300)] == [((0, 1_000 + each),) for each in range(300)]


@in_logs("a", "b", "c")
async def test_a_commit_has_one_time_in_all_of_its_logs(logs: Logs) -> None:
    ticks = itertools.count(1_000)
    commits = RoutedCommits(LogStore(TurningTree(logs.server), "/ledgers", lambda: next(ticks)))
    for first in (0, 3):
        parts = [await logs.part(name, first + i) for i, name in enumerate(logs.names)]
        assert await commits.publish(parts, f"j{first}")
    found = set()
    for name in logs.names:
        timeline = await (await logs.another_store().snapshot(name)).times((0, 0), (2, 0))
        found.add(tuple(timeline.of_entries(each, 0, 1)[0][1] for each in range(2)))
    ((one, other),) = found
    assert one is not None
    assert other is not None
    assert one < other


@in_logs("a", "b")
async def test_a_commit_is_one_transaction_that_leaves_the_heads_alone(logs: Logs) -> None:
    await logs.commit(Q0, a=1, b=2)
    heads = [logs.server.node(f"/bkspark/logs/{name}").version for name in logs.names]
    parts = [await logs.part("a", 3), await logs.part("b", 4)]
    before = logs.server.writes
    assert await logs.commits.publish(parts, "q", Publisher("q", 1))
    assert logs.server.writes - before == 1 + 2  # the commit, and the ends of two registrations
    assert [logs.server.node(f"/bkspark/logs/{name}").version for name in logs.names] == heads
    assert await logs.content() == {"a": [1, 3], "b": [2, 4]}


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("write", range(10))
def test_a_lost_answer_at_any_write_neither_loses_nor_repeats_a_commit(write: int, fault: Fault) -> None:
    async def run() -> None:
        logs = await Logs("a", "b").create()
        parts = [await logs.part("a", 1), await logs.part("b", 2)]
        logs.server.faults = {logs.server.writes + write: fault}
        assert await logs.commits.publish(parts, "q", Q0)
        assert await logs.content() == {"a": [1], "b": [2]}
        assert not await logs.commits.publish(parts, "q", Q0)
        assert await logs.content() == {"a": [1], "b": [2]}

    asyncio.run(run())


class Ended(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("is_second", [False, True], ids=["first commit", "later commit"])
@pytest.mark.parametrize("write", range(12))
def test_a_process_that_ends_at_any_write_leaves_all_of_its_commit_or_nothing(write: int, is_second: bool) -> None:
    async def run() -> None:
        logs = await Logs("a", "b").create()
        before: dict[str, list[int]] = {"a": [], "b": []}
        if is_second:
            await logs.commit(Q0, a=1, b=2)
            before = {"a": [1], "b": [2]}
        parts = [await logs.part("a", 3), await logs.part("b", 4)]
        publisher = Publisher("q", int(is_second))
        end_at(logs.server, write)
        with contextlib.suppress(Ended):
            await logs.commits.publish(parts, "q", publisher)
        go_on(logs.server)
        after = {"a": [*before["a"], 3], "b": [*before["b"], 4]}
        assert await logs.content() in (before, after)
        # A process that repeats the epoch publishes it once.
        again = RoutedCommits(logs.another_store())
        if not await again.has_published(publisher):
            assert await again.publish(parts, "q", publisher)
        assert await logs.content() == after

    asyncio.run(run())


def end_at(server: MemoryStore, write: int) -> None:
    """Let the process end in place of its n-th write from now on."""
    end, whole = server.writes + write, MemoryStore.write

    def ending(operations: Sequence[object], owner: int, sequential: bool) -> list[str]:
        if server.writes >= end:
            raise Ended
        return whole(server, operations, owner, sequential)  # type: ignore[arg-type]

    server.write = ending  # type: ignore[method-assign]


def go_on(server: MemoryStore) -> None:
    del server.write


@in_logs("a", "b")
async def test_a_repeated_version_changes_nothing_whatever_its_logs_are(logs: Logs) -> None:
    assert await logs.commit(Q0, a=1)
    assert not await logs.commit(Q0, a=2, b=3)
    assert await logs.content() == {"a": [1], "b": []}


@in_logs("a", "b")
async def test_a_version_of_another_query_is_refused(logs: Logs) -> None:
    await logs.commit(Publisher("app", 3, "q1"), a=1, b=2)
    with pytest.raises(VersionPublished, match="by query q1") as refused:
        await logs.commit(Publisher("app", 2, "q2"), a=3, b=4)
    assert refused.value.last_version == 3
    assert await logs.content() == {"a": [1], "b": [2]}


@in_logs("a", "b")
async def test_a_version_that_one_log_has_by_itself_is_refused_with_its_name(logs: Logs) -> None:
    await logs.store.attempts.add("b", 1, JOB)
    await logs.store.append_ledgers("b", closed(1), publisher=Q0)
    with pytest.raises(VersionPublished, match="log b has it, by a write to that log alone"):
        await logs.commit(Q0, a=2, b=3)
    assert await logs.content() == {"a": [], "b": [1]}


@in_logs("a", "b")
async def test_a_write_to_one_log_does_not_repeat_what_was_routed(logs: Logs) -> None:
    await logs.commit(Q0, a=1, b=2)
    await logs.store.attempts.add("a", 3, JOB)
    assert not (await logs.store.append_ledgers("a", closed(3), publisher=Q0)).is_new
    assert await logs.content() == {"a": [1], "b": [2]}


@in_logs("a", "b")
async def test_one_log_that_may_not_be_written_fails_the_commit_by_name(logs: Logs) -> None:
    with pytest.raises(DataLoss, match="ledger 2 is not pending for log b"):
        await logs.commits.publish([await logs.part("a", 1), Part("b", tuple(closed(2)))], "j1")
    with pytest.raises(NoSuchLog, match="log missing does not exist"):
        await logs.commits.publish([await logs.part("a", 3), Part("missing", tuple(closed(4)))], "j1")
    other = SchemaChange(StoredSchema("arrow", "{}"), "0" * 32)
    with pytest.raises(SchemaMismatch, match="log b got another schema"):
        await logs.commits.publish([await logs.part("a", 5), await logs.part("b", 6, schema=other)], "j1")
    assert await logs.content() == {"a": [], "b": []}


@in_logs("a", "b")
async def test_a_log_has_one_part(logs: Logs) -> None:
    with pytest.raises(ValueError, match="a log has several parts"):
        await logs.commits.publish([await logs.part("a", 1), await logs.part("a", 2)], "j1")


@in_logs("a", "b")
async def test_a_log_that_is_closed_to_this_client_fails_the_commit_by_name(logs: Logs) -> None:
    parts = [await logs.part("a", 1), await logs.part("b", 2)]
    refusing = RoutedCommits(LogStore(RefusingTree(logs.server, delta_path("b")), "/ledgers"))
    with pytest.raises(MetadataAccessDenied, match="/bkspark/logs/b/delta"):
        await refusing.publish(parts, "j1")
    assert await logs.content() == {"a": [], "b": []}


@in_logs("a", "b")
async def test_a_schema_comes_with_the_commit(logs: Logs) -> None:
    stored = StoredSchema("arrow", "{}")
    change = SchemaChange(stored, None)
    await logs.commits.publish([await logs.part("a", 1, schema=change), await logs.part("b", 2)], "j1")
    snapshot = await logs.store.snapshot("a")
    assert [await snapshot.schema(ref) for ref in snapshot.schemas] == [stored]
    assert (await logs.store.snapshot("b")).schemas == ()


@in_logs("a", "b")
async def test_every_other_change_of_a_log_keeps_what_was_routed(logs: Logs) -> None:
    await logs.commit(Q0, a=1, b=2)
    for ledger_id in (3, 5):
        await logs.store.attempts.add("a", ledger_id, JOB)
        await logs.store.append_ledgers("a", closed(ledger_id))
        await logs.commit(a=ledger_id + 1, b=ledger_id + 10)
    assert await logs.content() == {"a": [1, 3, 4, 5, 6], "b": [2, 13, 15]}
    await logs.store.truncate("a", Position(1, 3, 10), at_ledger_end=True, closed=[])
    assert await logs.content() == {"a": [4, 5, 6], "b": [2, 13, 15]}
    await logs.store.attempts.add("a", 7, SegmentOwner("writer", "w"))
    assert await logs.store.open_writer("a", 7, "0" * 16, []) == 5
    await logs.commit(b=20)
    assert (await logs.content())["a"] == [4, 5, 6, 7]


@in_logs("a", "b")
async def test_the_version_of_a_log_rises_with_each_change(logs: Logs) -> None:
    versions = [(await logs.store.snapshot("a")).version]
    for ledger_id in range(1, 20, 2):
        if ledger_id % 4 == 1:
            await logs.commit(a=ledger_id, b=ledger_id + 1)
        else:
            await logs.store.attempts.add("a", ledger_id, JOB)
            await logs.store.append_ledgers("a", closed(ledger_id))
        versions.append((await logs.store.snapshot("a")).version)
    assert versions == sorted(set(versions))


@in_logs("a", "b")
async def test_positions_of_what_was_routed_stay_valid(logs: Logs) -> None:
    await logs.commit(Q0, a=1, b=2)
    await logs.commit(a=3, b=4)
    before = await (await logs.store.snapshot("a")).ledgers()
    await logs.store.attempts.add("a", 5, JOB)
    await logs.store.append_ledgers("a", closed(5))
    assert (await (await logs.store.snapshot("a")).ledgers())[:2] == before


@pytest.mark.slow
@in_logs("a", "b")
async def test_a_delta_stays_small_however_many_commits_there_are(logs: Logs) -> None:
    for number in range(0, 600, 2):
        await logs.commit(Publisher("q", number), a=number + 1, b=number + 2)
        assert len(logs.server.node(delta_path("a")).data) <= DELTA_BYTES_MAX
    assert (await logs.content())["a"] == list(range(1, 600, 2))


def test_deltas_that_would_not_fit_into_one_transaction_together_are_folded_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        logs = await Logs(*(f"log{number:02}" for number in range(60))).create()
        monkeypatch.setattr(routing, "NODE_BYTES_MAX", 400 * len(logs.names))
        ledger_ids, epochs = itertools.count(), 6
        for epoch in range(epochs):
            parts = [await logs.part(name, next(ledger_ids)) for name in logs.names]
            assert await logs.commits.publish(parts, "q", Publisher("q", epoch))
        assert (await logs.content())["log07"] == [7 + epoch * len(logs.names) for epoch in range(epochs)]

    asyncio.run(run())


@in_logs("a", "b")
async def test_many_ledgers_of_one_commit_travel_in_a_page(logs: Logs) -> None:
    many = await logs.part("a", *range(1, 3_001))
    await logs.commits.publish([many, await logs.part("b", 9_000)], "j1")
    assert len(logs.server.node(delta_path("a")).data) <= DELTA_BYTES_MAX
    assert (await logs.content())["a"] == list(range(1, 3_001))


@in_logs("a", "b")
async def test_slices_of_a_shared_ledger_grow_in_the_delta(logs: Logs) -> None:
    for log, ledger_id in (("a", 1), ("b", 2)):
        await logs.store.attempts.add(log, ledger_id, SegmentOwner("query", "q"))
    for epoch in range(50):
        parts = [
            Part(log, (SegmentFacts(ledger_id, epoch, 10, epoch),), (ledger_id,))
            for log, ledger_id in (("a", 1), ("b", 2))
        ]
        assert await logs.commits.publish(parts, "q", Publisher("q", epoch))
    (listed,) = await (await logs.store.snapshot("a")).ledgers()
    assert (listed.first_entry, listed.last_entry, listed.length) == (0, 49, 500)
    assert await logs.store.attempts.pending_ids("a") == {1}
    assert logs.server.node("/bkspark/logs/a").version <= 2


@in_logs("a", "b")
async def test_overwriting_replaces_in_all_logs_and_condemns_the_old_ledgers(logs: Logs) -> None:
    await logs.commit(Q0, a=1, b=2)

    async def nothing_open(_: str) -> list[int]:
        return []

    parts = [await logs.part("a", 3), await logs.part("b", 4)]
    assert await logs.commits.publish(parts, "j1", fence=nothing_open)
    assert await logs.content() == {"a": [3], "b": [4]}
    deleted: list[int] = []

    async def delete(ledger_id: int) -> None:
        deleted.append(ledger_id)

    for name in logs.names:
        await logs.store.attempts.sweep(name, delete)
    assert sorted(deleted) == [1, 2]


@in_logs("a", "b")
async def test_a_routed_log_can_be_deleted_and_made_again(logs: Logs) -> None:
    await logs.commit(Q0, a=1, b=2)

    async def delete(_: int) -> None:
        return None

    assert await logs.store.delete("a", delete, closed=[])
    assert await logs.content() == {"b": [2]}
    await logs.store.create("a")
    await logs.commit(a=3, b=4)
    assert await logs.content() == {"a": [3], "b": [2, 4]}


@pytest.mark.slow
def test_too_many_logs_are_refused_before_anything_is_published() -> None:
    async def run() -> None:
        names = [f"{number:04d}" + "x" * 190 for number in range(1_800)]
        logs = await Logs(*names).create()
        parts = [await logs.part(name, number + 1) for number, name in enumerate(names)]
        with pytest.raises(MetadataError, match=r"a commit to 1800 logs needs [0-9]+ bytes.*write to fewer logs"):
            await logs.commits.publish(parts, "j1")
        assert await logs.commits.publish(parts[:1_000], "j1", Publisher("n" * 40, 7, "q" * 36))

    asyncio.run(run())


def test_commit_that_exactly_fills_a_transaction_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first commits of two pairs of equal logs need the same number of bytes."""

    async def run() -> None:
        logs = await Logs("a", "b", "c", "d").create()
        parts = [await logs.part(name, number + 1) for number, name in enumerate(logs.names)]
        monkeypatch.setattr(routing, "NODE_BYTES_MAX", 0)
        with pytest.raises(MetadataError, match=r"a commit to 2 logs needs [0-9]+ bytes") as refused:
            await logs.commits.publish(parts[:2], "j1")
        (needed,) = re.findall("needs ([0-9]+) bytes", str(refused.value))
        monkeypatch.setattr(routing, "NODE_BYTES_MAX", int(needed))
        assert await logs.commits.publish(parts[2:], "j1")
        assert await logs.content() == {"a": [], "b": [], "c": [3], "d": [4]}

    asyncio.run(run())


@pytest.mark.slow
def test_a_thousand_logs_with_long_names_fit_one_transaction_commit_after_commit() -> None:
    async def run() -> None:
        names = [f"{number:04d}" + "x" * 196 for number in range(1_000)]
        logs = await Logs(*names).create()
        logs.store = LogStore(logs.server.session(), "/ledgers")
        commits = RoutedCommits(logs.store)
        ledger_ids = itertools.count(10_000_000)
        for turn in range(4):
            parts = [await logs.part(name, *itertools.islice(ledger_ids, 7)) for name in names]
            assert await commits.publish(parts, "q", Publisher("n" * 40, turn, "q" * 36))
        assert len(await logs.store.snapshot(names[0])) == 4 * 7

    asyncio.run(run())


@in_logs(*"abcdef")
async def test_overlapping_commits_at_once_all_take_effect_whole(logs: Logs) -> None:
    """Several processes commit to overlapping logs, and one appends to single logs, all at the same time."""
    done: dict[int, str] = {}

    async def commit(number: int) -> None:
        commits = RoutedCommits(logs.another_store())
        for turn in range(10):
            names = [logs.names[(number + turn + step) % 6] for step in range(4)]
            first = 1_000 * number + 10 * turn
            parts = [await logs.part(name, first + index) for index, name in enumerate(names)]
            done.update({first + index: name for index, name in enumerate(names)})
            assert await commits.publish(parts, f"q{number}", Publisher(f"q{number}", turn))

    async def append() -> None:
        store = logs.another_store()
        for turn in range(30):
            name = logs.names[turn % 6]
            await store.attempts.add(name, 100_000 + turn, JOB)
            await store.append_ledgers(name, closed(100_000 + turn))
            done[100_000 + turn] = name
            await asyncio.sleep(0)

    async def watch() -> None:
        store = logs.another_store()
        while not ended.is_set():
            await asyncio.sleep(0)
            content = await logs.content(store)
            for number in range(1, 5):
                for turn in range(10):
                    first = 1_000 * number + 10 * turn
                    seen = sum(first + index in content[done[first + index]] for index in range(4) if first in done)
                    assert seen in (0, 4), "half of a commit"

    ended = asyncio.Event()
    watching = asyncio.create_task(watch())
    await asyncio.gather(*map(commit, range(1, 5)), append())
    ended.set()
    await watching
    content = await logs.content()
    assert sorted(itertools.chain(*content.values())) == sorted(done)
    assert all(ledger_id in content[name] for ledger_id, name in done.items())


@in_logs("a", "b")
async def test_forgotten_records_do_not_let_a_version_be_published_twice(logs: Logs) -> None:
    await logs.commit(Q0, a=1, b=2)
    (record,) = await logs.server.session().children(ROUTED_ROOT)
    await logs.server.session().delete(f"{ROUTED_ROOT}/{record}")
    with pytest.raises(VersionPublished):
        await logs.commit(Q0, a=3, b=4)
    assert await logs.content() == {"a": [1], "b": [2]}


@in_logs("a", "b")
async def test_a_job_without_a_name_leaves_no_record(logs: Logs) -> None:
    await logs.commit(a=1, b=2)
    assert await logs.server.session().children(ROUTED_ROOT) == []


class RefusingTree(MemoryTree):
    """A session that may not change one node."""

    def __init__(self, server: MemoryStore, path: str) -> None:
        super().__init__(server, session_id=2_001, timeout_s=10.0)
        self._path = path

    async def transaction(self, operations: Sequence[Operation]) -> None:
        if any(isinstance(each, Set) and each.path == self._path for each in operations):
            raise MetadataAccessDenied(f"ZooKeeper refuses a transaction of {self._path}")
        await super().transaction(operations)


class MeanwhileTree(MemoryTree):
    """A session in whose first read of one node another process is faster."""

    def __init__(self, server: MemoryStore, path: str, then: Callable[[], Awaitable[object]]) -> None:
        super().__init__(server, session_id=2_000, timeout_s=10.0)
        self._path = path
        self._then: Callable[[], Awaitable[object]] | None = then

    async def get(self, path: str) -> tuple[bytes, Stat]:
        if path == self._path and self._then is not None:
            then, self._then = self._then, None
            await then()
        return await super().get(path)


@in_logs("a", "b")
async def test_a_commit_between_the_reads_of_two_logs_is_seen_in_both(logs: Logs) -> None:
    await logs.commit(Q0, a=1, b=2)
    tree = MeanwhileTree(logs.server, "/bkspark/logs/b", lambda: logs.commit(a=3, b=4))
    assert await logs.content(LogStore(tree, "/ledgers")) == {"a": [1, 3], "b": [2, 4]}


@in_logs("a", "b")
async def test_the_first_commit_to_new_logs_between_their_listing_and_reading_is_seen_whole(logs: Logs) -> None:
    async def commit() -> None:
        await logs.store.create("c")
        await logs.commit(b=3, c=4)

    await logs.commit(Q0, a=1, b=2)
    tree = MeanwhileTree(logs.server, "/bkspark/logs/b", commit)
    assert await logs.content(LogStore(tree, "/ledgers")) == {"a": [1], "b": [2, 3], "c": [4]}


@in_logs("a", "b")
async def test_a_head_that_is_changed_before_its_delta_is_read_is_read_again(logs: Logs) -> None:
    async def change() -> None:
        await logs.store.attempts.add("a", 3, JOB)
        await logs.store.append_ledgers("a", closed(3))
        await logs.commit(a=4, b=5)

    await logs.commit(Q0, a=1, b=2)
    tree = MeanwhileTree(logs.server, delta_path("a"), change)
    listed = await (await LogStore(tree, "/ledgers").snapshot("a")).ledgers()
    assert [each.ledger_id for each in listed] == [1, 3, 4]


class _OthersPublish(MemoryTree):
    """A session that lets another process publish just before it deletes the first record."""

    def __init__(self, server: MemoryStore, publish: Callable[[], Awaitable[object]]) -> None:
        super().__init__(server, session_id=1_000, timeout_s=10.0)
        self._publish: Callable[[], Awaitable[object]] | None = publish

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        publish, self._publish = self._publish, None
        if publish is not None:
            await publish()
        await super().delete(path, version)


def test_record_of_a_publisher_that_has_just_published_is_not_removed_for_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routing, "RECORDS_MAX", 20)

    async def test() -> None:
        logs = await Logs("a", "b").create()
        assert await logs.commit(Q0, a=1, b=2)
        for number in range(19):
            logs.server.now_ms += 1
            assert await logs.commit(Publisher(f"p{number}", 0), a=10 + number, b=40 + number)

        async def publish() -> None:
            assert await logs.commit(Publisher("q", 1), a=3, b=4)

        commits = RoutedCommits(LogStore(_OthersPublish(logs.server, publish), "/ledgers"))
        part = await logs.part("a", 80)
        assert await commits.publish([part], "j", Publisher("new", 0))
        assert await commits.has_published(Publisher("q", 1))
        assert not await commits.has_published(Publisher("p0", 0)), "the other old one was removed"

    asyncio.run(test())


@in_logs("a", "b")
async def test_publishers_that_have_not_published_for_longest_are_forgotten_when_there_are_too_many(logs: Logs) -> None:
    logs.server.now_ms = 1_000
    names = [f"q{number}" for number in range(20)]
    for number, name in enumerate(names):
        logs.server.now_ms += 1
        assert await logs.commit(Publisher(name, 0), a=number)
    logs.server.now_ms += 1
    assert await logs.commit(Publisher(names[0], 1), a=100)  # the latest one now
    with changed(routing, "RECORDS_MAX", lambda old: 20):
        assert await logs.commit(Publisher("another", 0), a=101)
    found = await logs.server.session().children(ROUTED_ROOT)
    records = [routing.record_path(name).rpartition("/")[2] for name in names]
    assert [name for name, record in zip(names, records) if record not in found] == ["q1", "q2"]
    assert len(found) == 19
