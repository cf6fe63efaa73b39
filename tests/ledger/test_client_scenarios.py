"""Historic bugs of replication (docs/reliability.md) as scenarios of the whole client on real bookie services."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from bkspark.client import Client
from bkspark.core.metadata import Fragment
from bkspark.core.recovery import WINDOW_ENTRIES_MAX
from bkspark.core.writer_options import WriterOptions
from bkspark.entries import EntryBatch
from bkspark.errors import LedgerClosed, LedgerFenced, NoSuchLedger
from bkspark.metadata.memory import Fault
from bkspark.net.pool import NetOptions
from bkspark.wire.digest import EntryDigest
from bookie_service.engine.bookie import Bookie
from bookie_service.engine.single_reads import SingleReads
from tests.ledger.in_process import InProcessBookie, InProcessCluster, run


async def decommissioned(cluster: InProcessCluster, client: Client, ledger_id: int) -> None:
    """Take a ledger's two bookies away as operators do, the ledger first; start blank ones at their addresses."""
    context = await client.context()
    old = [cluster.bookie(it) for it in (await client.metadata(ledger_id)).last_fragment.bookies]
    spare = [bookie for bookie in cluster.bookies if bookie not in old]
    await client.recover(ledger_id)
    stored = await context.ledgers.read(ledger_id)
    moved = replace(stored.metadata, fragments=(Fragment(0, tuple(bookie.id for bookie in spare)),))
    await context.ledgers.write(ledger_id, moved, stored.version)
    for bookie in old:
        await bookie.stop()
        bookie.wipe()
        await bookie.start()


@pytest.mark.parametrize("first_entries", [0, 1])
@pytest.mark.parametrize("wire_protocol", ["v2", "v3"])
def test_p20_blank_bookies_at_known_addresses_acknowledge_nothing_of_a_ledger_that_moved(
    tmp_path, first_entries, wire_protocol
):
    """#4812: the writer idles while its ledger is recovered and moved; its own bookies' addresses have blank ones."""

    async def test(cluster):
        writer = await cluster.client(wire_protocol=wire_protocol).create(ensemble=2, write_quorum=2, ack_quorum=2)
        if first_entries:
            assert await writer.append(b"e0") == 0
        await decommissioned(cluster, cluster.client(), writer.ledger_id)
        with pytest.raises(LedgerFenced, match=f"above entry {first_entries - 1} is unknown"):
            await writer.append(b"e1")
        with pytest.raises(LedgerFenced):
            await writer.close()
        closed = await cluster.client().metadata(writer.ledger_id)
        assert closed.last_entry == first_entries - 1

    run(tmp_path, test, bookies=4)


def test_p20_restarted_bookies_of_a_ledger_that_is_still_ours_are_written_to_again(tmp_path):
    async def test(cluster):
        client = cluster.client()
        writer = await client.create()
        await writer.append(b"0")
        for bookie in cluster.bookies:
            await bookie.stop()
            await bookie.start()
        # The store is away when it is asked whether the ledger is ours, and then answers.
        cluster.store.faults[cluster.store.writes] = Fault.LOST_BEFORE
        assert await writer.append(b"1") == 1
        await writer.close()
        reader = await cluster.client().open(writer.ledger_id)
        assert list(await reader.read(0, 1)) == [b"0", b"1"]

    run(tmp_path, test)


@pytest.mark.parametrize("end", ["append", "close"])
def test_z5_writer_waits_for_a_metadata_store_that_is_away(tmp_path, end):
    """Its ensemble must change, or its ledger be closed: nothing is acknowledged until that is stored."""

    async def test(cluster):
        writer = await cluster.client().create()
        await writer.append(b"0")
        if end == "append":
            await cluster.bookie(writer.core.slots.ensemble[0]).stop()
        # As often as one compare-and-set is tried, twice over.
        cluster.store.faults.update(
            dict.fromkeys(range(cluster.store.writes, cluster.store.writes + 10), Fault.LOST_BEFORE)
        )
        if end == "append":
            assert await writer.append(b"1") == 1
        assert (await writer.close()).last_entry == writer.last_entry

    run(tmp_path, test, bookies=4)


