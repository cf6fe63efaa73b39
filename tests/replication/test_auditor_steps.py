"""What an auditor does when it is elected, loses the election, or must wait; in virtual time, without bookies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bkspark.client import Client
from bkspark.errors import MetadataError, SessionExpired
from bkspark.metadata.bookie_plans import MAINTENANCE, BookiePlan
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.tree import Stat
from bkspark.metadata.uri import MetadataUri
from bkspark.wall_clock import wall_clock_ms
from bookie_service.replication.auditor import Auditor
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.options import AuditOptions, AutoRecoveryOptions
from tests.ledger.in_process import URI
from tests.replication.worker_parts import ALSO_LOST, CLOSED, LOST
from tests.simulation.virtual_loop import refused_connections, run_in_virtual_time

DELAY_S = 100.0
ROOT = MetadataUri.parse(URI).root


class SlowTree(MemoryTree):
    """A session in which the metadata of ledgers are not answered while `hangs`, nor anything while `is_away`."""

    def __init__(self, store: MemoryStore) -> None:
        session = store.session()
        super().__init__(store, session.session_id, session.session_timeout_s)
        store._sessions[session.session_id] = self
        self.hangs = False
        self.is_away = False
        self.before_cookies: Callable[[], Awaitable[None]] | None = None
        """What happens once before the next reading of the list of cookies."""

    async def get(self, path: str) -> tuple[bytes, Stat]:
        if self.is_away:
            raise MetadataError("the store is away")
        if self.hangs and path.startswith(f"{ROOT}/00"):
            await asyncio.get_running_loop().create_future()
        return await super().get(path)

    async def children(self, path: str) -> list[str]:
        act = self.before_cookies
        if path == f"{ROOT}/cookies" and act is not None:
            self.before_cookies = None
            await act()
            await asyncio.sleep(0)
        return await super().children(path)


class Process:
    """A process that takes part in the election of auditors."""

    def __init__(self, tree: SlowTree, client: Client, cluster: RepairedCluster, auditor: Auditor) -> None:
        self.tree = tree
        self.client = client
        self.cluster = cluster
        self.auditor = auditor

    async def listed(self) -> list[int]:
        return [ledger_id async for ledger_id in self.cluster.store.ids()]


class World:
    """A metadata store with one ledger, whose only bookie is lost since the beginning."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.processes: list[Process] = []
        self.ledger_id = -1

    async def prepare(self) -> None:
        await BookieRegistry(self.store.session(), MetadataUri.parse(URI)).initialize_cluster()
        await self.store.session().create(f"{ROOT}/cookies/{LOST}", b"4\n", make_parents=True)

    async def process(self, **options: float) -> Process:
        """Return a new candidate."""
        tree = SlowTree(self.store)
        client = Client(URI, tree=tree)
        cluster = await RepairedCluster.of(client)
        audit = AuditOptions(**{"bookie_check_interval_s": 0, "ledger_check_interval_s": 0, **options})  # type: ignore[arg-type]
        auditor = cluster.auditor(f"process {len(self.processes)}", AutoRecoveryOptions(audit=audit))
        self.processes.append(Process(tree, client, cluster, auditor))
        if self.ledger_id < 0:
            self.ledger_id, _ = await cluster.context.ledgers.create(CLOSED)
        return self.processes[-1]

    def expire(self, process: Process) -> None:
        """Let a process lose its session."""
        self.store.expire(process.tree)


