"""A task reads in its own thread: entry logs of a bookie on its own host, and other bookies over the network.

What such scans do not give is read on the event loop, from all replicas.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from pyspark.sql.types import StructType

from bkspark.blocking import network_scan, scans
from bkspark.blocking.network_scan import NetworkScan
from bkspark.client import Client
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.entries import EntryBatch
from bkspark.ledger import range_reader
from bkspark.net import local_reads
from bkspark.net.local_reads import LocalBookie
from bkspark.spark import read as spark_read
from bkspark.spark.local_files import NO_PASSWORD
from bkspark.spark.options import SourceOptions
from bkspark.spark.partitions import LedgerRead, ReadPartition
from bkspark.spark.read import read_partition
from tests.ledger.in_process import URI, InProcessBookie, InProcessCluster, run

SCHEMA = StructType().add("value", "binary")
PAYLOADS = [b"%06d" % number * 100 for number in range(3000)]


@pytest.fixture(autouse=True)
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_read, "READ_BYTES", 300_000)
    monkeypatch.setattr(scans, "LOCAL_BYTES", 300_000)
    monkeypatch.setattr(scans, "LOCAL_ENTRIES", 4)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[list[EntryBatch]]:
    """What local reads gave, in order."""
    results: list[list[EntryBatch]] = []
    read = LocalBookie.read

    def note(self: LocalBookie, *arguments: object) -> Iterator[EntryBatch]:
        results.append([])
        for entries in read(self, *arguments):
            results[-1].append(entries)
            yield entries

    monkeypatch.setattr(LocalBookie, "read", note)
    return results


async def task(
    cluster: InProcessCluster,
    ledger_id: int,
    metadata: LedgerMetadata,
    after_first: Callable[[], None] = lambda: None,
    count: int = len(PAYLOADS),
) -> list[bytes]:
    """Return what a Spark task reads, on a thread of its own."""
    addresses = {bookie.id: ("127.0.0.1", int(bookie.id.split(":")[1])) for bookie in cluster.bookies}
    reads = (LedgerRead(0, ledger_id, 0, count, metadata, 0, ""),)
    options = SourceOptions.parse({"uri": URI, "ledgers": str(ledger_id)}).for_batch_read()

    def rows() -> list[bytes]:
        found: list[bytes] = []
        for batch in read_partition(ReadPartition(reads, addresses, NO_PASSWORD), SCHEMA, options):
            if not found:
                after_first()
            found += batch["value"].to_pylist()
        return found

    return await asyncio.to_thread(rows)


async def written(client: Client, copies: int, flushed: InProcessBookie | None = None) -> tuple[int, LedgerMetadata]:
    """Write a ledger of all payloads; with `flushed`, only the first two thirds are in that bookie's entry log."""
    async with await client.create(ensemble=copies, write_quorum=copies, ack_quorum=copies) as writer:
        await writer.append_many(PAYLOADS[:2000])
        if flushed is not None:
            await flushed.service.flush()
        await writer.append_many(PAYLOADS[2000:])
    return writer.ledger_id, await client.metadata(writer.ledger_id)


def test_a_task_reads_what_lies_in_entry_logs_itself(tmp_path, given):
    async def test(cluster: InProcessCluster) -> None:
        ledger = await written(cluster.client(), 1)
        await cluster.bookies[0].flush()
        assert await task(cluster, *ledger) == PAYLOADS
        assert sum(len(part) for parts in given for part in parts) == len(PAYLOADS)

    run(tmp_path, test, bookies=1)


def test_large_entries_are_read_into_few_batches(tmp_path, given, monkeypatch):
    monkeypatch.setattr(local_reads, "BATCH_BYTES", 300_000)
    large = [b"%04d" % number * 25_000 for number in range(24)]

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        async with await client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
            await writer.append_many(large)
        await cluster.bookies[0].flush()
        metadata = await client.metadata(writer.ledger_id)
        assert await task(cluster, writer.ledger_id, metadata, count=len(large)) == large
        # Four are asked for at once, however large they are.
        assert [[len(part) for part in parts] for parts in given[:3]] == [[3, 1], [3, 1], [3, 1]]
        assert given[0][0].offsets.tolist() == [0, 100_000, 200_000, 300_000]
        assert len(given[0][0].buffer) == 300_000

    run(tmp_path, test, bookies=1)


def test_what_lies_between_large_entries_is_not_read(tmp_path, given):
    """A flush writes ledgers one after the other, so those of the next flush come after other ledgers' entries."""
    large = [b"%04d" % number * 25_000 for number in range(8)]

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        writer, other = [await client.create(ensemble=1, write_quorum=1, ack_quorum=1) for _ in range(2)]
        async with writer, other:
            for payload in large:
                await writer.append_many([payload])
                await other.append_many([payload])
                await cluster.bookies[0].flush()
        metadata = await client.metadata(writer.ledger_id)
        assert await task(cluster, writer.ledger_id, metadata, count=len(large)) == large
        assert [len(part.buffer) for parts in given for part in parts] == [100_000] * len(large)

    run(tmp_path, test, bookies=1)


