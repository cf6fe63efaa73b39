"""Bookies that connect late or refuse load while a ledger is closed or recovered; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Any

from bkspark.client import Client, LedgerWriter
from bkspark.core.metadata import Fragment
from bkspark.core.recovery import REST_NS_MAX
from bkspark.core.writer_options import WriterOptions
from bkspark.ledger.fanout import DRAIN_S
from bkspark.ledger.replica_reads import ReplicaReads
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.uri import MetadataUri
from bkspark.net.channel import BookieChannel
from bkspark.net.pool import NetOptions
from bkspark.wire.status import Status
from tests.ledger.closing_clients import does_nothing
from tests.planting import around
from tests.simulation.full_cluster import URI, Cluster, FullBookie

LATE_S = DRAIN_S / 2
"""Later than any answer, and in time for a writer that closes its ledger."""
CONNECT_S = 0.5
QUESTIONS_FIRST = 15
"""More than a bookie is asked before the pauses between two questions are the longest."""
PAYLOADS = [b"entry %d" % number for number in range(5)]


class LateCluster(Cluster):
    """A cluster in which it takes `late_s` more to connect to a bookie, by its port."""

    def __init__(self) -> None:
        super().__init__(Random(5), 5)
        self.late_s: dict[int, float] = {}

    async def connect(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> tuple[Any, Any]:
        await asyncio.sleep(self.late_s.get(port, 0.0))
        return await super().connect(factory, host, port)

    def client(self, **options: Any) -> Client:
        net = NetOptions(connect_timeout_s=CONNECT_S + LATE_S)
        return Client(URI, tree=self.session(), net=net, **options)

    def named(self, names: Iterable[str]) -> list[FullBookie]:
        return [self.bookie(name) for name in names]

    def let_reads(self, status: Status | None, names: Iterable[str] = ()) -> None:
        """Let some bookies, or all, answer reads and fences with a status; None: with what they hold."""
        for bookie in self.named(names) or self.bookies:
            bookie.read_error = status

    def spares(self, names: Iterable[str]) -> list[FullBookie]:
        return [bookie for bookie in self.bookies if bookie.id not in names]


def play(test: Callable[[LateCluster, Client], Awaitable[None]]) -> None:
    cluster = LateCluster()

    async def call() -> None:
        await cluster.start()
        async with cluster.client() as client:
            await test(cluster, client)

    cluster.run(call())


async def has_all(bookie: FullBookie, ledger_id: int) -> None:
    """Return when a bookie holds every entry."""
    async with asyncio.timeout(60.0):
        while not all(bookie.holds_durably(ledger_id, entry_id, data) for entry_id, data in enumerate(PAYLOADS)):
            await asyncio.sleep(0.1)
            bookie.settle()


def test_ledger_is_not_closed_before_a_bookie_that_connects_late_was_sent_its_copies() -> None:
    """The two others acknowledge all entries. After the close only a repair would make these copies."""

    async def test(cluster: LateCluster, client: Client) -> None:
        writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        late = cluster.bookie(writer.metadata.last_fragment.bookies[0])
        cluster.late_s[late.port] = LATE_S
        assert await writer.append_many(PAYLOADS) == len(PAYLOADS) - 1
        closed = await writer.close()
        assert late.id in closed.last_fragment.bookies
        await has_all(late, writer.ledger_id)

    play(test)


def test_recovery_does_not_close_before_a_replacement_was_sent_its_copies() -> None:
    """Two bookies take no adds. One of those that replace them suffices to rewrite all entries."""

    async def test(cluster: LateCluster, client: Client) -> None:
        writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        await writer.append_many(PAYLOADS)
        names = writer.metadata.last_fragment.bookies
        writer.abandon()
        for bookie in cluster.named(names[:2]):
            bookie.add_error = Status.EIO
        late, _ = cluster.spares(names)
        cluster.late_s[late.port] = LATE_S
        async with cluster.client() as other:
            closed = await other.recover(writer.ledger_id)
        assert closed.last_entry == len(PAYLOADS) - 1
        assert late.id in closed.last_fragment.bookies
        await has_all(late, writer.ledger_id)

    play(test)


def test_recovery_waits_for_no_bookie_of_the_ledger_that_it_cannot_connect_to() -> None:
    """That bookie is asked and gives no answer; its place stays as it is: other bookies have the entries."""

    async def test(cluster: LateCluster, client: Client) -> None:
        loop = asyncio.get_running_loop()
        writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        await writer.append_many(PAYLOADS)
        names = writer.metadata.last_fragment.bookies
        writer.abandon()
        cluster.late_s[cluster.bookie(names[0]).port] = 3600.0
        async with cluster.client() as other:
            began = loop.time()
            closed = await other.recover(writer.ledger_id)
            # It costs one time-out, when the first entries are read.
            assert loop.time() - began < 2 * (CONNECT_S + LATE_S)
        assert (closed.last_entry, closed.last_fragment.bookies) == (len(PAYLOADS) - 1, names)

    play(test)


def test_recovery_waits_for_a_bookie_that_owes_adds_as_long_as_the_clients_option_says() -> None:
    async def test(cluster: LateCluster, client: Client) -> None:
        loop = asyncio.get_running_loop()
        writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=3)
        await writer.append_many(PAYLOADS)
        names = writer.metadata.last_fragment.bookies
        writer.abandon()

        async def hang(old: Any, *arguments: Any) -> Any:
            does_nothing(cluster.bookie(names[0]))
            return await old(*arguments)

        async with cluster.client(writer=WriterOptions(add_timeout_s=120.0)) as other:
            with around(LedgerWriter, "submit_batch", hang):
                began = loop.time()
                closed = await other.recover(writer.ledger_id)
            assert 120.0 < loop.time() - began < 130.0
        assert (closed.last_entry, names[0] in closed.last_fragment.bookies) == (len(PAYLOADS) - 1, False)

    play(test)


def test_fences_that_are_refused_because_of_load_are_repeated_after_pauses() -> None:
    refused_s = 40.0
    fences: list[str] = []

    async def noted(old: Any, channel: BookieChannel, *arguments: Any) -> Any:
        fences.append(channel.bookie)
        return await old(channel, *arguments)

    async def test(cluster: LateCluster, client: Client) -> None:
        loop = asyncio.get_running_loop()
        writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        await writer.append_many(PAYLOADS)
        writer.abandon()
        cluster.let_reads(Status.ETOOMANYREQUESTS)
        loop.call_later(refused_s, cluster.let_reads, None)
        with around(BookieChannel, "read_last_entry", noted):
            assert (await client.recover(writer.ledger_id)).last_entry == len(PAYLOADS) - 1
        assert len(fences) < 3 * (QUESTIONS_FIRST + refused_s / (REST_NS_MAX / 1e9))

    play(test)


def test_bookies_that_refuse_load_for_long_are_asked_again_soon_after_they_have_time() -> None:
    """For the length at the end of a ledger whose last fragment is empty: the pauses grow, and have a limit."""
    refused_s = 40.0
    asked: list[str] = []

    async def noted(old: Any, replicas: ReplicaReads, bookie: str, entry_id: int) -> Any:
        asked.append(bookie)
        return await old(replicas, bookie, entry_id)

    async def test(cluster: LateCluster, client: Client) -> None:
        loop = asyncio.get_running_loop()
        writer = await client.create(ensemble=2, write_quorum=2, ack_quorum=2)
        await writer.append_many(PAYLOADS)
        names = writer.metadata.last_fragment.bookies
        writer.abandon()
        ledgers = LedgerStore(cluster.store.session(), MetadataUri.parse(URI))
        stored = await ledgers.read(writer.ledger_id)
        others = [bookie.id for bookie in cluster.spares(names)]
        fragments = (*stored.metadata.fragments, Fragment(len(PAYLOADS), tuple(others[:2])))
        await ledgers.write(writer.ledger_id, replace(stored.metadata, fragments=fragments), stored.version)

        cluster.let_reads(Status.ETOOMANYREQUESTS, names)
        loop.call_later(refused_s, cluster.let_reads, None, names)
        began = loop.time()
        with around(ReplicaReads, "length_at", noted):
            closed = await client.recover(writer.ledger_id)
        assert len(asked) < len(names) * (QUESTIONS_FIRST + refused_s / (REST_NS_MAX / 1e9))
        assert (closed.last_entry, closed.length) == (len(PAYLOADS) - 1, sum(map(len, PAYLOADS)))
        assert refused_s < loop.time() - began < refused_s + REST_NS_MAX / 1e9 + 1.0

    play(test)
