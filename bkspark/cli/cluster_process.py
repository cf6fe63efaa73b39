"""A BookKeeper cluster on this machine: ZooKeeper and bookies as child processes.

    DIR/cluster.json        the ports, so that bookies keep their ids over a restart; written before anything starts
    DIR/cluster.lock        held by the process that runs the cluster
    DIR/zookeeper/          ZooKeeper's data and log
    DIR/bookieI/            I from 1: journal/, ledgers/, bookie.log

`bkspark local`, `bkspark demo`, `bkspark bench` and the tests use the same class.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bkspark.child_reports import facts_in
from bkspark.cli import private_files
from bkspark.cli.bookie import bookie_command
from bkspark.cli.child_process import ChildProcess
from bkspark.cli.cluster import initialize
from bkspark.cli.ports import check_port, free_ports
from bkspark.cli.zookeeper_process import HOST, ZooKeeperProcess
from bkspark.errors import BookieUnavailable, ConfigurationError

BOOKIES = 3
"""How many bookies a new cluster gets."""

DISK_USAGE_THRESHOLD = "0.99"
"""Disk usage above which bookies of a local cluster become read-only; `--set diskUsageThreshold=…` overrides it."""

BOOKIE_START_TIMEOUT_S = 60.0
BOOKIE_STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class ClusterPorts:
    """The ports that a cluster directory remembers; bookies in order."""

    zookeeper: int
    """The port of ZooKeeper, and those of the `bookies`."""
    bookies: tuple[int, ...]

    @classmethod
    def load(cls, path: Path) -> ClusterPorts:
        """Return the ports in `cluster.json`.

        Raises:
            ConfigurationError: the file is not ours.
        """
        try:
            stored = json.loads(path.read_text())
            return cls(int(stored["zookeeper_port"]), tuple(map(int, stored["bookie_ports"])))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"{str(path)!r} is not the record of a local cluster ({error!r}); choose another --dir"
            ) from error

    def save(self, path: Path) -> None:
        """Store atomically."""
        new = path.with_suffix(".new")
        ports = {"zookeeper_port": self.zookeeper, "bookie_ports": list(self.bookies)}
        private_files.write_text(new, json.dumps(ports) + "\n")
        new.replace(path)


class BookieProcess:
    """One bookie of a local cluster; it can be killed and started again on the same data."""

    def __init__(
        self,
        number: int,
        port: int,
        directory: Path,
        metadata_uri: str,
        settings: Mapping[str, str],
        python_options: Sequence[str] = (),
    ) -> None:
        """Prepare bookie `number` on `port`; `settings` override the values set here. Options: `bookie_command`."""
        self.number = number
        self.port = port
        self.directory = directory
        """It has a folder for the journal and one for ledgers."""
        self.id = f"{HOST}:{port}"
        """The bookie id; if the port is 0, it is known when the bookie has started."""
        self._settings = {
            "bookiePort": str(port),
            "advertisedAddress": HOST,
            "allowLoopback": "true",
            "journalDirectories": str(directory / "journal"),
            "ledgerDirectories": str(directory / "ledgers"),
            "metadataServiceUri": metadata_uri,
            # The disk of a laptop or of a shared machine is often nearly full: with 0.95, all bookies would be
            # read-only.
            "diskUsageThreshold": DISK_USAGE_THRESHOLD,
            **settings,
        }
        self._python_options = python_options
        """As in `bookie_command`."""
        self._process: ChildProcess | None = None
        """The last run; None before the first."""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """How the process ended, as `ChildProcess.exit_code` says."""
        assert self._process is not None
        return self._process.exit_code

    def ending(self) -> str:
        """Return how the process ended, in words."""
        assert self._process is not None
        return self._process.ending()

    def launch(self) -> None:
        """Start the process; `wait_until_serving` must follow."""
        private_files.make_directory(self.directory)
        command = bookie_command(self._settings, json=True, python_options=self._python_options)
        self._process = ChildProcess(f"bookie {self.id}", command, self.directory / "bookie.log")

    def wait_until_serving(self, timeout_s: float = BOOKIE_START_TIMEOUT_S) -> None:
        """Return once the bookie is registered and serves.

        Raises:
            BookieUnavailable: it ended before that; the message has the last line of its log.
        """
        assert self._process is not None
        for line in self._process.lines(time.monotonic() + timeout_s):
            if (facts := facts_in(line)) is not None:
                self.id = facts["id"]
                return
        self._process.wait(BOOKIE_STOP_TIMEOUT_S)
        reason = self._process.last_log_line() or self._process.ending()
        raise BookieUnavailable(f"bookie {self.number} ({self.id}) did not start: {reason}", bookie=self.id)

    def restart(self) -> None:
        """Start the bookie again on the same data and wait until it serves; it must not be running."""
        assert not self.is_running
        self.launch()
        self.wait_until_serving()

    def kill(self) -> None:
        """End it with SIGKILL."""
        assert self._process is not None
        self._process.kill()

    def terminate(self) -> None:
        """Ask it to stop; `stop` waits for the end."""
        if self._process is not None:
            self._process.signal(signal.SIGTERM)

    def stop(self) -> None:
        """Stop it cleanly; SIGKILL when that takes too long."""
        if self._process is not None:
            self._process.stop(BOOKIE_STOP_TIMEOUT_S)


class ClusterProcess:
    """ZooKeeper and `bookie_count` bookies; a context manager that starts and stops them.

    Without a count there are as many bookies as the directory had before, or BOOKIES in a new one. Without a directory
    the data is temporary and removed at the end. A start that fails leaves no process and, in a directory that was
    empty or absent, no file.
    """

    def __init__(
        self,
        bookie_count: int | None = None,
        directory: Path | None = None,
        *,
        zookeeper_port: int | None = None,
        settings: Mapping[str, str] | None = None,
        zookeeper_settings: Mapping[str, str] | None = None,
        zookeeper_jaas: Path | None = None,
    ) -> None:
        """`zookeeper_settings`, `zookeeper_jaas`: see `ZooKeeperProcess`."""
        self._zookeeper_settings = zookeeper_settings
        self._zookeeper_jaas = zookeeper_jaas
        self._is_temporary = directory is None
        self.directory = directory.absolute() if directory is not None else Path()
        """The cluster's directory; `start` creates a temporary one."""
        self._bookie_count = bookie_count
        self._wanted_zookeeper_port = zookeeper_port
        """The port that the caller wants; None: the one before, or a free one."""
        self._settings = dict(settings or {})
        self._lock: IO[str] | None = None
        """Keeps other processes out of the directory; None before `start` and after the end."""
        self.zookeeper: ZooKeeperProcess | None = None
        """None before `start`."""
        self.bookies: list[BookieProcess] = []
        """Empty before `start`."""

    @property
    def uri(self) -> str:
        """The metadata URI of the running cluster."""
        assert self.zookeeper is not None
        return f"zk://{HOST}:{self.zookeeper.port}/ledgers"

    def description(self) -> dict[str, Any]:
        """Return what `bkspark local --json` prints."""
        assert self.zookeeper is not None
        return {
            "uri": self.uri,
            "dir": str(self.directory),
            "zookeeper": {"port": self.zookeeper.port, "pid": self.zookeeper.pid},
            "bookies": [{"id": b.id, "pid": b.pid, "dir": str(b.directory)} for b in self.bookies],
        }

    def __enter__(self) -> ClusterProcess:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start ZooKeeper, then all bookies at once; return when all serve.

        Raises:
            ConfigurationError: the directory cannot be used, is in use, or a port is taken.
            BookieUnavailable: a bookie did not start.
        """
        import asyncio

        from bkspark.metadata.zookeeper_options import options_of

        if self._is_temporary:
            self.directory = Path(tempfile.mkdtemp(prefix="bkspark-"))
        was_empty = _make_directory(self.directory)
        try:
            self._acquire_lock()
            ports = self._choose_ports()
            self.zookeeper = ZooKeeperProcess(
                self.directory / "zookeeper",
                port=ports.zookeeper,
                settings=self._zookeeper_settings,
                jaas_file=self._zookeeper_jaas,
            )
            self.zookeeper.start()
            asyncio.run(initialize(self.uri, options_of(self._settings)))
            for number, port in enumerate(ports.bookies, start=1):
                directory = self.directory / f"bookie{number}"
                self.bookies.append(BookieProcess(number, port, directory, self.uri, self._settings))
            for bookie in self.bookies:
                bookie.launch()
            for bookie in self.bookies:
                bookie.wait_until_serving()
        except BaseException:
            self.stop()
            if was_empty and not self._is_temporary:
                _empty(self.directory)
            raise

    def stop(self) -> None:
        """Stop the bookies, then ZooKeeper; remove the data when it was temporary. May be called again."""
        # ZooKeeper stops last: a bookie that stops cleanly removes its registration.
        for bookie in self.bookies:
            bookie.terminate()
        for bookie in self.bookies:
            bookie.stop()
        if self.zookeeper is not None:
            self.zookeeper.stop()
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if self._is_temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _acquire_lock(self) -> None:
        descriptor = private_files.opener(str(self.directory / "cluster.lock"), os.O_WRONLY | os.O_CREAT)
        self._lock = os.fdopen(descriptor, "w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            self._lock = None
            raise ConfigurationError(
                f"--dir {str(self.directory)!r} is in use by another local cluster; stop that or choose another"
            ) from None

    def _choose_ports(self) -> ClusterPorts:
        """Return the remembered ports, completed by free ones, and remember them.

        Raises:
            ConfigurationError: the directory has data of more bookies than are wanted, or a port is taken.
        """
        path = self.directory / "cluster.json"
        remembered = ClusterPorts.load(path) if path.exists() else ClusterPorts(0, ())
        count = self._bookie_count or len(remembered.bookies) or BOOKIES
        if count < len(remembered.bookies):
            raise ConfigurationError(
                f"--bookies {count}: the data in {str(self.directory)!r} lies on {len(remembered.bookies)} bookies; "
                f"start at least this many"
            )
        missing = count - len(remembered.bookies)
        free = free_ports(missing + 1)
        zookeeper = self._wanted_zookeeper_port or remembered.zookeeper or free[missing]
        for port in (zookeeper, *remembered.bookies):
            check_port(port)
        ports = ClusterPorts(zookeeper, remembered.bookies + tuple(free[:missing]))
        ports.save(path)
        return ports


def _make_directory(directory: Path) -> bool:
    """Make the directory when it is absent and return whether it is empty."""
    if directory.exists() and not directory.is_dir():
        raise ConfigurationError(f"--dir {str(directory)!r} is a file; name a directory")
    # An existing directory may hold more than a cluster; the cluster's files are in directories of their own.
    private_files.make_directory(directory, tighten=False)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ConfigurationError(f"--dir {str(directory)!r} is not writable; change its mode or choose another")
    return next(directory.iterdir(), None) is None


def _empty(directory: Path) -> None:
    for entry in directory.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink()
