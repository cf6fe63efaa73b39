"""What bookies must hold of a ledger, estimated from its metadata."""

from __future__ import annotations

from bkspark.core.copies import CopyEstimate, names, share_of
from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState


def ledger(*fragments: tuple[int, str], **facts: object) -> LedgerMetadata:
    rows = tuple(Fragment(first, tuple(bookies)) for first, bookies in fragments)
    return LedgerMetadata(3, 2, 2, rows, **facts)  # type: ignore[arg-type]


def test_share_is_that_of_the_slots_at_the_mean_size() -> None:
    closed = ledger((0, "abc"), (60, "bcd"), state=LedgerState.CLOSED, last_entry=89, length=900)
    assert share_of(closed, {"a"}) == CopyEstimate(1, 40, 400, False)
    assert share_of(closed, {"b"}) == CopyEstimate(2, 60, 600, False)
    assert share_of(closed, {"a", "d"}) == CopyEstimate(2, 60, 600, False)
    assert share_of(closed, {"x"}) == CopyEstimate(0, 0, 0, False)


def test_open_and_empty_ledgers_have_no_bytes() -> None:
    assert share_of(ledger((0, "abc"), (60, "bcd")), {"b"}) == CopyEstimate(2, 40, 0, True)
    assert share_of(ledger((0, "abc"), (60, "bcd")), {"a"}) == CopyEstimate(1, 40, 0, False), "it gets no more entries"
    empty = ledger((0, "abc"), state=LedgerState.CLOSED, last_entry=-1, length=0)
    assert share_of(empty, {"a"}) == CopyEstimate(1, 0, 0, False)


def test_names_looks_at_every_fragment() -> None:
    metadata = ledger((0, "abc"), (60, "bcd"))
    assert [bookie for bookie in "abcdx" if names(metadata, bookie)] == list("abcd")
