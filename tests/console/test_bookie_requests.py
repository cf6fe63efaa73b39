"""The console's requests to bookies: a server in a bookie's place can neither redirect them nor fill the memory."""

from __future__ import annotations

import asyncio
import json

import pytest

from bkspark.cli.bookie_http import BookieHttpAccess
from bkspark.client import Client
from bkspark.metadata.bookie_plans import MAINTENANCE, BookiePlan, BookiePlans, PlansInForce
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import MemoryStore
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.uri import MetadataUri
from bkspark_console.bookie_http import ANSWER_BYTES_MAX, BookieHttp, BookieHttpError
from bkspark_console.cluster_view import ClusterView
from tests.ledger.in_process import URI

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


def test_plans_are_read_from_the_metadata_store_and_bookies_are_not_asked() -> None:
    """Each bookie was asked in turn, and waited for the metadata store: a page took as many waits as there are."""

    async def test() -> tuple[PlansInForce | None, set[bytes]]:
        asked: set[bytes] = set()
        state = json.dumps({"id": "bookie:3181"}).encode()

        async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while head := await reader.read(1 << 16):
                asked.add(head.partition(b"\r\n")[0])
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(state), state))
            writer.close()

        server = await asyncio.start_server(reply, "127.0.0.1", 0)
        tree = MemoryStore().session()
        registry = BookieRegistry(tree, MetadataUri.parse(URI))
        await registry.initialize_cluster()
        address = BookieAddress("127.0.0.1", 3181, http=("127.0.0.1", server.sockets[0].getsockname()[1]))
        await registry.register("bookie:3181", address)
        plan = BookiePlan("bookie:3181", MAINTENANCE, "amy", 1)
        await BookiePlans(tree, MetadataUri.parse(URI)).set(plan)
        async with Client(URI, tree=tree) as client:
            view = ClusterView(client, BookieHttp(BookieHttpAccess(None, None)))
            try:
                return await view.plans(), asked
            finally:
                await view.http.close()
                server.close()

    plans, asked = asyncio.run(test())
    assert plans is not None
    assert [(each.bookie, each.kind, each.who) for each in plans.plans] == [("bookie:3181", "maintenance", "amy")]
    assert asked == {b"GET /api/v2/bookie HTTP/1.1"}
