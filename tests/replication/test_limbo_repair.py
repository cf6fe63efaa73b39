"""Ledgers in limbo are repaired end to end: a bookie that lost an index file reports it, and autorecovery copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bkspark.blocking import Client
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.wire.status import Status
from bookie_service.formats import index as index_format
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.ledgers.limbo import Limbo
from tests.bookie.serving import Peer
from tests.cluster import Cluster, ClusterBookie, GuestCluster
from tests.polling import wait_until
from tests.replication.repairing import WAIT_S, autorecovery, check, command

pytestmark = pytest.mark.cluster

ENTRIES = 40


@pytest.fixture
def cluster(zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[Cluster]:
    """Three bookies: there is no other one to which copies could go. They look at limbo every half a second."""
    settings = {
        "gcWaitTime": "500",
        "minorCompactionInterval": "3600",
        "majorCompactionInterval": "86400",
        # The list of under-replicated ledgers must come from the bookies, not from the auditor's own checks.
        "auditorPeriodicCheckInterval": "0",
    }
    with GuestCluster(zookeeper, tmp_path / "cluster", settings=settings) as cluster:
        yield cluster


def current(bookie: ClusterBookie) -> Path:
    return bookie.dir / "ledgers" / "current"


def lose_index(bookie: ClusterBookie, ledger_id: int) -> None:
    """Remove an index file of a stopped bookie."""
    Path(current(bookie), *index_format.relative_path(ledger_id)).unlink()


def in_limbo(bookie: ClusterBookie) -> Sequence[int]:
    return Limbo(LocalFiles(), [str(current(bookie))]).ledger_ids.tolist()


def test_ledger_whose_index_file_is_lost_is_reported_repaired_and_leaves_limbo(
    cluster: Cluster, tmp_path: Path
) -> None:
    with Client(cluster.uri) as client:
        with client.create(ensemble=3, write_quorum=3, ack_quorum=3) as writer:
            writer.append_many([b"%d" % i for i in range(ENTRIES)])
        with client.create(ensemble=3, write_quorum=3, ack_quorum=3) as other:
            other.append(b"not concerned")
        hurt = cluster.bookies[0]
        hurt.stop()
        lose_index(hurt, writer.ledger_id)
        hurt.restart()
        wait_until(lambda: in_limbo(hurt) == [writer.ledger_id], "the ledger to be in limbo", WAIT_S)

        def listed() -> list[int]:
            return [each["ledger"] for each in command(cluster.uri, "underreplicated")[0]["ledgers"]]

        wait_until(lambda: listed() == [writer.ledger_id], "the bookie to report it", WAIT_S)
        with autorecovery(cluster.uri, tmp_path / "log", auditorPeriodicCheckInterval=0):
            wait_until(lambda: not in_limbo(hurt), "the ledger to leave limbo", WAIT_S)
            wait_until(lambda: listed() == [], "the list to be empty", WAIT_S)
        assert client.metadata(writer.ledger_id).last_fragment.bookies.count(hurt.id) == 1, "it was copied to itself"
        with Peer(int(hurt.id.rpartition(":")[2])) as peer:
            for entry_id in range(ENTRIES):
                assert peer.read(writer.ledger_id, entry_id).status == Status.EOK
            assert peer.read(writer.ledger_id, ENTRIES).status == Status.ENOENTRY, "negative answers are certain again"
            assert peer.add(writer.ledger_id, ENTRIES, [b"late"]) == [Status.EFENCED]
    assert check(cluster.uri)["ok"]
