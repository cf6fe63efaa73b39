"""How far a ledger goes, and which of its entries a reader gives, on real sockets: docs/protocol.md §2.8, §5.8."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import replace

import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import ClientClosed, ConfigurationError, NoSuchEntry, NoSuchLedger, ReadFailed
from bkspark.ledger.patience import Patience
from bkspark.ledger.reader import LedgerReader, LedgerTimes, SnapshotReader, last_entries
from bkspark.ledger.tail import TailWatch
from bkspark.metadata.ledgers import Versioned
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.status import Status
from tests.ledger.after_calls import tasks_of
from tests.ledger.held_reads import PATIENT, Held, close, entries, explicit, opened
from tests.ledger.hostile import DIGEST, Asked, HostileBookie, World, no_entry_v3, play, reply, sealed


def unanswered(request: protocol.Request) -> Iterable[protocol.Response]:
    return []


class TakesAdds(Held):
    """As `Held`; it answers the adds of a recovery, too."""

    def __call__(self, asked: Asked) -> bytes:
        return reply(asked) if asked.opcode == v2.ADD else super().__call__(asked)


# ---- how far it goes ----


@pytest.mark.parametrize(
    ("lac", "last", "confirmed", "held"),
    [(None, 4, 3, 4), (4, 4, 4, 4), (3, 4, 3, 4), (2, 4, 3, 4), (6, 4, 6, 6), (6, None, 6, 6), (-1, None, -1, -1)],
)
def test_explicit_lac_of_a_bookie_counts_beside_its_last_entry(
    lac: int | None, last: int | None, confirmed: int, held: int
) -> None:
    async def test(reader: LedgerReader, world: World, *_: HostileBookie) -> None:
        assert (reader.last_entry, reader.last_unconfirmed) == (confirmed, held)

    opened((Held(-1), explicit(lac, last)))(test)


def test_explicit_lac_counts_though_its_bookie_answers_with_an_error_for_the_entry() -> None:
    """As Apache's bookies do while they hold no entry."""

    async def test(reader: LedgerReader, world: World, *_: HostileBookie) -> None:
        assert reader.last_entry == 6

    opened((Held(-1, Status.EIO), explicit(6, None, protocol.EIO)))(test)


def test_bookie_that_is_silent_delays_nothing_while_the_others_cover_every_write_set() -> None:
    async def test(reader: LedgerReader, world: World, *_: HostileBookie) -> None:
        assert reader.last_entry == 3
        assert await reader.refresh() == 3

    opened((Held(4), unanswered), (Held(4), no_entry_v3), (Held(2), no_entry_v3), quorums=(3, 3, 2))(test)


def test_questions_for_the_end_have_ended_when_it_is_known() -> None:
    """A silent bookie owes its answer for as long as the time-out says: no task waits for it any more."""

    async def test(reader: LedgerReader, world: World, *_: HostileBookie) -> None:
        pool = (await world.client(net=PATIENT).context()).pool
        last = await last_entries(pool, reader.ledger_id, reader.metadata, DIGEST)
        assert tasks_of("last_entries.<locals>.ask") == []
        assert (last.lac, last.lap) == (3, 4)

    opened((Held(4), unanswered), (Held(4), no_entry_v3), (Held(2), no_entry_v3), quorums=(3, 3, 2))(test)


def test_client_that_is_closed_while_a_ledger_is_opened_says_so() -> None:
    async def test(world: World) -> None:
        async with HostileBookie(Held(4), unanswered) as bookie:
            client, ledger_id = world.client(net=PATIENT), await world.ledger(bookie)
            opening = asyncio.ensure_future(client.open(ledger_id))
            while not tasks_of("last_entries.<locals>.ask"):
                await asyncio.sleep(0)
            await client.close()
            with pytest.raises(ClientClosed):
                await opening

    play(test, 20)


