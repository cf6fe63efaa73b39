"""`python -m tests.fuzzing.replies`: hostile answers for our client, of all kinds, over sockets.

    --replies N       hostile replies for each storage (default 5000)
    --seconds S       or so long for each storage, if that ends first
    --storage NAME    sorted, interleaved or db; several times; default: all three
    --calls N         calls at the same time (default 16); most of a call is waiting for replies that do not come
    --seed N --json

Three bookies of one storage run in a process of their own. Between them and the client is a peer that passes requests
on and changes part of the replies: statuses, ids, entries, items, LACs, lists, lengths; it repeats, reorders, loses and
invents some. The client reads (V2 singles and batches, V3), scans, opens, follows, recovers, writes, forces, asks for
lists of entries and for disk space.

Exit code 1 when a call raised what is not a BookKeeperError or did not end, gave an entry that was never written or not
asked for, spent more than 50 ms in one turn of the event loop, or held more memory than it should.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import logging
import multiprocessing
import os
import random
import socket
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bkspark.client import Client
from bkspark.errors import BookKeeperError
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import MemoryStore
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.uri import MetadataUri
from bkspark.net.pool import NetOptions
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.digest import DigestType, EntryDigest, master_key
from bkspark.wire.framing import LENGTH_BYTES, split_items
from bookie_service.service import BookieService
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.bookie.serving import no_suspects, service_options
from tests.fuzzing.frames import CORNERS
from tests.fuzzing.live import rss_mib
from tests.fuzzing.turns import TurnRecorder

URI = "zk://127.0.0.1:2181/ledgers"
STORAGES = tuple(kind.name.lower() for kind in StorageClass)
HOSTILE_SHARE = 0.25
ENTRIES = 300
CALL_S_MAX = 40.0
"""Longest that a call may take: some tries of `read_timeout_s` each, on each of three bookies."""
STALL_S_MAX = 0.05
RSS_MIB_GROWTH_MAX = 500


# ---- between bookies and client ----


_GENUINE: dict[tuple[int, int], bytes] = {}
"""Entries that bookies gave, by ledger and id: a liar knows them too."""


class Changer:
    """Changes replies at random; what it gives may be several frames, or none."""

    def __init__(self, seed: int) -> None:
        self._luck = random.Random(seed)
        self._earlier: list[bytes] = []

    def saw(self, body: bytes) -> None:
        """Take note of a genuine reply: parts of it may turn up in others."""
        if len(self._earlier) < 200:
            self._earlier.append(body)
        if body[:2] == bytes((v2.VERSION, v2.BATCH_READ)) and len(body) > v2.BATCH_REPLY_BYTES:
            starts, ends = split_items(body, v2.BATCH_REPLY_BYTES, len(body))
            for start, end in zip(starts.tolist(), ends.tolist()):
                ledger_id, entry_id = struct.unpack_from(">qq", body, start)
                _GENUINE[ledger_id, entry_id] = body[start:end]

    def changed(self, body: bytes) -> bytes:
        """Return the bytes to send in place of one reply's frame."""
        kind = self._luck.randrange(20)
        if kind == 0:
            return _framed(body) * self._luck.randint(2, 50)
        if kind == 1:
            return b""
        if kind == 2:
            return _framed(self._luck.choice(self._earlier)) + _framed(body)
        if kind == 3:
            return _framed(self._damaged(body))
        if kind == 4:
            lengths = (0, -1, 1, 24, len(body) + 1, len(body) - 1, 5 << 20, (1 << 31) - 1, -(1 << 31))
            return struct.pack(">i", self._luck.choice(lengths)) + body
        if kind == 5:
            return bytes(4 * self._luck.choice((1, 100, 10_000))) + _framed(body)
        if kind == 6:
            return self._luck.choice((v2.encode_auth_reply(self._luck.randbytes(20)), self._luck.randbytes(64)))
        return _framed(self._v3(body) if body[:1] == bytes((v3.FIRST_BYTE,)) else self._v2(body))

    def _number(self) -> int:
        number = self._luck.choice(CORNERS) + self._luck.randint(-1, 1)
        number = self._luck.choice((number, -number, self._luck.randrange(ENTRIES)))
        return max(-(1 << 63), min((1 << 63) - 1, number))

    def _damaged(self, body: bytes) -> bytes:
        octets = bytearray(body)
        for _ in range(self._luck.randint(1, 5)):
            at = self._luck.randint(0, len(octets))
            kind = self._luck.randrange(4)
            if kind == 0 and octets:
                octets[at % len(octets)] ^= 1 << self._luck.randrange(8)
            elif kind == 1:
                octets[at:at] = self._luck.randbytes(self._luck.randint(1, 16))
            elif kind == 2:
                del octets[at : at + self._luck.randint(1, 16)]
            else:
                del octets[at:]
        return bytes(octets)

    def _v2(self, body: bytes) -> bytes:
        octets = bytearray(body.ljust(v2.REPLY_BYTES, b"\0"))
        kind = 3 if octets[1] == v2.BATCH_READ and self._luck.random() < 0.4 else self._luck.randrange(6)
        if kind == 0:
            octets[4:8] = struct.pack(
                ">i", self._luck.choice((0, 1, 2, 100, 101, 102, 104, 106, -1, -7, 77, (1 << 31) - 1))
            )
        elif kind == 1:
            at = self._luck.choice((8, 16) if octets[1] != v2.BATCH_READ else (8, 16, 24))
            octets[at : at + 8] = struct.pack(">q", self._number())
        elif kind == 2:
            octets[1] = self._luck.choice((v2.ADD, v2.READ, v2.AUTH, v2.BATCH_READ, 0, 99))
        elif kind == 3 and octets[1] == v2.BATCH_READ:
            octets += self._items(octets)
        elif kind == 4 and len(octets) > 40:
            # The LAC or the length in an entry, whose digest then is wrong; or ids.
            at = (36 if octets[1] == v2.BATCH_READ else 24) + self._luck.choice((0, 8, 16, 24))
            octets[at : at + 8] = struct.pack(">q", self._number())
        else:
            return self._damaged(bytes(octets))
        return bytes(octets)

    def _items(self, octets: bytearray) -> bytes:
        """Return more items for a batch reply: the entries that follow, the same again, empty ones, too long ones."""
        kind = self._luck.randrange(5)
        if kind > 2:
            ledger_id, first_entry = struct.unpack_from(">qq", octets, 8)
            following = (_GENUINE.get((ledger_id, entry_id)) for entry_id in range(first_entry, first_entry + ENTRIES))
            have = len(split_items(bytes(octets), v2.BATCH_REPLY_BYTES, len(octets))[0])
            return b"".join(_framed(entry) for entry in list(following)[have:] if entry is not None)
        if kind == 0:
            return bytes(octets[v2.BATCH_REPLY_BYTES :])
        if kind == 1:
            return bytes(LENGTH_BYTES * self._luck.choice((1, 1000, 100_000)))
        return struct.pack(">i", self._luck.choice((-5, 1 << 20, (1 << 31) - 1)))

    def _v3(self, body: bytes) -> bytes:
        try:
            response = protocol.Response.FromString(body)
        except Exception:
            return self._damaged(body)
        kind = self._luck.randrange(5)
        if kind == 0:
            response.status = self._luck.choice((0, 402, 403, 404, 501, 502, 504, 506, 507))
        elif kind == 1:
            response.header.txnId = self._number() % (1 << 63)
        else:
            for field_of, inner in response.ListFields():
                if field_of.name.endswith("Response"):
                    self._change(inner)
        return response.SerializePartialToString()

    def _change(self, message: Any) -> None:
        for known in message.DESCRIPTOR.fields:
            if self._luck.random() > 0.4:
                continue
            if known.type == known.TYPE_BYTES:
                setattr(message, known.name, self._damaged(getattr(message, known.name)))
            elif known.type in (known.TYPE_INT64, known.TYPE_UINT64):
                setattr(
                    message,
                    known.name,
                    self._number() % (1 << 63) if known.type == known.TYPE_UINT64 else self._number(),
                )
            elif self._luck.random() < 0.3:
                message.ClearField(known.name)


