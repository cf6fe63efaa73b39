"""RecoveryWindow: who is asked, which answers count, and what is decided, entry by entry."""

from __future__ import annotations

import numpy as np
import pytest

from bkspark.core.recovery_window import RecoveryWindow, Response

ALL = slice(None)


def ask(window: RecoveryWindow, rows=ALL, replicas=1, dead=0, resting=0) -> dict[int, list[int]]:
    if not isinstance(rows, slice):
        rows = np.array(rows)
    return {slot: ids.tolist() for slot, ids in window.choose(rows, replicas, dead, resting).items()}


def take(window: RecoveryWindow, slot: int, answers: dict[int, Response]) -> list[Response]:
    """One bookie's answers, by entry; a FOUND one has the payload `slot:entry`."""
    ids = np.array(list(answers))
    codes = np.array(list(answers.values()), np.uint8)
    payloads = [f"{slot}:{entry}".encode() if it is Response.FOUND else None for entry, it in answers.items()]
    return [Response(code) for code in window.take(slot, ids, codes, payloads, 100 * slot + ids)]


# ---- who is asked ----


def test_each_entry_is_asked_of_the_first_replicas_of_its_write_set() -> None:
    window = RecoveryWindow(7, 4, 3, 2)
    assert (len(window), window.entry_ids.tolist()) == (4, [7, 8, 9, 10])
    assert ask(window) == {0: [9], 1: [7, 10], 2: [8]}
    assert ask(window) == {0: [8], 1: [9], 2: [7, 10]}
    assert ask(window) == {}


def test_as_many_replicas_as_wanted_are_asked_at_once_and_none_twice() -> None:
    window = RecoveryWindow(0, 1, 4, 3)
    assert ask(window, replicas=2) == {0: [0], 1: [0]}
    assert ask(window, replicas=3) == {2: [0]}
    assert ask(window, replicas=3) == {}


def test_dead_bookies_are_never_asked_and_resting_ones_later() -> None:
    window = RecoveryWindow(0, 2, 3, 3)
    assert ask(window, replicas=3, dead=0b001, resting=0b010) == {2: [0, 1]}
    assert ask(window, replicas=3) == {1: [0, 1]}, "dead once, dead for good"
    assert ask(window, replicas=3) == {}
    window = RecoveryWindow(0, 1, 3, 3)
    assert ask(window, dead=0b001) == {1: [0]}, "the next replica makes up for a dead one"
    window = RecoveryWindow(0, 1, 3, 3)
    assert ask(window, dead=0b100, resting=0b011) == {}


def test_only_the_chosen_rows_are_asked() -> None:
    window = RecoveryWindow(10, 3, 3, 3)
    assert ask(window, rows=[0, 2]) == {1: [10], 0: [12]}
    assert window.waiting.tolist() == [0b010, 0, 0b001]


# ---- which answers count ----


def test_answers_that_are_not_due_are_ignored() -> None:
    """A negative of a bookie that is counted twice, or was not asked, would cut the ledger off."""
    window = RecoveryWindow(10, 3, 3, 3)
    ask(window, rows=[0, 1])
    assert take(window, 2, {10: Response.NEGATIVE, 12: Response.NEGATIVE}) == []
    assert take(
        window,
        1,
        {
            9: Response.NEGATIVE,
            10: Response.NEGATIVE,
            11: Response.NEGATIVE,
            13: Response.NEGATIVE,
        },
    ) == [Response.NEGATIVE]
    assert take(window, 1, {10: Response.NEGATIVE}) == []
    assert take(window, 1, {10: Response.FOUND}) == []
    assert window.negatives.tolist() == [1, 0, 0]
    assert window.found.tolist() == [False] * 3
    assert window.waiting.tolist() == [0, 0b100, 0]


def test_negatives_alone_are_counted() -> None:
    window = RecoveryWindow(0, 1, 4, 4)
    ask(window, replicas=4)
    for slot, answer in enumerate((Response.FAILED, Response.NEGATIVE, Response.REFUSED, Response.NEGATIVE)):
        assert take(window, slot, {0: answer}) == [answer]
    assert window.negatives.tolist() == [2]
    assert ask(window, replicas=4) == {2: [0]}, "the bookie that refused is asked again, and no other"


