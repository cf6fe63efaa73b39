"""A BookKeeper cluster and a Spark standalone cluster as processes, each on a host of its own (`networks`)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from bkspark.cli.bookie import bookie_command
from bkspark.cli.child_process import ChildProcess
from bkspark.cli.cluster_process import DISK_USAGE_THRESHOLD
from bkspark.cli.ports import free_ports
from tests.cluster import SESSION_TIMEOUT_MS
from tests.polling import wait_until
from tests.real_cluster.networks import Host, Network
from tests.spark_settings import SHORT_JVM, spark_home

ROOT = Path(__file__).parents[2]
WORKERS = ("worker1", "worker2", "worker3")
BOOKIES = ("bookie1", "bookie2", "bookie3", "bookie4")
HOSTS = ("zookeeper", "master", "client", *WORKERS, *BOOKIES)
CORES = 2
START_S = 90
STOP_S = 10
COMMAND_S = 240
"""Deadline of each command that a test runs on a host."""
MASTER_MAIN = "org.apache.spark.deploy.master.Master"
WORKER_MAIN = "org.apache.spark.deploy.worker.Worker"


class Machines:
    """ZooKeeper, four bookies, a Spark master, three workers, and a host `client` for drivers.

    A context manager that ends all processes and removes the network. Each worker offers two cores.
    """

    def __init__(self, folder: Path, hosts: Network, *, are_bare: bool = False) -> None:
        """`are_bare`: hosts have Python and Spark, but neither bkspark nor its packages."""
        self.folder = folder
        self.network = hosts
        self._processes: dict[str, ChildProcess] = {}
        self._ports = dict(zip(HOSTS, free_ports(len(HOSTS))))
        self._are_bare = are_bare
        self._stack = contextlib.ExitStack()
        self.spark_home = Path()

    @property
    def uri(self) -> str:
        return f"zk://{self.host('zookeeper').address}:{self._ports['zookeeper']}/ledgers"

    @property
    def master(self) -> str:
        return f"spark://{self.host('master').address}:{self._ports['master']}"

    def host(self, name: str) -> Host:
        return self.network.hosts[name]

    def __enter__(self) -> Self:
        with self._stack:
            self._stack.enter_context(self.network)
            self._stack.callback(self._stop)
            self.spark_home = _installed_spark(self.folder)
            self._start_zookeeper()
            self._launch_master()
            self._start_bookies()
            self.wait_for("master", "I have been elected leader")
            for name in WORKERS:
                self.launch_worker(name)
            for name in WORKERS:
                self.wait_for(name, "Successfully registered with master")
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _stop(self) -> None:
        for process in reversed(self._processes.values()):
            process.kill()

    def _start_zookeeper(self) -> None:
        module = [sys.executable, "-m", "tests.real_cluster.zookeeper", self.folder / "zookeeper"]
        process = self._launch("zookeeper", [*module, self._ports["zookeeper"]])
        assert next(process.lines(time.monotonic() + START_S), "") == "serving", process.last_log_line()
        words = [sys.executable, "-m", "bkspark.cli", "cluster", "init", "--uri", self.uri]
        self.run("client", words, {"PYTHONPATH": str(ROOT)})

    def _start_bookies(self) -> None:
        for name in BOOKIES:
            self.launch_bookie(name)
        for name in BOOKIES:
            self.wait_for_bookie(name)

    def launch_bookie(self, name: str) -> None:
        folder = self.folder / name
        settings = {
            "bookiePort": str(self._ports[name]),
            "advertisedAddress": self.host(name).address,
            "allowLoopback": "true",
            "journalDirectories": str(folder / "journal"),
            "ledgerDirectories": str(folder / "ledgers"),
            "metadataServiceUri": self.uri,
            "diskUsageThreshold": DISK_USAGE_THRESHOLD,
            "diskUsageWarnThreshold": DISK_USAGE_THRESHOLD,
            "zkTimeout": SESSION_TIMEOUT_MS,
        }
        self._launch(name, bookie_command(settings, json=True))

    def wait_for_bookie(self, name: str) -> None:
        process = self._processes[name]
        said = next(process.lines(time.monotonic() + START_S), None)
        assert said is not None, f"{name} did not start: {process.last_log_line()}"

    def _launch_master(self) -> None:
        address, port = self.host("master").address, self._ports["master"]
        self._launch_spark("master", MASTER_MAIN, "--host", address, "--port", port, "--webui-port", "0")

    def launch_worker(self, name: str) -> None:
        """Start a worker; `wait_for` says when it is registered."""
        (self.folder / name).mkdir(exist_ok=True)
        place = ["--host", self.host(name).address, "--port", self._ports[name], "--webui-port", "0"]
        size = ["--cores", CORES, "--memory", "2g", "--work-dir", self.folder / name]
        self._launch_spark(name, WORKER_MAIN, *place, *size, self.master)

    def _launch_spark(self, name: str, *words: object) -> None:
        self._launch(name, [self.spark_home / "bin" / "spark-class", *words], self.spark_variables(name))

    def spark_variables(self, name: str) -> dict[str, str]:
        """Return the environment of Spark's daemons and executors on a host."""
        return {
            "SPARK_HOME": str(self.spark_home),
            "SPARK_LOCAL_IP": self.host(name).address,
            "SPARK_LOCAL_DIRS": str(self.folder / f"{name}-local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{SHORT_JVM} -Dspark.worker.timeout=12 -Dspark.deploy.maxExecutorRetries=-1",
            **self._python(),
        }

    def _python(self) -> dict[str, str]:
        if not self._are_bare:
            return {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
        # Spark takes an empty variable for a set one.
        path = f"{_bare_python(self.folder)}{os.pathsep}{os.environ['PATH']}"
        return {"PYSPARK_PYTHON": "python3", "PYSPARK_DRIVER_PYTHON": "python3", "PYTHONPATH": "", "PATH": path}

    def _launch(self, name: str, words: Sequence[object], variables: Mapping[str, str] | None = None) -> ChildProcess:
        command = self.host(name).command(*words)
        environment = {"PYTHONPATH": str(ROOT), **(variables or {})}
        process = ChildProcess(name, command, self.folder / f"{name}.log", environment=environment)
        self._processes[name] = process
        return process

    def wait_for(self, name: str, text: str) -> None:
        """Return once a Spark daemon has logged a text since its start."""
        process = self._processes[name]
        path = process.log_path

        def has_logged() -> bool:
            assert process.exit_code is None, f"{name} {process.ending()}: {path.read_text()[-2000:]}"
            return text in path.read_text(errors="replace")

        wait_until(has_logged, f"{text!r} in {path}", START_S)

    def kill(self, name: str) -> None:
        """End all processes of a host at once, as a loss of power does; a worker's executors are of its group."""
        process = self._processes.pop(name)
        process.kill()
        process.log_path.rename(process.log_path.with_suffix(f".{process.pid}.log"))

    @contextlib.contextmanager
    def start(
        self, words: Sequence[object], log: Path, variables: Mapping[str, str] | None = None, host: str = "client"
    ) -> Iterator[ChildProcess]:
        """Run a program on a host; it is ended when the block ends."""
        command = self.host(host).command(*words)
        process = ChildProcess(log.stem, command, log, environment=self.client_variables() | dict(variables or {}))
        try:
            yield process
        finally:
            process.kill()

    def run(
        self, host: str, words: Sequence[object], variables: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> str:
        """Run a command on a host to its end; return what it prints."""
        command = self.host(host).command(*words)
        environment = {**os.environ, **self.client_variables(), **(variables or {})}
        done = subprocess.run(
            command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-2000:]} {done.stderr[-4000:]}"
        return done.stdout

    def client_variables(self) -> dict[str, str]:
        """Return the environment of drivers and commands on the host `client`."""
        return {
            **self._python(),
            "SPARK_HOME": str(self.spark_home),
            "SPARK_LOCAL_IP": self.host("client").address,
            "SPARK_LOCAL_DIRS": str(self.folder / "client-local"),
            "JDK_JAVA_OPTIONS": SHORT_JVM,
        }

    def settings(self) -> dict[str, str]:
        """Return settings of Spark sessions on this cluster: executors that are lost are noticed within seconds."""
        address = self.host("client").address
        return {
            "spark.master": self.master,
            "spark.driver.host": address,
            "spark.driver.bindAddress": address,
            "spark.driver.memory": "1g",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": SHORT_JVM,
            "spark.executor.heartbeatInterval": "1s",
            "spark.network.timeout": "12s",
            "spark.network.timeoutInterval": "1s",
            "spark.storage.blockManagerHeartbeatTimeoutMs": "12s",
            # A loaded machine loses executors without any fault of the test's.
            "spark.task.maxFailures": "20",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "3",
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
        }


def _installed_spark(folder: Path) -> Path:
    """Return a SPARK_HOME as a cluster has it, with pyspark in `python/lib`, where it is compiled already."""
    import py4j
    import pyspark

    home = spark_home(folder)
    packages = Path(pyspark.__file__).parent
    for archive in (packages / "python" / "lib").glob("*.zip"):
        # A folder in place of the archive: Python takes either.
        package = packages if archive.name.startswith("pyspark") else Path(py4j.__file__).parent
        place = home / "python" / "lib" / archive.name
        place.mkdir(parents=True)
        (place / package.name).symlink_to(package)
    return home


def _bare_python(folder: Path) -> Path:
    """Return a folder whose `python3` is this interpreter without its environment."""
    place = folder / "python"
    if not place.exists():
        place.mkdir()
        (place / "python3").symlink_to(Path(sys.executable).resolve())
    return place
