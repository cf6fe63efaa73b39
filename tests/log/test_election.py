"""Electing a log's leader: one at a time, in order, and a late one is kept out by the log's fence."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest
from kazoo.client import KazooClient

from bkspark.errors import LedgerFenced, MetadataAccessDenied, MetadataError
from bkspark.log.election import Election
from bkspark.metadata.memory import Fault, MemoryStore, MemoryTree
from bkspark.metadata.tree import Callback, Stat
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree
from tests.ledger.in_process import InProcessCluster, run

PATH = "/bkspark/elections/clicks"
ONE = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
DEADLINE_S = 120.0


async def in_line(election: Election, count: int) -> None:
    """Wait until this many contend."""
    async with asyncio.timeout(DEADLINE_S):
        while len(await election.contenders()) < count:
            await asyncio.sleep(0.01)


async def lead_in_turn(trees) -> None:
    elections = [Election(tree, PATH, f"process {number}") for number, tree in enumerate(trees)]
    waiting = []
    for number, election in enumerate(elections):
        waiting.append(asyncio.ensure_future(election.win()))
        await in_line(elections[0], number + 1)
    async with asyncio.timeout(DEADLINE_S):
        for number, election in enumerate(elections):
            await waiting[number]
            assert not any(later.done() for later in waiting[number + 1 :])
            assert await election.contenders() == [f"process {other}" for other in range(number, len(elections))]
            assert not election.lost.is_set()
            await election.resign()
            assert election.lost.is_set()
    assert await elections[0].contenders() == []


def test_contenders_lead_one_at_a_time_in_the_order_in_which_they_came() -> None:
    store = MemoryStore()
    asyncio.run(lead_in_turn([store.session() for _ in range(3)]))


def test_nodes_beside_the_contenders_do_not_end_the_election() -> None:
    """`isdigit` is true of superscripts, which no number has: one such node ended every call."""

    async def test() -> None:
        tree = MemoryStore().session()
        for name in ("a__lock__\u00b2" + "0" * 9, "b__lock__", "c__lock__0x00000001", "0000000000"):
            await tree.create(f"{PATH}/{name}", make_parents=True)
        election = Election(tree, PATH, "process")
        await election.win()
        assert await election.contenders() == ["process"]

    asyncio.run(test())


def test_contenders_lead_in_turn_at_a_real_zookeeper_and_kazoos_take_part(zookeeper) -> None:
    uri = MetadataUri.parse(f"zk://{zookeeper.connect_string}/election/ledgers")

    async def test() -> None:
        trees = [await open_tree(uri) for _ in range(3)]
        try:
            await lead_in_turn(trees)
            ours = Election(trees[0], PATH, "ours")
            await ours.win()
            kazoo = KazooClient(zookeeper.connect_string)
            await asyncio.to_thread(kazoo.start)
            led, may_end = threading.Event(), threading.Event()

            def lead() -> None:
                led.set()
                may_end.wait(DEADLINE_S)

            theirs = asyncio.ensure_future(asyncio.to_thread(kazoo.Election(PATH, "theirs").run, lead))
            await in_line(ours, 2)
            assert await ours.contenders() == ["ours", "theirs"]
            assert not led.is_set()
            again = Election(trees[1], PATH, "again")
            waiting = asyncio.ensure_future(again.win())
            await in_line(ours, 3)
            await ours.resign()
            assert await asyncio.to_thread(led.wait, DEADLINE_S)
            assert not waiting.done()
            may_end.set()
            async with asyncio.timeout(DEADLINE_S):
                await waiting
                await theirs
            await again.resign()
            await asyncio.to_thread(kazoo.stop)
            await asyncio.to_thread(kazoo.close)
        finally:
            for tree in trees:
                await tree.close()

    asyncio.run(test())


def test_place_in_the_queue_is_given_back_though_the_store_is_away_for_some_tries() -> None:

    async def test() -> None:
        store = MemoryStore()
        mine = Election(store.session(), PATH, "mine", retry_pause_s=0.0)
        await mine.win()
        store.faults.update((store.writes + number, Fault.LOST_BEFORE) for number in range(3))
        await mine.resign()
        assert await Election(store.session(), PATH, "other").contenders() == []

    asyncio.run(test())


def test_leader_whose_node_is_deleted_has_lost() -> None:
    async def test() -> None:
        store = MemoryStore()
        leader, other = Election(store.session(), PATH, "leader"), store.session()
        await leader.win()
        (name,) = await other.children(PATH)
        assert not leader.lost.is_set()
        await other.delete(f"{PATH}/{name}")
        async with asyncio.timeout(DEADLINE_S):
            await leader.lost.wait()

    asyncio.run(test())


@pytest.mark.parametrize("fault", Fault)
def test_place_in_the_queue_whose_answer_was_lost_is_found_again(fault: Fault) -> None:
    """M1: one node, whether or not the creation took effect."""

    async def test() -> None:
        store = MemoryStore()
        tree = store.session()
        await tree.create(PATH, make_parents=True)
        store.faults[store.writes] = fault
        async with asyncio.timeout(DEADLINE_S), Election(tree, PATH, "one") as election:
            assert await election.contenders() == ["one"]

    asyncio.run(test())


class OvertakenTree(MemoryTree):
    """A session that loses the first node that it watches, just before the watch is set."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, 1 << 40, 10.0)
        self._is_overtaken = False

    async def watch(self, path: str, callback: Callback) -> Callback:
        if not self._is_overtaken:
            self._is_overtaken = True
            await self.delete(path)
        return await super().watch(path, callback)