def test_last_entry_that_is_damaged_at_a_bookie_is_reported_and_asked_for_elsewhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def damaged(asked: Asked) -> bytes:
        answer = bytearray(Held(4)(asked))
        answer[-1] ^= 1
        return bytes(answer)

    async def test(reader: LedgerReader, world: World, bookie: HostileBookie, *_: HostileBookie) -> None:
        assert reader.last_entry == 3
        assert bookie.id in caplog.text
        assert "another bookie is asked for it" in caplog.text

    opened((damaged, no_entry_v3), (Held(4), no_entry_v3), (Held(4), unanswered), quorums=(3, 3, 3))(test)


def test_copy_that_apaches_repair_sealed_before_a_new_fragment_counts_when_the_reader_knows_of_that() -> None:
    """A copy may carry its own id as its LAC; an entry of the last fragment may not."""
    held = Held(4)

    async def test(reader: LedgerReader, world: World, bookie: HostileBookie) -> None:
        stored = await world.ledgers.read(reader.ledger_id)
        grown = replace(stored.metadata, fragments=(*stored.metadata.fragments, Fragment(5, (bookie.id,))))
        await world.ledgers.write(reader.ledger_id, grown, stored.version)
        held.lac = 4
        assert await reader.refresh() == 4

    opened((held, no_entry_v3))(test)


def test_damaged_last_entry_leaves_the_end_unknown() -> None:
    def damaged(asked: Asked) -> bytes:
        found = Held(4)(asked)
        return found[:-1] + bytes([found[-1] ^ 1])

    async def test(world: World) -> None:
        async with HostileBookie(Held(-1)) as one, HostileBookie(damaged) as other:
            ledger_id = await world.ledger(one, other)
            with pytest.raises(ReadFailed, match=f"bookie {other.id}: the bytes do not match"):
                await world.client(net=PATIENT).open(ledger_id)

    play(test, 20)


def test_ledger_that_a_recovery_left_is_read_to_its_lac_and_recovered_again() -> None:
    held = TakesAdds(4)

    async def test(reader: LedgerReader, world: World, *_: HostileBookie) -> None:
        stored = await world.ledgers.read(reader.ledger_id)
        await world.ledgers.write(reader.ledger_id, stored.metadata.in_recovery(), stored.version)
        held.last = 6
        assert (await reader.refresh(), reader.is_closed) == (5, False)
        again = await world.client(net=PATIENT).open(reader.ledger_id)
        assert (again.last_entry, again.last_unconfirmed, again.is_closed) == (5, 6, False)
        assert await entries(again.batches()) == [0, 1, 2, 3, 4, 5]
        recovered = await world.client(net=PATIENT).open(reader.ledger_id, recover=True)
        assert (recovered.last_entry, recovered.is_closed) == (6, True)

    opened((held, no_entry_v3))(test)


def test_copy_that_apaches_repair_sealed_counts_when_a_ledger_is_opened() -> None:
    """Its last fragment begins after the copy, and has no entries yet."""

    async def test(world: World) -> None:
        async with HostileBookie(Held(4, lac=4), no_entry_v3) as bookie:
            fragments = (Fragment(0, (bookie.id,)), Fragment(5, (bookie.id,)))
            ledger_id = await world.ledger(metadata=LedgerMetadata(1, 1, 1, fragments))
            assert (await world.client(net=PATIENT).open(ledger_id)).last_entry == 4

    play(test, 20)


@pytest.mark.parametrize("nothing", [Status.ENOENTRY, Status.ENOLEDGER])
def test_bookie_that_has_nothing_is_a_certain_answer(nothing: Status) -> None:
    async def test(reader: LedgerReader, world: World, *_: HostileBookie) -> None:
        assert (reader.last_entry, reader.last_unconfirmed) == (3, 4)

    opened((Held(4), no_entry_v3), (Held(-1, nothing), no_entry_v3))(test)

    async def empty(reader: LedgerReader, world: World, *_: HostileBookie) -> None:
        assert (reader.last_entry, reader.last_unconfirmed, reader.length) == (-1, -1, 0)
        assert await entries(reader.batches()) == []

    opened((Held(-1, nothing), no_entry_v3), (Held(-1, nothing), no_entry_v3))(empty)


