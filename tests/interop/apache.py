"""Apache's own bookies as processes, so that the peer program is proved on the real thing, and our client too."""

from __future__ import annotations

import socket
from pathlib import Path

from bkspark.cli.child_process import ChildProcess
from bkspark.cli.cluster_process import HOST, free_ports
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from tests.interop.peer import JVM_OPTIONS, Peer
from tests.polling import wait_until

START_SECONDS = 60.0
STOP_SECONDS = 10.0


class ApacheBookie:
    """One of Apache's bookies: `id`, `pid`, `dir`, `settings`; `kill` is SIGKILL."""

    def __init__(self, classpath: str, directory: Path, port: int, uri: str) -> None:
        self.id = f"{HOST}:{port}"
        self.dir = directory
        self._port = port
        directory.mkdir(parents=True)
        self.settings = {
            "bookiePort": str(port),
            "metadataServiceUri": uri,
            "journalDirectories": str(directory / "journal"),
            "ledgerDirectories": str(directory / "ledgers"),
            "advertisedAddress": HOST,
            "allowLoopback": "true",
            # Three bookies share one small machine: what Apache sets aside for one of them would not fit.
            "journalPreAllocSizeMB": "4",
            "skipListSizeLimit": str(16 << 20),
            "diskUsageThreshold": "0.99",
            "diskUsageWarnThreshold": "0.98",
        }
        self._configuration = directory / "bookie.conf"
        self._configuration.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        self._classpath = classpath
        self._process = self._launch()

    def _launch(self) -> ChildProcess:
        program = ["java", *JVM_OPTIONS, "-cp", self._classpath, "org.apache.bookkeeper.server.Main"]
        return ChildProcess(f"Apache bookie {self.id}", [*program, "--conf", str(self._configuration)], self._log)

    @property
    def _log(self) -> Path:
        return self.dir / "bookie.log"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.exit_code is None

    def wait_until_serving(self) -> None:
        wait_until(self._is_serving, f"{self.id} to serve; its log is {self._log}", START_SECONDS)

    def _is_serving(self) -> bool:
        assert self.is_running, f"{self.id} {self._process.ending()}: {self._log.read_text()[-3000:]}"
        try:
            socket.create_connection((HOST, self._port), timeout=1).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        self._process.kill()

    def restart(self) -> None:
        """Start again on the same folders, port and id after `kill`; return when serving."""
        self._process = self._launch()
        self.wait_until_serving()

    def close(self) -> None:
        self._process.stop(STOP_SECONDS)


class ApacheCluster:
    """ZooKeeper and three Apache bookies: `uri`, `bookies`. A context manager that ends them all."""

    def __init__(self, classpath: str, directory: Path, peer: Peer) -> None:
        self._classpath = classpath
        self._directory = directory
        self._peer = peer
        zookeeper_port, *self._bookie_ports = free_ports(4)
        self._zookeeper = ZooKeeperProcess(directory / "zookeeper", port=zookeeper_port)
        self.uri = f"zk://{HOST}:{zookeeper_port}/ledgers"
        self.bookies: list[ApacheBookie] = []

    def __enter__(self) -> ApacheCluster:
        try:
            self._zookeeper.start()
            self._peer.call("initialize", uri=self.uri)
            for port in self._bookie_ports:
                directory = self._directory / f"bookie-{port}"
                self.bookies.append(ApacheBookie(self._classpath, directory, port, self.uri))
            for bookie in self.bookies:
                bookie.wait_until_serving()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    def close(self) -> None:
        for bookie in self.bookies:
            bookie.close()
        self._zookeeper.stop()

    def revive(self) -> None:
        """Start again what a test killed."""
        for bookie in self.bookies:
            if not bookie.is_running:
                bookie.restart()
