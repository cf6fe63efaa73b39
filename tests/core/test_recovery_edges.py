"""RecoveryCore: its windows, the pauses of bookies that refuse, and which bookies count as silent."""

from __future__ import annotations

import numpy as np

from bkspark.core import effects
from bkspark.core.metadata import Fragment
from bkspark.core.recovery import WINDOW_BYTES_MAX, WINDOW_FIRST, WINDOW_GROWTH
from bkspark.core.recovery_window import RecoveryWindow, Response
from bkspark.errors import (
    RequestTimeout,
)
from tests.core.recovering import AWAY, BOOKIES, Recovery, read_answer


def test_pause_of_a_refusing_bookie_doubles_until_it_answers_and_is_short_again_then() -> None:
    core = Recovery({"b1": [0], "b2": [0], "b3": [0]}).core
    core.start()
    fences = core.on_metadata_written(core.metadata.in_recovery(), 1)
    assert {type(effect) for effect in fences} == {effects.Fence}
    assert core.on_backoff_over(0) == [], "it did not refuse"
    for slot in (0, 1):
        todo = core.on_fence_answer(slot, Response.FOUND, 0, 100, last_entry=9)
    # The others are away, so that bookie b1 is asked again and again.
    for effect in todo:
        if effect.slot:
            todo += read_answer(core, effect.slot, effect.entry_ids, Response.FAILED, error=AWAY)
    ids = np.unique(np.concatenate([effect.entry_ids for effect in todo if not effect.slot]))

    def refused() -> int:
        nonlocal ids
        done = read_answer(core, 0, ids, Response.REFUSED)
        [pause] = [each.delay_ns for each in done if isinstance(each, effects.BackOff)]
        [read] = core.on_backoff_over(0)
        assert read.slot == 0
        ids = read.entry_ids
        return pause

    first = refused()
    assert [refused(), refused()] == [2 * first, 4 * first]
    read_answer(core, 0, ids[:1], Response.FOUND)
    ids = ids[1:]
    assert [refused(), refused()] == [first, 2 * first]
    answers = np.full(len(ids), Response.REFUSED, np.uint8)
    answers[0] = Response.FOUND
    done = core.on_read_answers(0, ids, answers, [b"x", *[None] * (len(ids) - 1)], 10 * (ids + 1))
    assert [each.delay_ns for each in done if isinstance(each, effects.BackOff)] == [first]


def test_entry_that_one_bookie_has_exists_whatever_the_others_say() -> None:
    window = RecoveryWindow(4, 2, 3, 3)
    window.choose(slice(None), 3, 0, 0)
    ids = np.array([4, 5])
    found, none = np.full(2, Response.FOUND, np.uint8), np.full(2, Response.NEGATIVE, np.uint8)
    window.take(0, ids, found, [b"4", b"5"], np.array([1, 2]))
    for slot in (1, 2):
        window.take(slot, ids, none, [None, None], np.zeros(2, np.int64))
    rows, is_blocked = window.undecided(2)
    assert (rows.tolist(), is_blocked, window.found_ahead()) == ([], False, 2)
    window = RecoveryWindow(4, 2, 3, 3)
    window.choose(slice(0, 1), 3, 0, 0)
    window.take(0, ids[:1], found[:1], [b"4"], np.array([1]))
    for slot in (1, 2):
        window.take(slot, ids[:1], none[:1], [None], np.zeros(1, np.int64))
    rows, is_blocked = window.undecided(2)
    assert (rows.tolist(), is_blocked) == ([1], False), "the next entry is still to be looked for"


def test_windows_of_a_ledger_of_unknown_length_grow() -> None:
    class Secretive(Recovery):
        tells_last = False

    recovery = Secretive({bookie: list(range(200)) for bookie in ("b1", "b2", "b3")})
    recovery.run()
    assert recovery.windows[:3] == [WINDOW_FIRST, WINDOW_FIRST * WINDOW_GROWTH, WINDOW_FIRST * WINDOW_GROWTH**2]
    assert sum(recovery.windows) == 200


def test_bookies_that_are_away_are_not_silent() -> None:
    for error, silent in ((AWAY, {}), (RequestTimeout("late"), {2: "b3"})):
        core = Recovery({}).core
        core.start()
        core.on_metadata_written(core.metadata.in_recovery(), 1)
        todo = core.on_fence_answer(2, Response.FAILED, error=error)
        for slot in (0, 1):
            todo += core.on_fence_answer(slot, Response.FOUND, -1, 10, last_entry=0)
        for effect in todo:
            if isinstance(effect, effects.RecoveryRead):
                for entry_id in effect.entry_ids.tolist():
                    answer = Response.NEGATIVE if entry_id else Response.FOUND
                    todo += read_answer(core, effect.slot, entry_id, answer)
        [rewriting] = [each for each in todo if isinstance(each, effects.RewriteEntries)]
        assert dict(rewriting.silent) == silent
        assert all(each.slot != 2 for each in todo if isinstance(each, effects.RecoveryRead)), "it is not asked again"


def test_ledger_of_entries_without_bytes_is_recovered() -> None:
    class Empty(Recovery):
        entry = b""

    outcome = Empty({bookie: [0, 1, 2] for bookie in ("b1", "b2", "b3")}).run()
    assert not isinstance(outcome, effects.Fail)


def test_later_windows_are_read_from_the_bookies_that_were_fenced_whatever_bookies_the_copies_went_to() -> None:
    """protocol.md, Closing a ledger as a reader: only fenced bookies say for certain that an entry is not there."""

    class Changing(Recovery):
        tells_last = False

        def perform(self, effect: object) -> list[effects.RecoveryEffect]:
            if isinstance(effect, effects.RewriteEntries):
                self.core.on_ensemble_changed((Fragment(0, ("b7", "b8", "b9")),))
            return super().perform(effect)

    recovery = Changing({bookie: list(range(20)) for bookie in BOOKIES})
    recovery.run()
    assert len(recovery.windows) > 1
    assert {bookie for bookie, _ in recovery.reads} <= {*BOOKIES}


def test_window_has_room_for_entries_as_large_as_the_largest_one_before() -> None:
    class Mixed(Recovery):
        tells_last = False

        def perform(self, effect: object) -> list[effects.RecoveryEffect]:
            if isinstance(effect, effects.RewriteEntries):
                self.windows.append(len(effect.payloads))
                return self.core.on_rewritten()
            return super().perform(effect)

        def answer(self, effect: effects.RecoveryRead) -> list[effects.RecoveryEffect]:
            ids = effect.entry_ids
            answers = np.array([self.answer_of(effect.bookie, entry_id) for entry_id in ids.tolist()], np.uint8)
            payloads = [large if entry_id == 0 else b"x" for entry_id in ids.tolist()]
            return self.core.on_read_answers(effect.slot, ids, answers, payloads, len(large) + ids)

    large = bytes(WINDOW_BYTES_MAX // 3)
    recovery = Mixed({bookie: list(range(20)) for bookie in BOOKIES})
    recovery.run()
    assert recovery.windows[:2] == [WINDOW_FIRST, 3]


def test_length_of_a_ledger_whose_only_entry_was_confirmed_is_read_from_it() -> None:
    """The last fragment begins after it and is empty, so no entry is rewritten."""
    recovery = Recovery({}, fragments=(Fragment(0, BOOKIES), Fragment(1, ("b1", "b2", "b4"))))
    outcome = recovery.run()
    assert isinstance(outcome, effects.Recovered)
    assert (recovery.rewritten, outcome.metadata.last_entry, outcome.metadata.length) == ([], 0, 777)
