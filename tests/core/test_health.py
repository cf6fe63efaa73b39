"""Is a cluster well, and may a bookie be stopped? Decisions on facts."""

from __future__ import annotations

import pytest

from bkspark.core.health import BookieFacts, ClusterFacts, StopCheck, reasons
from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState

GIB = 1 << 30
BOOKIES = tuple(BookieFacts(f"b{number}", "available", "", 50 * GIB, 100 * GIB) for number in range(4))


def codes(
    *bookies: BookieFacts, underreplicated: int = 0, enabled: bool = True, auditor: str | None = "b0"
) -> set[str]:
    return {each.code for each in reasons(ClusterFacts(bookies, underreplicated, enabled, auditor))}


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
    ],
)
def test_bookie_that_needs_an_operator_is_a_reason_that_names_it(bookie: BookieFacts, code: str) -> None:
    found = reasons(ClusterFacts((*BOOKIES, bookie), 0, True, "b0"))
    assert [(each.code, each.subject) for each in found] == [(code, "x")]


def test_read_only_bookie_is_named_with_its_reason() -> None:
    draining = BookieFacts("x", "readonly", "", 50 * GIB, 100 * GIB, "drain by amy")
    (reason,) = reasons(ClusterFacts((*BOOKIES, draining), 0, True, "b0"))
    assert reason.text == "bookie x is read-only: drain by amy"


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
        check.look(ledger_id, metadata)
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


def test_copy_that_is_listed_as_missing_does_not_count_though_its_bookie_serves() -> None:
    """A bookie that lost a disk serves again before its ledgers are repaired."""
    check = StopCheck("b0", BOOKIES)
    check.look(7, ledger("b0", "b1", quorums=(2, 2)), lacking=("b1",))
    check.look(8, ledger("b0", "b2", quorums=(2, 2)), lacking=("b0",))
    (reason,) = check.reasons()
    assert (reason.code, "1 ledgers (7)" in reason.text) == ("last_copy", True)


def test_ledger_whose_metadata_cannot_be_read_is_a_reason_of_its_own() -> None:
    check = StopCheck("b0", BOOKIES)
    check.unreadable(9)
    (reason,) = check.reasons()
    assert (reason.code, "(9)" in reason.text) == ("unreadable_ledgers", True)


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