@pytest.mark.parametrize("status", [Status.EIO, Status.EUNKNOWNLEDGERSTATE, 77])
def test_error_of_a_bookie_leaves_the_end_unknown_and_is_reported(status: int) -> None:
    async def test(world: World) -> None:
        async with HostileBookie(Held(4)) as one, HostileBookie(Held(-1, status)) as other:
            ledger_id = await world.ledger(one, other)
            with pytest.raises(ReadFailed, match=f"bookie {other.id}: answered with status {int(status)}") as raised:
                await world.client(net=PATIENT).open(ledger_id)
            assert raised.value.bookie == other.id

    play(test, 20)


def test_bookie_that_cannot_be_reached_leaves_the_end_unknown_and_is_reported() -> None:
    async def test(world: World) -> None:
        async with HostileBookie(Held(4)) as one, HostileBookie(Held(4)) as other:
            ledger_id, gone = await world.ledger(one, other), other.id
            await other.__aexit__()
            with pytest.raises(ReadFailed, match=gone) as raised:
                await world.client(net=PATIENT).open(ledger_id)
            assert raised.value.bookie == gone

    play(test, 20)


def test_last_entry_never_decreases() -> None:
    held = Held(4)

    async def test(reader: LedgerReader, world: World, *_: HostileBookie) -> None:
        for last, expected in ((2, 3), (6, 5), (-1, 5)):
            held.last = last
            assert await reader.refresh() == expected
            assert reader.last_entry == expected
        assert reader.last_unconfirmed == 6
        reader.learn_lac(5)
        reader.learn_lac(2)
        assert (reader.last_entry, reader.last_unconfirmed) == (5, 6)
        reader.learn_lac(8)
        assert (reader.last_entry, reader.last_unconfirmed) == (8, 8)
        assert await reader.refresh() == 8

    opened((held, no_entry_v3))(test)


def test_end_of_a_closed_ledger_is_that_of_its_metadata() -> None:
    """Whatever its bookies hold, or a bookie said before."""

    async def test(reader: LedgerReader, world: World, bookie: HostileBookie) -> None:
        assert not reader.is_closed
        await close(world, reader, 2)
        assert await reader.refresh() == 2
        assert (reader.is_closed, reader.last_unconfirmed, reader.length) == (True, 2, 1000)
        reader.learn_lac(7)
        asked = len(bookie.asked)
        assert await reader.refresh() == 2
        assert (reader.last_entry, len(bookie.asked)) == (2, asked)

    opened((Held(9), no_entry_v3))(test)


@pytest.mark.parametrize(("last", "lac", "length"), [(9, 4, 50), (9, 8, 90), (9, -1, 0), (0, -1, 0), (-1, None, 0)])
def test_length_of_an_open_ledger_is_in_proportion_to_its_confirmed_entries(
    last: int, lac: int | None, length: int
) -> None:
    async def test(reader: LedgerReader, world: World, *_: HostileBookie) -> None:
        assert reader.length == length

    opened((Held(last, lac=lac), no_entry_v3))(test)


def test_length_of_an_open_ledger_of_one_confirmed_entry_is_that_of_the_entry() -> None:
    async def test(reader: LedgerReader, world: World, *_: HostileBookie) -> None:
        assert (reader.last_entry, reader.last_unconfirmed, reader.length) == (0, 0, 10)

    opened((Held(0), explicit(0, 0)))(test)


def test_times_of_a_ledger_are_those_of_its_metadata_or_of_its_node() -> None:
    metadata = LedgerMetadata(1, 1, 1, (Fragment(0, ("b:1",)),))
    opened_ledger = Versioned(replace(metadata, ctime=5), 0, ctime_ms=7, mtime_ms=9)
    assert LedgerTimes.of(opened_ledger) == LedgerTimes(5, None)
    closed = Versioned(replace(metadata, ctime=None).closed(0, 1), 1, ctime_ms=7, mtime_ms=9)
    assert LedgerTimes.of(closed) == LedgerTimes(7, 9)
    assert [LedgerTimes(7, 9).is_closed_before(moment) for moment in (8, 9, 10)] == [False, False, True]
    assert not LedgerTimes(5, None).is_closed_before(1 << 60)