def test_p20_writer_of_a_ledger_that_was_deleted_meanwhile_ends(tmp_path):
    async def test(cluster):
        writer = await cluster.client().create()
        await cluster.client().delete(writer.ledger_id)
        with pytest.raises(NoSuchLedger, match=str(writer.ledger_id)):
            await writer.append(b"late")

    run(tmp_path, test)


def test_p01_every_read_of_a_recovery_fences(tmp_path, monkeypatch):
    """Whichever bookie's vote counts is fenced, though its fence was lost: on the wire, too."""
    fencing, plain, fenced = [], [], []
    fence_and_read, proceed = Bookie.fence_and_read, SingleReads.proceed

    def noting_fences(bookie, client, ledger_id, key, reading):
        fenced.append(reading)
        fencing.extend(reading.entry_ids.tolist())
        return fence_and_read(bookie, client, ledger_id, key, reading)

    def noting_reads(reading, *arguments):
        if not any(reading is each for each in fenced):
            plain.extend(reading.entry_ids.tolist())
        return proceed(reading, *arguments)

    async def test(cluster):
        for wire_protocol in ("v2", "v3"):
            writer = await cluster.client().create()
            await writer.append_many([b"0"] * 20)
            writer.abandon()
            fencing.clear()
            client = cluster.client(wire_protocol=wire_protocol)
            assert (await client.recover(writer.ledger_id)).last_entry == 19
            assert {-1, *range(20)} <= set(fencing)
            assert plain == []

    monkeypatch.setattr(Bookie, "fence_and_read", noting_fences)
    monkeypatch.setattr(SingleReads, "proceed", noting_reads)
    run(tmp_path, test)


def test_x01_entries_that_a_recovery_wrote_in_several_windows_carry_the_lac_it_began_with(tmp_path):
    async def test(cluster):
        client = cluster.client()
        writer = await client.create()
        last = await writer.append_many([b"0"] * (WINDOW_ENTRIES_MAX + 10))
        writer.abandon()
        assert (await client.recover(writer.ledger_id)).last_entry == last
        pool, digest = (await client.context()).pool, EntryDigest(writer.metadata.digest, b"")
        for bookie in writer.metadata.last_fragment.bookies:
            answer = await (await pool.channel(bookie)).read_last_entry(writer.ledger_id, digest)
            assert (answer.entry.entry_id, answer.entry.lac, answer.entry.length) == (last, -1, last + 1)

    run(tmp_path, test)


async def silenced(bookie: InProcessBookie) -> asyncio.Server:
    """Put something in a bookie's place that takes connections and never answers."""

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 16):
            pass
        writer.close()

    await bookie.stop()
    host, port = bookie.id.split(":")
    return await asyncio.start_server(swallow, host, int(port))


@pytest.mark.parametrize("quorums", [(2, 2, 2), (3, 2, 2), (3, 3, 3)])
def test_p09_silent_bookie_costs_a_recovery_one_time_out_though_no_entry_can_do_without_it(tmp_path, quorums):
    """Reads showed that it is silent: the rewriting, whose own time-out is an hour here, does not wait for it again."""

    async def test(cluster):
        ensemble, write_quorum, ack_quorum = quorums
        writer = await cluster.client().create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)
        await writer.append_many([b"%d" % number for number in range(12)])
        writer.abandon()
        client = cluster.client(net=NetOptions(read_timeout_s=1.0), writer=WriterOptions(add_timeout_s=3600.0))
        async with await silenced(cluster.bookie(writer.metadata.last_fragment.bookies[0])):
            reader = await client.open(writer.ledger_id, recover=True)
            assert list(await reader.read(0, 11)) == [b"%d" % number for number in range(12)]
            assert reader.metadata.last_fragment.bookies[0] != writer.metadata.last_fragment.bookies[0]

    run(tmp_path, test, bookies=4)


