"""Clusters and bookies made by one and used by the other: LAYOUT, INSTANCEID, cookies, registrations and folders
(docs/protocol.md §4.2, §4.3, §4.7, §6.1)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.blocking import Client
from bkspark.cli.cluster_process import HOST, BookieProcess
from bkspark.cli.ports import free_ports
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.errors import BookieUnavailable
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree
from tests.interop.apache import SESSION_TIMEOUT_MS, ApacheBookie
from tests.interop.peer import JavaClient, Peer, contents, payloads
from tests.interop.shell import shell
from tests.polling import wait_until
from tests.replication.repairing import command

pytestmark = [pytest.mark.interop, pytest.mark.cluster]

SIZES = [100] * 20


def node(uri: str, name: str) -> bytes | None:
    """Return the contents of a node below the root, None: it does not exist."""

    async def read() -> bytes | None:
        parsed = MetadataUri.parse(uri)
        tree = await open_tree(parsed)
        try:
            path = f"{parsed.root}/{name}"
            return None if await tree.exists(path) is None else (await tree.get(path))[0]
        finally:
            await tree.close()

    return asyncio.run(read())


def our_bookie(uri: str, directory: Path, port: int | None = None) -> BookieProcess:
    return BookieProcess(1, port or free_ports(1)[0], directory, uri, {"zkTimeout": SESSION_TIMEOUT_MS})


@contextlib.contextmanager
def serving(bookie: BookieProcess) -> Iterator[BookieProcess]:
    try:
        bookie.restart()
        yield bookie
    finally:
        bookie.stop()


def refusal(bookie: BookieProcess) -> str:
    """Return why a bookie of ours does not start."""
    try:
        with pytest.raises(BookieUnavailable) as refused:
            bookie.restart()
    finally:
        bookie.stop()
    return str(refused.value)


def write(uri: str) -> int:
    with Client(uri) as client, client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
        writer.append_many(payloads(SIZES))
    return writer.ledger_id


def test_item_3_a_cluster_of_apaches_initnewcluster_and_metaformat_is_used_by_ours(
    peer: Peer, zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    uri = f"zk://{HOST}:{zookeeper.port}/made-by-apache"
    java = JavaClient(peer, uri)
    shell(java, "initnewcluster")
    identity = node(uri, "INSTANCEID")
    assert identity is not None
    # Ours finds a cluster and leaves it as it is.
    assert command(uri, "init")[0]["created"] is False
    bookie = our_bookie(uri, tmp_path / "ours")
    with serving(bookie), java:
        ledger = write(uri)
        assert java.read(ledger, "crc32c", "")["entries"] == contents(payloads(SIZES))
        assert identity.decode() in shell(java, "whatisinstanceid")
        assert bookie.id in shell(java, f"endpointinfo -b {bookie.id}")
        shell(java, f"cookie_get {bookie.id}")
    # Formatted, it is another cluster: what lies in the folders must not serve there.
    shell(java, "metaformat -nonInteractive -force")
    assert node(uri, "INSTANCEID") != identity
    assert "belongs to another bookie or cluster: cluster instance id" in refusal(bookie)
    with serving(our_bookie(uri, tmp_path / "new")), java:
        assert java.read(write(uri), "crc32c", "")["entries"] == contents(payloads(SIZES))


def test_item_3_a_cluster_of_our_init_is_used_by_apaches_and_no_bookie_starts_on_the_others_folders(
    peer: Peer, zookeeper: ZooKeeperProcess, classpath: str, tmp_path: Path
) -> None:
    uri = f"zk://{HOST}:{zookeeper.port}/made-by-us"
    assert command(uri, "init")[0]["created"] is True
    assert node(uri, "LAYOUT") == b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
    java = JavaClient(peer, uri)
    ours = our_bookie(uri, tmp_path / "ours")
    with serving(ours):
        write(uri)
    assert ours.id in shell(java, "listbookies -a")

    apaches = ApacheBookie(classpath, tmp_path / "apaches", free_ports(1)[0], uri)
    try:
        apaches.wait_until_serving()
        states = {each["id"]: each["state"] for each in command(uri, "bookies")[0]["bookies"]}
        assert states == {apaches.id: "available", ours.id: "down"}
        with java:
            ledger = java.write((1, 1, 1), "crc32c", "", SIZES)
        with Client(uri) as client:
            assert list(client.open(ledger).read(0, len(SIZES) - 1)) == payloads(SIZES)
    finally:
        apaches.kill()
    # The same id, folders, cookie and cluster, and files of another format.
    complaint = refusal(our_bookie(uri, tmp_path / "apaches", int(apaches.id.rpartition(":")[2])))
    assert "is an Apache bookie's: this bookie cannot read its" in complaint

    intruder = ApacheBookie(classpath, ours.directory, ours.port, uri)
    try:
        wait_until(lambda: "Recovery log" in intruder.log_text(), "Apache's bookie to refuse our journal")
        assert node(uri, f"available/{ours.id}") is None
    finally:
        intruder.kill()
    with serving(ours), Client(uri) as client:
        assert client.open(next(iter(client.ledgers()))) is not None


def test_item_9_apaches_nukeexistingcluster_removes_what_our_init_made(peer: Peer, zookeeper: ZooKeeperProcess) -> None:
    uri = f"zk://{HOST}:{zookeeper.port}/made-and-removed"
    command(uri, "init")
    java = JavaClient(peer, uri)
    shell(java, "nukeexistingcluster -zkledgersrootpath /made-and-removed -force")
    assert node(uri, "LAYOUT") is None
