"""Answers of a bookie that is wrong, newer or hostile: what of them reaches the caller."""

from __future__ import annotations

import asyncio
import warnings

import pytest

from bkspark.errors import BookKeeperError, LedgerRecoveryFailed, ReadFailed
from bkspark.ids import LAST_ENTRY_MAX
from bkspark.ledger.reader import SnapshotReader
from bkspark.net.pool import NetOptions
from bkspark.wire import v2
from tests.ledger.hostile import PAYLOAD, Asked, HostileBookie, World, items, play, reply, sealed


def with_more(more: int):
    """Answer batch reads with this many entries more than requested, each of them genuine."""

    def answer(asked: Asked) -> bytes:
        return reply(asked, body=items(asked.ledger_id, asked.entry_id, asked.entries_max + more))

    return answer


async def closed_ledger(world: World, bookie: HostileBookie, last_entry: int = 99) -> int:
    ledger_id = await world.ledger(bookie)
    stored = await world.ledgers.read(ledger_id)
    await world.ledgers.write(ledger_id, stored.metadata.closed(last_entry, 1000), stored.version)
    return ledger_id


@pytest.mark.parametrize("more", [1, 500])
def test_batch_read_gives_no_more_entries_than_were_asked_for(more):
    """A reader of [10, 19] got 510 entries; the spans read ahead gave the same ones again."""

    async def test(world: World) -> None:
        async with HostileBookie(with_more(more)) as bookie:
            reader = await world.client().open(await closed_ledger(world, bookie))
            batch = await reader.read(10, 19)
            assert (batch.first_entry, len(batch)) == (10, 10)
            ids = [
                entry
                async for batch in reader.batches(0, 12, batch_bytes=20)
                for entry in range(batch.first_entry, batch.end_entry)
            ]
            assert ids == list(range(12))
            assert max(asked.entries_max for asked in bookie.asked) <= 12

    play(test)


def test_reader_from_a_plan_never_leaves_its_range():
    async def test(world: World) -> None:
        async with HostileBookie(with_more(7)) as bookie:
            ledger_id = await closed_ledger(world, bookie)
            host, port = bookie.id.split(":")
            metadata = (await world.ledgers.read(ledger_id)).metadata
            reader = SnapshotReader(ledger_id=ledger_id, metadata=metadata, addresses={bookie.id: (host, int(port))})
            found = [batch async for batch in reader.batches(3, 9)]
            assert [entry for batch in found for entry in range(batch.first_entry, batch.end_entry)] == [*range(3, 9)]
            await reader.close()

    play(test)


def test_entries_beyond_the_bytes_asked_for_are_left_out_but_for_the_first():
    """docs/protocol.md §1.5: the first entry comes whatever its size, the rest only as far as the frame has room."""

    async def test(world: World) -> None:
        large = b"y" * 300_000

        def answer(asked: Asked) -> bytes:
            return reply(asked, body=items(asked.ledger_id, asked.entry_id, 3, payload=large, length=300_000))

        async with HostileBookie(answer) as bookie:
            client = world.client()
            pool = (await client.context()).pool
            channel = await pool.channel(bookie.id)
            reader = await client.open(await closed_ledger(world, bookie))
            one = await channel.batch_read(reader.ledger_id, 0, 10, 1000, reader.digest)
            assert (len(one.entries), one.status) == (1, v2.EOK)
            exactly_two = 36 + 2 * (4 + 36 + len(large))
            two = await channel.batch_read(reader.ledger_id, 0, 10, exactly_two, reader.digest)
            assert len(two.entries) == 2
            assert len((await channel.batch_read(reader.ledger_id, 0, 10, exactly_two - 1, reader.digest)).entries) == 1

    play(test)


def test_single_reads_give_nothing_that_was_not_asked_for():
    """V2 without batch reads: answers for other entries and second answers are dropped."""

    async def test(world: World) -> None:
        def answer(asked: Asked) -> bytes | None:
            if asked.opcode == v2.BATCH_READ:
                raise ConnectionError
            right = reply(asked, body=sealed(asked.ledger_id, asked.entry_id))
            other = Asked(v2.READ, asked.ledger_id, asked.entry_id + 1000, b"")
            return reply(other, body=sealed(asked.ledger_id, asked.entry_id + 1000)) + right + right

        async with HostileBookie(answer) as bookie:
            reader = await world.client().open(await closed_ledger(world, bookie))
            batch = await reader.read(10, 19)
            assert list(batch) == [PAYLOAD] * 10

    play(test)


