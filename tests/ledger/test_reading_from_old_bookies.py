"""Readers and recoveries of bookies that know no V3, that lack what is asked for, or whose answers fail in a step."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.core.reader import AdaptiveReadSize
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import BookieUnavailable, ReadFailed, RequestTimeout
from bkspark.ledger.reader import SnapshotReader
from bkspark.ledger.recovery import recover
from bkspark.ledger.replica_reads import SINGLES_BYTES, SINGLES_MAX, ReplicaReads
from bkspark.net.pool import BookiePool, NetOptions, resolver
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2
from bkspark.wire.status import Status
from tests.ledger.hostile import DIGEST, Asked, HostileBookie, World, items, play, reply, sealed


def closes_connection(request: protocol.Request) -> Iterable[protocol.Response]:
    raise ConnectionError


def holds_up_to(last: int, status: int = Status.ENOENTRY):
    """A bookie that holds entries 0 to `last`."""

    def answer(asked: Asked) -> bytes:
        if asked.opcode == v2.BATCH_READ:
            raise ConnectionError
        entry_id = last if asked.entry_id == v2.LAST_ENTRY else asked.entry_id
        if 0 <= entry_id <= last:
            return reply(asked, body=sealed(asked.ledger_id, entry_id))
        return reply(asked, status=status)

    return answer


def test_end_of_an_open_ledger_is_asked_for_by_plain_reads_where_bookies_know_no_v3():
    async def test(world: World) -> None:
        async with HostileBookie(holds_up_to(4), closes_connection) as bookie:
            ledger_id = await world.ledger(bookie)
            reader = await world.client().open(ledger_id, recover=False)
            assert reader.last_entry == 3  # its last entry says that this one is confirmed
            entries = [entry async for batch in reader.batches() for entry in batch]
            assert len(entries) == 4

    play(test)


@pytest.mark.parametrize("status", [Status.EIO, Status.EUNKNOWNLEDGERSTATE, 77])
def test_end_of_an_open_ledger_is_unknown_where_its_bookies_answer_with_errors(status: int):
    async def test(world: World) -> None:
        async with HostileBookie(holds_up_to(-1, status), closes_connection) as bookie:
            ledger_id = await world.ledger(bookie)
            with pytest.raises(ReadFailed):
                await world.client().open(ledger_id, recover=False)

    play(test)


def test_end_of_an_open_ledger_is_unknown_where_no_bookie_answers():
    def silent(asked: Asked) -> bytes:
        raise ConnectionError

    async def test(world: World) -> None:
        async with HostileBookie(silent, closes_connection) as one, HostileBookie(silent, closes_connection) as two:
            ledger_id = await world.ledger(one, two, quorums=(2, 2, 1))
            with pytest.raises(ReadFailed) as failed:
                await world.client().open(ledger_id, recover=False)
            assert failed.value.ledger_id == ledger_id

    play(test)


@pytest.mark.parametrize("known", [0, 1])
def test_planned_read_goes_to_the_bookies_that_had_an_address(known: int):
    async def test(world: World) -> None:
        async with HostileBookie(holds_up_to(4)) as one, HostileBookie(holds_up_to(4)) as two:
            bookies = (one.id, two.id)
            metadata = LedgerMetadata(2, 2, 1, (Fragment(0, bookies),)).closed(4, 100)
            host, port = bookies[known].split(":")
            for ledger_id in (6, 7):  # whichever is asked first
                addresses = {bookies[known]: (host, int(port))}
                reader = SnapshotReader(ledger_id=ledger_id, metadata=metadata, addresses=addresses)
                try:
                    entries = [entry async for batch in reader.batches(0, 5) for entry in batch]
                finally:
                    await reader.close()
                assert len(entries) == 5
                reader = SnapshotReader(ledger_id=ledger_id, metadata=metadata, addresses={})
                with pytest.raises(ReadFailed, match="had no address when the read was planned"):
                    [batch async for batch in reader.batches(0, 5)]
                await reader.close()

    play(test)


def test_error_of_our_own_in_a_step_ends_a_recovery():
    """Nothing else would: its caller waited for ever."""

    async def broken(bookie: str) -> tuple[str, int]:
        raise ZeroDivisionError("an error of our own")

    async def test(world: World) -> None:
        reported: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
        pool = BookiePool(broken, NetOptions())
        context = replace(await world.client().context(), pool=pool)
        async with HostileBookie(holds_up_to(4)) as one, HostileBookie(holds_up_to(4)) as other:
            ledger_id = await world.ledger(one, other)
            stored = await world.ledgers.read(ledger_id)
            with pytest.raises(ZeroDivisionError):
                await recover(context, ledger_id, stored, b"", WriterOptions())
        await pool.close()
        # The step at the other bookie fails, too: the first error counts, and the loop reports none.
        assert reported == []

    play(test)


@pytest.mark.parametrize("payload_bytes", [1024, SINGLES_BYTES // 5, SINGLES_BYTES])
def test_as_many_entries_are_asked_for_one_by_one_as_the_sizes_of_the_last_ones_allow(payload_bytes: int):
    """Their answers come whether there is room for them or not."""

    def answer(asked: Asked) -> bytes:
        return reply(asked, body=sealed(asked.ledger_id, asked.entry_id, payload=bytes(payload_bytes)))

    async def test(world: World) -> None:
        async with HostileBookie(answer) as bookie:
            pool = (await world.client().context()).pool
            reads = ReplicaReads(pool, 5, DIGEST, AdaptiveReadSize(SINGLES_BYTES, SINGLES_MAX, 3))
            assert (await reads.some(bookie.id, np.arange(500))).statuses.tolist() == [Status.EOK] * 3
            later = len((await reads.some(bookie.id, np.arange(500))).statuses)
            assert later == min(6, SINGLES_BYTES // payload_bytes), "at most twice as many"

    play(test)


@pytest.mark.parametrize(("losses", "batch_reads"), [([False, True], 4), ([True] * 9, 1)])
def test_bookie_that_has_answered_a_batch_read_is_not_too_old_for_them(losses: list[bool], batch_reads: int):
    """A reader asked a bookie for one entry at a time after one restart, however much there was to read."""
    lost = iter(losses)

    def answer(asked: Asked) -> bytes:
        if asked.opcode == v2.READ:
            return reply(asked, body=sealed(asked.ledger_id, asked.entry_id))
        if next(lost, False):
            raise ConnectionError
        return reply(asked, body=items(asked.ledger_id, asked.entry_id, 2))

    async def test(world: World) -> None:
        async with HostileBookie(answer) as bookie:
            host, port = bookie.id.split(":")
            pool = BookiePool(resolver({bookie.id: (host, int(port))}), NetOptions())
            reads = ReplicaReads(pool, 5, DIGEST)
            for _ in range(4):
                entries, status = await reads.prefix(bookie.id, np.arange(2), 1, 10_000)
                assert (len(entries), status) == (2, Status.EOK)
            assert len([asked for asked in bookie.asked if asked.opcode == v2.BATCH_READ]) == batch_reads
            await pool.close()

    play(test)


def test_bookie_that_answered_nothing_at_all_is_not_too_old_for_batch_reads():
    """It closed the connection because it went away, and not because of the batch read."""
    is_away = True

    def answer(asked: Asked) -> bytes:
        if is_away:
            raise ConnectionError
        return reply(asked, body=items(asked.ledger_id, asked.entry_id, 2))

    async def test(world: World) -> None:
        nonlocal is_away
        async with HostileBookie(answer) as bookie:
            host, port = bookie.id.split(":")
            pool = BookiePool(resolver({bookie.id: (host, int(port))}), NetOptions())
            reads = ReplicaReads(pool, 5, DIGEST)
            with pytest.raises(BookieUnavailable):
                await reads.prefix(bookie.id, np.arange(2), 1, 10_000)
            is_away = False
            entries, status = await reads.prefix(bookie.id, np.arange(2), 1, 10_000)
            assert (len(entries), status) == (2, Status.EOK)
            assert [asked.opcode for asked in bookie.asked] == [v2.BATCH_READ, v2.READ, v2.BATCH_READ]
            await pool.close()

    play(test)


def test_bookie_that_does_not_answer_a_batch_read_is_asked_for_nothing_else():
    """Its time-out has passed: a second one would delay the read from the next bookie."""

    async def test(world: World) -> None:
        async with HostileBookie(lambda asked: None) as bookie:
            host, port = bookie.id.split(":")
            pool = BookiePool(resolver({bookie.id: (host, int(port))}), NetOptions(read_timeout_s=0.02))
            with pytest.raises(RequestTimeout):
                await ReplicaReads(pool, 5, DIGEST).prefix(bookie.id, np.arange(2), 1, 10_000)
            assert [asked.opcode for asked in bookie.asked] == [v2.BATCH_READ]
            await pool.close()

    play(test)


def test_bookie_that_does_not_answer_for_its_lac_is_asked_for_nothing_else():
    """It knows V3, or would have closed the connection; another time-out would delay the reader."""

    async def test(world: World) -> None:
        async with HostileBookie(holds_up_to(4), lambda request: []) as bookie:
            ledger_id = await world.ledger(bookie)
            with pytest.raises(ReadFailed, match=f"bookie {bookie.id} did not answer the LAC"):
                await world.client(net=NetOptions(read_timeout_s=0.02)).open(ledger_id)
            assert bookie.asked == []

    play(test)
