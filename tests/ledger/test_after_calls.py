"""Calls that have ended leave no work, no timer and no listener; on real sockets."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import numpy as np
import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import ClientClosed
from bkspark.ledger.replica_copies import ReplicaReader
from bkspark.ledger.replica_reads import read_ahead
from bkspark.wire import v2
from bkspark.wire.status import Status
from tests.ledger.after_calls import tasks_of, ticks
from tests.ledger.holders import PATIENT, Holder, register, with_bookies
from tests.ledger.hostile import HostileBookie, World


def test_writer_that_is_closed_or_abandoned_ticks_and_listens_no_more() -> None:
    async def test(world: World, bookie: HostileBookie) -> None:
        await register(world, bookie)
        client = world.client(net=PATIENT)
        channel = await (await client.context()).pool.channel(bookie.id)
        for is_closed in (True, False):
            writer = await client.create(ensemble=1, write_quorum=1, ack_quorum=1)
            await writer.append(b"x")
            assert len(ticks()) > 0
            assert len(channel._adds) == 1
            await writer.close() if is_closed else writer.abandon()
            assert (ticks(), channel._adds) == ([], {})

    with_bookies(Holder())(test)


def test_recovery_that_has_rewritten_entries_ticks_and_listens_no_more() -> None:
    async def test(world: World, bookie: HostileBookie) -> None:
        client, ledger_id = world.client(net=PATIENT), await world.ledger(bookie)
        assert (await client.recover(ledger_id)).last_entry == 3
        assert any(asked.opcode == v2.ADD for asked in bookie.asked)
        # A recovery uses a connection of its own, which the next one gets.
        channel = await (await client.context()).pool.channel(bookie.id, 1)
        assert (ticks(), channel._adds) == ([], {})

    with_bookies(Holder(range(4), fence=Status.ENOENTRY))(test)


def test_recovery_that_knows_the_length_asks_no_other_bookie_for_it_any_more() -> None:
    """One of the two bookies of the last entry never answers."""

    async def test(world: World, silent: HostileBookie, other: HostileBookie, last: HostileBookie) -> None:
        fragments = (Fragment(0, (silent.id, other.id)), Fragment(4, (last.id, last.id + "0")))
        ledger_id = await world.ledger(metadata=LedgerMetadata(2, 2, 2, fragments))
        closed = await world.client(net=PATIENT).recover(ledger_id)
        assert (closed.last_entry, closed.length) == (3, 40)
        async with asyncio.timeout(15):
            while tasks_of("_length_at"):
                await asyncio.sleep(0.002)

    with_bookies(Holder(hears=lambda asked: False), Holder(range(4)), Holder())(test)


def test_reads_ahead_of_a_caller_that_goes_away_are_cancelled() -> None:
    """It waits for none of them: a bookie may be silent."""

    async def read(number: int) -> int:
        return number if number == 0 else await asyncio.get_running_loop().create_future()

    async def test() -> None:
        async with asyncio.timeout(15):
            async with aclosing(read_ahead(iter(range(9)), read, lambda request, result: None, 3)) as found:
                assert await anext(found) == 0
            assert tasks_of("<locals>.read ") == []

    asyncio.run(test())


def test_list_of_entries_under_which_the_client_is_closed_is_no_answer() -> None:
    async def test(world: World, bookie: HostileBookie) -> None:
        client = world.client(net=PATIENT)
        metadata = LedgerMetadata(1, 1, 1, (Fragment(0, (bookie.id,)),))
        reader = ReplicaReader(await client.context(), 7, metadata, b"")
        await client.close()
        with pytest.raises(ClientClosed):
            await reader.listed(bookie.id)
        with pytest.raises(ClientClosed):
            await reader.missing(bookie.id, np.arange(3))

    with_bookies(Holder())(test)