def _framed(body: bytes) -> bytes:
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


class Between:
    """Passes bytes of one connection on in both directions; changes replies while `is_hostile`."""

    def __init__(self, port: int, seed: int, share: Any, hostile: Any) -> None:
        self._port = port
        self._seed = seed
        self._share = share
        self._hostile = hostile

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._seed += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            there, back = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)
            passing = asyncio.ensure_future(self._pass_on(reader, back))
            try:
                await self._answer(there, writer, Changer(self._seed))
            finally:
                passing.cancel()
                back.close()
        writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 18):
                back.write(data)
                await back.drain()
            back.close()

    async def _answer(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter, changer: Changer) -> None:
        luck = random.Random(self._seed)
        while True:
            (length,) = struct.unpack(">i", await there.readexactly(LENGTH_BYTES))
            body = await there.readexactly(length)
            data = _framed(body)
            changer.saw(body)
            if luck.random() < self._share.value:
                data = changer.changed(body)
                self._hostile.value += 1
            writer.write(data)
            await writer.drain()


def _serve(storage: str, directory: str, seed: int, share: Any, hostile: Any, ports: Any) -> None:
    """Run three bookies and their proxies, until the parent ends this process."""

    async def run() -> None:
        found = []
        for number in range(3):
            place = Path(directory) / f"bookie{number}"
            options = service_options(place)
            options = _with_storage(options, storage)
            for path in (*options.journal_directories, *options.ledger_directories):
                Path(path, "current").mkdir(parents=True)
            listener = socket.create_server(("127.0.0.1", 0))
            service = BookieService(LocalFiles(), options)
            await service.start(no_suspects)
            service.listen(listener)
            between = Between(listener.getsockname()[1], seed * 1000 + number * 100_003, share, hostile)
            server = await asyncio.start_server(between.serve, "127.0.0.1", 0)
            found.append(server.sockets[0].getsockname()[1])
        ports.send(found)
        await asyncio.Event().wait()

    logging.disable()
    asyncio.run(run())