# ---- which entries it gives ----


def test_range_to_read_must_lie_in_what_is_confirmed_or_held() -> None:
    async def test(reader: LedgerReader, world: World, *_: HostileBookie) -> None:
        assert (reader.last_entry, reader.last_unconfirmed) == (3, 4)
        for first, last in ((2, 1), (0, 4), (4, 4)):
            with pytest.raises(ValueError, match="in 0 to 3, the last confirmed entry"):
                await reader.read(first, last)
        with pytest.raises(ValueError, match="in 0 to 4, the last held entry"):
            await reader.read(5, 5, unconfirmed=True)
        for first, last in ((0, 0), (0, 3), (3, 3)):
            batch = await reader.read(first, last)
            assert (batch.first_entry, batch.end_entry) == (first, last + 1)
        assert (await reader.read(4, 4, unconfirmed=True)).first_entry == 4
        assert await entries(reader.batches()) == [0, 1, 2, 3]
        assert await entries(reader.batches(1, 4)) == [1, 2, 3]
        assert await entries(reader.batches(unconfirmed=True)) == [0, 1, 2, 3, 4]
        assert await entries(reader.batches(2, 2)) == []
        assert await entries(reader.batches(9)) == []
        for batches in (reader.batches(0, 5), reader.batches(0, 6, unconfirmed=True)):
            with pytest.raises(ValueError, match="cannot be read"):
                await entries(batches)
        assert await entries(reader.acknowledged_batches(0, 5)) == [0, 1, 2, 3, 4]

    opened((Held(4), no_entry_v3))(test)


def test_batches_have_room_for_one_byte_at_least() -> None:
    async def test(reader: LedgerReader, world: World, *_: HostileBookie) -> None:
        assert await entries(reader.batches(batch_bytes=1)) == [0, 1, 2, 3]
        assert await entries(reader.acknowledged_batches(0, 5, batch_bytes=1)) == [0, 1, 2, 3, 4]
        for batches in (
            reader.batches(batch_bytes=0),
            reader.acknowledged_batches(0, 5, batch_bytes=0),
            reader.follow(batch_bytes=0),
        ):
            with pytest.raises(ConfigurationError, match="batch_bytes must be from 1"):
                await entries(batches)

    opened((Held(4), no_entry_v3))(test)


def test_entries_beyond_the_close_are_not_given_though_bookies_hold_them() -> None:
    async def test(reader: LedgerReader, world: World, *_: HostileBookie) -> None:
        await close(world, reader, 2)
        await reader.refresh()
        assert await entries(reader.acknowledged_batches(0, 3)) == [0, 1, 2]
        with pytest.raises(NoSuchEntry, match="entry 3: the ledger is closed at entry 2") as raised:
            await entries(reader.acknowledged_batches(1, 5))
        assert raised.value.entry_id == 3

    opened((Held(9), no_entry_v3))(test)


def test_ledger_that_was_closed_meanwhile_before_an_entry_does_not_have_it() -> None:
    held = Held(9)

    async def test(reader: LedgerReader, world: World, *_: HostileBookie) -> None:
        await close(world, reader, 2)
        held.last = 2
        with pytest.raises(NoSuchEntry, match="entry 3: the ledger is closed at entry 2"):
            await entries(reader.acknowledged_batches(0, 5))
        assert reader.is_closed

    opened((held, no_entry_v3))(test)


