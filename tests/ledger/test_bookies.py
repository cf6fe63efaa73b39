"""Which bookies a client chooses as they come, go, fail and move between racks."""

from __future__ import annotations

import asyncio
import json

import pytest

from bkspark.client import Client
from bkspark.errors import (
    BookieUnavailable,
    ConfigurationError,
    MetadataError,
    MetadataFormat,
    NoSuchNode,
    NotEnoughBookies,
)
from bkspark.ledger.bookies import BookieWatcher, PlacementOptions
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.uri import MetadataUri
from tests.ledger.fanning import play
from tests.ledger.in_process import InProcessCluster, run

URI = "zk://127.0.0.1:2181/ledgers"


class Cluster:
    """Registrations without running bookies: creating a ledger contacts none of them."""

    def __init__(self):
        self.store = MemoryStore()
        self.sessions = {}

    async def start(self, *bookies):
        await BookieRegistry(self.store.session(), MetadataUri.parse(URI)).initialize_cluster()
        for bookie in bookies:
            await self.register(bookie)

    async def register(self, bookie, host="127.0.0.1"):
        self.sessions[bookie] = self.store.session()
        registry = BookieRegistry(self.sessions[bookie], MetadataUri.parse(URI))
        await registry.register(bookie, BookieAddress(host, 1))

    async def leave(self, bookie):
        await self.sessions.pop(bookie).close()

    async def put_racks(self, racks):
        tree = self.store.session()
        data = json.dumps({"group": {bookie: {"rack": rack} for bookie, rack in racks.items()}}).encode()
        if await tree.exists("/ledgers/bookies") is None:
            await tree.create("/ledgers/bookies", data)
        else:
            await tree.set("/ledgers/bookies", data, -1)

    def watcher(self, tree=None, unreachable=frozenset(), **options):
        registry = BookieRegistry(tree or self.store.session(), MetadataUri.parse(URI))
        return BookieWatcher(registry, PlacementOptions(**options), lambda: unreachable)


def with_cluster(test, *bookies):
    async def call():
        cluster = Cluster()
        await cluster.start(*bookies)
        await asyncio.wait_for(test(cluster), 60)

    asyncio.run(call())


async def ensemble_of(client, size):
    return (await client.create(ensemble=size, write_quorum=size, ack_quorum=1)).core.slots.ensemble


def test_bookies_are_chosen_as_they_come_and_go():
    async def test(cluster):
        async with Client(URI, tree=cluster.store.session()) as client:
            assert set(await ensemble_of(client, 2)) == {"b:1", "b:2"}
            await cluster.register("b:3")
            assert set(await ensemble_of(client, 3)) == {"b:1", "b:2", "b:3"}
            await cluster.leave("b:1")
            await asyncio.sleep(0)  # the watch tells in the loop's next turn
            assert set(await ensemble_of(client, 2)) == {"b:2", "b:3"}
            with pytest.raises(NotEnoughBookies, match="there are 2"):
                await ensemble_of(client, 3)

    with_cluster(test, "b:1", "b:2")


def test_list_is_read_once_and_again_only_when_it_changed():
    async def test(cluster):
        tree = cluster.store.session()
        children, reads = tree.children, []
        tree.children = lambda path: reads.append(path) or children(path)
        watcher = cluster.watcher(tree)
        await watcher.candidates(2)
        watches = len(cluster.store.watched)
        for _ in range(4):
            assert (await watcher.candidates(2)).writable == {"b:1", "b:2"}
        assert (len(reads), len(cluster.store.watched)) == (1, watches)
        await cluster.register("b:3")
        await asyncio.sleep(0)
        assert (await watcher.candidates(2)).writable == {"b:1", "b:2", "b:3"}
        assert len(reads) == 2

    with_cluster(test, "b:1", "b:2")


def test_ensembles_follow_the_rack_map_as_it_changes():
    async def test(cluster):
        async with Client(URI, tree=cluster.store.session()) as client:
            for odd in ("b:1", "b:2", "b:4"):
                await cluster.put_racks({f"b:{i}": "/far" if f"b:{i}" == odd else "/near" for i in range(1, 6)})
                await asyncio.sleep(0)
                for _ in range(10):
                    assert odd in await ensemble_of(client, 2)

    with_cluster(test, "b:1", "b:2", "b:3", "b:4", "b:5")


