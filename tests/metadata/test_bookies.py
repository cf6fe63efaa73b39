"""Registrations, cookies and cluster initialisation, as Apache's peers find them."""

from __future__ import annotations

import asyncio

import pytest

from bkspark.errors import (
    BookieUnavailable,
    MetadataError,
    MetadataFormat,
    MetadataVersion,
    NodeExists,
    NoSuchNode,
)
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.cookies import Cookie
from bkspark.metadata.memory import Fault, MemoryStore, MemoryTree
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.tree import parent_of
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree


def test_new_cluster_has_apaches_nodes_and_a_second_initialisation_changes_nothing(trees):
    async def test(tree):
        registry = BookieRegistry(tree, trees.uri)
        assert await registry.initialize_cluster()
        assert await tree.children(trees.uri.root) == ["INSTANCEID", "LAYOUT", "available", "cookies"]
        assert await tree.children(f"{trees.uri.root}/available") == ["readonly"]
        layout = (await tree.get(f"{trees.uri.root}/LAYOUT"))[0]
        assert layout == b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
        identity = await registry.instance_id()
        assert len(identity) == 36
        assert not await registry.initialize_cluster()
        assert await registry.instance_id() == identity

    trees.run(test)


def test_registered_bookie_is_found_until_its_session_ends(trees):
    async def test(server, client):
        registry = BookieRegistry(server, trees.uri)
        await registry.initialize_cluster()
        await registry.register("b-1", BookieAddress("10.0.0.1", 3181))
        await registry.register("b-1", BookieAddress("10.0.0.1", 3181))
        seen = BookieRegistry(client, trees.uri)
        assert await seen.writable() == {"b-1": BookieAddress("10.0.0.1", 3181)}
        assert await seen.resolve("b-1") == ("10.0.0.1", 3181)
        await registry.register("b-2", BookieAddress("10.0.0.2", 3181), read_only=True)
        assert set(await seen.read_only()) == {"b-2"}
        await server.close()
        assert await seen.writable() == {}
        assert await BookieRegistry(client, trees.uri).resolve("h:3181") == ("h", 3181)
        with pytest.raises(BookieUnavailable, match="b-3"):
            await seen.resolve("b-3")

    trees.run(test, sessions=2)


class _TurnsBetween(MemoryTree):
    """A session in which something happens between the first list of bookies that is read and the next one."""

    def __init__(self, store, happens):
        super().__init__(store, 1 << 40, 10.0)
        self._happens = happens

    async def children(self, path):
        found = await super().children(path)
        if path.endswith(("/available", "/readonly")):
            happens, self._happens = self._happens, None
            if happens is not None:
                await happens()
        return found


@pytest.mark.parametrize("bookie", ["b-1", "h:3181"])
def test_bookie_that_is_gone_is_not_sought_at_the_address_of_another_one(trees, bookie):
    async def test(old, new, client):
        await BookieRegistry(old, trees.uri).initialize_cluster()
        seen, address = BookieRegistry(client, trees.uri), BookieAddress("h", 3181)
        await BookieRegistry(old, trees.uri).register(bookie, address)
        assert await seen.resolve(bookie) == ("h", 3181)
        await old.close()
        assert await seen.resolve(bookie) == ("h", 3181), "it may have lost its session and serve nevertheless"
        successor = BookieRegistry(new, trees.uri)
        await successor.register("b-2", BookieAddress("h", 3182))
        assert await seen.resolve("b-2") == ("h", 3182)
        assert await seen.resolve(bookie) == ("h", 3181)
        # The other bookie moves there, and this client has not asked for it since.
        await successor.register("b-2", address)
        with pytest.raises(BookieUnavailable, match="b-2"):
            await seen.resolve(bookie)
        assert await seen.resolve("b-2") == ("h", 3181)

    trees.run(test, sessions=3)


@pytest.mark.parametrize("was_read_only", [False, True])
@pytest.mark.parametrize("ask", ["states", "registered_ids"])
def test_bookie_that_changes_its_mode_while_the_lists_are_read_is_not_taken_for_a_dead_one(ask, was_read_only):
    """A drain made its bookie read-only, looked for it, and reported that it does not run."""

    async def test():
        uri, store = MetadataUri.parse("zk://127.0.0.1:2181/ledgers"), MemoryStore()
        own = BookieRegistry(store.session(), uri)
        await own.initialize_cluster()
        await own.write_cookie(Cookie("b-1", ("/j",), ("/l",), "instance"), None)
        await own.register("b-1", BookieAddress("h", 1), read_only=was_read_only)

        async def turn():
            await own.register("b-1", BookieAddress("h", 1), read_only=not was_read_only)
            await own.unregister("b-1", read_only=was_read_only)

        found = await getattr(BookieRegistry(_TurnsBetween(store, turn), uri), ask)()
        assert "b-1" in found
        assert ask != "states" or found["b-1"] in ("readonly", "available")

    asyncio.run(test())


def test_registration_of_a_session_that_ended_is_taken_over(trees):
    async def test(old, new):
        await BookieRegistry(old, trees.uri).initialize_cluster()
        await BookieRegistry(old, trees.uri).register("b-1", BookieAddress("h", 1))
        waiting = asyncio.ensure_future(BookieRegistry(new, trees.uri).register("b-1", BookieAddress("h", 2)))
        await asyncio.sleep(0)
        await old.close()
        await waiting
        assert await BookieRegistry(new, trees.uri).resolve("b-1") == ("h", 2)

    trees.run(test, sessions=2)


