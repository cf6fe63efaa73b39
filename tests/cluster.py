"""A cluster of our own bookies for tests: the one that `bkspark local` runs, whose bookies tests kill and pause."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Mapping
from pathlib import Path

from bkspark.cli.cluster_process import DISK_USAGE_THRESHOLD, BookieProcess, ClusterProcess
from bkspark.cli.ports import free_ports
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree
from tests.bookie.child import new_cluster
from tests.polling import wait_until

SESSION_TIMEOUT_MS = "5000"
"""A bookie that was killed counts as lost when its session is over: tests of repair wait for that."""


class ClusterBookie:
    """One bookie: `id`, `pid`, `dir`; `kill`, `stop`, `restart`, `pause`, `resume` and others act on its process."""

    def __init__(self, process: BookieProcess) -> None:
        self._process = process
        self.was_paused = False
        """Since the last `Cluster.revive`: its session may have ended meanwhile, and it registers again."""

    @property
    def id(self) -> str:
        return self._process.id

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def dir(self) -> Path:
        return self._process.directory

    @property
    def is_running(self) -> bool:
        return self._process.is_running

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, nothing deregistered."""
        if self.is_running:
            self._process.kill()

    def terminate(self) -> None:
        """SIGTERM, also for one that is paused; `stop` waits for the end."""
        self.resume()
        if self.is_running:
            self._process.terminate()

    def stop(self) -> None:
        """SIGTERM, and wait for the end."""
        self.resume()
        self._process.stop()

    def restart(self) -> None:
        """Start again on the same folders, port and id, killed first if running; return when serving."""
        self.kill()
        self._process.restart()

    def launch(self) -> None:
        """Start a bookie that ended; `wait_until_serving` must follow."""
        self._process.launch()

    def wait_until_serving(self) -> None:
        self._process.wait_until_serving()

    def pause(self) -> None:
        """Stop answering without closing a connection, until `resume`."""
        self.was_paused = True
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Go on after `pause`; nothing happens otherwise."""
        if self.is_running:
            os.kill(self.pid, signal.SIGCONT)


class Cluster:
    """ZooKeeper and our bookies as processes: `uri`, `dir`, `bookies`. A context manager that ends them all."""

    def __init__(
        self,
        directory: Path,
        bookies: int = 3,
        settings: Mapping[str, str] | None = None,
        zookeeper_jaas: Path | None = None,
        zookeeper_settings: Mapping[str, str] | None = None,
    ) -> None:
        """`zookeeper_jaas`: who may log in to ZooKeeper; `zookeeper_settings`: further ones of its server."""
        self.dir = directory
        self._processes = ClusterProcess(
            bookies,
            directory,
            settings=_settings(settings),
            zookeeper_settings=zookeeper_settings,
            zookeeper_jaas=zookeeper_jaas,
        )
        self.bookies: list[ClusterBookie] = []

    @property
    def uri(self) -> str:
        return self._processes.uri

    @property
    def zookeeper(self) -> ZooKeeperProcess:
        """Its process, which a test may kill and start again."""
        assert self._processes.zookeeper is not None
        return self._processes.zookeeper

    def __enter__(self) -> Cluster:
        self._processes.start()
        self.bookies = [ClusterBookie(process) for process in self._processes.bookies]
        return self

    def __exit__(self, *reason: object) -> None:
        for bookie in self.bookies:
            bookie.resume()
        self._processes.stop()

    def revive(self) -> None:
        """Start again what a test killed, all at once, and let run what it paused; return when all serve."""
        dead = [bookie for bookie in self.bookies if not bookie.is_running]
        for bookie in self.bookies:
            bookie.resume()
        for bookie in dead:
            bookie.launch()
        for bookie in dead:
            bookie.wait_until_serving()
        if any(bookie.was_paused for bookie in self.bookies):
            wait_until(lambda: asyncio.run(self._all_take_writes()), "the bookies that were paused to be registered")
        for bookie in self.bookies:
            bookie.was_paused = False

    async def _all_take_writes(self) -> bool:
        uri = MetadataUri.parse(self.uri)
        tree = await open_tree(uri)
        try:
            return {bookie.id for bookie in self.bookies} <= await BookieRegistry(tree, uri).writable_ids()
        finally:
            await tree.close()


class GuestCluster(Cluster):
    """Our bookies as processes at a ZooKeeper of others, which the test must leave alone: cheaper than a `Cluster`.

    The clusters at one ZooKeeper share the names of logs.
    """

    def __init__(
        self, zookeeper: ZooKeeperProcess, directory: Path, bookies: int = 3, settings: Mapping[str, str] | None = None
    ) -> None:
        self.dir = directory
        self._host = zookeeper
        self._uri = ""
        self._count = bookies
        self._settings = _settings(settings)
        self.bookies: list[ClusterBookie] = []

    @property
    def uri(self) -> str:
        return self._uri

    @property
    def zookeeper(self) -> ZooKeeperProcess:
        raise AssertionError("other tests use this ZooKeeper")

    def __enter__(self) -> GuestCluster:
        # Its name is new: that of a passed test's folder is used again.
        self._uri = new_cluster(self._host.connect_string, uuid.uuid4().hex)
        self.dir.mkdir(parents=True, exist_ok=True)
        started = [
            BookieProcess(number, port, self.dir / f"bookie{number}", self._uri, self._settings)
            for number, port in enumerate(free_ports(self._count), start=1)
        ]
        self.bookies = [ClusterBookie(process) for process in started]
        try:
            for bookie in self.bookies:
                bookie.launch()
            for bookie in self.bookies:
                bookie.wait_until_serving()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *reason: object) -> None:
        self._end()

    def _end(self) -> None:
        for bookie in self.bookies:
            bookie.terminate()
        for bookie in self.bookies:
            bookie.stop()


def _settings(settings: Mapping[str, str] | None) -> dict[str, str]:
    # Other programs share the disk: how full it is must not end compactions.
    fixed = {"zkTimeout": SESSION_TIMEOUT_MS, "diskUsageWarnThreshold": DISK_USAGE_THRESHOLD}
    return {**fixed, **(settings or {})}
