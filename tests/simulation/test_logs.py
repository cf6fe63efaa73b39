"""Leaders of a log duel on virtual time; the checks of a log's content are checked themselves."""

from __future__ import annotations

from typing import Any

import pytest

from bkspark.log import writer
from bkspark.log.formats import SegmentFacts
from bkspark.log.writer import facts_of
from tests.planting import replaced
from tests.simulation.full_logs import LogSchedule, Term, log_faults

SCHEDULES = 40


def test_duelling_leaders_never_interleave_and_lose_nothing() -> None:
    read = deposed = 0
    for seed in range(1, SCHEDULES + 1):
        outcome = LogSchedule(seed).run()
        assert outcome.violations == [], f"seed {seed}"
        read += outcome.history.faults["entries in the log"]
        deposed += outcome.history.faults["leader deposed"]
    assert read > 10 * SCHEDULES
    assert deposed > SCHEDULES / 2


@pytest.mark.long_except("none", reason="20 s of processor time; the same schedules and checkers notice both")
@pytest.mark.parametrize(("fenced", "first_seed"), [(0, 1), (1, 130)], ids=["none", "the last one only"])
def test_leader_that_fences_too_few_ledgers_is_noticed(fenced: int, first_seed: int) -> None:
    """Two may be open: a leader that rolls adds the new one before it closes the old."""

    async def fence(client: Any, snapshot: Any) -> list[tuple[int, SegmentFacts]]:
        closed = []
        ordinals = tuple(snapshot.open_ordinals)
        for ordinal in ordinals:
            ledger_id = (await snapshot.ledger(ordinal)).ledger_id
            facts = SegmentFacts(ledger_id)
            if fenced and ordinal == ordinals[-1]:
                facts = facts_of(ledger_id, await client.recover(ledger_id))
            closed.append((ordinal, facts))
        return closed

    with replaced(writer, "fence", fence):
        seeds = range(first_seed, first_seed + 10 * SCHEDULES)
        assert any(LogSchedule(seed, deaths_in_rolls=0.3).run().violations for seed in seeds)


def term(name: str, opened_at: int, *appended: tuple[bytes, int]) -> Term:
    return Term(name, opened_at, list(appended), [payload for payload, _ in appended])


FIRST = term("a.0", 0, (b"a.0:0", 1), (b"a.0:1", 2))
SECOND = term("b.0", 10, (b"b.0:0", 11))
GOOD = [b"a.0:0", b"a.0:1", b"b.0:0"]


def test_nothing_is_reported_for_a_good_log() -> None:
    assert log_faults([FIRST, SECOND], GOOD) == []


@pytest.mark.parametrize(
    ("what", "read"),
    [
        ("twice", [*GOOD, b"b.0:0"]),
        ("not there", [b"a.0:0", b"b.0:0"]),
        ("out of order", [b"a.0:1", b"a.0:0", b"b.0:0"]),
        ("interleave", [b"a.0:0", b"b.0:0", b"a.0:1"]),
    ],
)
def test_bad_log_is_reported(what: str, read: list[bytes]) -> None:
    assert any(what in fault for fault in log_faults([FIRST, SECOND], read))


def test_append_after_a_later_leader_is_reported() -> None:
    late = term("a.0", 0, (b"a.0:0", 1), (b"a.0:1", 12))
    assert any("later leader" in fault for fault in log_faults([late, SECOND], GOOD))
