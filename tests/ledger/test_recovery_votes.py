"""Which answers count in a recovery, through the client on real sockets: only certain ones do.

protocol.md, "Fencing": a slot is known by an entry whose digest verified or by an explicit "no such entry" or "no such
ledger". An error that is counted as "no such entry" closes a ledger before an acknowledged entry.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bkspark.errors import LedgerRecoveryFailed
from bkspark.wire import v2
from bkspark.wire.status import Status
from tests.ledger.hostile import Asked, HostileBookie, World, play, reply, sealed

LAST = 3
CERTAIN = [Status.ENOENTRY, Status.ENOLEDGER]
UNCERTAIN = [
    *(status for status in Status if status not in (*CERTAIN, Status.EUA, Status.ETOOMANYREQUESTS)),
    77,
]
"""EUA ends a recovery at once, and ETOOMANYREQUESTS is asked again."""


def holds(up_to: int, *, fence: int | None = None, beyond: int = Status.ENOENTRY) -> Callable[[Asked], bytes]:
    """A bookie that holds entries 0 to `up_to`, and answers the fence, or reads above, with a status."""

    def answer(asked: Asked) -> bytes:
        if asked.opcode == v2.ADD:
            return reply(asked)
        is_fence = asked.entry_id == v2.LAST_ENTRY
        if is_fence and fence is not None:
            return reply(asked, status=fence)
        entry_id = up_to if is_fence else asked.entry_id
        if 0 <= entry_id <= up_to:
            return reply(asked, body=sealed(asked.ledger_id, entry_id))
        return reply(asked, status=beyond)

    return answer


def falls_silent(asked: Asked) -> bytes:
    raise ConnectionError


def recovered(*answers: Callable[[Asked], bytes]) -> int | None:
    """Return at which entry a recovery of three bookies with Qa 2 closes the ledger; None: it fails, and stays open."""
    found: list[int | None] = []

    async def test(world: World) -> None:
        one, two, three = (HostileBookie(answer) for answer in answers)
        async with one, two, three:
            client, ledger_id = world.client(), await world.ledger(one, two, three, quorums=(3, 3, 2))
            try:
                found.append((await client.recover(ledger_id)).last_entry)
            except LedgerRecoveryFailed:
                assert not (await client.metadata(ledger_id)).is_closed
                found.append(None)

    play(test)
    return found[0]


@pytest.mark.parametrize("status", CERTAIN)
def test_two_bookies_that_say_there_is_no_such_entry_prove_the_end(status: Status) -> None:
    assert recovered(holds(LAST - 1), holds(LAST - 1, beyond=status), falls_silent) == LAST - 1


@pytest.mark.parametrize("status", UNCERTAIN)
def test_error_is_not_a_vote_that_an_entry_does_not_exist(status: int) -> None:
    """Entry 3 may be acknowledged: by the bookie that is gone, and the one whose disk cannot say so now."""
    assert recovered(holds(LAST - 1), holds(LAST - 1, beyond=status), falls_silent) is None


def breaks_off_above(up_to: int) -> Callable[[Asked], bytes]:
    """A bookie that holds entries 0 to `up_to`, and is gone when it is asked for a later one."""

    def answer(asked: Asked) -> bytes:
        if asked.opcode != v2.ADD and asked.entry_id > up_to:
            raise ConnectionError
        return holds(up_to)(asked)

    return answer


def test_lost_connection_is_not_a_vote_that_an_entry_does_not_exist() -> None:
    """Entry 3 may be acknowledged: by the two bookies that were fenced and then went away."""
    assert recovered(holds(LAST - 1), breaks_off_above(LAST - 1), breaks_off_above(LAST - 1)) is None
    assert recovered(holds(LAST - 1), breaks_off_above(LAST - 1), holds(LAST)) == LAST
    assert recovered(holds(LAST - 1), breaks_off_above(LAST - 1), holds(LAST - 1)) == LAST - 1


def damages(first: int, up_to: int) -> Callable[[Asked], bytes]:
    """A bookie that holds entries 0 to `up_to`, those from `first` on with another last byte."""

    def answer(asked: Asked) -> bytes:
        answered = holds(up_to)(asked)
        entry_id = up_to if asked.entry_id == v2.LAST_ENTRY else asked.entry_id
        if asked.opcode == v2.ADD or not first <= entry_id <= up_to:
            return answered
        return answered[:-1] + bytes([answered[-1] ^ 1])

    return answer


def test_damaged_entry_is_not_a_vote_that_it_does_not_exist() -> None:
    """The bookie has something there: the entry may be acknowledged, and whole at the bookie that is gone."""
    only_reads = damages(LAST, LAST)

    def fenced(asked: Asked) -> bytes:
        return holds(LAST - 1)(asked) if asked.entry_id == v2.LAST_ENTRY else only_reads(asked)

    assert recovered(holds(LAST - 1), fenced, falls_silent) is None
    assert recovered(holds(LAST - 1), fenced, holds(LAST)) == LAST


def test_damaged_last_entry_is_not_proof_that_a_bookie_is_fenced() -> None:
    assert recovered(holds(LAST), damages(LAST, LAST), falls_silent) is None
    assert recovered(holds(LAST), damages(LAST, LAST), holds(LAST)) == LAST


@pytest.mark.parametrize("status", UNCERTAIN)
def test_entry_after_an_error_is_found_at_another_bookie(status: int) -> None:
    assert recovered(holds(LAST - 1, beyond=status), holds(LAST - 1), holds(LAST)) == LAST


@pytest.mark.parametrize("status", CERTAIN)
def test_bookie_that_says_it_has_no_entry_is_fenced(status: Status) -> None:
    assert recovered(holds(LAST), holds(-1, fence=status), falls_silent) == LAST
    assert recovered(holds(LAST), holds(-1, fence=status), holds(LAST)) == LAST
    assert recovered(holds(-1, fence=status), holds(-1, fence=status), falls_silent) == -1


@pytest.mark.parametrize("status", UNCERTAIN)
def test_error_is_not_proof_that_a_bookie_is_fenced(status: int) -> None:
    """A writer may still get its quorum from the two bookies that are not fenced."""
    assert recovered(holds(-1), holds(-1, fence=status), falls_silent) is None