def test_a_task_asks_for_what_is_in_the_write_cache_and_goes_on(tmp_path, given):
    async def test(cluster: InProcessCluster) -> None:
        ledger = await written(cluster.client(), 1, cluster.bookies[0])
        assert await task(cluster, *ledger) == PAYLOADS
        assert sum(len(part) for parts in given for part in parts) == 2000
        # It asks again now and then, ever more rarely: after 500, 1000, 2000 ... entries.
        assert given.count([]) == 2

    run(tmp_path, test, bookies=1)


def test_a_task_leaves_a_bookie_that_stops_for_another(tmp_path, given):
    async def test(cluster: InProcessCluster) -> None:
        ledger = await written(cluster.client(), 2)
        for bookie in cluster.bookies:
            await bookie.flush()
        loop = asyncio.get_running_loop()
        first = cluster.bookie(ledger[1].last_fragment.bookies[0])

        def stop() -> None:
            asyncio.run_coroutine_threadsafe(first.stop(), loop).result()

        assert await task(cluster, *ledger, stop) == PAYLOADS
        assert len([parts for parts in given if parts]) > 2

    run(tmp_path, test, bookies=2)


def test_a_bookie_is_read_within_its_fragment_only(tmp_path, given):
    """What a bookie has of later entries does not count any more: an ensemble change has named another one."""

    async def test(cluster: InProcessCluster) -> None:
        ledger_id, metadata = await written(cluster.client(), 2)
        for bookie in cluster.bookies:
            await bookie.flush()
        one, two = metadata.last_fragment.bookies
        changed = replace(
            metadata,
            ensemble_size=1,
            write_quorum=1,
            ack_quorum=1,
            fragments=(Fragment(0, (one,)), Fragment(700, (two,))),
        )
        assert await task(cluster, ledger_id, changed) == PAYLOADS
        ends = [part.end_entry for parts in given for part in parts]
        assert (ends[:2], ends[-1]) == ([500, 700], len(PAYLOADS))

    run(tmp_path, test, bookies=2)


def test_a_short_read_is_asked_for_at_once(tmp_path, given, monkeypatch):
    async def test(cluster: InProcessCluster) -> None:
        ledger = await written(cluster.client(), 1)
        await cluster.bookies[0].flush()
        with monkeypatch.context() as changed:
            changed.setattr(spark_read, "SCAN_BYTES_MIN", range_reader.SCAN_BYTES_MIN * 100)
            assert await task(cluster, *ledger) == PAYLOADS
        assert not given

    run(tmp_path, test, bookies=1)


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many entries each batch of a scan over the network has; nothing is read locally."""
    monkeypatch.setattr(scans.LocalScan, "can_read", lambda *arguments: False)
    monkeypatch.setattr(scans.LocalScan, "read", lambda *arguments: iter(()))
    monkeypatch.setattr(network_scan, "REQUEST_BYTES", 100_000)
    monkeypatch.setattr(scans, "REMOTE_BYTES", 400_000)
    counts: list[int] = []
    read = NetworkScan.read

    def note(self: NetworkScan, *arguments: object) -> Iterator[EntryBatch]:
        for entries in read(self, *arguments):
            counts.append(len(entries))
            yield entries

    monkeypatch.setattr(NetworkScan, "read", note)
    return counts


def test_a_task_scans_a_bookie_on_another_host(tmp_path, scanned):
    async def test(cluster: InProcessCluster) -> None:
        ledger = await written(cluster.client(), 1, cluster.bookies[0])
        assert await task(cluster, *ledger) == PAYLOADS
        assert sum(scanned) == len(PAYLOADS)

    run(tmp_path, test, bookies=1)


@pytest.mark.parametrize("is_wiped", [False, True], ids=["stopped", "without its entries"])
def test_a_task_reads_other_replicas_where_a_scan_ends(tmp_path, scanned, is_wiped):
    async def test(cluster: InProcessCluster) -> None:
        ledger_id, metadata = await written(cluster.client(), 2)
        loop = asyncio.get_running_loop()
        bookies = metadata.last_fragment.bookies
        victim = cluster.bookie(bookies[ledger_id % len(bookies)])

        async def fail() -> None:
            await victim.stop()
            if is_wiped:
                victim.wipe()
                await victim.start()

        def fail_now() -> None:
            asyncio.run_coroutine_threadsafe(fail(), loop).result()

        assert await task(cluster, ledger_id, metadata, fail_now) == PAYLOADS
        assert 0 < sum(scanned) <= len(PAYLOADS)

    run(tmp_path, test, bookies=2)


def test_a_task_reads_a_striped_ledger_without_scans(tmp_path, scanned):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        async with await client.create(ensemble=3, write_quorum=2, ack_quorum=2) as writer:
            await writer.append_many(PAYLOADS)
        assert await task(cluster, writer.ledger_id, await client.metadata(writer.ledger_id)) == PAYLOADS
        assert not scanned

    run(tmp_path, test)
