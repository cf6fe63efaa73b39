"""An unexpected error belongs to its ledger: workers, auditors and bookies go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.blocking import Client as BlockingClient
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.client import Client
from bkspark.core.metadata import LedgerMetadata
from bkspark.entries import EntryBatch
from bkspark.errors import BookKeeperError
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.paths import ledger_path
from bkspark.metadata.tree import Stat
from bkspark.metadata.uri import LedgerManager, MetadataUri
from bkspark.wire import v2
from bookie_service.replication.autorecovery import AutoRecovery, RepairedCluster
from bookie_service.replication.ledger_check import LedgerCheck
from bookie_service.replication.options import AuditOptions, AutoRecoveryOptions, RepairOptions
from tests.bookie.serving import DIGEST, KEY, Peer
from tests.cluster import Cluster, GuestCluster
from tests.ledger.in_process import URI, InProcessCluster, run
from tests.polling import wait_until
from tests.replication.repairing import WAIT_S, naming

OPTIONS = AutoRecoveryOptions(AuditOptions(ledger_check_interval_s=3600), RepairOptions(pause_s=0.01))


class PoisonedTree(MemoryTree):
    """A session that meets an error that is not a MetadataError at the node of one ledger, as of a defect."""

    def __init__(self, store: MemoryStore) -> None:
        session = store.session()
        super().__init__(store, session.session_id, session.session_timeout_s)
        self.poisoned = ""
        self.met = 0

    def poison(self, ledger_id: int) -> None:
        self.poisoned = MetadataUri.parse(URI).root + ledger_path(ledger_id, LedgerManager.HIERARCHICAL)

    async def get(self, path: str) -> tuple[bytes, Stat]:
        if path == self.poisoned:
            self.met += 1
            raise IndexError("planted")
        return await super().get(path)


async def written(client: Client) -> int:
    async with await client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
        await writer.append(b"an entry")
    return writer.ledger_id


def tracebacks(caplog: pytest.LogCaptureFixture) -> int:
    """Count the tracebacks of the planted error; on a busy machine the end of a test may log an expired session."""
    return sum("planted" in str(record.exc_info[1]) for record in caplog.records if record.exc_info)


def test_unexpected_error_defers_one_ledger_and_the_others_are_repaired(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        ledgers = [await written(client) for _ in range(4)]
        tree = PoisonedTree(cluster.store)
        tree.poison(ledgers[1])
        repaired = await RepairedCluster.of(Client(URI, tree=tree))
        lost = cluster.bookies[0].id
        await cluster.bookies[0].stop()
        for ledger_id in ledgers:
            await repaired.store.mark(ledger_id, [lost], 0)
        named = [id for id in ledgers if lost in (await client.metadata(id)).last_fragment.bookies]
        worker = repaired.worker("a worker", OPTIONS)
        await worker.repair_listed()
        assert await worker.repair_listed() == 0, "the failed ledger waits before it is tried again"
        assert [listed async for listed in repaired.store.ids()] == [ledgers[1]]
        assert await repaired.store.locked() == set()
        for ledger_id in {*named} - {ledgers[1]}:
            assert lost not in (await client.metadata(ledger_id)).last_fragment.bookies
        while worker.repaired < len(ledgers):
            tree.poisoned = "" if tree.met >= 2 else tree.poisoned
            await worker.repair_listed()
            await asyncio.sleep(0.05)
        assert [listed async for listed in repaired.store.ids()] == []

    with caplog.at_level(logging.WARNING):
        run(tmp_path, test, bookies=4)
    assert tracebacks(caplog) == 1
    assert "unexpected IndexError: planted" in caplog.text


def test_audit_and_check_go_past_a_ledger_with_an_unexpected_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        ledgers = [await written(client) for _ in range(3)]
        tree = PoisonedTree(cluster.store)
        tree.poison(ledgers[1])
        repaired = await RepairedCluster.of(Client(URI, tree=tree))
        assert await repaired.auditor("an auditor", OPTIONS).audit([cluster.bookies[0].id]) == 2
        assert [listed async for listed in repaired.store.ids()] == [ledgers[0], ledgers[2]]
        check = LedgerCheck(repaired.context, 1.0, blames_silent=True, unexpected=repaired.unexpected)
        errors = {found.ledger_id: found.error async for found in check.findings()}
        assert sorted(errors) == ledgers
        assert isinstance(errors[ledgers[1]], BookKeeperError)
        assert errors[ledgers[0]] is errors[ledgers[2]] is None

    run(tmp_path, test)
    assert tracebacks(caplog) == 1, "audit and check meet it at the same place"


def test_autorecovery_outlives_errors_outside_of_any_ledger(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The listing itself fails unexpectedly, again and again; then it works."""

    class BrokenList(PoisonedTree):
        async def children(self, path: str) -> list[str]:
            if path.endswith("/underreplication/ledgers") and self.met < 3:
                self.met += 1
                raise KeyError("planted")
            return await super().children(path)

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        ledger_id = await written(client)
        tree = BrokenList(cluster.store)
        recovery = AutoRecovery(Client(URI, tree=tree), "a process", OPTIONS)
        await recovery.start()
        lost = (await client.metadata(ledger_id)).last_fragment.bookies[0]
        await cluster.bookie(lost).stop()
        await (await RepairedCluster.of(cluster.client())).store.mark(ledger_id, [lost], 0)

        async def moved() -> LedgerMetadata:
            while lost in (metadata := await client.metadata(ledger_id)).last_fragment.bookies:
                await asyncio.sleep(0.02)
            return metadata

        await asyncio.wait_for(moved(), 60)
        await recovery.stop()

    run(tmp_path, test, bookies=4)
    assert tracebacks(caplog) == 1


