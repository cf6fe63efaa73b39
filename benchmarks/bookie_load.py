"""Adds and reads of one bookie over one raw socket: what the server alone can do, without our client in the way.

    python -m benchmarks.bookie_load [--entries N] [--entry-size B] [--window N] [--directory DIR] [--profile FILE]

Starts a bookie process (no metadata store), sends adds that were encoded before the clock starts, keeping `window` of
them unacknowledged, then reads them back with batch reads and with pipelined single reads. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import multiprocessing
import os
import signal
import socket
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from bkspark.entries import EntryBatch
from bkspark.wire import v2
from bkspark.wire.digest import DigestType, EntryDigest, master_key
from bookie_service.service import BookieService, ServiceOptions
from bookie_service.storage.files import LocalFiles

LEDGER = 7
_KEY = master_key(b"")
_REPLY_FRAME_BYTES = 28
_BLOCK = 256


def serve(directory: Path, pipe: Connection, profile: str | None) -> None:
    """Run a bookie until SIGTERM; send its port first."""

    async def run() -> None:
        stopping = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
        listener = socket.create_server(("127.0.0.1", 0))
        options = ServiceOptions([str(directory / "journal")], [str(directory / "ledgers")])
        service = BookieService(LocalFiles(), options)
        await service.start(listener)
        pipe.send(listener.getsockname()[1])
        await stopping.wait()
        await service.stop()

    if profile:
        with cProfile.Profile() as measured:
            asyncio.run(run())
        measured.dump_stats(profile)
    else:
        asyncio.run(run())


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def encoded_adds(entries: int, entry_size: int) -> list[memoryview]:
    """Return ADD frames in blocks, in order."""
    digest = EntryDigest(DigestType.CRC32C, b"")
    blocks = []
    payload = os.urandom(entry_size)
    for first in range(0, entries, _BLOCK):
        batch = EntryBatch.of([payload] * min(_BLOCK, entries - first), LEDGER, first)
        blocks.append(v2.encode_adds(batch, first - 1, first * entry_size, digest, _KEY).buffer)
    return blocks


def add_all(peer: socket.socket, blocks: list[memoryview], entries: int, window: int) -> float:
    """Send all adds, at most `window` (and a block) unacknowledged; return the seconds until the last reply."""
    began = time.perf_counter()
    sent = acknowledged = received = 0
    for block in blocks:
        while sent - acknowledged > window:
            received += len(peer.recv(1 << 18))
            acknowledged = received // _REPLY_FRAME_BYTES
        peer.sendall(block)
        sent += _BLOCK
    while received < entries * _REPLY_FRAME_BYTES:
        received += len(peer.recv(1 << 18))
    return time.perf_counter() - began


def batch_read_all(peer: socket.socket, entries: int, bytes_max: int) -> float:
    """Read all entries with batch reads, two in flight; return the seconds."""
    buffer = bytearray(6 << 20)
    view = memoryview(buffer)
    began = time.perf_counter()
    entry = 0
    while entry < entries:
        peer.sendall(v2.encode_batch_read(LEDGER, entry, entry, 0, bytes_max))
        _receive(peer, view[:36])
        size = int.from_bytes(buffer[:4], "big") - 32
        _receive(peer, view[:size])
        first = int.from_bytes(buffer[:4], "big") + 4
        assert size % first == 0, "entries of one size were written"
        entry += size // first
    return time.perf_counter() - began


def read_all(peer: socket.socket, entries: int, entry_bytes: int, run: int = 512) -> float:
    """Read all entries with single reads, `run` at a time; return the seconds."""
    buffer = memoryview(bytearray(run * (_REPLY_FRAME_BYTES + entry_bytes)))
    began = time.perf_counter()
    for first in range(0, entries - run, run):
        peer.sendall(v2.encode_reads(LEDGER, np.arange(first, first + run)))
        _receive(peer, buffer)
    return time.perf_counter() - began


def _receive(peer: socket.socket, view: memoryview) -> None:
    done = 0
    while done < len(view):
        done += peer.recv_into(view[done:])


def one_by_one(peer: socket.socket, first: int, count: int, entry_size: int) -> list[float]:
    """Return the latencies in ms of adds with one in flight."""
    digest = EntryDigest(DigestType.CRC32C, b"")
    latencies = []
    for entry in range(first, first + count):
        frame = v2.encode_adds(EntryBatch.of([bytes(entry_size)], LEDGER, entry), entry - 1, 0, digest, _KEY).buffer
        began = time.perf_counter()
        peer.sendall(frame)
        peer.recv(64)
        latencies.append(1000 * (time.perf_counter() - began))
    return sorted(latencies)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=200_000)
    parser.add_argument("--entry-size", type=int, default=1024)
    parser.add_argument("--window", type=int, default=4000)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--profile", help="write the bookie's profile here (its event loop thread)")
    arguments = parser.parse_args()
    blocks = encoded_adds(arguments.entries, arguments.entry_size)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        pipe, child_pipe = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=serve, args=(Path(directory), child_pipe, arguments.profile)
        )
        process.start()
        try:
            print(json.dumps(measure(arguments, blocks, pipe.recv(), process.pid or 0)))
        finally:
            process.terminate()
            process.join()


def measure(arguments: argparse.Namespace, blocks: list[memoryview], port: int, pid: int) -> dict[str, float]:
    """Return the figures, rounded."""
    entries = arguments.entries
    results: dict[str, float] = {}
    with socket.create_connection(("127.0.0.1", port)) as peer:
        latencies = one_by_one(peer, entries, 1000, arguments.entry_size)
        results["add_p50_ms"], results["add_p99_ms"] = latencies[500], latencies[990]
        for name, seconds in (
            ("add", lambda: add_all(peer, blocks, entries, arguments.window)),
            ("batch_read", lambda: batch_read_all(peer, entries, 1 << 20)),
            ("read", lambda: read_all(peer, entries, arguments.entry_size + 36)),
        ):
            before = cpu_seconds(pid)
            elapsed = seconds()
            results[f"{name}_per_s"] = entries / elapsed
            results[f"{name}_bookie_cpu_s_per_million"] = (cpu_seconds(pid) - before) / entries * 1e6
    return {name: round(value, 3) for name, value in results.items()}


if __name__ == "__main__":
    main()
