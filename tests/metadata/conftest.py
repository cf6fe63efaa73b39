"""Metadata trees for these tests: in memory, and a real ZooKeeper."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

from bkspark.metadata.memory import MemoryStore
from bkspark.metadata.tree import Tree
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree

_numbers = itertools.count()


class Trees:
    """Runs a test's coroutine with sessions of one store."""

    def __init__(self, uri: MetadataUri, connect: Callable[[], Awaitable[Tree]]) -> None:
        self.uri = uri
        self._connect = connect

    def run(self, test: Callable[..., Awaitable[None]], sessions: int = 1) -> None:
        async def call() -> None:
            trees = [await self._connect() for _ in range(sessions)]
            try:
                await test(*trees)
            finally:
                for tree in trees:
                    await tree.close()

        asyncio.run(call())


@pytest.fixture(params=["memory", "zookeeper"])
def trees(request: pytest.FixtureRequest) -> Trees:
    """Sessions of an in-memory store, then of a real ZooKeeper; each test has a root of its own."""
    root = f"/test{next(_numbers)}/ledgers"
    if request.param == "memory":
        store = MemoryStore()

        async def connect() -> Tree:
            return store.session()

        return Trees(MetadataUri.parse(f"zk://127.0.0.1:2181{root}"), connect)
    server = request.getfixturevalue("zookeeper")
    uri = MetadataUri.parse(f"zk://{server.connect_string}{root}")
    return Trees(uri, lambda: open_tree(uri, session_timeout_s=20.0))
