"""What ledger metadata may say: each bound, at it and one beyond it."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from bkspark.core.metadata import LENGTH_MAX, MEMBERS_MAX, Fragment, LedgerMetadata, LedgerState, change_ensemble
from bkspark.ids import ENTRY_ID_MAX, LAST_ENTRY_MAX

THREE = ("a:1", "b:1", "c:1")
CLOSED = LedgerState.CLOSED


def metadata(*fragments: tuple[int, tuple[str, ...]], **others: Any) -> LedgerMetadata:
    found = tuple(Fragment(*each) for each in fragments or ((0, THREE),))
    return LedgerMetadata(*others.pop("quorums", (3, 3, 2)), found, **others)


@pytest.mark.parametrize(
    ("fragments", "others", "message"),
    [
        ([], {"quorums": (3, 3, 0)}, "ack quorum 0 is below 1"),
        ([], {"quorums": (3, 1, 2)}, "write quorum 1 is below ack quorum 2"),
        ([], {"quorums": (3, 4, 2)}, "ensemble size 3 is below write quorum 4"),
        (
            [(0, tuple(f"b{i}:1" for i in range(MEMBERS_MAX + 1)))],
            {"quorums": (MEMBERS_MAX + 1, 3, 2)},
            "above the limit",
        ),
        ([(1, THREE)], {}, "begins at entry 0"),
        ([(0, THREE), (0, THREE)], {}, "do not ascend: 0 after 0"),
        ([(0, THREE), (5, THREE), (4, THREE)], {}, "do not ascend: 4 after 5"),
        ([(0, THREE[:2])], {}, "has 2 bookies, E is 3"),
        ([(0, (*THREE, "d:1"))], {}, "has 4 bookies, E is 3"),
        ([(0, THREE), (7, ("a:1", "b:1", "a:1"))], {}, "from entry 7 names a bookie twice"),
        ([], {"last_entry": 0}, "only a closed ledger"),
        ([], {"length": 1}, "only a closed ledger"),
        ([], {"last_entry": 4, "state": LedgerState.IN_RECOVERY}, "only a closed ledger"),
        ([], {"state": CLOSED, "last_entry": -2}, "is not an entry's id"),
        ([], {"state": CLOSED, "last_entry": LAST_ENTRY_MAX + 1}, "is not an entry's id"),
        ([(0, THREE), (ENTRY_ID_MAX + 1, THREE)], {}, "is not an entry's id"),
        ([], {"state": CLOSED, "last_entry": 4, "length": -1}, "its length of -1 bytes"),
        ([], {"state": CLOSED, "last_entry": 4, "length": LENGTH_MAX + 1}, "its length of"),
    ],
)
def test_what_no_ledger_can_be_is_refused(fragments: Any, others: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        metadata(*fragments, **others)


def test_ledger_has_a_fragment() -> None:
    with pytest.raises(ValueError, match="begins at entry 0"):
        LedgerMetadata(3, 3, 2, ())


def test_bounds_themselves_are_taken() -> None:
    metadata(quorums=(3, 1, 1))
    metadata(quorums=(3, 3, 3))
    metadata((0, ("a:1",)), quorums=(1, 1, 1))
    metadata((0, tuple(f"b{i}:1" for i in range(MEMBERS_MAX))), quorums=(MEMBERS_MAX, 3, 2))
    metadata((0, THREE), (1, THREE), (ENTRY_ID_MAX, THREE))
    metadata(state=CLOSED, last_entry=-1, length=0)
    metadata(state=CLOSED, last_entry=LAST_ENTRY_MAX, length=LENGTH_MAX)


def test_new_ledger_has_the_newest_format_and_shows_no_password() -> None:
    new = metadata(password=b"secret")
    assert new.format_version == 3
    assert (new.state, new.last_entry, new.length, new.ctoken, new.unknown_fields) == (LedgerState.OPEN, -1, 0, 0, b"")
    assert "secret" not in repr(new)
    assert "password" not in repr(new)


def test_repr_does_not_show_fields_that_only_a_later_peer_knows() -> None:
    """One of them may be a secret: a password whose tag has a flipped bit is such a field."""
    fragment = Fragment(0, THREE, unknown_fields=b"hidden")
    shown = repr(LedgerMetadata(3, 3, 2, (fragment,), unknown_fields=b"hidden"))
    assert "hidden" not in shown


def test_metadata_survive_a_pickle_and_their_custom_part_cannot_be_changed() -> None:
    custom = {"application": b"x"}
    made = metadata(custom_metadata=custom)
    custom["application"] = b"y"
    assert dict(made.custom_metadata) == {"application": b"x"}
    with pytest.raises(TypeError):
        made.custom_metadata["application"] = b"z"  # type: ignore[index]
    again = pickle.loads(pickle.dumps(made))
    assert again == made
    assert dict(again.custom_metadata) == {"application": b"x"}
    with pytest.raises(TypeError):
        again.custom_metadata["application"] = b"z"


def test_ensemble_changes_from_its_first_entry_on_and_replaces_one_that_got_no_entry() -> None:
    first = Fragment(0, THREE)
    other = ("a:1", "b:1", "d:1")
    changed = change_ensemble([first], 5, other)
    assert changed == (first, Fragment(5, other))
    assert change_ensemble(changed, 5, THREE) == (first, Fragment(5, THREE))
    assert change_ensemble(changed, 6, THREE) == (*changed, Fragment(6, THREE))
    assert change_ensemble([first], 0, other) == (Fragment(0, other),)
    with pytest.raises(ValueError, match="entry 4 lies before the last fragment, at 5"):
        change_ensemble(changed, 4, THREE)


@pytest.mark.parametrize("bookie", ["", "a/b", "two words"])
def test_bookie_with_a_name_that_cannot_be_is_refused(bookie):
    with pytest.raises(ValueError, match="bookie"):
        LedgerMetadata(2, 2, 2, (Fragment(0, ("b1", bookie)),))


def test_entry_is_in_the_last_fragment_that_begins_at_it_or_before() -> None:
    """docs/protocol.md §5.4: the new fragment begins at LAC + 1."""
    found = metadata((0, THREE), (4, ("a:1", "b:1", "d:1")), (9, ("a:1", "d:1", "e:1")))
    first, second, third = found.fragments
    assert [found.fragment_of(entry_id) for entry_id in (0, 3, 4, 8, 9, 20)] == [
        first,
        first,
        second,
        second,
        third,
        third,
    ]
    with pytest.raises(ValueError, match="negative"):
        found.fragment_of(-1)


def test_copies_in_a_closed_ledger_carry_no_lac_above_its_end() -> None:
    """A copy of Apache's re-replication has the last entry of the closed ledger as its LAC (bkspark.wire.lac)."""
    bounds = metadata(state=CLOSED, last_entry=6).lac_bounds
    assert bounds.admits(3, 6)
    assert not bounds.admits(3, 7)


def test_metadata_of_two_nodes_are_equal_and_look_the_same() -> None:
    one, other = metadata(creation=1), metadata(creation=2)
    assert (one, repr(one)) == (other, repr(other))
