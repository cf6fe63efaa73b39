"""Ways to write a file durably, without a bookie: through the page cache or past it, into new blocks or written ones.

    python -m benchmarks.write_paths [--mib N] [--kib N ...] [--rounds N] [--dir DIR]

Each way writes `--mib` in groups of `--kib`, each followed by fdatasync, with one writer and with three at once, to
files of their own. Entries lie anywhere in the write cache, so a write past the page cache (O_DIRECT) copies them to an
aligned buffer first; that copy is included. `new`: the blocks are preallocated, never written. `written`: they were
written once, as those of a journal file that is used again. Prints a table with medians: MiB/s, processor seconds a
GiB, and the median time of a group.
"""

from __future__ import annotations

import argparse
import mmap
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

_MIB = 1 << 20
WRITERS = (1, 3)
WAYS = tuple((cached, new) for cached in (True, False) for new in (True, False))


class Writer:
    """Writes one file in one way."""

    def __init__(self, path: Path, size: int, group_bytes: int, *, cached: bool, new: bool) -> None:
        self._path, self._size = path, size
        self._source = os.urandom(group_bytes)
        self._cached = cached
        self.group_s: list[float] = []
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            if not new:
                for offset in range(0, size, group_bytes):
                    os.pwrite(file.fileno(), self._source, offset)
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, size, os.POSIX_FADV_DONTNEED)

    def run(self) -> None:
        flags = os.O_WRONLY | (0 if self._cached else os.O_DIRECT)
        aligned = mmap.mmap(-1, len(self._source))
        descriptor = os.open(self._path, flags)
        try:
            for offset in range(0, self._size, len(self._source)):
                began = time.perf_counter()
                if self._cached:
                    os.pwrite(descriptor, self._source, offset)
                else:
                    aligned[:] = self._source
                    os.pwrite(descriptor, aligned, offset)
                os.fdatasync(descriptor)
                self.group_s.append(time.perf_counter() - began)
        finally:
            os.close(descriptor)
            aligned.close()
            self._path.unlink()


def measured(directory: Path, writers: int, size: int, group_bytes: int, *, cached: bool, new: bool) -> list[float]:
    """Return MiB/s, processor seconds a GiB, and the median milliseconds of a group."""
    found = [Writer(directory / f"{each}", size, group_bytes, cached=cached, new=new) for each in range(writers)]
    threads = [threading.Thread(target=each.run) for each in found]
    began, used = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed, used = time.perf_counter() - began, time.process_time() - used
    written = writers * size
    group_ms = 1000 * statistics.median(each for writer in found for each in writer.group_s)
    return [written / _MIB / elapsed, used / written * (1 << 30), group_ms]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, help="of each writer")
    parser.add_argument("--kib", type=int, nargs="+", default=[512, 2048], help="of a group")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=None)
    options = parser.parse_args(words)
    cases = [(kib, writers, cached, new) for kib in options.kib for writers in WRITERS for cached, new in WAYS]
    found: dict[tuple[int, int, bool, bool], list[list[float]]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        for _ in range(options.rounds):
            for kib, writers, cached, new in cases:
                figures = measured(Path(name), writers, options.mib * _MIB, kib << 10, cached=cached, new=new)
                found[kib, writers, cached, new].append(figures)
    print("| KiB a group | writers | page cache | blocks | MiB/s | processor s/GiB | group, ms |")
    print("|---|---|---|---|---|---|---|")
    for (kib, writers, cached, new), rounds in found.items():
        rate, processor, group_ms = (statistics.median(values) for values in zip(*rounds))
        way = f"{'yes' if cached else 'no'} | {'new' if new else 'written'}"
        print(f"| {kib} | {writers} | {way} | {rate:.0f} | {processor:.2f} | {group_ms:.2f} |")


if __name__ == "__main__":
    main()