def test_contender_whose_node_goes_before_it_is_watched_does_not_lead_without_one() -> None:
    async def test() -> None:
        store = MemoryStore()
        election = Election(OvertakenTree(store), PATH, "one")
        async with asyncio.timeout(DEADLINE_S):
            await election.win()
        assert await Election(store.session(), PATH, "other").contenders() == ["one"]
        assert not election.lost.is_set()

    asyncio.run(test())


def test_each_contender_watches_the_one_before_it_so_that_one_alone_wakes_when_the_leader_goes() -> None:
    async def test() -> None:
        store = MemoryStore()
        first, *others = (Election(store.session(), PATH, f"process {number}") for number in range(3))
        await first.win()
        waiting = []
        for number, election in enumerate(others):
            waiting.append(asyncio.ensure_future(election.win()))
            await in_line(first, number + 2)
        async with asyncio.timeout(DEADLINE_S):
            while len(store.watched) < 3:
                await asyncio.sleep(0)
        names = sorted(await store.session().children(PATH), key=lambda name: name[-10:])
        watched = [path.rpartition("/")[2] for path in store.watched]
        assert sorted(watched, key=names.index) == [names[0], names[0], names[1]], "a leader watches its own node"
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)

    asyncio.run(test())


def test_contender_before_this_one_that_goes_before_it_is_watched_is_not_waited_for() -> None:
    async def test() -> None:
        store = MemoryStore()
        await Election(store.session(), PATH, "leader").win()
        async with asyncio.timeout(DEADLINE_S):
            await Election(OvertakenTree(store), PATH, "next").win()

    asyncio.run(test())


async def no_tasks() -> None:
    """Return when what has just happened has been reported, and only the test is left to run."""
    for _ in range(5):
        await asyncio.sleep(0)
    async with asyncio.timeout(DEADLINE_S):
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)


