"""TLS with Apache's peers: its Java client on our bookies, and our client on its bookies, in V2 and V3.

Bookies demand a client certificate on both sides. The stores of either side are PEM, PKCS12 and JKS; our side cannot
read real JKS, so it has a file that is called JKS and is PKCS12, as keytool writes them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bkspark.errors import BookKeeperError
from tests.cluster import Cluster
from tests.interop.apache import ApacheCluster
from tests.interop.cases import PASSWORD, SIZES
from tests.interop.peer import JavaClient, Peer, PeerError, contents, payloads
from tests.interop.tls_peers import QUORUMS, Stores, our_client
from tests.security.certificates import Authority

pytestmark = [pytest.mark.interop, pytest.mark.cluster]

CASES = tuple(itertools.product(("PEM", "PKCS12", "JKS"), ("v2", "v3")))
EACH_CASE = pytest.mark.parametrize(("kind", "protocol"), CASES)
COVERING = pytest.mark.long_except(
    *("PEM-v2", "PKCS12-v2", "JKS-v3"), reason="the others have each format of stores and both protocols"
)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    directory = tmp_path_factory.mktemp("stores")
    return Stores(directory, Authority(directory))


@pytest.fixture(scope="module")
def our_bookies(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three of our bookies that serve nothing in clear, each with stores of another format."""
    settings = {**stores.ours("PEM"), "tlsRequired": "true"}
    with Cluster(tmp_path_factory.mktemp("ours"), settings=settings) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def apache_bookies(
    stores: Stores, classpath: str, peer: Peer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheCluster]:
    with ApacheCluster(classpath, tmp_path_factory.mktemp("apache"), peer, settings=stores.java("JKS")) as cluster:
        yield cluster


@EACH_CASE
@COVERING
def test_apaches_client_writes_and_reads_on_our_bookies(
    stores: Stores, our_bookies: Cluster, peer: Peer, kind: str, protocol: str
) -> None:
    with JavaClient(peer, our_bookies.uri, protocol, stores.java(kind)) as java:
        ledger = java.write(QUORUMS, "crc32c", PASSWORD, SIZES)
        assert java.read(ledger, "crc32c", PASSWORD)["entries"] == contents(payloads(SIZES))
        left_open = java.create(QUORUMS, "crc32c", PASSWORD)
        java.append(left_open, SIZES)
        # Recovery fences and writes again, all inside TLS.
        with our_client(our_bookies.uri, stores.client(kind), protocol) as client:
            assert client.recover(left_open).last_entry == len(SIZES) - 1
            assert list(client.open(ledger).read(0, len(SIZES) - 1)) == payloads(SIZES)


@EACH_CASE
@COVERING
def test_our_client_writes_and_reads_on_apaches_bookies(
    stores: Stores, apache_bookies: ApacheCluster, peer: Peer, kind: str, protocol: str
) -> None:
    with our_client(apache_bookies.uri, stores.client(kind), protocol) as client:
        with client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
            writer.append_many(payloads(SIZES))
        assert list(client.open(writer.ledger_id).read(0, len(SIZES) - 1)) == payloads(SIZES)
        left_open = client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        left_open.append_many(payloads(SIZES))
        assert client.recover(left_open.ledger_id).last_entry == len(SIZES) - 1
        left_open.abandon()
    with JavaClient(peer, apache_bookies.uri, protocol, stores.java("JKS")) as java:
        assert java.read(writer.ledger_id, "crc32c", PASSWORD)["entries"] == contents(payloads(SIZES))


def test_apaches_client_without_tls_gets_nothing_from_our_bookies(our_bookies: Cluster, peer: Peer) -> None:
    with JavaClient(peer, our_bookies.uri) as java, pytest.raises(PeerError):
        java.write(QUORUMS, "crc32c", PASSWORD, [10])


def test_apaches_client_without_certificate_gets_nothing_from_our_bookies(
    stores: Stores, our_bookies: Cluster, peer: Peer
) -> None:
    settings = stores.java("PEM") | {"tlsClientAuthentication": "false"}
    with JavaClient(peer, our_bookies.uri, settings=settings) as java, pytest.raises(PeerError):
        java.write(QUORUMS, "crc32c", PASSWORD, [10])


def test_our_client_without_certificate_gets_nothing_from_apaches_bookies(
    stores: Stores, apache_bookies: ApacheCluster
) -> None:
    tls = stores.client("PEM", tlsClientAuthentication="false")
    with our_client(apache_bookies.uri, tls) as client, pytest.raises(BookKeeperError, match=r"(?i)certificate"):
        client.create(ensemble=3, write_quorum=3, ack_quorum=2).append(b"x")


def test_our_client_of_another_authority_refuses_apaches_bookies(
    stores: Stores, apache_bookies: ApacheCluster, tmp_path: Path
) -> None:
    tls = replace(stores.client("PEM"), trust_store=Authority(tmp_path, "other").pem)
    with our_client(apache_bookies.uri, tls) as client, pytest.raises(BookKeeperError, match="certificate is refused"):
        client.create(ensemble=3, write_quorum=3, ack_quorum=2).append(b"x")
