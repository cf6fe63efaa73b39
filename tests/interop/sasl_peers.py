"""Both clients and our bookies with SASL, with TLS too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bkspark.blocking import Client
from bkspark.net.pool import NetOptions
from bkspark.security.client_keys import PROVIDER, PROVIDER_CLASS
from bkspark.security.sasl import SaslClientOptions
from bkspark.tls.options import FACTORY_CLASS, TlsOptions
from bookie_service.settings.authentication import KEY, SASL_CLASS
from tests.cluster import Cluster
from tests.interop.cases import PASSWORD, SIZES
from tests.interop.peer import JavaClient, Peer, contents, payloads
from tests.security.certificates import Authority

QUORUMS = (3, 3, 2)
PROTOCOLS = pytest.mark.parametrize("protocol", ["v2", "v3"])
WITH_TLS = pytest.mark.parametrize("with_tls", [False, True], ids=["clear", "TLS"])
COVERING = pytest.mark.long_except("clear-v2", "TLS-v3", reason="the others have both protocols, with TLS and without")
JAVA_CLIENT = {PROVIDER: PROVIDER_CLASS, "addEntryTimeoutSec": "60"}
"""Keys of Apache's client. Its own 5 s for an add include the connection's TLS handshake and login, and the first ones
of a JVM take longer on a busy machine."""


def keys_of_both_sides(authority: Authority) -> dict[str, str]:
    """Return keys of a bookie, and of a client, with one certificate for both."""
    key, chain = authority.issue("both").pem()
    return {
        "tlsProviderFactoryClass": FACTORY_CLASS,
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": key,
        "tlsCertificatePath": chain,
        "tlsTrustStoreType": "PEM",
        "tlsTrustStore": authority.pem,
    }


def java_settings(tls_keys: dict[str, str], with_tls: bool) -> dict[str, str]:
    """Return the keys of Apache's client with SASL."""
    return JAVA_CLIENT | ({**tls_keys, "tlsProvider": "JDK"} if with_tls else {})


@pytest.fixture(scope="module")
def our_bookies(jaas: str, tls_keys: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {KEY: SASL_CLASS, "saslJaasConfig": jaas, "authenticationRequired": "true", **tls_keys}
    with Cluster(tmp_path_factory.mktemp("ours"), settings=settings) as cluster:
        yield cluster


def our_client(uri: str, jaas: str | None, wire_protocol: str = "v2", tls: TlsOptions | None = None) -> Client:
    sasl = None if jaas is None else SaslClientOptions(jaas)
    net = NetOptions(sasl=sasl, tls=tls)
    return Client(uri, password=PASSWORD.encode(), wire_protocol=wire_protocol, net=net)


def write_and_recover(client: Client) -> int:
    """Write a ledger and recover another; return the first one's id."""
    with client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
        writer.append_many(payloads(SIZES))
    assert list(client.open(writer.ledger_id).read(0, len(SIZES) - 1)) == payloads(SIZES)
    left_open = client.create(ensemble=3, write_quorum=3, ack_quorum=2)
    left_open.append_many(payloads(SIZES))
    assert client.recover(left_open.ledger_id).last_entry == len(SIZES) - 1
    left_open.abandon()
    return writer.ledger_id


def java_writes_and_both_read(peer: Peer, uri: str, jaas: str, protocol: str, settings: dict[str, str]) -> None:
    """Check that both clients read what Apache's writes on our bookies. `settings`: those of Apache's client."""
    with JavaClient(peer, uri, protocol, settings) as java, our_client(uri, jaas, protocol) as ours:
        ledger = java.write(QUORUMS, "crc32c", PASSWORD, SIZES)
        assert java.read(ledger, "crc32c", PASSWORD)["entries"] == contents(payloads(SIZES))
        assert list(ours.open(ledger).read(0, len(SIZES) - 1)) == payloads(SIZES)


def we_write_and_java_reads(peer: Peer, uri: str, jaas: str, protocol: str, tls: TlsOptions | None = None) -> None:
    """Check that our client writes and recovers on Apache's bookies, and that Apache's client reads it."""
    with our_client(uri, jaas, protocol, tls) as client:
        ledger = write_and_recover(client)
    with JavaClient(peer, uri, protocol, JAVA_CLIENT) as java:
        assert java.read(ledger, "crc32c", PASSWORD)["entries"] == contents(payloads(SIZES))