def test_bookie_whose_id_names_no_host_has_that_of_the_rack_map():
    """An id `host:port` names its host, whatever the map says."""

    async def test(cluster):
        tree = cluster.store.session()
        places = {"one": {"hostname": "h1"}, "b:1": {"rack": "/r", "hostname": "h2"}}
        await tree.create("/ledgers/bookies", json.dumps({"group": places}).encode())
        topology = (await cluster.watcher().candidates(2)).topology
        assert topology.hosts == {"one": "h1"}
        assert (topology.host_of("one"), topology.host_of("b:1"), topology.rack_of("b:1")) == ("h1", "b", "/r")

    with_cluster(test, "one", "b:1")


def test_copies_are_on_different_hosts_also_if_no_id_names_a_host():
    """A host is a failure domain, whatever `bookieId` its bookies have: `--instances` with `bookieId=b{instance}`."""

    async def test(cluster):
        host_of = {f"{host}-{number}": host for host in ("north", "south", "west") for number in (1, 2, 3)}
        for bookie, host in host_of.items():
            await cluster.register(bookie, host)
        async with Client(URI, tree=cluster.store.session()) as client:
            for _ in range(20):
                assert {host_of[bookie] for bookie in await ensemble_of(client, 3)} == {"north", "south", "west"}

    with_cluster(test)


class UnlistedTree(MemoryTree):
    """A session that cannot list nodes while `is_lost`."""

    def __init__(self, store):
        super().__init__(store, store.session().session_id, 10.0)
        self.is_lost = True

    async def listing(self, path):
        if self.is_lost:
            raise MetadataError("the connection was lost")
        return await super().listing(path)


@pytest.mark.parametrize("is_new", [True, False], ids=["new ledger", "replacement"])
def test_hosts_that_could_not_be_read_are_read_by_the_next_call(is_new):
    """ "On different hosts as long as there are enough hosts": not only when the list of bookies has changed again."""

    async def test(cluster):
        for bookie in ("north-1", "north-2", "south-1", "south-2"):
            await cluster.register(bookie, bookie[:5])
        tree = UnlistedTree(cluster.store)
        watcher = cluster.watcher(tree)
        found = await (watcher.candidates(2) if is_new else watcher.replacements())
        assert (len(found.writable), found.topology.hosts) == (4, {}), "the look-up itself goes on"
        tree.is_lost = False
        topology = (await watcher.candidates(2)).topology
        assert topology.host_of("north-1") == topology.host_of("north-2") == "north"
        assert topology.host_of("south-1") == topology.host_of("south-2") == "south"

    with_cluster(test)


def test_host_of_a_bookie_is_where_it_registered_last_also_when_it_is_lost():
    async def test(cluster):
        tree = cluster.store.session()
        watcher = cluster.watcher(tree)
        await cluster.register("one", "h1")
        await cluster.register("two", "h2")
        assert (await watcher.candidates(2)).topology.hosts == {"one": "h1", "two": "h2"}
        await cluster.leave("one")
        assert (await watcher.replacements()).topology.host_of("one") == "h1"
        await cluster.register("one", "h3")
        await asyncio.sleep(0)  # the watch tells in the loop's next turn
        assert (await watcher.candidates(2)).topology.host_of("one") == "h3"
        await tree.create("/ledgers/bookies", json.dumps({"group": {"one": {"hostname": "h4:1"}}}).encode())
        await asyncio.sleep(0)
        assert (await watcher.candidates(2)).topology.hosts == {"one": "h4", "two": "h2"}

    with_cluster(test)


def test_write_quorums_of_a_striped_ledger_span_two_racks_each():
    """§5.2: an entry is on Qw successive bookies of the ensemble, so their order matters."""

    async def test(cluster):
        await cluster.put_racks({f"b:{i}": f"/r{i % 2}" for i in range(4)})
        async with Client(URI, tree=cluster.store.session()) as client:
            for _ in range(20):
                writer = await client.create(ensemble=4, write_quorum=2, ack_quorum=1)
                racks = [int(bookie[-1]) % 2 for bookie in writer.core.slots.ensemble]
                assert racks in ([0, 1, 0, 1], [1, 0, 1, 0])

    with_cluster(test, "b:0", "b:1", "b:2", "b:3")


