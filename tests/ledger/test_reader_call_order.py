"""Calls of one LedgerReader that end in another order than they began: what they learned never goes backward."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from bkspark.core.metadata import Fragment
from bkspark.ledger.reader import LedgerReader
from bkspark.metadata.ledgers import LedgerStore, Versioned
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from tests.ledger.held_reads import PATIENT, Held, close, entries, explicit, opened
from tests.ledger.hostile import HostileBookie, World, no_entry_v3, play
from tests.planting import around


class SecondComesLast:
    """A bookie's answers for its last entry, which is 3, 6, 9, ...: it sends the second one after the third."""

    def __init__(self) -> None:
        self.requests = 0
        self._second: list[protocol.Response] = []

    def __call__(self, request: protocol.Request) -> Iterable[protocol.Response]:
        self.requests += 1
        found = list(explicit(None, 3 * self.requests)(request))
        if self.requests == 2:
            self._second = found
            return []
        return [*found, *self._second]


def test_last_entry_does_not_decrease_when_two_refreshes_end_in_the_other_order() -> None:
    """The later one has learned of more entries. The earlier one adopted what its own question had found."""

    async def test(reader: LedgerReader, world: World, *_: HostileBookie) -> None:
        assert await asyncio.gather(reader.refresh(), reader.refresh()) == [8, 8]
        assert (reader.last_entry, reader.last_unconfirmed) == (8, 9)

    opened((Held(-1), SecondComesLast()))(test)


def test_ledger_that_was_closed_is_not_open_again_when_an_earlier_refresh_ends() -> None:
    answers = SecondComesLast()

    async def test(world: World) -> None:
        async with HostileBookie(Held(-1), answers) as bookie:
            client, ledger_id = world.client(net=PATIENT), await world.ledger(bookie)
            reader = await client.open(ledger_id)
            earlier = asyncio.ensure_future(reader.refresh())
            while answers.requests < 2:
                await asyncio.sleep(0)
            await close(world, reader, 7)
            assert await reader.refresh() == 7
            await client.open(await world.ledger(bookie))  # the third question
            assert await earlier == 7
            assert (reader.is_closed, reader.last_entry) == (True, 7)

    play(test, 20)


def test_metadata_of_an_open_ledger_are_not_replaced_by_earlier_ones() -> None:
    """The earlier refresh read them before the ensemble changed, and ends after the later one."""
    answers = SecondComesLast()

    async def test(world: World) -> None:
        async with HostileBookie(Held(-1), answers) as bookie, HostileBookie(Held(-1), answers) as second:
            client, ledger_id = world.client(net=PATIENT), await world.ledger(bookie)
            reader = await client.open(ledger_id)
            earlier = asyncio.ensure_future(reader.refresh())
            while answers.requests < 2:
                await asyncio.sleep(0)
            stored = await world.ledgers.read(ledger_id)
            changed = replace(stored.metadata, fragments=(*stored.metadata.fragments, Fragment(4, (second.id,))))
            await world.ledgers.write(ledger_id, changed, stored.version)
            assert await reader.refresh() == 8  # the third question
            await client.open(await world.ledger(bookie))  # the first bookie sends its answer with the next one
            assert await earlier == 8
            assert reader.metadata.fragments == changed.fragments

    play(test, 20)


def test_ledger_that_was_closed_is_not_open_again_when_a_read_has_earlier_metadata() -> None:
    """The read found an entry nowhere and read the metadata again, just before the ledger was closed."""
    read_by_the_reader, goes_on = asyncio.Event(), asyncio.Event()

    async def test(world: World) -> None:
        async with HostileBookie(Held(9), no_entry_v3) as bookie, HostileBookie(Held(-1), no_entry_v3) as empty:
            client, ledger_id = world.client(net=PATIENT), await world.ledger(empty)
            reader = await client.open(ledger_id)
            stored = await world.ledgers.read(ledger_id)
            moved = replace(stored.metadata, fragments=(Fragment(0, (bookie.id,)),))
            version = (await world.ledgers.write(ledger_id, moved, stored.version)).version

            async def slowly(old: Any, store: LedgerStore, asked: int) -> Versioned:
                found: Versioned = await old(store, asked)
                if not read_by_the_reader.is_set():
                    read_by_the_reader.set()
                    await goes_on.wait()
                return found

            with around(LedgerStore, "read", slowly):
                reading = asyncio.ensure_future(entries(reader.acknowledged_batches(4, 8)))
                await read_by_the_reader.wait()
                await world.ledgers.write(ledger_id, moved.closed(7, 1000), version)
                assert await reader.refresh() == 7
                goes_on.set()
                assert await reading == [4, 5, 6, 7]
            assert (reader.is_closed, reader.last_entry) == (True, 7)

    play(test, 20)
