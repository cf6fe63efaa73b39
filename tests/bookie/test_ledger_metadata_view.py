"""What is known of ledgers, against the metadata tree in memory: doubt is never a proof."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import MetadataError, MetadataFormat
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.paths import underreplication_path
from bkspark.metadata.tree import Stat
from bookie_service.cluster.ledger_metadata_view import LedgerMetadataView
from bookie_service.cluster.ledger_shares import HeldShare, LedgerShare
from tests.bookie.metadata_views import OTHER, URI, US, Follower, metadata, with_cluster
from tests.metadata.interruptions import InterruptedTree, Interruption, surely


async def all_listed(metadata_view: LedgerMetadataView) -> np.ndarray:
    """Return the ids of a whole listing."""
    return np.concatenate([np.empty(0, np.int64), *[page async for page in metadata_view.listed()]])


def test_listing_and_direct_read_agree_on_what_exists() -> None:
    async def test(tree: MemoryTree, ledgers: LedgerStore, metadata_view: LedgerMetadataView) -> None:
        for ledger_id in (5, 1 << 40):
            await ledgers.create(metadata(US), ledger_id=ledger_id)
        assert sorted((await all_listed(metadata_view)).tolist()) == [5, 1 << 40]
        assert [await metadata_view.is_deleted(ledger_id) for ledger_id in (5, 6)] == [False, True]

    with_cluster(test)


def test_unreadable_metadata_prove_nothing() -> None:
    async def test(tree: MemoryTree, ledgers: LedgerStore, metadata_view: LedgerMetadataView) -> None:
        await tree.create("/ledgers/00/0000/L0005", b"garbage", make_parents=True)
        with pytest.raises(MetadataFormat):
            await metadata_view.is_deleted(5)

    with_cluster(test)


def test_another_clusters_metadata_are_not_proof() -> None:
    """Scenario Z10: the store was wiped and set up again, or lost what it had."""

    async def test(tree: MemoryTree, ledgers: LedgerStore, metadata_view: LedgerMetadataView) -> None:
        await tree.set("/ledgers/INSTANCEID", b"another", -1)
        with pytest.raises(MetadataError, match="instance id is another"):
            await all_listed(metadata_view)
        with pytest.raises(MetadataError, match="instance id is another"):
            await metadata_view.is_deleted(5)
        await tree.delete("/ledgers/INSTANCEID")
        with pytest.raises(MetadataError, match="instance id is None"):
            await all_listed(metadata_view)

    with_cluster(test)


def test_metadata_that_become_another_clusters_during_a_listing_end_it_with_an_error() -> None:
    async def test(tree: MemoryTree, ledgers: LedgerStore, metadata_view: LedgerMetadataView) -> None:
        await ledgers.create(metadata(US), ledger_id=5)
        pages = metadata_view.listed()
        assert (await anext(pages)).tolist() == [5]
        await tree.set("/ledgers/INSTANCEID", b"another", -1)
        with pytest.raises(MetadataError, match="instance id is another"):
            await anext(pages)
        with pytest.raises(MetadataError, match="instance id is another"):
            await anext(metadata_view.listed())

    with_cluster(test)


def test_ledgers_of_a_cluster_without_an_instance_id_can_be_proven_deleted_until_it_gets_one() -> None:
    """Bookies serve such a cluster, too, and their disks must not fill with deleted ledgers."""

    async def test(tree: MemoryTree, ledgers: LedgerStore, metadata_view: LedgerMetadataView) -> None:
        await tree.delete("/ledgers/INSTANCEID")
        await metadata_view.open()
        await ledgers.create(metadata(US), ledger_id=5)
        assert (await all_listed(metadata_view)).tolist() == [5]
        assert [await metadata_view.is_deleted(ledger_id) for ledger_id in (5, 6)] == [False, True]
        await tree.create("/ledgers/INSTANCEID", b"another")
        with pytest.raises(MetadataError, match="instance id is another"):
            await metadata_view.is_deleted(6)

    with_cluster(test)


def test_nothing_is_proven_before_the_instance_id_was_read() -> None:
    async def test(tree: MemoryTree, ledgers: LedgerStore, metadata_view: LedgerMetadataView) -> None:
        for _ in range(2):
            with pytest.raises(MetadataError, match="instance id"):
                await LedgerMetadataView(tree, URI, US).is_deleted(6)
            if await tree.exists("/ledgers/INSTANCEID") is not None:
                await tree.delete("/ledgers/INSTANCEID")

    with_cluster(test)


def test_s35_only_closed_ledgers_that_are_not_under_repair_are_elsewhere() -> None:
    """Scenario S35."""

    async def test(tree: MemoryTree, ledgers: LedgerStore, metadata_view: LedgerMetadataView) -> None:
        for ledger_id, stored in enumerate(
            [metadata(OTHER), metadata(OTHER, closed=False), metadata(US, OTHER), metadata(OTHER), metadata(OTHER)]
        ):
            await ledgers.create(stored, ledger_id=ledger_id)
        await tree.create(f"/ledgers/underreplication/ledgers/{underreplication_path(3)}", make_parents=True)
        await tree.create("/ledgers/underreplication/locks/urL0000000004", make_parents=True)
        answers = []
        for ledger_id in range(6):
            async with metadata_view.elsewhere(ledger_id) as answer:
                answers.append(answer)
        assert answers == [True, False, False, False, False, False]
        assert await tree.children("/ledgers/underreplication/locks") == ["urL0000000004"]

    with_cluster(test)


def test_s34_ledger_is_locked_against_repair_while_it_is_dropped() -> None:
    async def test(tree: MemoryTree, ledgers: LedgerStore, metadata_view: LedgerMetadataView) -> None:
        await ledgers.create(metadata(OTHER), ledger_id=7)
        async with metadata_view.elsewhere(7):
            assert await tree.children("/ledgers/underreplication/locks") == ["urL0000000007"]

    with_cluster(test)


class LockedTree(MemoryTree):
    """A session before whose lock another process changes a ledger, or whose unlocking is lost."""

    before_lock: Callable[[], Awaitable[object]] | None = None
    loses_deletions = False

    async def create(self, path: str, data: bytes = b"", **options: Any) -> tuple[str, Stat]:
        if "/locks/" in path and self.before_lock is not None:
            await self.before_lock()
        return await super().create(path, data, **options)

    async def delete(self, path: str, version: int = -1) -> None:
        if self.loses_deletions:
            raise MetadataError("the connection to the metadata store was lost")
        await super().delete(path, version)


def test_ledger_that_comes_to_this_bookie_before_it_is_locked_is_not_elsewhere() -> None:
    async def run() -> None:
        server = MemoryStore()
        tree, other = LockedTree(server, 1_010, 10.0), server.session()
        await BookieRegistry(other, URI).initialize_cluster()
        ledgers = LedgerStore(other, URI)
        await ledgers.create(metadata(OTHER), ledger_id=7)
        metadata_view = LedgerMetadataView(tree, URI, US)
        await metadata_view.open()

        async def repair() -> None:
            await ledgers.write(7, metadata(US), (await ledgers.read(7)).version)

        tree.before_lock = repair
        async with metadata_view.elsewhere(7) as is_elsewhere:
            assert not is_elsewhere

    asyncio.run(run())


def test_lock_that_cannot_be_removed_ends_with_the_session_and_raises_nothing() -> None:
    async def run() -> None:
        server = MemoryStore()
        tree = LockedTree(server, 1_010, 10.0)
        await BookieRegistry(tree, URI).initialize_cluster()
        await LedgerStore(tree, URI).create(metadata(OTHER), ledger_id=7)
        metadata_view = LedgerMetadataView(tree, URI, US)
        await metadata_view.open()
        tree.loses_deletions = True
        async with metadata_view.elsewhere(7) as is_elsewhere:
            assert is_elsewhere
        assert await tree.children("/ledgers/underreplication/locks") == ["urL0000000007"]
        server.expire(tree)
        assert await server.session().children("/ledgers/underreplication/locks") == []

    asyncio.run(run())


@pytest.mark.parametrize("how", [Interruption.LOST_BEFORE, Interruption.LOST_AFTER])
def test_lock_whose_answer_was_lost_is_taken_and_removed_by_the_next_pass(how: Interruption) -> None:
    """It is this session's own, and no worker could repair the ledger for as long as the bookie runs."""

    async def interrupted(at: int) -> bool:
        """Return whether a pass made the call with this number."""
        server = MemoryStore()
        other = server.session()
        await BookieRegistry(other, URI).initialize_cluster()
        await LedgerStore(other, URI).create(metadata(OTHER), ledger_id=7)
        tree = InterruptedTree(server, at, how)
        metadata_view = LedgerMetadataView(tree, URI, US)
        await surely(metadata_view.open)

        async def ask() -> bool:
            async with metadata_view.elsewhere(7) as is_elsewhere:
                return is_elsewhere

        with contextlib.suppress(MetadataError):
            assert await ask()
        if tree.struck is None:
            return False
        assert await ask()
        assert await other.children("/ledgers/underreplication/locks") == []
        return True

    at = 0
    while asyncio.run(interrupted(at)):
        at += 1
    assert at > 5


