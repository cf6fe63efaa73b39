"""Whether a bookie may use its directories: the decision, case by case."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bkspark.errors import ConfigurationError
from bkspark.metadata.cookies import Cookie
from bookie_service.cluster.identity import DirectoryState, StartDecision, check_cookie

OURS = Cookie("b-1", ("/j",), ("/l1", "/l2"), "instance")
STAMPED = DirectoryState(OURS, True)
FRESH_STAMP = DirectoryState(OURS, False)
EMPTY = DirectoryState(None, False)
EMPTIED = DirectoryState(OURS, False, has_marks=False)


def all_as(state: DirectoryState, **others: DirectoryState) -> dict[str, DirectoryState]:
    return dict.fromkeys(("/j", "/l1", "/l2"), state) | {f"/{name}": other for name, other in others.items()}


def test_known_bookie_with_all_its_directories_starts() -> None:
    assert check_cookie(OURS, OURS, all_as(STAMPED)) is StartDecision.OURS
    assert check_cookie(OURS, OURS, all_as(FRESH_STAMP)) is StartDecision.OURS


def test_new_bookie_and_interrupted_first_boot_are_stamped() -> None:
    assert check_cookie(OURS, None, all_as(EMPTY)) is StartDecision.STAMP
    assert check_cookie(OURS, None, all_as(EMPTY, j=FRESH_STAMP)) is StartDecision.STAMP
    assert check_cookie(OURS, None, all_as(FRESH_STAMP)) is StartDecision.STAMP
    assert check_cookie(OURS, None, all_as(EMPTY, l1=EMPTIED)) is StartDecision.STAMP


@pytest.mark.parametrize(
    ("stored", "found", "complaint"),
    [
        (OURS, all_as(EMPTY), "directory /j of bookie b-1 has lost its contents"),
        (OURS, all_as(STAMPED, l2=EMPTY), "directory /l2 of bookie b-1 has lost its contents"),
        (OURS, all_as(STAMPED, l2=EMPTIED), "directory /l2 of bookie b-1 has lost its contents (no lastMark)"),
        (OURS, all_as(STAMPED, l2=DirectoryState(None, True)), "directory /l2 holds a bookie's files but no cookie"),
        (None, all_as(EMPTY, l1=DirectoryState(None, True)), "directory /l1 holds a bookie's files but no cookie"),
        (None, all_as(FRESH_STAMP, j=STAMPED), "the cluster does not know bookie b-1"),
        (
            OURS,
            all_as(STAMPED, l1=DirectoryState(replace(OURS, bookie_id="b-2"), True)),
            "directory /l1 belongs to another bookie or cluster: bookie id b-2 instead of b-1",
        ),
        (
            None,
            all_as(DirectoryState(replace(OURS, instance_id="elsewhere"), True)),
            "cluster instance id elsewhere instead of instance",
        ),
        (
            OURS,
            all_as(STAMPED, l1=DirectoryState(OURS, True, place="/l2"), l2=DirectoryState(OURS, True, place="/l1")),
            "directory /l1 holds what belongs at /l2: mount or move each where it was",
        ),
        (
            OURS,
            all_as(STAMPED, l2=DirectoryState(OURS, False, foreign="lastMark")),
            "directory /l2 is an Apache bookie's: this bookie cannot read its lastMark",
        ),
        (replace(OURS, ledger_directories=("/l1",)), all_as(EMPTY), "with other facts: ledger directories /l1 instead"),
    ],
)
def test_anything_else_refuses_and_says_what_and_why(
    stored: Cookie | None, found: dict[str, DirectoryState], complaint: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_cookie(OURS, stored, found)
    assert complaint in str(caught.value)
    assert "new bookieId" in str(caught.value)
