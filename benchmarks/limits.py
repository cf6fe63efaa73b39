"""What the machine itself can do: the disk's write + fdatasync at journal group sizes, and the loopback.

    python benchmarks/limits.py [--dir DIR] [--seconds S]

Prints one JSON object: per group size the MiB/s and the p50 and p99 in ms of one write + fdatasync into a file whose
blocks are there, with one writer and with three at once (as three bookies on one disk), and MiB/s over loopback TCP by
block size.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import tempfile
import threading
import time
from pathlib import Path

GROUP_BYTES = (4 << 10, 64 << 10, 256 << 10, 1 << 20)
BLOCK_BYTES = (64 << 10, 1 << 20)
FILE_BYTES_MIN, FILE_GROUPS_MIN = 16 << 20, 64


class SyncedFile:
    """A file that is written around in groups, each followed by fdatasync, as a journal is.

    It was written once before: the first write of a preallocated block also changes the file system's own records,
    which can make its fdatasync several times slower, and would make the limit look lower than it is.
    """

    def __init__(self, path: Path, group_bytes: int) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        self._file_bytes = max(FILE_BYTES_MIN, FILE_GROUPS_MIN * group_bytes)
        for offset in range(0, self._file_bytes, 1 << 20):
            os.pwrite(self._descriptor, bytes(1 << 20), offset)
        os.fsync(self._descriptor)
        self._group = os.urandom(group_bytes)
        self._offset = 0
        self.latencies_s: list[float] = []
        """The time of every group so far."""

    def write(self) -> None:
        """Write one group and sync it."""
        began = time.perf_counter()
        os.pwrite(self._descriptor, self._group, self._offset)
        os.fdatasync(self._descriptor)
        self.latencies_s.append(time.perf_counter() - began)
        self._offset = (self._offset + len(self._group)) % (self._file_bytes - len(self._group))

    def write_for(self, seconds: float) -> None:
        """Write groups until the time is over, and one at least: a disk that stalls is slow, not without a speed."""
        end = time.perf_counter() + seconds
        self.write()
        while time.perf_counter() < end:
            self.write()

    def close(self) -> None:
        os.close(self._descriptor)


def percentile_ms(latencies_s: list[float], share: float) -> float:
    """Return the latency in ms that `share` of all do not exceed."""
    return 1000 * sorted(latencies_s)[int(share * (len(latencies_s) - 1))]


def measure_disk(directory: Path, group_bytes: int, writers: int, seconds: float) -> dict[str, float]:
    """Write groups in a loop from `writers` threads, each to its own preallocated file.

    Figures are divided by what this returns, so it is not rounded: a busy disk would have a speed of 0.0.
    """
    files = [SyncedFile(directory / f"limit{number}", group_bytes) for number in range(writers)]
    threads = [threading.Thread(target=file.write_for, args=(seconds,)) for file in files]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - began
    for number, file in enumerate(files):
        file.close()
        (directory / f"limit{number}").unlink()
    every = [latency for file in files for latency in file.latencies_s]
    return {
        "mib_per_s": len(every) * group_bytes / elapsed / (1 << 20),
        "p50_ms": percentile_ms(every, 0.5),
        "p99_ms": percentile_ms(every, 0.99),
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
    return received / (time.perf_counter() - began) / (1 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dir", type=Path, default=None, help="where to write; default: the temporary folder")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each figure takes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as room:
        disk = {
            f"{group >> 10}KiB x{writers}": _rounded(measure_disk(Path(room), group, writers, arguments.seconds))
            for group in GROUP_BYTES
            for writers in (1, 3)
        }
    loopback = {f"{block >> 10}KiB": measure_loopback(block, arguments.seconds) for block in BLOCK_BYTES}
    print(json.dumps({"fdatasync": disk, "loopback_mib_per_s": _rounded(loopback)}))


def _rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(figure, 3) for name, figure in figures.items()}


if __name__ == "__main__":
    main()