def test_one_rack_a_write_quorum_is_a_choice_at_random():
    async def test(cluster):
        await cluster.put_racks({"b:1": "/far"})
        options = PlacementOptions(min_racks_per_write_quorum=1)
        async with Client(URI, tree=cluster.store.session(), placement=options) as client:
            # With the far bookie in each by chance: once in 10^23 runs.
            chosen = [await ensemble_of(client, 2) for _ in range(60)]
            assert any("b:1" not in ensemble for ensemble in chosen)

    with_cluster(test, "b:1", "b:2", "b:3", "b:4", "b:5")


def test_unreadable_rack_map_refuses_new_ledgers_with_its_path_and_ends_no_writer():
    async def test(cluster):
        await cluster.put_racks({"b:1": "/r1"})
        watcher = cluster.watcher()
        assert (await watcher.candidates(2)).topology.rack_of("b:1") == "/r1"
        await cluster.store.session().set("/ledgers/bookies", b"nonsense", -1)
        await asyncio.sleep(0)
        with pytest.raises(MetadataFormat, match="/ledgers/bookies"):
            await watcher.candidates(2)
        assert (await watcher.replacements()).topology.rack_of("b:1") == "/r1"

    with_cluster(test, "b:1", "b:2")


def test_watches_that_could_not_be_set_are_set_by_the_next_call():
    async def test(cluster):
        tree = cluster.store.session()
        watcher = cluster.watcher(tree)
        watch, calls = tree.watch, []

        async def failing(path, callback):
            calls.append(path)
            if len(calls) == 2:
                raise MetadataError("the connection was lost")
            return await watch(path, callback)

        tree.watch, watches = failing, len(cluster.store.watched)
        with pytest.raises(MetadataError):
            await watcher.candidates(2)
        assert len(cluster.store.watched) == watches
        assert (await watcher.candidates(2)).writable == {"b:1", "b:2"}
        await cluster.leave("b:2")
        await asyncio.sleep(0)
        assert (await watcher.candidates(1)).writable == {"b:1"}

    with_cluster(test, "b:1", "b:2")


def test_cluster_that_was_made_while_its_bookies_were_looked_for_is_found_by_the_next_call():
    async def test(cluster):
        tree = cluster.store.session()
        watcher, watch = cluster.watcher(tree), tree.watch_children

        async def too_early(path, callback):
            tree.watch_children = watch
            raise NoSuchNode(path)

        tree.watch_children = too_early
        with pytest.raises(NoSuchNode):
            await watcher.candidates(1)
        assert (await watcher.candidates(1)).writable == {"b:1"}

    with_cluster(test, "b:1")


def test_failing_bookies_are_avoided_and_taken_where_there_are_no_others():
    async def test(cluster):
        watcher = cluster.watcher(unreachable=frozenset({"b:2"}), quarantine_failures=1)
        watcher.on_failure("b:1")
        assert (await watcher.candidates(3)).topology.avoided == {"b:1", "b:2"}
        assert (await watcher.replacements()).topology.avoided == {"b:1", "b:2"}
        client = Client(URI, tree=cluster.store.session(), placement=PlacementOptions(quarantine_failures=1))
        (await client.context()).watcher.on_failure("b:1")
        for _ in range(10):
            assert "b:1" not in await ensemble_of(client, 2)
        assert "b:1" in await ensemble_of(client, 3)
        await client.close()

    with_cluster(test, "b:1", "b:2", "b:3")


def test_bookie_that_a_writer_gave_up_gets_no_new_ledgers(tmp_path):
    async def test(cluster: InProcessCluster):
        client = cluster.client(placement=PlacementOptions(quarantine_failures=1))
        dead = cluster.bookies[0]
        writer = await client.create(ensemble=4, write_quorum=4, ack_quorum=1)
        await writer.append(b"one")
        await dead.stop()
        stale = BookieRegistry(cluster.store.session(), MetadataUri.parse(URI))
        await stale.register(dead.id, BookieAddress("127.0.0.1", 1))  # as until ZooKeeper has noticed
        await writer.append(b"two")
        watcher = (await client.context()).watcher
        while dead.id not in (await watcher.candidates(3)).topology.avoided:
            await asyncio.sleep(0.01)
        assert dead.id in (await watcher.candidates(3)).writable
        for _ in range(10):
            assert dead.id not in await ensemble_of(client, 3)
        await writer.close()

    run(tmp_path, test, bookies=4)


