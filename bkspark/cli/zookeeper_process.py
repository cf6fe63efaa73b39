"""A ZooKeeper server on this machine, as a child process: the one inside pyspark's own jars.

    DIR/zoo.cfg         written at every start
    DIR/data/           snapshots and transaction logs
    DIR/zookeeper.log   what it says, warnings and above

It listens on the loopback interface only.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

from bkspark.cli.child_process import ChildProcess
from bkspark.errors import ConfigurationError, MetadataError

HOST = "127.0.0.1"
JAVA_VERSION_MIN = 17
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
_POLL_INTERVAL_S = 0.02
_PROBE_TIMEOUT_S = 2.0

# What the server needs of Spark's 280 jars; the whole folder on the class path doubles its time to start.
_JARS = (
    "zookeeper-*",
    "slf4j-api-*",
    "log4j-api-*",
    "log4j-core-*",
    "log4j-slf4j2-impl-*",
    "netty-*",
    "audience-annotations-*",
    "metrics-core-*",
    "commons-cli-*",
    "commons-io-*",
    "snappy-java-*",
)
# A small heap and a quick start: the server holds little and lives as long as a demo.
_JVM_OPTIONS = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Dorg.apache.logging.log4j.level=WARN",
    "-Dzookeeper.preAllocSize=4096",
)
# Sessions last from 2 ticks to maxSessionTimeout: a short tick notices dead clients early.
_CONFIGURATION = """\
dataDir={data}
clientPort={port}
clientPortAddress={host}
tickTime=500
maxSessionTimeout=60000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr,ruok
autopurge.purgeInterval=1
autopurge.snapRetainCount=3
"""


class ZooKeeperProcess:
    """One ZooKeeper server; `start` it, use `connect_string`, `stop` it. Its data survives a stop."""

    def __init__(self, directory: Path, port: int | None = None) -> None:
        """`directory` is made when absent; without `port` a free one is taken."""
        self.directory = directory.absolute()
        self.port = port or free_ports(1)[0]
        self._process: ChildProcess | None = None

    @property
    def connect_string(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.exit_code is None

    def start(self) -> None:
        """Start the server and return once it serves.

        Raises:
            ConfigurationError: Java is missing or too old, Spark's jars have no ZooKeeper, or the port is taken.
            MetadataError: the server ended or did not serve in time; names its log.
        """
        command = [find_java(), *_JVM_OPTIONS, "-cp", _class_path(), "org.apache.zookeeper.server.ZooKeeperServerMain"]
        check_port(self.port)
        self.directory.mkdir(parents=True, exist_ok=True)
        configuration = self.directory / "zoo.cfg"
        configuration.write_text(_CONFIGURATION.format(data=self.directory / "data", port=self.port, host=HOST))
        self._process = ChildProcess(
            "ZooKeeper", [*command, str(configuration)], self.directory / "zookeeper.log", logs_stdout=True
        )
        try:
            self._wait_until_serving(time.monotonic() + START_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise

    def _wait_until_serving(self, deadline: float) -> None:
        assert self._process is not None
        while not self._serves():
            if not self.is_running:
                raise MetadataError(
                    f"ZooKeeper on port {self.port} {self._process.ending()}: {self._process.last_log_line()}; "
                    f"its log is {self._process.log_path}"
                )
            if time.monotonic() > deadline:
                raise MetadataError(
                    f"ZooKeeper on port {self.port} does not serve after {START_TIMEOUT_S:g} s; "
                    f"its log is {self._process.log_path}"
                )
            time.sleep(_POLL_INTERVAL_S)

    def _serves(self) -> bool:
        """Return whether it answers `srvr` with its state: while it loads its data it says that it does not serve."""
        try:
            with socket.create_connection((HOST, self.port), _PROBE_TIMEOUT_S) as connection:
                connection.sendall(b"srvr")
                return b"Mode:" in b"".join(iter(lambda: connection.recv(4096), b""))
        except OSError:
            return False

    def stop(self) -> None:
        """Stop the server; it has ended when this returns. May be called again."""
        if self._process is not None:
            self._process.stop(STOP_TIMEOUT_S)

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self._process is not None:
            self._process.kill()


def find_java() -> str:
    """Return the `java` to run: of JAVA_HOME, else on PATH.

    Raises:
        ConfigurationError: there is none, or it is older than Java 17.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None:
        where = f"in JAVA_HOME ({home})" if home else "on PATH and JAVA_HOME is not set"
        raise ConfigurationError(f"no java {where}; install Java {JAVA_VERSION_MIN} or newer")
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    if answer.returncode or version is None:
        raise ConfigurationError(f"{java} -version failed; install Java {JAVA_VERSION_MIN} or newer")
    if int(version[1]) < JAVA_VERSION_MIN:
        raise ConfigurationError(f"{java} is Java {version[1]}; Spark and ZooKeeper need {JAVA_VERSION_MIN} or newer")
    return java


def _class_path() -> str:
    # Found without importing pyspark, which would take longer than the server's start.
    package = importlib.util.find_spec("pyspark")
    folders = list(package.submodule_search_locations or []) if package is not None else []
    jars = [str(jar) for folder in folders for name in _JARS for jar in Path(folder, "jars").glob(f"{name}.jar")]
    if not any(Path(jar).name.startswith("zookeeper-") for jar in jars):
        raise ConfigurationError("pyspark's jars with ZooKeeper are not there; reinstall pyspark 4.2 or newer")
    return os.pathsep.join(jars)


def free_ports(count: int) -> list[int]:
    """Return distinct TCP ports of the loopback interface that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def check_port(port: int) -> None:
    """Raise ConfigurationError unless a server can listen on the port now."""
    with socket.socket() as probe:
        # Connections of a server that stopped a moment ago may linger; a listener is what matters.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ConfigurationError(
                f"port {port} on {HOST} cannot be used ({error.strerror}): free it or choose another port"
            ) from error
