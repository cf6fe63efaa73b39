"""A bookie that answers as the test tells it, on a real socket, and ledgers of such bookies."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bkspark.client import Client
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.entries import EntryBatch
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.memory import MemoryStore
from bkspark.metadata.uri import MetadataUri
from bkspark.net.pool import NetOptions
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.digest import DigestType, EntryDigest
from bkspark.wire.entry_lists import EntryRuns, encode_entry_list

URI = "zk://127.0.0.1:2181/ledgers"
DIGEST = EntryDigest(DigestType.CRC32C, b"")
_IDS = struct.Struct(">qq")
_BATCH = struct.Struct(">qqqiq")


@dataclass(frozen=True)
class Asked:
    """A V2 request; `request_id`, `entries_max` and `bytes_max` are a batch read's. `body`: the whole frame body."""

    opcode: int
    ledger_id: int
    entry_id: int
    body: bytes
    request_id: int = -1
    entries_max: int = 0
    bytes_max: int = 0


Answer = Callable[[Asked], bytes | None]
"""Returns what to send; None: nothing."""
V3Answer = Callable[[protocol.Request], Iterable[protocol.Response]]


def no_entry_v3(request: protocol.Request) -> Iterable[protocol.Response]:
    """Answer every V3 request with "no entry": V2 answers then."""
    head = v3.header(request.header.operation, request.header.txnId)
    return [protocol.Response(header=head, status=protocol.ENOENTRY)]


def lists(entry_ids: Collection[int] | None) -> V3Answer:
    """Return the V3 answers of a bookie that lists these entries; None: it has no time for lists."""
    runs = EntryRuns.of(np.array(sorted(entry_ids or ()), np.int64))
    status = protocol.ETOOMANYREQUESTS if entry_ids is None else protocol.EOK

    def answer(request: protocol.Request) -> Iterable[protocol.Response]:
        if request.header.operation != protocol.GET_LIST_OF_ENTRIES_OF_LEDGER:
            return no_entry_v3(request)
        listed = protocol.GetListOfEntriesOfLedgerResponse(
            status=status,
            ledgerId=request.getListOfEntriesOfLedgerRequest.ledgerId,
            availabilityOfEntriesOfLedger=encode_entry_list(runs, 100),
        )
        head = v3.header(request.header.operation, request.header.txnId)
        return [protocol.Response(header=head, status=status, getListOfEntriesOfLedgerResponse=listed)]

    return answer


PAYLOAD = b"x" * 10


def sealed(
    ledger_id: int, entry_id: int, *, lac: int | None = None, length: int = 10, payload: bytes = PAYLOAD
) -> bytes:
    """Return one stored entry with any header; its digest is right."""
    batch = EntryBatch.of([payload], ledger_id, entry_id)
    lac = entry_id - 1 if lac is None else lac
    return bytes(DIGEST.seal(batch, lac, length - len(payload)).buffer[4:])


def items(ledger_id: int, first_entry: int, count: int, **header: Any) -> bytes:
    """Return the items of a batch read's reply."""
    entries = [sealed(ledger_id, entry_id, **header) for entry_id in range(first_entry, first_entry + count)]
    return b"".join(len(entry).to_bytes(4, "big") + entry for entry in entries)


def reply(asked: Asked, status: int = 0, body: bytes = b"") -> bytes:
    """Return the reply to an add, a read or a batch read."""
    if asked.opcode == v2.BATCH_READ:
        head = v2.encode_batch_reply_head(asked.ledger_id, asked.entry_id, asked.request_id, status, len(body))
        return bytes(head) + body
    frame = v2.header_word(asked.opcode).to_bytes(4, "big")
    frame += status.to_bytes(4, "big") + _IDS.pack(asked.ledger_id, asked.entry_id) + body
    return len(frame).to_bytes(4, "big") + frame


class HostileBookie:
    """Serves one protocol per connection; `async with` it. `asked` has the V2 requests so far."""

    def __init__(self, answer: Answer, answer_v3: V3Answer = no_entry_v3) -> None:
        self.asked: list[Asked] = []
        self._answer = answer
        self._answer_v3 = answer_v3
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def id(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> HostileBookie:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(asyncio.ensure_future(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                body = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                if body[0] == 0x0A:
                    for response in self._answer_v3(v3.decode_request(body)):
                        writer.write(v3.encode_message(response))
                    continue
                asked = decoded(body)
                self.asked.append(asked)
                sent = self._answer(asked)
                if sent is not None:
                    writer.write(sent)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


def decoded(body: bytes) -> Asked:
    """Return the V2 request in the body of a frame."""
    opcode = body[1]
    if opcode == v2.BATCH_READ:
        ledger_id, entry_id, request_id, entries_max, bytes_max = _BATCH.unpack_from(body, 4)
        return Asked(opcode, ledger_id, entry_id, body, request_id, entries_max, bytes_max)
    return Asked(opcode, *_IDS.unpack_from(body, v2.ADD_HEAD_BYTES if opcode == v2.ADD else 4), body)


class World:
    """A metadata store, and clients of it."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.ledgers = LedgerStore(self.store.session(), MetadataUri.parse(URI))
        self._clients: list[Client] = []

    def client(self, **options: Any) -> Client:
        """Return a client that is closed with the test."""
        net = NetOptions(read_timeout_s=10.0, speculative_read_s=1.0)
        client = Client(URI, **{"tree": self.store.session(), "net": net, **options})
        self._clients.append(client)
        return client

    async def ledger(self, *bookies: HostileBookie, metadata: LedgerMetadata | None = None, **changes: Any) -> int:
        """Store the metadata of a ledger of these bookies, E = Qw = all of them, Qa = 1; return its id."""
        size = len(bookies)
        quorums = changes.pop("quorums", (size, size, 1))
        fragments = (Fragment(0, tuple(bookie.id for bookie in bookies)),)
        metadata = metadata or LedgerMetadata(*quorums, fragments, **changes)
        return (await self.ledgers.create(metadata))[0]

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


def play(test: Callable[[World], Awaitable[None]], seconds: float = 60) -> None:
    """Run a test's coroutine with a world."""

    async def call() -> None:
        world = World()
        await BookieRegistry(world.store.session(), MetadataUri.parse(URI)).initialize_cluster()
        try:
            await asyncio.wait_for(test(world), seconds)
        finally:
            await world.close()

    asyncio.run(call())
