"""The cluster of a soak: a ZooKeeper and bookies of all three storages, one of them with a small second disk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path

from bkspark.cli.cluster import initialize
from bkspark.cli.cluster_process import BookieProcess
from bkspark.cli.ports import free_ports
from bkspark.cli.zookeeper_process import HOST, ZooKeeperProcess
from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.bookie.small_disks import MountRefused, small_disk
from tests.cluster import SESSION_TIMEOUT_MS, ClusterBookie
from tests.soak.planted import python_options

BOOKIES = 5
SMALL_DISK_BYTES = 96 << 20

OVERREPLICATED_S = 15
"""Between two looks of a bookie for ledgers that were moved away from it."""

SETTINGS = {
    "zkTimeout": SESSION_TIMEOUT_MS,
    # All that goes on in hours, in minutes.
    "gcWaitTime": "15000",
    # Most ledgers that a bookie ever held are deleted, and it is killed before it has missed them in twelve passes in a
    # row: below 1, it would keep them all.
    "gcDeletedShareMax": "1.0",
    "minorCompactionInterval": "30",
    "majorCompactionInterval": "90",
    "gcOverreplicatedLedgerWaitTime": str(1000 * OVERREPLICATED_S),
    "logSizeLimit": str(8 << 20),
    "minUsableSizeForEntryLogCreation": str(8 << 20),
    "journalMaxSizeMB": "16",
    "journalPreAllocSizeMB": "4",
    "journalMaxBackups": "1",
    "skipListSizeLimit": str(16 << 20),
    "dbStorage_writeCacheMaxSizeMb": "32",
    "dbStorage_readAheadCacheMaxSizeMb": "16",
    "diskCheckInterval": "1000",
    # The small disk is to fill up, not the machine's own, which others use, too.
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.985",
    "diskUsageLwmThreshold": "0.99",
    "autoRecoveryDaemonEnabled": "true",
    "lostBookieRecoveryDelay": "8",
    "auditorPeriodicBookieCheckInterval": "60",
    "auditorPeriodicCheckInterval": "120",
    "openLedgerRereplicationGracePeriod": "10000",
    "rwRereplicateBackoffMs": "1000",
    "lockReleaseOfFailedLedgerGracePeriod": "20000",
}
STORAGES = (StorageClass.SORTED, StorageClass.DB, StorageClass.INTERLEAVED, StorageClass.SORTED, StorageClass.SORTED)
"""Machines of the bookies, in order. The last one has the small disk: a ledger directory of two."""

FULL = {"diskUsageThreshold": "0.000001", "diskUsageWarnThreshold": "0.000001", "diskUsageLwmThreshold": "0.000001"}
"""With these any disk counts as full: for where a small one may not be mounted."""


class SoakBookie(ClusterBookie):
    """One bookie, whose settings may change from one start to the next."""

    def __init__(
        self, number: int, port: int, directory: Path, uri: str, settings: Mapping[str, str], defect: str | None = None
    ) -> None:
        self._facts = (number, port, directory, uri)
        self._options = python_options(defect)
        self.settings = dict(settings)
        super().__init__(BookieProcess(*self._facts, self.settings, self._options))

    @property
    def log(self) -> Path:
        return self.dir / "bookie.log"

    @property
    def directories(self) -> list[Path]:
        """The directories of the journal and of the ledgers."""
        named = self.settings.get("ledgerDirectories", str(self.dir / "ledgers"))
        return [self.dir / "journal", *map(Path, named.split(","))]

    def ending(self) -> str:
        """Return how the process ended, for a person."""
        return self._process.ending()

    def arguments(self) -> list[str]:
        """Return the options of `bkspark bookie` that name this bookie."""
        settings = {
            "bookiePort": str(self._facts[1]),
            "advertisedAddress": HOST,
            "metadataServiceUri": self._facts[3],
            "journalDirectories": str(self.dir / "journal"),
            "ledgerDirectories": ",".join(map(str, self.directories[1:])),
            **self.settings,
        }
        return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]

    def restart_with(self, settings: Mapping[str, str]) -> None:
        """Stop if it runs, and start again with some settings changed. Raises BookieUnavailable."""
        if self.is_running:
            self.stop()
        process = BookieProcess(*self._facts, {**self.settings, **settings}, self._options)
        process.launch()
        # Samples are taken by another thread, which needs the id of a process.
        self._process = process
        self.wait_until_serving()


class Machines:
    """A context manager: starts everything, ends everything.

    The thread that enters must outlive the bookies, and restart them: they die with the thread that started them.

    Args:
        defect: of `planted.DEFECTS`, in every bookie; None for none.
    """

    def __init__(self, folder: Path, bookies: int = BOOKIES, defect: str | None = None) -> None:
        self._folder = folder
        self._defect = defect
        self._ports = free_ports(bookies + 1)
        self._stack = contextlib.ExitStack()
        self.zookeeper = ZooKeeperProcess(folder / "zookeeper", port=self._ports[-1])
        self.uri = f"zk://{HOST}:{self._ports[-1]}/ledgers"
        self.bookies: list[SoakBookie] = []
        self.small_disk: Path | None = None
        """Where the last bookie has its second ledger directory; None where no disk may be mounted."""
        self.mount_refused = ""

    def __enter__(self) -> Machines:
        with contextlib.ExitStack() as stack:
            try:
                self.small_disk = stack.enter_context(small_disk(self._folder / "small", SMALL_DISK_BYTES))
            except MountRefused as refused:
                self.mount_refused = str(refused)
            stack.callback(self._stop)
            self.zookeeper.start()
            asyncio.run(initialize(self.uri))
            for number, port in enumerate(self._ports[:-1], start=1):
                directory = self._folder / f"bookie{number}"
                settings = self._settings(number, directory)
                self.bookies.append(SoakBookie(number, port, directory, self.uri, settings, self._defect))
            for bookie in self.bookies:
                bookie.launch()
            for bookie in self.bookies:
                bookie.wait_until_serving()
            self._stack = stack.pop_all()
        return self

    def _settings(self, number: int, directory: Path) -> dict[str, str]:
        settings = {**SETTINGS, "ledgerStorageClass": STORAGES[(number - 1) % len(STORAGES)].short_name}
        if number == len(self._ports) - 1 and self.small_disk is not None:
            settings["ledgerDirectories"] = f"{directory / 'ledgers'},{self.small_disk / 'ledgers'}"
        return settings

    def __exit__(self, *reason: object) -> None:
        self._stack.close()

    def _stop(self) -> None:
        for bookie in self.bookies:
            bookie.stop()
        self.zookeeper.stop()
