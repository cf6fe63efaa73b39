"""TicketLock, and the order in which writers serve `append`, `append_many` and `submit`."""

from __future__ import annotations

import asyncio
import random

import pytest

from bkspark.ledger.call_order import TicketLock
from tests.ledger.in_process import run


@pytest.mark.parametrize("seed", range(20))
def test_callers_are_served_in_the_order_of_their_calls_and_leave_no_gap(seed):
    async def test():
        chance, lock, served, inside = random.Random(seed), TicketLock(), [], 0

        async def call(number):
            nonlocal inside
            async with lock.take():
                inside += 1
                assert inside == 1
                served.append(number)
                try:
                    for _ in range(chance.randrange(3)):
                        await asyncio.sleep(0)
                finally:
                    inside -= 1

        callers = []
        for number in range(50):
            callers.append(asyncio.ensure_future(call(number)))
            if chance.random() < 0.5:
                await asyncio.sleep(0)
            if chance.random() < 0.3:
                chance.choice(callers).cancel()
        async with asyncio.timeout(30):
            await asyncio.gather(*callers, return_exceptions=True)
        assert served == sorted(served)
        assert not lock.is_taken
        assert {number for number, caller in enumerate(callers) if not caller.cancelled()} <= set(served)

    asyncio.run(test())


def test_caller_that_goes_away_when_its_turn_has_come_lets_the_next_one_in():
    async def test():
        lock = TicketLock()
        first, second = lock.take(), lock.take()
        await first.__aenter__()
        waits = asyncio.ensure_future(second.__aenter__())
        await asyncio.sleep(0)
        third = lock.take()
        await first.__aexit__()
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        await asyncio.wait_for(third.__aenter__(), 5)

    asyncio.run(test())


CALLS = ["append", "append_many", "append", "append", "submit", "append", "append_many", "append_many", "append"]


@pytest.mark.parametrize("kind", ["ledger", "log"])
@pytest.mark.parametrize("is_quiet", [True, False], ids=["quiet", "busy"])
def test_calls_of_all_kinds_are_served_in_their_order(tmp_path, kind, is_quiet):
    """`append` waited a turn of the loop to gather others, and what was called after it overtook it."""

    async def test(cluster):
        client = cluster.client()
        if kind == "ledger":
            writer = await client.create(ensemble=1, write_quorum=1, ack_quorum=1)
        else:
            writer = await client.log("clicks").open_for_writing(ensemble=1, write_quorum=1, ack_quorum=1)
        before = [] if is_quiet else [asyncio.ensure_future(writer.append_many([b"before"] * 2000))]

        async def call(number, name):
            payload = b"%d" % number
            if name == "append":
                await writer.append(payload)
            elif name == "append_many":
                await writer.append_many([payload])
            else:
                await (await writer.submit([payload]))

        await asyncio.gather(*before, *(call(number, name) for number, name in enumerate(CALLS)))
        if kind == "ledger":
            await writer.close()
            reader = await client.open(writer.ledger_id)
            found = list(await reader.read(0, reader.last_entry))
        else:
            await writer.close()
            found = [entry async for batch in client.log("clicks").read() for entry in batch]
        assert found[-len(CALLS) :] == [b"%d" % number for number in range(len(CALLS))]

    run(tmp_path, test, bookies=1)
