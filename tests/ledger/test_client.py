"""The ledger client against real bookie services."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from bkspark.core.metadata import Fragment, LedgerState
from bkspark.errors import (
    ConfigurationError,
    LedgerClosed,
    LedgerFenced,
    NoSuchLedger,
    NotEnoughBookies,
    UnauthorizedAccess,
)
from bkspark.ledger.replica_reads import ReplicaReads
from bkspark.net.pool import NetOptions
from bkspark.wire.digest import EntryDigest
from tests.ledger.in_process import read_all, run

QUORUMS = [(1, 1, 1), (2, 2, 2), (3, 3, 2), (3, 2, 2), (3, 1, 1), (3, 2, 1)]


def payloads_of(count, seed=1, size_max=2000):
    generator = np.random.default_rng(seed)
    return [generator.bytes(int(generator.integers(0, size_max))) for _ in range(count)]


@pytest.mark.parametrize("digest", ["crc32c", "crc32", "mac", "dummy"])
@pytest.mark.parametrize("quorums", QUORUMS)
def test_entries_are_read_back_as_appended(tmp_path, quorums, digest):
    async def test(cluster):
        ensemble, write_quorum, ack_quorum = quorums
        client = cluster.client(digest=digest, password=b"secret")
        payloads = payloads_of(700)
        writer = await client.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)
        assert await writer.append(payloads[0]) == 0
        assert await writer.append_many(payloads[1:]) == len(payloads) - 1
        metadata = await writer.close()
        assert (metadata.last_entry, metadata.length) == (len(payloads) - 1, sum(map(len, payloads)))
        reader = await client.open(writer.ledger_id)
        assert reader.is_closed
        assert await read_all(reader) == payloads
        batch = await reader.read(100, 399)
        assert (batch.ledger_id, batch.first_entry, list(batch)) == (writer.ledger_id, 100, payloads[100:400])

    run(tmp_path, test)


@pytest.mark.slow
@pytest.mark.parametrize("wire_protocol", ["v2", "v3"])
@pytest.mark.parametrize("quorums", [(1, 1, 1), (3, 2, 2), (3, 1, 1)])
def test_batches_stay_small_where_entries_are_suddenly_large(tmp_path, quorums, wire_protocol):
    """How many entries a read-ahead asks for goes by the sizes of those before: 3,000 small ones, here."""

    async def test(cluster):
        ensemble, write_quorum, ack_quorum = quorums
        frame, batch, large = 256 * 1024, 64 * 1024, 32 * 1024
        client = cluster.client(net=NetOptions(frame_bytes_max=frame), wire_protocol=wire_protocol)
        payloads = [b"%d" % i for i in range(3_000)] + [b"%05d" % i + bytes(large) for i in range(200)] + [b"last"] * 9
        writer = await client.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)
        await writer.append_many(payloads)
        await writer.close()
        reader = await client.open(writer.ledger_id)
        batches = [it async for it in reader.batches(batch_bytes=batch)]
        assert [entry for it in batches for entry in it] == payloads
        assert [it.first_entry for it in batches[1:]] == [it.end_entry for it in batches[:-1]]
        if ensemble == 1 and wire_protocol == "v2":
            assert max(it.payload_bytes for it in batches) <= 2 * batch + frame

    run(tmp_path, test)


def test_entries_of_zero_bytes_to_the_frame_limit(tmp_path):
    async def test(cluster):
        client = cluster.client()
        payloads = [b"", b"x", b"y" * 5_000_000, b"", b"z" * 1_000_000]
        async with await client.create() as writer:
            await writer.append_many(payloads)
            # One that is too large fails alone, whatever it would have travelled with.
            together = (writer.append(entry) for entry in (b"a", b"b", bytes(6_000_000), b"c"))
            *taken, refused, last = await asyncio.gather(*together, return_exceptions=True)
            assert "nettyMaxFrameSizeBytes" in str(refused)
            assert [*taken, last] == [5, 6, 7]
            payloads += [b"a", b"b", b"c"]
        assert await read_all(await client.open(writer.ledger_id)) == payloads

    run(tmp_path, test)


def test_arrow_arrays_and_concurrent_appends(tmp_path):
    async def test(cluster):
        client = cluster.client()
        async with await client.create() as writer:
            ids = await asyncio.gather(*(writer.append(b"%d" % number) for number in range(500)))
            assert sorted(ids) == list(range(500))
            assert await writer.append_many(pa.array([b"a", b"bc", b""])) == 502
            assert await writer.append_many(pa.chunked_array([["d"], ["e"]])) == 504
            assert await writer.append_many([]) == 504
        entries = await read_all(await client.open(writer.ledger_id))
        assert [entries[entry_id] for entry_id in ids] == [b"%d" % number for number in range(500)]
        assert entries[500:] == [b"a", b"bc", b"", b"d", b"e"]

    run(tmp_path, test)


def test_open_ledger_is_read_to_its_lac_without_fencing(tmp_path):
    async def test(cluster):
        client = cluster.client()
        writer = await client.create()
        await writer.append_many([b"0", b"1"])
        await writer.append(b"2")
        reader = await client.open(writer.ledger_id)
        assert reader.last_entry == 1  # entry 2 carries the LAC that the writer knew when it was sent
        assert reader.last_unconfirmed == 2
        assert await read_all(reader) == [b"0", b"1"]
        assert list(await reader.read(0, 2, unconfirmed=True)) == [b"0", b"1", b"2"]
        with pytest.raises(ValueError, match="confirmed"):
            await reader.read(0, 2)
        await writer.append(b"3")
        assert await reader.refresh() == 2
        await writer.close()
        assert await reader.refresh() == 3

    run(tmp_path, test)


def test_follow_yields_every_entry_until_the_ledger_is_closed(tmp_path):
    async def test(cluster):
        client = cluster.client()
        writer = await client.create()

        async def write():
            for number in range(20):
                await writer.append(b"%d" % number)
            await writer.close()

        writing = asyncio.ensure_future(write())
        reader = await client.open(writer.ledger_id)
        followed = [entry async for batch in reader.follow() for entry in batch]
        await writing
        assert followed == [b"%d" % number for number in range(20)]

    run(tmp_path, test)


def test_recovery_fences_the_writer_and_both_agree_on_the_end(tmp_path):
    """BookKeeper protocol.md, Fencing: the writer that was fenced gets an error and cannot append any more."""

    async def test(cluster):
        first, second = cluster.client(), cluster.client()
        writer = await first.create()
        acknowledged = []

        async def write():
            number = 0
            while True:
                await writer.append_many([b"%d" % (number + offset) for offset in range(10)])
                number += 10
                acknowledged.append(number)

        writing = asyncio.ensure_future(write())
        while len(acknowledged) < 5:
            await asyncio.sleep(0)
        reader = await second.open(writer.ledger_id, recover=True)
        with pytest.raises(LedgerFenced):
            await writing
        with pytest.raises(LedgerFenced):
            await writer.append(b"late")
        with pytest.raises(LedgerFenced):
            await writer.close()
        assert reader.is_closed
        entries = await read_all(reader)
        assert entries == [b"%d" % number for number in range(len(entries))]
        assert len(entries) >= acknowledged[-1]
        metadata = await first.metadata(writer.ledger_id)
        assert (metadata.last_entry, metadata.length) == (len(entries) - 1, sum(map(len, entries)))

    run(tmp_path, test)


@pytest.mark.slow
@pytest.mark.parametrize("quorums", QUORUMS)
@pytest.mark.parametrize("count", [0, 1, 3, 700])
def test_ledger_left_open_is_recovered_with_every_entry(tmp_path, quorums, count):
    async def test(cluster):
        ensemble, write_quorum, ack_quorum = quorums
        client = cluster.client()
        writer = await client.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)
        payloads = payloads_of(count)
        if payloads:
            await writer.append_many(payloads)
        writer.abandon()
        metadata = await client.recover(writer.ledger_id)
        assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, count - 1)
        assert metadata.length == sum(map(len, payloads))
        assert await read_all(await client.open(writer.ledger_id)) == payloads

    run(tmp_path, test)


def test_large_entries_that_a_recovery_copies_carry_the_bytes_up_to_each(tmp_path):
    """§3.1: the length in an entry's header. A window of them is sent in several pieces.

    How many are confirmed to the bookies before the others are sent, and so not copied, is chance: one of five
    recoveries must copy several.
    """
    counts = []

    async def test(cluster):
        client = cluster.client()
        writer = await client.create()
        before = set(writer.metadata.last_fragment.bookies)
        await writer.append_many([bytes(300_000)] * 6)
        writer.abandon()
        (spare,) = {bookie.id for bookie in cluster.bookies} - before
        await cluster.bookie(min(before)).stop()
        closed = await client.recover(writer.ledger_id)
        assert (closed.last_entry, closed.length) == (5, 1_800_000)
        assert spare in closed.last_fragment.bookies
        context = await client.context()
        reads = ReplicaReads(context.pool, writer.ledger_id, EntryDigest(closed.digest, b""))
        copied = range(closed.last_fragment.first_entry, 6)
        counts.append(len(copied))
        lengths = [await reads.length_at(spare, entry_id) for entry_id in copied]
        assert lengths == [300_000 * (entry_id + 1) for entry_id in copied]

    while len(counts) < 5 and max(counts, default=0) < 2:
        run(tmp_path / str(len(counts)), test, bookies=4)
    assert max(counts) >= 2


def test_many_recoverers_agree(tmp_path):
    async def test(cluster):
        clients = [cluster.client() for _ in range(5)]
        writer = await clients[0].create()
        await writer.append_many(payloads_of(300))
        writer.abandon()
        closed = await asyncio.gather(
            *(client.recover(writer.ledger_id) for client in clients), *(clients[0].recover(writer.ledger_id),) * 1
        )
        assert {(metadata.last_entry, metadata.length) for metadata in closed} == {
            (299, sum(map(len, payloads_of(300))))
        }

    run(tmp_path, test)


def test_bookie_that_dies_is_replaced_and_nothing_is_lost(tmp_path):
    async def test(cluster):
        client = cluster.client()
        writer = await client.create()
        payloads = payloads_of(3000)
        await writer.append_many(payloads[:1000])
        dead = writer.core.slots.ensemble[1]
        appending = asyncio.ensure_future(writer.append_many(payloads[1000:]))
        await cluster.bookie(dead).stop()
        assert await appending == 2999
        metadata = await writer.close()
        assert len(metadata.fragments) == 2
        assert dead not in metadata.last_fragment.bookies
        assert await read_all(await client.open(writer.ledger_id)) == payloads

    run(tmp_path, test, bookies=4)


def test_writing_goes_on_with_ack_quorum_bookies_where_none_is_spare(tmp_path):
    async def test(cluster):
        client = cluster.client()
        writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        payloads = payloads_of(2000)
        await writer.append_many(payloads[:500])
        await cluster.bookies[0].stop()
        await writer.append_many(payloads[500:])
        await writer.close()
        assert await read_all(await client.open(writer.ledger_id)) == payloads

    run(tmp_path, test)


def test_writer_ends_with_an_error_where_too_few_bookies_are_left(tmp_path):
    async def test(cluster):
        client = cluster.client()
        writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=3)
        await writer.append_many(payloads_of(10))
        await cluster.bookies[0].stop()
        with pytest.raises(NotEnoughBookies):
            await writer.append_many(payloads_of(10))
        with pytest.raises(NotEnoughBookies):
            await writer.append(b"more")

    run(tmp_path, test)


def test_recovery_works_with_one_bookie_of_three_gone(tmp_path):
    async def test(cluster):
        client = cluster.client()
        writer = await client.create()
        payloads = payloads_of(400)
        await writer.append_many(payloads)
        writer.abandon()
        await cluster.bookies[2].stop()
        metadata = await cluster.client().recover(writer.ledger_id)
        assert metadata.last_entry == 399
        assert await read_all(await client.open(writer.ledger_id)) == payloads

    run(tmp_path, test)


def test_acknowledged_entries_survive_a_restart_of_every_bookie(tmp_path):
    async def test(cluster):
        client = cluster.client()
        writer = await client.create()
        payloads = payloads_of(500)
        await writer.append_many(payloads)
        writer.abandon()
        for bookie in cluster.bookies:
            await bookie.stop()
        for bookie in cluster.bookies:
            await bookie.start()
        reader = await cluster.client().open(writer.ledger_id, recover=True)
        assert await read_all(reader) == payloads

    run(tmp_path, test)


def test_p36_reader_opened_before_its_ledger_moved_finds_it_on_the_new_bookie(tmp_path):
    """P36: a long-open reader follows re-replication instead of dialling bookies that are gone."""

    async def test(cluster):
        client = cluster.client()
        writer = await client.create(ensemble=1, write_quorum=1, ack_quorum=1)
        payloads = payloads_of(100)
        await writer.append_many(payloads)
        metadata = await writer.close()
        reader = await client.open(writer.ledger_id)
        old = cluster.bookie(metadata.last_fragment.bookies[0])
        await old.stop()
        old.forget_port()
        await old.start()
        ledgers = (await client.context()).ledgers
        stored = await ledgers.read(writer.ledger_id)
        moved = replace(stored.metadata, fragments=(Fragment(0, (old.id,)),))
        await ledgers.write(writer.ledger_id, moved, stored.version)
        assert await read_all(reader) == payloads

    run(tmp_path, test)


def test_wrong_password_opens_recovers_and_fences_nothing(tmp_path):
    async def test(cluster):
        writer = await cluster.client(password=b"right").create()
        await writer.append(b"one")
        wrong = cluster.client(password=b"wrong")
        for refused in (wrong.open(writer.ledger_id), wrong.recover(writer.ledger_id)):
            with pytest.raises(UnauthorizedAccess, match=str(writer.ledger_id)):
                await refused
        assert await writer.append(b"two") == 1

    run(tmp_path, test)


def test_bad_parameters_are_one_error_and_create_nothing(tmp_path):
    async def test(cluster):
        client = cluster.client()
        for quorums in [(3, 2, 3), (2, 3, 2)]:
            with pytest.raises(ConfigurationError, match="E >= Qw >= Qa >= 1"):
                await client.create(ensemble=quorums[0], write_quorum=quorums[1], ack_quorum=quorums[2])
        with pytest.raises(NotEnoughBookies, match="4"):
            await client.create(ensemble=4)
        with pytest.raises(ConfigurationError, match="PD_JOURNAL"):
            await client.create(ledger_type="X")
        with pytest.raises(ConfigurationError, match="md5"):
            cluster.client(digest="md5")
        assert [ledger_id async for ledger_id in client.ledgers()] == []
        for missing in (client.open(77), client.metadata(77), client.recover(77), client.delete(77)):
            with pytest.raises(NoSuchLedger, match="77"):
                await missing

    run(tmp_path, test)


def test_deleted_ledger_is_gone_and_closed_writer_takes_no_more(tmp_path):
    async def test(cluster):
        client = cluster.client()
        writer = await client.create(metadata={"job": "x"})
        await writer.append(b"one")
        await writer.close()
        await writer.close()
        with pytest.raises(LedgerClosed):
            await writer.append(b"two")
        assert (await client.metadata(writer.ledger_id)).custom_metadata == {"job": b"x"}
        assert [ledger_id async for ledger_id in client.ledgers()] == [writer.ledger_id]
        await client.delete(writer.ledger_id)
        assert [ledger_id async for ledger_id in client.ledgers()] == []

    run(tmp_path, test)