def test_first_copy_that_is_found_counts() -> None:
    window = RecoveryWindow(4, 3, 3, 3)
    ask(window, replicas=3)
    take(window, 2, {4: Response.FOUND, 6: Response.NEGATIVE})
    take(window, 1, {4: Response.FOUND, 5: Response.FOUND})
    take(window, 0, {5: Response.FOUND})
    assert window.found.tolist() == [True, True, False]
    assert window.payloads == [b"2:4", b"1:5", b""]
    assert window.lengths.tolist() == [204, 105, 0]


def test_entries_before_the_first_missing_one_are_taken() -> None:
    window = RecoveryWindow(4, 3, 3, 3)
    assert window.found_ahead() == 0
    ask(window, replicas=3)
    take(window, 0, {4: Response.FOUND, 6: Response.FOUND})
    assert window.found_ahead() == 1
    take(window, 1, {5: Response.FOUND})
    assert window.found_ahead() == 3
    batch = window.batch(2, 77)
    assert (list(batch), batch.first_entry, batch.end_entry) == ([b"0:4", b"1:5"], 4, 6)


# ---- what is decided ----


def undecided(window: RecoveryWindow, needed: int) -> tuple[list[int], bool]:
    rows, is_blocked = window.undecided(needed)
    return rows.tolist(), is_blocked


def test_entry_is_missing_with_as_many_negatives_as_are_needed_and_what_lies_above_does_not_matter() -> None:
    window = RecoveryWindow(0, 4, 3, 3)
    ask(window, replicas=3)
    for slot in range(3):
        take(
            window,
            slot,
            {
                0: Response.FOUND,
                1: Response.FAILED,
                2: Response.NEGATIVE,
                3: Response.FAILED,
            },
        )
        assert window.found[0]
    assert undecided(window, 3) == ([1], False)
    assert undecided(window, 4) == ([1, 2, 3], False)


def test_found_entry_is_not_missing_whatever_others_say() -> None:
    window = RecoveryWindow(0, 2, 3, 3)
    ask(window, replicas=3)
    take(window, 0, {0: Response.NEGATIVE, 1: Response.FOUND})
    take(window, 1, {0: Response.NEGATIVE, 1: Response.FOUND})
    take(window, 2, {0: Response.FOUND, 1: Response.FOUND})
    assert undecided(window, 2) == ([], False)


def test_rows_after_one_that_waits_are_left_for_later() -> None:
    window = RecoveryWindow(0, 3, 3, 3)
    ask(window)
    assert undecided(window, 2) == ([], True)
    take(window, 0, {0: Response.NEGATIVE})
    assert undecided(window, 2) == ([0], True)
    take(window, 2, {2: Response.NEGATIVE})
    assert undecided(window, 2) == ([0], True)
    take(window, 1, {1: Response.NEGATIVE})
    assert undecided(window, 2) == ([0, 1, 2], False)
    take(window, 1, {1: Response.FOUND})
    ask(window, rows=[0], replicas=3)
    take(window, 1, {0: Response.FOUND})
    assert undecided(window, 2) == ([1, 2], False), "a found row that waits blocks nothing"


@pytest.mark.parametrize("ensemble_size", [1, 40, 63, 64])
def test_ensembles_of_up_to_64_bookies_fit(ensemble_size: int) -> None:
    window = RecoveryWindow(0, 2 * ensemble_size, ensemble_size, 1)
    asked = ask(window)
    assert asked == {slot: [slot, slot + ensemble_size] for slot in range(ensemble_size)}
    for slot, ids in asked.items():
        take(window, slot, dict.fromkeys(ids, Response.FOUND))
    assert window.found.all()


@pytest.mark.parametrize("entry", [7, 8, 9, 13, 14])
def test_answer_for_an_entry_outside_the_window_counts_for_none_inside(entry: int) -> None:
    """A late answer of an earlier window: 7 is as far before this one as 10 is before its end."""
    window = RecoveryWindow(10, 3, 3, 3)
    ask(window, replicas=3)
    for slot in range(3):
        assert take(window, slot, {entry: Response.NEGATIVE}) == []
        assert take(window, slot, {entry: Response.FOUND}) == []
    assert window.negatives.tolist() == [0, 0, 0]
    assert not window.found.any()
    assert window.waiting.tolist() == [0b111] * 3
