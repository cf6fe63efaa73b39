"""What the parts that follow the cluster do by themselves, from their start on."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from typing import Any

import pytest

from bkspark.metadata.bookie_plans import BookiePlans
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.uri import MetadataUri
from bkspark.wall_clock import wall_clock_ms
from bookie_service.cluster import ledger_metadata_view
from bookie_service.cluster.ledger_metadata_view import LedgerMetadataView
from bookie_service.cluster.peers import ClusterPeers
from bookie_service.cluster.plan_follower import PlanFollower
from bookie_service.cluster.registration import Registration
from tests.bookie.metadata_views import US, metadata, with_cluster
from tests.bookie.registrations import ADDRESS, ID, Bench, run
from tests.polling import until

URI = MetadataUri.parse("zk://h/ledgers")


def test_addresses_of_bookies_are_looked_up_again_and_again() -> None:
    async def look() -> None:
        registry = BookieRegistry(MemoryStore().session(), URI)
        await registry.initialize_cluster()
        await registry.register("a", BookieAddress("127.0.0.1", 1))
        peers = ClusterPeers(registry, interval_s=0.01)
        peers.start()
        await until(lambda: peers.addresses == {"127.0.0.1"}, "the first look-up")
        await registry.register("b", BookieAddress("10.1.2.3", 1))
        await until(lambda: peers.addresses == {"127.0.0.1", "10.1.2.3"}, "another look-up")
        await peers.stop()

    asyncio.run(look())


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (socket.gaierror(socket.EAI_NONAME, "unknown"), {"127.0.0.1"}),
        (OSError(errno.EMFILE, "too many files"), set()),
        (RuntimeError("a defect"), set()),
    ],
    ids=["unknown", "cannot be looked up", "unexpected"],
)
def test_bookie_whose_name_has_no_address_hides_no_other_one(error: Exception, found: set[str]) -> None:
    """Any other error says nothing about the name: the look-up is repeated, and meanwhile the last addresses count."""

    async def look() -> None:
        loop = asyncio.get_running_loop()
        resolve, attempts, fails = loop.getaddrinfo, 0, True

        async def failing(host: str, *arguments: Any, **named: Any) -> Any:
            nonlocal attempts
            attempts += host == "bookie-b"
            if host == "bookie-b" and fails:
                raise error
            return await resolve("10.1.2.3" if host == "bookie-b" else host, *arguments, **named)

        loop.getaddrinfo = failing  # type: ignore[method-assign,assignment]
        registry = BookieRegistry(MemoryStore().session(), URI)
        await registry.initialize_cluster()
        for bookie_id, host in (("a", "127.0.0.1"), ("b", "bookie-b")):
            await registry.register(bookie_id, BookieAddress(host, 1))
        peers = ClusterPeers(registry, interval_s=0.01)
        peers.start()
        await until(lambda: attempts > 1, "the second look-up")
        assert peers.addresses == found
        fails = False
        await until(lambda: peers.addresses == {"127.0.0.1", "10.1.2.3"}, "a look-up that succeeds")
        await peers.stop()

    asyncio.run(look())


@pytest.mark.parametrize("host", ["a..b", "x" * 64, ".b"])
def test_registration_with_a_name_that_no_host_can_have_hides_no_other_bookie(host: str) -> None:
    """A label has 1 to 63 characters (RFC 1035, 2.3.4). Python raises a UnicodeError for others, not a gaierror."""

    async def look() -> None:
        registry = BookieRegistry(MemoryStore().session(), URI)
        await registry.initialize_cluster()
        await registry.register("a", BookieAddress("127.0.0.1", 1))
        await registry.register("b", BookieAddress(host, 1))
        peers = ClusterPeers(registry)
        await peers.refresh()
        assert peers.addresses == {"127.0.0.1"}

    asyncio.run(look())


def test_bookie_is_registered_once_it_has_entered_and_not_before() -> None:
    async def test(bench: Bench) -> None:
        await bench.registry.initialize_cluster()
        registration = Registration(bench.registry, ID, ADDRESS, read_only=False)
        assert not registration.is_registered
        await registration.enter()
        assert registration.is_registered

    run(test)


def test_change_of_the_mode_is_said_with_the_new_mode(caplog: pytest.LogCaptureFixture) -> None:
    async def test(bench: Bench) -> None:
        registration = await bench.registered()
        with caplog.at_level(logging.INFO):
            registration.change(read_only=True, reason="a full disk")
            await registration.settled()

    run(test)
    assert "registered again, as read-only" in caplog.text


def test_part_that_never_started_can_be_stopped() -> None:
    async def stop() -> None:
        tree = MemoryStore().session()
        await ClusterPeers(BookieRegistry(tree, URI)).stop()
        await PlanFollower(BookiePlans(tree, URI), ID, lambda plan: None).stop()

    asyncio.run(stop())


def test_plans_end_by_whole_milliseconds_since_1970(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 7_999_999)
    assert wall_clock_ms() == 7


def test_each_ledger_of_a_bookie_is_listed_once_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_metadata_view, "READS_AT_ONCE", 2)

    async def test(tree: MemoryTree, ledgers: LedgerStore, metadata_view: LedgerMetadataView) -> None:
        for ledger_id in range(7):
            await ledgers.create(metadata(US), ledger_id=ledger_id)
        assert await metadata_view.ledgers_on_bookie() == list(range(7))

    with_cluster(test)


def test_facts_are_known_of_ledger_0_and_of_no_negative_one() -> None:
    async def test(tree: MemoryTree, ledgers: LedgerStore, metadata_view: LedgerMetadataView) -> None:
        await ledgers.create(metadata(US), ledger_id=0)
        assert await metadata_view.facts(0) is not None
        assert await metadata_view.facts(1) is None
        assert await metadata_view.facts(-1) is None

    with_cluster(test)
