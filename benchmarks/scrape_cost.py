"""What scrapes of /metrics do to adds: their p50 and p99 with a scraper, without, and while it asks another process.

    python -m benchmarks.scrape_cost [--rounds 6] [--seconds 5] [--every 1] [--dir DIR]

One bookie, its HTTP server on, and a load of adds over one V2 connection: `full` keeps 256 entries of 1 KiB in flight
in bursts of 64, `lone` one entry of 100 bytes. Each round measures, in turns: without a scraper; with a scraper in a
process of its own, which asks the bookie every `--every` seconds (Prometheus asks every 15 or 60); and with the same
scraper, which asks a server of another process for as many bytes. The last shows what the scraper itself costs a small
machine. A line for each load gives p50 and p99 of the three in milliseconds (of a burst, for `full`), and for both
scrapers the ratio of the p99 of all rounds, and the median of the rounds' ratios. The last line says how long a scrape
took and how large it was.
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
from http.server import BaseHTTPRequestHandler, HTTPServer
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


def _serve(body: bytes, port: Queue[int]) -> None:
    """Answer every request with these bytes; run in a process of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            """Requests are not logged."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        port.put(server.server_address[1])
        server.serve_forever()


@contextmanager
def another_server(size: int) -> Iterator[int]:
    """Run a server that answers with `size` bytes; yield its port."""
    spawn = multiprocessing.get_context("spawn")
    port = spawn.Queue()
    process = spawn.Process(target=_serve, args=(bytes(size), port), daemon=True)
    process.start()
    try:
        yield port.get(timeout=60)
    finally:
        process.terminate()
        process.join()


WITHOUT, WITH, BESIDE = "without", "with scrapes", "with scrapes of another process"


def measure(
    adder: Adder, ports: dict[str, int], rounds: int, seconds: float, every_s: float, scrapes: list[tuple[float, int]]
) -> dict[str, list[list[float]]]:
    """Return the latencies of each round without a scraper, and with one that asks each of `ports`."""
    found: dict[str, list[list[float]]] = {way: [] for way in (WITHOUT, *ports)}
    adder.latencies_ms(min(seconds, 1.0))  # the first adds make files
    for number in range(rounds):
        ways = list(found)
        for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
            if way == WITHOUT:
                found[way].append(adder.latencies_ms(seconds))
                continue
            with scraper(ports[way], every_s, scrapes if way == WITH else []):
                found[way].append(adder.latencies_ms(seconds))
    return found


def line(load: Load, found: dict[str, list[list[float]]]) -> str:
    """Return what a load showed."""
    parts = []
    whole = {way: np.percentile(np.concatenate(rounds), (50, 99)) for way, rounds in found.items()}
    for way, (p50, p99) in whole.items():
        text = f"p50 {p50:.2f} ms, p99 {p99:.2f} ms {way}"
        if way != WITHOUT:
            pairs = zip(found[WITHOUT], found[way])
            ratio = statistics.median(np.percentile(b, 99) / np.percentile(a, 99) for a, b in pairs)
            text += f" (ratio of p99 {p99 / whole[WITHOUT][1]:.3f}, median of the rounds {ratio:.3f})"
        parts.append(text)
    return f"{load.name}: {'; '.join(parts)}"


def _size(port: int) -> int:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as reply:
        return len(reply.read())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scrape_cost", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load in a round (default 5)")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two scrapes (default 1)")
    parser.add_argument("--dir", type=Path, default=None, help="on which disk; default: the temporary folder")
    options = parser.parse_args()
    (port,) = free_ports(1)
    scrapes: list[tuple[float, int]] = []
    with (
        Servers(options.dir) as servers,
        servers.bookie(httpServerEnabled="true", httpServerPort=port) as bookie,
        another_server(_size(port)) as other,
    ):
        for ledger_id, load in enumerate(LOADS, start=1):
            adder = Adder(bookie.port, ledger_id, load)
            ports = {WITH: port, BESIDE: other}
            found = measure(adder, ports, options.rounds, options.seconds, options.every, scrapes)
            adder.close()
            print(line(load, found), flush=True)
    took, sizes = zip(*scrapes)
    print(
        f"{len(scrapes)} scrapes: median {statistics.median(took) * 1000:.1f} ms, longest {max(took) * 1000:.1f} ms, "
        f"{max(sizes)} bytes"
    )


if __name__ == "__main__":
    main()
