"""Apache's Java client on bookies of ours with three ledger directories and `DbLedgerStorage`: an index in each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.blocking import Client
from bkspark.cli.cluster_process import HOST, BookieProcess
from bkspark.cli.ports import free_ports
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bookie_service.formats.key_value_index import COMMIT_NAME, decode_store_commit
from tests.cluster import ClusterBookie
from tests.interop.apache import SESSION_TIMEOUT_MS
from tests.interop.cases import PASSWORD
from tests.interop.peer import JavaClient, Peer, contents, payloads

pytestmark = [pytest.mark.interop, pytest.mark.cluster]

QUORUMS = (3, 3, 2)
SIZES = (0, 1, 200, 5000)
LEDGERS = 6
"""Two for each directory."""


@pytest.fixture(scope="module")
def bookies(peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[ClusterBookie]]]:
    """The URI, and three bookies, whose configuration could be one of Apache's."""
    directory = tmp_path_factory.mktemp("three")
    zookeeper_port, *ports = free_ports(4)
    zookeeper = ZooKeeperProcess(directory / "zookeeper", port=zookeeper_port)
    uri = f"zk://{HOST}:{zookeeper_port}/ledgers"
    started = []
    try:
        zookeeper.start()
        peer.call("initialize", uri=uri)
        for number, port in enumerate(ports):
            own = directory / f"bookie{number}"
            settings = {
                "zkTimeout": SESSION_TIMEOUT_MS,
                "ledgerDirectories": ",".join(str(own / f"ledgers{place}") for place in range(3)),
                "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
                "dbStorage_writeCacheMaxSizeMb": "16",
                "dbStorage_readAheadCacheMaxSizeMb": "16",
                "dbStorage_rocksDB_blockCacheSize": str(16 << 20),
            }
            started.append(ClusterBookie(BookieProcess(number, port, own, uri, settings)))
            started[-1].launch()
        for bookie in started:
            bookie.wait_until_serving()
        yield uri, started
    finally:
        for bookie in started:
            bookie.stop()
        zookeeper.stop()


def stores(bookie: Path) -> list[tuple[int, int]]:
    """Return what the records of a bookie's directories say: (number of stores, number of the directory)."""
    found = []
    for place in range(3):
        commit = decode_store_commit((bookie / f"ledgers{place}" / "current" / COMMIT_NAME).read_bytes())
        assert commit is not None
        assert not commit.is_being_created
        found.append((commit.stores, commit.home))
    return found


@pytest.mark.parametrize("protocol", ["v2", "v3"])
def test_java_and_our_client_use_ledgers_of_each_directory_also_after_kills(
    peer: Peer, bookies: tuple[str, list[ClusterBookie]], protocol: str
) -> None:
    uri, started = bookies
    for bookie in started:
        assert stores(bookie.dir) == [(3, 0), (3, 1), (3, 2)]
    with JavaClient(peer, uri, protocol) as java, Client(uri, password=PASSWORD.encode()) as client:
        written = [java.write(QUORUMS, "crc32c", PASSWORD, SIZES) for _ in range(LEDGERS)]
        assert {ledger % 3 for ledger in written} == {0, 1, 2}
        left_open = []
        for _ in range(3):
            ensemble, write_quorum, ack_quorum = QUORUMS
            writer = client.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)
            writer.append_many(payloads(SIZES))
            left_open.append(writer)
        for bookie in started:
            bookie.restart()
        for ledger in written:
            # Apache's client has no batch reads in V3.
            for how in ("single", "unconfirmed", *(("batch",) if protocol == "v2" else ())):
                assert java.read(ledger, "crc32c", PASSWORD, how=how)["entries"] == contents(payloads(SIZES))
            assert list(client.open(ledger).read(0, len(SIZES) - 1)) == payloads(SIZES)
        for writer in left_open:
            answer = java.read(writer.ledger_id, "crc32c", PASSWORD, recover=True)
            assert answer["closed"]
            assert answer["entries"] == contents(payloads(SIZES))
            writer.abandon()
        for ledger in written[:3]:
            client.delete(ledger)
        assert not set(written[:3]) & set(java.call("list")["ledgers"])
        for ledger in written[3:]:
            assert java.read(ledger, "crc32c", PASSWORD)["entries"] == contents(payloads(SIZES))
