"""What recording the times of requests costs a bookie: processor time with `enableStatistics`, and without.

    python -m benchmarks.statistics_cost [--rounds 60] [--dir DIR]

One service runs in this process. Recording is switched on and off by turns, before each burst of requests, so that both
see the same files and the same machine. Each line gives the median processor time of the service's threads for one
burst, without and with, the ratio of the two, the median of the ratios of neighbours, and the ratio of the sums of all
bursts. A service notes times first, and counts them many at a time; here it counts them at the end of each burst, so
that each burst pays for its share. Two services side by side cannot show one percent: two without recording differed by
up to seven. The client is a process of its own: as a thread of this one it shared the interpreter lock with the
service, and a few microseconds more in the service moved the turns of both and seemed to cost ten percent.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from bkspark.wire import v2
from tests.bookie.serving import Peer, Serving, adds, service_options

LEDGER = 7
BATCHES = 256
"""Requests or runs of requests of a burst. A service counts what it noted after 1,024 of them, so to count after each
burst costs a little more than in service."""


class Client:
    """A client of a service."""

    def __init__(self, port: int) -> None:
        self.peer = Peer(port)
        self.next_entry = 0
        """The id of its next add. Bursts increase it."""


Burst = Callable[[Client], None]
"""Sends requests and takes their replies. A function of a module, so that another process can call it."""


def _serve_bursts(bursts: Connection, port: int) -> None:
    """Do the bursts that arrive, and report each; until there is no more."""
    client = Client(port)
    while (burst := bursts.recv()) is not None:
        burst(client)
        bursts.send(None)
    client.peer.close()


class Measured:
    """A service, a client in another process, and the processor time of the service's threads."""

    def __init__(self, serving: Serving) -> None:
        before = set(threading.enumerate())
        self.serving = serving.__enter__()
        self._clocks = [
            time.pthread_getcpuclockid(thread.ident)
            for thread in set(threading.enumerate()) - before
            if thread.ident is not None
        ]
        processes = multiprocessing.get_context("spawn")
        self._bursts, bursts = processes.Pipe()
        self._client = processes.Process(target=_serve_bursts, args=(bursts, self.serving.port), daemon=True)
        self._client.start()
        bursts.close()

    def cost(self, burst: Burst) -> float:
        """Return the processor time of a burst, with the counting of what it noted, in seconds.

        Raises:
            EOFError: the client failed.
        """
        before = sum(map(time.clock_gettime, self._clocks))
        self._bursts.send(burst)
        self._bursts.recv()
        self.serving.call(self.serving.service.times.fold)
        return sum(map(time.clock_gettime, self._clocks)) - before

    def record(self, is_on: bool) -> None:
        """Switch the recording of times on or off."""
        times = self.serving.service.times
        times.is_on, times.clock_ns = is_on, time.monotonic_ns if is_on else int

    def close(self) -> None:
        if self._client.is_alive():
            self._bursts.send(None)
        self._client.join()
        self.serving.__exit__(None, None, None)


def add_at_full_load(client: Client) -> None:
    """Add 512 entries of 1 KiB at once, 48 times: as a client that writes as fast as the bookie takes it."""
    for _ in range(48):
        client.peer.send(adds(LEDGER, client.next_entry, [b"x" * 1024] * 512))
        client.peer.replies(512)
        client.next_entry += 512


def add_many(client: Client) -> None:
    """Add 64 entries of 1 KiB at once, again and again: as a client that keeps some adds in flight."""
    for _ in range(BATCHES):
        client.peer.send(adds(LEDGER, client.next_entry, [b"x" * 1024] * 64))
        client.peer.replies(64)
        client.next_entry += 64


def add_one_by_one(client: Client) -> None:
    """Add entries of 100 bytes, one in flight."""
    for _ in range(BATCHES):
        client.peer.send(adds(LEDGER, client.next_entry, [b"x" * 100]))
        client.peer.reply()
        client.next_entry += 1


def read_many(client: Client) -> None:
    """Read 64 entries at once, again and again."""
    request = v2.encode_reads(LEDGER, np.arange(64), 0, None)
    for _ in range(BATCHES):
        client.peer.send(request)
        client.peer.replies(64)


def read_one_by_one(client: Client) -> None:
    """Read an entry, one in flight."""
    request = v2.encode_reads(LEDGER, np.array([5]), 0, None)
    for _ in range(BATCHES):
        client.peer.send(request)
        client.peer.reply()


BURSTS = (add_at_full_load, add_many, add_one_by_one, read_many, read_one_by_one)
Cost = Callable[[Burst], float]
"""Returns the processor time of a burst, in seconds."""


def compare(without: Cost, with_it: Cost, rounds: int, bursts: Sequence[Burst] = BURSTS) -> None:
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


def compare_recording(measured: Measured, rounds: int, bursts: Sequence[Burst] = BURSTS) -> None:
    """Print what each burst costs a service that records no times, and the same service while it does."""

    def cost(is_on: bool, burst: Burst) -> float:
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
