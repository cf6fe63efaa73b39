"""Apache's own bookies as processes, so that the peer program is proved on the real thing, and our client too."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from bkspark.cli.child_process import ChildProcess
from bkspark.cli.cluster_process import HOST, BookieProcess
from bkspark.cli.ports import free_ports
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.metadata.paths import AVAILABLE
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree
from tests.cluster import ClusterBookie
from tests.interop.peer import JVM_OPTIONS, Peer

SESSION_TIMEOUT_MS = "3000"
"""A bookie that was killed registers again only when its old session is over."""

START_SECONDS = 180.0
POLL_SECONDS = 0.05
STOP_SECONDS = 60.0


class ApacheBookie:
    """One of Apache's bookies: `id`, `pid`, `dir`, `settings`; `kill` is SIGKILL."""

    def __init__(
        self,
        classpath: str,
        directory: Path,
        port: int,
        uri: str,
        settings: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = JVM_OPTIONS,
    ) -> None:
        """`settings` override those of a test."""
        self.id = f"{HOST}:{port}"
        self.dir = directory
        self._session = 0
        directory.mkdir(parents=True, exist_ok=True)
        self.settings = {
            "bookiePort": str(port),
            "metadataServiceUri": uri,
            "journalDirectories": str(directory / "journal"),
            "ledgerDirectories": str(directory / "ledgers"),
            "advertisedAddress": HOST,
            "allowLoopback": "true",
            "zkTimeout": SESSION_TIMEOUT_MS,
            # Three bookies share one small machine: what Apache sets aside for one of them would not fit.
            "journalPreAllocSizeMB": "4",
            "skipListSizeLimit": str(16 << 20),
            "diskUsageThreshold": "0.99",
            "diskUsageWarnThreshold": "0.98",
            **(settings or {}),
        }
        self._configuration = directory / "bookie.conf"
        self._configuration.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        self._classpath = classpath
        self._jvm_options = jvm_options
        self._process = self._launch()

    def _launch(self) -> ChildProcess:
        program = ["java", *self._jvm_options, "-cp", self._classpath, "org.apache.bookkeeper.server.Main"]
        return ChildProcess(f"Apache bookie {self.id}", [*program, "--conf", str(self._configuration)], self._log)

    @property
    def _log(self) -> Path:
        return self.dir / "bookie.log"

    def log_text(self) -> str:
        """Return what it has logged."""
        return self._log.read_text(errors="replace")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.exit_code is None

    def wait_until_serving(self) -> None:
        """Return when the bookie is registered by a session of the process that runs now.

        Its port opens earlier, and after a crash its old registration stays until that session expires.
        """
        previous = self._session
        what = f"{self.id} to register; its log is {self._log}"
        self._session = asyncio.run(self._new_session(previous, what))

    async def _new_session(self, previous: int, what: str) -> int:
        uri = MetadataUri.parse(self.settings["metadataServiceUri"])
        tree = await open_tree(uri)
        try:
            async with asyncio.timeout(START_SECONDS):
                while True:
                    assert self.is_running, f"{self._process.ending()}; waited for {what}"
                    found = await tree.exists(f"{uri.root}/{AVAILABLE}/{self.id}")
                    if found is not None and found.session_owner != previous:
                        return found.session_owner
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise AssertionError(f"waited {START_SECONDS:g} s for {what}") from None
        finally:
            await tree.close()

    def kill(self) -> None:
        self._process.kill()

    def restart(self) -> None:
        """Start again on the same folders, port and id after `kill`; return when serving."""
        self._process = self._launch()
        self.wait_until_serving()

    def wipe(self) -> None:
        """Lose everything that is on disk; it must have ended."""
        for folder in ("journal", "ledgers"):
            shutil.rmtree(self.dir / folder)

    def close(self) -> None:
        self._process.stop(STOP_SECONDS)


class ApacheCluster:
    """ZooKeeper, formatted by Apache's client, and bookies of Apache's and of ours: `uri`, `apache`, `ours`, `bookies`.

    A context manager that ends them all.
    """

    def __init__(
        self,
        classpath: str,
        directory: Path,
        peer: Peer,
        *,
        apache: int = 3,
        ours: int = 0,
        settings: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = JVM_OPTIONS,
        our_settings: Mapping[str, str] | None = None,
    ) -> None:
        """`settings` and `jvm_options`: of Apache's bookies, see `ApacheBookie`; `our_settings`: of ours."""
        self._our_settings = {"zkTimeout": SESSION_TIMEOUT_MS, **(our_settings or {})}
        self._settings = settings
        self._jvm_options = jvm_options
        self._classpath = classpath
        self._directory = directory
        self._peer = peer
        zookeeper_port, *ports = free_ports(1 + apache + ours)
        self._apache_ports, self._our_ports = ports[:apache], ports[apache:]
        self._zookeeper = ZooKeeperProcess(directory / "zookeeper", port=zookeeper_port)
        self.uri = f"zk://{HOST}:{zookeeper_port}/ledgers"
        self.apache: list[ApacheBookie] = []
        self.ours: list[ClusterBookie] = []

    @property
    def bookies(self) -> list[ApacheBookie | ClusterBookie]:
        return [*self.apache, *self.ours]

    def __enter__(self) -> Self:
        try:
            self._zookeeper.start()
            self._peer.call("initialize", uri=self.uri)
            for port in self._apache_ports:
                directory = self._directory / f"apache-{port}"
                self.apache.append(
                    ApacheBookie(self._classpath, directory, port, self.uri, self._settings, self._jvm_options)
                )
            for number, port in enumerate(self._our_ports, start=1):
                directory = self._directory / f"ours-{port}"
                process = BookieProcess(number, port, directory, self.uri, self._our_settings)
                self.ours.append(ClusterBookie(process))
                process.launch()
            for bookie in self.bookies:
                bookie.wait_until_serving()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    def close(self) -> None:
        for ours in self.ours:
            ours.stop()
        for apache in self.apache:
            apache.close()
        self._zookeeper.stop()

    def revive(self) -> None:
        """Start again what a test killed."""
        for bookie in self.bookies:
            if not bookie.is_running:
                bookie.restart()
