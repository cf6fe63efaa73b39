"""The console's requests to bookies: a server in a bookie's place can neither redirect them nor fill the memory."""

from __future__ import annotations

import asyncio

import pytest

from bkspark.cli.bookie_http import BookieHttpAccess
from bkspark_console.bookie_http import ANSWER_BYTES_MAX, BookieHttp, BookieHttpError

REDIRECT = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n"
LARGE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (ANSWER_BYTES_MAX + 1) + b" " * (ANSWER_BYTES_MAX + 1)


@pytest.mark.parametrize(("answer", "why"), [(REDIRECT, "answers 307"), (LARGE, f"more than {ANSWER_BYTES_MAX} bytes")])
def test_redirects_and_answers_without_end_are_errors(answer: bytes, why: str) -> None:
    """A redirect could lead the token to another server."""

    async def test() -> None:
        asked: list[bytes] = []

        async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while head := await reader.read(1 << 16):
                asked.append(head.partition(b"\r\n")[0])
                writer.write(answer)
            writer.close()

        server = await asyncio.start_server(reply, "127.0.0.1", 0)
        http = BookieHttp(BookieHttpAccess(None, None))
        try:
            with pytest.raises(BookieHttpError, match=why):
                await http.text(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "/metrics")
        finally:
            await http.close()
            server.close()
        assert asked == [b"GET /metrics HTTP/1.1"]

    asyncio.run(test())