@pytest.mark.parametrize("status", [Status.ENOENTRY, Status.EIO])
def test_entries_that_moved_to_another_bookie_are_found_there(status: Status) -> None:
    """Their old bookie says that it does not have them, or that it cannot say so."""
    held = Held(9)

    async def test(reader: LedgerReader, world: World, *_: HostileBookie) -> None:
        held.last, held.otherwise = 3, status
        async with HostileBookie(Held(9)) as other:
            stored = await world.ledgers.read(reader.ledger_id)
            moved = replace(stored.metadata, fragments=(Fragment(0, (other.id,)),))
            await world.ledgers.write(reader.ledger_id, moved, stored.version)
            assert await entries(reader.batches()) == list(range(9))
            assert reader.metadata.fragments == moved.fragments

    opened((held, no_entry_v3))(test)


@pytest.mark.parametrize(("status", "error"), [(Status.ENOENTRY, NoSuchEntry), (Status.EIO, ReadFailed)])
def test_entry_that_is_lost_or_cannot_be_read_is_an_error(status: Status, error: type[Exception]) -> None:
    held = Held(9)

    async def test(reader: LedgerReader, world: World, *_: HostileBookie) -> None:
        held.last, held.otherwise = 3, status
        with pytest.raises(error):
            await entries(reader.batches())

    opened((held, no_entry_v3))(test)


def test_follower_of_a_closed_ledger_ends_after_its_last_entry() -> None:
    async def test(reader: LedgerReader, world: World, *_: HostileBookie) -> None:
        await close(world, reader, 3)
        async with asyncio.timeout(10):
            assert await entries(reader.follow()) == [0, 1, 2, 3]
        await reader.refresh()
        for first, expected in ((0, [0, 1, 2, 3]), (3, [3]), (4, [])):
            assert await entries(reader.follow(first)) == expected

    opened((Held(3), no_entry_v3))(test)


def test_follower_gives_what_was_confirmed_while_its_caller_had_the_entries_before() -> None:
    """Another user of the reader refreshes it meanwhile. The follower waited for an entry beyond the new LAC, and gave
    those up to it only then."""
    held = Held(4)

    async def test(reader: LedgerReader, world: World, *_: HostileBookie) -> None:
        found: list[int] = []
        async with aclosing(reader.follow()) as batches, asyncio.timeout(10):
            async for batch in batches:
                found += range(batch.first_entry, batch.end_entry)
                if len(found) == 8:
                    break
                held.last += 2
                assert await reader.refresh() == held.last - 1
        assert found == list(range(8))

    opened((held, no_entry_v3))(test)


def test_follower_of_a_ledger_that_was_closed_while_its_caller_had_entries_reads_on_to_the_end() -> None:
    held = Held(4)

    async def test(reader: LedgerReader, world: World, *_: HostileBookie) -> None:
        found: list[int] = []
        async with aclosing(reader.follow()) as batches, asyncio.timeout(10):
            async for batch in batches:
                if not found:
                    held.last = 7
                    await close(world, reader, 7)
                    await reader.refresh()
                found += range(batch.first_entry, batch.end_entry)
        assert found == list(range(8))

    opened((held, no_entry_v3))(test)


@pytest.mark.parametrize("is_closed", [False, True])
def test_reader_does_not_go_on_in_another_ledger_that_took_the_id(is_closed: bool) -> None:
    async def test(reader: LedgerReader, world: World, *_: HostileBookie) -> None:
        known = reader.metadata
        await world.ledgers.delete(reader.ledger_id)
        other = known.closed(9, 1000) if is_closed else known
        await world.ledgers.create(other, ledger_id=reader.ledger_id)
        for call in (reader.refresh(), entries(reader.follow(4)), entries(reader.acknowledged_batches(4, 10))):
            with pytest.raises(NoSuchLedger, match="another one was created under its id") as raised:
                await asyncio.wait_for(call, 10)
            assert raised.value.is_replaced
        assert (reader.metadata, reader.last_entry) == (known, 3)

    opened((Held(4), no_entry_v3))(test)


