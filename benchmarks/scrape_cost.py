"""What scrapes of /metrics do to adds: their p50 and p99 with a scraper, and without.

    python -m benchmarks.scrape_cost [--rounds 6] [--seconds 5] [--every 1] [--dir DIR]

One bookie, its HTTP server on, and a load of adds over one V2 connection: `full` keeps 256 entries of 1 KiB in flight
in bursts of 64, `lone` one entry of 100 bytes. Each round measures both loads with a scraper in a process of its
own, which asks every `--every` seconds (Prometheus asks every 15 or 60), and without it, in turns. A line for each load
gives p50 and p99 of both in milliseconds (of a burst, for `full`), and the ratio of the p99 of all rounds, and the
median of the rounds' ratios. The last line says how long a scrape took and how large it was.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from urllib.request import urlopen

import numpy as np

from benchmarks.servers import Servers
from bkspark.cli.ports import free_ports
from bkspark.entries import EntryBatch
from bkspark.wire import v2
from tests.bookie.serving import DIGEST, KEY, Peer

_ADD_REPLY = np.dtype([("length", ">i4"), ("word", ">i4"), ("status", ">i4"), ("ledger", ">i8"), ("entry", ">i8")])


@dataclass(frozen=True, slots=True)
class Load:
    """Adds in bursts of `burst` entries of `size` bytes, `depth` bursts in flight."""

    name: str
    burst: int
    depth: int
    size: int


LOADS = (Load("full", 64, 4, 1024), Load("lone", 1, 1, 100))


class Adder:
    """Adds to one ledger and takes the time of each burst."""

    def __init__(self, port: int, ledger_id: int, load: Load) -> None:
        self._peer = Peer(port)
        self._ledger_id = ledger_id
        self._load = load
        self._next_entry = 0

    def latencies_ms(self, seconds: float) -> list[float]:
        """Add for some seconds; return how long each burst took."""
        found, sent = [], deque([self._send() for _ in range(self._load.depth)])
        end = time.perf_counter() + seconds
        while sent:
            began = sent.popleft()
            self._receive()
            now = time.perf_counter()
            found.append((now - began) * 1000)
            if now < end:
                sent.append(self._send())
        return found

    def _send(self) -> float:
        payloads = [b"x" * self._load.size] * self._load.burst
        batch = EntryBatch.of(payloads, self._ledger_id, self._next_entry)
        self._next_entry += self._load.burst
        frames = v2.encode_adds(batch, -1, 0, DIGEST, KEY, 0).buffer
        began = time.perf_counter()
        self._peer.send(frames)
        return began

    def _receive(self) -> None:
        data = self._peer.read_exactly(_ADD_REPLY.itemsize * self._load.burst)
        refused = np.frombuffer(data, _ADD_REPLY)["status"].any()
        assert not refused, "the bookie refused an add"

    def close(self) -> None:
        self._peer.close()


def _scrape(port: int, every_s: float, end: Event, found: Queue[tuple[float, int]]) -> None:
    """Ask for the metrics until `end`; run in a process of its own."""
    while True:
        began = time.perf_counter()
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as reply:
            size = len(reply.read())
        found.put((time.perf_counter() - began, size))
        if end.wait(every_s):
            return


@contextmanager
def scraper(port: int, every_s: float, scrapes: list[tuple[float, int]]) -> Iterator[None]:
    """Scrape a bookie every `every_s` seconds; add (seconds, bytes) of each scrape to `scrapes` at the end."""
    spawn = multiprocessing.get_context("spawn")
    end, found = spawn.Event(), spawn.Queue()
    process = spawn.Process(target=_scrape, args=(port, every_s, end, found), daemon=True)
    process.start()
    scrapes.append(found.get(timeout=60))  # the process runs: its start is not measured
    try:
        yield
    finally:
        end.set()
        process.join()
        while not found.empty():
            scrapes.append(found.get())


def measure(
    adder: Adder, port: int, rounds: int, seconds: float, every_s: float, scrapes: list[tuple[float, int]]
) -> tuple[list[list[float]], list[list[float]]]:
    """Return the latencies of each round without and with a scraper."""
    without: list[list[float]] = []
    with_it: list[list[float]] = []
    adder.latencies_ms(min(seconds, 1.0))  # the first adds make files
    for number in range(rounds):
        for is_scraped in (False, True) if number % 2 else (True, False):
            if is_scraped:
                with scraper(port, every_s, scrapes):
                    with_it.append(adder.latencies_ms(seconds))
            else:
                without.append(adder.latencies_ms(seconds))
    return without, with_it


def line(load: Load, without: list[list[float]], with_it: list[list[float]]) -> str:
    """Return what a load showed."""
    (p50, p99), (p50_with, p99_with) = (np.percentile(np.concatenate(each), (50, 99)) for each in (without, with_it))
    ratios = [np.percentile(b, 99) / np.percentile(a, 99) for a, b in zip(without, with_it)]
    return (
        f"{load.name}: p50 {p50:.2f} ms, p99 {p99:.2f} ms without; p50 {p50_with:.2f} ms, p99 {p99_with:.2f} ms with "
        f"scrapes; ratio of p99 {p99_with / p99:.3f}, median of the rounds {statistics.median(ratios):.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scrape_cost", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load in a round (default 5)")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two scrapes (default 1)")
    parser.add_argument("--dir", type=Path, default=None, help="on which disk; default: the temporary folder")
    options = parser.parse_args()
    (port,) = free_ports(1)
    scrapes: list[tuple[float, int]] = []
    with Servers(options.dir) as servers, servers.bookie(httpServerEnabled="true", httpServerPort=port) as bookie:
        for ledger_id, load in enumerate(LOADS, start=1):
            adder = Adder(bookie.port, ledger_id, load)
            found = measure(adder, port, options.rounds, options.seconds, options.every, scrapes)
            adder.close()
            print(line(load, *found), flush=True)
    took, sizes = zip(*scrapes)
    print(
        f"{len(scrapes)} scrapes: median {statistics.median(took) * 1000:.1f} ms, longest {max(took) * 1000:.1f} ms, "
        f"{max(sizes)} bytes"
    )


if __name__ == "__main__":
    main()
