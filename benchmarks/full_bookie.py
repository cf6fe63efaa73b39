"""A bookie with a million ledgers: its start, its memory, and its answers during garbage collection.

    python -m benchmarks.full_bookie [--ledgers N] [--storage CLASS] [--interval-s S] [--dir DIR]

The storage's own code makes the ledgers, one entry each, in the directory of a bookie that was started and stopped
once. All else is real, too: the bookie's process, ZooKeeper with the ledgers' metadata, sockets. Steps:

    start       three starts after clean stops, and one after a kill: seconds until it is registered and serves
    collection  a hundredth of the ledgers has no metadata: two scheduled passes prove and drop them. Meanwhile a client
                reads one entry every millisecond; how long each read takes is compared with the same before the
                first pass (`quiet`). `loop`: the longest turn of the bookie's event loop until then
    memory      resident set after the start, after collection, and after entries of 16 KiB to many ledgers, which
                fill the caches

The targets are those of the issue on scale: start <= 5 s, no stall above 5 ms, memory <= caches + 250 MiB. Takes about
10 minutes, 14 GB of disk and 3 GB of memory for a million; run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks import bookie_load
from benchmarks.collection import build
from benchmarks.servers import MeasuredBookie, Servers
from benchmarks.storage_scale import CACHES, CACHES_MIB
from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState
from bkspark.metadata import encoding, paths
from bkspark.metadata.tree import Create, Tree
from bkspark.metadata.uri import LedgerManager, MetadataUri
from bkspark.metadata.zookeeper import open_tree
from bkspark.wire import v2
from bkspark.wire.digest import DigestType
from bkspark.wire.status import Status
from bookie_service.network.event_loop import SLOW_TURN_VARIABLE
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.storage_class import StorageClass

STARTS = 3
DELETED_SHARE = 0.01
_DROPPED_TIMEOUT_S = 600.0
_PROBE_PAUSE_S = 0.001
_NODES_PER_TRANSACTION = 1000
_TRANSACTIONS_AT_ONCE = 8
_ZOOKEEPER_MIB = 2048
_FILLING_ENTRY_BYTES = 16 << 10
_FILLING_MIB = 1024
_SLOW_TURN_MS = 1e6
"""None is logged while it runs; the longest is logged at the end."""


class Probe:
    """A client that reads the first entry of a ledger every millisecond, and notes how long each read takes."""

    def __init__(self, port: int, ledger_id: int) -> None:
        self._peer = bookie_load.connect(port)
        self._request = _read_request(ledger_id)
        self.took_ms: list[float] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        is_over = threading.Event()
        thread = threading.Thread(target=self._run, args=(is_over,))
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            self._peer.close()

    def _run(self, is_over: threading.Event) -> None:
        while not is_over.wait(_PROBE_PAUSE_S):
            began = time.perf_counter()
            _read(self._peer, self._request)
            self.took_ms.append(1000 * (time.perf_counter() - began))

    def figures(self, prefix: str) -> dict[str, object]:
        took_ms = sorted(self.took_ms)
        return {
            f"{prefix}_reads": len(took_ms),
            f"{prefix}_median_ms": round(statistics.median(took_ms), 3),
            f"{prefix}_p999_ms": round(took_ms[int(0.999 * len(took_ms))], 3),
            f"{prefix}_longest_ms": [round(each, 3) for each in took_ms[-5:]],
        }


def _read_request(ledger_id: int) -> bytes:
    return v2.encode_reads(ledger_id, np.zeros(1, np.int64))


def _read(peer: socket.socket, request: bytes) -> int:
    """Send one read; return the status of its answer."""
    peer.sendall(request)
    size = int.from_bytes(_received(peer, 4), "big")
    return int.from_bytes(_received(peer, size)[4:8], "big", signed=True)


def _received(peer: socket.socket, size: int) -> bytes:
    data = peer.recv(size, socket.MSG_WAITALL)
    if len(data) < size:
        raise ConnectionError("the bookie closed the connection")
    return data


async def _register(uri: str, bookie_id: str, ledgers: int) -> None:
    """Store the metadata of ledgers 0 to `ledgers` - 1, closed, on that bookie alone."""
    metadata = LedgerMetadata(
        1,
        1,
        1,
        (Fragment(0, (bookie_id,)),),
        state=LedgerState.CLOSED,
        last_entry=0,
        length=100,
        digest=DigestType.CRC32C,
        ctime=1,
    )
    data = encoding.encode(metadata)
    tree = await open_tree(MetadataUri.parse(uri))
    try:
        names = [f"/ledgers/{paths.ledger_path(each, LedgerManager.HIERARCHICAL)}" for each in range(ledgers)]
        for folder in sorted({name.rpartition("/")[0] for name in names}):
            await tree.create(folder, make_parents=True)
        at_once = asyncio.Semaphore(_TRANSACTIONS_AT_ONCE)
        await asyncio.gather(
            *(
                _create(tree, names[first : first + _NODES_PER_TRANSACTION], data, at_once)
                for first in range(0, ledgers, _NODES_PER_TRANSACTION)
            )
        )
    finally:
        await tree.close()


async def _create(tree: Tree, names: list[str], data: bytes, at_once: asyncio.Semaphore) -> None:
    async with at_once:
        await tree.transaction([Create(name, data) for name in names])


def _build(bookie: MeasuredBookie, storage: StorageClass, ledgers: int) -> None:
    """Start and stop the bookie once, so that its directories are its own, and make its ledgers."""
    bookie.start()
    bookie.stop()
    build(LocalFiles(), str(bookie.directory / "ledgers" / "current"), StoreOptions(storage_class=storage), ledgers)


def _starts(bookie: MeasuredBookie) -> dict[str, object]:
    seconds, processor_s = [], []
    for _ in range(STARTS):
        seconds.append(round(bookie.start(), 2))
        processor_s.append(round(bookie.processor_s(), 2))
        bookie.stop()
    bookie.start()
    bookie.kill()
    after_kill_s = bookie.start()
    bookie.stop()
    return {"start_s": seconds, "start_processor_s": processor_s, "start_after_kill_s": round(after_kill_s, 2)}


def _collection(bookie: MeasuredBookie, ledgers: int, interval_s: float) -> dict[str, object]:
    """Watch the first passes of a bookie that has just started."""
    began = time.monotonic()
    quiet, probe = Probe(bookie.port, 0), Probe(bookie.port, 0)
    with quiet.running():
        time.sleep(interval_s / 2)
    request = _read_request(ledgers - 1)
    with probe.running(), bookie_load.connect(bookie.port) as peer:
        while _read(peer, request) != Status.ENOLEDGER:
            if time.monotonic() - began > _DROPPED_TIMEOUT_S:
                raise TimeoutError(f"ledger {ledgers - 1} was not dropped within {_DROPPED_TIMEOUT_S:g} s")
            time.sleep(0.2)
        dropped_s = time.monotonic() - began
        # The pass that dropped the ledgers looks at the entry logs now.
        time.sleep(interval_s / 3)
    return {"dropped_after_s": round(dropped_s, 1), **probe.figures("read"), **quiet.figures("quiet_read")}


def _fill(bookie: MeasuredBookie, ledgers: int) -> None:
    """Write entries to as many ledgers as there are, or until the caches were filled several times."""
    payload = [os.urandom(_FILLING_ENTRY_BYTES)]
    with bookie_load.connect(bookie.port) as peer:
        adder = bookie_load.Adder(peer, 1000)
        for ledger_id in range(min(ledgers, _FILLING_MIB * (1 << 20) // _FILLING_ENTRY_BYTES)):
            adder.send(bookie_load.encode_block(ledger_id, 1, payload), 1)
        adder.finish()


def _loop_figures(log: Path) -> dict[str, object]:
    """Return the longest turn since the bookie serves, from the line that it logs when it stops."""
    pattern = r"longest turn of the event loop took ([\d.]+) ms, and ([\d.]+) ms of processor"
    found = re.findall(pattern, log.read_text())
    wall_ms, processor_ms = map(float, found[-1])
    return {"loop_longest_turn_ms": wall_ms, "loop_longest_turn_processor_ms": processor_ms}


def measured(ledgers: int, storage: StorageClass, interval_s: float, parent: Path | None) -> dict[str, object]:
    """Return the figures of one bookie, which collects garbage every `interval_s`."""
    kept = round(ledgers * (1 - DELETED_SHARE))
    with Servers(parent, zookeeper_mib=_ZOOKEEPER_MIB) as servers:
        bookie = servers.new_bookie(
            ledgerStorageClass=storage.short_name, gcWaitTime=round(interval_s * 1000), **CACHES
        )
        try:
            began = time.monotonic()
            _build(bookie, storage, ledgers)
            asyncio.run(_register(servers.uri, f"127.0.0.1:{bookie.port}", kept))
            figures: dict[str, object] = {"ledgers": ledgers, "storage": storage.short_name}
            figures |= {"built_s": round(time.monotonic() - began, 1), **_starts(bookie)}
            os.environ[SLOW_TURN_VARIABLE] = str(_SLOW_TURN_MS)
            bookie.start()
            figures |= {"caches_mib": CACHES_MIB, "started_mib": round(bookie.resident_mib(), 1)}
            figures |= _collection(bookie, ledgers, interval_s)
            figures["collected_mib"] = round(bookie.resident_mib(), 1)
            bookie.stop()
            figures |= _loop_figures(bookie.directory / "bookie.log")
            # Adds to ledgers that are not in memory make long turns of their own.
            bookie.start()
            _fill(bookie, kept)
            return figures | {"filled_mib": round(bookie.resident_mib(), 1)}
        finally:
            os.environ.pop(SLOW_TURN_VARIABLE, None)
            bookie.remove()


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ledgers", type=int, default=1_000_000)
    parser.add_argument("--storage", type=StorageClass.parse, default=StorageClass.SORTED, help="ledgerStorageClass")
    parser.add_argument("--interval-s", type=float, default=30.0, help="between passes of garbage collection")
    parser.add_argument("--dir", type=Path, default=None, help="on which disk; default: the temporary folder")
    arguments = parser.parse_args(words)
    print(json.dumps(measured(arguments.ledgers, arguments.storage, arguments.interval_s, arguments.dir), indent=1))


if __name__ == "__main__":
    main()