def test_registration_of_a_process_known_to_be_gone_is_replaced_at_once(trees):
    async def test(old, new):
        await BookieRegistry(old, trees.uri).initialize_cluster()
        await BookieRegistry(old, trees.uri).register("b-1", BookieAddress("h", 1))
        await BookieRegistry(new, trees.uri).register("b-1", BookieAddress("h", 2), take_over=True)
        assert await BookieRegistry(new, trees.uri).resolve("b-1") == ("h", 2)
        await old.close()
        assert await BookieRegistry(new, trees.uri).resolve("b-1") == ("h", 2)

    trees.run(test, sessions=2)


@pytest.mark.parametrize("trees", ["zookeeper"], indirect=True)
def test_registration_of_a_living_bookie_is_refused(trees):
    """Tried for twice the session's time-out: by then a bookie that died would be gone. In memory no time passes."""

    async def test(old):
        await BookieRegistry(old, trees.uri).initialize_cluster()
        await BookieRegistry(old, trees.uri).register("b-1", BookieAddress("h", 1))
        new = await open_tree(trees.uri, session_timeout_s=2.0)
        try:
            with pytest.raises(NodeExists, match="b-1"):
                await BookieRegistry(new, trees.uri).register("b-1", BookieAddress("h", 2))
        finally:
            await new.close()

    trees.run(test)


def test_cookies_change_by_compare_and_set(trees):
    async def test(tree):
        registry = BookieRegistry(tree, trees.uri)
        await registry.initialize_cluster()
        cookie = Cookie("b-1", ("/j",), ("/l1", "/l2"), "instance")
        assert await registry.read_cookie("b-1") is None
        await registry.write_cookie(cookie, None)
        stored = await registry.read_cookie("b-1")
        assert stored.cookie == cookie
        with pytest.raises(NodeExists):
            await registry.write_cookie(cookie, None)
        await registry.write_cookie(cookie, stored.version)
        with pytest.raises(MetadataVersion):
            await registry.write_cookie(cookie, stored.version)
        await registry.delete_cookie("b-1")
        assert await registry.known() == []
        assert await tree.exists(parent_of(trees.uri.root)) is not None

    trees.run(test)


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("call", range(12))
def test_lost_answer_at_any_write_of_the_registry_is_found_out(fault, call):
    """M1: a write that took effect counts as done; another one raises and can be repeated."""

    async def test():
        store = MemoryStore()
        uri = MetadataUri.parse("zk://h:1/ledgers")
        registry = BookieRegistry(store.session(), uri)
        address, cookie = BookieAddress("h", 1), Cookie("b-1", ("/j",), ("/l",), "instance")
        store.faults[store.writes + call] = fault

        async def surely(step):
            """Do a step, once more where it says that it was not done."""
            try:
                return await step()
            except (NodeExists, NoSuchNode, MetadataVersion):
                raise
            except MetadataError:
                return await step()

        await surely(registry.initialize_cluster)
        identity = await registry.instance_id()
        assert identity is not None
        await surely(lambda: registry.register("b-1", address))
        assert await registry.writable_ids() == {"b-1"}
        await surely(lambda: registry.write_cookie(cookie, None))
        await surely(lambda: registry.write_cookie(cookie, 0))
        assert (await registry.read_cookie("b-1")).version == 1
        await surely(lambda: registry.unregister("b-1"))
        assert await registry.writable_ids() == set()
        await surely(lambda: registry.delete_cookie("b-1"))
        assert await registry.known() == []
        assert await registry.instance_id() == identity

    asyncio.run(test())


def test_root_that_holds_something_else_is_refused_and_left_alone(trees):
    async def test(tree):
        await tree.create(f"{trees.uri.root}/something", make_parents=True)
        with pytest.raises(MetadataError, match=r"is not empty.*something"):
            await BookieRegistry(tree, trees.uri).initialize_cluster()
        assert await tree.children(trees.uri.root) == ["something"]

    trees.run(test)


def test_empty_root_and_missing_layout_are_completed(trees):
    async def test(tree):
        await tree.create(trees.uri.root, make_parents=True)
        registry = BookieRegistry(tree, trees.uri)
        assert await registry.initialize_cluster()
        identity = await registry.instance_id()
        await tree.delete(f"{trees.uri.root}/LAYOUT")
        assert not await registry.initialize_cluster()
        assert await tree.exists(f"{trees.uri.root}/LAYOUT") is not None
        assert await registry.instance_id() == identity

    trees.run(test)


def test_two_initialisations_at_once_make_one_cluster(trees):
    async def test(*sessions):
        registries = [BookieRegistry(tree, trees.uri) for tree in sessions]
        made = await asyncio.gather(*(registry.initialize_cluster() for registry in registries))
        assert sum(made) == 1
        assert len({await registry.instance_id() for registry in registries}) == 1

    trees.run(test, sessions=3)


def test_rack_map_is_found_below_the_root_or_beside_it_and_watched(trees):
    async def test(tree):
        registry = BookieRegistry(tree, trees.uri)
        await registry.initialize_cluster()
        assert (await registry.racks()).racks == {}
        changed = asyncio.Event()
        stop = await registry.watch_racks(changed.set)
        root = trees.uri.root
        beside = f"{parent_of(root)}/bookies"
        for path, rack in ((beside, "/r1"), (f"{root}/bookies", "/r2")):
            await tree.create(path, b'{"g": {"b:1": {"rack": "%s"}}}' % rack.encode())
            await asyncio.wait_for(changed.wait(), 60)
            assert (await registry.racks()).racks == {"b:1": rack}
            changed.clear()
        await tree.set(f"{root}/bookies", b"nonsense", -1)
        await asyncio.wait_for(changed.wait(), 60)
        with pytest.raises(MetadataFormat, match=f"{root}/bookies"):
            await registry.racks()
        stop()

    trees.run(test)
