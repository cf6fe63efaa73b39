"""An unmodified Pulsar broker on a closed cluster, V2 in TLS: it works as on an open one, and other clients do not.

ZooKeeper serves users that log in, and no others. Bookies serve nothing in clear, and no client without a certificate.
In the second set-up clients also need a password (SASL DIGEST-MD5). Rules say who may use the tenant's ledgers.

`make test-pulsar` fetches the broker (235 MB) and runs these; elsewhere they are skipped.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bkspark.blocking import Client
from bkspark.cli.child_process import ChildProcess
from bkspark.errors import BookKeeperError, MetadataAccessDenied, TlsFailed, UnauthorizedAccess
from bkspark.metadata.zookeeper_options import options_of
from bkspark.net.pool import NetOptions
from bkspark.security.client_keys import PROVIDER, PROVIDER_CLASS, read_client_sasl
from bkspark.tls.client_keys import read_client_file
from bkspark.tls.options import FACTORY_CLASS
from bkspark.wire import v2
from bkspark.wire.status import Status
from bookie_service.settings.authentication import KEY, SASL_CLASS
from tests.bookie.serving import Peer
from tests.cluster import Cluster
from tests.interop.pulsar_broker import ANSWER_S, NEEDS_BROKER, PulsarBroker, ledgers_of, need_broker, running_broker
from tests.polling import wait_until
from tests.security.certificates import Authority, Leaf
from tests.security.closed_zookeeper import MODULE
from tests.security.sasl_serving import jaas_file

pytestmark = [pytest.mark.interop, pytest.mark.cluster, pytest.mark.spark, NEEDS_BROKER]

NAMESPACE = "persistent://public/default"
LEDGER_PASSWORD = "password of the ledgers"
ZOOKEEPER_USER, ZOOKEEPER_PASSWORD = "bookkeeper", "password of metadata"
USERS = {"broker": "password of the broker", "analyst": "password of the analyst", "other": "password of another"}
SECRETS = (LEDGER_PASSWORD, ZOOKEEPER_PASSWORD, *USERS.values())
RULES = """
{kind}broker    read,write,fence   tenant:public tenant:pulsar
{kind}analyst   read               tenant:public
"""
ENTRIES_PER_LEDGER = 400
SECONDS = 300.0


class ClosedCluster:
    """A cluster that serves `broker` and `analyst` alone. Each client has files for its keys, below `directory`."""

    def __init__(self, directory: Path, *, has_passwords: bool) -> None:
        self.directory = directory
        self.has_passwords = has_passwords
        self.authority = Authority(directory)
        self._leaves: dict[Path, Leaf] = {}
        rules = directory / "rules"
        rules.write_text(RULES.format(kind="digest:" if has_passwords else "certificate:CN="))
        server = directory / "server.jaas"
        server.write_text(f'Server {{ {MODULE} required user_{ZOOKEEPER_USER}="{ZOOKEEPER_PASSWORD}"; }};\n')
        settings = {
            **self._stores("bookie"),
            "tlsRequired": "true",
            "authenticationRequired": "true",
            "authorizationRulesFile": str(rules),
            "saslJaasConfig": self._jaas("bookie"),
        }
        if has_passwords:
            settings |= {KEY: SASL_CLASS, "saslJaasClientAllowedIds": ".*"}
        # One bookie more than a topic's ensemble has, so that a dead one can be replaced.
        self.cluster = Cluster(
            directory / "cluster",
            bookies=4,
            settings=settings,
            zookeeper_jaas=server,
            zookeeper_settings={"enforce.auth.enabled": "true", "enforce.auth.schemes": "sasl"},
        )

    def keys(self, name: str) -> dict[str, str]:
        """Return the keys of a client, which are options of Spark, too; each secret is in a file."""
        keys = {**self._stores(name, b"password of a key"), "saslJaasConfig": self._jaas(name)}
        return keys | ({PROVIDER: PROVIDER_CLASS} if self.has_passwords else {})

    def client(
        self, name: str, changes: Mapping[str, str] = {}, *, has_tls: bool = True, logs_in: bool = True
    ) -> Client:
        """Return our client, with some keys changed; an empty text is a key that is not set."""
        keys = {key: text for key, text in {**self.keys(name), **changes}.items() if text}
        file = self.directory / "client.conf"
        file.write_text("".join(f"{key}={text}\n" for key, text in keys.items()))
        net = NetOptions(
            tls=read_client_file(str(file)) if has_tls else None, sasl=read_client_sasl(str(file)) if logs_in else None
        )
        return Client(self.cluster.uri, password=LEDGER_PASSWORD.encode(), net=net, zookeeper=options_of(keys))

    def broker_settings(self) -> dict[str, object]:
        """Return lines of broker.conf."""
        stores = self._stores("broker")
        settings: dict[str, object] = {
            "bookkeeperTLSClientAuthentication": "true",
            "bookkeeperTLSKeyFileType": "PEM",
            "bookkeeperTLSKeyFilePath": stores["tlsKeyStore"],
            "bookkeeperTLSCertificateFilePath": stores["tlsCertificatePath"],
            "bookkeeperTLSTrustCertTypes": "PEM",
            "bookkeeperTLSTrustCertsFilePath": stores["tlsTrustStore"],
            "bookkeeper_tlsHostnameVerificationEnabled": "true",
            "bookkeeperUseV2WireProtocol": "true",
            "managedLedgerPassword": LEDGER_PASSWORD,
            "managedLedgerMaxEntriesPerLedger": ENTRIES_PER_LEDGER,
            "managedLedgerMinLedgerRolloverTimeMinutes": 0,
            "defaultRetentionTimeInMinutes": -1,
            "defaultRetentionSizeInMB": -1,
            "allowAutoTopicCreationType": "non-partitioned",
        }
        if self.has_passwords:
            settings |= {
                "bookkeeperClientAuthenticationPlugin": PROVIDER_CLASS,
                "bookkeeperClientAuthenticationParametersName": "saslJaasClientSectionName",
                "bookkeeperClientAuthenticationParameters": "BookKeeper",
            }
        return settings

    def broker_options(self) -> list[str]:
        """Return options of the broker's JVM."""
        return [f"-Djava.security.auth.login.config={self._jaas('broker')}"]

    def _stores(self, name: str, password: bytes = b"") -> dict[str, str]:
        """Return the keys of a certificate; with a password the file of the private key is encrypted."""
        folder = self.directory / (f"{name}-encrypted" if password else name)
        if not folder.exists():
            folder.mkdir()
            self._leaves[folder] = replace(self.authority.issue(name), directory=folder)
        key, chain = self._leaves[folder].pem(password)
        keys = {
            "tlsProviderFactoryClass": FACTORY_CLASS,
            "tlsClientAuthentication": "true",
            "tlsKeyStoreType": "PEM",
            "tlsKeyStore": key,
            "tlsCertificatePath": chain,
            "tlsTrustStoreType": "PEM",
            "tlsTrustStore": self.authority.pem,
        }
        if password:
            (folder / "password").write_bytes(password)
            keys["tlsKeyStorePasswordPath"] = str(folder / "password")
        return keys

    def _jaas(self, name: str) -> str:
        """Return the JAAS file of a process: its login to ZooKeeper, and its users or its login to bookies."""
        login = f'Client {{ {MODULE} required username="{ZOOKEEPER_USER}" password="{ZOOKEEPER_PASSWORD}"; }};\n'
        if name == "bookie":
            users = " ".join(f'user_{user}="{password}"' for user, password in USERS.items())
            return jaas_file(self.directory / "bookie.jaas", login + f"Bookie {{ {MODULE} required {users}; }};\n")
        mine = f'BookKeeper {{ {MODULE} required username="{name}" password="{USERS.get(name, "")}"; }};\n'
        return jaas_file(self.directory / f"{name}.jaas", login + mine)


