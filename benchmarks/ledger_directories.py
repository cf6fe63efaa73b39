"""What several ledger directories gain: write rate and flush time of one bookie with 1, 2 and 4 of them.

    python -m benchmarks.ledger_directories [--rounds 5] [--sync-ms 5] [--mib-per-s 100] [--mib 96]
        [--storage DbLedgerStorage] [--entry-bytes 16384] [--half-mib 8] [--plain | --stall S]

Few machines have four disks to spare, so the disks are modelled: each ledger directory counts as a disk of its own that
does one sync at a time, and a sync takes `--sync-ms` and the time of the bytes since the last one at `--mib-per-s`. The
wait is added in the bookie's file layer (`storage/io/files.py`), and everything else is real: bookie, journal, sockets,
and the one disk below. `--plain` adds no wait; then all directories share that disk, and nothing can be gained. The
key-value store of DbLedgerStorage does its own input and output: its sync takes two syncs of its disk (the sorted file
and its name) with all bytes of its keys and values, which it compresses in reality.

Each round measures every number of directories in turn. `flush_ms`: the median time to write one full half of the
write cache to entry logs and index. `index_ms`: the part of it in which the index was synced. `write_mib_per_s`: adds
that one client keeps in flight, from the first to the last answer, with a write cache so small that the flushes set the
pace. The journal is on no modelled disk. Printed are medians, and ratios to one directory in the same run.

`--stall S` measures something else: with four directories, one finishes no sync for S seconds. `rate`: adds of all
ledgers meanwhile, as a share of the same time before. `longest_gap_s`: the longest time without an answer.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bookie_service.network.connection_options import ConnectionOptions
from bookie_service.settings.service_options import ServiceOptions
from bookie_service.storage.io.files import Buffer, File, LocalFiles
from bookie_service.storage.io.key_values import KeyValueOptions, KeyValues
from bookie_service.storage.io.rocks import RocksKeyValues
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.factory import open_ledger_storage
from bookie_service.storage.ledgers.interface import LedgerStorage
from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.bookie.collecting import KEY
from tests.bookie.items import item
from tests.bookie.serving import Peer, Serving, adds, service_options
from tests.disks import ROOMY

DIRECTORIES = (1, 2, 4)
LEDGERS = range(1, 17)
_MIB = 1 << 20
_BATCH_BYTES = 256 * 1024
_WINDOW = 8
"""Batches in flight."""


class ModelledDisk:
    """A disk that does one sync at a time."""

    def __init__(self, sync_s: float, bytes_per_s: float) -> None:
        self._sync_s = sync_s
        self._bytes_per_s = bytes_per_s
        self._busy = threading.Lock()
        self.goes_on = threading.Event()
        """Clear: no sync ends."""
        self.goes_on.set()

    def sync(self, size: int) -> None:
        """Take the time of making `size` bytes durable."""
        with self._busy:
            self.goes_on.wait()
            time.sleep(self._sync_s + size / self._bytes_per_s)


class ModelledFile(File):
    """A file of a modelled disk."""

    __slots__ = ("_disk", "_unsynced")

    def __init__(self, file: File, disk: ModelledDisk) -> None:
        super().__init__(file.descriptor, file.path)
        self._disk = disk
        self._unsynced = 0

    def write(self, buffers: Sequence[Buffer], offset: int) -> int:
        written = super().write(buffers, offset)
        self._unsynced += written
        return written

    def sync_data(self) -> None:
        size, self._unsynced = self._unsynced, 0
        super().sync_data()
        self._disk.sync(size)


class ModelledKeyValues(RocksKeyValues):
    """A key-value store on a modelled disk."""

    def __init__(self, path: str, options: KeyValueOptions, disk: ModelledDisk) -> None:
        super().__init__(path, options)
        self._disk = disk
        self._written = 0

    def write(self, puts: Sequence[tuple[bytes, bytes]], removed: Sequence[tuple[bytes, bytes]] = ()) -> None:
        super().write(puts, removed)
        self._written += sum(len(key) + len(value) for key, value in puts)

    def sync(self) -> None:
        size, self._written = self._written, 0
        super().sync()
        self._disk.sync(size)
        self._disk.sync(0)


class ModelledFiles(LocalFiles):
    """Files of which those below some directories are on modelled disks."""

    def __init__(self, disks: dict[str, ModelledDisk]) -> None:
        super().__init__()
        self._disks = disks

    def _disk(self, path: str) -> ModelledDisk | None:
        return next((disk for directory, disk in self._disks.items() if path.startswith(directory)), None)

    def open(self, path: str) -> File:
        disk = self._disk(path)
        return super().open(path) if disk is None else ModelledFile(super().open(path), disk)

    def create(self, path: str) -> File:
        disk = self._disk(path)
        return super().create(path) if disk is None else ModelledFile(super().create(path), disk)

    def open_key_values(self, path: str, options: KeyValueOptions) -> KeyValues:
        disk = self._disk(path)
        return super().open_key_values(path, options) if disk is None else ModelledKeyValues(path, options, disk)

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        disk = self._disk(path)
        if disk is not None:
            disk.sync(0)


def disks_of(directories: Sequence[Path], arguments: argparse.Namespace) -> dict[str, ModelledDisk]:
    bytes_per_s = arguments.mib_per_s * _MIB
    return {f"{each}/": ModelledDisk(arguments.sync_ms / 1000, bytes_per_s) for each in directories}


def files_of(directories: Sequence[Path], arguments: argparse.Namespace) -> LocalFiles:
    return LocalFiles() if arguments.plain else ModelledFiles(disks_of(directories, arguments))


def flush_ms(directory: Path, count: int, arguments: argparse.Namespace) -> tuple[float, float]:
    """Return the median time of a flush of a full half, and of the sync of the index in it."""
    directories = [directory / f"ledgers{number}" for number in range(count)]
    files = files_of(directories, arguments)
    for each in directories:
        files.make_directory(str(each))
    store = open_ledger_storage(files, list(map(str, directories)), _store_options(arguments))
    times = []
    first = 0
    for _ in range(6):
        first = _fill(store, first, arguments)
        flush = store.begin_flush(advances_checkpoint=False)
        assert flush is not None
        began = time.perf_counter()
        store.write_flush(flush)
        written = time.perf_counter()
        with store.writing:
            store.index.sync()
        ended = time.perf_counter()
        times.append((1000 * (ended - began), 1000 * (ended - written)))
        store.end_flush(flush)
    store.close()
    # The first one creates logs and index files.
    whole, index = (statistics.median(values) for values in zip(*times[1:]))
    return whole, index


def _store_options(arguments: argparse.Namespace) -> StoreOptions:
    return StoreOptions(StorageClass.parse(arguments.storage), cache_half_bytes=arguments.half_mib * _MIB, disks=ROOMY)


def _fill(store: LedgerStorage, first: int, arguments: argparse.Namespace) -> int:
    """Fill the active half with entries of all ledgers; return the entry after them."""
    entry_bytes = arguments.entry_bytes
    each = arguments.half_mib * _MIB // (entry_bytes + entry_bytes // 16 + 200) // len(LEDGERS)
    for ledger_id in LEDGERS:
        ledger = store.ledger(ledger_id) or store.create_ledger(ledger_id, KEY)
        items = [item(ledger_id, entry_id, entry_bytes) for entry_id in range(first, first + each)]
        sizes = np.array(list(map(len, items)))
        addresses = store.active.place(np.frombuffer(b"".join(items), np.uint8), np.cumsum(sizes) - sizes, sizes)
        store.insert(ledger, np.arange(first, first + each), addresses)
    return first + each


def write_mib_per_s(directory: Path, count: int, arguments: argparse.Namespace) -> float:
    """Return the rate of adds of a client, all ledgers in turn."""
    directories = [directory / f"ledgers{number}" for number in range(count)]
    payloads = _payloads(arguments)
    count, batches = len(payloads), max(_WINDOW, arguments.mib * _MIB // _BATCH_BYTES)
    with (
        Serving(_options(directory, directories, arguments), files_of(directories, arguments)) as serving,
        serving.connect() as peer,
    ):
        began = time.perf_counter()
        for number in range(batches):
            turn, which = divmod(number, len(LEDGERS))
            peer.send(adds(LEDGERS[which], turn * count, payloads))
            if number >= _WINDOW:
                peer.replies(count)
        peer.replies(count * _WINDOW)
        seconds = time.perf_counter() - began
    return batches * count * arguments.entry_bytes / _MIB / seconds


def _payloads(arguments: argparse.Namespace) -> list[bytes]:
    """Return the payloads of a batch."""
    return [b"x" * arguments.entry_bytes] * max(1, _BATCH_BYTES // arguments.entry_bytes)


def _options(directory: Path, directories: Sequence[Path], arguments: argparse.Namespace) -> ServiceOptions:
    return replace(
        service_options(directory),
        ledger_directories=list(map(str, directories)),
        store=_store_options(arguments),
        connection=ConnectionOptions(frame_bytes_max=arguments.half_mib * _MIB // 4),
    )


class _Load:
    """A client that keeps adds to all ledgers in flight."""

    def __init__(self, peer: Peer, payloads: Sequence[bytes]) -> None:
        self._peer = peer
        self._payloads = payloads
        self._batches = 0
        for _ in range(_WINDOW):
            self._send()

    def _send(self) -> None:
        turn, which = divmod(self._batches, len(LEDGERS))
        self._peer.send(adds(LEDGERS[which], turn * len(self._payloads), self._payloads))
        self._batches += 1

    def run(self, seconds: float) -> tuple[int, float]:
        """Return how many batches were answered in that time, and the longest time without an answer."""
        answered, gap_s = 0, 0.0
        began = last = time.monotonic()
        while last - began < seconds:
            self._peer.replies(len(self._payloads))
            now = time.monotonic()
            gap_s, last, answered = max(gap_s, now - last), now, answered + 1
            self._send()
        return answered, gap_s

    def finish(self) -> None:
        self._peer.replies(len(self._payloads) * _WINDOW)


def beside_a_stall(directory: Path, place: int, arguments: argparse.Namespace) -> tuple[float, float]:
    """Return the rate of adds while one of four directories stalls, as a share of that before, and the longest gap."""
    directories = [directory / f"ledgers{number}" for number in range(DIRECTORIES[-1])]
    disks = disks_of(directories, arguments)
    files = ModelledFiles(disks)
    with Serving(_options(directory, directories, arguments), files) as serving, serving.connect() as peer:
        load, disk = _Load(peer, _payloads(arguments)), disks[f"{directories[place]}/"]
        ordinary, _ = load.run(arguments.stall)
        disk.goes_on.clear()
        try:
            stalled, gap_s = load.run(arguments.stall)
        finally:
            disk.goes_on.set()
        load.finish()
    return stalled / ordinary, gap_s


def _print_stalls(arguments: argparse.Namespace) -> None:
    print("| stalled directory | rate | longest_gap_s |\n|---|---|---|")
    for place in (0, DIRECTORIES[-1] - 1):
        found = []
        for _ in range(arguments.rounds):
            with tempfile.TemporaryDirectory() as name:
                found.append(beside_a_stall(Path(name), place, arguments))
        rate, gap_s = (statistics.median(values) for values in zip(*found))
        print(f"| {place + 1} of {DIRECTORIES[-1]} | {rate:.2f} | {gap_s:.2f} |")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sync-ms", type=float, default=5.0, help="what a sync takes at least")
    parser.add_argument("--mib-per-s", type=float, default=100.0, help="what each modelled disk writes")
    parser.add_argument("--mib", type=int, default=96, help="what the client writes each time")
    parser.add_argument("--storage", default=StorageClass.SORTED.short_name, help="ledgerStorageClass")
    parser.add_argument("--entry-bytes", type=int, default=16 * 1024, help="the payload of an entry")
    parser.add_argument("--half-mib", type=int, default=8, help="the size of each half of the write cache")
    parser.add_argument("--plain", action="store_true", help="without modelled disks")
    parser.add_argument("--stall", type=float, metavar="S", help="seconds for which one directory stalls")
    arguments = parser.parse_args(words)
    if arguments.stall:
        _print_stalls(arguments)
        return
    flushes: dict[int, list[tuple[float, float]]] = {count: [] for count in DIRECTORIES}
    rates: dict[int, list[float]] = {count: [] for count in DIRECTORIES}
    for _ in range(arguments.rounds):
        for count in DIRECTORIES:
            with tempfile.TemporaryDirectory() as name:
                flushes[count].append(flush_ms(Path(name, "flush"), count, arguments))
                Path(name, "write").mkdir()
                rates[count].append(write_mib_per_s(Path(name, "write"), count, arguments))
    print(
        "| ledger directories | flush_ms | per one | index_ms | write_mib_per_s | per one |\n|---|---|---|---|---|---|"
    )
    medians = {
        count: [*map(statistics.median, zip(*flushes[count])), statistics.median(rates[count])] for count in rates
    }
    flush_one, _, rate_one = medians[DIRECTORIES[0]]
    for count, (flush, index, rate) in medians.items():
        print(f"| {count} | {flush:.1f} | {flush / flush_one:.2f} | {index:.1f} | {rate:.0f} | {rate / rate_one:.2f} |")


if __name__ == "__main__":
    main()
