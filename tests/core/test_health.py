"""Is a cluster well, and may a bookie be stopped? Decisions on facts."""

from __future__ import annotations

import inspect
import re

import pytest

from bkspark.core import health
from bkspark.core.health import (
    EXAMPLES_MAX,
    FULL_SHARE,
    STOP_CODES,
    UNHEALTHY_CODES,
    BookieFacts,
    ClusterFacts,
    Reason,
    StopCheck,
    reasons,
)
from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState

GIB = 1 << 30
BOOKIES = tuple(BookieFacts(f"b{number}", "available", "", 50 * GIB, 100 * GIB) for number in range(4))


def codes(
    *bookies: BookieFacts, underreplicated: int = 0, enabled: bool = True, auditor: str | None = "b0"
) -> set[str]:
    return {each.code for each in reasons(ClusterFacts(bookies, underreplicated, enabled, auditor))}


def test_lists_of_codes_have_every_code() -> None:
    given = re.findall(r'Reason\("(\w+)"', inspect.getsource(health))
    assert sorted(given) == sorted({*UNHEALTHY_CODES, *STOP_CODES})


def test_cluster_in_order_has_no_reason_also_without_autorecovery() -> None:
    assert codes(*BOOKIES) == set()
    assert codes(*BOOKIES, auditor=None) == set()


@pytest.mark.parametrize(
    ("bookie", "code"),
    [
        (BookieFacts("x", "down"), "bookie_down"),
        (BookieFacts("x", "available", "connection refused"), "bookie_unreachable"),
        (BookieFacts("x", "readonly", "", 50 * GIB, 100 * GIB), "bookie_readonly"),
        (BookieFacts("x", "available", "", 4 * GIB, 100 * GIB), "bookie_disk_full"),
        (BookieFacts("x", "available", "", 50 * GIB, 100 * GIB, "", "/d2: full"), "bookie_index_limited"),
    ],
)
def test_bookie_that_needs_an_operator_is_a_reason_that_names_it(bookie: BookieFacts, code: str) -> None:
    found = reasons(ClusterFacts((*BOOKIES, bookie), 0, True, "b0"))
    assert [(each.code, each.subject) for each in found] == [(code, "x")]


def test_read_only_bookie_is_named_with_its_reason() -> None:
    draining = BookieFacts("x", "readonly", "", 50 * GIB, 100 * GIB, "drain by amy")
    (reason,) = reasons(ClusterFacts((*BOOKIES, draining), 0, True, "b0"))
    assert reason.text == "bookie x is read-only: drain by amy"
    forged = BookieFacts("x", "readonly", "", 50 * GIB, 100 * GIB, "\n  last_copy: \x1b[2J")
    (reason,) = reasons(ClusterFacts((*BOOKIES, forged), 0, True, "b0"))
    assert reason.text == r"bookie x is read-only: \n  last_copy: \x1b[2J", "one line, whoever registered it"


def test_what_the_cluster_lacks_is_a_reason() -> None:
    assert codes(BookieFacts("x", "readonly")) == {"bookie_readonly", "no_writable_bookie"}
    assert codes(*BOOKIES, underreplicated=3) == {"underreplicated"}
    assert codes(*BOOKIES, underreplicated=3, auditor=None) == {"underreplicated", "no_auditor"}
    assert codes(*BOOKIES, enabled=False) == {"autorecovery_disabled"}
    assert codes() == {"no_writable_bookie"}


def ledger(*bookies: str, quorums: tuple[int, int], closed: bool = True) -> LedgerMetadata:
    write, ack = quorums
    state = LedgerState.CLOSED if closed else LedgerState.OPEN
    return LedgerMetadata(len(bookies), write, ack, (Fragment(0, bookies),), state, last_entry=9 if closed else -1)


def against(bookie: str, *ledgers: LedgerMetadata, bookies: tuple[BookieFacts, ...] = BOOKIES) -> set[str]:
    check = StopCheck(bookie, bookies)
    for ledger_id, metadata in enumerate(ledgers):
        check.add(ledger_id, metadata)
    return {each.code for each in check.reasons()}


