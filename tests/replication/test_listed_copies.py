"""What a check of a ledger concludes from lists of entries, and what from reads (docs/autorecovery.md)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from bkspark.core.metadata import Fragment, LedgerState
from bkspark.entries import EntryBatch
from bkspark.errors import SessionExpired
from bkspark.metadata.election import AuditorElection
from bkspark.metadata.uri import MetadataUri
from bkspark.wire import v2
from bkspark.wire.digest import DigestType, EntryDigest
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.ledger_check import LISTED_ENTRIES_MIN, Lack, LedgerCheck, LedgerFindings
from bookie_service.replication.options import AutoRecoveryOptions
from bookie_service.replication.unexpected_errors import UnexpectedErrors
from tests.ledger.holders import PATIENT, Holder, with_bookies
from tests.ledger.hostile import URI, Asked, HostileBookie, World, reply, sealed
from tests.metadata.meanwhile import Meanwhile
from tests.replication.listed_copies import listing

PASSWORD = b"secret"
CLOSED_AT_2 = {"state": LedgerState.CLOSED, "last_entry": 2, "length": 30}


def asked_for(bookie: HostileBookie) -> set[int]:
    """Return the entries that a bookie was asked for, one by one."""
    return {asked.entry_id for asked in bookie.asked if asked.opcode == v2.READ} - {v2.LAST_ENTRY}


async def found_by(world: World, ledger_id: int, share: float) -> LedgerFindings:
    """Return what a check of a ledger finds that counts silent bookies as empty."""
    context = await world.client(net=PATIENT).context()
    check = LedgerCheck(context, share, blames_silent=True, unexpected=UnexpectedErrors(), open_pause_s=0.0)
    found = await check.check(ledger_id)
    assert found is not None
    assert found.error is None
    return found


class Damaging(Holder):
    """A bookie that returns one of its entries with another last byte."""

    def __init__(self, held: Collection[int], damaged: int) -> None:
        super().__init__(held)
        self._damaged = damaged

    def __call__(self, asked: Asked) -> bytes | None:
        if asked.opcode == v2.READ and asked.entry_id == self._damaged:
            entry = sealed(asked.ledger_id, asked.entry_id)
            return reply(asked, body=entry[:-1] + bytes([entry[-1] ^ 1]))
        return super().__call__(asked)


@pytest.mark.parametrize("damaged", [0, 2])
def test_entry_that_a_list_names_and_a_read_finds_damaged_is_missing(damaged: int) -> None:
    """docs/autorecovery.md: the list is compared, and the first and the last entry of each fragment are read."""

    async def test(world: World, whole: HostileBookie, bad: HostileBookie) -> None:
        ledger_id = await world.ledger(whole, bad, **CLOSED_AT_2)
        found = await found_by(world, ledger_id, 0.0)
        assert found.lacks == (Lack(0, bad.id, 1, damaged),)
        assert found.entries == 0, "the other bookie returns it"

    with_bookies(listing(Holder(range(3)), range(3)), listing(Damaging(range(3), damaged), range(3)))(test)


def test_first_missing_entry_is_the_lowest_one_whether_a_list_or_a_read_shows_it() -> None:
    async def test(world: World, whole: HostileBookie, bad: HostileBookie) -> None:
        ledger_id = await world.ledger(whole, bad, **CLOSED_AT_2)
        assert (await found_by(world, ledger_id, 0.0)).lacks == (Lack(0, bad.id, 2, 0),)

    with_bookies(listing(Holder(range(3)), range(3)), listing(Damaging(range(3), 0), {0, 2}))(test)


def test_bookie_that_lists_nothing_lacks_every_entry() -> None:
    """docs/protocol.md §2.9: an empty list is one, too."""

    async def test(world: World, whole: HostileBookie, empty: HostileBookie) -> None:
        ledger_id = await world.ledger(whole, empty, **{**CLOSED_AT_2, "last_entry": 9})
        assert (await found_by(world, ledger_id, 0.0)).lacks == (Lack(0, empty.id, 10, 0),)

    with_bookies(listing(Holder(range(10)), range(10)), listing(Holder(), ()))(test)


@pytest.mark.parametrize("entries", [1, 2, 3])
def test_entry_that_is_first_and_last_is_asked_for_and_counted_once(entries: int) -> None:
    async def test(world: World, whole: HostileBookie, empty: HostileBookie) -> None:
        ledger_id = await world.ledger(whole, empty, **{**CLOSED_AT_2, "last_entry": entries - 1})
        found = await found_by(world, ledger_id, 0.0)
        assert found.lacks == (Lack(0, empty.id, min(entries, 2), 0),)
        asked = [each.entry_id for each in empty.asked if each.opcode == v2.READ]
        assert sorted(asked) == sorted({0, entries - 1})

    with_bookies(listing(Holder(range(3)), None), listing(Holder(), None))(test)


def test_reads_of_all_entries_decide_whatever_a_list_says() -> None:
    async def test(world: World, whole: HostileBookie, other: HostileBookie) -> None:
        ledger_id = await world.ledger(whole, other, **CLOSED_AT_2)
        assert (await found_by(world, ledger_id, 1.0)).lacks == ()

    with_bookies(listing(Holder(range(3)), range(3)), listing(Holder(range(3)), {0, 2}))(test)


def test_list_that_misses_an_entry_of_the_growing_fragment_decides_nothing() -> None:
    """An entry is confirmed before its last bookie has it."""

    async def test(world: World, whole: HostileBookie, late: HostileBookie) -> None:
        ledger_id = await world.ledger(whole, late)
        assert (await found_by(world, ledger_id, 0.0)).lacks == ()

    with_bookies(listing(Holder(range(4)), range(4)), listing(Holder(range(4)), {0, 2, 3}))(test)


def test_open_ledger_is_checked_up_to_its_last_confirmed_entry_and_no_further() -> None:
    """docs/protocol.md §5.8: an entry above the LAC may be on fewer than Qa bookies."""

    async def test(world: World, whole: HostileBookie, lacking: HostileBookie) -> None:
        ledger_id = await world.ledger(whole, lacking)
        assert (await found_by(world, ledger_id, 1.0)).lacks == (Lack(0, lacking.id, 1, 1),)
        assert asked_for(whole) == asked_for(lacking) == {0, 1}

    with_bookies(Holder(range(3)), Holder({0, 2}))(test)


def test_bookie_that_sends_no_list_is_read_also_where_the_lists_of_others_have_no_entry() -> None:
    """Where only some bookies send lists, a gap in these does not show that no bookie has entries there."""
    last_entry = LISTED_ENTRIES_MIN - 1

    async def test(world: World, listed: HostileBookie, busy: HostileBookie) -> None:
        changes = {**CLOSED_AT_2, "last_entry": last_entry}
        ledger_id = await world.ledger(listed, busy, **changes)
        found = await found_by(world, ledger_id, 1e-9)
        by_bookie = {lack.bookie: lack for lack in found.lacks}
        assert by_bookie[listed.id] == Lack(0, listed.id, last_entry - 2, 3)
        between = asked_for(busy) - {0, last_entry}
        assert len(between) == 1, "a share of those between the first and the last"
        assert by_bookie[busy.id] == Lack(0, busy.id, 1, min(between))

    with_bookies(listing(Holder(range(3)), range(3)), listing(Holder({0, last_entry}), None))(test)


def protected(asked: Asked) -> bytes | None:
    """Return an entry whose digest depends on the password."""
    batch = EntryBatch.of([b"x" * 10], asked.ledger_id, asked.entry_id)
    return reply(asked, body=bytes(EntryDigest(DigestType.MAC, PASSWORD).seal(batch, -1, 0).buffer[4:]))


def test_entries_are_checked_with_the_password_of_the_metadata() -> None:
    """The password of the check is for ledgers whose metadata contain none."""

    async def test(world: World, bookie: HostileBookie) -> None:
        ledger_id = await world.ledger(bookie, digest=DigestType.MAC, password=PASSWORD, **CLOSED_AT_2)
        assert (await found_by(world, ledger_id, 1.0)).lacks == ()

    with_bookies(protected)(test)


def test_copies_of_a_bookie_that_a_repair_replaced_during_the_check_are_not_missing() -> None:
    """A missing copy counts only while the metadata name the bookie; those of a closed ledger change, too."""

    async def test(world: World, whole: HostileBookie, lacking: HostileBookie, new: HostileBookie) -> None:
        ledger_id = await world.ledger(whole, lacking, **CLOSED_AT_2)
        session = Meanwhile(world.store)
        context = await world.client(net=PATIENT, tree=session).context()
        await context.ledgers.read(ledger_id)

        async def is_repaired() -> None:
            stored = await world.ledgers.read(ledger_id)
            fragments = (Fragment(0, (whole.id, new.id)),)
            await world.ledgers.write(ledger_id, replace(stored.metadata, fragments=fragments), stored.version)

        async def is_read_once() -> None:
            session.before["get"] = is_repaired

        session.before["get"] = is_read_once
        check = LedgerCheck(context, 1.0, blames_silent=True, unexpected=UnexpectedErrors())
        found = await check.check(ledger_id)
        assert found is not None
        assert found.lacks == ()
        assert asked_for(lacking) == asked_for(new) == {0, 1, 2}

    with_bookies(Holder(range(3)), Holder({0}), Holder(range(3)))(test)


def test_process_that_is_not_the_auditor_lists_nothing_that_its_check_finds() -> None:
    """docs/autorecovery.md: one auditor is elected; the next one may know that the bookie is complete."""

    async def test(world: World, whole: HostileBookie, lacking: HostileBookie) -> None:
        await world.ledger(whole, lacking, **CLOSED_AT_2)
        await AuditorElection(world.store.session(), MetadataUri.parse(URI), "another").stand()
        repaired = await RepairedCluster.of(world.client(net=PATIENT))
        auditor = repaired.auditor("a process", AutoRecoveryOptions())
        with pytest.raises(SessionExpired, match="not the auditor"):
            await auditor.check_ledgers()
        assert [ledger_id async for ledger_id in repaired.store.ids()] == []

    with_bookies(Holder(range(3)), Holder({0, 1}))(test)
