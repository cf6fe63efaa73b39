"""ExplicitLac: docs/protocol.md §5.10."""

from __future__ import annotations

from bkspark.core.explicit_lac import ExplicitLac

ENSEMBLE = ("b0", "b1", "b2")


def sent(todo):
    return [(effect.bookie, effect.lac) for effect in todo]


def test_lac_that_no_add_carries_is_sent_to_the_whole_ensemble_once():
    core = ExplicitLac(3, 3, 2)
    assert core.on_interval(-1, ENSEMBLE) == []
    core.on_sealed(-1)
    assert sent(core.on_interval(4, ENSEMBLE)) == [("b0", 4), ("b1", 4), ("b2", 4)]
    for slot in range(3):
        core.on_written(slot)
    assert core.on_interval(4, ENSEMBLE) == []


def test_lac_that_an_add_carries_is_not_sent():
    core = ExplicitLac(3, 3, 2)
    core.on_sealed(4)
    assert core.on_interval(4, ENSEMBLE) == []
    assert sent(core.on_interval(5, ENSEMBLE))[0] == ("b0", 5)


def test_qa_bookies_of_every_write_set_are_enough_and_with_fewer_the_lac_is_sent_again():
    core = ExplicitLac(3, 3, 2)
    core.on_interval(4, ENSEMBLE)
    core.on_written(0)
    core.on_failed()
    assert core.on_interval(4, ENSEMBLE) == []  # one round at a time
    core.on_failed()
    assert len(core.on_interval(4, ENSEMBLE)) == 3
    core.on_written(0)
    core.on_written(2)
    core.on_failed()
    assert core.on_interval(4, ENSEMBLE) == []

    striped = ExplicitLac(3, 2, 2)
    striped.on_interval(4, ENSEMBLE)
    striped.on_written(0)
    striped.on_written(1)
    striped.on_failed()
    assert len(striped.on_interval(4, ENSEMBLE)) == 3  # write set {b1, b2} has it once only


def test_round_that_was_overtaken_by_the_lac_counts_for_the_lac_that_it_sent():
    core = ExplicitLac(1, 1, 1)
    core.on_interval(4, ("b0",))
    core.on_written(0)
    assert sent(core.on_interval(9, ("b0",))) == [("b0", 9)]


def test_new_ensemble_gets_the_lac_again():
    core = ExplicitLac(3, 3, 2)
    core.on_interval(4, ENSEMBLE)
    for slot in range(3):
        core.on_written(slot)
    assert sent(core.on_interval(4, ("b0", "b1", "b9")))[2] == ("b9", 4)


def test_bookie_that_has_an_earlier_lac_does_not_count_for_a_later_one():
    core = ExplicitLac(3, 3, 2)
    core.on_interval(4, ENSEMBLE)
    core.on_written(0)
    core.on_failed()
    core.on_failed()
    core.on_interval(5, ENSEMBLE)
    core.on_written(1)
    core.on_failed()
    core.on_failed()
    assert sent(core.on_interval(5, ENSEMBLE)) == [("b0", 5), ("b1", 5), ("b2", 5)]
