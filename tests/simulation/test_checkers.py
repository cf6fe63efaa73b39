"""Each checker reports a hand-made bad history of its kind, and that of a good one nothing is reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState
from bkspark.metadata.ledgers import Versioned
from tests.simulation.checkers import CHECKERS, violations
from tests.simulation.history import Audit, Close, Copies, LedgerHistory, Look, Wait

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
        acknowledged_before={0: -1, 1: 0},
        looks=[Look("reader", 0, 0, 8)],
        waits=[Wait("the recovery", 10, 20)],
        prompt_ns=10,
        rewritten={"recoverer": {1}},
        recovery_lacs={"recoverer, fence 3": {0}},
        unfenced_negatives=[("recoverer", "b3", 1)],
    )


def lacks(entry_id: int, bookie: str, excuse: Callable[[LedgerHistory], object]) -> Callable[[LedgerHistory], None]:
    """A bookie does not hold an entry in the end, and something happened that may explain it."""

    def spoil(ledger: LedgerHistory) -> None:
        ledger.audits[-1].copies[entry_id].missing = (bookie,)
        excuse(ledger)

    return spoil


EXCUSED: list[tuple[str, Callable[[LedgerHistory], None]]] = [
    ("the owner's connection met a fault", lacks(0, "b3", lambda it: it.disturbed.add(("owner", "b3")))),
    ("the bookie met a fault", lacks(0, "b3", lambda it: it.disturbed.add(("", "b3")))),
    ("a fence was faster", lacks(0, "b3", lambda it: it.fenced_out.add(("b3", 0)))),
    ("it refused load", lacks(0, "b3", lambda it: it.loaded.add("b3"))),
    ("the recovery's connection met a fault", lacks(1, "b3", lambda it: it.disturbed.add(("recoverer", "b3")))),
]
NOT_EXCUSED: list[tuple[str, Callable[[LedgerHistory], None]]] = [
    ("nothing happened", lacks(0, "b3", lambda it: None)),
    ("another bookie met a fault", lacks(0, "b3", lambda it: it.disturbed.add(("", "b2")))),
    ("a fence refused another entry", lacks(0, "b3", lambda it: it.fenced_out.add(("b3", 1)))),
    ("a fence refused what was written back later", lacks(1, "b3", lambda it: it.fenced_out.add(("b3", 1)))),
    ("the owner's connection, not the recovery's", lacks(1, "b3", lambda it: it.disturbed.add(("owner", "b3")))),
    (
        "it refused load long ago",
        lacks(0, "b3", lambda it: (it.loaded.add("b3"), setattr(it, "is_settled", True))),
    ),
]


def with_a_bookie_twice() -> LedgerMetadata:
    """Metadata that cannot be created any more: their checker must be checked, too."""
    metadata = OPEN.with_ensemble(1, ("b1", "b2", "b4"))
    object.__setattr__(metadata, "fragments", (*OPEN.fragments, Fragment(1, ("b1", "b2", "b2"))))
    return metadata


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
    ("C2", "a length that is not the sum", lambda it: it.closes.__setitem__(slice(None), [Close("owner", 1, 7, 25)])),
    ("C2", "an entry with a wrong length", lambda it: it.wrong_lengths.append(("b1", 1, 9))),
    ("C3", "torn bytes read", lambda it: it.reads.append(("reader", 1, b"tw"))),
    ("C3", "an entry that no client wrote", lambda it: it.reads.append(("reader", 5, ONE))),
    ("C3", "foreign bytes stored", lambda it: it.audits[0].copies.append(copies(ONE))),
    ("C4", "LAC falls", lambda it: it.lacs.append(("reader", 0, 31))),
    ("C4", "confirmed, then absent", lambda it: it.denied.append(("reader", 0, 1))),
    ("C4", "confirmed behind the end", lambda it: it.lacs.append(("other", 2, 9))),
    ("C4", "a stale LAC", lambda it: it.looks.append(Look("other", -1, 0, 9))),
    ("C4", "a recovery's LAC moves", lambda it: it.recovery_lacs["recoverer, fence 3"].add(1)),
    ("C5", "added after the close", lambda it: it.invoked.__setitem__(1, (TWO, 21))),
    ("C6", "two of three not fenced", lambda it: setattr(it.audits[0], "fenced", (True, False, False))),
    ("C6", "a negative without a fence", lambda it: it.unfenced_negatives.append(("recoverer", "b3", 2))),
    ("C7", "a version left out", lambda it: it.changes.pop(1)),
    ("C7", "closed, then open", lambda it: it.changes.append((30, Versioned(OPEN, 3, 0, 0), "owner"))),
    ("C7", "closed twice", lambda it: it.changes.append((30, Versioned(CLOSED, 3, 0, 0), "owner"))),
    ("C7", "ensemble published in recovery", changed_twice(CLAIMED.with_ensemble(1, ("b1", "b2", "b4")))),
    ("C7", "a bookie twice", changed_twice(with_a_bookie_twice())),
    ("C7", "a quorum changed", changed_twice(replace(OPEN, ack_quorum=3))),
    ("C8", "too few when acknowledged", lambda it: it.copies_at_ack.append((1, 2, copies(TWO, 1)))),
    ("C8", "too few at the close", lambda it: setattr(it.audits[0].copies[1], "valid", 1)),
    ("C8", "a copy is missing", lacks(0, "b3", lambda it: None)),
    ("C11", "confirmed, not synced", lambda it: it.audits.append(Audit(50, "later", -1, 2, [copies(ONE)]))),
    ("C12", "something pending", lambda it: it.pending.append("the owner did not end")),
    ("C12", "an add waited for long", lambda it: setattr(it, "prompt_ns", 4)),
    ("C12", "a recovery waited for long", lambda it: it.waits.append(Wait("the recovery", 10, 21))),
]


def test_nothing_is_reported_for_a_good_history() -> None:
    assert violations(good()) == []


@pytest.mark.parametrize(("checker", "what", "spoil"), BAD, ids=[f"{name} {what}" for name, what, _ in BAD])
def test_checker_reports_a_bad_history_of_its_kind(checker: str, what: str, spoil: Callable[..., object]) -> None:
    ledger = good()
    spoil(ledger)
    assert checker in {line.partition(":")[0] for line in violations(ledger)}, what


@pytest.mark.parametrize(("what", "spoil"), EXCUSED, ids=[what for what, _ in EXCUSED])
def test_copy_that_a_fault_explains_may_be_missing(what: str, spoil: Callable[[LedgerHistory], None]) -> None:
    ledger = good()
    spoil(ledger)
    assert violations(ledger) == [], what


@pytest.mark.parametrize(("what", "spoil"), NOT_EXCUSED, ids=[what for what, _ in NOT_EXCUSED])
def test_copy_that_no_fault_explains_must_be_there(what: str, spoil: Callable[[LedgerHistory], None]) -> None:
    ledger = good()
    spoil(ledger)
    assert [line.partition(":")[0] for line in violations(ledger)] == ["C8"], what


def test_length_that_no_bookie_could_tell_may_be_wrong() -> None:
    """A recovery wrote nothing back, and a fault struck every bookie of the last entry."""
    ledger = good()
    ledger.rewritten = {"recoverer": set()}
    ledger.closes = [Close("recoverer", 1, 0, 20)]
    ledger.disturbed = {("recoverer", "b1"), ("", "b2")}
    assert [line[:2] for line in violations(ledger)] == ["C2"]
    ledger.disturbed.add(("recoverer", "b3"))
    assert violations(ledger) == []
    ledger.rewritten = {}
    assert "C2" not in {line[:2] for line in violations(ledger)}, "it put the ledger into recovery"
    ledger.changes = [change for change in ledger.changes if change[1].metadata.state is not LedgerState.IN_RECOVERY]
    assert "C2" in {line[:2] for line in violations(ledger)}, "the owner knows the length"


def test_length_may_be_wrong_where_the_only_copies_of_the_last_entry_met_a_fault() -> None:
    """With Qa 1 a bookie without the entry denies it rightly, which says nothing about the length."""
    ledger = good()
    ledger.rewritten = {"recoverer": set()}
    ledger.closes = [Close("recoverer", 1, 0, 20)]
    ledger.disturbed = {("recoverer", "b1")}
    audit = ledger.audits[-1]
    without = [replace(copies, missing=("b2", "b3")) for copies in audit.copies]
    assert "C2" in {line[:2] for line in violations(ledger)}
    ledger.audits[-1] = replace(audit, copies=without)
    assert "C2" not in {line[:2] for line in violations(ledger)}


def test_every_checker_has_a_bad_history() -> None:
    assert {name for name, _, _ in BAD} == set(CHECKERS)


def test_fragment_that_moves_is_reported() -> None:
    before = OPEN.with_ensemble(5, ("b1", "b2", "b4"))
    after = replace(before, fragments=(OPEN.fragments[0], Fragment(6, ("b1", "b2", "b5"))), state=LedgerState.OPEN)
    ledger = good()
    ledger.changes = [(0, Versioned(before, 0, 0, 0), "owner"), (1, Versioned(after, 1, 0, 0), "owner")]
    assert any("moved" in line for line in violations(ledger))
