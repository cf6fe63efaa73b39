"""Bookies that are not registered, in a large cluster: few requests, and never the address of another bookie."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import pytest

from bkspark.errors import BookieUnavailable, MetadataError, NoSuchNode
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.registered_addresses import PASSES_MAX, READS_AT_ONCE
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.tree import Create, Delete
from bkspark.metadata.uri import MetadataUri

URI = MetadataUri.parse("zk://127.0.0.1:2181/ledgers")
BOOKIES = 200


def test_children_that_were_created_or_deleted_are_counted(trees):
    """`RegisteredAddresses` takes equal counts for equal nodes."""

    async def test(tree, other):
        await tree.create("/n", make_parents=True)
        names, stat = await tree.listing("/n")
        assert (names, stat, stat.child_changes) == ([], await tree.exists("/n"), 0)
        await tree.create("/n/a")
        await tree.transaction([Create("/n/b"), Delete("/n/a")])
        await other.create("/n/c", ephemeral=True)
        await tree.set("/n/b", b"changed", -1)
        names, stat = await tree.listing("/n")
        assert (names, stat.children, stat.child_changes) == (["b", "c"], 2, 4)
        await other.close()
        await tree.catch_up()
        stat = await tree.exists("/n")
        assert (stat.children, stat.child_changes) == (1, 5)
        with pytest.raises(NoSuchNode):
            await tree.listing("/m")

    trees.run(test, sessions=2)


class Counted(MemoryTree):
    """Counts requests, each of which takes a turn of the event loop."""

    def __init__(self, store):
        super().__init__(store, 1 << 40, 10.0)
        self.requests = self.now = self.most = 0
        self.is_cut_off = False

    async def _turn(self, call, path):
        self.requests += 1
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        if self.is_cut_off:
            raise MetadataError("the connection to the metadata store was lost")
        return await call(path)

    async def get(self, path):
        return await self._turn(super().get, path)

    async def exists(self, path):
        return await self._turn(super().exists, path)

    async def children(self, path):
        return await self._turn(super().children, path)

    async def listing(self, path):
        return await self._turn(super().listing, path)


async def crowded(store):
    """Register `BOOKIES` bookies, and return what registers them."""
    registry = BookieRegistry(store.session(), URI)
    await registry.initialize_cluster()
    for number in range(BOOKIES):
        await registry.register(f"h{number}:1", BookieAddress(f"h{number}", 1), read_only=number % 50 == 0)
    return registry


def test_many_calls_at_once_read_each_registration_once_and_few_at_a_time():
    async def test():
        store = MemoryStore()
        await crowded(store)
        tree = Counted(store)
        seen = BookieRegistry(tree, URI)
        lost = [f"lost{number % 50}:1" for number in range(100)]
        await asyncio.gather(*map(seen.resolve, lost))
        # Two for each call, which looks for the bookie itself.
        assert tree.requests - 2 * len(lost) <= BOOKIES + 8
        assert tree.most <= READS_AT_ONCE + len(lost)

    asyncio.run(test())


def test_unchanged_cluster_costs_two_more_requests_and_one_bookie_one_read():
    async def test():
        store = MemoryStore()
        registry = await crowded(store)
        tree = Counted(store)
        seen = BookieRegistry(tree, URI)

        async def requests():
            before = tree.requests
            assert await seen.resolve("lost:1") == ("lost", 1)
            return tree.requests - before

        assert await requests() == BOOKIES + 6
        assert tree.most <= READS_AT_ONCE
        assert await requests() == 4
        await registry.unregister("h7:1")
        assert await requests() == 7
        await registry.register("h7:1", BookieAddress("h7", 1))
        assert await requests() == 8
        await registry.register("h8:1", BookieAddress("h8", 1, {"bkspark.reason": "none"}))
        assert await requests() == 4, "its address is the same"
        await registry.unregister("h8:1")
        await registry.register("h8:1", BookieAddress("lost", 1))
        with pytest.raises(BookieUnavailable, match="h8:1"):
            await seen.resolve("lost:1")

    asyncio.run(test())


def test_failed_update_is_the_error_of_those_who_wait_and_the_next_call_tries_again():
    async def test():
        store = MemoryStore()
        registry = await crowded(store)
        tree = Counted(store)
        seen = BookieRegistry(tree, URI)
        assert await seen.resolve("lost:1") == ("lost", 1)
        await registry.register("h", BookieAddress("lost", 1))
        tree.is_cut_off = True
        results = await asyncio.gather(*(seen.resolve("lost:1") for _ in range(5)), return_exceptions=True)
        assert [type(each) for each in results] == [MetadataError] * 5
        tree.is_cut_off = False
        waiting = asyncio.ensure_future(seen.resolve("lost:1"))
        while not tree.now:
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(BookieUnavailable, match="bookie h now"):
            await seen.resolve("lost:1")

    asyncio.run(test())


def test_call_does_not_take_the_result_of_an_update_that_may_have_read_before_it():
    class Held(MemoryTree):
        async def exists(self, path):
            found = await super().exists(path)
            answered.set()
            await free.wait()
            return found

    async def test():
        store = MemoryStore()
        registry = await crowded(store)
        seen = BookieRegistry(Held(store, 1 << 40, 10.0), URI)
        free.set()
        assert await seen.resolve("lost:1") == ("lost", 1)
        free.clear()
        answered.clear()
        early = asyncio.ensure_future(seen.resolve("lost:1"))
        await answered.wait()
        await registry.register("h", BookieAddress("lost", 1), read_only=True)
        late = asyncio.ensure_future(seen.resolve("lost:1"))
        free.set()
        with pytest.raises(BookieUnavailable):
            await late
        await asyncio.wait([early])

    answered, free = asyncio.Event(), asyncio.Event()
    asyncio.run(test())


def test_list_that_was_made_again_is_read_again_although_its_count_is_the_same():
    """An operator formats the cluster: then as many bookies register as before, at other addresses."""

    async def test():
        store = MemoryStore()
        tree = store.session()
        registry = BookieRegistry(tree, URI)
        await registry.initialize_cluster()
        await registry.register("h1:1", BookieAddress("h1", 1))
        seen = BookieRegistry(store.session(), URI)
        assert await seen.resolve("lost:1") == ("lost", 1)
        path = f"{URI.root}/available"
        before = (await tree.exists(path)).child_changes
        await registry.unregister("h1:1")
        store.now_ms += 1000
        for name in await tree.children(path):
            await tree.delete(f"{path}/{name}", -1)
        await tree.delete(path, -1)
        await tree.create(f"{path}/readonly", make_parents=True)
        await registry.register("h2:1", BookieAddress("lost", 1))
        assert (await tree.exists(path)).child_changes == before
        with pytest.raises(BookieUnavailable, match="h2:1"):
            await seen.resolve("lost:1")

    asyncio.run(test())


class Unhurried(MemoryTree):
    """Each request arrives late, and is answered late, by random numbers of turns of the event loop."""

    def __init__(self, store, chance):
        super().__init__(store, 1 << 40, 10.0)
        self._chance = chance

    async def _late(self, call, path):
        await turns(self._chance.randrange(4))
        try:
            return await call(path)
        finally:
            await turns(self._chance.randrange(4))

    async def get(self, path):
        return await self._late(super().get, path)

    async def exists(self, path):
        return await self._late(super().exists, path)

    async def listing(self, path):
        return await self._late(super().listing, path)


class Address:
    """The bookies that are registered at the address of the lost one, and since when, in steps of a counter."""

    def __init__(self):
        self.now = 0
        self.since = {}
        """When each bookie that is registered at the address began to be, without a gap."""

    def step(self, bookie, is_there):
        self.now += 1
        if is_there:
            self.since.setdefault(bookie, self.now)
        else:
            self.since.pop(bookie, None)


async def turns(count):
    for _ in range(count):
        await asyncio.sleep(0)


async def live(registry, bookie, address, chance, moves):
    """A bookie that comes, changes its mode, moves to the lost one's address and elsewhere, and goes."""
    read_only = False
    for _ in range(moves):
        where = chance.choice([BookieAddress("lost", 1), BookieAddress(bookie, 2)])
        # It counts as there when it is registered, and not any more before that is removed.
        if where.host != "lost":
            address.step(bookie, False)
        await registry.register(bookie, where, read_only=read_only)
        address.step(bookie, where.host == "lost")
        await turns(chance.randrange(100))
        for _ in range(chance.randrange(6)):
            await registry.register(bookie, where, read_only=not read_only)
            await turns(chance.randrange(2))
            await registry.unregister(bookie, read_only=read_only)
            read_only = not read_only
            await turns(chance.randrange(30))
        if chance.random() < 0.5:
            address.step(bookie, False)
            await registry.unregister(bookie, read_only=read_only)


