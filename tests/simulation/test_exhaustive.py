"""Every behaviour of a small cluster keeps what was acknowledged; the search leaves nothing out and finds defects."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from bkspark.wire.status import Status
from tests.planting import Plant
from tests.simulation import planted
from tests.simulation.exhaustive import MODELS, Search, WordSet, one_entry_at_a_time
from tests.simulation.small_model import Model, ModelWithoutFencingReads, State


@pytest.mark.long_except(
    "2/2, two entries-0-0-20000",
    "3/2-0-0-100000",
    reason="16 s of processor time; the random schedules have losses and crashes, too",
)
@pytest.mark.parametrize(
    ("model", "losses", "crashes", "states_min"),
    [("2/2", 2, 1, 500_000), ("2/2, two entries", 0, 0, 20_000), ("3/2", 0, 0, 100_000)],
)
def test_every_state_is_right(model: str, losses: int, crashes: int, states_min: int) -> None:
    """3/2 with two losses and a crash: `python -m tests.simulation.exhaustive`."""
    found = Search(Model(*MODELS[model], losses, crashes)).run()
    assert found.wrong == ""
    assert found.is_complete
    assert found.states >= states_min


def _following(model: Model, state: State) -> list[State]:
    states = [following for _, following in model.following(state)]
    for following in states:
        model.forget(following)
    return states


def test_search_finds_exactly_the_states_of_the_model() -> None:
    model = Model((2, 2, 2), 1, losses=0, crashes=0)
    search = Search(model)
    found = search.run()
    with one_entry_at_a_time():
        waiting, transitions = [model.first()], 0
        seen = {search.rules.word(waiting[0])}
        while waiting:
            for state in _following(model, waiting.pop()):
                transitions += 1
                word = search.rules.word(state)
                if word not in seen:
                    seen.add(word)
                    waiting += [] if model.is_settled(state) else [state]
    assert set(search.seen.words.tolist()) == seen
    assert (found.states, found.transitions) == (len(seen), transitions)


@pytest.mark.parametrize("quorums", [(2, 2, 2), (3, 3, 2)])
def test_word_decides_what_follows_however_the_state_came_about(quorums: tuple[int, int, int]) -> None:
    """Two states with one word may differ in what a word leaves out: walks at random meet many such."""
    model = Model(quorums, entries=2)
    search, luck = Search(model), random.Random(1)
    with one_entry_at_a_time():
        for _ in range(25):
            state = model.first()
            while following := _following(model, state):
                by_words = search.following(np.array([search.rules.word(state)], np.uint64))
                found = {word for words, _ in by_words for word in words.tolist()}
                assert found == {search.rules.word(it) for it in following}
                state = luck.choice(following)


def test_search_finds_that_recovery_reads_must_fence() -> None:
    """P01, #2614: the shortest way has fifteen steps."""
    found = Search(ModelWithoutFencingReads((3, 3, 2), entries=1, losses=0, crashes=0)).run()
    assert "was acknowledged, the ledger ends at" in found.wrong
    assert len(found.path) == 15


@pytest.mark.parametrize(
    ("plant", "model", "losses", "wrong"),
    [
        (planted.acknowledged_by_one_less, "2/2", 0, "was acknowledged, the ledger ends at"),
        (planted.acknowledged_by_refusals(Status.EFENCED), "2/2", 0, "was acknowledged, the ledger ends at"),
        (planted.acknowledged_before_lower_ids, "2/2, two entries", 0, "was acknowledged, the ledger ends at"),
        (planted.nothing_rewritten, "2/2", 0, "has 1 copies at the close"),
        (planted.overwrites_newer_state, "2/2", 1, "the metadata of a closed ledger was overwritten"),
    ],
)
def test_search_finds_what_is_planted_in_the_cores(
    plant: Callable[[], Plant], model: str, losses: int, wrong: str
) -> None:
    with plant():
        found = Search(Model(*MODELS[model], losses, crashes=0)).run()
    assert wrong in found.wrong
    assert found.path


def test_set_of_words_tells_new_ones_while_it_grows() -> None:
    words = np.random.default_rng(1).integers(1, 1 << 40, 200_000, np.uint64) << np.uint64(20)
    found, expected = WordSet(), set()
    for some in np.split(words, 20):
        some = np.unique(np.concatenate([some, words[:100]]))
        assert found.add(some).tolist() == [word not in expected for word in some.tolist()]
        expected.update(some.tolist())
    assert set(found.words.tolist()) == expected
    assert len(found) == len(expected)
