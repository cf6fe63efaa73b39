"""The explicit LAC that an idle writer sends to its bookies: docs/protocol.md §2.8, §5.10."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Any

from bkspark.client import Client
from bkspark.core.writer_options import WriterOptions
from bkspark.ledger.writer import LedgerWriter
from bkspark.net.v3_channel import BookieV3Channel
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3
from bkspark.wire.digest import master_key
from tests.ledger.closing_clients import does_nothing
from tests.ledger.holders import FOR_EVER_S, PATIENT, Holder, register
from tests.ledger.hostile import DIGEST, HostileBookie, World, play
from tests.planting import around
from tests.simulation.full_cluster import URI as CLUSTER_URI
from tests.simulation.full_cluster import Cluster

OPTIONS = WriterOptions(explicit_lac_interval_s=0.01, add_timeout_s=FOR_EVER_S)


class Received:
    """The explicit LACs that a bookie got; it answers them with `status`, after it has closed `breaks` connections."""

    def __init__(self) -> None:
        self.lacs: list[int] = []
        self.status = protocol.EOK
        self.breaks = 0

    def __call__(self, request: protocol.Request) -> Iterable[protocol.Response]:
        if self.breaks:
            self.breaks -= 1
            raise ConnectionError
        asked = request.writeLacRequest
        assert request.header.operation == protocol.WRITE_LAC
        assert (asked.masterKey, asked.body) == (master_key(b""), bytes(DIGEST.seal_lac(asked.ledgerId, asked.lac)))
        self.lacs.append(asked.lac)
        inner = protocol.WriteLacResponse(status=self.status, ledgerId=asked.ledgerId)
        head = v3.header(request.header.operation, request.header.txnId)
        return [protocol.Response(header=head, status=self.status, writeLacResponse=inner)]


def idle(test: Callable[..., Awaitable[None]], size: int, ack_quorum: int) -> None:
    """Run a test with a writer that sends explicit LACs, and what its bookies receive."""

    async def call(world: World) -> None:
        received = [Received() for _ in range(size)]
        bookies = [HostileBookie(Holder(), each) for each in received]
        for bookie in bookies:
            await bookie.__aenter__()
            await register(world, bookie)
        client = world.client(net=PATIENT, writer=OPTIONS)
        writer = await client.create(ensemble=size, write_quorum=size, ack_quorum=ack_quorum)
        try:
            await test(writer, received, bookies)
        finally:
            writer.abandon()
            for bookie in bookies:
                await bookie.__aexit__()

    play(call, 20)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(15):
        while not condition():
            await asyncio.sleep(0.002)


def test_lac_that_no_add_carried_is_sent_to_all_bookies_once() -> None:
    async def test(writer: LedgerWriter, received: list[Received], bookies: list[HostileBookie]) -> None:
        for last in (0, 1, 4):
            await writer.append_many([b"x"] * (last - writer.last_entry))
            await until(lambda last=last: all(each.lacs[-1:] == [last] for each in received))
        # Later intervals send what is new, and nothing again.
        assert [each.lacs for each in received] == [[0, 1, 4]] * 3

    idle(test, 3, 2)


def test_lac_that_too_few_bookies_stored_is_sent_again() -> None:
    """Two of two are needed: one refuses it a few times."""

    async def test(writer: LedgerWriter, received: list[Received], bookies: list[HostileBookie]) -> None:
        refusing, taking = received
        refusing.status = protocol.EIO
        await writer.append(b"x")
        await until(lambda: len(refusing.lacs) >= 3)
        assert set(refusing.lacs) == set(taking.lacs) == {0}
        refusing.status = protocol.EOK
        await writer.append(b"y")
        await until(lambda: refusing.lacs[-1:] == [1] and taking.lacs[-1:] == [1])
        count = refusing.lacs.count(1)
        await writer.append(b"z")
        await until(lambda: refusing.lacs[-1:] == [2])
        assert refusing.lacs.count(1) == count == 1

    idle(test, 2, 2)


def test_lac_is_sent_again_to_a_bookie_whose_connection_was_lost() -> None:
    async def test(writer: LedgerWriter, received: list[Received], bookies: list[HostileBookie]) -> None:
        received[0].breaks = 2
        await writer.append(b"x")
        await until(lambda: received[0].lacs == [0])
        assert received[0].breaks == 0

    idle(test, 1, 1)


def test_lac_that_an_add_carries_is_not_sent() -> None:
    """Entry 1 carries the LAC of entry 0, and is not acknowledged itself: nothing is new for a hundred intervals."""
    cluster, sent = Cluster(Random(5), 3), []

    async def note(old: Any, self: BookieV3Channel, ledger_id: int, lac: int, *rest: object) -> int:
        sent.append(lac)
        return await old(self, ledger_id, lac, *rest)

    async def call() -> None:
        await cluster.start()
        options = WriterOptions(explicit_lac_interval_s=1.0, add_timeout_s=FOR_EVER_S)
        async with Client(CLUSTER_URI, tree=cluster.session(), writer=options) as client:
            writer = await client.create()
            await writer.append(b"x")
            for bookie in cluster.bookies:
                does_nothing(bookie)
            await writer.submit([b"y"])
            await asyncio.sleep(100.0)
            assert (writer.last_entry, sent) == (0, [])
            writer.abandon()

    with around(BookieV3Channel, "write_lac", note):
        cluster.run(call())
