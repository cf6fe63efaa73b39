"""How long garbage collection keeps the event loop of a bookie with many ledgers: `python -m benchmarks.collection`.

Builds a bookie's store with `--ledgers` ledgers of one entry each, then runs passes of its collector on an event loop
on which nothing else runs but a clock: a callback every millisecond. A stall is how much later one comes than it was
due. The metadata store names all ledgers except a hundredth, in the bookie's own process; so each listing is parsed,
and those ledgers are proven to be deleted and dropped. `own` is the part of a stall that the process itself may have
caused (`Clock`), and what the target is for. `quiet` is the same clock for as long without a collector: what the
machine itself does to it. On a busy machine run it with `nice -n -20`. Under `chrt -r 1` Linux stops it for 50 ms of
each second in which it is busy, unless kernel.sched_rt_runtime_us is -1.

`opened_s` is how long opening the store takes, `grown_mib` by how much the memory of the process grew from there on;
in a process that has built the store before, a part of it was grown already.

    --directory DIR   where to build; kept, and used again, when it is given
    --target-ms MS    exit code 1 when the own part of a stall is longer (default 5)
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import statistics
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# As bookie_service.process does, before there is an event loop.
import numpy.ma

from benchmarks.made_up_ledgers import URI, made_up_tree
from bkspark.metadata.uri import MetadataUri
from bkspark.options import COUNT_MAX
from bkspark.wire.digest import master_key
from bookie_service.cluster.ledger_metadata_view import LedgerMetadataView
from bookie_service.formats import index as index_format
from bookie_service.gc.collection_options import CollectionOptions
from bookie_service.gc.garbage_collector import CollectorCallbacks, GarbageCollector
from bookie_service.gc.gc_policy import CompactionLevel
from bookie_service.network.event_loop import TimedCollections, share_interpreter
from bookie_service.storage.index.index import IndexPaths, LedgerUpdate
from bookie_service.storage.index.manifest import IndexManifestWriter
from bookie_service.storage.index.per_ledger import PerLedgerIndex
from bookie_service.storage.io.allocation import keep_allocation_short
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.factory import open_ledger_storage
from bookie_service.storage.ledgers.interface import LedgerStorage
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.logs.compaction import Compactor
from bookie_service.storage.logs.log_appender import AppendOptions

_TICK_S = 0.001
_LEDGERS_PER_FLUSH = 20_000
_ENTRY_BYTES = 100
_LOG_BYTES = 16 * 1024 * 1024
_DELETED_SHARE = 0.01
_BOOKIE = "bookie:3181"
"""In the metadata of every ledger: what is on other bookies alone would be dropped."""


class Clock:
    """Asks the event loop for a turn every millisecond, and notes how late each comes.

    `own_s` is at most what this process itself delayed the turn: not the time that its thread waited for a processor
    of the machine, and not more than the processor time that all threads of the process took meanwhile.
    """

    def __init__(self) -> None:
        # Not lists: Python's garbage collection looks at each number of a list, which took up to 40 ms of a turn.
        self.late_s, self.own_s = array("d"), array("d")
        self._loop = asyncio.get_running_loop()
        self._waits = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self._ask()
        try:
            yield
        finally:
            self._next.cancel()

    def close(self) -> None:
        os.close(self._waits)

    def _ask(self) -> None:
        self._waited_s, self._processor_s = self._wait_s(), time.process_time()
        self._due = self._loop.time() + _TICK_S
        self._next = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        late_s = self._loop.time() - self._due
        self.late_s.append(late_s)
        waited_s = self._wait_s() - self._waited_s
        self.own_s.append(max(0.0, min(late_s - waited_s, time.process_time() - self._processor_s)))
        self._ask()

    def _wait_s(self) -> float:
        """Return how long this thread has waited for a processor since it began."""
        return int(os.pread(self._waits, 100, 0).split()[1]) / 1e9


def _write_nothing(index: PerLedgerIndex, kept: list[LedgerUpdate]) -> None:
    """Let an index keep its updates in `kept`, and not write them."""

    def hold(updates: Iterable[LedgerUpdate]) -> None:
        kept.extend(updates)

    def sync(names_are_durable: bool = True) -> None:
        return

    index.hold = hold  # type: ignore[method-assign]
    index.sync = sync  # type: ignore[method-assign]


def build(files: LocalFiles, directory: str, options: StoreOptions, ledgers: int) -> None:
    """Put one entry into each of so many ledgers of a store that is empty.

    Index files get their contents in one write, which is how the million is made in minutes: the storage's own way
    through pages and syncs ends with the same bytes.
    """
    key = master_key(b"")
    store = open_ledger_storage(files, [directory], options)
    updates: list[LedgerUpdate] = []
    if isinstance(store.index, PerLedgerIndex):
        _write_nothing(store.index, updates)
    for begin in range(0, ledgers, _LEDGERS_PER_FLUSH):
        for ledger_id in range(begin, min(ledgers, begin + _LEDGERS_PER_FLUSH)):
            ids = ledger_id.to_bytes(8, "big") + bytes(8)
            item = (len(ids) + _ENTRY_BYTES).to_bytes(4, "big") + ids + bytes(_ENTRY_BYTES)
            at = store.active.place(np.frombuffer(item, np.uint8), np.zeros(1, np.int64), np.array([len(item)]))
            store.insert(store.create_ledger(ledger_id, key), np.zeros(1, np.int64), at)
        flush = store.begin_flush()
        assert flush is not None, "one flush after the other"
        store.write_flush(flush)
        store.end_flush(flush)
        _write_index_files(files, IndexPaths([directory]), updates)
        updates.clear()
        print(f"{begin + _LEDGERS_PER_FLUSH:,} ledgers", file=sys.stderr)
    store.seal_logs()
    store.close()
    if isinstance(store.index, PerLedgerIndex):
        size = index_format.LAYOUT.position_at(1)
        IndexManifestWriter(files, [directory]).note(dict.fromkeys(range(ledgers), size))


def _write_index_files(files: LocalFiles, paths: IndexPaths, updates: Sequence[LedgerUpdate]) -> None:
    headers = {update.ledger_id: update.header for update in updates if update.header is not None}
    for update in updates:
        if not len(update.entry_ids):
            continue
        ledger_id = update.ledger_id
        if ledger_id < 1 << 16:
            os.makedirs(paths.directories(ledger_id)[-1], exist_ok=True)
        head = index_format.encode_head(headers[ledger_id])
        file = files.create(paths.path(ledger_id))
        file.write([head, update.positions.astype(">i8").tobytes()], 0)
        file.close()


async def measure(store: LedgerStorage, compactor: Compactor, listed: int, passes: int) -> dict[str, object]:
    """Return the figures of passes over a store, and of the same clock without them."""
    metadata_view = LedgerMetadataView(await made_up_tree(listed, [_BOOKIE]), MetadataUri.parse(URI), _BOOKIE)
    await metadata_view.open()

    async def flush() -> None:
        """Nothing waits to be flushed."""

    def fail(error: BaseException) -> None:
        raise error

    options = CollectionOptions(
        interval_s=1.0,
        overreplicated_interval_s=0,
        minor=CompactionLevel(0.2, 3600),
        major=CompactionLevel(0.8, 86_400),
        metadata_ops_per_s=COUNT_MAX,
        entries_per_s=0,
        bytes_per_s=0,
    )
    collector = GarbageCollector(store, compactor, metadata_view, options, CollectorCallbacks(flush, fail))
    clock, took_s, reports = Clock(), [], []
    for number in range(passes):
        began, before_s = time.monotonic(), time.process_time()
        with clock.running():
            reports.append(str(await collector.run_pass(is_forced=number == passes - 1)))
        took_s.append(time.monotonic() - began)
        print(
            f"pass {number}: {took_s[-1]:.1f} s, {time.process_time() - before_s:.1f} s of processor", file=sys.stderr
        )
    quiet = Clock()
    with quiet.running():
        await asyncio.sleep(sum(took_s))
    await collector.stop()
    clock.close()
    quiet.close()
    return {
        "pass_s": [round(each, 1) for each in took_s],
        "reports": reports,
        **_late("", clock.late_s),
        **_late("own_", clock.own_s),
        **_late("quiet_", quiet.late_s),
        **_late("quiet_own_", quiet.own_s),
    }


def _late(prefix: str, late_s: Iterable[float]) -> dict[str, object]:
    late_ms = sorted(1000 * each for each in late_s)
    return {
        f"{prefix}turns": len(late_ms),
        f"{prefix}median_ms": round(statistics.median(late_ms), 3),
        f"{prefix}p999_ms": round(late_ms[int(0.999 * len(late_ms))], 3),
        f"{prefix}longest_ms": [round(each, 3) for each in late_ms[-5:]],
    }


async def _measure_as_served(store: LedgerStorage, compactor: Compactor, listed: int, passes: int) -> dict[str, object]:
    """Measure with the garbage collections of a bookie that serves."""
    with TimedCollections():
        return await measure(store, compactor, listed, passes)


def _run(directory: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    files, current = LocalFiles(), str(directory)
    options = StoreOptions(storage_class=arguments.storage, append=AppendOptions(_LOG_BYTES))
    built_s = 0.0
    if not files.is_directory(current):
        files.make_directory(current)
        began = time.monotonic()
        build(files, current, options, arguments.ledgers)
        built_s = time.monotonic() - began
    began = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    store = open_ledger_storage(files, [current], options)
    opened_s = time.monotonic() - began
    share_interpreter()
    keep_allocation_short()
    try:
        compactor = Compactor(files, store, [current])
        compactor.recover()
        held = len(store.index.ledger_ids())
        listed = round(held * (1 - _DELETED_SHARE))
        figures = asyncio.run(_measure_as_served(store, compactor, listed, arguments.passes))
    finally:
        store.close()
    return {
        "ledgers": held,
        "storage": arguments.storage.short_name,
        "built_s": round(built_s, 1),
        "opened_s": round(opened_s, 2),
        "grown_mib": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, 1),
        **figures,
    }


def main(argv: list[str] | None = None) -> int:
    """Print one JSON object; return 1 when the target was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.collection", description=__doc__)
    parser.add_argument("--ledgers", type=int, default=1_000_000)
    parser.add_argument("--passes", type=int, default=3, help="the last is one that an operator asks for")
    parser.add_argument("--storage", type=StorageClass.parse, default=StorageClass.SORTED, help="ledgerStorageClass")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--target-ms", type=float, default=5.0)
    arguments = parser.parse_args(argv)
    with contextlib.ExitStack() as stack:
        directory = arguments.directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        figures = _run(directory.absolute() / "current", arguments)
    print(json.dumps(figures))
    return 0 if figures["own_longest_ms"][-1] <= arguments.target_ms else 1


if __name__ == "__main__":
    sys.exit(main())
