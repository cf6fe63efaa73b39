"""What the machine itself can do: the disk's write + fdatasync at journal group sizes, and the loopback.

    python benchmarks/limits.py [--dir DIR] [--seconds S]

Prints one JSON object: per group size the MiB/s and the p50 and p99 in ms of one write + fdatasync into a preallocated
file, with one writer and with three at once (as three bookies on one disk), and MiB/s over loopback TCP by block size.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path

GROUP_BYTES = (4 << 10, 64 << 10, 256 << 10, 1 << 20)
BLOCK_BYTES = (64 << 10, 1 << 20)
FILE_BYTES = 256 << 20


def measure_disk(directory: Path, group_bytes: int, writers: int, seconds: float) -> dict[str, float]:
    """Write groups in a loop from `writers` threads, each to its own preallocated file."""
    latencies: list[list[float]] = [[] for _ in range(writers)]

    def write(number: int) -> None:
        descriptor = os.open(directory / f"limit{number}", os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(descriptor, 0, FILE_BYTES)
        os.fsync(descriptor)
        group, offset = os.urandom(group_bytes), 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            began = time.perf_counter()
            os.pwrite(descriptor, group, offset)
            os.fdatasync(descriptor)
            latencies[number].append(time.perf_counter() - began)
            offset = (offset + group_bytes) % (FILE_BYTES - group_bytes)
        os.close(descriptor)

    began = time.perf_counter()
    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - began
    every = sorted(latency for each in latencies for latency in each)
    return {
        "mib_per_s": round(len(every) * group_bytes / elapsed / (1 << 20), 1),
        "p50_ms": round(1e3 * statistics.median(every), 3),
        "p99_ms": round(1e3 * every[int(0.99 * (len(every) - 1))], 3),
    }


def measure_loopback(block_bytes: int, seconds: float) -> float:
    """Return MiB/s of one TCP connection on this machine, sender and receiver on threads of their own."""
    received = 0

    def receive() -> None:
        nonlocal received
        connection, _ = server.accept()
        buffer = bytearray(1 << 20)
        with connection:
            while count := connection.recv_into(buffer):
                received += count

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=receive)
        thread.start()
        block, began = bytes(block_bytes), time.perf_counter()
        with socket.create_connection(server.getsockname()) as sender:
            while time.perf_counter() - began < seconds:
                sender.sendall(block)
        thread.join()
    return round(received / (time.perf_counter() - began) / (1 << 20), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dir", type=Path, default=None, help="where to write; default: the temporary folder")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each figure takes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as room:
        disk = {
            f"{group >> 10}KiB x{writers}": measure_disk(Path(room), group, writers, arguments.seconds)
            for group in GROUP_BYTES
            for writers in (1, 3)
        }
    loopback = {f"{block >> 10}KiB": measure_loopback(block, arguments.seconds) for block in BLOCK_BYTES}
    print(json.dumps({"fdatasync": disk, "loopback_mib_per_s": loopback}))


if __name__ == "__main__":
    main()