def play(test: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        world = World()
        await world.prepare()
        try:
            await test(world)
        finally:
            for process in world.processes:
                await process.client.close()

    run_in_virtual_time(run(), refused_connections)


def test_auditor_that_is_elected_again_gives_lost_bookies_the_whole_delay() -> None:
    """While another process was the auditor, it did not see them come and go."""

    async def test(world: World) -> None:
        one = await world.process(lost_bookie_delay_s=DELAY_S)
        other = await world.process(lost_bookie_delay_s=DELAY_S)
        assert await one.auditor.refresh() == DELAY_S
        assert await other.auditor.refresh() is None
        world.expire(one)
        assert await one.auditor.refresh() is None
        await asyncio.sleep(60)
        await other.client.close()
        assert await one.auditor.refresh() == DELAY_S
        await asyncio.sleep(DELAY_S)
        await one.auditor.refresh()
        assert await one.listed() == [world.ledger_id]

    play(test)


@pytest.mark.parametrize("why", ["another is elected", "autorecovery is disabled"])
def test_auditor_that_must_not_audit_ends_its_check_of_ledgers(why: str) -> None:
    async def test(world: World) -> None:
        one = await world.process(ledger_check_interval_s=3600.0, lost_bookie_delay_s=DELAY_S)
        other = await world.process()
        await one.auditor.refresh()
        assert await other.auditor.refresh() is None
        assert one.auditor._checking is not None
        one.tree.hangs = True
        await asyncio.sleep(1)
        checking = one.auditor._checking
        assert not checking.done()
        if why == "another is elected":
            world.expire(one)
        else:
            await one.cluster.store.set_enabled(False)
        await one.auditor.refresh()
        await asyncio.wait([checking], timeout=1)
        assert checking.cancelled()

    play(test)


def test_audit_ends_with_the_election() -> None:
    """The next auditor may know that the bookie has come back."""

    async def test(world: World) -> None:
        one = await world.process()
        other = await world.process()
        assert await one.auditor.refresh() is None
        assert await one.listed() == [world.ledger_id]
        work = await one.cluster.store.find(world.ledger_id)
        assert work is not None
        await one.cluster.store.finish(work)
        await other.auditor.refresh()
        world.expire(one)
        with pytest.raises(SessionExpired, match="not the auditor any more"):
            await one.auditor.audit([LOST], one.auditor._is_still_elected)
        assert await one.listed() == []

    play(test)


def test_check_of_ledgers_that_ends_after_the_election_is_not_noted() -> None:
    """The next auditor would not check for a week what this one may have missed."""

    async def test(world: World) -> None:
        one, other = await world.process(), await world.process()
        await one.auditor.refresh()
        await other.auditor.refresh()
        world.expire(one)
        with pytest.raises(SessionExpired, match="not the auditor any more"):
            await one.auditor._check_ledgers()
        assert await other.cluster.store.all_checked_ms() is None

    play(test)


def test_auditor_looks_again_when_the_first_maintenance_ends() -> None:
    async def test(world: World) -> None:
        one = await world.process()
        plans, now_ms = one.cluster.plans(), wall_clock_ms()
        await plans.prepare()
        for bookie, hours in ((LOST, 1), (ALSO_LOST, 2)):
            await plans.set(BookiePlan(bookie, MAINTENANCE, "an operator", now_ms, now_ms + hours * 3_600_000))
        wait_s = await one.auditor.refresh()
        assert wait_s is not None
        assert 0 < wait_s <= 3600
        assert await one.listed() == [], "the bookie will be back"
        await plans.end(LOST)
        await one.auditor.refresh()
        assert await one.listed() == [world.ledger_id]

    play(test)


def test_delay_that_is_written_again_asks_for_an_audit_now_and_an_old_one_does_not() -> None:
    async def test(world: World) -> None:
        one = await world.process(lost_bookie_delay_s=DELAY_S)
        for waited_s in range(3):
            assert await one.auditor.refresh() == DELAY_S - waited_s
            await asyncio.sleep(1)
        assert await one.listed() == []
        await one.cluster.store.set_lost_bookie_recovery_delay_s(int(DELAY_S))
        await one.auditor.refresh()
        assert await one.listed() == [world.ledger_id]

    play(test)


def test_auditor_that_ends_watches_nothing_any_more() -> None:
    async def test(world: World) -> None:
        one = await world.process(lost_bookie_delay_s=DELAY_S)
        await one.cluster.context.watcher.replacements()
        before = len(world.store.watched)
        running = asyncio.ensure_future(one.auditor.run())
        await asyncio.sleep(1)
        assert len(world.store.watched) > before
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert len(world.store.watched) == before

    play(test)
