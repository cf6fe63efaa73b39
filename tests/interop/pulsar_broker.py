"""An Apache Pulsar broker and its users as processes, on a cluster of ours (pulsar/pom.xml names the version)."""

from __future__ import annotations

import contextlib
import http.client
import json
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from bkspark.blocking import Client
from bkspark.cli.child_process import ChildProcess
from bkspark.cli.cluster_process import HOST
from bkspark.cli.ports import free_ports
from bkspark.metadata.uri import MetadataUri
from tests.interop import build
from tests.interop.peer import SMALL_JVM
from tests.polling import wait_until

NEEDS_BROKER = pytest.mark.long(reason="the broker is not fetched by make test: make test-pulsar runs these")
CLUSTER = "bkspark"
START_S = 300.0
ANSWER_S = 300.0
STOP_S = 60.0

_DOORS = (
    "java.base/java.lang",
    "java.base/java.util.zip",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.platform",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)
"""What Pulsar's own start script opens of Java beside what netty wants."""
BROKER_JVM = (*SMALL_JVM, "-XX:MaxDirectMemorySize=512m")
"""For a short life in little memory."""


def need_broker() -> None:
    """Skip the test if there is no broker on this machine."""
    if build.maven() is None or not build.is_built(build.PULSAR):
        pytest.skip("Pulsar's broker is not here: `make test-pulsar` fetches it with Maven and runs this test")


@contextlib.contextmanager
def running_broker(
    directory: Path, uri: str, settings: Mapping[str, object] = {}, system_properties: Sequence[str] = ()
) -> Iterator[PulsarBroker]:
    """Run a broker, which the test may stop or kill and start again. See `PulsarBroker`."""
    broker = PulsarBroker(build.classpath(build.PULSAR), directory, uri, settings, system_properties)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


class PulsarBroker:
    """One broker that keeps its topics on `uri`'s bookies, E3/Qw3/Qa2: `url`; `start`, `kill`, `stop` and `run`.

    Args:
        settings: lines of its configuration, beside those that it needs.
        system_properties: -D options of the broker and of the programs that set its cluster up.
        jvm_options: memory and compiler, also of its users.
    """

    def __init__(
        self,
        classpath: str,
        directory: Path,
        uri: str,
        settings: Mapping[str, object] = {},
        system_properties: Sequence[str] = (),
        jvm_options: Sequence[str] = BROKER_JVM,
    ) -> None:
        self._more_settings = dict(settings)
        self._system_properties = tuple(system_properties)
        self._jvm_options = jvm_options
        self._classpath = classpath
        self._directory = directory
        directory.mkdir(parents=True)
        self._port, self._web_port = free_ports(2)
        self.url = f"pulsar://{HOST}:{self._port}"
        self._zookeeper = f"zk:{MetadataUri.parse(uri).connect_string}"
        self._process: ChildProcess | None = None
        self._users = 0

    def start(self) -> None:
        """Start the broker; return once it says it is ready."""
        configuration = self._directory / "broker.conf"
        if not configuration.exists():
            self._set_up()
            configuration.write_text("".join(f"{key}={value}\n" for key, value in self._settings().items()))
        program = ["org.apache.pulsar.PulsarBrokerStarter", "--broker-conf", str(configuration)]
        self._process = self._java("broker", [*self._system_properties, *program])
        wait_until(self._is_ready, f"the broker to be ready; its log is {self._process.log_path}", START_S)

    def run(self, command: str, *arguments: object, program: str = "Peer") -> list[str]:
        """Run a user's command (Peer.java and Topics.java say which) to its end and return what it said."""
        user = self.user(command, *arguments, program=program)
        try:
            said = list(user.lines())
            assert user.wait(STOP_S)
            assert user.exit_code == 0, f"{command} failed: {user.last_log_line()}; its log is {user.log_path}"
            return said
        finally:
            user.kill()

    def user(self, command: str, *arguments: object, program: str = "Peer") -> ChildProcess:
        """Start a user's command; the caller ends it."""
        self._users += 1
        words = [command, self.url, *map(str, arguments)]
        return self._java(f"user{self._users}", [f"bkspark.pulsar.{program}", *words])

    def admin(self, method: str, path: str, body: object = None) -> bytes:
        """Ask the broker's REST service, under /admin/v2; return its answer."""
        data = None if body is None else json.dumps(body).encode()
        address = f"http://{HOST}:{self._web_port}/admin/v2/{path}"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(address, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())

    def kill(self) -> None:
        """SIGKILL: its ledgers stay open, its sessions run out."""
        if self._process is not None:
            self._process.kill()

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop(STOP_S)

    def _java(self, name: str, program: list[str]) -> ChildProcess:
        doors = [f"--add-opens={door}=ALL-UNNAMED" for door in _DOORS]
        command = ["java", *self._jvm_options, *doors, "-cp", self._classpath, *program]
        return ChildProcess(name, command, self._directory / f"{name}.log")

    def _set_up(self) -> None:
        """Write what a Pulsar cluster keeps in ZooKeeper, as its operator would."""
        stores = ["--metadata-store", self._zookeeper, "--configuration-metadata-store", self._zookeeper]
        urls = ["--web-service-url", f"http://{HOST}:{self._web_port}", "--broker-service-url", self.url]
        self._run_setup("org.apache.pulsar.PulsarClusterMetadataSetup", [*stores, *urls])
        if "transactionCoordinatorEnabled" in self._more_settings:
            program = "org.apache.pulsar.PulsarTransactionCoordinatorMetadataSetup"
            self._run_setup(program, ["--configuration-store", self._zookeeper])

    def _run_setup(self, program: str, arguments: list[str]) -> None:
        setup = self._java("setup", [*self._system_properties, program, "--cluster", CLUSTER, *arguments])
        try:
            list(setup.lines())
            assert setup.wait(ANSWER_S)
            assert setup.exit_code == 0, f"{program} failed: {setup.last_log_line()}; its log is {setup.log_path}"
        finally:
            setup.kill()

    def _settings(self) -> dict[str, object]:
        return {
            "metadataStoreUrl": self._zookeeper,
            "configurationMetadataStoreUrl": self._zookeeper,
            "clusterName": CLUSTER,
            "advertisedAddress": HOST,
            "bindAddress": HOST,
            "brokerServicePort": self._port,
            "webServicePort": self._web_port,
            "managedLedgerDefaultEnsembleSize": 3,
            "managedLedgerDefaultWriteQuorum": 3,
            "managedLedgerDefaultAckQuorum": 2,
            # A broker that was killed waits until its old session is over before it serves.
            "metadataStoreSessionTimeoutMillis": 6000,
            "functionsWorkerEnabled": "false",
            "numIOThreads": 2,
            "numHttpServerThreads": 8,
            "managedLedgerCacheSizeMB": 64,
            **self._more_settings,
        }

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.exit_code is None, f"the broker ended: {self._process.last_log_line()}"
        address = f"http://{HOST}:{self._web_port}/admin/v2/brokers/ready"
        # Refused, cut off or an error's status: not yet.
        with (
            contextlib.suppress(OSError, http.client.HTTPException),
            urllib.request.urlopen(address, timeout=5) as answer,
        ):
            return bool(answer.read() == b"ok")
        return False


def ledgers_of(client: Client, topic: str) -> list[int]:
    """Return the ledgers that Pulsar's metadata say are of this topic, in order."""
    name = f"public/default/persistent/{topic}".encode()
    found = []
    for ledger_id in client.ledgers():
        custom = client.metadata(ledger_id).custom_metadata
        # Ledgers of cursors name the topic, too.
        if custom.get("pulsar/managed-ledger") == name and "pulsar/cursor" not in custom:
            found.append(ledger_id)
    return sorted(found)