def _with_storage(options: Any, storage: str) -> Any:
    store = dataclasses.replace(options.store, storage_class=StorageClass[storage.upper()])
    return dataclasses.replace(options, store=store)


# ---- the client ----


@dataclass
class Result:
    """What one storage came to."""

    storage: str
    replies: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    stall_ms: float = 0.0
    stalls: int = 0
    rss_mib_growth: int = 0
    wrong: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)


def payload(entry_id: int) -> bytes:
    """Return the payload of each entry of the ledgers that are read."""
    return b"%08d" % entry_id * (1 + entry_id % 40)


class Caller:
    """Makes calls of every kind, and checks what they give."""

    def __init__(self, clients: list[Client], closed: int, opened: int, seed: int, result: Result) -> None:
        self._clients = clients
        self._closed = closed
        self._opened = opened
        self._luck = random.Random(seed)
        self._result = result
        self._calls: dict[str, Callable[[Client], Awaitable[None]]] = {
            "read": self._read,
            "scan": self._scan,
            "last entry": self._last_entry,
            "follow": self._follow,
            "write": self._write,
            "recover": self._recover,
            "channel": self._channel,
        }
        self.counts: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()

    async def one(self) -> None:
        """Make one call."""
        name = self._luck.choice(
            ("read", "read", "scan", "scan", "last entry", "follow", "write", "recover", "channel")
        )
        client = self._luck.choice(self._clients)
        self.counts[name] += 1
        try:
            await asyncio.wait_for(self._calls[name](client), CALL_S_MAX)
        except BookKeeperError as error:
            self.errors[type(error).__name__] += 1
        except TimeoutError:
            self._result.wrong.append(f"{name} did not end in {CALL_S_MAX:.0f} s")
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            self._result.wrong.append(f"{name} raised {error!r} at {where.filename}:{where.lineno}")

    def check(self, batch: Any, first: int, last: int, name: str) -> None:
        if not first <= batch.first_entry <= batch.end_entry <= last + 1:
            self._result.wrong.append(f"{name} of [{first}, {last}] gave [{batch.first_entry}, {batch.end_entry})")
        elif any(entry != payload(batch.first_entry + i) for i, entry in enumerate(batch)):
            self._result.wrong.append(f"{name} gave an entry that was never written")

    async def _read(self, client: Client) -> None:
        reader = await client.open(self._closed)
        first = self._luck.randrange(ENTRIES)
        last = min(ENTRIES - 1, first + self._luck.randrange(60))
        batch = await reader.read(first, last)
        self.check(batch, first, last, "read")
        if len(batch) != last - first + 1:
            self._result.wrong.append(f"read of [{first}, {last}] gave {len(batch)} entries")

    async def _scan(self, client: Client) -> None:
        reader = await client.open(self._closed)
        first = self._luck.randrange(ENTRIES)
        at = first
        async for batch in reader.batches(first, batch_bytes=self._luck.choice((4096, 1 << 20))):
            self.check(batch, at, ENTRIES - 1, "scan")
            if batch.first_entry != at:
                self._result.wrong.append(f"scan gave entry {batch.first_entry} after {at - 1}")
            at = batch.end_entry
        if at != ENTRIES:
            self._result.wrong.append(f"scan of a closed ledger ended at {at} without an error")

    async def _last_entry(self, client: Client) -> None:
        reader = await client.open(self._opened)
        await reader.refresh()
        if not -1 <= reader.last_entry < ENTRIES:
            self._result.wrong.append(f"the LAC of an open ledger of {ENTRIES} entries is {reader.last_entry}")

    async def _follow(self, client: Client) -> None:
        reader = await client.open(self._opened)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                async for batch in reader.follow(self._luck.randrange(ENTRIES)):
                    self.check(batch, 0, ENTRIES - 1, "follow")
        if reader.last_entry >= ENTRIES:
            self._result.wrong.append(f"a follower believes a LAC of {reader.last_entry}")

    async def _write(self, client: Client) -> None:
        writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        try:
            await asyncio.wait_for(writer.append_many([payload(i) for i in range(20)]), 10)
            await asyncio.wait_for(writer.close(), 10)
        except TimeoutError:
            writer.abandon()

    async def _recover(self, client: Client) -> None:
        """Recovery of an open ledger: its end is what was written, or there is an error."""
        writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        try:
            written = await asyncio.wait_for(writer.append_many([payload(i) for i in range(5)]), 10)
        except TimeoutError:
            return
        finally:
            writer.abandon()
        metadata = await client.recover(writer.ledger_id)
        if metadata.last_entry > 4 or written > 4:
            self._result.wrong.append(f"recovery closed a ledger of 5 entries at {metadata.last_entry}")

    async def _channel(self, client: Client) -> None:
        """Requests that other calls do not make, on a channel itself."""
        context = await client.context()
        bookie = self._luck.choice(sorted(await context.registry.writable_ids()))
        digest = EntryDigest(DigestType.CRC32C, b"")
        key = master_key(b"")
        v3_channel = await context.pool.v3_channel(bookie)
        kind = self._luck.randrange(7)
        if kind == 0:
            _, runs = await v3_channel.entry_list(self._closed)
            repr(runs.entries)
        elif kind == 1:
            await v3_channel.disk_space()
        elif kind == 2:
            await v3_channel.force(self._opened)
        elif kind == 3:
            await v3_channel.read_lac(self._opened, digest)
        elif kind == 4:
            await v3_channel.write_lac(self._opened, self._luck.randrange(ENTRIES - 1), digest, key)
        elif kind == 5:
            await v3_channel.read_entries(self._closed, np.arange(20), digest)
        else:
            await v3_channel.poll_entry(self._opened, self._luck.randrange(ENTRIES), 0.1, digest)