def test_bookie_whose_entries_all_have_another_copy_may_be_stopped() -> None:
    assert against("b0") == set()
    assert against("b0", ledger("b0", "b1", quorums=(2, 2)), ledger("b1", "b2", "b3", quorums=(3, 2))) == set()


def test_last_copy_that_answers_forbids_it() -> None:
    assert against("b0", ledger("b0", quorums=(1, 1))) == {"last_copy"}
    dead = (*BOOKIES[:1], BookieFacts("b1", "down"), *BOOKIES[2:])
    assert against("b0", ledger("b0", "b1", quorums=(2, 2)), bookies=dead) == {"last_copy"}
    # Striped: entries of one residue are on b0 and b1 alone, although b2 has others.
    assert against("b0", ledger("b0", "b1", "b2", quorums=(2, 2)), bookies=dead) == {"last_copy"}
    silent = (*BOOKIES[:1], BookieFacts("b1", "available", "no answer"), *BOOKIES[2:])
    assert against("b0", ledger("b0", "b1", quorums=(2, 2)), bookies=silent) == {"last_copy"}


def test_copy_of_a_bookie_in_maintenance_does_not_count() -> None:
    """Two operators each began maintenance of a bookie, and then stopped both."""
    check = StopCheck("b0", BOOKIES, leaving=("b1",))
    check.add(7, ledger("b0", "b1", quorums=(2, 2)))
    check.add(8, ledger("b0", "b2", quorums=(2, 2)))
    (reason,) = check.reasons()
    assert (reason.code, "1 ledgers (7)" in reason.text) == ("last_copy", True)


def test_copy_that_is_listed_as_missing_does_not_count_though_its_bookie_serves() -> None:
    """A bookie that lost a disk serves again before its ledgers are repaired."""
    check = StopCheck("b0", BOOKIES)
    check.add(7, ledger("b0", "b1", quorums=(2, 2)), lacking=("b1",))
    check.add(8, ledger("b0", "b2", quorums=(2, 2)), lacking=("b0",))
    (reason,) = check.reasons()
    assert (reason.code, "1 ledgers (7)" in reason.text) == ("last_copy", True)


def test_ledger_whose_metadata_cannot_be_read_is_a_reason_of_its_own() -> None:
    check = StopCheck("b0", BOOKIES)
    check.unreadable(9)
    (reason,) = check.reasons()
    assert (reason.code, "(9)" in reason.text) == ("unreadable_ledgers", True)


def test_bookie_whose_plan_cannot_be_read_may_be_in_maintenance() -> None:
    """It follows the last plan that it read. Only the plan of the bookie to stop does not matter."""
    check = StopCheck("b0", BOOKIES, unknown_plans=("b1", "b0"))
    check.add(7, ledger("b0", "b1", quorums=(2, 2)))
    check.add(8, ledger("b0", "b2", quorums=(2, 2)))
    copies, plans = check.reasons()
    assert (copies.code, "1 ledgers (7)" in copies.text) == ("last_copy", True)
    assert (plans.code, "plan of bookie b1 " in plans.text, "plans --end b1" in plans.text) == (
        "unreadable_plans",
        True,
        True,
    )
    assert StopCheck("b0", BOOKIES, unknown_plans=("b0",)).reasons() == []


def test_bookies_whose_plan_cannot_be_read_are_named_in_order() -> None:
    names = [f"b{number}" for number in range(9)]
    check = StopCheck("b0", BOOKIES, unknown_plans=frozenset(names))
    assert [each.subject for each in check.reasons()] == names[1:]


def test_open_ledger_must_stay_recoverable() -> None:
    """Recovery needs answers of Qw - Qa + 1 members of each write set."""
    dead = (*BOOKIES[:2], BookieFacts("b2", "down"), BOOKIES[3], BookieFacts("b4", "available"))
    open_ledger = ledger("b0", "b1", "b2", quorums=(3, 2), closed=False)
    assert against("b0", open_ledger, bookies=dead) == {"recovery_quorum"}
    closed = ledger("b0", "b1", "b2", quorums=(3, 2))
    assert against("b0", closed, bookies=dead) == set()