def test_options_out_of_bounds_are_named():
    for name in ("min_racks_per_write_quorum", "quarantine_failures"):
        with pytest.raises(ConfigurationError, match=name):
            PlacementOptions(**{name: 0})
    with pytest.raises(ConfigurationError, match="quarantine_s"):
        PlacementOptions(quarantine_s=-1)


def test_ledger_has_three_copies_of_which_two_are_waited_for_unless_asked_otherwise():
    async def test(cluster):
        async with Client(URI, tree=cluster.store.session()) as client:
            writer = await client.create()
            metadata = writer.metadata
            assert (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum) == (3, 3, 2)
            writer.abandon()

    with_cluster(test, "a:1", "b:1", "c:1", "d:1")


def test_bookie_that_cannot_be_connected_to_gets_no_new_ledgers_for_a_while():
    async def test(cluster):
        async with Client(URI, tree=cluster.store.session()) as client:
            with pytest.raises(BookieUnavailable):
                await (await client.context()).pool.channel("b:1")  # no process listens at its address
            for _ in range(10):
                assert "b:1" not in await ensemble_of(client, 2)
            assert "b:1" in await ensemble_of(client, 3)

    with_cluster(test, "b:1", "b:2", "b:3")


def test_replacements_are_read_again_before_the_watch_has_reported_a_change():
    """An older list may still have the bookie that just failed."""

    async def test(cluster):
        watcher = cluster.watcher()
        assert (await watcher.candidates(2)).writable == {"b:1", "b:2"}
        await cluster.leave("b:2")
        assert (await watcher.candidates(2)).writable == {"b:1", "b:2"}, "the watch tells in the loop's next turn"
        assert (await watcher.replacements()).writable == {"b:1"}

    with_cluster(test, "b:1", "b:2")


def test_bookie_is_avoided_for_the_time_of_its_quarantine_after_failures_within_the_window():
    async def test():
        cluster = Cluster()
        await cluster.start("b:1", "b:2")
        watcher = cluster.watcher(quarantine_failures=2, quarantine_window_s=10.0, quarantine_s=100.0)

        async def is_avoided():
            return (await watcher.candidates(1)).topology.avoided == {"b:1"}

        watcher.on_failure("b:1")
        await asyncio.sleep(11)
        watcher.on_failure("b:1")
        assert not await is_avoided()
        await asyncio.sleep(9)
        watcher.on_failure("b:1")
        assert await is_avoided()
        await asyncio.sleep(99)
        assert await is_avoided()
        await asyncio.sleep(2)
        assert not await is_avoided()

    play(test)


class ListedTree(MemoryTree):
    """A session in which something happens right after the writable bookies were listed, once."""

    def __init__(self, store, change):
        session = store.session()
        super().__init__(store, session.session_id, session.session_timeout_s)
        self.change, self.lists = change, 0

    async def children(self, path):
        found = await super().children(path)
        if path.endswith("/available"):
            self.lists += 1
            change, self.change = self.change, None
            if change is not None:
                await change()
                await asyncio.sleep(0)
        return found


def test_list_that_changes_while_it_is_read_is_read_again():
    async def test(cluster):
        watcher = cluster.watcher(tree := ListedTree(cluster.store, lambda: cluster.register("b:2")))
        await watcher.candidates(1)
        for _ in range(4):
            assert (await watcher.candidates(1)).writable == {"b:1", "b:2"}
        assert tree.lists == 2

    with_cluster(test, "b:1")


class ChangingTree(MemoryTree):
    """A session in which something happens right after a node was read, once."""

    def __init__(self, store, path, change):
        session = store.session()
        super().__init__(store, session.session_id, session.session_timeout_s)
        self.path, self.change = path, change
        self.reads = 0

    async def get(self, path):
        found = await super().get(path)
        self.reads += path == self.path
        if path == self.path and self.change is not None:
            change, self.change = self.change, None
            await change()
            await asyncio.sleep(0)
        return found


def test_rack_map_is_read_once_and_again_if_it_changes_meanwhile():
    async def test(cluster):
        await cluster.put_racks({"b:1": "/old"})
        tree = ChangingTree(cluster.store, "/ledgers/bookies", lambda: cluster.put_racks({"b:1": "/new"}))
        watcher = cluster.watcher(tree)
        await watcher.candidates(1)
        for _ in range(4):
            assert (await watcher.candidates(1)).topology.racks["b:1"] == "/new"
        assert tree.reads == 2

    with_cluster(test, "b:1")
