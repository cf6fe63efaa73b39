"""Apache's peers and ours on one ZooKeeper that users log in to over TLS, with closed nodes (`zkEnableSecurity`).

All are the same user, as Apache's CREATOR_ALL lists demand. Java gets the keys as system properties.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest

from bkspark.blocking import Client
from bkspark.cli.cluster import initialize
from bkspark.cli.cluster_process import BookieProcess
from bkspark.cli.ports import free_ports
from bkspark.errors import MetadataAccessDenied
from bkspark.metadata.acl_migration import Walked, exactly, migrate, walk
from bkspark.metadata.acls import ALL, Acl, AclList
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.zookeeper_options import options_of
from tests.interop.apache import ApacheBookie
from tests.interop.cases import PASSWORD, SIZES
from tests.interop.peer import JVM_OPTIONS, JavaClient, Peer, PeerError, contents, payloads
from tests.interop.shell import shell
from tests.polling import wait_until
from tests.security.closed_zookeeper import USERS, ClosedZooKeeper

pytestmark = [pytest.mark.interop, pytest.mark.cluster]

OWN = (Acl("sasl", "bookkeeper", ALL),)
QUORUMS = (3, 3, 2)
SECURE_JAVA = {"zkEnableSecurity": "true", "zkTimeout": "20000"}  # a JVM that starts takes seconds for TLS
SESSION_TIMEOUT_MS = "5000"


@dataclass(frozen=True)
class Mixed:
    """Two bookies of Apache's and two of ours, and a JVM with Apache's client, all logged in."""

    server: ClosedZooKeeper
    uri: str
    keys: Mapping[str, str]
    apache: tuple[ApacheBookie, ...]
    ours: tuple[BookieProcess, ...]
    peer: Peer

    def client(self) -> Client:
        return Client(self.uri, password=PASSWORD.encode(), zookeeper=options_of(self.keys))

    def java(self) -> JavaClient:
        return JavaClient(self.peer, self.uri, settings=SECURE_JAVA)

    def walk(self, *, close: bool) -> tuple[Walked, dict[str, AclList]]:
        """Return what a walk of all nodes found, and the lists that are not closed; `close` closes them."""

        async def run() -> tuple[Walked, dict[str, AclList]]:
            tree = await self.server.session(self.keys)
            try:
                if close:
                    await migrate(tree, ["/ledgers"], exactly(OWN))
                found: dict[str, AclList] = {}

                def judge(acls: AclList) -> AclList | None:
                    return None if set(acls) == set(OWN) else OWN

                walked = await walk(tree, ["/ledgers"], judge, changes=False)
                found.update(walked.examples)
                return walked, found
            finally:
                await tree.close()

        return asyncio.run(run())


def java_options(keys: Mapping[str, str]) -> list[str]:
    """Return the system properties that say the same to Java."""
    properties = {key: text for key, text in keys.items() if key.startswith("zookeeper.")}
    properties["zookeeper.clientCnxnSocket"] = "org.apache.zookeeper.ClientCnxnSocketNetty"
    # Since 3.9 Java's client has a "FIPS mode", on by default, in which it knows no DIGEST-MD5.
    properties["zookeeper.fips-mode"] = "false"
    properties["java.security.auth.login.config"] = keys["saslJaasConfig"]
    return [*JVM_OPTIONS, *(f"-D{key}={text}" for key, text in properties.items())]


@pytest.fixture(scope="module")
def mixed(classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    folder = tmp_path_factory.mktemp("mixed")
    apache: list[ApacheBookie] = []
    ours: list[BookieProcess] = []
    with ClosedZooKeeper(folder / "closed") as server:
        keys = {**server.tls(), **server.login()}
        uri = str(server.uri(secure=True))
        options = java_options(keys)
        peer = Peer(classpath, folder / "java.log", options)
        try:
            asyncio.run(initialize(uri, options_of(keys)))
            ports = free_ports(4)
            for port in ports[:2]:
                apache.append(ApacheBookie(classpath, folder / f"apache-{port}", port, uri, SECURE_JAVA, options))
            for number, port in enumerate(ports[2:], start=1):
                settings = {**keys, "zkTimeout": SESSION_TIMEOUT_MS, "autoRecoveryDaemonEnabled": "true"}
                ours.append(BookieProcess(number, port, folder / f"ours-{port}", uri, settings))
                ours[-1].launch()
            for bookie in ours:
                bookie.wait_until_serving()
            running = [*apache, *ours]
            wait_until(lambda: all_registered(server, keys, running), "Apache's bookies to be registered", 180)
            yield Mixed(server, uri, keys, tuple(apache), tuple(ours), peer)
        finally:
            for bookie in ours:
                bookie.stop()
            for each in apache:
                each.close()
            peer.kill()


def all_registered(
    server: ClosedZooKeeper, keys: Mapping[str, str], bookies: Sequence[ApacheBookie | BookieProcess]
) -> bool:
    """Return whether all bookies are registered; they must be running."""
    assert all(bookie.is_running for bookie in bookies)

    async def run() -> set[str]:
        tree = await server.session(keys)
        try:
            return set(await BookieRegistry(tree, server.uri()).writable_ids())
        finally:
            await tree.close()

    return asyncio.run(run()) == {bookie.id for bookie in bookies}


def test_each_client_reads_and_recovers_what_the_other_wrote(mixed: Mixed) -> None:
    with mixed.java() as java, mixed.client() as client:
        by_java = java.write(QUORUMS, "crc32c", PASSWORD, SIZES)
        assert list(client.open(by_java).read(0, len(SIZES) - 1)) == payloads(SIZES)
        with client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
            writer.append_many(payloads(SIZES))
        assert java.read(writer.ledger_id, "crc32c", PASSWORD)["entries"] == contents(payloads(SIZES))
        left_open = java.create(QUORUMS, "crc32c", PASSWORD)
        java.append(left_open, SIZES)
        assert client.recover(left_open).last_entry == len(SIZES) - 1
        client.delete(by_java)


def test_apaches_shell_works(mixed: Mixed) -> None:
    with mixed.java() as java, mixed.client() as client:
        with client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
            writer.append(b"one")
        listed = shell(java, "listbookies -rw")
        assert all(bookie.id in listed for bookie in (*mixed.apache, *mixed.ours))
        assert str(writer.ledger_id) in shell(java, "listledgers")
        assert "CLOSED" in shell(java, f"ledgermetadata -ledgerid {writer.ledger_id}")


def test_stranger_can_change_no_node_of_either(mixed: Mixed) -> None:
    """Registrations, cookies, ledgers: Apache's nodes are closed for the one user, as ours are."""
    with mixed.java() as java:
        ledger = java.write(QUORUMS, "crc32c", PASSWORD, SIZES)
    walked, not_closed = mixed.walk(close=False)
    assert walked.nodes > 25
    assert walked.refused == 0
    assert not_closed == {}, "Apache leaves only idgen-long and operators' switches open, which no bookie creates here"

    async def attack() -> None:
        stranger = await mixed.server.session({**mixed.server.tls(), **mixed.server.login("stranger")})
        try:
            for path in (
                "/ledgers",
                "/ledgers/LAYOUT",
                *(f"/ledgers/available/{bookie.id}" for bookie in (*mixed.apache, *mixed.ours)),
                *(f"/ledgers/cookies/{bookie.id}" for bookie in (*mixed.apache, *mixed.ours)),
                f"/ledgers/00/0000/L{ledger:04d}",
            ):
                with pytest.raises(MetadataAccessDenied):
                    await stranger.set(path, b"", -1)
                with pytest.raises(MetadataAccessDenied):
                    await stranger.create(f"{path}/stranger")
        finally:
            await stranger.close()

    asyncio.run(attack())


def test_nodes_that_apache_leaves_open_are_closed_by_the_command(mixed: Mixed) -> None:
    """Apache's client creates its switches open, whatever `zkEnableSecurity` says."""
    with mixed.java() as java:
        shell(java, "autorecovery -disable")
        try:
            _, not_closed = mixed.walk(close=False)
            assert "/ledgers/underreplication/disable" in not_closed
            walked, not_closed = mixed.walk(close=True)
            assert (walked.is_right, not_closed) == (True, {})
        finally:
            shell(java, "autorecovery -enable")


def test_apaches_client_without_the_login_gets_nothing(mixed: Mixed, peer: Peer) -> None:
    clear = str(mixed.server.uri())
    with JavaClient(peer, clear) as java, pytest.raises(PeerError):
        java.write(QUORUMS, "crc32c", PASSWORD, [10])


def test_no_log_has_a_password(mixed: Mixed) -> None:
    for bookie in mixed.ours:
        text = (bookie.directory / "bookie.log").read_text()
        assert not any(password in text for password in USERS.values())
