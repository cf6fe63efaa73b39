"""What a follower's watch makes of answers, and of the end of its ledger, on real sockets: docs/protocol.md §5.8."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing

import pytest

from bkspark.errors import NoSuchLedger
from bkspark.ledger.reader import LedgerReader
from bkspark.ledger.tail import TailWatch
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from tests.ledger.held_reads import PATIENT, Held, explicit, opened
from tests.ledger.hostile import PAYLOAD, HostileBookie, World, no_entry_v3, sealed


def test_every_wait_after_the_end_of_a_watch_raises_why_it_ended() -> None:
    async def test(reader: LedgerReader, world: World, *_: HostileBookie) -> None:
        async with aclosing(TailWatch(await world.client(net=PATIENT).context(), reader)) as watch:
            await world.ledgers.delete(reader.ledger_id)
            for lac in (3, 3, 2):  # also one for an entry that is known to be confirmed
                async with asyncio.timeout(10):
                    with pytest.raises(NoSuchLedger):
                        await watch.wait_beyond(lac)

    opened((Held(4), no_entry_v3))(test)


@pytest.mark.parametrize(("taken", "entry"), [(0, [PAYLOAD]), (1, None), (3, None)])
def test_entry_that_came_with_a_poll_is_given_under_its_own_id_alone(taken: int, entry: list[bytes] | None) -> None:
    """A follower that has not read up to it yet would give it in place of another, and leave that one out."""
    is_polled = False

    def answer(request: protocol.Request) -> Iterable[protocol.Response]:
        nonlocal is_polled
        if request.header.operation != protocol.READ_ENTRY:
            return explicit(3, None)(request) if is_polled else no_entry_v3(request)
        if is_polled:
            return []
        is_polled = True
        ledger_id = request.readRequest.ledgerId
        inner = protocol.ReadResponse(
            status=protocol.EOK, ledgerId=ledger_id, entryId=0, maxLAC=3, body=sealed(ledger_id, 0)
        )
        head = v3.header(protocol.READ_ENTRY, request.header.txnId)
        return [protocol.Response(header=head, status=protocol.EOK, readResponse=inner)]

    async def test(reader: LedgerReader, world: World, *_: HostileBookie) -> None:
        async with aclosing(TailWatch(await world.client(net=PATIENT).context(), reader)) as watch:
            async with asyncio.timeout(10):
                await watch.wait_beyond(-1)
            assert reader.last_entry == 3
            early = watch.take_entry(taken)
            assert (None if early is None else list(early)) == entry
            assert watch.take_entry(0) is None, "it is given once"

    opened((Held(-1), answer))(test)


def test_lac_that_a_bookie_tells_and_cannot_prove_is_not_believed() -> None:
    """§5.8: the bookie drops the connection when it is asked for its LAC. Its plain reads find no entry."""
    is_polled = False

    def answer(request: protocol.Request) -> Iterable[protocol.Response]:
        nonlocal is_polled
        if request.header.operation != protocol.READ_ENTRY:
            if is_polled:
                raise ConnectionError
            return no_entry_v3(request)
        if is_polled:
            return []
        is_polled = True
        inner = protocol.ReadResponse(status=protocol.EOK, ledgerId=request.readRequest.ledgerId, entryId=0, maxLAC=3)
        head = v3.header(protocol.READ_ENTRY, request.header.txnId)
        return [protocol.Response(header=head, status=protocol.EOK, readResponse=inner)]

    async def test(reader: LedgerReader, world: World, bookie: HostileBookie) -> None:
        def looks() -> int:
            return sum(asked.entry_id == v2.LAST_ENTRY for asked in bookie.asked)

        before = looks()
        async with aclosing(TailWatch(await world.client(net=PATIENT).context(), reader)) as watch:
            waiting = asyncio.ensure_future(watch.wait_beyond(-1))
            async with asyncio.timeout(15):
                while looks() < before + 2:  # when the wait begins, and when the LAC was not proven
                    await asyncio.sleep(0.002)
            assert (reader.last_entry, waiting.done()) == (-1, False)
            waiting.cancel()

    opened((Held(-1), answer))(test)