async def _fill(client: Client, *, close: bool) -> int:
    writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=3)
    await writer.append_many([payload(i) for i in range(ENTRIES)])
    if close:
        await writer.close()
    else:
        # The last entry carries the LAC of those before it; no client writes on.
        writer.abandon()
    return writer.ledger_id


async def attack(storage: str, ports: list[int], share: Any, hostile: Any, options: argparse.Namespace) -> Result:
    """Make calls until there were enough hostile replies."""
    result = Result(storage)
    store = MemoryStore()
    uri = MetadataUri.parse(URI)
    registry = BookieRegistry(store.session(), uri)
    await registry.initialize_cluster()
    for port in ports:
        await registry.register(f"127.0.0.1:{port}", BookieAddress("127.0.0.1", port))
    net = NetOptions(connect_timeout_s=1.0, read_timeout_s=0.4, speculative_read_s=0.1, local_reads=False)
    clients = [Client(URI, tree=store.session(), net=net, wire_protocol=name) for name in ("v2", "v3")]
    closed, opened = await _fill(clients[0], close=True), await _fill(clients[0], close=False)
    caller = Caller(clients, closed, opened, options.seed, result)
    began, memory = time.monotonic(), rss_mib(os.getpid())
    turns = TurnRecorder()
    share.value = HOSTILE_SHARE

    async def go_on() -> None:
        while hostile.value < options.replies and time.monotonic() - began < options.seconds and len(result.wrong) < 20:
            await caller.one()
            result.rss_mib_growth = max(result.rss_mib_growth, rss_mib(os.getpid()) - memory)

    await asyncio.gather(*(go_on() for _ in range(options.calls)))
    share.value = 0.0
    turns.stop()
    result.replies, result.seconds = hostile.value, round(time.monotonic() - began, 1)
    result.calls, result.errors = dict(caller.counts), dict(caller.errors)
    result.stalls = sum(turn.seconds > STALL_S_MAX for turn in turns.slow)
    result.stall_ms = round(max((turn.seconds for turn in turns.slow), default=0.0) * 1000, 1)
    result.slow = [f"{it.seconds * 1000:.0f} ms: {it.ran}" for it in sorted(turns.slow, key=lambda it: -it.seconds)[:3]]
    if result.stalls:
        result.wrong.append(
            f"{result.stalls} turns above {STALL_S_MAX * 1000:.0f} ms, the longest {result.stall_ms} ms"
        )
    if result.rss_mib_growth > RSS_MIB_GROWTH_MAX:
        result.wrong.append(f"{result.rss_mib_growth} MiB more memory, {RSS_MIB_GROWTH_MAX} are allowed")
    # Afterwards the same client works.
    with contextlib.suppress(TimeoutError):
        reader = await clients[0].open(closed)
        batch = await reader.read(0, ENTRIES - 1)
        if list(batch) != [payload(i) for i in range(ENTRIES)]:
            result.wrong.append("afterwards the client reads something else")
    for client in clients:
        await client.close()
    return result


