"""What a recovery sends to bookies, and what it makes of their answers, on real sockets: docs/protocol.md §3."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import ClientClosed, LedgerRecoveryFailed, NotEnoughBookies, UnauthorizedAccess
from bkspark.ledger import writer
from bkspark.net.pool import BookiePool, NetOptions
from bkspark.wire import v2
from bkspark.wire.digest import master_key
from bkspark.wire.status import Status
from tests.ledger.holders import FOR_EVER_S, PATIENT, Holder, flags_of, header_of, register, with_bookies
from tests.ledger.hostile import PAYLOAD, Asked, HostileBookie, World, reply, sealed
from tests.planting import around

WITH_KEY = v2.READ_BYTES + len(master_key(b""))


def test_every_read_of_a_recovery_fences_and_every_add_has_the_recoverys_flags_and_lac() -> None:
    """25 entries, of which the fences say nothing: three windows, which all begin from one LAC."""

    async def test(world: World, *bookies: HostileBookie) -> None:
        ledger_id = await world.ledger(*bookies, quorums=(3, 3, 2))
        closed = await world.client(net=PATIENT).recover(ledger_id)
        assert (closed.last_entry, closed.length) == (24, 250)
        asked = [each for bookie in bookies for each in bookie.asked]
        fences = [each for each in asked if each.opcode == v2.READ and each.entry_id == v2.LAST_ENTRY]
        reads = [each for each in asked if each.opcode == v2.READ and each.entry_id != v2.LAST_ENTRY]
        adds = [each for each in asked if each.opcode == v2.ADD]
        assert len(fences) == 3
        assert {flags_of(each) for each in fences} == {v2.DO_FENCING}
        assert {flags_of(each) for each in reads} == {v2.DO_FENCING | v2.HIGH_PRIORITY}
        assert {each.body[v2.READ_BYTES : WITH_KEY] for each in (*fences, *reads)} == {master_key(b"")}
        assert {flags_of(each) for each in adds} == {v2.RECOVERY_ADD | v2.HIGH_PRIORITY}
        for bookie in bookies:
            headers = [header_of(each) for each in bookie.asked if each.opcode == v2.ADD]
            assert headers == [(ledger_id, entry_id, -1, 10 * (entry_id + 1)) for entry_id in range(25)]
            assert all(each.body.endswith(PAYLOAD) for each in bookie.asked if each.opcode == v2.ADD)

    with_bookies(*(Holder(range(25), fence=Status.ENOENTRY) for _ in range(3)))(test)


@pytest.mark.parametrize("piece", [1, 3, 1024])
def test_entries_that_a_recovery_copies_carry_the_bytes_up_to_each(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    """Also if they begin in the middle of the ledger, and are sent in several pieces."""
    monkeypatch.setattr(writer, "PIECE_ENTRIES_MAX", piece)

    async def test(world: World, bookie: HostileBookie) -> None:
        fragments = (Fragment(0, (bookie.id,)), Fragment(5, (bookie.id,)))
        ledger_id = await world.ledger(metadata=LedgerMetadata(1, 1, 1, fragments))
        closed = await world.client(net=PATIENT).recover(ledger_id)
        assert (closed.last_entry, closed.length) == (24, 250)
        headers = [header_of(each) for each in bookie.asked if each.opcode == v2.ADD]
        assert headers == [(ledger_id, entry_id, 4, 10 * (entry_id + 1)) for entry_id in range(5, 25)]

    with_bookies(Holder(range(25), fence=Status.ENOENTRY))(test)


def test_recoveries_one_after_the_other_need_one_connection_to_a_bookie() -> None:
    async def test(world: World, *bookies: HostileBookie) -> None:
        client = world.client(net=PATIENT)
        ledger_id = await world.ledger(*bookies, quorums=(3, 3, 2))
        for _ in range(2):
            await client.recover(ledger_id)
            pool = (await client.context()).pool
            connection_index = pool.reserve_connection(ledger_id)
            assert connection_index == 1, "no recovery uses it any more"
            pool.release(ledger_id, connection_index)

    with_bookies(*(Holder(range(3)) for _ in range(3)))(test)


def test_wrong_password_changes_no_metadata_and_asks_no_bookie() -> None:
    """The metadata have the password. If they became IN_RECOVERY, the writer could not close the ledger any more."""

    async def test(world: World, bookie: HostileBookie) -> None:
        ledger_id = await world.ledger(bookie, password=b"right")
        with pytest.raises(UnauthorizedAccess, match=f"the password does not open ledger {ledger_id}"):
            await world.client(net=PATIENT, password=b"wrong").recover(ledger_id)
        assert (await world.client().metadata(ledger_id)).state is LedgerState.OPEN
        assert bookie.asked == []

    with_bookies(Holder(range(3)))(test)


def test_wrong_password_at_one_entry_is_decisive_whatever_failed_before_it() -> None:
    def refuse(asked: Asked) -> int | None:
        return {0: Status.EIO, 2: Status.EUA}.get(asked.entry_id) if asked.opcode == v2.READ else None

    async def test(world: World, one: HostileBookie, other: HostileBookie) -> None:
        ledger_id = await world.ledger(one, other, quorums=(2, 2, 1))
        with pytest.raises(UnauthorizedAccess, match=f"bookie {one.id} refuses to fence ledger {ledger_id}"):
            await world.client(net=PATIENT).recover(ledger_id)
        assert (await world.client().metadata(ledger_id)).state is LedgerState.IN_RECOVERY

    with_bookies(*(Holder(range(3), fence=Status.ENOENTRY, refuse=each) for each in (refuse, lambda asked: None)))(test)


def test_wrong_password_at_the_fence_of_one_bookie_is_decisive() -> None:
    async def test(world: World, one: HostileBookie, other: HostileBookie) -> None:
        ledger_id = await world.ledger(one, other, quorums=(2, 2, 1))
        with pytest.raises(UnauthorizedAccess, match=f"bookie {other.id} refuses to fence ledger {ledger_id}"):
            await world.client(net=PATIENT).recover(ledger_id)

    with_bookies(Holder(range(3)), Holder(range(3), fence=Status.EUA))(test)


def test_recovery_that_cannot_fence_names_the_first_bookie_that_failed_and_why() -> None:
    async def test(world: World, one: HostileBookie, other: HostileBookie) -> None:
        ledger_id = await world.ledger(one, other, quorums=(2, 2, 1))
        with pytest.raises(LedgerRecoveryFailed, match=f"{other.id}: answered with status {int(Status.EIO)}") as raised:
            await world.client(net=PATIENT).recover(ledger_id)
        assert raised.value.bookie == other.id
        gone = one.id
        await one.__aexit__()
        ledger_id = await world.ledger(other, metadata=LedgerMetadata(1, 1, 1, (Fragment(0, (gone,)),)))
        with pytest.raises(LedgerRecoveryFailed, match=gone) as raised:
            await world.client(net=PATIENT).recover(ledger_id)
        assert raised.value.bookie == gone

    with_bookies(Holder(range(3)), Holder(range(3), fence=Status.EIO))(test)


def test_recovery_that_cannot_read_names_the_first_entry_that_failed_and_why() -> None:
    def refuse(asked: Asked) -> int | None:
        return {1: Status.EIO, 3: 77}.get(asked.entry_id) if asked.opcode == v2.READ else None

    async def test(world: World, bookie: HostileBookie) -> None:
        ledger_id = await world.ledger(bookie)
        with pytest.raises(LedgerRecoveryFailed, match=f"entry 1 .*answered with status {int(Status.EIO)}"):
            await world.client(net=PATIENT).recover(ledger_id)

    with_bookies(Holder(range(5), fence=Status.ENOENTRY, refuse=refuse))(test)


def test_recovery_that_is_cancelled_ends_all_its_work() -> None:
    """Its only bookie refuses load, so that it would ask for ever."""

    async def test(world: World, bookie: HostileBookie) -> None:
        ledger_id = await world.ledger(bookie)
        before = asyncio.all_tasks()
        recovering = asyncio.ensure_future(world.client(net=PATIENT).recover(ledger_id))
        while len(bookie.asked) < 3:
            await asyncio.sleep(0.005)
        recovering.cancel()
        await asyncio.gather(recovering, return_exceptions=True)
        async with asyncio.timeout(10):
            while any("Driver._run" in str(task.get_coro()) for task in asyncio.all_tasks() - before):
                await asyncio.sleep(0.005)

    with_bookies(Holder(range(3), refuse=lambda asked: Status.ETOOMANYREQUESTS))(test)


def test_bookies_that_refuse_load_are_asked_again_and_lose_no_entry() -> None:
    """Each refuses the first fence and the first read of each entry."""

    def refusing_once() -> Callable[[Asked], int | None]:
        met: set[int] = set()

        def refuse(asked: Asked) -> int | None:
            if asked.opcode != v2.READ or asked.entry_id in met:
                return None
            met.add(asked.entry_id)
            return Status.ETOOMANYREQUESTS

        return refuse

    async def test(world: World, *bookies: HostileBookie) -> None:
        ledger_id = await world.ledger(*bookies, quorums=(3, 3, 2))
        assert (await world.client(net=PATIENT).recover(ledger_id)).last_entry == 5

    with_bookies(*(Holder(range(6), fence=None, refuse=refusing_once()) for _ in range(3)))(test)


def test_close_names_the_bookie_that_got_the_entries_when_another_one_failed() -> None:
    """25 entries, in three windows: the failed bookie refuses the adds of the first one, and is replaced once."""

    def refuse(asked: Asked) -> int | None:
        return Status.EIO if asked.opcode == v2.ADD else None

    async def test(
        world: World, one: HostileBookie, two: HostileBookie, broken: HostileBookie, spare: HostileBookie
    ) -> None:
        await register(world, spare)
        ledger_id = await world.ledger(one, two, broken, quorums=(3, 3, 3))
        closed = await world.client(net=PATIENT).recover(ledger_id)
        assert (closed.last_entry, closed.fragments) == (24, (Fragment(0, (one.id, two.id, spare.id)),))
        assert await world.client().metadata(ledger_id) == closed
        assert {each.entry_id for each in spare.asked if each.opcode == v2.ADD} == set(range(25))

    one, two = (Holder(range(25), fence=Status.ENOENTRY) for _ in range(2))
    with_bookies(one, two, Holder(range(25), fence=Status.ENOENTRY, refuse=refuse), Holder())(test)


def test_bookie_that_was_silent_when_entries_were_read_is_not_waited_for_when_they_are_rewritten() -> None:
    """It costs the time-out of one read, and is replaced without that of an add."""

    def hears(asked: Asked) -> bool:
        return asked.entry_id == v2.LAST_ENTRY

    async def test(world: World, silent: HostileBookie, other: HostileBookie, spare: HostileBookie) -> None:
        await register(world, spare)
        ledger_id = await world.ledger(silent, other, quorums=(2, 2, 2))
        client = world.client(net=NetOptions(read_timeout_s=0.2), writer=WriterOptions(add_timeout_s=FOR_EVER_S))
        closed = await client.recover(ledger_id)
        assert (closed.last_entry, closed.last_fragment.bookies) == (3, (spare.id, other.id))
        assert {each.entry_id for each in spare.asked} == set(range(4))

    one, other = (Holder(range(4), fence=Status.ENOENTRY, hears=each) for each in (hears, lambda asked: True))
    with_bookies(one, other, Holder())(test)


def test_entries_that_too_few_bookies_take_fail_the_recovery() -> None:
    def refuse(asked: Asked) -> int | None:
        return Status.EIO if asked.opcode == v2.ADD else None

    async def test(world: World, *bookies: HostileBookie) -> None:
        ledger_id = await world.ledger(*bookies, quorums=(2, 2, 1))
        with pytest.raises(NotEnoughBookies):
            await world.client(net=PATIENT).recover(ledger_id)
        assert (await world.client().metadata(ledger_id)).state is LedgerState.IN_RECOVERY

    with_bookies(Holder(range(4), refuse=refuse), Holder(range(4), refuse=refuse))(test)


def test_recovery_that_begins_again_rewrites_every_entry_under_its_own_id() -> None:
    """The metadata change while entries are rewritten, so the close is refused once."""
    is_changed = False

    def refuse(asked: Asked) -> int | None:
        return Status.ETOOMANYREQUESTS if asked.opcode == v2.ADD and not is_changed else None

    async def test(world: World, bookie: HostileBookie) -> None:
        nonlocal is_changed
        ledger_id = await world.ledger(bookie)
        recovering = asyncio.ensure_future(world.client(net=PATIENT).recover(ledger_id))
        while not any(asked.opcode == v2.ADD for asked in bookie.asked):
            await asyncio.sleep(0.005)
        stored = await world.ledgers.read(ledger_id)
        await world.ledgers.write(
            ledger_id, replace(stored.metadata, custom_metadata={"who": b"another"}), stored.version
        )
        is_changed = True
        closed = await recovering
        assert (closed.last_entry, closed.length, closed.custom_metadata) == (3, 40, {"who": b"another"})
        assert {header_of(each)[1] for each in bookie.asked if each.opcode == v2.ADD} == {0, 1, 2, 3}

    with_bookies(Holder(range(4), fence=Status.ENOENTRY, refuse=refuse))(test)


def test_recovery_under_which_its_client_is_closed_ends_with_that_reason() -> None:
    for answered in (set(), {v2.LAST_ENTRY}):  # it waits for a fence, or for a read

        async def test(world: World, bookie: HostileBookie, answered: set[int] = answered) -> None:
            client, ledger_id = world.client(net=PATIENT), await world.ledger(bookie)
            recovering = asyncio.ensure_future(client.recover(ledger_id))
            while len(bookie.asked) <= len(answered):
                await asyncio.sleep(0.005)
            await client.close()
            with pytest.raises(ClientClosed):
                await recovering
            assert not (await world.client().metadata(ledger_id)).is_closed

        with_bookies(Holder(range(4), hears=lambda asked, answered=answered: asked.entry_id in answered))(test)


# ---- the length of a ledger whose last fragment is empty ----


def closed_with_empty_fragment(*first: Callable[[Asked], bytes | None]) -> tuple[int, int] | None:
    """Recover a ledger of entries 0 to 3 at two bookies, with a last fragment from entry 4 on without entries; return
    its last entry and length, or None if it stays open."""
    found: list[tuple[int, int] | None] = []

    async def test(
        world: World, one: HostileBookie, two: HostileBookie, three: HostileBookie, four: HostileBookie
    ) -> None:
        fragments = (Fragment(0, (one.id, two.id)), Fragment(4, (three.id, four.id)))
        ledger_id = await world.ledger(metadata=LedgerMetadata(2, 2, 1, fragments))
        client = world.client(net=PATIENT)
        (outcome,) = await asyncio.gather(client.recover(ledger_id), return_exceptions=True)
        if isinstance(outcome, LedgerMetadata):
            found.append((outcome.last_entry, outcome.length))
        else:
            assert isinstance(outcome, LedgerRecoveryFailed)
            assert "entry 3, the last one, could not be read" in str(outcome)
            assert not (await client.metadata(ledger_id)).is_closed
            found.append(None)

    with_bookies(*first, Holder(), Holder())(test)
    return found[0]


def answering(status: int) -> Callable[[Asked], bytes]:
    return lambda asked: reply(asked, status=status)


def silent(asked: Asked) -> None:
    return None


def closes(asked: Asked) -> bytes:
    raise ConnectionError


@pytest.mark.parametrize("other", [answering(Status.EIO), silent, closes, Holder(), Holder(range(4))])
def test_length_is_read_from_any_bookie_that_has_the_last_entry(other: Callable[[Asked], bytes | None]) -> None:
    assert closed_with_empty_fragment(other, Holder(range(4))) == (3, 40)
    assert closed_with_empty_fragment(Holder(range(4)), other) == (3, 40)


@pytest.mark.parametrize(
    "unheard", [closes, *(answering(status) for status in (Status.EIO, Status.EUNKNOWNLEDGERSTATE, Status.EUA, 77))]
)
def test_recovery_fails_while_a_bookie_that_may_have_the_last_entry_is_not_heard(
    unheard: Callable[[Asked], bytes],
) -> None:
    """An error was taken for the answer that the bookie does not have it: the ledger was closed without a length."""
    assert closed_with_empty_fragment(unheard, Holder()) is None
    assert closed_with_empty_fragment(Holder(), unheard) is None


def test_bookie_that_refuses_load_is_asked_again_for_the_length() -> None:
    refused: list[Asked] = []

    def refuse(asked: Asked) -> int | None:
        if len(refused) == 3:
            return None
        refused.append(asked)
        return Status.ETOOMANYREQUESTS

    assert closed_with_empty_fragment(Holder(), Holder(range(4), refuse=refuse)) == (3, 40)
    assert len(refused) == 3


def test_ledger_whose_last_entry_no_bookie_has_is_closed_without_a_length() -> None:
    assert closed_with_empty_fragment(Holder(), Holder()) == (3, 0)


def test_bookie_that_has_the_last_entry_damaged_does_not_have_it(caplog: pytest.LogCaptureFixture) -> None:
    """It is heard, so that the ledger can be closed; and the damage is reported."""

    def damaged(asked: Asked) -> bytes:
        return reply(asked, body=sealed(asked.ledger_id, 3, length=40)[:-1] + b"!")

    assert closed_with_empty_fragment(damaged, Holder()) == (3, 0)
    assert "entry 3" in caplog.text
    assert "the bytes do not match their digest" in caplog.text
    assert closed_with_empty_fragment(damaged, Holder(range(4))) == (3, 40)


def test_length_is_read_from_a_copy_that_apaches_repair_has_sealed_with_its_own_lac() -> None:
    """Such a copy of an entry before the last fragment may carry the entry's own id as its LAC."""

    def copy(asked: Asked) -> bytes:
        return reply(asked, body=sealed(asked.ledger_id, 3, lac=3, length=40))

    assert closed_with_empty_fragment(Holder(), copy) == (3, 40)


def test_recovery_uses_connections_of_its_own_to_fence_to_read_and_to_write() -> None:
    """On a shared one, the answer to a read that does not fence could be taken for that of a fenced bookie."""
    used: list[int] = []

    async def noted(old: Any, pool: BookiePool, bookie: str, connection_index: int = 0) -> Any:
        used.append(connection_index)
        return await old(pool, bookie, connection_index)

    async def test(world: World, *bookies: HostileBookie) -> None:
        ledger_id = await world.ledger(*bookies, quorums=(3, 3, 2))
        with around(BookiePool, "channel", noted):
            assert (await world.client(net=PATIENT).recover(ledger_id)).last_entry == 5
        assert set(used) == {1}
        assert len(used) >= 9, "each bookie is fenced, read and written"

    with_bookies(*(Holder(range(6), fence=Status.ENOENTRY) for _ in range(3)))(test)
