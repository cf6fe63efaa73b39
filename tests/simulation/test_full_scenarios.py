"""Directed scenarios of the full tier: what its random schedules found, and defects that they find too rarely."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from typing import TypeVar

import pytest

from bkspark.client import Client
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.core.striping import write_set
from bkspark.errors import BookKeeperError
from bkspark.ledger.bookies import PlacementOptions
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.uri import MetadataUri
from bkspark.wire.status import Status
from tests.planting import changed
from tests.simulation import full_links
from tests.simulation.full_cluster import URI, Cluster, FullBookie
from tests.simulation.full_faults import links_of
from tests.simulation.full_links import TO_BOOKIE, TO_CLIENT, Adds, Observer
from tests.simulation.full_schedule import as_client
from tests.simulation.virtual_loop import VirtualLoop

_T = TypeVar("_T")
LAC_LOW_BYTE = 23


def on_cluster(bookies: int, work: Callable[[Cluster], Awaitable[_T]], seed: int = 1) -> _T:
    """Return what `work` does on a new cluster, in at most a minute of virtual time."""
    random = Random(seed)
    cluster = Cluster(random, bookies)
    cluster.network_s = cluster.journal_s = cluster.metadata_s = 0.001
    loop = VirtualLoop(cluster.connect)

    async def run() -> _T:
        await cluster.start()
        async with asyncio.timeout(60.0):
            return await work(cluster)

    with changed(secrets, "randbits", lambda old: random.getrandbits):
        result = loop.run_until_complete(run())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    return result


def missing_copies(cluster: Cluster, ledger_id: int, metadata: LedgerMetadata) -> list[tuple[int, str]]:
    """Return (entry, bookie) of each copy that metadata promise and the bookie does not hold."""
    missing = []
    for entry_id in range(metadata.last_entry + 1):
        bookies = metadata.fragment_of(entry_id).bookies
        for slot in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum):
            twin = cluster.bookie(bookies[slot]).twin
            if twin is None or twin.read(ledger_id, entry_id)[0] != Status.EOK:
                missing.append((entry_id, bookies[slot]))
    return missing


def test_recovery_closes_only_after_it_has_sent_the_copies_to_a_replacement() -> None:
    """A bookie is lost while entries are written back, and a spare takes its place: metadata name it at the close.

    Qa others acknowledge the entries before the spare is connected. A ledger that is closed then lacks its copies.
    """

    class LosesOne(Observer):
        """Drops the recovery's connection to the first bookie that an entry is written back to."""

        def __init__(self, cluster: Cluster) -> None:
            self._cluster = cluster
            self.lost = ""

        def on_adds(self, bookie: FullBookie, who: str, adds: Adds) -> None:
            if not self.lost and adds.is_recovery:
                self.lost = bookie.id
                for link in links_of(self._cluster, bookie, who):
                    link.abort()

    async def recover(cluster: Cluster) -> tuple[LedgerMetadata, str, list[tuple[int, str]]]:
        async with Client(URI, tree=cluster.session()) as owner, Client(URI, tree=cluster.session()) as other:
            writer = await owner.create(ensemble=3, write_quorum=3, ack_quorum=2)
            await writer.append_many([b"entry"] * 3)
            await asyncio.sleep(1.0)
            writer.abandon()
            cluster.observer = observer = LosesOne(cluster)
            cluster.observes = True
            connect, cluster.connect_s = cluster.connect_s, 0.5
            metadata = await as_client("recoverer", other.recover(writer.ledger_id))
            cluster.connect_s = connect
            await asyncio.sleep(1.0)
            return metadata, observer.lost, missing_copies(cluster, writer.ledger_id, metadata)

    metadata, lost, missing = on_cluster(4, recover)
    assert lost not in metadata.last_fragment.bookies
    assert missing == []