@pytest.fixture(scope="module", params=["certificates", "certificates and passwords"])
def closed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedCluster]:
    need_broker()
    closed = ClosedCluster(tmp_path_factory.mktemp("closed"), has_passwords="passwords" in request.param)
    with closed.cluster:
        yield closed


@pytest.fixture(scope="module")
def shared_broker(closed: ClosedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarBroker]:
    directory = tmp_path_factory.mktemp("pulsar-closed") / "broker"
    with running_broker(directory, closed.cluster.uri, closed.broker_settings(), closed.broker_options()) as broker:
        yield broker


@pytest.fixture
def broker(shared_broker: PulsarBroker, closed: ClosedCluster) -> PulsarBroker:
    closed.cluster.revive()
    return shared_broker


@pytest.fixture(scope="module")
def topic(shared_broker: PulsarBroker) -> str:
    """A topic of 1,000 messages in closed ledgers."""
    topic = f"{NAMESPACE}/kept"
    assert shared_broker.run("produce", topic, 0, 1000)[-1] == "sent 1000"
    shared_broker.admin("PUT", "persistent/public/default/kept/unload")
    return topic


def test_topic_is_unloaded_and_recovered_after_a_kill(broker: PulsarBroker) -> None:
    """The broker closes its ledgers, and after SIGKILL it fences and recovers them: all inside TLS."""
    topic = f"{NAMESPACE}/moved"
    assert broker.run("produce", topic, 0, 500)[-1] == "sent 500"
    broker.admin("PUT", "persistent/public/default/moved/unload")
    assert broker.run("produce", topic, 500, 700)[-1] == "sent 200"
    broker.kill()
    broker.start()
    assert broker.run("produce", topic, 700, 900)[-1] == "sent 200"
    assert broker.run("read", topic, 900) == ["read 900"]