# ---- real processes ----


@pytest.fixture
def repairing(zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[Cluster]:
    """Four bookies, each with autorecovery in its own process."""
    settings = {"autoRecoveryDaemonEnabled": "true", "openLedgerRereplicationGracePeriod": "100"}
    with GuestCluster(zookeeper, tmp_path / "cluster", bookies=4, settings=settings) as cluster:
        yield cluster


def poison(bookie_id: str, ledger_id: int, entry_id: int, lac: int) -> None:
    """Send an entry that claims an impossible last confirmed entry, as any client with the empty password may."""
    batch = EntryBatch.of([b"x"], ledger_id, entry_id)
    with Peer(int(bookie_id.rpartition(":")[2])) as peer:
        peer.send(v2.encode_adds(batch, lac, 0, DIGEST, KEY, 0).buffer)
        peer.reply()


@pytest.mark.cluster
def test_poisoned_open_ledger_and_a_lost_bookie_leave_all_other_bookies_alive(repairing: Cluster) -> None:
    """An entry whose LAC is 2^63 - 1 ended every bookie that tried to repair its ledger, one after the other."""
    with BlockingClient(repairing.uri) as client:
        poisoned = client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        poisoned.append_many([b"x"] * 10)
        ensemble = client.metadata(poisoned.ledger_id).last_fragment.bookies
        for bookie_id in ensemble:
            poison(bookie_id, poisoned.ledger_id, 10, (1 << 63) - 1)
        lost = next(bookie for bookie in repairing.bookies if bookie.id == ensemble[0])
        good = []
        while len(naming(client, good, lost.id)) < 3:
            with client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
                writer.append(b"y")
            good.append(writer.ledger_id)
        lost.kill()
        left = [bookie for bookie in repairing.bookies if bookie is not lost]
        complaint = f"ledger {poisoned.ledger_id} is not repaired yet"

        def is_poison_met() -> bool:
            """Its repair failed once, or it could be done after all."""
            has_failed = any(complaint in (bookie.dir / "bookie.log").read_text() for bookie in left)
            assert all(bookie.is_running for bookie in left)
            return has_failed or not naming(client, [poisoned.ledger_id], lost.id)

        wait_until(is_poison_met, "the poisoned ledger to be looked at", WAIT_S)
        wait_until(lambda: not naming(client, good, lost.id), "the other ledgers to be repaired", WAIT_S)
        assert all(bookie.is_running for bookie in left)