def test_one_ledger_whose_metadata_cannot_be_read_does_not_stop_the_work_on_the_others() -> None:
    """It is kept, stays in limbo, and may be this bookie's."""

    async def test(tree: MemoryTree, ledgers: LedgerStore, metadata_view: LedgerMetadataView) -> None:
        for ledger_id, bookie in ((5, OTHER), (7, US)):
            await ledgers.create(metadata(bookie), ledger_id=ledger_id)
        await tree.create("/ledgers/00/0000/L0006", b"BookieMetadataFormatVersion\t4\n")
        async with metadata_view.elsewhere(6) as answer:
            assert not answer
        share = await metadata_view.share(6)
        assert (share.parts, share.is_closed, share.is_deleted) == ((), False, False)
        assert await metadata_view.ledgers_on_bookie() == [6, 7]

    with_cluster(test)


# ---- ledgers in limbo ----


def test_share_is_of_the_fragments_that_get_no_more_entries() -> None:
    async def test(tree: MemoryTree, ledgers: LedgerStore, metadata_view: LedgerMetadataView) -> None:
        for ledger_id, stored in enumerate(
            [
                metadata(US, OTHER, US),
                metadata(US, OTHER, US, closed=False),
                metadata(OTHER),
                metadata(US, closed=False),
            ]
        ):
            await ledgers.create(stored, ledger_id=ledger_id)
        shares = [await metadata_view.share(ledger_id) for ledger_id in range(5)]
        parts = [[(part.first_entry, part.end_entry) for part in share.parts] for share in shares]
        assert parts == [[(0, 10), (20, 100)], [(0, 10)], [], [], []]
        assert [share.is_closed for share in shares[:4]] == [True, False, True, False]
        assert [share.is_deleted for share in shares] == [False] * 4 + [True]

    with_cluster(test)


