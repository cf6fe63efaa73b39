"""The gate of an asyncio server with TLS: whose unfinished handshake ends when there are too many, and at the end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from bkspark.tls.contexts import TlsContext
from bkspark.tls.gate import RECEIVE_BYTES, TlsGate
from tests.security.certificates import Authority, of_bookie
from tests.security.tls_serving import trusting

WAIT_S = 30.0
SMALLEST_RECORD_BYTES = 5 + 1 + 1 + 16
"""Header, one byte, its kind, and the tag of TLS 1.3."""


@dataclass
class Served:
    """A gate, and the port at which its server listens."""

    gate: TlsGate
    port: int
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    """Those of all peers: a connection ends with its writer."""

    async def peer(self, address: str) -> asyncio.StreamReader:
        """Return a connection from an address that sends nothing."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))
        self.writers.append(writer)
        return reader


@contextlib.asynccontextmanager
async def serving(directory: Path, handshakes: int) -> AsyncIterator[Served]:
    gate = TlsGate(TlsContext(of_bookie(Authority(directory).issue("bookie")), is_server=True), 600.0, handshakes)
    server = await asyncio.get_running_loop().create_server(lambda: gate.protocol(asyncio.Protocol), "127.0.0.1", 0)
    try:
        yield Served(gate, server.sockets[0].getsockname()[1])
    finally:
        server.close()
        gate.close()


async def ends(reader: asyncio.StreamReader) -> bool:
    """Return True when the server has ended a connection."""
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(1), WAIT_S) == b""
    return True


def run(directory: Path, test: Callable[[Served], Awaitable[None]], handshakes: int) -> None:
    async def whole() -> None:
        async with serving(directory, handshakes) as served:
            await test(served)

    asyncio.run(whole())


def test_an_address_with_many_handshakes_loses_its_own_oldest(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        other = await served.peer("127.0.0.9")
        mine = [await served.peer("127.0.0.1") for _ in range(4)]
        assert await ends(mine[0])
        assert await ends(mine[1])
        assert [each.at_eof() for each in (other, *mine)] == [False, True, True, False, False]

    run(tmp_path, test, handshakes=8)


def test_beyond_the_limit_of_all_the_oldest_one_ends(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        peers = [await served.peer(f"127.0.0.{number}") for number in range(1, 6)]
        assert await ends(peers[0])
        assert [each.at_eof() for each in peers] == [True] + [False] * 4

    run(tmp_path, test, handshakes=4)


def test_an_arrival_may_be_pushed_out_as_its_handshake_begins(tmp_path: Path) -> None:
    """Its transport is closed when the gate looks for the protocol that `start_tls` has put in place."""

    async def test(served: Served) -> None:
        errors: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context.get("exception")))
        # Sockets that were accepted in one turn of the loop: those that come later push out the first ones.
        connections = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(40)]
        readers = [await served.peer("127.0.0.9") for _ in range(2)]
        assert not any(each.at_eof() for each in readers)
        for each in connections:
            each.close()
        assert errors == []

    run(tmp_path, test, handshakes=4)


class Sizes(asyncio.Protocol):
    """Notes how many bytes come at once."""

    def __init__(self) -> None:
        self.found: list[int] = []
        self.is_over = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.found.append(len(data))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over.set_result(exc)


def test_little_is_decrypted_at_once_however_small_the_records_are(tmp_path: Path) -> None:
    """HTTP has the event loop of the bookie. A record of one byte costs as much as one of a KiB."""
    count = 20_000

    async def run() -> None:
        authority = Authority(tmp_path)
        gate = TlsGate(TlsContext(of_bookie(authority.issue("bookie")), is_server=True), 600.0, 8)
        sizes = Sizes()
        server = await asyncio.get_running_loop().create_server(lambda: gate.protocol(lambda: sizes), "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(authority))
            for _ in range(count):
                writer.write(b"x")
            writer.close()
            await sizes.is_over
        assert sum(sizes.found) == count
        # A record that had begun may end in it.
        assert max(sizes.found) <= RECEIVE_BYTES // SMALLEST_RECORD_BYTES + 1

    asyncio.run(run())


def test_handshakes_end_with_the_gate(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        peers = [await served.peer(address) for address in ("127.0.0.1", "127.0.0.2")]
        last = [await served.peer("127.0.0.3") for _ in range(3)]
        assert await ends(last[0]), "the server has taken the connections"
        served.gate.close()
        for each in (*peers, *last[1:]):
            assert await ends(each)

    run(tmp_path, test, handshakes=8)