@pytest.mark.parametrize(
    ("protocol", "status"),
    [("v2", Status.EIO), ("v3", Status.EIO), ("v3", Status.EUNKNOWNLEDGERSTATE), ("v2", Status.ETOOMANYREQUESTS)],
)
def test_p26_answer_that_is_not_certain_is_not_a_vote_against_an_entry(protocol: str, status: Status) -> None:
    """Two of three bookies took an entry. One of them answers with an error, before the other one is heard.

    The third one lacks the entry, and says so. Two negatives are the end of the ledger, and there is only one.
    """

    class HoldsBack(Observer):
        """Lets what one bookie answers to the reads of a recovery come last."""

        def __init__(self, cluster: Cluster, last: str) -> None:
            self._cluster = cluster
            self._last = last

        def on_request(self, kind: str, bookie: FullBookie, who: str) -> None:
            if kind == "recovery read" and bookie.id == self._last:
                for link in links_of(self._cluster, bookie, who):
                    link.hold(TO_CLIENT, 0.2)

    async def recover(cluster: Cluster) -> tuple[int, int]:
        async with (
            Client(URI, tree=cluster.session(), wire_protocol=protocol) as owner,
            Client(URI, tree=cluster.session(), wire_protocol=protocol) as other,
        ):
            writer = await as_client("owner", owner.create(ensemble=3, write_quorum=3, ack_quorum=2))
            await as_client("owner", writer.append_many([b"everywhere"] * 2))
            await asyncio.sleep(0.5)
            # Entry 2 is asked of slot 2 first, then of the others.
            fails, holds, lacks = (cluster.bookie(name) for name in writer.metadata.last_fragment.bookies)
            for link in links_of(cluster, lacks, "owner"):
                link.is_cut[TO_BOOKIE] = True
            acknowledged = await writer.append(b"on two of three")
            writer.abandon()
            fails.read_error = status
            cluster.observer, cluster.observes = HoldsBack(cluster, holds.id), True
            recovering = as_client("recoverer", other.recover(writer.ledger_id))
            await asyncio.sleep(1.0)
            fails.read_error = None
            return acknowledged, (await recovering).last_entry

    acknowledged, last_entry = on_cluster(3, recover)
    assert acknowledged == last_entry == 2


def test_p36_reader_looks_where_its_entries_have_moved() -> None:
    """Metadata name other bookies since the reader was opened, as after a repair."""

    async def read(cluster: Cluster) -> list[bytes]:
        ledgers = LedgerStore(cluster.store.session(), MetadataUri.parse(URI))
        async with Client(URI, tree=cluster.session()) as client:
            writer = await client.create(ensemble=2, write_quorum=2, ack_quorum=2)
            await writer.append_many([b"one", b"two"])
            metadata = await writer.close()
            others = tuple(it.id for it in cluster.bookies if it.id not in metadata.last_fragment.bookies)
            stored = await ledgers.read(writer.ledger_id)
            moved = replace(metadata, fragments=(Fragment(0, others),))
            written = await ledgers.write(writer.ledger_id, moved, stored.version)
            reader = await client.open(writer.ledger_id)
            await ledgers.write(writer.ledger_id, metadata, written.version)
            with contextlib.suppress(BookKeeperError):
                return [bytes(payload) for payload in await reader.read(0, 1)]
            return []

    assert on_cluster(4, read) == [b"one", b"two"]


def test_answers_of_a_replaced_bookie_count_for_nothing() -> None:
    """They come on its old connection when another bookie has its slot, which has stored nothing yet."""

    async def write(cluster: Cluster) -> tuple[bool, int]:
        async with Client(URI, tree=cluster.session()) as client:
            writer = await client.create(ensemble=2, write_quorum=2, ack_quorum=2)
            await writer.append(b"everybody answers")
            failing = cluster.bookie(writer.metadata.last_fragment.bookies[0])
            (spare,) = (it for it in cluster.bookies if it.id not in writer.metadata.last_fragment.bookies)
            failing.is_journal_hung = spare.is_journal_hung = True
            first = await writer.submit([b"taken, and not stored yet"])
            await asyncio.sleep(0.1)
            failing.add_error = Status.EIO
            second = await writer.submit([b"refused"])
            while spare.id not in writer.metadata.last_fragment.bookies:
                await asyncio.sleep(0.01)
            failing.wake()
            await asyncio.sleep(0.1)
            was_acknowledged = first.done()
            spare.wake()
            await asyncio.gather(first, second)
            return was_acknowledged, (await writer.close()).last_entry

    assert on_cluster(3, write) == (False, 2)


