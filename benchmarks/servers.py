"""The servers of one benchmark run: ZooKeeper and bookies, real processes in a folder that is removed at the end."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from bkspark.cli.cluster import initialize
from bkspark.cli.cluster_process import BookieProcess
from bkspark.cli.ports import free_ports
from bkspark.cli.zookeeper_process import HEAP_MIB, ZooKeeperProcess
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree
from bookie_service.admin import control, live_commands
from bookie_service.formats import journal as journal_format

_UNSYNCED = {"forceSync": "no"}
"""ZooKeeper does not sync its log: that would take the disk from the bookies that are measured, and a session would
expire when the disk is busy for `_SESSION_MS`."""
_SESSION_MS = 4000
_GOODBYE_TIMEOUT_S = 60.0


class Servers:
    """A folder with a ZooKeeper in it, for bookies with settings of their own; a context manager."""

    def __init__(self, parent: Path | None, profile: Path | None = None, *, zookeeper_mib: int = HEAP_MIB) -> None:
        """`parent`: where the folder is made; `profile`: of a bookie; `zookeeper_mib`: memory for ZooKeeper's data."""
        self._parent = parent
        self._profile = profile
        self._zookeeper_mib = zookeeper_mib
        self._bookies = 0

    def __enter__(self) -> Servers:
        self.directory = Path(tempfile.mkdtemp(prefix="bkspark-storage-", dir=self._parent))
        (port,) = free_ports(1)
        self._zookeeper = ZooKeeperProcess(
            self.directory / "zookeeper", port=port, settings=_UNSYNCED, heap_mib=self._zookeeper_mib
        )
        try:
            self._zookeeper.start()
            self.uri = f"zk://127.0.0.1:{port}/ledgers"
            asyncio.run(initialize(self.uri))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._zookeeper.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    @contextmanager
    def bookies(self, count: int, **settings: object) -> Iterator[list[MeasuredBookie]]:
        """Serve with `count` new bookies, the only ones registered; end and remove them afterwards."""
        bookies = [self.new_bookie(**settings) for _ in range(count)]
        try:
            for bookie in bookies:
                bookie.start()
            yield bookies
        finally:
            for bookie in bookies:
                bookie.remove()

    @contextmanager
    def bookie(self, **settings: object) -> Iterator[MeasuredBookie]:
        """Serve with one new bookie."""
        with self.bookies(1, **settings) as (bookie,):
            yield bookie

    def new_bookie(self, **settings: object) -> MeasuredBookie:
        """Return a bookie that was not started yet."""
        self._bookies += 1
        # Nothing is collected but when a benchmark asks: ledgers of raw peers are in no metadata store.
        texts = {"gcWaitTime": "3600000", "zkTimeout": str(_SESSION_MS)}
        texts |= {key: str(value) for key, value in settings.items()}
        return MeasuredBookie(self._bookies, self.directory, self.uri, texts, self._profile)


class MeasuredBookie:
    """One bookie process: started and ended with the time it takes, its processor time and memory."""

    def __init__(
        self, number: int, parent: Path, uri: str, settings: dict[str, str], profile: Path | None = None
    ) -> None:
        self.directory = parent / f"bookie{number}"
        (self.port,) = free_ports(1)
        self._number = number
        self._uri = uri
        self._settings = settings
        self._python_options = () if profile is None else ("-m", "cProfile", "-o", str(profile))
        self._process = self._new_process()

    def _new_process(self) -> BookieProcess:
        return BookieProcess(self._number, self.port, self.directory, self._uri, self._settings, self._python_options)

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> float:
        """Return the seconds from the start of the process until it is registered and serves."""
        began = time.perf_counter()
        self._process.restart()
        return time.perf_counter() - began

    def stop(self) -> float:
        """Stop it cleanly, if it runs; return the seconds that took.

        Raises:
            TimeoutError: it had to be killed. Its next start replays the journal, and nothing measured then would be
                what it is named.
        """
        was_running = self._process.is_running
        began = time.perf_counter()
        self._process.stop()
        elapsed = time.perf_counter() - began
        if was_running and self._process.exit_code != 0:
            raise TimeoutError(f"a bookie that was asked to stop {self._process.ending()} after {elapsed:.1f} s")
        return elapsed

    def remove(self) -> None:
        """Stop it, if it runs, and remove its folder."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def forget_settings(self, *keys: str) -> None:
        """Start with the defaults of these keys from now on."""
        for key in keys:
            del self._settings[key]
        self._process = self._new_process()

    def kill(self) -> None:
        """End it with SIGKILL and wait until its registration is gone: starting again does not wait for it then."""
        self._process.kill()
        asyncio.run(_wait_until_unregistered(self._uri, self._process.id))

    def collect_garbage(self) -> Future[dict[str, Any]]:
        """Ask for a pass with a major compaction; it is over when the future is done, which then has its report."""
        executor = ThreadPoolExecutor(1)
        collected = executor.submit(control.ask, [str(self.directory / "ledgers")], {"do": live_commands.COLLECT})
        executor.shutdown(wait=False)
        return collected

    def processor_s(self) -> float:
        """Return the processor time so far, user and system."""
        return _processor_s(Path(f"/proc/{self.pid}/stat"))

    def main_thread_s(self) -> float:
        """Return the processor time of the thread that runs the event loop."""
        return _processor_s(Path(f"/proc/{self.pid}/task/{self.pid}/stat"))

    def resident_mib(self) -> float:
        """Return the resident set, in MiB."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

    def entry_logs(self) -> set[str]:
        """Return the names of the entry logs that there are."""
        return {path.name for path in (self.directory / "ledgers" / "current").glob("*.log")}

    def journal_bytes_and_groups(self) -> tuple[int, int]:
        """Return how many bytes of records the journal's files hold, and by how many syncs they became durable."""
        records_bytes = groups = 0
        for path in (self.directory / "journal" / "current").glob("*.txn"):
            file_id = journal_format.parse_file_name(path.name)
            assert file_id is not None
            synced: set[int] = set()
            offset = journal_format.FILE_HEADER_BYTES
            with path.open("rb") as file:
                while True:
                    file.seek(offset)
                    data = file.read(journal_format.RECORD_HEADER_BYTES)
                    header = journal_format.decode_record_header(data, 0, file_id=file_id, offset=offset)
                    if header is None:
                        break
                    synced.add(header.synced)
                    offset += journal_format.RECORD_HEADER_BYTES + header.body_bytes
            records_bytes += offset - journal_format.FILE_HEADER_BYTES
            groups += len(synced)
        return records_bytes, groups


def _processor_s(path: Path) -> float:
    fields = path.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _wait_until_unregistered(uri: str, bookie_id: str) -> None:
    parsed = MetadataUri.parse(uri)
    tree = await open_tree(parsed)
    try:
        deadline = time.monotonic() + _GOODBYE_TIMEOUT_S
        while bookie_id in await BookieRegistry(tree, parsed).writable():
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"bookie {bookie_id} was killed {_GOODBYE_TIMEOUT_S:g} s ago and is still registered"
                )
            await asyncio.sleep(0.05)
    finally:
        await tree.close()
