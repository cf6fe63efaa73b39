"""What the writing client alone can do: adds of 1 KiB to three bookies that answer at once and keep nothing.

    python -m benchmarks.client [--entries N] [--singles N] [--tasks N] [--profile FILE]

The sinks are one process; metadata is in memory. Prints one JSON object: adds per second and the client's processor
time per add, for `append_many` with a full window, for `append` from many tasks, and for `append` one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import multiprocessing
import os
import selectors
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from bkspark.client import Client, LedgerWriter
from bkspark.entries import EntryBatch
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import MemoryStore
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.uri import MetadataUri
from bkspark.wire import v2
from bkspark.wire.framing import scan_frames

URI = "zk://127.0.0.1:2181/ledgers"
BOOKIES = 3
ENTRY_BYTES = 1024
BATCH_ENTRIES = 2048
BATCHES_IN_FLIGHT = 4


def sink(listeners: list[socket.socket], ready: Connection) -> None:
    """Answer every add on every connection with EOK, until killed."""
    selector = selectors.DefaultSelector()
    for listener in listeners:
        selector.register(listener, selectors.EVENT_READ, None)
    ready.send(None)
    while True:
        for key, _ in selector.select():
            if key.data is None:
                peer, _ = key.fileobj.accept()  # type: ignore[union-attr]
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(peer, selectors.EVENT_READ, _Peer(peer))
            elif not key.data.answer():
                selector.unregister(key.fileobj)


class _Peer:
    """One connection of a sink."""

    def __init__(self, peer: socket.socket) -> None:
        self._socket = peer
        self._buffer = bytearray(4 << 20)
        self._end = 0

    def answer(self) -> bool:
        """Answer what has come; return False when the peer is gone."""
        received = self._socket.recv_into(memoryview(self._buffer)[self._end :])
        if not received:
            return False
        self._end += received
        table = scan_frames(self._buffer, self._end)
        if len(table):
            requests = v2.decode_requests(self._buffer, table)
            self._socket.sendall(v2.encode_replies(v2.ADD, v2.EOK, requests.ledger_ids, requests.entry_ids))
            rest = self._end - table.consumed
            self._buffer[:rest] = self._buffer[table.consumed : self._end]
            self._end = rest
        return True


async def append_batches(writer: LedgerWriter, entries: int) -> None:
    """Append in batches, some in flight."""
    batch = EntryBatch.of([os.urandom(ENTRY_BYTES)] * BATCH_ENTRIES)

    async def some() -> None:
        for _ in range(entries // BATCH_ENTRIES // BATCHES_IN_FLIGHT):
            await writer.append_many(batch)

    await asyncio.gather(*(some() for _ in range(BATCHES_IN_FLIGHT)))


async def append_singles(writer: LedgerWriter, entries: int, tasks: int) -> None:
    """Append one entry at a time from each of some tasks."""

    async def some() -> None:
        entry = os.urandom(ENTRY_BYTES)
        for _ in range(entries // tasks):
            await writer.append(entry)

    await asyncio.gather(*(some() for _ in range(tasks)))


async def measure(ports: list[int], arguments: argparse.Namespace) -> dict[str, float]:
    """Return the figures."""
    store = MemoryStore()
    registry = BookieRegistry(store.session(), MetadataUri.parse(URI))
    await registry.initialize_cluster()
    for port in ports:
        await registry.register(f"127.0.0.1:{port}", BookieAddress("127.0.0.1", port))
    figures: dict[str, float] = {}
    async with Client(URI, tree=store.session()) as client:
        alone = arguments.singles // 10
        loads: dict[str, tuple[int, Callable[[LedgerWriter], Awaitable[None]]]] = {
            "append_many": (arguments.entries, lambda writer: append_batches(writer, arguments.entries)),
            "append": (arguments.singles, lambda writer: append_singles(writer, arguments.singles, arguments.tasks)),
            "append_alone": (alone, lambda writer: append_singles(writer, alone, 1)),
        }
        for name, (entries, load) in loads.items():
            async with await client.create(ensemble=BOOKIES, write_quorum=BOOKIES, ack_quorum=BOOKIES - 1) as writer:
                await writer.append(b"connected")
                began, processor_began = time.perf_counter(), time.process_time()
                await load(writer)
                figures[f"{name}_per_s"] = entries / (time.perf_counter() - began)
                figures[f"{name}_client_us"] = (time.process_time() - processor_began) / entries * 1e6
    return {name: round(value, 2) for name, value in figures.items()}


def figures(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Return the figures for the command's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--entries", type=int, default=400_000, help="of append_many")
    parser.add_argument("--singles", type=int, default=50_000, help="of append")
    parser.add_argument("--tasks", type=int, default=200, help="that append at the same time")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="write the client's profile")
    arguments = parser.parse_args(argv)
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(BOOKIES)]
    ready, child_ready = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=sink, args=(listeners, child_ready), daemon=True)
    process.start()
    try:
        ready.recv()
        profile = cProfile.Profile()
        if arguments.profile:
            profile.enable()
        found = asyncio.run(measure([listener.getsockname()[1] for listener in listeners], arguments))
        if arguments.profile:
            profile.disable()
            profile.dump_stats(arguments.profile)
        return found
    finally:
        process.kill()
        process.join()


def main(argv: Sequence[str] | None = None) -> None:
    print(json.dumps(figures(argv)))


if __name__ == "__main__":
    main()