LIES = [2**63 - 1, 2**62, 5000, 5, -2, -(2**63)]


def lying(lac: int):
    """Answer as a bookie that holds entries 0 to 5; the last one carries a LAC that no writer can have known."""

    def answer(asked: Asked) -> bytes:
        if asked.opcode == v2.READ and asked.entry_id == v2.LAST_ENTRY:
            return reply(asked, body=sealed(asked.ledger_id, 5, lac=lac))
        if asked.opcode == v2.READ and asked.entry_id <= 5:
            return reply(asked, body=sealed(asked.ledger_id, asked.entry_id))
        if asked.opcode == v2.ADD:
            return reply(asked)
        return reply(asked, status=v2.Status.ENOENTRY)

    return answer


@pytest.mark.parametrize("lac", LIES)
def test_last_entry_with_an_impossible_lac_is_not_an_answer_to_recovery_or_open(lac):
    """With 2^63 - 1 recovery raised numpy's IndexError; with 5000 it closed the ledger at 5000."""

    async def test(world: World) -> None:
        async with HostileBookie(lying(lac)) as bookie:
            client, ledger_id = world.client(), await world.ledger(bookie)
            with pytest.raises(ReadFailed):
                await client.open(ledger_id)
            with pytest.raises(LedgerRecoveryFailed):
                await client.recover(ledger_id)
            assert not (await client.metadata(ledger_id)).is_closed

    play(test)


def test_recovery_goes_by_the_bookies_that_answer_truthfully():
    async def test(world: World) -> None:
        async with HostileBookie(lying(5000)) as liar, HostileBookie(lying(4)) as one, HostileBookie(lying(4)) as other:
            ledger_id = await world.ledger(liar, one, other, quorums=(3, 3, 2))
            assert (await world.client().recover(ledger_id)).last_entry == 5

    play(test)


@pytest.mark.parametrize("entry_id", [LAST_ENTRY_MAX, LAST_ENTRY_MAX + 1])
def test_entry_ids_at_the_end_of_63_bits_end_in_our_errors_or_in_the_right_result(entry_id):
    def answer(asked: Asked) -> bytes:
        if asked.opcode == v2.READ and asked.entry_id in (v2.LAST_ENTRY, entry_id):
            return reply(asked, body=sealed(asked.ledger_id, entry_id))
        if asked.opcode == v2.BATCH_READ and asked.entry_id == entry_id:
            return reply(asked, body=items(asked.ledger_id, entry_id, 1))
        return reply(asked) if asked.opcode == v2.ADD else reply(asked, status=v2.Status.ENOENTRY)

    async def test(world: World) -> None:
        async with HostileBookie(answer) as bookie:
            ledger_id = await world.ledger(bookie)
            # A reply about the second id is dropped: recovery waits this long for another one.
            client = world.client(net=NetOptions(read_timeout_s=1.0))
            if entry_id == LAST_ENTRY_MAX:
                assert (await client.recover(ledger_id)).last_entry == LAST_ENTRY_MAX
                reader = await client.open(ledger_id)
                assert list(await reader.read(entry_id, entry_id)) == [PAYLOAD]
            else:
                with pytest.raises(LedgerRecoveryFailed):
                    await client.recover(ledger_id)

    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        play(test)


def test_range_at_the_end_of_63_bits_is_refused_or_read_without_numpys_errors():
    async def test(world: World) -> None:
        async with HostileBookie(lambda asked: reply(asked, status=v2.Status.ENOENTRY)) as bookie:
            reader = await world.client().open(await closed_ledger(world, bookie, LAST_ENTRY_MAX))
            with pytest.raises(ValueError, match="cannot be read"):
                await reader.read(2**63 - 2, 2**63 - 1)
            with pytest.raises(BookKeeperError):
                await reader.read(LAST_ENTRY_MAX - 1, LAST_ENTRY_MAX)

    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        play(test)


def test_recovery_that_a_bookie_never_lets_end_can_be_given_up():
    """The protocol has no bound: a bookie may have another entry each time."""

    def answer(asked: Asked) -> bytes:
        if asked.opcode == v2.ADD:
            return reply(asked)
        return reply(asked, body=sealed(asked.ledger_id, max(5, asked.entry_id)))

    async def test(world: World) -> None:
        async with HostileBookie(answer) as bookie:
            client, ledger_id = world.client(), await world.ledger(bookie)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await client.recover(ledger_id)
            assert not (await client.metadata(ledger_id)).is_closed
            assert (await client.open(ledger_id)).last_entry == 4

    play(test)
