"""Each checker reports a hand-made bad history of its kind, and that of a good one nothing is reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState
from bkspark.metadata.ledgers import Versioned
from tests.simulation.checkers import CHECKERS, violations
from tests.simulation.history import Audit, Close, Copies, LedgerHistory

ONE, TWO = b"one", b"two"
OPEN = LedgerMetadata(3, 3, 2, (Fragment(0, ("b1", "b2", "b3")),))
CLAIMED = OPEN.in_recovery()
CLOSED = CLAIMED.closed(1, 6)


def copies(payload: bytes, valid: int = 3) -> Copies:
    return Copies(valid, 0, frozenset({payload}))


def good() -> LedgerHistory:
    """Two entries, acknowledged; a reader, a recovery, one end."""
    return LedgerHistory(
        invoked={0: (ONE, 0), 1: (TWO, 1)},
        acknowledged=[(0, 5), (1, 6)],
        copies_at_ack=[(0, 2, copies(ONE, 2)), (1, 2, copies(TWO, 2))],
        closes=[Close("recoverer", 1, 6, 20), Close("reader", 1, 6, 30)],
        lacs=[("reader", 0, 7), ("reader", 1, 30)],
        reads=[("reader", 0, ONE), ("reader", 1, TWO)],
        changes=[
            (0, Versioned(OPEN, 0, 0, 0), "owner"),
            (10, Versioned(CLAIMED, 1, 0, 0), "recoverer"),
            (20, Versioned(CLOSED, 2, 0, 0), "recoverer"),
        ],
        audits=[
            Audit(20, "at the close", 1, 2, [copies(ONE), copies(TWO)], (True, True, False), 3),
            Audit(40, "in the end", 1, 2, [copies(ONE), copies(TWO)]),
        ],
    )


def changed_twice(metadata: LedgerMetadata) -> Callable[[LedgerHistory], None]:
    def spoil(ledger: LedgerHistory) -> None:
        ledger.changes[1:] = [(10, Versioned(metadata, 1, 0, 0), "owner")]

    return spoil


BAD: list[tuple[str, str, Callable[[LedgerHistory], object]]] = [
    ("C1", "acknowledged behind the end", lambda it: it.acknowledged.append((2, 8))),
    ("C1", "cannot be read", lambda it: it.audits[-1].copies.pop()),
    ("C1", "other bytes at the end", lambda it: it.audits[-1].copies.__setitem__(1, copies(ONE))),
    ("C2", "another end", lambda it: it.closes.append(Close("owner", 0, 3, 25))),
    ("C2", "another length", lambda it: it.closes.append(Close("owner", 1, 7, 25))),
    ("C3", "torn bytes read", lambda it: it.reads.append(("reader", 1, b"tw"))),
    ("C3", "an entry that nobody wrote", lambda it: it.reads.append(("reader", 5, ONE))),
    ("C3", "foreign bytes stored", lambda it: it.audits[0].copies.append(copies(ONE))),
    ("C4", "LAC falls", lambda it: it.lacs.append(("reader", 0, 31))),
    ("C4", "confirmed, then absent", lambda it: it.denied.append(("reader", 0, 1))),
    ("C4", "confirmed behind the end", lambda it: it.lacs.append(("other", 2, 9))),
    ("C5", "added after the close", lambda it: it.invoked.__setitem__(1, (TWO, 21))),
    ("C6", "two of three not fenced", lambda it: setattr(it.audits[0], "fenced", (True, False, False))),
    ("C7", "a version left out", lambda it: it.changes.pop(1)),
    ("C7", "closed, then open", lambda it: it.changes.append((30, Versioned(OPEN, 3, 0, 0), "owner"))),
    ("C7", "closed twice", lambda it: it.changes.append((30, Versioned(CLOSED, 3, 0, 0), "owner"))),
    ("C7", "ensemble published in recovery", changed_twice(CLAIMED.with_ensemble(1, ("b1", "b2", "b4")))),
    ("C7", "a bookie twice", changed_twice(OPEN.with_ensemble(1, ("b1", "b2", "b2")))),
    ("C7", "a quorum changed", changed_twice(replace(OPEN, ack_quorum=3))),
    ("C8", "too few when acknowledged", lambda it: it.copies_at_ack.append((1, 2, copies(TWO, 1)))),
    ("C8", "too few at the close", lambda it: setattr(it.audits[0].copies[1], "valid", 1)),
    ("C11", "confirmed, not synced", lambda it: it.audits.append(Audit(50, "later", -1, 2, [copies(ONE)]))),
    ("C12", "something pending", lambda it: it.pending.append("the owner did not end")),
]


def test_of_a_good_history_nothing_is_reported() -> None:
    assert violations(good()) == []


@pytest.mark.parametrize(("checker", "what", "spoil"), BAD, ids=[f"{name} {what}" for name, what, _ in BAD])
def test_checker_reports_a_bad_history_of_its_kind(checker: str, what: str, spoil: Callable[..., object]) -> None:
    ledger = good()
    spoil(ledger)
    assert checker in {line.partition(":")[0] for line in violations(ledger)}, what


def test_every_checker_has_a_bad_history() -> None:
    assert {name for name, _, _ in BAD} == set(CHECKERS)


def test_fragment_that_moves_is_reported() -> None:
    before = OPEN.with_ensemble(5, ("b1", "b2", "b4"))
    after = replace(before, fragments=(OPEN.fragments[0], Fragment(6, ("b1", "b2", "b5"))), state=LedgerState.OPEN)
    ledger = good()
    ledger.changes = [(0, Versioned(before, 0, 0, 0), "owner"), (1, Versioned(after, 1, 0, 0), "owner")]
    assert any("moved" in line for line in violations(ledger))