def test_writers_must_find_enough_bookies() -> None:
    open_ledger = ledger("b1", "b2", "b3", quorums=(3, 2), closed=False)
    assert against("b0", open_ledger) == set()
    assert against("b0", open_ledger, bookies=BOOKIES[:3]) == {"too_few_bookies"}


def test_bookie_that_is_not_there_is_said_to_be_unknown() -> None:
    assert against("b9") == {"unknown_bookie"}


def test_empty_closed_ledger_does_not_count() -> None:
    empty = LedgerMetadata(1, 1, 1, (Fragment(0, ("b0",)),), LedgerState.CLOSED)
    assert against("b0", empty) == set()


def text_of(code: str, found: list[Reason]) -> str:
    return next(each.text for each in found if each.code == code)


def test_bookie_that_is_down_needs_an_auditor() -> None:
    assert codes(*BOOKIES, BookieFacts("x", "down"), auditor=None) == {"bookie_down", "no_auditor"}
    assert codes(*BOOKIES, BookieFacts("x", "readonly"), auditor=None) == {"bookie_readonly"}


def test_bookie_that_is_registered_and_does_not_answer_takes_no_writes() -> None:
    assert codes(BookieFacts("x", "available", "no answer")) == {"bookie_unreachable", "no_writable_bookie"}


def test_disks_are_full_above_the_limit_and_their_use_is_in_the_text() -> None:
    at_limit = BookieFacts("x", "available", "", 5, 100)
    assert FULL_SHARE == 1 - 5 / 100
    assert codes(at_limit) == set()
    found = reasons(ClusterFacts([BookieFacts("x", "down", "", 39, 1000)], 0, True, "b0"))
    assert "x uses 96.1 % of its disks" in text_of("bookie_disk_full", found)
    full = BookieFacts("x", "available", "", 0, 100)
    assert codes(full) == {"bookie_disk_full"}
    for unknown in (BookieFacts("x", "available", "", None, 100), BookieFacts("x", "available", "", 0, 0)):
        assert codes(unknown) == set()


def test_ledger_of_one_entry_counts_and_one_of_others_does_not() -> None:
    check = StopCheck("b0", BOOKIES)
    one = LedgerMetadata(1, 1, 1, (Fragment(0, ("b0",)),), LedgerState.CLOSED, last_entry=0)
    check.add(1, one)
    check.add(2, ledger("b1", quorums=(1, 1)))
    assert check.ledgers == 1
    assert [each.code for each in check.reasons()] == ["last_copy"]
    open_and_empty = LedgerMetadata(2, 2, 2, (Fragment(0, ("b0", "b1")),))
    check.add(3, open_and_empty)
    assert check.ledgers == 2


def test_every_fragment_with_the_bookie_counts() -> None:
    bookies = (*BOOKIES[:1], BookieFacts("b1", "down"), *BOOKIES[2:])
    for fragments in (
        (Fragment(0, ("b0", "b1")), Fragment(5, ("b0", "b2"))),
        (Fragment(0, ("b0", "b2")), Fragment(5, ("b0", "b1"))),
        (Fragment(0, ("b3", "b2")), Fragment(5, ("b0", "b1"))),
    ):
        metadata = LedgerMetadata(2, 2, 2, fragments, LedgerState.CLOSED, last_entry=9)
        assert against("b0", metadata, bookies=bookies) == {"last_copy"}
    others = LedgerMetadata(2, 2, 2, (Fragment(0, ("b3", "b1")), Fragment(5, ("b0", "b2"))), LedgerState.CLOSED, 9)
    assert against("b0", others, bookies=bookies) == set()


def test_open_ledger_keeps_as_many_others_as_recovery_needs_and_no_fewer() -> None:
    spare = tuple(BookieFacts(f"b{number}", "available") for number in (4, 5, 6))
    open_ledger = ledger("b0", "b1", "b2", "b3", quorums=(4, 3), closed=False)
    one_down = (BOOKIES[0], BookieFacts("b1", "down"), *BOOKIES[2:], *spare)
    assert against("b0", open_ledger, bookies=one_down) == set()
    two_down = (*one_down[:2], BookieFacts("b2", "down"), *one_down[3:])
    assert against("b0", open_ledger, bookies=two_down) == {"recovery_quorum"}


