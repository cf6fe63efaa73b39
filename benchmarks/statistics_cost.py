"""What recording the times of requests costs a bookie: processor time with `enableStatistics`, and without.

    python -m benchmarks.statistics_cost [--rounds 60] [--dir DIR]

One service runs in this process. Recording is switched on and off by turns, before each burst of requests, so that both
see the same files and the same machine. Each line gives the median processor time of the service's threads for one
burst, without and with, the ratio of the two, the median of the ratios of neighbours, and the ratio of the sums of all
bursts. A service notes times first, and counts them many at a time; here it counts them at the end of each burst, so
that each burst pays for its share. Two services side by side cannot show one percent: two without recording differed by
up to seven.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from bkspark.wire import v2
from tests.bookie.serving import Serving, adds, service_options

LEDGER = 7
BATCHES = 256
"""Requests or runs of requests of a burst. A service counts what it noted after 1,024 of them, so to count after each
burst costs a little more than in service."""


class Measured:
    """A service, a client, and the processor time of the service's threads."""

    def __init__(self, serving: Serving) -> None:
        before = set(threading.enumerate())
        self.serving = serving.__enter__()
        self._clocks = [
            time.pthread_getcpuclockid(thread.ident)
            for thread in set(threading.enumerate()) - before
            if thread.ident is not None
        ]
        self.peer = self.serving.connect()
        self.next_entry = 0

    def cost(self, burst: Callable[[Measured], None]) -> float:
        """Return the processor time of a burst, with the counting of what it noted, in seconds."""
        before = sum(map(time.clock_gettime, self._clocks))
        burst(self)
        self.serving.call(self.serving.service.times.fold)
        return sum(map(time.clock_gettime, self._clocks)) - before

    def record(self, is_on: bool) -> None:
        """Switch the recording of times on or off."""
        times = self.serving.service.times
        times.is_on, times.clock_ns = is_on, time.monotonic_ns if is_on else int

    def close(self) -> None:
        self.peer.close()
        self.serving.__exit__(None, None, None)


def add_many(measured: Measured) -> None:
    """Add 64 entries of 1 KiB at once, again and again: as a client that keeps many adds in flight."""
    for _ in range(BATCHES):
        measured.peer.send(adds(LEDGER, measured.next_entry, [b"x" * 1024] * 64))
        measured.peer.replies(64)
        measured.next_entry += 64


def add_one_by_one(measured: Measured) -> None:
    """Add entries of 100 bytes, one in flight."""
    for _ in range(BATCHES):
        measured.peer.send(adds(LEDGER, measured.next_entry, [b"x" * 100]))
        measured.peer.reply()
        measured.next_entry += 1


def read_many(measured: Measured) -> None:
    """Read 64 entries at once, again and again."""
    request = v2.encode_reads(LEDGER, np.arange(64), 0, None)
    for _ in range(BATCHES):
        measured.peer.send(request)
        measured.peer.replies(64)


def read_one_by_one(measured: Measured) -> None:
    """Read an entry, one in flight."""
    request = v2.encode_reads(LEDGER, np.array([5]), 0, None)
    for _ in range(BATCHES):
        measured.peer.send(request)
        measured.peer.reply()


BURSTS = (add_many, add_one_by_one, read_many, read_one_by_one)
Cost = Callable[[Callable[[Measured], None]], float]
"""Returns the processor time of a burst, in seconds."""


def compare(without: Cost, with_it: Cost, rounds: int, bursts: Sequence[Callable[[Measured], None]] = BURSTS) -> None:
    """Print what each burst costs without something and with it."""
    for burst in bursts:
        costs: tuple[list[float], list[float]] = [], []
        for number in range(rounds):
            for which in (0, 1) if number % 2 else (1, 0):
                costs[which].append((without, with_it)[which](burst))
        medians = [statistics.median(each) * 1000 for each in costs]
        ratios = statistics.median(b / a for a, b in zip(*costs))
        total_without, total_with = map(sum, costs)
        print(
            f"{burst.__name__:22} {medians[0]:7.2f} ms without, {medians[1]:7.2f} ms with; ratio of "
            f"the medians {medians[1] / medians[0]:.4f}, median of the ratios {ratios:.4f}, "
            f"ratio of the sums {total_with / total_without:.4f}",
            flush=True,
        )


def compare_recording(measured: Measured, rounds: int, bursts: Sequence[Callable[[Measured], None]] = BURSTS) -> None:
    """Print what each burst costs a service that records no times, and the same service while it does."""

    def cost(is_on: bool, burst: Callable[[Measured], None]) -> float:
        measured.record(is_on)
        return measured.cost(burst)

    compare(partial(cost, False), partial(cost, True), rounds, bursts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--dir", type=Path, default=None, help="on which disk; default: the temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        measured = Measured(Serving(service_options(Path(name))))
        try:
            compare_recording(measured, options.rounds)
        finally:
            measured.close()


if __name__ == "__main__":
    main()