def test_caller_whose_follower_gave_up_is_not_patient_elsewhere() -> None:
    """The parts of one call share their patience: that of a log's follower has followers of ledgers."""

    async def test(reader: LedgerReader, world: World, *_: HostileBookie) -> None:
        patience = Patience(3600.0, asyncio.get_running_loop().time)
        async with aclosing(reader.follow_patiently(0, 1 << 20, patience)) as batches:
            assert (await anext(batches)).end_entry == 4
            await world.ledgers.delete(reader.ledger_id)
            with pytest.raises(NoSuchLedger):
                await anext(batches)
        passing = ReadFailed("too few bookies answered")
        with pytest.raises(ReadFailed) as raised:
            await patience.bear(passing)
        assert raised.value is passing

    opened((Held(4), no_entry_v3))(test)


def test_entry_that_came_with_a_poll_is_not_given_before_it_is_proven() -> None:
    """A bookie says that the LAC is 5 and sends entry 0 along; no digest proves that entry 0 is confirmed."""
    asked: list[int] = []

    def promising(request: protocol.Request) -> Iterable[protocol.Response]:
        asked.append(request.header.operation)
        if request.header.operation != protocol.READ_ENTRY:
            return no_entry_v3(request)
        ledger_id = request.readRequest.ledgerId
        inner = protocol.ReadResponse(
            status=protocol.EOK, ledgerId=ledger_id, entryId=0, maxLAC=5, body=sealed(ledger_id, 0)
        )
        head = v3.header(protocol.READ_ENTRY, request.header.txnId)
        return [protocol.Response(header=head, status=protocol.EOK, readResponse=inner)]

    async def test(reader: LedgerReader, world: World, *_: HostileBookie) -> None:
        async with aclosing(TailWatch(await world.client(net=PATIENT).context(), reader)) as watch:
            waiting = asyncio.ensure_future(watch.wait_beyond(-1))
            while protocol.READ_ENTRY not in asked or asked[::-1].index(protocol.READ_ENTRY) < 2:
                await asyncio.sleep(0.005)  # until its LAC was asked for twice since
            assert (waiting.done(), reader.last_entry) == (False, -1)
            assert watch.take_entry(0) is None
            waiting.cancel()

    opened((Held(0), promising))(test)


def test_ledger_whose_metadata_have_no_password_is_left_to_its_bookies() -> None:
    """Metadata of format 1: a client with any password may ask; the digest of such a ledger is CRC32."""

    async def test(world: World) -> None:
        async with HostileBookie(Held(-1), no_entry_v3) as bookie:
            metadata = LedgerMetadata(1, 1, 1, (Fragment(0, (bookie.id,)),), format_version=1)
            ledger_id = await world.ledger(bookie, metadata=metadata)
            assert (await world.client().metadata(ledger_id)).password is None
            assert (await world.client(password=b"any").open(ledger_id)).last_entry == -1

    play(test, 20)


def test_one_byte_is_the_least_that_a_batch_may_be_asked_to_have() -> None:
    """A batch has an entry nevertheless."""

    async def test(reader: LedgerReader, world: World, bookie: HostileBookie) -> None:
        host, port = bookie.id.split(":")
        planned = SnapshotReader(
            ledger_id=reader.ledger_id, metadata=reader.metadata, addresses={bookie.id: (host, int(port))}
        )
        await close(world, reader, 4)
        for batches in (
            reader.batches(0, 3, batch_bytes=1),
            reader.acknowledged_batches(0, 3, batch_bytes=1),
            planned.batches(0, 3, batch_bytes=1),
        ):
            assert await entries(batches) == [0, 1, 2]
        assert await entries(reader.follow(batch_bytes=1)) == [0, 1, 2, 3, 4]
        small, large = [len(batch) async for batch in reader.batches(batch_bytes=1)], [5]
        assert small != large
        assert [len(batch) async for batch in reader.follow(batch_bytes=1)] == small
        assert [len(batch) async for batch in reader.follow()] == large
        for call in (reader.batches, reader.acknowledged_batches, planned.batches, reader.follow):
            ends = () if call == reader.follow else (3,)
            with pytest.raises(ConfigurationError, match="batch_bytes"):
                await anext(aiter(call(0, *ends, batch_bytes=0)))
        await planned.close()

    opened((Held(4), no_entry_v3))(test)
