"""A Kafka broker as a child process, and the jars of Spark's connector for it: what our connector is compared with.

Maven fetches both (`kafka/pom.xml`) into its own repository. One broker in KRaft mode, without fsync as Kafka comes,
one replica; data in a folder that the caller removes.
"""

from __future__ import annotations

import base64
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

from bkspark.cli.child_process import ChildProcess
from bkspark.cli.ports import free_ports
from bkspark.cli.zookeeper_process import find_java

PROJECT = Path(__file__).parent / "kafka"
FETCH_TIMEOUT_S = 900
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
_PROBE_PAUSE_S = 0.1

# What Spark's JVM gets; the rest is the broker's.
_CONNECTOR_JARS = ("spark-sql-kafka-", "spark-token-provider-kafka-", "commons-pool2-", "kafka-clients-")

_CONFIGURATION = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
log.dirs={data}
num.partitions=2
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
file.delete.delay.ms=0
"""


class KafkaUnavailable(Exception):
    """There is no Kafka to compare with; the message says what is missing."""


def kafka_jars() -> list[Path]:
    """Return the jars of the broker and of Spark's connector, which Maven fetches when they are not there yet.

    Raises:
        KafkaUnavailable: there is no Maven, or it found no jars.
    """
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailable("there is no mvn on the PATH; install Maven, which fetches Kafka and its connector")
    with tempfile.TemporaryDirectory(prefix="bkspark-kafka-jars-") as folder:
        return _listed_jars(maven, Path(folder) / "classpath.txt")


def _listed_jars(maven: str, listing: Path) -> list[Path]:
    goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath"
    command = [maven, "-q", "-B", goal, f"-Dmdep.outputFile={listing}"]
    for mode in (["-o"], []):
        try:
            done = subprocess.run(
                [*command, *mode], cwd=PROJECT, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise KafkaUnavailable(f"Maven was not done with fetching Kafka after {FETCH_TIMEOUT_S} s") from None
        if done.returncode == 0:
            return [Path(jar) for jar in listing.read_text().strip().split(":")]
    raise KafkaUnavailable(f"Maven did not find Kafka or its connector: {_last_error(done.stdout + done.stderr)}")


def _last_error(printed: str) -> str:
    errors = [line for line in printed.splitlines() if "Could not" in line or "ERROR" in line]
    return (errors or ["it said nothing"])[0][:500]


def connector_jars(jars: list[Path]) -> list[Path]:
    """Return those that Spark needs on its class path."""
    return [jar for jar in jars if jar.name.startswith(_CONNECTOR_JARS)]


class KafkaBroker:
    """One broker on 127.0.0.1; a context manager. `directory` must not exist."""

    def __init__(self, jars: list[Path], directory: Path) -> None:
        self._directory = directory
        self._classpath = ":".join(str(jar) for jar in jars)
        self._port, self._controller_port = free_ports(2)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        return self._child.pid

    def __enter__(self) -> KafkaBroker:
        self._directory.mkdir()
        configuration = self._directory / "server.properties"
        text = _CONFIGURATION.format(
            port=self._port, controller_port=self._controller_port, data=self._directory / "data"
        )
        configuration.write_text(text)
        java = [find_java(), "-Xmx1g", "-XX:-UsePerfData", "-cp", self._classpath]
        storage = [*java, "kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", str(configuration)]
        done = subprocess.run(storage, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)
        if done.returncode:
            raise KafkaUnavailable(f"Kafka could not format its folder: {(done.stdout + done.stderr)[-500:]}")
        log = self._directory / "broker.log"
        self._child = ChildProcess("the Kafka broker", [*java, "kafka.Kafka", str(configuration)], log)
        try:
            self._wait_until_serving()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._child.stop(STOP_TIMEOUT_S)

    def _wait_until_serving(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1.0).close()
                return
            except OSError:
                if self._child.exit_code is not None or time.monotonic() > deadline:
                    raise KafkaUnavailable(f"the Kafka broker did not start: {self._child.last_log_line()}") from None
                time.sleep(_PROBE_PAUSE_S)


def _cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
