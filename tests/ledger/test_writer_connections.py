"""What a writer sends to its bookies, and what it does when a connection is lost, on real sockets."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from bkspark.core.metadata import Fragment, LedgerState
from bkspark.core.placement import FLAT, Topology
from bkspark.core.writer import WriterCore
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import BookKeeperError, LedgerClosed, LedgerFenced, NotEnoughBookies
from bkspark.ledger.bookies import PlacementOptions
from bkspark.ledger.writer import LedgerWriter
from bkspark.wire import v2
from bkspark.wire.status import Status
from tests.ledger.holders import FOR_EVER_S, PATIENT, Holder, adds_of, flags_of, header_of, register, with_bookies
from tests.ledger.hostile import Asked, HostileBookie, World
from tests.planting import around

PATIENT_WRITER = WriterOptions(add_timeout_s=FOR_EVER_S)


async def created(
    world: World,
    *bookies: HostileBookie,
    quorums: tuple[int, int, int] = (3, 3, 2),
    writer: WriterOptions | None = None,
) -> LedgerWriter:
    """Return the writer of a new ledger of these bookies, which are the registered ones until then."""
    for bookie in bookies:
        await register(world, bookie)
    client = world.client(net=PATIENT, writer=PATIENT_WRITER)
    ensemble, write_quorum, ack_quorum = quorums
    writer = await client.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)
    return client, writer


def entries_at(bookie: HostileBookie) -> list[int]:
    return [asked.entry_id for asked in adds_of(bookie)]


def place_of(writer: LedgerWriter, *bookies: HostileBookie) -> list[HostileBookie]:
    """Return the bookies in the order of the ensemble."""
    by_id = {bookie.id: bookie for bookie in bookies}
    return [by_id[bookie] for bookie in writer.core.slots.ensemble]


def test_every_add_carries_the_bytes_up_to_it_and_a_lac_that_was_acknowledged() -> None:
    async def test(world: World, *bookies: HostileBookie) -> None:
        _, writer = await created(world, *bookies, quorums=(3, 3, 3))
        for number in range(3):
            assert await writer.append(b"x" * (number + 1)) == number
        assert await writer.append_many([b"yy"] * 2500) == 2502
        assert await writer.append(b"zzz") == 2503
        assert writer.length == 5009
        closed = await writer.close()
        lengths = [1, 3, 6, *(6 + 2 * (number + 1) for number in range(2500)), 5009]
        assert (closed.last_entry, closed.length) == (2503, 5009)
        for bookie in bookies:
            headers = [header_of(asked) for asked in adds_of(bookie)]
            assert [(ledger_id, entry_id) for ledger_id, entry_id, _, _ in headers] == [
                (writer.ledger_id, entry_id) for entry_id in range(2504)
            ]
            assert [length for _, _, _, length in headers] == lengths
            lacs = [lac for _, _, lac, _ in headers]
            assert (lacs[:4], lacs[-1]) == ([-1, 0, 1, 2], 2502)
            assert lacs == sorted(lacs)
            assert {flags_of(asked) for asked in adds_of(bookie)} == {0}

    with_bookies(Holder(), Holder(), Holder())(test)


def test_connection_that_is_lost_when_nothing_is_owed_is_made_again_for_the_next_add() -> None:
    """It costs no change of the ensemble, though a spare bookie is there."""

    def breaks_on_reads(asked: Asked) -> int | None:
        if asked.opcode == v2.READ:
            raise ConnectionError
        return None

    async def test(world: World, one: HostileBookie, two: HostileBookie, three: HostileBookie) -> None:
        client, writer = await created(world, one, two, quorums=(2, 2, 2))
        await register(world, three)
        assert await writer.append(b"0") == 0
        pool = (await client.context()).pool
        for bookie in (one, two):
            channel = await pool.channel(bookie.id)
            with pytest.raises(BookKeeperError):
                await channel.read_last_entry(writer.ledger_id, writer._sealer._digest)
        assert await writer.append(b"1") == 1
        closed = await writer.close()
        assert closed.fragments == (Fragment(0, tuple(bookie.id for bookie in place_of(writer, one, two))),)
        assert (entries_at(one), entries_at(two), entries_at(three)) == ([0, 1], [0, 1], [])

    with_bookies(Holder(refuse=breaks_on_reads), Holder(refuse=breaks_on_reads), Holder())(test)


def test_bookie_whose_connection_is_lost_before_it_answers_is_replaced_from_the_first_entry_it_owes() -> None:
    def breaks(asked: Asked) -> int | None:
        if asked.opcode == v2.ADD and asked.entry_id == 1:
            raise ConnectionError
        return None

    async def test(
        world: World, one: HostileBookie, two: HostileBookie, broken: HostileBookie, spare: HostileBookie
    ) -> None:
        _, writer = await created(world, one, two, broken, quorums=(3, 3, 3))
        await register(world, spare)
        assert await writer.append(b"0") == 0
        before = writer.core.slots.ensemble
        assert await writer.append_many([b"1", b"2"]) == 2
        closed = await writer.close()
        after = tuple(spare.id if bookie == broken.id else bookie for bookie in before)
        assert closed.fragments == (Fragment(0, before), Fragment(1, after))
        assert entries_at(spare) == [1, 2]
        assert [header_of(asked)[2:] for asked in adds_of(spare)] == [(0, 2), (0, 3)]

    with_bookies(Holder(), Holder(), Holder(refuse=breaks), Holder())(test)


@pytest.mark.parametrize("status", [Status.EIO, Status.EREADONLY, Status.EBADVERSION])
def test_bookie_that_answers_an_add_with_an_error_is_replaced(status: Status) -> None:
    def refuse(asked: Asked) -> int | None:
        return status if asked.opcode == v2.ADD else None

    async def test(world: World, one: HostileBookie, two: HostileBookie, spare: HostileBookie) -> None:
        _, writer = await created(world, one, two, quorums=(2, 2, 2))
        await register(world, spare)
        assert await writer.append_many([b"0", b"1"]) == 1
        assert set((await writer.close()).last_fragment.bookies) == {one.id, spare.id}
        assert entries_at(spare) == [0, 1]

    with_bookies(Holder(), Holder(refuse=refuse), Holder())(test)


def test_bookie_that_a_writer_gave_up_is_avoided_though_it_can_be_reached() -> None:
    """By the search for another bookie, which follows at once, and by every later one."""
    known: list[Topology] = []

    def noted(old: Any, core: WriterCore, writable: Any, topology: Topology = FLAT) -> Any:
        known.append(topology)
        return old(core, writable, topology)

    def refuse(asked: Asked) -> int | None:
        return Status.EIO if asked.opcode == v2.ADD else None

    async def test(world: World, one: HostileBookie, broken: HostileBookie, spare: HostileBookie) -> None:
        for bookie in (one, broken):
            await register(world, bookie)
        client = world.client(net=PATIENT, writer=PATIENT_WRITER, placement=PlacementOptions(quarantine_failures=1))
        writer = await client.create(ensemble=2, write_quorum=2, ack_quorum=2)
        await register(world, spare)
        with around(WriterCore, "on_writable_bookies", noted):
            assert await writer.append(b"0") == 0
        assert [topology.avoided for topology in known] == [{broken.id}]
        found = await (await client.context()).watcher.candidates(2)
        assert (found.topology.avoided, broken.id in found.writable) == ({broken.id}, True)
        writer.abandon()

    with_bookies(Holder(), Holder(refuse=refuse), Holder())(test)


def test_bookie_that_cannot_be_connected_to_is_replaced_at_once() -> None:
    """Not after the time that an add may take, which is for ever here."""

    async def test(world: World, one: HostileBookie, two: HostileBookie, spare: HostileBookie) -> None:
        _, writer = await created(world, one, two, quorums=(2, 2, 2))
        await two.__aexit__()
        await register(world, spare)
        assert await writer.append_many([b"0", b"1"]) == 1
        assert set((await writer.close()).last_fragment.bookies) == {one.id, spare.id}
        assert entries_at(spare) == [0, 1]

    with_bookies(Holder(), Holder(), Holder())(test)


def test_writer_that_can_connect_to_no_bookie_ends_and_names_them() -> None:
    async def test(world: World, one: HostileBookie, two: HostileBookie) -> None:
        _, writer = await created(world, one, two, quorums=(2, 2, 2))
        names = [one.id, two.id]
        for bookie in (one, two):
            await bookie.__aexit__()
        with pytest.raises(NotEnoughBookies) as raised:
            await writer.append(b"0")
        assert any(name in str(raised.value) for name in names)
        assert "None" not in str(raised.value)  # no bookie said why

    with_bookies(Holder(), Holder())(test)


def test_writer_goes_on_without_a_bookie_that_fails_while_none_is_spare() -> None:
    def breaks(asked: Asked) -> int | None:
        if asked.opcode == v2.ADD and asked.entry_id >= 1:
            raise ConnectionError
        return None

    async def test(world: World, one: HostileBookie, two: HostileBookie, broken: HostileBookie) -> None:
        _, writer = await created(world, one, two, broken)
        before = writer.core.slots.ensemble
        for number in range(4):
            assert await writer.append(b"%d" % number) == number
        closed = await writer.close()
        assert closed.fragments == (Fragment(0, before),)
        assert entries_at(one) == entries_at(two) == [0, 1, 2, 3]

    with_bookies(Holder(), Holder(), Holder(refuse=breaks))(test)


def test_writer_that_one_bookie_calls_fenced_acknowledges_nothing_more_and_says_so_once() -> None:
    """Though two others, which are enough, have taken the entry."""

    def fenced(asked: Asked) -> int | None:
        return Status.EFENCED if asked.opcode == v2.ADD and asked.entry_id == 1 else None

    waits: list[Asked] = []

    def hears(asked: Asked) -> bool:
        if asked.opcode == v2.ADD and asked.entry_id == 1:
            waits.append(asked)
            return False
        return True

    async def test(world: World, one: HostileBookie, two: HostileBookie, other: HostileBookie) -> None:
        client, writer = await created(world, one, two, other)
        failures: list[BookKeeperError] = []
        writer.run.on_failed = failures.append
        assert await writer.append(b"0") == 0
        with pytest.raises(LedgerFenced, match=f"ledger {writer.ledger_id}"):
            await writer.append(b"1")
        with pytest.raises(LedgerFenced):
            await writer.append(b"2")
        with pytest.raises(LedgerFenced):
            await writer.close()
        assert [type(failure) for failure in failures] == [LedgerFenced]
        assert "None" not in str(failures[0])
        assert writer.last_entry == 0
        assert max(entries_at(one) + entries_at(two) + entries_at(other)) == 1
        assert (await client.metadata(writer.ledger_id)).state is LedgerState.OPEN

    with_bookies(Holder(hears=hears), Holder(refuse=fenced), Holder(hears=hears))(test)


def test_entry_that_too_few_bookies_answered_for_is_not_acknowledged() -> None:
    """Two answers of one bookie are one."""

    def silent(asked: Asked) -> bool:
        return asked.opcode != v2.ADD

    class Twice(Holder):
        def __call__(self, asked: Asked) -> bytes | None:
            answer = super().__call__(asked)
            return None if answer is None else answer * 2

    async def test(world: World, one: HostileBookie, two: HostileBookie, three: HostileBookie) -> None:
        client, writer = await created(world, one, two, three)
        appending = asyncio.ensure_future(writer.append(b"0"))
        async with asyncio.timeout(10):
            while not (entries_at(one) and entries_at(two) and entries_at(three)):
                await asyncio.sleep(0.005)
            while not writer.core.pending.votes[0]:
                await asyncio.sleep(0.005)
        channel = await (await client.context()).pool.channel(one.id)
        await channel.read_last_entry(writer.ledger_id, writer._sealer._digest)  # both answers have come by now
        assert not appending.done()
        assert writer.last_entry == -1
        writer.abandon()
        with pytest.raises(BookKeeperError):
            await appending

    with_bookies(Twice(), Holder(hears=silent), Holder(hears=silent))(test)


def test_writer_takes_no_entry_from_the_call_of_close_on() -> None:
    """Though it waits for its last entries."""

    async def test(world: World, bookie: HostileBookie) -> None:
        _, writer = await created(world, bookie, quorums=(1, 1, 1))
        await writer.submit([b"0"])
        closing = asyncio.ensure_future(writer.close())
        await asyncio.sleep(0)
        for call in (writer.append(b"1"), writer.submit([b"1"]), writer.append_many([b"1"])):
            with pytest.raises(LedgerClosed):
                await call
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        assert entries_at(bookie) in ([], [0])

    with_bookies(Holder(hears=lambda asked: False))(test)


def test_single_entry_may_have_as_many_bytes_as_a_frame_has_room_for() -> None:
    async def test(world: World, bookie: HostileBookie) -> None:
        await register(world, bookie)
        client = world.client(net=replace(PATIENT, frame_bytes_max=2048), writer=PATIENT_WRITER)
        writer = await client.create(ensemble=1, write_quorum=1, ack_quorum=1)
        assert await writer.append(bytes(writer.entry_bytes_max)) == 0
        with pytest.raises(ValueError, match=f"an entry of {writer.entry_bytes_max + 1} bytes is above the limit"):
            await writer.append(bytes(writer.entry_bytes_max + 1))
        assert [len(each.body) for each in adds_of(bookie)] == [2048]
        writer.abandon()

    with_bookies(Holder())(test)
