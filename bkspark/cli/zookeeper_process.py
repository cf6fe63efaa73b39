"""A ZooKeeper server as a child process, from the jars inside pyspark: no other service has to be installed."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from bkspark.cli import private_files
from bkspark.cli.child_process import ChildProcess
from bkspark.errors import ConfigurationError, MetadataError

HOST = "127.0.0.1"
JAVA_VERSION_MIN = 17
HEAP_MIB = 256
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
_PROBE_TIMEOUT_S = 1.0
_PROBE_PAUSE_S = 0.05

_CONFIGURATION = """\
dataDir={data}
clientPort={port}
clientPortAddress={host}
tickTime=500
minSessionTimeout=1000
maxSessionTimeout=60000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
"""

_SASL_PROVIDER = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"

# ZooKeeper logs through slf4j to the log4j in pyspark's jars, which prints a warning without a configuration.
_LOG_CONFIGURATION = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{ISO8601} %-5p %c{1}: %m%n
"""


def find_java() -> str:
    """Return the `java` command: the one of JAVA_HOME if that is set, otherwise the one on PATH.

    Raises:
        ConfigurationError: there is none, or it is older than 17 (Spark's own need).
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or not Path(java).exists():
        raise ConfigurationError(f"no java found ({home or 'PATH'}): install Java {JAVA_VERSION_MIN} or newer")
    said = _said_version(java)
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    if version is None or int(version.group(1)) < JAVA_VERSION_MIN:
        raise ConfigurationError(
            f"{java} is {said.splitlines()[0] if said else 'not usable'}: Java 17 or newer is needed"
        )
    return java


@functools.cache
def _said_version(java: str) -> str:
    """Return what `java -version` prints. It starts a JVM, so a process asks once."""
    return subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr


def find_jars() -> Path:
    """Return pyspark's folder of jars, without importing pyspark.

    Raises:
        ConfigurationError: pyspark is not installed, or its jars hold no ZooKeeper.
    """
    spec = importlib.util.find_spec("pyspark")
    jars = Path(spec.origin).parent / "jars" if spec and spec.origin else None
    if jars is None or not any(jars.glob("zookeeper-[0-9]*.jar")):
        raise ConfigurationError(
            "ZooKeeper's server comes from pyspark's jars, which are missing: pip install 'bkspark[spark]'"
        )
    return jars


class ZooKeeperProcess:
    """One ZooKeeper server on 127.0.0.1; its data and log are in `directory`.

    Args:
        port: a free port of the caller's choice.
        settings: further lines of the server's configuration; they take precedence.
        jaas_file: the file whose section `Server` has the users that may log in.
        heap_mib: Java's memory for data; a million ledgers need about 1 GiB.
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int,
        settings: Mapping[str, str] | None = None,
        jaas_file: Path | None = None,
        heap_mib: int = HEAP_MIB,
    ) -> None:
        self.directory = directory
        self.port = port
        self._settings = dict(settings or {})
        self._jaas_file = jaas_file
        self._heap_mib = heap_mib
        if jaas_file is not None:
            self._settings.setdefault("authProvider.sasl", _SASL_PROVIDER)
        self._child: ChildProcess | None = None
        """The process; None before `start`."""

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    @property
    def connect_string(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._child.exit_code if self._child is not None else None

    def start(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            ConfigurationError: Java or the jars are missing.
            MetadataError: it ended or did not answer in time; the message names its log.
        """
        java, jars = find_java(), find_jars()
        # ZooKeeper's data contain the passwords of ledgers, in clear.
        private_files.make_directory(self.directory)
        configuration = self.directory / "zoo.cfg"
        text = _CONFIGURATION.format(data=self.directory / "data", port=self.port, host=HOST)
        # The last of several lines with one key counts.
        text += "".join(f"{key}={value}\n" for key, value in self._settings.items())
        private_files.write_text(configuration, text)
        logging = self.directory / "log4j2.properties"
        private_files.write_text(logging, _LOG_CONFIGURATION)
        names = ["zookeeper*", "slf4j-api*", "log4j-*", "metrics-core*", "snappy-java*", "netty-*", "commons-*"]
        classpath = ":".join(str(jar) for name in names for jar in sorted(jars.glob(f"{name}.jar")))
        flags = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xshare:auto"]
        flags.append(f"-Xmx{self._heap_mib}m")
        if self._jaas_file is not None:
            flags.append(f"-Djava.security.auth.login.config={self._jaas_file}")
        self._child = ChildProcess(
            "ZooKeeper",
            [
                java,
                *flags,
                f"-Dlog4j2.configurationFile={logging}",
                "-cp",
                classpath,
                "org.apache.zookeeper.server.ZooKeeperServerMain",
                str(configuration),
            ],
            self.directory / "zookeeper.log",
        )
        try:
            self._wait_until_serving()
        except BaseException:
            self.stop()
            raise

    def _wait_until_serving(self) -> None:
        assert self._child is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _serves(self.port):
            if self._child.exit_code is not None or time.monotonic() > deadline:
                state = "ended" if self._child.exit_code is not None else f"did not answer in {START_TIMEOUT_S:g} s"
                raise MetadataError(
                    f"ZooKeeper on port {self.port} {state}: {self._child.last_log_line()} "
                    f"(its log is {self._child.log_path})"
                )
            time.sleep(_PROBE_PAUSE_S)

    def stop(self) -> None:
        """End the server; does nothing if it no longer runs."""
        if self._child is not None:
            self._child.stop(STOP_TIMEOUT_S)

    def kill(self) -> None:
        """End the server with SIGKILL."""
        if self._child is not None:
            self._child.kill()

    def __enter__(self) -> ZooKeeperProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _serves(port: int) -> bool:
    """Return whether a ZooKeeper answers `srvr` there as a server that accepts requests."""
    try:
        with socket.create_connection((HOST, port), _PROBE_TIMEOUT_S) as probe:
            probe.sendall(b"srvr")
            answer = b""
            while received := probe.recv(4096):
                answer += received
    except OSError:
        return False
    return b"Mode:" in answer
