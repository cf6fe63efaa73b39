"""Entries that a log's list names and that are gone: readers get an error, whatever the state of their ledger (K3)."""

from __future__ import annotations

import asyncio

import pytest

from bkspark.client import Client
from bkspark.errors import DataLoss, NoSuchEntry
from bkspark.log import SegmentFacts, SegmentOwner
from bkspark.log.writer import LedgerOptions
from tests.ledger.in_process import InProcessCluster, run
from tests.log.logs import publish, read_all

ENTRIES = [b"a%d" % number for number in range(10)]


async def with_lost_slice(cluster: InProcessCluster, client: Client, state: str) -> int:
    """Publish ten entries of a ledger on one bookie, lose them, publish a good ledger after it; return the lost one.

    `state` of the ledger: `open`, `closed` before its entries were lost, or `recovered` after that.
    """
    log = client.log("clicks")
    await log.create()
    writer = await log.create_attempt(SegmentOwner("query", "q1"), LedgerOptions(1, 1, 1))
    ledger_id = writer.ledger_id
    (name,) = writer.metadata.last_fragment.bookies
    await writer.append_many(ENTRIES)
    if state == "closed":
        await writer.close()
    facts = SegmentFacts(ledger_id, 9, 20)
    await log.publish([facts], publisher=("q1", 0), shared=() if state == "closed" else (ledger_id,))
    victim = next(bookie for bookie in cluster.bookies if bookie.id == name)
    await victim.stop()
    victim.wipe()
    await publish(log, [b"next"])
    await victim.start()
    writer.abandon()
    if state == "recovered":
        assert (await client.recover(ledger_id)).last_entry < 9
    return ledger_id


@pytest.mark.parametrize("state", ["open", "closed", "recovered"])
def test_listed_entries_that_no_bookie_has_are_data_loss_to_read_and_follow(tmp_path, state):
    """An open shared ledger was read up to what its bookies held, and the rest was left out silently."""

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        ledger_id = await with_lost_slice(cluster, client, state)
        for _ in range(2):
            with pytest.raises(DataLoss, match=f"ledger {ledger_id} of log clicks") as raised:
                await read_all(client.log("clicks"))
            assert (raised.value.ledger_id, raised.value.entry_id) == (ledger_id, 0)
        with pytest.raises(DataLoss, match=f"ledger {ledger_id} of log clicks"):
            await asyncio.wait_for(anext(client.log("clicks").follow()), 30)

    run(tmp_path, test, bookies=2)


def test_reader_refuses_an_end_beyond_its_limit_as_read_does(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        writer = await client.create(ensemble=1, write_quorum=1, ack_quorum=1)
        await writer.append_many(ENTRIES)
        reader = await client.open(writer.ledger_id)
        held, confirmed = reader.last_unconfirmed, reader.last_entry
        assert (held, confirmed) == (9, -1)
        for end, unconfirmed in ((1, False), (11, True)):
            with pytest.raises(ValueError, match="cannot be read"):
                await reader.read(0, end - 1, unconfirmed=unconfirmed)
            with pytest.raises(ValueError, match="cannot be read"):
                await anext(reader.batches(0, end, unconfirmed=unconfirmed))
        assert [len(batch) async for batch in reader.batches(0, 10, unconfirmed=True)] == [10]
        assert [batch async for batch in reader.batches(0, 0)] == []
        writer.abandon()

    run(tmp_path, test, bookies=1)


def test_ledger_closed_before_the_read_entries_ends_in_no_such_entry(tmp_path):
    """The tail that its writer left is still on the bookie, and is not a part of the ledger."""

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        writer = await client.create(ensemble=1, write_quorum=1, ack_quorum=1)
        await writer.append_many(ENTRIES)
        writer.abandon()
        reader = await client.open(writer.ledger_id)
        context = await client.context()
        stored = await context.ledgers.read(writer.ledger_id)
        await context.ledgers.write(writer.ledger_id, stored.metadata.closed(4, 10), stored.version)
        await reader.refresh()
        batches = reader.acknowledged_batches(0, 10)
        assert list(await anext(batches)) == ENTRIES[:5]
        with pytest.raises(NoSuchEntry, match="closed at entry 4"):
            await anext(batches)

    run(tmp_path, test, bookies=1)