@pytest.mark.parametrize("seed", range(20))
def test_bookie_that_is_at_the_address_during_the_whole_call_is_always_seen(seed):
    """Otherwise a recovery takes its answers for those of the lost bookie, and closes below acknowledged entries."""

    async def test():
        chance, store, address = random.Random(seed), MemoryStore(), Address()
        own = BookieRegistry(store.session(), URI)
        await own.initialize_cluster()
        seen = BookieRegistry(Unhurried(store, chance), URI)
        lives = [
            asyncio.ensure_future(live(BookieRegistry(store.session(), URI), f"b{number}", address, chance, 30))
            for number in range(2)
        ]
        answers = []

        async def look():
            if await seen._registered_addresses.others_at("lost", 1, "lost:1"):
                raise BookieUnavailable("another bookie is there")

        async def ask(resolve):
            while not all(life.done() for life in lives):
                began = address.now
                try:
                    await resolve()
                except BookieUnavailable:
                    answers.append("taken")
                except MetadataError:
                    answers.append("changes too fast")
                else:
                    answers.append("free")
                    assert all(since > began for since in address.since.values()), (began, address.since)
                await turns(chance.randrange(6))

        await asyncio.gather(ask(partial(seen.resolve, "lost:1")), ask(look), ask(look), *lives)
        assert {"free", "taken"} <= set(answers)

    asyncio.run(test())


