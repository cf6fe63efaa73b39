"""The parts that follow the cluster, where its store or a disk fails or changes between two of their steps."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bkspark.errors import MetadataError
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.tree import ANY_VERSION, Stat
from bkspark.metadata.uri import MetadataUri
from bkspark.wire.digest import DigestType, master_key
from bookie_service.cluster.ledger_metadata_view import LedgerMetadataView
from bookie_service.cluster.ledger_shares import LedgerShare
from bookie_service.cluster.limbo_check import LimboCheck
from bookie_service.cluster.peers import ClusterPeers
from bookie_service.cluster.registration import Registration
from tests.bookie import plans
from tests.bookie.limbo_checks import DELETED, WHOLE, Shares, in_limbo_on_three_disks, looked_at, store_with
from tests.bookie.metadata_views import US, metadata, with_cluster
from tests.bookie.registrations import TIMEOUT_S, Bench, run
from tests.metadata.meanwhile import Meanwhile
from tests.polling import until

URI = MetadataUri.parse("zk://h/ledgers")


# ---- limbo (docs/protocol.md §6.10) ----


def test_ledger_whose_fence_is_not_durable_stays_in_limbo(tmp_path: Path) -> None:
    """A bookie without it would take the late add of a writer that was fenced."""
    store = store_with(tmp_path / "current", 5, range(10))
    store.limbo.begin([5])

    async def flush_without_success() -> None:
        """The disk is full."""

    async def look() -> None:
        checking = LimboCheck(store, Shares({5: WHOLE}), 3600, 1_000_000, flush_without_success)
        checking.cancel()
        await checking.check()

    asyncio.run(look())
    assert store.limbo.ledger_ids.tolist() == [5]
    store.close()


def test_deleted_ledger_on_a_failing_disk_stays_in_limbo_and_the_others_leave(tmp_path: Path) -> None:
    bench, files = in_limbo_on_three_disks(tmp_path)
    looked_at(bench.store, Shares(dict.fromkeys((3, 4, 5), DELETED)))
    assert bench.store.limbo.ledger_ids.tolist() == [4]
    files.fault = None
    bench.store.close()


def test_unexpected_error_of_one_look_does_not_end_the_looks(tmp_path: Path) -> None:
    class Defective(Shares):
        looks = 0

        async def share(self, ledger_id: int) -> LedgerShare:
            self.looks += 1
            if self.looks == 1:
                raise RuntimeError("a defect")
            return await super().share(ledger_id)

    store = store_with(tmp_path / "current", 5, range(10))
    store.limbo.begin([5])
    metadata_view = Defective({5: WHOLE})

    async def no_flush() -> None:
        """Nothing is made durable."""

    async def look() -> None:
        checking = LimboCheck(store, metadata_view, 0.001, 1_000_000, no_flush)
        await until(lambda: metadata_view.looks > 1, "another look")
        checking.cancel()

    asyncio.run(look())
    store.close()


# ---- peers ----


def test_addresses_of_the_clusters_bookies_stay_while_its_store_is_away() -> None:
    class Away(MemoryTree):
        is_away = False
        asked = 0

        async def children(self, path: str) -> list[str]:
            self.asked += 1
            if self.is_away:
                raise MetadataError("the store is away")
            return await super().children(path)

    async def look() -> None:
        store = MemoryStore()
        tree, own = Away(store, 77, 10.0), BookieRegistry(store.session(), URI)
        await own.initialize_cluster()
        await own.register("a", BookieAddress("127.0.0.1", 1))
        peers = ClusterPeers(BookieRegistry(tree, URI), interval_s=0.01)
        peers.start()
        await until(lambda: peers.addresses == {"127.0.0.1"}, "the first look-up")
        tree.is_away = True
        before = tree.asked
        await until(lambda: tree.asked > before + 2, "look-ups that fail")
        assert peers.addresses == {"127.0.0.1"}
        tree.is_away = False
        await own.register("b", BookieAddress("127.0.0.2", 1))
        await until(lambda: peers.addresses == {"127.0.0.1", "127.0.0.2"}, "a look-up that succeeds")
        await peers.stop()

    asyncio.run(look())


# ---- what is known of ledgers ----


def test_ledger_that_a_server_does_not_have_yet_is_known_when_it_has_caught_up() -> None:
    """Its first request would be refused otherwise."""

    async def test() -> None:
        store = MemoryStore()
        await BookieRegistry(store.session(), URI).initialize_cluster()

        async def created() -> None:
            await LedgerStore(store.session(), URI).create(metadata(US), ledger_id=5)

        view = LedgerMetadataView(Meanwhile(store, transaction=created), URI, US)
        assert await view.facts(5) is not None

    asyncio.run(test())


@pytest.mark.parametrize("password", [None, b"", b"secret"])
def test_master_key_is_known_if_the_metadata_have_the_password(password: bytes | None) -> None:
    """Metadata of format 1 carry no password, and an empty one is a password, too (docs/protocol.md §3.4)."""

    async def test(tree: MemoryTree, ledgers: LedgerStore, metadata_view: LedgerMetadataView) -> None:
        stored = replace(metadata(US), password=password, digest=DigestType.CRC32)
        await ledgers.create(stored, ledger_id=5)
        facts = await metadata_view.facts(5)
        assert facts is not None
        assert facts.master_key == (None if password is None else master_key(password))

    with_cluster(test)


# ---- registration and plans ----


class TurningBack(MemoryTree):
    """A session in which the bookie is to be writable again as soon as it is registered as read-only."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.store, 77, TIMEOUT_S)
        self.registration: Registration | None = None
        self.owners: list[tuple[int | None, int | None]] = []
        """The sessions of the writable and the read-only node after each change."""
        self._bench = bench

    async def create(self, path: str, *arguments: Any, **options: Any) -> tuple[str, Stat]:
        created = await super().create(path, *arguments, **options)
        if path.startswith("/ledgers/available/readonly/") and self.registration is not None:
            self.registration.change(read_only=False)
        self.owners.append(self._bench.owners())
        return created

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await super().delete(path, version)
        self.owners.append(self._bench.owners())


def test_mode_that_changes_during_its_registration_is_never_without_one() -> None:
    """Clients can find a bookie's address at every moment (docs/protocol.md §4.7)."""

    async def test(bench: Bench) -> None:
        tree = bench.tree = TurningBack(bench)
        bench.registry = BookieRegistry(tree, URI)
        tree.registration = registration = await bench.registered()
        tree.owners.clear()
        registration.change(read_only=True, reason="a full disk")
        await registration.settled()
        assert bench.owners() == (tree.session_id, None)
        assert tree.owners
        assert (None, None) not in tree.owners

    run(test)


def test_plan_is_watched_once_however_often_it_changes() -> None:
    async def test(bench: plans.Bench) -> None:
        await bench.follower.start()
        await asyncio.sleep(1)
        before = len(bench.store.watched)
        for number in range(3):
            await bench.plans.set(replace(plans.PLAN, reason=str(number)))
            await asyncio.sleep(1)
        assert len(bench.store.watched) == before
        await bench.follower.stop()
        assert len(bench.store.watched) == 0

    plans.run(test)