def test_bookie_killed_under_a_producer_costs_no_message(broker: PulsarBroker, closed: ClosedCluster) -> None:
    topic = f"{NAMESPACE}/killed-bookie"
    producer = broker.user("produce", topic, 0, 10_000)
    try:
        lines = producer.lines(time.monotonic() + ANSWER_S)
        assert next(lines) == "under way"
        closed.cluster.bookies[0].kill()
        assert list(lines) == ["sent 10000"]
    finally:
        producer.kill()
    assert broker.run("read", topic, 10_000) == ["read 10000"]


def test_trimmed_ledgers_are_deleted(broker: PulsarBroker, closed: ClosedCluster) -> None:
    broker.admin("PUT", "namespaces/public/trimmed")
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    broker.admin("POST", "namespaces/public/trimmed/retention", nothing)
    assert broker.run("produce", "persistent://public/trimmed/short", 0, 1000)[-1] == "sent 1000"
    with closed.client("analyst") as client:

        def first_is_gone() -> bool:
            broker.admin("POST", "persistent/public/trimmed/short/trim")
            stats = json.loads(broker.admin("GET", "persistent/public/trimmed/short/internalStats"))
            kept = {each["ledgerId"] for each in stats["ledgers"]}
            found = {ledger for ledger in client.ledgers() if is_of(client, ledger, "public/trimmed/persistent/short")}
            return len(kept) == 1 and found <= kept

        wait_until(first_is_gone, "the unused ledgers to be deleted", SECONDS)


def is_of(client: Client, ledger: int, name: str) -> bool:
    custom = client.metadata(ledger).custom_metadata
    return custom.get("pulsar/managed-ledger") == name.encode() and "pulsar/cursor" not in custom


def test_reader_of_a_tenant_neither_writes_to_it_nor_ends_its_ledgers(
    broker: PulsarBroker, closed: ClosedCluster
) -> None:
    assert broker.run("produce", f"{NAMESPACE}/open", 0, 10)[-1] == "sent 10"
    with closed.client("analyst") as client:
        (ledger,) = ledgers_of(client, "open")
        assert not client.metadata(ledger).is_closed
        with pytest.raises(UnauthorizedAccess):
            client.recover(ledger)
        custom = {**client.metadata(ledger).custom_metadata}
        with (
            pytest.raises(UnauthorizedAccess),
            client.create(ensemble=3, write_quorum=3, ack_quorum=2, metadata=custom) as writer,
        ):
            writer.append(b"x")


def test_strangers_are_refused(closed: ClosedCluster, topic: str) -> None:
    with closed.client("analyst") as client:
        ledger = ledgers_of(client, "kept")[0]
        assert len(client.open(ledger).read(0, 9)) == 10
    port = int(closed.cluster.bookies[0].id.rpartition(":")[2])
    with Peer(port) as clear:
        clear.send(v2.encode_reads(ledger, np.array([0])))
        assert clear.reply().status == Status.EUA
        assert clear.frame() is None
    with closed.client("analyst", has_tls=False, logs_in=False) as client, pytest.raises(BookKeeperError):
        client.open(ledger).read(0, 0)
    (closed.directory / "elsewhere").mkdir(exist_ok=True)
    key, chain = Authority(closed.directory / "elsewhere").issue("broker").pem()
    foreign = {"tlsKeyStore": key, "tlsCertificatePath": chain, "tlsKeyStorePasswordPath": ""}
    with closed.client("analyst", foreign) as client, pytest.raises((TlsFailed, BookKeeperError)):
        client.open(ledger).read(0, 0)
    # A certificate and a password of the cluster, and no rule.
    with closed.client("other") as client, pytest.raises(BookKeeperError, match="authorizationRulesFile"):
        client.open(ledger).read(0, 0)
    if closed.has_passwords:
        with closed.client("broker", logs_in=False) as client, pytest.raises(BookKeeperError):
            client.open(ledger).read(0, 0)
    with pytest.raises(MetadataAccessDenied, match="only after a SASL login"), Client(closed.cluster.uri) as client:
        list(client.ledgers())


def test_spark_reads_the_topic_with_secrets_in_files(closed: ClosedCluster, topic: str, tmp_path: Path) -> None:
    password = tmp_path / "ledger.password"
    password.write_text(LEDGER_PASSWORD)
    options = {"uri": closed.cluster.uri, "topic": topic, "passwordFile": str(password), **closed.keys("analyst")}
    words = [sys.executable, "-m", "tests.interop.topic_rows", str(tmp_path), json.dumps(options)]
    assert not any(
        secret in word for word in words for secret in (LEDGER_PASSWORD, ZOOKEEPER_PASSWORD, *USERS.values())
    )
    job = ChildProcess("job", words, tmp_path / "job.log")
    try:
        rows = [json.loads(line) for line in job.lines(time.monotonic() + SECONDS)]
        assert job.wait(SECONDS)
        assert job.exit_code == 0, job.last_log_line()
    finally:
        job.kill()
    assert rows == [f"message {number}" for number in range(1000)]
    said = (tmp_path / "job.log").read_text()
    assert not any(secret in said for secret in SECRETS)