def test_p09_silent_bookie_of_an_earlier_fragment_is_not_waited_for(tmp_path):
    """Nothing was added after an ensemble change: only the length is requested there, and reads have an hour."""

    async def test(cluster):
        writer = await cluster.client().create(ensemble=2, write_quorum=2, ack_quorum=2)
        await writer.append_many([b"12345"] * 10)
        writer.abandon()
        old = writer.metadata.last_fragment.bookies
        client = cluster.client(net=NetOptions(read_timeout_s=3600.0))
        ledgers = (await client.context()).ledgers
        new = [bookie.id for bookie in cluster.bookies if bookie.id not in old]
        await ledgers.write(writer.ledger_id, writer.metadata.with_ensemble(10, new), 0)
        async with await silenced(cluster.bookie(old[0])):
            closed = await client.recover(writer.ledger_id)
        assert (closed.last_entry, closed.length) == (9, 50)

    run(tmp_path, test, bookies=4)


def test_p23_same_entry_for_several_purposes_on_shared_connections_answers_every_caller(tmp_path):
    """#720, #1547: V2 replies name no request. Owner, recoverers and readers of one client, all at once."""

    async def test(cluster):
        client = cluster.client()
        writer = await client.create()
        payloads = [b"%d" % number for number in range(200)]
        await writer.append_many(payloads)
        pool = (await client.context()).pool
        digest = EntryDigest(writer.metadata.digest, b"")
        channel = await pool.channel(writer.core.slots.ensemble[0])
        reads = [channel.read_entries(writer.ledger_id, np.arange(200), digest) for _ in range(4)]
        reads += [channel.read_entries(writer.ledger_id, np.array([7]), digest) for _ in range(4)]
        late = [writer.append(b"late") for _ in range(4)]
        recoveries = [client.recover(writer.ledger_id) for _ in range(4)]
        found = await asyncio.gather(*reads, *late, *recoveries, return_exceptions=True)
        for answers in found[:4]:
            assert [bytes(payload) for payload in answers.payloads] == payloads
        for answers in found[4:8]:
            assert [bytes(payload) for payload in answers.payloads] == [b"7"]
        ends = {(metadata.last_entry, metadata.length) for metadata in found[12:]}
        assert len(ends) == 1
        last_entry = ends.pop()[0]
        for outcome in found[8:12]:
            assert isinstance(outcome, (LedgerFenced, LedgerClosed)) or outcome <= last_entry

    run(tmp_path, test)


def test_p32_bytes_that_a_caller_or_a_connection_uses_again_change_no_entry(tmp_path):
    """#4404: what is on its way was sealed before the call returned, whatever becomes of the memory it came from."""

    async def test(cluster):
        client = cluster.client(digest="mac", password=b"secret")
        generator = np.random.default_rng(32)
        expected, pending = [], []
        async with await client.create() as writer:
            memory = bytearray(200_000)
            for number in range(40):
                memory[:] = generator.bytes(len(memory))
                bounds = [0, *sorted(generator.integers(0, len(memory), 5).tolist()), len(memory)]
                expected += [bytes(memory[a:b]) for a, b in pairwise(bounds)]
                views = [memoryview(memory)[a:b] for a, b in pairwise(bounds)]
                pending.append(await writer.submit(EntryBatch.of(views) if number % 2 else views))
            await asyncio.gather(*pending)
        readers = [await cluster.client(password=b"secret").open(writer.ledger_id) for _ in range(3)]

        async def read_all(reader):
            return [entry async for batch in reader.batches() for entry in batch]

        for entries in await asyncio.gather(*map(read_all, readers)):
            assert entries == expected

    run(tmp_path, test)
