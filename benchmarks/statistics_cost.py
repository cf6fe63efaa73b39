"""What recording the times of requests costs a bookie: processor time with `enableStatistics`, and without.

    python -m benchmarks.statistics_cost [--rounds 20]

Two services run in this process, on the same disk, one with and one without. They get the same bursts of requests by
turns, so that both see the same machine. Each line gives the median processor time of the service's threads for one
burst, without and with, and the ratio of the two; and the ratio of the sums of all bursts. A service notes times first,
and counts them many at a time. A burst has as many batches as are counted together, so that the medians have their
share of it; the sums have all of it. Twenty rounds write 6 GB, which are deleted at the end.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bkspark.wire import v2
from bookie_service.metrics.requests import ROWS_MAX
from tests.bookie.serving import Peer, Serving, adds, service_options

LEDGER = 7
BATCHES = ROWS_MAX // 6
"""Requests or runs of requests of a burst: a service counts what it noted after as many."""
Burst = Callable[[Peer], None]


class Measured:
    """A service, a client, and the processor time of the service's threads."""

    def __init__(self, serving: Serving) -> None:
        before = set(threading.enumerate())
        self._serving = serving.__enter__()
        self._clocks = [
            time.pthread_getcpuclockid(thread.ident)
            for thread in set(threading.enumerate()) - before
            if thread.ident is not None
        ]
        self.peer = self._serving.connect()
        self.next_entry = 0

    def cost(self, burst: Callable[[Measured], None]) -> float:
        """Return the processor time of a burst, in seconds."""
        before = sum(map(time.clock_gettime, self._clocks))
        burst(self)
        return sum(map(time.clock_gettime, self._clocks)) - before

    def close(self) -> None:
        self.peer.close()
        self._serving.__exit__(None, None, None)


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


def compare(
    without: Serving, with_it: Serving, rounds: int, bursts: Sequence[Callable[[Measured], None]] = BURSTS
) -> None:
    """Print what each burst costs two services."""
    pair = Measured(without), Measured(with_it)
    try:
        for burst in bursts:
            costs: dict[Measured, list[float]] = {each: [] for each in pair}
            for number in range(rounds):
                for each in pair if number % 2 else reversed(pair):
                    costs[each].append(each.cost(burst))
            medians = [statistics.median(costs[each]) * 1000 for each in pair]
            ratios = statistics.median(b / a for a, b in zip(*costs.values()))
            total_without, total_with = map(sum, costs.values())
            print(
                f"{burst.__name__:22} {medians[0]:7.2f} ms without, {medians[1]:7.2f} ms with; ratio of "
                f"the medians {medians[1] / medians[0]:.4f}, median of the ratios {ratios:.4f}, "
                f"ratio of the sums {total_with / total_without:.4f}",
                flush=True,
            )
    finally:
        for each in pair:
            each.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        options = (replace(service_options(Path(name) / str(on)), statistics=on) for on in (False, True))
        compare(*map(Serving, options), rounds)


if __name__ == "__main__":
    main()
