"""A bookie that speaks V3 as the test tells it: every request goes to `answer`, which returns what to send back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from bkspark.net.pool import BookiePool, NetOptions
from bkspark.net.v3_channel import BookieV3Channel
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3
from bkspark.wire.adds import WireProtocol

Answer = Callable[[protocol.Request], Iterable[protocol.Response | bytes]]


def response(request: protocol.Request, status: int = 0, **message: object) -> protocol.Response:
    """Return the response to a request, with the message of its operation."""
    head = v3.header(request.header.operation, request.header.txnId)
    return protocol.Response(header=head, status=status, **message)


def play(answer: Answer, test: Callable[[BookieV3Channel], Awaitable[None]], *, read_timeout_s: float = 30.0) -> None:
    """Run a test's coroutine with a channel to such a bookie."""

    async def on_channel(pool: BookiePool) -> None:
        await test(await pool.v3_channel("peer"))

    play_pool(answer, on_channel, read_timeout_s=read_timeout_s)


def play_pool(answer: Answer, test: Callable[[BookiePool], Awaitable[None]], *, read_timeout_s: float = 30.0) -> None:
    """Run a test's coroutine with a pool to which every bookie is such a one."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                for part in answer(v3.decode_request(await reader.readexactly(size))):
                    writer.write(part if isinstance(part, bytes) else v3.encode_message(part))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def call() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]

        async def resolve(_: str) -> tuple[str, int]:
            return "127.0.0.1", port

        pool = BookiePool(resolve, NetOptions(read_timeout_s=read_timeout_s), WireProtocol.V3)
        try:
            await asyncio.wait_for(test(pool), 60)
        finally:
            await pool.close()
            server.close()

    asyncio.run(call())
