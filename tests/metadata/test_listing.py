"""The order of listed ledgers, over both hierarchical layouts and in a flat cluster, and what a listing reads."""

from __future__ import annotations

import asyncio
import itertools
import re

import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.ids import LEDGER_ID_MAX
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.listing import leaf_ids
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.tree import Tree
from bkspark.metadata.uri import MetadataUri
from bkspark.wire.digest import DigestType
from tests.metadata.conftest import Trees
from tests.metadata.meanwhile import Meanwhile

METADATA = LedgerMetadata(1, 1, 1, (Fragment(0, ("b:1",)),), digest=DigestType.DUMMY, ctime=1)

IDS = [0, 1, 9_999, 10_000, 10_001, 123_456_789, 2_147_483_646, 2_147_483_647, 1 << 40, (1 << 40) + 1, LEDGER_ID_MAX]


def test_ids_of_both_layouts_come_in_ascending_order_from_any_place_on(trees: Trees) -> None:
    async def test(tree: Tree) -> None:
        await BookieRegistry(tree, trees.uri).initialize_cluster()
        ledgers = LedgerStore(tree, trees.uri)
        for ledger_id in IDS:
            await ledgers.create(METADATA, ledger_id=ledger_id)
        for name in ("L12", "LL123", "l0002", "L00x1", "x"):
            await tree.create(f"{trees.uri.root}/00/0000/{name}")
        for after in (-1, 0, 1, 5000, 9_998, 9_999, 10_000, 2_147_483_646, 2_147_483_647, 1 << 40, LEDGER_ID_MAX):
            pages = [page async for page in ledgers.pages(after)]
            assert [each for page in pages for each in page.tolist()] == [each for each in IDS if each > after]
            assert all(len(set((page // 10_000).tolist())) == 1 for page in pages)
        assert [ledger_id async for ledger_id in ledgers.ids()] == IDS

    trees.run(test)


def test_ids_of_a_long_tree_mix_with_those_of_a_short_one_by_span() -> None:
    """A cluster whose ledger manager was changed has small ids in both trees."""

    async def test() -> None:
        tree = MemoryStore().session()
        uri = MetadataUri.parse("zk://h/ledgers")
        await BookieRegistry(tree, uri).initialize_cluster()
        for path in (
            "/00/0000/L0003",
            "/000/0000/0000/0000/L0002",
            "/000/0000/0000/0000/L0003",
            "/000/0000/0000/0000/L0004",
            "/00/0002/L0000",
            "/000/0000/0000/0001/L0000",
            "/L0000015000",
            "/L9999999999999999999",
            "/999/9999/9999/9999/L9999",
        ):
            await tree.create(f"/ledgers{path}", make_parents=True)
        pages = [page.tolist() async for page in LedgerStore(tree, uri).pages()]
        assert pages == [[2, 3, 4], [10_000, 15_000], [20_000]]

    asyncio.run(test())


def test_ids_of_a_flat_cluster_come_span_by_span() -> None:
    async def test() -> None:
        tree = MemoryStore().session()
        uri = MetadataUri.parse("zk+flat://h/ledgers")
        await BookieRegistry(tree, uri).initialize_cluster()
        ledgers = LedgerStore(tree, uri)
        ids = [7, 9_999, 10_000, 25_000, 1 << 40]
        for ledger_id in ids:
            await ledgers.create(METADATA, ledger_id=ledger_id)
        assert [page.tolist() async for page in ledgers.pages()] == [[7, 9_999], [10_000], [25_000], [1 << 40]]
        assert [page.tolist() async for page in ledgers.pages(9_999)] == [[10_000], [25_000], [1 << 40]]

    asyncio.run(test())


@pytest.mark.parametrize("count", range(4))
@pytest.mark.parametrize("base", [0, 70_000, LEDGER_ID_MAX - LEDGER_ID_MAX % 10_000])
def test_names_of_a_leaf_that_do_not_name_ledgers_are_left_out(base: int, count: int) -> None:
    known = (
        "L0000",
        "L5807",
        "L5808",
        "L9999",
        "LL123",
        "l0002",
        "L00x1",
        "L00:0",
        "12345",
        "L12",
        "L00001",
        "L000\u0661",
    )
    for names in itertools.product(known, repeat=count):
        numbers = [int(name[1:]) for name in names if re.fullmatch("L[0-9]{4}", name)]
        wanted = [base + number for number in numbers if base + number <= LEDGER_ID_MAX]
        assert leaf_ids(base, names).tolist() == wanted, names


def test_folders_below_the_place_to_begin_at_are_not_read() -> None:
    class Read(MemoryTree):
        """Notes what is listed."""

        def __init__(self) -> None:
            super().__init__(MemoryStore(), 1, 10.0)
            self.paths: list[str] = []

        async def children(self, path: str) -> list[str]:
            self.paths.append(path)
            return await super().children(path)

    async def test() -> None:
        tree = Read()
        uri = MetadataUri.parse("zk://h/ledgers")
        await BookieRegistry(tree, uri).initialize_cluster()
        for path in ("/00/0000/L0003", "/00/0001/L0000", "/01/0000/L0000", "/000/0000/0021/4748/L3647"):
            await tree.create(f"/ledgers{path}", make_parents=True)
        tree.paths.clear()
        pages = [page.tolist() async for page in LedgerStore(tree, uri).pages(10_000)]
        assert pages == [[100_000_000], [2_147_483_647]]
        assert "/ledgers/00/0000" not in tree.paths
        tree.paths.clear()
        assert [page.tolist() async for page in LedgerStore(tree, uri).pages(99_999_999)] == pages
        assert "/ledgers/00" not in tree.paths

    asyncio.run(test())


def test_folder_that_vanishes_while_ledgers_are_listed_means_fewer_ledgers() -> None:
    async def test() -> None:
        store = MemoryStore()
        uri = MetadataUri.parse("zk://h/ledgers")
        await BookieRegistry(store.session(), uri).initialize_cluster()
        ledgers = LedgerStore(store.session(), uri)
        for ledger_id in (3, 20_000):
            await ledgers.create(METADATA, ledger_id=ledger_id)
        tree = Meanwhile(store)

        async def root_is_read() -> None:
            tree.before["children"] = folder_is_read

        async def folder_is_read() -> None:
            tree.before["children"] = vanishes

        async def vanishes() -> None:
            await ledgers.delete(3)

        tree.before["children"] = root_is_read
        assert [page.tolist() async for page in LedgerStore(tree, uri).pages()] == [[20_000]]

    asyncio.run(test())
