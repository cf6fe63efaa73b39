"""GSSAPI with Apache's peers and a real key distribution center, in V2 and V3."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.errors import BookKeeperError
from bookie_service.settings.authentication import KEY, SASL_CLASS
from tests.cluster import Cluster
from tests.interop import sasl_peers
from tests.interop.apache import ApacheCluster
from tests.interop.cases import PASSWORD
from tests.interop.peer import JVM_OPTIONS, JavaClient, Peer, PeerError
from tests.interop.sasl_peers import (
    COVERING,
    JAVA_CLIENT,
    PROTOCOLS,
    QUORUMS,
    WITH_TLS,
    java_settings,
    java_writes_and_both_read,
    keys_of_both_sides,
    our_client,
    we_write_and_java_reads,
)
from tests.security import kdc
from tests.security.certificates import Authority
from tests.security.kdc import SERVICE, STRANGER, WRITER, KeyDistributionCenter, section
from tests.security.sasl_serving import jaas_file

pytestmark = [
    pytest.mark.interop,
    pytest.mark.cluster,
    pytest.mark.skipif(bool(kdc.missing()), reason=kdc.missing() or "all is there"),
]


our_bookies = sasl_peers.our_bookies


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kerberos")


@pytest.fixture(scope="module")
def realm(directory: Path) -> Iterator[KeyDistributionCenter]:
    # Java makes its first message before the TLS handshake, and a bookie reads it afterwards: with the short limit of
    # other tests it is refused as too old where that handshake takes a second.
    with KeyDistributionCenter(directory, clock_skew_s=300) as center, pytest.MonkeyPatch.context() as patch:
        for name, value in center.environment.items():
            patch.setenv(name, value)
        yield center


@pytest.fixture(scope="module")
def writer(realm: KeyDistributionCenter) -> str:
    """The section of clients."""
    return section("BookKeeper", realm.keytab(WRITER), WRITER)


@pytest.fixture(scope="module")
def bookie_keys(realm: KeyDistributionCenter) -> str:
    """The keys of two services: one on the bookies' address, and one on this host's name.

    Java asks for a ticket to the latter when a connection is ready before the thread that began it has kept it: then
    Java's `SASLClientAuthProvider` finds no peer address, and takes the host that it runs on for the bookie's.
    """
    realm.keytab(SERVICE, "bookies")
    return realm.keytab(f"bookkeeper/{socket.gethostname()}", "bookies")


@pytest.fixture(scope="module")
def jaas(directory: Path, bookie_keys: str, writer: str) -> str:
    """The file of our bookies, which use all of the keys, and of both clients."""
    return jaas_file(directory / "jaas.conf", section("Bookie", bookie_keys, None) + writer)


@pytest.fixture(scope="module")
def apache_jaas(directory: Path, bookie_keys: str, writer: str) -> str:
    """The file of Apache's bookies, whose section must name one principal."""
    return jaas_file(directory / "apache.conf", section("Bookie", bookie_keys, SERVICE) + writer)


@pytest.fixture(scope="module")
def stranger(realm: KeyDistributionCenter, directory: Path) -> str:
    return jaas_file(directory / "stranger.conf", section("BookKeeper", realm.keytab(STRANGER), STRANGER))


def options(realm: KeyDistributionCenter, jaas: str) -> tuple[str, ...]:
    return (
        *JVM_OPTIONS,
        f"-Djava.security.auth.login.config={jaas}",
        f"-Djava.security.krb5.conf={realm.configuration}",
        "-Dzookeeper.sasl.client=false",
    )


@pytest.fixture(scope="module")
def java_peer(classpath: str, directory: Path, realm: KeyDistributionCenter, jaas: str) -> Iterator[Peer]:
    peer = Peer(classpath, directory / "java.log", options(realm, jaas))
    yield peer
    peer.kill()


@pytest.fixture(scope="module")
def tls_keys(directory: Path) -> dict[str, str]:
    return keys_of_both_sides(Authority(directory))


@pytest.fixture(scope="module")
def apache_bookies(
    realm: KeyDistributionCenter,
    apache_jaas: str,
    classpath: str,
    java_peer: Peer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ApacheCluster]:
    with ApacheCluster(
        classpath,
        tmp_path_factory.mktemp("apache"),
        java_peer,
        settings={KEY: SASL_CLASS},
        jvm_options=options(realm, apache_jaas),
    ) as cluster:
        yield cluster


@COVERING
@PROTOCOLS
@WITH_TLS
def test_apaches_client_writes_and_reads_on_our_bookies(
    our_bookies: Cluster, java_peer: Peer, jaas: str, tls_keys: dict[str, str], protocol: str, with_tls: bool
) -> None:
    java_writes_and_both_read(java_peer, our_bookies.uri, jaas, protocol, java_settings(tls_keys, with_tls))


@PROTOCOLS
def test_our_client_writes_and_reads_on_apaches_bookies(
    apache_bookies: ApacheCluster, java_peer: Peer, jaas: str, protocol: str
) -> None:
    we_write_and_java_reads(java_peer, apache_bookies.uri, jaas, protocol)


def test_principal_that_is_not_allowed_gets_nothing_from_our_bookies(
    our_bookies: Cluster, classpath: str, directory: Path, realm: KeyDistributionCenter, stranger: str
) -> None:
    with our_client(our_bookies.uri, stranger) as client, pytest.raises(BookKeeperError):
        client.create(ensemble=3, write_quorum=3, ack_quorum=2).append(b"x")
    peer = Peer(classpath, directory / "stranger.log", options(realm, stranger))
    try:
        with JavaClient(peer, our_bookies.uri, "v2", JAVA_CLIENT) as java, pytest.raises(PeerError):
            java.write(QUORUMS, "crc32c", PASSWORD, [10])
    finally:
        peer.kill()
