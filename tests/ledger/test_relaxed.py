"""Ledgers with relaxed durability, written to real bookie services (docs/relaxed-durability.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from bkspark.core.metadata import LedgerState
from bkspark.core.relaxed import RelaxedDurability
from bkspark.errors import ConfigurationError, NotEnoughBookies
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3
from bkspark.wire.status import Status
from tests.ledger.holders import Holder, register, with_bookies
from tests.ledger.hostile import HostileBookie, World
from tests.ledger.in_process import run

TYPES = ["VD_JOURNAL", "VD_BYPASS_JOURNAL"]
NEVER_FORCES = RelaxedDurability(force_interval_s=0.0)


def payloads(first: int, count: int) -> list[bytes]:
    return [b"%08d" % number * 9 for number in range(first, first + count)]


async def confirmed(reader, entry_id):
    """Wait until a reader's LAC has come to an entry."""
    async with asyncio.timeout(60):
        while await reader.refresh() < entry_id:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("ledger_type", TYPES)
def test_p35_sync_returns_the_last_entry_once_it_is_confirmed_and_close_syncs(tmp_path, ledger_type):
    async def test(cluster):
        client = cluster.client(password=b"secret")
        writer = await client.create(ledger_type=ledger_type, relaxed=NEVER_FORCES, metadata={"a": "b"})
        assert await writer.append_many(payloads(0, 1000)) == 999
        assert await writer.sync() == writer.last_entry == 999
        await writer.append_many(payloads(1000, 100))
        reader = await client.open(writer.ledger_id)
        assert reader.last_entry == 999
        assert list(await reader.read(0, 999)) == payloads(0, 1000)
        metadata = await writer.close()
        assert (metadata.state, metadata.last_entry, metadata.type_name) == (LedgerState.CLOSED, 1099, ledger_type)
        assert (await client.metadata(writer.ledger_id)).custom_metadata["a"] == b"b"
        assert await reader.refresh() == 1099
        assert list(await reader.read(1000, 1099)) == payloads(1000, 100)

    run(tmp_path, test)


def test_sync_of_a_durable_ledger_returns_the_last_acknowledged_entry(tmp_path):
    async def test(cluster):
        async with await cluster.client().create() as writer:
            assert await writer.sync() == -1
            await writer.append_many([b"a", b"b"])
            assert await writer.sync() == 1

    run(tmp_path, test)


def test_lac_moves_by_what_bookies_say_in_answers_to_adds(tmp_path):
    """The writer never asks for a sync here; bookies sync a journal within a tenth of a second, and say so."""

    async def test(cluster):
        client = cluster.client()
        writer = await client.create(ledger_type="VD_JOURNAL", relaxed=NEVER_FORCES)
        assert await writer.append_many(payloads(0, 100)) == 99
        async with asyncio.timeout(60):
            while writer.last_entry < 99:
                await writer.append(b"more")
                await asyncio.sleep(0.02)
        reader = await client.open(writer.ledger_id)
        await writer.append(b"carries the LAC")
        await confirmed(reader, 99)
        writer.abandon()

    run(tmp_path, test)


def test_readers_follow_while_bookies_sync_by_themselves(tmp_path):
    async def test(cluster):
        client = cluster.client()
        relaxed = RelaxedDurability(force_interval_s=0.05)
        writer = await client.create(ledger_type="VD_JOURNAL", relaxed=relaxed)
        reader = await client.open(writer.ledger_id)
        for number in range(3):
            last_entry = await writer.append(b"%d" % number)
            async with asyncio.timeout(60):
                while writer.last_entry < last_entry:
                    await asyncio.sleep(0.01)
        await writer.append(b"3")
        await confirmed(reader, 2)
        writer.abandon()

    run(tmp_path, test)


def test_ledger_left_open_is_recovered_with_all_that_bookies_still_have(tmp_path):
    async def test(cluster):
        client = cluster.client()
        for ledger_type in TYPES:
            writer = await client.create(ledger_type=ledger_type)
            await writer.append_many(payloads(0, 300))
            writer.abandon()
            reader = await client.open(writer.ledger_id, recover=True)
            assert list(await reader.read(0, 299)) == payloads(0, 300)

    run(tmp_path, test)


@pytest.mark.parametrize("ledger_type", TYPES)
def test_striped_ledger_is_written_where_that_is_asked_for(tmp_path, ledger_type):
    async def test(cluster):
        client = cluster.client()
        with pytest.raises(ConfigurationError, match=r"striped=True.*--striped"):
            await client.create(ensemble=3, write_quorum=2, ack_quorum=2, ledger_type=ledger_type)
        writer = await client.create(
            ensemble=3, write_quorum=2, ack_quorum=2, ledger_type=ledger_type, relaxed=RelaxedDurability(striped=True)
        )
        await writer.append_many(payloads(0, 500))
        assert await writer.sync() == 499
        reader = await client.open(writer.ledger_id)
        writer.abandon()
        metadata = await client.recover(writer.ledger_id)
        assert metadata.last_entry == 499
        await reader.refresh()
        assert list(await reader.read(0, 499)) == payloads(0, 500)

    run(tmp_path, test)