class AwayTree(MemoryTree):
    """A session in which `exists` fails as often as a test says."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, 1 << 40, 10.0)
        self.failures = 0

    async def exists(self, path: str) -> Stat | None:
        if self.failures:
            self.failures -= 1
            raise MetadataError("the store is away")
        return await super().exists(path)


@pytest.mark.parametrize("failures", [0, 3])
def test_leader_has_lost_when_its_node_is_gone_and_not_when_it_has_changed(failures: int) -> None:
    """Also if the store cannot be asked at once."""

    async def test() -> None:
        store = MemoryStore()
        tree, other = AwayTree(store), store.session()
        leader = Election(tree, PATH, "leader", retry_pause_s=0.0)
        await leader.win()
        (name,) = await other.children(PATH)
        tree.failures = failures
        await other.set(f"{PATH}/{name}", b"another identity", -1)
        await no_tasks()
        assert not leader.lost.is_set()
        tree.failures = failures
        await other.delete(f"{PATH}/{name}")
        await no_tasks()
        assert leader.lost.is_set()

    asyncio.run(test())


def test_contender_that_has_resigned_asks_for_its_node_no_more() -> None:

    async def test() -> None:
        store = MemoryStore()
        tree, other = AwayTree(store), store.session()
        leader = Election(tree, PATH, "leader", retry_pause_s=0.0)
        await leader.win()
        (name,) = await other.children(PATH)
        tree.failures = 1 << 60
        await other.set(f"{PATH}/{name}", b"another identity", -1)
        await leader.resign()
        await no_tasks()

    asyncio.run(test())


def test_node_that_is_gone_when_it_is_to_be_removed_or_read_fails_nothing() -> None:
    """A pause is for a store that is away."""

    class Overtaken(MemoryTree):
        async def delete(self, path: str, version: int = -1) -> None:
            await super().delete(path, version)
            await super().delete(path, version)

        async def get(self, path: str) -> tuple[bytes, Stat]:
            if path.endswith(last):
                await super().delete(path)
            return await super().get(path)

    last = ""

    async def test() -> None:
        nonlocal last
        store = MemoryStore()
        leader = Election(Overtaken(store, 1 << 40, 10.0), PATH, "leader", retry_pause_s=2 * DEADLINE_S)
        await leader.win()
        joining = asyncio.ensure_future(Election(store.session(), PATH, "another").win())
        await in_line(Election(store.session(), PATH, "observer"), 2)
        last = max(await store.session().children(PATH), key=lambda name: name[-10:])
        assert await leader.contenders() == ["leader"]
        async with asyncio.timeout(DEADLINE_S):
            await leader.resign()
        joining.cancel()
        await asyncio.wait([joining])

    asyncio.run(test())


class DeniedTree(MemoryTree):
    """A session of a client that an access control list does not name."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, 1 << 40, 10.0)
        self.refusals = 0

    async def children(self, path: str) -> list[str]:
        self.refusals += 1
        raise MetadataAccessDenied(f"this client may not read {path}")


def test_client_that_may_not_contend_is_refused_at_once() -> None:
    async def test() -> None:
        tree = DeniedTree(MemoryStore())
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(MetadataAccessDenied):
                await Election(tree, PATH, "one", retry_pause_s=0.0).win()
        # `win` and the resignation asked once each: another question would get the same answer.
        assert tree.refusals == 2

    asyncio.run(test())


