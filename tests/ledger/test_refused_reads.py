"""A client whose right to read is withdrawn learns it at once: waiting would not help."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing

import pytest

from bkspark.entries import EntryBatch
from bkspark.errors import ReadFailed
from bkspark.ledger import LedgerReader
from bkspark.ledger.metadata_steps import may_pass
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3
from bkspark.wire.status import Status
from tests.ledger.held_reads import PATIENT, Held
from tests.ledger.hostile import Asked, HostileBookie, World, no_entry_v3, play, reply

MINUTE_S = 60.0


class Guarded(Held):
    """Serves reads as `Held` until `error` is set: then it answers that in V2 and V3."""

    error = Status.EOK

    def __call__(self, asked: Asked) -> bytes:
        return reply(asked, status=self.error) if self.error else super().__call__(asked)

    def v3(self, request: protocol.Request) -> Iterable[protocol.Response]:
        if not self.error:
            return no_entry_v3(request)
        head = v3.header(request.header.operation, request.header.txnId)
        return [protocol.Response(header=head, status=v3.code_of(self.error))]


async def entries(batches: AsyncIterator[EntryBatch]) -> list[EntryBatch]:
    return [batch async for batch in batches]


async def first_failure(reader: LedgerReader, position: int) -> ReadFailed:
    """Return the error that ends a follower; it must come long before its patience is over."""
    async with asyncio.timeout(MINUTE_S / 4), aclosing(reader.follow(position, patience_s=MINUTE_S)) as batches:
        with pytest.raises(ReadFailed, match="authorizationRulesFile") as raised:
            await entries(batches)
    return raised.value


@pytest.mark.parametrize("position", [0, 4], ids=["it has entries to read", "it waits for the next entry"])
def test_follower_whose_right_is_withdrawn_ends_at_once(position: int) -> None:
    """It tried again for a minute, and so seemed to hang."""
    held = Guarded(4)

    async def test(world: World) -> None:
        async with HostileBookie(held, held.v3) as bookie:
            ledger_id = await world.ledger(bookie)
            reader = await world.client(net=PATIENT).open(ledger_id)
            held.error = Status.EUA
            assert not may_pass(await first_failure(reader, position))

    play(test, MINUTE_S)


def test_ledger_that_may_not_be_read_is_not_tried_again() -> None:
    held = Guarded(4)
    held.error = Status.EUA

    async def test(world: World) -> None:
        async with HostileBookie(held, held.v3) as one, HostileBookie(held, held.v3) as other:
            ledger_id = await world.ledger(one, other)
            with pytest.raises(ReadFailed, match="answered with status 102") as raised:
                await world.client(net=PATIENT).open(ledger_id)
            assert not may_pass(raised.value)

    play(test, MINUTE_S)


def test_refusal_of_one_bookie_does_not_end_the_wait_for_another() -> None:
    """The other one fails for a reason that may pass, and then it may serve this client."""
    held, failing = Guarded(4), Guarded(4)

    async def test(world: World) -> None:
        async with HostileBookie(held, held.v3) as one, HostileBookie(failing, failing.v3) as other:
            ledger_id = await world.ledger(one, other)
            reader = await world.client(net=PATIENT).open(ledger_id)
            held.error, failing.error = Status.EUA, Status.EIO
            with pytest.raises(ReadFailed) as raised:
                await reader.read(0, 3)
            assert may_pass(raised.value)
            with pytest.raises(ReadFailed) as raised:
                await reader.refresh()
            assert may_pass(raised.value)

    play(test, MINUTE_S)


def test_refusal_of_one_bookie_does_not_end_the_wait_if_another_lacks_the_entry() -> None:
    """The other one lets this client read, and may get a copy."""
    held, lacking = Guarded(4), Guarded(4)

    async def test(world: World) -> None:
        async with HostileBookie(held, held.v3) as one, HostileBookie(lacking, lacking.v3) as other:
            ledger_id = await world.ledger(one, other)
            reader = await world.client(net=PATIENT).open(ledger_id)
            held.error, lacking.error = Status.EUA, Status.ENOENTRY
            with pytest.raises(ReadFailed) as raised:
                await reader.read(0, 3)
            assert may_pass(raised.value)

    play(test, MINUTE_S)
