"""What a connection has to send waits in the memory that it came in, and arrives whole and in order."""

from __future__ import annotations

import asyncio
import tracemalloc
import weakref
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from bkspark.errors import BookieUnavailable
from bkspark.net.channel import BookieChannel
from tests.polling import until

MIB = 1024 * 1024
PIECE_BYTES = 512 * 1024
PIECES = 64
"""32 MiB: more than the kernel takes from a connection whose peer reads nothing."""
COPIED_BYTES_MAX = 2 * MIB

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def connected(serve: Serve) -> tuple[asyncio.Server, BookieChannel]:
    """Return a server, and a connection to it."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    _, channel = await loop.create_connection(lambda: BookieChannel("a", MIB, 10.0), "127.0.0.1", port)
    return server, channel


def pieces() -> list[memoryview]:
    """Return pieces of one memory, each with bytes of its own, as a writer's are for all its bookies."""
    octets = np.repeat(np.arange(PIECES, dtype=np.uint8), PIECE_BYTES).data
    return [octets[at : at + PIECE_BYTES] for at in range(0, len(octets), PIECE_BYTES)]


def test_adds_that_wait_for_a_slow_bookie_are_not_copied_and_arrive_in_order() -> None:
    """A writer may be 64 MiB ahead of its slowest bookie: these bytes are in memory once, not once for each bookie."""

    async def test() -> None:
        may_read = asyncio.Event()
        received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await may_read.wait()
            received.set_result(await reader.readexactly(PIECES * PIECE_BYTES))
            writer.close()

        server, channel = await connected(slow)
        async with server:
            sent = pieces()
            tracemalloc.start()
            try:
                for piece in sent:
                    channel.send_adds(piece)
                copied_bytes = tracemalloc.get_traced_memory()[0]
            finally:
                tracemalloc.stop()
            assert channel.unsent_bytes > PIECES * PIECE_BYTES / 2, "the kernel took nearly everything"
            assert copied_bytes < COPIED_BYTES_MAX
            may_read.set()
            async with asyncio.timeout(60):
                assert await received == b"".join(sent)
            assert channel.unsent_bytes == 0

    asyncio.run(test())


def test_connection_that_ends_lets_go_of_what_it_has_not_sent() -> None:
    async def test() -> None:
        ended = asyncio.Event()

        async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await ended.wait()
            writer.close()

        server, channel = await connected(silent)
        async with server:
            sent = pieces()
            memory = weakref.ref(sent[0].obj)
            for piece in sent:
                channel.send_adds(piece)
            del sent, piece
            channel.close()
            assert channel.unsent_bytes == 0
            # The transport drops its part in the next turn of the event loop.
            await until(lambda: memory() is None, "the memory to be free", 10)
            with pytest.raises(BookieUnavailable):
                channel.send_adds(b"more")
            ended.set()

    asyncio.run(test())