def test_owners_change_of_bookies_keeps_what_a_repair_has_changed_meanwhile() -> None:
    """The owner's change is refused, because the repair's came first, and is made again on the metadata of the repair.

    An owner that took its own change for stored would overwrite the repair's with the next one (P05).
    """

    async def write(cluster: Cluster) -> tuple[tuple[str, ...], tuple[str, ...]]:
        ledgers = LedgerStore(cluster.store.session(), MetadataUri.parse(URI))
        async with Client(URI, tree=cluster.session()) as client:
            writer = await client.create(ensemble=2, write_quorum=2, ack_quorum=2)
            for payload in (b"in the first fragment", b"in the second one"):
                await writer.append(payload)
                stored = await ledgers.read(writer.ledger_id)
                first = stored.metadata.fragments[0].bookies
                cluster.bookie(stored.metadata.last_fragment.bookies[0]).add_error = Status.EIO
            others = {it.id for it in cluster.bookies if it.add_error is None} - {*first}
            repaired = Fragment(0, (min(others), first[1]))
            moved = replace(stored.metadata, fragments=(repaired, *stored.metadata.fragments[1:]))
            await ledgers.write(writer.ledger_id, moved, stored.version)
            await writer.append(b"in the third one")
            return (await writer.close()).fragments[0].bookies, repaired.bookies

    found, repaired = on_cluster(5, write)
    assert found == repaired


def test_bookie_that_answers_adds_with_errors_is_avoided_though_it_can_be_reached() -> None:
    """A writer that goes on without a bookie reports it: other writers of the client leave it out (`quarantine`)."""

    async def write(cluster: Cluster) -> bool:
        placement = PlacementOptions(quarantine_failures=1)
        async with Client(URI, tree=cluster.session(), placement=placement) as client:
            writer = await client.create(ensemble=2, write_quorum=2, ack_quorum=2)
            failing = writer.metadata.fragments[0].bookies[0]
            cluster.bookie(failing).add_error = Status.EIO
            await writer.append(b"by the other bookie and a new one")
            watcher = (await client.context()).watcher
            return (await watcher.candidates(2)).topology.avoided == {failing}

    assert on_cluster(3, write)


def test_last_entry_that_does_not_match_its_digest_tells_no_lac() -> None:
    """A bit of its LAC is another one, and the LAC lies below the entry still: only the digest shows it."""

    def flip(entry: memoryview, _: Cluster) -> None:
        entry[LAC_LOW_BYTE] ^= 4

    async def look(cluster: Cluster) -> int:
        async with Client(URI, tree=cluster.session()) as owner, Client(URI, tree=cluster.session()) as other:
            writer = await owner.create(ensemble=3, write_quorum=3, ack_quorum=2)
            await writer.append(b"carries LAC -1")
            await writer.append_many([b"carries LAC 0"] * 8)
            await asyncio.sleep(0.5)
            damaging, _, late = (cluster.bookie(name) for name in writer.metadata.last_fragment.bookies)
            damaging.is_damaging = late.is_hung = True
            asyncio.get_running_loop().call_later(0.3, late.wake)
            reader = await other.open(writer.ledger_id)
            writer.abandon()
            return reader.last_entry

    with changed(full_links, "_flip_somewhere", lambda old: flip):
        assert on_cluster(3, look) == 0