def test_entries_that_a_short_ledger_does_not_have_need_no_copy() -> None:
    """A ledger of one entry has no entry on b2, whatever the ensemble says."""
    dead = (*BOOKIES[:2], BookieFacts("b2", "down"), BOOKIES[3])
    one_entry = LedgerMetadata(3, 2, 2, (Fragment(0, ("b0", "b1", "b2")),), LedgerState.CLOSED, last_entry=0)
    assert against("b1", one_entry, bookies=dead) == set()
    check = StopCheck("b2", BOOKIES)
    check.add(1, one_entry)
    assert (check.ledgers, check.reasons()) == (0, [])
    # Entry 4 is the first of its fragment, on b1 and b2; the next fragment is empty.
    fragments = (Fragment(0, ("b0", "b1", "b3")), Fragment(4, ("b0", "b1", "b2")), Fragment(5, ("b0", "b2", "b3")))
    later = LedgerMetadata(3, 2, 2, fragments, LedgerState.CLOSED, last_entry=4)
    assert against("b1", later, bookies=dead) == {"last_copy"}
    assert against("b0", later, bookies=dead) == set()


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_recovery_needs_bookies_of_the_last_fragment_alone(state: LedgerState) -> None:
    """All entries of earlier fragments are confirmed: one copy of each is enough. A recovery that has begun may have
    added a fragment from an entry on that it has yet to copy."""
    dead = (*BOOKIES, BookieFacts("b4", "down"), BookieFacts("b5", "available"))
    fragments = (Fragment(0, ("b0", "b1", "b4")), Fragment(9, ("b1", "b2", "b3")))
    metadata = LedgerMetadata(3, 3, 2, fragments, state)
    expected = set() if state is LedgerState.OPEN else {"recovery_quorum"}
    assert against("b0", metadata, bookies=dead) == expected


def test_writers_need_bookies_that_take_writes_and_answer() -> None:
    open_ledger = ledger("b1", "b2", "b3", quorums=(3, 2), closed=False)
    for state in (BookieFacts("b3", "readonly"), BookieFacts("b3", "available", "no answer")):
        assert against("b0", open_ledger, bookies=(*BOOKIES[:3], state)) == {"too_few_bookies"}
    check = StopCheck("b0", BOOKIES[:3])
    check.add(1, open_ledger)
    check.add(2, ledger("b1", "b2", quorums=(2, 2), closed=False))
    assert "2 writable bookies would remain" in check.reasons()[0].text
    assert "need 3" in check.reasons()[0].text


@pytest.mark.parametrize("closed", [True, False])
def test_reason_names_some_ledgers_and_says_how_many_there_are(closed: bool) -> None:
    for count, named in ((EXAMPLES_MAX, "{})"), (EXAMPLES_MAX + 1, "{}, ...)")):
        check = StopCheck("b0", BOOKIES)
        for ledger_id in range(count):
            check.add(ledger_id, ledger("b0", quorums=(1, 1), closed=closed))
        examples = ", ".join(map(str, range(EXAMPLES_MAX)))
        assert f"{count} ledgers ({named.format(examples)}" in text_of("last_copy", check.reasons())


def test_reason_names_the_same_ledgers_in_whatever_order_they_were_looked_at() -> None:
    """They are read concurrently. A command that waits printed the same reason again and again, in another order."""
    texts = set()
    for ledger_ids in (range(9), reversed(range(9))):
        check = StopCheck("b0", BOOKIES)
        for ledger_id in ledger_ids:
            check.add(ledger_id, ledger("b0", quorums=(1, 1)))
            check.unreadable(ledger_id)
        texts |= {each.text for each in check.reasons()}
    assert len(texts) == 2
    assert all("9 ledgers (0, 1, 2, ...)" in text for text in texts)
