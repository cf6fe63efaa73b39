"""The tree's contract, on the in-memory twin and on a real ZooKeeper alike."""

from __future__ import annotations

import asyncio

import pytest

from bkspark.errors import MetadataError, MetadataVersion, NodeExists, NoSuchNode
from bkspark.metadata.tree import Check, Create, Delete, Set
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree


def test_node_is_read_as_it_was_written_and_versions_count_writes(trees):
    async def test(tree):
        created = await tree.create(f"{trees.uri.root}/a", b"one", make_parents=True)
        data, stat = await tree.get(f"{trees.uri.root}/a")
        assert created == (f"{trees.uri.root}/a", stat)
        assert (data, stat.version, stat.session_owner, stat.children) == (b"one", 0, 0, 0)
        assert (await tree.set(f"{trees.uri.root}/a", b"two", 0)).version == 1
        with pytest.raises(MetadataVersion):
            await tree.set(f"{trees.uri.root}/a", b"three", 0)
        assert (await tree.get(f"{trees.uri.root}/a"))[0] == b"two"

    trees.run(test)


def test_missing_and_taken_paths_are_named_errors(trees):
    async def test(tree):
        path = f"{trees.uri.root}/a"
        for missing in (tree.get(path), tree.children(path), tree.set(path, b"", -1), tree.delete(path)):
            with pytest.raises(NoSuchNode, match=path):
                await missing
        with pytest.raises(NoSuchNode):
            await tree.create(path)
        assert await tree.exists(path) is None
        await tree.create(path, make_parents=True)
        with pytest.raises(NodeExists, match=path):
            await tree.create(path)
        with pytest.raises(NodeExists, match="children"):
            await tree.delete(trees.uri.root)
        assert await tree.children(trees.uri.root) == ["a"]

    trees.run(test)


def test_sequential_nodes_ascend_and_ephemeral_ones_end_with_their_session(trees):
    async def test(first, second):
        await first.create(trees.uri.root, make_parents=True)
        prefix = f"{trees.uri.root}/n-"
        created = [await first.create(prefix, sequential=True, ephemeral=True) for _ in range(3)]
        paths = [path for path, _ in created]
        assert paths == sorted(paths)
        assert len(set(paths)) == 3
        stat = await second.exists(paths[0])
        assert created[0] == (paths[0], stat)
        assert stat.session_owner == first.session_id != second.session_id
        await first.close()
        assert await second.children(trees.uri.root) == []

    trees.run(test, sessions=2)


def test_transaction_does_all_or_nothing(trees):
    async def test(tree):
        root = trees.uri.root
        await tree.create(f"{root}/a", b"1", make_parents=True)
        await tree.transaction([Check(f"{root}/a", 0), Create(f"{root}/b"), Set(f"{root}/a", b"2", 0)])
        with pytest.raises(MetadataVersion):
            await tree.transaction([Create(f"{root}/c"), Delete(f"{root}/b"), Set(f"{root}/a", b"3", 0)])
        with pytest.raises(NodeExists):
            await tree.transaction([Set(f"{root}/a", b"3", 1), Create(f"{root}/b")])
        assert await tree.children(root) == ["a", "b"]
        assert (await tree.get(f"{root}/a"))[0] == b"2"

    trees.run(test)


def test_watches_tell_again_and_again(trees):
    async def test(tree):
        root = trees.uri.root
        await tree.create(f"{root}/a", make_parents=True)
        heard, listed = asyncio.Event(), asyncio.Event()
        stop = await tree.watch(f"{root}/a", heard.set)
        await tree.watch_children(root, listed.set)
        for number in range(3):
            heard.clear()
            listed.clear()
            await tree.set(f"{root}/a", b"x", -1)
            await asyncio.wait_for(heard.wait(), 60)
            await tree.create(f"{root}/b{number}")
            await asyncio.wait_for(listed.wait(), 60)
        stop()

    trees.run(test)


def test_no_zookeeper_is_one_error_that_names_the_address():
    uri = MetadataUri.parse("zk://127.0.0.1:1/ledgers")
    with pytest.raises(MetadataError, match=r"127\.0\.0\.1:1"):
        asyncio.run(open_tree(uri, call_timeout_s=0.5))


def test_children_of_a_missing_node_cannot_be_watched(trees):
    async def test(tree):
        with pytest.raises(NoSuchNode):
            await tree.watch_children(f"{trees.uri.root}/missing", lambda: None)

    trees.run(test)
