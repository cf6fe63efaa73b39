"""Metrics of the client: times of operations, entries and bytes, for a program to expose. Off until `start` is called.

    bkspark.metrics.start()
    bkspark.metrics.text()          # Prometheus's text, for the program's own /metrics
    with bkspark.metrics.serve(9400): ...           # or a server for the metrics alone

| Metric | Kind | Labels |
|---|---|---|
| `bkspark_client_seconds` | histogram | `operation`: create, open, recover, delete, append or read; `success` |
| `bkspark_client_entries_total`, `bkspark_client_bytes_total` | counters | `operation`: append or read |

Entries that are sent together count as one append, which lasts until all of them are acknowledged; recoveries append,
too. A read is one span of entries, as it is read ahead. While metrics are off, they cost one comparison for each batch.
All clients of a process share one recorder.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sized
from contextlib import contextmanager
from typing import Any, ParamSpec, Protocol, TypeVar

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the histogram's buckets."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Batch(Sized, Protocol):
    @property
    def payload_bytes(self) -> int: ...


_B = TypeVar("_B", bound=_Batch)


class Recorder:
    """The counters and histograms. Every method may be called by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets: dict[tuple[str, bool], list[int]] = {}
        """Calls in each bucket of BOUNDS_S and above the last, by (operation, success). Guarded by `_lock`."""
        self._sums_s: dict[tuple[str, bool], float] = {}
        """The sums of their times, by the same keys. Guarded by `_lock`."""
        self._entries: dict[str, int] = {}
        """Entries of successful calls, by operation. Guarded by `_lock`."""
        self._bytes: dict[str, int] = {}
        """Payload bytes of successful calls, by operation. Guarded by `_lock`."""

    def record(self, operation: str, began_s: float, entries: int = 0, size: int = 0, *, success: bool = True) -> None:
        """Count an operation that ends now and began at `began_s` of `time.perf_counter`."""
        took_s = time.perf_counter() - began_s
        key = operation, success
        with self._lock:
            if key not in self._buckets:
                self._buckets[key], self._sums_s[key] = [0] * (len(BOUNDS_S) + 1), 0.0
            self._buckets[key][bisect_left(BOUNDS_S, took_s)] += 1
            self._sums_s[key] += took_s
            if entries and success:
                self._entries[operation] = self._entries.get(operation, 0) + entries
                self._bytes[operation] = self._bytes.get(operation, 0) + size

    def record_when_done(self, done: asyncio.Future[int], entries: int, size: int) -> None:
        """Count an append that begins now and ends with `done`."""
        began_s = time.perf_counter()

        def end(future: asyncio.Future[int]) -> None:
            success = not future.cancelled() and future.exception() is None
            self.record("append", began_s, entries, size, success=success)

        done.add_done_callback(end)

    def lines(self) -> Iterator[str]:
        """Yield the lines of Prometheus's text."""
        with self._lock:
            buckets = {key: list(counts) for key, counts in self._buckets.items()}
            sums_s, counted = dict(self._sums_s), {"entries": dict(self._entries), "bytes": dict(self._bytes)}
        name = "bkspark_client_seconds"
        yield f"# HELP {name} How long operations of clients took."
        yield f"# TYPE {name} histogram"
        for (operation, success), counts in sorted(buckets.items()):
            labels = f'operation="{operation}",success="{str(success).lower()}"'
            below = 0
            for bound, count in zip((*map(repr, BOUNDS_S), "+Inf"), counts):
                below += count
                yield f'{name}_bucket{{{labels},le="{bound}"}} {below}'
            yield f"{name}_sum{{{labels}}} {sums_s[operation, success]!r}"
            yield f"{name}_count{{{labels}}} {below}"
        for what, values in counted.items():
            yield f"# HELP bkspark_client_{what}_total Payload {what} that clients appended or read."
            yield f"# TYPE bkspark_client_{what}_total counter"
            for operation, value in sorted(values.items()):
                yield f'bkspark_client_{what}_total{{operation="{operation}"}} {value}'


recorder: Recorder | None = None
"""Where operations are recorded; None while metrics are off. Set by `start` and `stop`."""


def start() -> None:
    """Turn metrics on, with all counters at 0. No effect if they are on already."""
    global recorder
    recorder = recorder or Recorder()


def stop() -> None:
    """Turn metrics off, and drop all counters."""
    global recorder
    recorder = None


def text() -> str:
    """Return all metrics in Prometheus's text format, of type `CONTENT_TYPE`; "" while metrics are off."""
    return "" if recorder is None else "\n".join(recorder.lines()) + "\n"


@contextmanager
def serve(port: int, host: str = "127.0.0.1") -> Iterator[int]:
    """Serve the metrics at /metrics for the duration of the block, for programs without an HTTP server; yield the port.

    Port 0 means any free port.
    """
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = text().encode() if self.path == "/metrics" else b""
            self.send_response(200 if self.path == "/metrics" else 404)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            """Scrapes are not logged."""

    server = ThreadingHTTPServer((host, port), Handler)
    thread = threading.Thread(target=server.serve_forever, name="bkspark-metrics", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def measured(
    operation: str,
) -> Callable[[Callable[_P, Awaitable[_T]]], Callable[_P, Coroutine[Any, Any, _T]]]:
    """Return a decorator that records each call of a coroutine function as an operation."""

    def decorate(call: Callable[_P, Awaitable[_T]]) -> Callable[_P, Coroutine[Any, Any, _T]]:
        @functools.wraps(call)
        async def caller(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            counting, began_s = recorder, time.perf_counter()
            if counting is None:
                return await call(*args, **kwargs)
            success = False
            try:
                result = await call(*args, **kwargs)
                success = True
                return result
            finally:
                counting.record(operation, began_s, success=success)

        return caller

    return decorate


async def reading(read: Coroutine[Any, Any, _B]) -> _B:
    """Return the result of a read, and record the read."""
    counting, began_s, batch = recorder, time.perf_counter(), None
    try:
        batch = await read
        return batch
    finally:
        if counting is not None and batch is not None:
            counting.record("read", began_s, len(batch), batch.payload_bytes)
        elif counting is not None:
            counting.record("read", began_s, success=False)
