"""How a commit to several logs ends that is disturbed: by lost connections, a later version, or another process."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence

import pytest

from bkspark.errors import DataLoss, MetadataError, MetadataFormat
from bkspark.log.formats import Publisher
from bkspark.log.heads import CONNECTION_LOSSES_MAX
from bkspark.log.routing import ROUTED_ROOT, RoutedCommits, record_path
from bkspark.log.store import LogStore
from bkspark.metadata.memory import Fault, MemoryStore
from bkspark.metadata.tree import ANY_VERSION, Operation, Set, Stat
from tests.log.routed_logs import Q0, Logs, in_logs
from tests.log.world import OutageTree, TurningTree

REPEATED = CONNECTION_LOSSES_MAX - 1


@in_logs("a", "b")
async def test_commit_whose_connection_is_lost_again_and_again_says_whether_its_outcome_is_known(logs: Logs) -> None:
    def lose() -> None:
        first = logs.server.writes
        logs.server.faults.update((first + number, Fault.LOST_BEFORE) for number in range(CONNECTION_LOSSES_MAX))

    parts = [await logs.part("a", 1), await logs.part("b", 2)]
    lose()
    # The first commit of all makes room for its record before its transaction.
    with pytest.raises(MetadataError, match="a commit to 2 logs: nothing was published: the connection"):
        await logs.commits.publish(parts, "j1", Q0)
    assert await logs.commits.publish(parts, "j1", Q0)
    parts = [await logs.part("a", 3), await logs.part("b", 4)]
    lose()
    with pytest.raises(MetadataError, match="a commit to 2 logs: whether it took effect is unknown: the connection"):
        await logs.commits.publish(parts, "j1", Publisher("q", 1))
    assert not logs.server.faults
    assert await logs.content() == {"a": [1], "b": [2]}


class OvertakenTree(TurningTree):
    """A session that another process precedes with a commit, and whose connection is lost after the answer."""

    def __init__(self, server: MemoryStore, first: Callable[[], Awaitable[object]]) -> None:
        super().__init__(server)
        self._first = first
        self._is_away = False

    async def get(self, path: str) -> tuple[bytes, Stat]:
        if self._is_away:
            raise MetadataError("the connection to the metadata store was lost")
        return await super().get(path)

    async def transaction(self, operations: Sequence[Operation]) -> None:
        if operations[0].path == record_path(Q0.name) and not self._is_away:
            await self._first()
            self._is_away = True
        await super().transaction(operations)


@in_logs("a", "b", "c", "d")
async def test_commit_that_another_process_precedes_has_published_nothing(logs: Logs) -> None:
    """The answer to its transaction came: the record of its query is there already."""
    parts = [await logs.part("a", 1), await logs.part("b", 2)]
    others = [await logs.part("c", 3), await logs.part("d", 4)]
    tree = OvertakenTree(logs.server, lambda: logs.commits.publish(others, "j1", Q0))
    with pytest.raises(MetadataError, match="a commit to 2 logs: nothing was published: the connection"):
        await RoutedCommits(LogStore(tree, "/ledgers")).publish(parts, "j1", Publisher(Q0.name, 1))
    assert await logs.content() == {"a": [], "b": [], "c": [3], "d": [4]}


@in_logs("a")
async def test_record_of_a_later_version_is_refused(logs: Logs) -> None:
    await logs.commit(Q0, a=1)
    tree = logs.server.session()
    await tree.set(record_path(Q0.name), b'{"version":99}', ANY_VERSION)
    with pytest.raises(MetadataFormat, match="use a newer bkspark"):
        await logs.commit(Publisher("q", 1), a=2)


@pytest.mark.parametrize(
    "data", [b"", b"[" * 100_000, b'{"version":1}', b'{"commit":"a","published":[["q","x"]],"version":1}']
)
def test_bytes_that_are_not_a_record_are_refused_by_their_path(data: bytes) -> None:
    @in_logs("a")
    async def test(logs: Logs) -> None:
        await logs.commit(Q0, a=1)
        await logs.server.session().set(record_path(Q0.name), data, ANY_VERSION)
        with pytest.raises(MetadataFormat, match=f"{record_path(Q0.name)} is not a record of routed commits"):
            await logs.commit(Publisher("q", 1), a=2)

    test()


@pytest.mark.parametrize("turns", range(12))
def test_one_of_two_processes_that_publish_a_version_at_once_publishes_it(turns: int) -> None:
    @in_logs("a", "b")
    async def test(logs: Logs) -> None:
        mine = [await logs.part("a", 1), await logs.part("b", 2)]
        theirs = [await logs.part("a", 3), await logs.part("b", 4)]

        async def later() -> bool:
            for _ in range(turns):
                await asyncio.sleep(0)
            return await RoutedCommits(logs.another_store()).publish(theirs, "j2", Q0)

        published = await asyncio.gather(logs.commits.publish(mine, "j1", Q0), later())
        assert sorted(published) == [False, True]
        assert await logs.content() == ({"a": [1], "b": [2]} if published[0] else {"a": [3], "b": [4]})

    test()


@pytest.mark.parametrize("replaces", [False, True])
def test_job_that_is_published_again_after_an_unknown_outcome_is_in_its_logs_once(replaces: bool) -> None:
    @in_logs("a", "b")
    async def test(logs: Logs) -> None:
        parts = [await logs.part("a", 1), await logs.part("b", 2)]
        tree = OutageTree(logs.server, f"{ROUTED_ROOT}/{hashlib.sha256(b'j1').hexdigest()[:32]}", REPEATED)
        tree.begins = 0
        commits = RoutedCommits(LogStore(tree, "/ledgers"))
        fence = nothing_open if replaces else None
        with pytest.raises(MetadataError, match="whether it took effect is unknown"):
            await commits.publish(parts, "j1", fence=fence)
        with pytest.raises(DataLoss, match="ledger 1 is not pending for log a: it is published already"):
            await commits.publish(parts, "j1", fence=fence)
        assert await logs.content() == {"a": [1], "b": [2]}

    test()


async def nothing_open(log: str) -> list[int]:
    return []


class LostTree(TurningTree):
    """A session whose connection is lost for good after its first commit."""

    _is_away = False

    async def transaction(self, operations: Sequence[Operation]) -> None:
        await super().transaction(operations)
        self._is_away = Set in map(type, operations)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        if self._is_away:
            raise MetadataError("the connection to the metadata store was lost")
        await super().delete(path, version)


@in_logs("a", "b")
async def test_job_whose_commit_took_effect_does_not_fail_because_nothing_can_be_removed_after_it(logs: Logs) -> None:
    """Spark would run the job again, and its rows would be there twice."""
    await logs.commit(Q0, a=1, b=2)  # the logs have deltas
    parts = [await logs.part("a", 3), await logs.part("b", 4)]
    assert await RoutedCommits(LogStore(LostTree(logs.server), "/ledgers")).publish(parts, "j1")
    assert await logs.content() == {"a": [1, 3], "b": [2, 4]}
