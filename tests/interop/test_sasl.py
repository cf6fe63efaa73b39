"""SASL with Apache's peers: its Java client on our bookies, and our client on its bookies, in V2 and V3, with TLS too.

One JAAS file has the sections of all: it is the same for both sides.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.blocking import Client
from bkspark.errors import BookKeeperError
from bkspark.net.pool import NetOptions
from bkspark.security.sasl import SaslClientOptions
from bkspark.tls.options import TlsOptions
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
    write_and_recover,
)
from tests.security.certificates import Authority
from tests.security.sasl_serving import jaas_file, jaas_text

pytestmark = [pytest.mark.interop, pytest.mark.cluster]

our_bookies = sasl_peers.our_bookies


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sasl")


@pytest.fixture(scope="module")
def jaas(directory: Path) -> str:
    return jaas_file(directory / "jaas.conf", jaas_text())


def java_peer(classpath: str, directory: Path, name: str, jaas: str) -> Peer:
    """Return a JVM with Apache's client; Java names the JAAS file by a property of the whole process."""
    return Peer(classpath, directory / f"{name}.log", (*JVM_OPTIONS, *_options(jaas)))


def _options(jaas: str) -> tuple[str, ...]:
    return (f"-Djava.security.auth.login.config={jaas}", "-Dzookeeper.sasl.client=false")


@pytest.fixture(scope="module")
def sasl_peer(classpath: str, directory: Path, jaas: str) -> Iterator[Peer]:
    peer = java_peer(classpath, directory, "right", jaas)
    yield peer
    peer.kill()


@pytest.fixture(scope="module")
def authority(directory: Path) -> Authority:
    return Authority(directory)


@pytest.fixture(scope="module")
def tls_keys(authority: Authority) -> dict[str, str]:
    return keys_of_both_sides(authority)


@pytest.fixture(scope="module")
def apache_bookies(
    jaas: str,
    tls_keys: dict[str, str],
    classpath: str,
    sasl_peer: Peer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ApacheCluster]:
    with ApacheCluster(
        classpath,
        tmp_path_factory.mktemp("apache"),
        sasl_peer,
        settings={KEY: SASL_CLASS, "tlsProvider": "JDK", **tls_keys},
        jvm_options=(*JVM_OPTIONS, *_options(jaas)),
    ) as cluster:
        yield cluster


@COVERING
@PROTOCOLS
@WITH_TLS
def test_apaches_client_writes_and_reads_on_our_bookies(
    our_bookies: Cluster, sasl_peer: Peer, jaas: str, tls_keys: dict[str, str], protocol: str, with_tls: bool
) -> None:
    java_writes_and_both_read(sasl_peer, our_bookies.uri, jaas, protocol, java_settings(tls_keys, with_tls))


@COVERING
@PROTOCOLS
@WITH_TLS
def test_our_client_writes_and_reads_on_apaches_bookies(
    apache_bookies: ApacheCluster, sasl_peer: Peer, jaas: str, authority: Authority, protocol: str, with_tls: bool
) -> None:
    tls = TlsOptions(trust_store=authority.pem) if with_tls else None
    we_write_and_java_reads(sasl_peer, apache_bookies.uri, jaas, protocol, tls)


@PROTOCOLS
def test_our_client_writes_and_reads_on_our_bookies(our_bookies: Cluster, jaas: str, protocol: str) -> None:
    with our_client(our_bookies.uri, jaas, protocol) as client:
        write_and_recover(client)


@PROTOCOLS
def test_apaches_client_without_sasl_gets_nothing_from_our_bookies(
    our_bookies: Cluster, sasl_peer: Peer, protocol: str
) -> None:
    with JavaClient(sasl_peer, our_bookies.uri, protocol) as java, pytest.raises(PeerError):
        java.write(QUORUMS, "crc32c", PASSWORD, [10])


@pytest.fixture(scope="module")
def wrong_peer(classpath: str, directory: Path) -> Iterator[Peer]:
    """A JVM that logs in with a wrong password."""
    wrong = jaas_file(directory / "wrong.conf", jaas_text(password="wrong"))
    peer = java_peer(classpath, directory, "wrong", wrong)
    yield peer
    peer.kill()


@PROTOCOLS
def test_apaches_client_with_a_wrong_password_gets_nothing_from_our_bookies(
    our_bookies: Cluster, wrong_peer: Peer, protocol: str
) -> None:
    with JavaClient(wrong_peer, our_bookies.uri, protocol, JAVA_CLIENT) as java, pytest.raises(PeerError):
        java.write(QUORUMS, "crc32c", PASSWORD, [10])


@PROTOCOLS
@pytest.mark.parametrize("owner", ["ours", "apache's"])
@pytest.mark.parametrize("case", ["no SASL", "wrong password", "unknown user", "user that is not allowed"])
@pytest.mark.long_except(
    *("no SASL-ours-v2", "no SASL-ours-v3", "no SASL-apache's-v2", "wrong password-ours-v2", "wrong password-ours-v3"),
    *("wrong password-apache's-v3", "unknown user-ours-v2", "user that is not allowed-ours-v3"),
    reason="each case on each bookie in each protocol; the others have each case, and both protocols on both bookies",
)
def test_our_client_that_is_not_authenticated_gets_nothing(
    request: pytest.FixtureRequest, directory: Path, protocol: str, owner: str, case: str
) -> None:
    """Apache's bookies say nothing to a client that they refuse; the error names the reasons there can be."""
    cluster = request.getfixturevalue("our_bookies" if owner == "ours" else "apache_bookies")
    users = {"wrong password": (None, "wrong"), "unknown user": ("bookkeeper-x", None), "no SASL": (None, None)}
    user, password = users.get(case, ("reader", "another password"))
    given = {key: value for key, value in (("user", user), ("password", password)) if value is not None}
    jaas = None if case == "no SASL" else jaas_file(directory / "client.conf", jaas_text(**given))
    sasl = None if jaas is None else SaslClientOptions(jaas, timeout_s=1)
    with (
        Client(cluster.uri, wire_protocol=protocol, net=NetOptions(sasl=sasl)) as client,
        pytest.raises(BookKeeperError, match="authenticat") as caught,
    ):
        client.create(ensemble=3, write_quorum=3, ack_quorum=2).append(b"x")
    assert "another password" not in str(caught.value)