def run_storage(storage: str, options: argparse.Namespace) -> Result:
    """Run the bookies in a process and the client in this one."""
    context = multiprocessing.get_context("spawn")
    share, hostile = context.Value("d", 0.0), context.Value("q", 0)
    ours, theirs = context.Pipe()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="bkspark-replies-", dir=memory) as directory:
        arguments = (storage, directory, options.seed, share, hostile, theirs)
        process = context.Process(target=_serve, args=arguments, daemon=True)
        process.start()
        try:
            if not ours.poll(60):
                raise RuntimeError("the bookies do not start")
            return asyncio.run(attack(storage, ours.recv(), share, hostile, options))
        finally:
            process.kill()
            process.join()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing.replies", description=__doc__.split("\n")[0])
    parser.add_argument("--replies", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--storage", action="append", choices=STORAGES)
    parser.add_argument("--calls", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.replies < 1 or options.seconds <= 0 or options.calls < 1:
        parser.error("--replies, --seconds and --calls must be above 0")
    results = []
    for storage in options.storage or STORAGES:
        result = run_storage(storage, options)
        results.append(result)
        print(
            f"{storage}: {result.replies} hostile replies, {sum(result.calls.values())} calls, "
            f"{sum(result.errors.values())} errors in {result.seconds} s; longest turn {result.stall_ms} ms; "
            f"{result.rss_mib_growth:+} MiB",
            file=sys.stderr,
        )
        for line in (
            *(f"    WRONG {it}" for it in result.wrong),
            *(f"    {it}" for it in result.slow if result.stalls),
        ):
            print(line, file=sys.stderr, flush=True)
    wrong = sum(bool(result.wrong) for result in results)
    if options.json:
        total = sum(result.replies for result in results)
        print(json.dumps({"replies": total, "wrong": wrong, "storages": [asdict(result) for result in results]}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