def test_z6_ledger_that_only_a_lagging_server_lacks_is_not_deleted() -> None:
    async def test(tree: MemoryTree, ledgers: LedgerStore, metadata_view: LedgerMetadataView) -> None:
        store = MemoryStore()
        await BookieRegistry(store.session(), URI).initialize_cluster()
        follower = Follower(store, store.session().session_id, 10.0)
        lagging = LedgerMetadataView(follower, URI, US)
        await lagging.open()
        follower.lagging = copy.deepcopy(store).session()
        await LedgerStore(store.session(), URI).create(metadata(US), ledger_id=5)
        share = await lagging.share(5)
        assert (share.parts, share.is_closed, share.is_deleted) == ((), False, False)
        assert len((await lagging.share(5)).parts) == 1

    with_cluster(test)


def test_a4_report_is_a_node_of_apaches_list_that_names_this_bookie() -> None:
    async def test(tree: MemoryTree, ledgers: LedgerStore, metadata_view: LedgerMetadataView) -> None:
        for _ in range(2):
            await metadata_view.report(7, 1000)
        data, _ = await tree.get(f"/ledgers/underreplication/ledgers/{underreplication_path(7)}")
        assert data == b'replica: "us:1"\nctime: 1000\n'
        layout, _ = await tree.get("/ledgers/underreplication/LAYOUT")
        assert layout.startswith(b'type: "BASIC"')

    with_cluster(test)


def test_ledgers_of_this_bookie_are_those_that_name_it_in_any_ensemble() -> None:
    async def test(tree: MemoryTree, ledgers: LedgerStore, metadata_view: LedgerMetadataView) -> None:
        for ledger_id, bookies in ((1, (US,)), (2, (OTHER,)), (3, (OTHER, US)), (4, (US, OTHER))):
            await ledgers.create(metadata(*bookies), ledger_id=ledger_id)
        assert await metadata_view.ledgers_on_bookie() == [1, 3, 4]
        listed = await all_listed(metadata_view)
        assert listed.dtype == np.int64
        assert listed.tolist() == [1, 2, 3, 4]

        async def with_deleted() -> AsyncIterator[np.ndarray]:
            yield np.array([1, 2, 3, 4, 77])

        metadata_view.listed = with_deleted  # type: ignore[method-assign]
        assert await metadata_view.ledgers_on_bookie() == [1, 3, 4], "77 was deleted since it was listed"

    with_cluster(test)


def test_share_names_each_fragment_that_gets_no_more_entries_and_this_bookies_place_in_it() -> None:
    async def test(tree: MemoryTree, ledgers: LedgerStore, metadata_view: LedgerMetadataView) -> None:
        fragments = (
            Fragment(0, ("x:1", US, "y:1")),
            Fragment(10, ("x:1", "z:1", "y:1")),
            Fragment(30, ("x:1", "z:1", US)),
        )
        opened = LedgerMetadata(3, 2, 2, fragments)
        await ledgers.create(opened, ledger_id=5)
        await ledgers.create(opened.closed(49, 99), ledger_id=6)
        first = HeldShare(0, 10, 1, 3, 2)
        assert await metadata_view.share(5) == LedgerShare((first,), is_closed=False)
        assert await metadata_view.share(6) == LedgerShare((first, HeldShare(30, 50, 2, 3, 2)), is_closed=True)
        assert await metadata_view.share(7) == LedgerShare((), is_deleted=True)

    with_cluster(test)