def test_bookie_that_is_registered_has_no_other_at_its_address():
    async def test():
        store = MemoryStore()
        registry = await crowded(store)
        assert await registry.others_at("h3", 1, "h3:1") == []
        assert await registry.others_at("h3", 1, "h4:1") == ["h3:1"]

    asyncio.run(test())


def test_list_that_was_deleted_and_made_again_is_read_again():
    """Its changes count from 0 then, so equal counts may be those of other nodes."""

    async def test():
        store = MemoryStore()
        registry = BookieRegistry(store.session(), URI)
        await registry.initialize_cluster()
        await registry.register("h:1", BookieAddress("here", 1), read_only=True)
        seen = BookieRegistry(store.session(), URI)
        assert await seen.others_at("here", 1, "lost:1") == ["h:1"]
        await registry.unregister("h:1", read_only=True)
        await store.session().delete("/ledgers/available/readonly")
        assert await seen.others_at("here", 1, "lost:1") == []
        store.now_ms += 1
        await registry.register("h:1", BookieAddress("there", 1), read_only=True)
        assert await seen.others_at("here", 1, "lost:1") == []
        assert await seen.others_at("there", 1, "lost:1") == ["h:1"]
        # The same counts as before, by chance.
        await registry.unregister("h:1", read_only=True)
        await store.session().delete("/ledgers/available/readonly")
        store.now_ms += 1
        await registry.register("h:1", BookieAddress("here", 1), read_only=True)
        assert await seen.others_at("there", 1, "lost:1") == []

    asyncio.run(test())


def test_registrations_that_never_stop_changing_are_an_error_after_a_bounded_number_of_looks():
    class Restless(MemoryTree):
        looks = 0

        async def listing(self, path):
            self.looks += 1
            names, stat = await super().listing(path)
            await self.create(f"/ledgers/available/b{self.looks}:1", ephemeral=True)
            return names, stat

    async def test():
        store = MemoryStore()
        await BookieRegistry(store.session(), URI).initialize_cluster()
        tree = Restless(store, 1 << 40, 10.0)
        with pytest.raises(MetadataError, match=f"changed while they were read, {PASSES_MAX} times"):
            await BookieRegistry(tree, URI).others_at("h", 1, "lost:1")
        assert tree.looks <= 2 * PASSES_MAX

    asyncio.run(test())