def test_lost_bookie_is_left_out_and_not_replaced(tmp_path):
    """ "As in the proposal, ensemble change is off for VD ledgers"."""

    async def test(cluster):
        client = cluster.client()
        writer = await client.create(ledger_type="VD_JOURNAL")
        await writer.append_many(payloads(0, 100))
        before = writer.core.slots.ensemble
        await cluster.bookie(before[1]).stop()
        await writer.append_many(payloads(100, 100))
        assert (await writer.sync(), writer.core.slots.ensemble) == (199, before)
        metadata = await writer.close()
        assert (len(metadata.fragments), metadata.last_entry) == (1, 199)
        assert list(await (await client.open(writer.ledger_id)).read(0, 199)) == payloads(0, 200)

    run(tmp_path, test, bookies=4)


def test_writer_ends_when_too_few_bookies_are_left(tmp_path):
    async def test(cluster):
        writer = await cluster.client().create(ledger_type="VD_JOURNAL")
        await writer.append_many(payloads(0, 100))
        for bookie in writer.core.slots.ensemble[:2]:
            await cluster.bookie(bookie).stop()
        with pytest.raises(NotEnoughBookies):
            await writer.append_many(payloads(100, 100))

    run(tmp_path, test, bookies=4)


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2)])
def test_new_bookie_gets_all_that_is_not_synced_where_replacement_is_asked_for(tmp_path, quorums):
    """ "ensemble change for VD ledgers by keeping what is unsynced in the client until synced"."""

    async def test(cluster):
        client = cluster.client()
        relaxed = RelaxedDurability(striped=True, changes_ensemble=True, force_interval_s=0.0)
        ensemble, write_quorum, ack_quorum = quorums
        writer = await client.create(
            ensemble=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            ledger_type="VD_BYPASS_JOURNAL",
            relaxed=relaxed,
        )
        await writer.append_many(payloads(0, 100))
        assert await writer.sync() == 99
        await writer.append_many(payloads(100, 100))
        lost = writer.core.slots.ensemble[1]
        await cluster.bookie(lost).stop()
        await writer.append_many(payloads(200, 100))
        assert await writer.sync() == 299
        assert lost not in writer.core.slots.ensemble
        metadata = await writer.close()
        assert [fragment.first_entry for fragment in metadata.fragments] == [0, 100]
        assert list(await (await client.open(writer.ledger_id)).read(0, 299)) == payloads(0, 300)

    run(tmp_path, test, bookies=4)


def test_callers_wait_while_as_much_as_is_allowed_is_kept_unsynced(tmp_path):
    """ "bounded: named limit, back-pressure": no caller syncs, and yet everything is taken in the end."""

    async def test(cluster):
        relaxed = RelaxedDurability(changes_ensemble=True, unsynced_bytes_max=200_000, force_interval_s=0.0)
        writer = await cluster.client().create(ledger_type="VD_BYPASS_JOURNAL", relaxed=relaxed)
        most = 0
        for _ in range(100):
            await writer.append_many([bytes(1000)] * 50)
            most = max(most, writer.core.pending.kept_bytes)
        assert most < 200_000 + 2 * 50 * 1200
        assert writer.last_entry > 0
        assert await writer.sync() == 4999
        assert writer.core.pending.kept_bytes == 0
        writer.abandon()

    run(tmp_path, test)


def takes_adds_and_syncs_nothing(request: protocol.Request) -> Iterable[protocol.Response]:
    """Answer as a bookie that acknowledges adds, and fails every force."""
    header, add = v3.header(request.header.operation, request.header.txnId), request.addRequest
    if request.header.operation == protocol.ADD_ENTRY:
        added = protocol.AddResponse(status=protocol.EOK, ledgerId=add.ledgerId, entryId=add.entryId)
        return [protocol.Response(header=header, status=protocol.EOK, addResponse=added)]
    assert request.header.operation == protocol.FORCE_LEDGER
    failed = protocol.ForceLedgerResponse(status=v3.code_of(Status.EIO), ledgerId=request.forceLedgerRequest.ledgerId)
    return [protocol.Response(header=header, status=v3.code_of(Status.EIO), forceLedgerResponse=failed)]


def test_bookie_that_does_not_sync_confirms_nothing() -> None:
    """What it answers to a force, not that it answers, is what counts."""

    async def test(world: World, *bookies: HostileBookie) -> None:
        for bookie in bookies:
            await register(world, bookie)
        writer = await world.client().create(
            ensemble=2, write_quorum=2, ack_quorum=2, ledger_type="VD_JOURNAL", relaxed=NEVER_FORCES
        )
        assert await writer.append(b"0") == 0
        with pytest.raises(NotEnoughBookies):
            await writer.sync()
        assert writer.last_entry == -1

    with_bookies(*(HostileBookie(Holder(), takes_adds_and_syncs_nothing) for _ in range(2)))(test)