class LateTree(MemoryTree):
    """A session that ends for its client while the first watch is set; the server has not noticed yet."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, 1 << 40, 10.0)
        self.is_ended = False

    async def watch(self, path: str, callback: Callback) -> Callback:
        stop = await super().watch(path, callback)
        if not self.is_ended:
            self.is_ended = True
            for report in tuple(self._expired):
                report()
        return stop


def test_contender_that_loses_its_place_while_it_wins_does_not_lead_by_that_place() -> None:
    """The process may have seen `lost`, and then it does not act as the leader."""

    async def test() -> None:
        store = MemoryStore()
        tree = LateTree(store)
        election = Election(tree, PATH, "one")
        async with asyncio.timeout(DEADLINE_S):
            await election.win()
        assert tree.is_ended
        assert not election.lost.is_set()
        assert await Election(store.session(), PATH, "other").contenders() == ["one"]

    asyncio.run(test())


def test_contender_that_has_lost_its_place_goes_to_the_end_of_the_queue() -> None:
    async def test() -> None:
        store = MemoryStore()
        first, second, third = (Election(store.session(), PATH, name) for name in ("first", "second", "third"))
        await first.win()
        waiting = []
        for number, election in enumerate((second, third)):
            waiting.append(asyncio.ensure_future(election.win()))
            await in_line(first, number + 2)
        second.lost.set()
        await first.resign()
        async with asyncio.timeout(DEADLINE_S):
            await waiting[1]
            assert not waiting[0].done()
            await in_line(third, 2)
            assert await third.contenders() == ["third", "second"]
            await third.resign()
            await waiting[0]
        assert not second.lost.is_set()

    asyncio.run(test())


def test_end_of_the_session_is_reported_to_the_leader_though_the_store_cannot_be_asked() -> None:
    async def test() -> None:
        tree = AwayTree(MemoryStore())
        leader = Election(tree, PATH, "leader")
        await leader.win()
        tree.failures = 1000
        for report in tuple(tree._expired):
            report()
        assert leader.lost.is_set()

    asyncio.run(test())


def test_contender_that_no_longer_waits_watches_no_other() -> None:
    async def test() -> None:
        store = MemoryStore()
        async with Election(store.session(), PATH, "leader") as leader:
            before = len(store.watched)
            waiting = asyncio.ensure_future(Election(store.session(), PATH, "impatient").win())
            await in_line(leader, 2)
            async with asyncio.timeout(DEADLINE_S):
                while len(store.watched) == before:
                    await asyncio.sleep(0)  # until it watches the leader
            waiting.cancel()
            await asyncio.wait([waiting])
            assert len(store.watched) == before

    asyncio.run(test())


def test_cancelled_contender_leaves_the_queue() -> None:
    async def test() -> None:
        store = MemoryStore()
        async with Election(store.session(), PATH, "leader") as leader:
            waiting = asyncio.ensure_future(Election(store.session(), PATH, "impatient").win())
            await in_line(leader, 2)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert await leader.contenders() == ["leader"]

    asyncio.run(test())


def test_a_session_keeps_nothing_of_an_election_that_has_ended() -> None:
    async def test() -> None:
        tree = MemoryStore().session()
        election = Election(tree, PATH, "one of many")
        lost = weakref.ref(election.lost)
        async with election:
            await election.win()  # it leads already
        del election
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)  # the check that the removal of its node began
        gc.collect()
        assert lost() is None

    asyncio.run(test())


def test_leader_whose_session_ended_is_notified_and_its_late_append_is_fenced(tmp_path) -> None:
    """M3: two leaders duel for a moment; what the late one appends is not acknowledged."""

    async def test(cluster: InProcessCluster) -> None:
        clients = [cluster.client() for _ in range(2)]
        first, second = [await client.log("clicks").election(f"process {n}") for n, client in enumerate(clients)]
        await first.win()
        old = await clients[0].log("clicks").open_for_writing(**ONE)
        await old.append(b"of the first leader")
        waiting = asyncio.ensure_future(second.win())
        await in_line(second, 2)
        cluster.store.expire(await clients[0].tree())
        async with asyncio.timeout(DEADLINE_S):
            await first.lost.wait()
            await waiting
        async with await clients[1].log("clicks").open_for_writing(**ONE) as new:
            with pytest.raises(LedgerFenced):
                await old.append(b"too late")
            await new.append(b"of the second leader")
        old.abandon()
        log = clients[1].log("clicks")
        entries = [entry async for batch in log.read() for entry in batch]
        assert entries == [b"of the first leader", b"of the second leader"]
        await second.resign()
        # The first may contend again, after the others.
        async with asyncio.timeout(DEADLINE_S):
            await first.win()
        assert not first.lost.is_set()
        await first.resign()

    run(tmp_path, test)
