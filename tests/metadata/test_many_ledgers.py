"""Listing ten million ledgers takes memory for one leaf of the tree, wherever it is done.

Ten million names come from a model of ZooKeeper (`benchmarks.made_up_ledgers`); some thousand are in a real one.
"""

from __future__ import annotations

import asyncio
import io
import sys
import tracemalloc
from argparse import Namespace
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from benchmarks.made_up_ledgers import URI, made_up_tree
from bkspark.cli import ledger_listing
from bkspark.client import Client
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.tree import Tree
from bkspark.metadata.uri import MetadataUri
from bkspark.wire.digest import DigestType
from bookie_service.admin.http import jackson
from bookie_service.cluster.ledger_metadata_view import LedgerMetadataView
from bookie_service.gc.deletion_proofs import DeletionProofs
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.options import AutoRecoveryOptions
from tests.metadata.conftest import Trees

MIB = 1 << 20
TEN_MILLION = 10_000_000
METADATA = LedgerMetadata(1, 1, 1, (Fragment(0, ("b:1",)),), digest=DigestType.DUMMY, ctime=1)


def peak_bytes(test: Callable[[], Awaitable[None]]) -> int:
    """Run a coroutine; return the most memory that it held beyond what was there before."""

    async def run() -> int:
        tracemalloc.start()
        try:
            await test()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    return asyncio.run(run())


@pytest.mark.slow
def test_ten_million_ids_are_listed_with_memory_for_one_leaf() -> None:
    async def test() -> None:
        ledgers = LedgerStore(await made_up_tree(TEN_MILLION), MetadataUri.parse(URI))
        count = total = 0
        async for page in ledgers.pages():
            assert page.dtype == np.int64
            count, total = count + len(page), total + int(page.sum())
        assert (count, total) == (TEN_MILLION, TEN_MILLION * (TEN_MILLION - 1) // 2)

    assert peak_bytes(test) < 4 * MIB


@pytest.mark.slow
def test_garbage_collection_beside_ten_million_ledgers_holds_its_own_ids_only() -> None:
    own = np.arange(0, 2 * TEN_MILLION, 20, dtype=np.int64)  # a million, of which the upper half is deleted

    class Index:
        def ledger_ids(self) -> np.ndarray:
            return own

        def holding_entries(self, ledger_ids: np.ndarray) -> np.ndarray:
            return ledger_ids

    async def in_thread(function: Callable[..., object], /, *arguments: object) -> object:
        return await asyncio.to_thread(function, *arguments)

    reasons: list[str] = []

    async def pace() -> None:
        raise AssertionError("the brake holds half of all ledgers back before any direct read")

    async def test() -> None:
        tree = await made_up_tree(TEN_MILLION)
        metadata_view = LedgerMetadataView(tree, MetadataUri.parse(URI), "b:1")
        await metadata_view.open()
        proofs = DeletionProofs(Index(), metadata_view, 1.0, 0.2, in_thread)  # type: ignore[arg-type]
        assert not len(await proofs.deleted(pace, reasons.append, is_forced=False))

    # 8 MB of own ids; what is noted of half a million missing ones: counts, times, and copies while they are sorted.
    assert peak_bytes(test) < 40 * MIB
    (reason,) = reasons
    assert reason.startswith("500000 of 1000000 ledgers")


@pytest.mark.slow
@pytest.mark.parametrize("asks_json", [False, True])
def test_ledger_list_prints_while_it_lists(monkeypatch: pytest.MonkeyPatch, asks_json: bool) -> None:
    class Counter(io.TextIOBase):
        """Keeps how many ids were written, and the first and last bytes."""

        commas = lines = 0
        first = last = ""

        def write(self, text: str) -> int:
            self.commas, self.lines = self.commas + text.count(","), self.lines + text.count("\n")
            self.first, self.last = self.first or text[:20], (self.last + text)[-20:]
            return len(text)

    written = Counter()
    monkeypatch.setattr(sys, "stdout", written)
    arguments = Namespace(
        json=asks_json,
        long=False,
        open=False,
        bookie=None,
        log=None,
        older_than=None,
        sort="id",
        after=None,
        limit=None,
    )

    async def test() -> None:
        async with Client(URI, tree=await made_up_tree(300_000)) as client:
            output = ledger_listing._JsonOutput() if asks_json else ledger_listing._LinesOutput()
            assert await ledger_listing._list(client, arguments, output) == (300_000, 300_000)
            output.end({})

    # 300,000 ids as numbers alone take 11 MB.
    assert peak_bytes(test) < 5 * MIB
    if asks_json:
        assert (written.commas, written.first[:15], written.last[-9:]) == (299_999, '{"ledgers": [0,', "299999]}\n")
    else:
        assert (written.lines, written.last[-7:]) == (300_000, "299999\n")


@pytest.mark.slow
def test_operators_http_list_is_sent_in_pieces() -> None:
    async def test() -> None:
        ledgers = LedgerStore(await made_up_tree(100_000), MetadataUri.parse(URI))
        size = 0
        async for piece in jackson.stream(dict.fromkeys(page.tolist()) async for page in ledgers.pages()):
            size += len(piece)
        assert size == len(jackson.dumps(dict.fromkeys(range(100_000))))

    asyncio.run(test())


@pytest.mark.slow
def test_audit_memory_does_not_grow_with_the_number_of_ledgers() -> None:
    bookies = [f"b{number}:1" for number in range(100)]

    def audited(ledgers: int) -> int:
        async def test() -> None:
            tree = await made_up_tree(ledgers, bookies)
            await _with_cookies(tree, bookies)
            async with Client(URI, tree=tree) as client:
                repaired = await RepairedCluster.of(client)
                auditor = repaired.auditor("here", AutoRecoveryOptions())
                assert await auditor.audit(["b0:1"]) >= ledgers * 3 // 100

        return peak_bytes(test)

    small, large = audited(1000), audited(9000)
    # The model keeps the list of under-replicated ledgers: 240 more.
    assert large < small + MIB


async def _with_cookies(tree: Tree, bookies: list[str]) -> None:
    for bookie in bookies:
        await tree.create(f"/ledgers/cookies/{bookie}", b"4\n", make_parents=True)


def test_thousands_of_ledgers_are_created_and_listed_in_a_real_store(trees: Trees) -> None:
    leaves = [list(range(base, base + 2000)) for base in (0, 50_000, 1 << 40)]

    async def test(tree: Tree) -> None:
        await BookieRegistry(tree, trees.uri).initialize_cluster()
        ledgers = LedgerStore(tree, trees.uri)
        for leaf in leaves:
            for begin in range(0, len(leaf), 500):
                await asyncio.gather(*(ledgers.create(METADATA, ledger_id=each) for each in leaf[begin : begin + 500]))
        assert [page.tolist() async for page in ledgers.pages()] == leaves

    trees.run(test)
