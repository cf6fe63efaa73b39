"""What BookieRegistry does when others act between its calls, or when an answer is lost; in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bkspark.errors import MetadataError, NodeExists, NoSuchNode
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.cookies import Cookie
from bkspark.metadata.memory import Fault, MemoryStore, MemoryTree
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.uri import MetadataUri
from tests.metadata.meanwhile import Meanwhile
from tests.simulation.virtual_loop import refused_connections, run_in_virtual_time

URI = MetadataUri.parse("zk://127.0.0.1:2181/ledgers")
ADDRESS, OTHER_ADDRESS = BookieAddress("10.0.0.1", 3181), BookieAddress("10.0.0.2", 3181)
COOKIE = Cookie("b-1", ("/j",), ("/l",), "instance")


def registry_of(store: MemoryStore) -> BookieRegistry:
    return BookieRegistry(store.session(), URI)


def run(test: Callable[[MemoryStore], Awaitable[None]]) -> None:
    """Run a test in virtual time, on a store with a cluster."""

    async def call() -> None:
        store = MemoryStore()
        await registry_of(store).initialize_cluster()
        await test(store)

    run_in_virtual_time(call(), refused_connections)


# ---- who is registered ----


def test_bookie_in_both_lists_is_available_also_while_another_one_is_down() -> None:
    """A bookie that becomes writable registers there before it leaves the other list (docs/protocol.md §4.7)."""

    async def test(store: MemoryStore) -> None:
        registry = registry_of(store)
        for bookie in ("b-1", "b-2"):
            await registry.write_cookie(Cookie(bookie, ("/j",), ("/l",), "instance"), None)
        for read_only in (True, False):
            await registry.register("b-1", ADDRESS, read_only=read_only)
        assert await registry.states() == {"b-1": "available", "b-2": "down"}

    run(test)


@pytest.mark.parametrize("read_only", [False, True])
def test_session_of_a_bookie_is_that_of_its_registration_in_either_list(read_only: bool) -> None:
    async def test(store: MemoryStore) -> None:
        tree = store.session()
        await BookieRegistry(tree, URI).register("b-1", ADDRESS, read_only=read_only)
        assert await registry_of(store).session("b-1") == tree.session_id
        assert await registry_of(store).session("b-2") is None

    run(test)


@pytest.mark.parametrize("ask", ["writable", "writable_ids", "read_only", "registered_ids"])
def test_list_of_bookies_where_there_is_no_cluster_is_an_error_and_not_empty(ask: str) -> None:
    """A client that took it for empty would report that all bookies are gone."""
    with pytest.raises(MetadataError, match="there is no cluster at /ledgers"):
        asyncio.run(getattr(registry_of(MemoryStore()), ask)())


# ---- registering ----


@pytest.mark.parametrize("fault", Fault)
def test_registration_counts_if_its_answer_was_lost_and_fails_if_it_was_not_made(fault: Fault) -> None:
    """M1: the owner of the node shows whether it was created."""

    async def test(store: MemoryStore) -> None:
        registry = registry_of(store)
        store.faults[store.writes] = fault
        if fault is Fault.LOST_BEFORE:
            with pytest.raises(MetadataError, match="connection"):
                await registry.register("b-1", ADDRESS)
        else:
            await registry.register("b-1", ADDRESS)
        assert await registry.writable_ids() == ({"b-1"} if fault is Fault.LOST_AFTER else set())

    run(test)


def test_registration_of_this_session_gets_its_new_contents() -> None:
    async def test(store: MemoryStore) -> None:
        registry = registry_of(store)
        await registry.register("b-1", ADDRESS)
        full = BookieAddress(ADDRESS.host, ADDRESS.port, {"bkspark.reason": "its disks are full"})
        await registry.register("b-1", full)
        assert await registry_of(store).registration("b-1") == full

    run(test)


def test_registration_of_a_living_bookie_is_waited_for_until_its_session_would_have_ended() -> None:
    """Only then it is certain that another process serves under this id."""

    async def test(store: MemoryStore) -> None:
        await registry_of(store).register("b-1", ADDRESS)
        new = BookieRegistry(store.session(10.0), URI)
        with pytest.raises(NodeExists, match="b-1 is registered by another process that is alive"):
            await new.register("b-1", OTHER_ADDRESS)
        assert 20.0 <= asyncio.get_running_loop().time() < 21.0
        assert await new.registration("b-1") == ADDRESS

    run(test)


def test_registration_of_another_session_is_left_alone() -> None:
    async def test(store: MemoryStore) -> None:
        await registry_of(store).register("b-1", ADDRESS)
        await registry_of(store).unregister("b-1")
        assert await registry_of(store).writable_ids() == {"b-1"}

    run(test)


# ---- cookies and the cluster ----


def test_bookie_without_a_cookie_cannot_be_forgotten() -> None:
    """An operator who mistypes an id must not believe that the bookie is gone."""

    async def test(store: MemoryStore) -> None:
        registry = registry_of(store)
        await registry.write_cookie(COOKIE, None)
        with pytest.raises(NoSuchNode, match="cookies/b-2 does not exist"):
            await registry.delete_cookie("b-2")
        await registry.delete_cookie("b-1")
        assert await registry.known() == []

    run(test)


def test_new_cluster_whose_answer_was_lost_is_new() -> None:
    """M1: the stored identity shows whose cluster it is."""

    async def test() -> None:
        store = MemoryStore()
        tree = store.session()
        await tree.create("/ledgers")
        store.faults[store.writes] = Fault.LOST_AFTER
        assert await BookieRegistry(tree, URI).initialize_cluster()

    asyncio.run(test())


def test_cluster_that_another_process_makes_when_the_connection_is_lost_is_not_taken_for_ours() -> None:
    async def test() -> None:
        store = MemoryStore()

        async def made_by_another() -> None:
            assert await registry_of(store).initialize_cluster()
            raise MetadataError("the connection to the metadata store was lost")

        with pytest.raises(MetadataError, match="connection"):
            await BookieRegistry(Meanwhile(store, transaction=made_by_another), URI).initialize_cluster()
        assert not await registry_of(store).initialize_cluster()

    asyncio.run(test())


# ---- watches ----


def test_watch_of_the_racks_is_one_watch_and_ends_as_one() -> None:
    async def test(store: MemoryStore) -> None:
        before = len(store.watched)
        end = await registry_of(store).watch_racks(lambda: None)
        assert len(store.watched) == before + 2
        end()
        assert len(store.watched) == before

    run(test)


def test_watch_of_the_racks_that_fails_half_way_leaves_nothing() -> None:
    class HalfWay(MemoryTree):
        async def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
            if store.watched:
                raise MetadataError("the connection to the metadata store was lost")
            return await super().watch(path, callback)

    store = MemoryStore()
    with pytest.raises(MetadataError, match="connection"):
        asyncio.run(BookieRegistry(HalfWay(store, 1, 10.0), URI).watch_racks(lambda: None))
    assert store.watched == []


def test_read_only_bookies_are_watched_in_a_cluster_that_never_had_one() -> None:
    async def test(store: MemoryStore) -> None:
        await store.session().delete("/ledgers/available/readonly")
        changed = asyncio.Event()
        await registry_of(store).watch_read_only(changed.set)
        await registry_of(store).register("b-1", ADDRESS, read_only=True)
        async with asyncio.timeout(1):
            await changed.wait()

    run(test)
