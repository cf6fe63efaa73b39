"""A store whose journals are left out, a metadata store that is a dictionary, and a collector between the two."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np

from bookie_service.formats import entry_log as log_format
from bookie_service.formats import index_files
from bookie_service.formats.compaction import SUFFIX, Intent
from bookie_service.formats.entry_log import HEADER_BYTES
from bookie_service.gc.collection_options import CollectionOptions
from bookie_service.gc.collection_status import PassReport
from bookie_service.gc.garbage_collector import CollectorCallbacks, GarbageCollector
from bookie_service.gc.gc_policy import CompactionLevel
from bookie_service.storage.disks import DiskRoom
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.factory import open_ledger_storage
from bookie_service.storage.logs.compaction import Compactor
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.bookie import ledger_stores
from tests.bookie.items import item

STORE_OPTIONS = StoreOptions(cache_half_bytes=1 << 20, append=AppendOptions(8192), open_files_max=8)
UNLIMITED = CollectionOptions(
    minor=CompactionLevel(0.2, 3600), major=CompactionLevel(0.8, 86_400), entries_per_s=0, bytes_per_s=0
)
KEY = b"k" * 20


def without_limits(entries: int, size: int) -> None:
    """Go on at once."""


def intended_copy(compactor: Compactor, log_id: int) -> Intent | None:
    """Rewrite a log, and intend to replace it; None: nothing in it counts any more."""
    new_id = compactor.rewrite(log_id, without_limits)
    return None if new_id is None else compactor.intend(new_id, log_id)


_ALWAYS_THERE = {log_format.LAST_ID_NAME, index_files.FILE_NAME}


OF_OTHERS = 1 << 50
"""A ledger that other bookies hold: the cluster is not empty."""


class FakeCluster:
    """Ledgers that exist, as the metadata have them; `failure` is raised by every question while it is set."""

    def __init__(self) -> None:
        self.existing: set[int] = {OF_OTHERS}
        self.unlisted: set[int] = set()
        """Ledgers that exist, but that a listing misses."""
        self.on_other_bookies: set[int] = set()
        self.failure: Exception | None = None
        self.before_listing: Callable[[], None] = lambda: None
        self.while_listing: Callable[[], None] = lambda: None
        self.direct_reads: list[int] = []
        self.catch_ups = 0

    def _answer(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def catch_up(self) -> None:
        self._answer()
        self.catch_ups += 1

    async def listed(self) -> AsyncIterator[np.ndarray]:
        self.before_listing()
        found = sorted(self.existing - self.unlisted)
        self.while_listing()
        self._answer()
        yield np.array(found, np.int64)

    async def is_deleted(self, ledger_id: int) -> bool:
        self._answer()
        self.direct_reads.append(ledger_id)
        return ledger_id not in self.existing

    @contextlib.asynccontextmanager
    async def elsewhere(self, ledger_id: int) -> AsyncIterator[bool]:
        self._answer()
        yield ledger_id in self.on_other_bookies


class Bench:
    """One bookie's store on real files, with ledgers put into it and passes of garbage collection run over it."""

    def __init__(self, directory: Path, files: LocalFiles | None = None, directories: int = 1) -> None:
        self.paths = [str(directory / f"ledgers{i}") for i in range(directories)]
        self.files = files or LocalFiles()
        for path in self.paths:
            self.files.make_directory(path)
        self.cluster = FakeCluster()
        self.open()

    def open(self) -> None:
        self.store = open_ledger_storage(self.files, self.paths, STORE_OPTIONS)
        self.compactor = Compactor(self.files, self.store, self.paths)
        self.notices = self.compactor.recover()

    def reopen(self, *, cleanly: bool = False) -> None:
        if cleanly:
            self.store.seal_logs()
        self.store.close()
        self.open()

    def put(self, ledger_id: int, entry_ids: range, size: int = 100) -> None:
        """Add entries; they are in the active half."""
        self.cluster.existing.add(ledger_id)
        ledger = self.store.ledger(ledger_id) or self.store.create_ledger(ledger_id, KEY)
        items = [item(ledger_id, entry_id, size) for entry_id in entry_ids]
        sizes = np.array([len(each) for each in items])
        buffer = np.frombuffer(b"".join(items), np.uint8)
        addresses = self.store.active.place(buffer, np.cumsum(sizes) - sizes, sizes)
        self.store.insert(ledger, np.array(entry_ids), addresses)

    def flush(self) -> None:
        ledger_stores.flush(self.store)

    async def flush_all(self) -> None:
        if not self.store.is_clean:
            self.flush()

    def delete(self, *ledger_ids: int) -> None:
        """Delete ledgers in the metadata store."""
        self.cluster.existing -= set(ledger_ids)

    def callbacks(self, **more: Any) -> CollectorCallbacks:
        """Return what this bench does for a collector; failures are ignored."""
        return CollectorCallbacks(self.flush_all, lambda error: None, **more)

    def collect(
        self, options: CollectionOptions = UNLIMITED, *, forced: bool = True, room: DiskRoom = DiskRoom.ENOUGH
    ) -> PassReport:
        """Run one pass."""

        async def run() -> PassReport:
            collector = GarbageCollector(
                self.store, self.compactor, self.cluster, options, self.callbacks(room=lambda: room)
            )
            try:
                return await collector.run_pass(is_forced=forced)
            finally:
                await collector.stop()

        return asyncio.run(run())

    def collect_in_passes(
        self, passes: int, options: CollectionOptions = UNLIMITED, interval_s: float | None = None
    ) -> PassReport:
        """Run passes that come by themselves, `interval_s` apart by their clock; return what they did together."""
        return asyncio.run(self.run_passes(passes, options, interval_s))

    async def run_passes(
        self,
        passes: int,
        options: CollectionOptions = UNLIMITED,
        interval_s: float | None = None,
        *,
        is_forced: bool = False,
    ) -> PassReport:
        """`collect_in_passes`, or passes that are asked for, on an event loop."""
        now_s = 0.0
        collector = GarbageCollector(
            self.store, self.compactor, self.cluster, options, self.callbacks(), clock_s=lambda: now_s
        )
        total = PassReport()
        try:
            for _ in range(passes):
                report = await collector.run_pass(is_forced=is_forced)
                total.dropped_ledgers += report.dropped_ledgers
                total.removed_logs += report.removed_logs
                total.kept_because = report.kept_because
                now_s += options.interval_s if interval_s is None else interval_s
            return total
        finally:
            await collector.stop()

    def compact(self, log_id: int) -> None:
        """Rewrite one log, step by step as the collector does, on this thread."""
        intent = intended_copy(self.compactor, log_id)
        if intent is not None:
            self.compactor.finish(intent, without_limits)
        self.store.forget_log(log_id)
        self.compactor.remove(log_id)
        if intent is not None:
            self.compactor.forget_intent()

    def drop(self, *ledger_ids: int) -> None:
        """Drop ledgers, as the collector does once it has proofs."""
        self.store.prepare_drop(ledger_ids, (), 0)
        assert self.store.drop(ledger_ids) == list(ledger_ids)
        self.store.sync_dropped(ledger_ids)

    def read(self, ledger_id: int, entry_ids: range) -> list[bytes | None]:
        """Return each entry as an item, None where it is not held."""
        found: list[bytes | None] = []
        ledger = self.store.ledger(ledger_id)
        for entry_id in entry_ids:
            pieces = [] if ledger is None else self.store.read(ledger, entry_id, 1, 1 << 20)
            found.append(bytes(pieces[0].buffer) if pieces else None)
        return found

    def holds(self, ledger_id: int, entry_ids: range, size: int = 100) -> bool:
        """Say whether all these consecutive entries are there, byte for byte."""
        wanted = b"".join(item(ledger_id, entry_id, size) for entry_id in entry_ids)
        ledger = self.store.ledger(ledger_id)
        pieces = [] if ledger is None else self.store.read(ledger, entry_ids.start, len(entry_ids), len(wanted))
        return b"".join(bytes(piece.buffer) for piece in pieces) == wanted

    @property
    def log_paths(self) -> list[str]:
        return [
            os.path.join(path, name)
            for path in self.paths
            for name in self.files.names(path)
            if log_format.parse_file_name(name) is not None
        ]

    @property
    def log_bytes(self) -> int:
        """Bytes after the headers of all logs."""
        return sum(len(self.files.read_all(path)) - HEADER_BYTES for path in self.log_paths)

    @property
    def other_names(self) -> set[str]:
        """Names in the directories that are neither logs nor index directories nor files that are always there."""
        names = {name for path in self.paths for name in self.files.names(path) if len(name) > 2}
        return {name for name in names if log_format.parse_file_name(name) is None} - _ALWAYS_THERE


def collect(bench: Bench) -> PassReport:
    async def run() -> PassReport:
        collector = GarbageCollector(
            bench.store,
            bench.compactor,
            bench.cluster,
            UNLIMITED,
            bench.callbacks(),
            copies_at_once=3,
        )
        try:
            return await collector.run_pass(is_forced=True)
        finally:
            await collector.stop()

    return asyncio.run(run())


def copies(directory: Path) -> list[Path]:
    return list(directory.rglob(f"*{SUFFIX}"))
