"""Tail: whom a tailing reader asks, and when: docs/protocol.md §2.7 (long poll) and §5.8."""

from __future__ import annotations

import itertools

import pytest

from bkspark.core import effects
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.core.quorum import has_coverage
from bkspark.core.tail import Tail, TailLimits
from bkspark.errors import ConfigurationError, NoSuchLedger, ReadFailed
from bkspark.ids import ENTRY_ID_MAX

SECOND = 1_000_000_000
LIMITS = TailLimits()
AWAY = ReadFailed("too few bookies answered")


def metadata_of(quorums=(3, 3, 2), bookies=None):
    bookies = bookies or tuple(f"b{slot}" for slot in range(quorums[0]))
    return LedgerMetadata(*quorums, (Fragment(0, bookies),))


def polls(todo):
    return [effect.bookie for effect in todo if isinstance(effect, effects.LongPoll)]


def hears(tail, bookie, lac, now):
    """A bookie answers a poll with a hint, and proves it."""
    todo = tail.on_polled(bookie, lac, now)
    assert effects.ProveLac(bookie) in todo
    assert tail.lac < lac  # no digest covers the answer to a poll
    return tail.on_proven(bookie, lac, now)


def looks(todo):
    return sum(isinstance(effect, effects.Refresh) for effect in todo)


def ticks(todo):
    return [effect.delay_ns for effect in todo if isinstance(effect, effects.CallAfter)]


def test_every_time_of_a_tail_may_be_zero_and_none_negative():
    for name in ("poll_ns", "look_ns", "pause_ns_min", "pause_ns_max", "retry_ns", "patience_ns"):
        TailLimits(**{name: 0})
        with pytest.raises(ConfigurationError, match=name):
            TailLimits(**{name: -1})


@pytest.mark.parametrize(
    "quorums", [(e, w, a) for e in range(1, 7) for w in range(1, e + 1) for a in range(1, w + 1)], ids=str
)
def test_polls_cover_every_write_set_with_no_bookie_too_many(quorums):
    """Whatever LAC an acknowledged entry carries, a bookie that is polled has it."""
    for first_slot in range(quorums[0]):
        asked = polls(Tail(metadata_of(quorums), -1, first_slot).wait(0))
        slots = [int(bookie[1:]) for bookie in asked]
        assert has_coverage(slots, *quorums)
        for slot in slots:
            assert not has_coverage([other for other in slots if other != slot], *quorums)


def test_one_poll_at_a_bookie_however_often_callers_wait():
    tail = Tail(metadata_of(), 5)
    assert polls(tail.wait(0)) == ["b0", "b1"]
    assert polls(tail.wait(1)) == []
    assert polls(hears(tail, "b0", 9, SECOND)) == []  # no caller waits: the LAC has grown
    assert (tail.lac, tail.is_waiting) == (9, False)
    assert polls(tail.wait(2 * SECOND)) == ["b0"]
    # b1 was asked about entries after 5: that it knows 7 is no longer news, and no reason to leave it alone.
    assert polls(tail.on_polled("b1", 7, 2 * SECOND + 1)) == ["b1"]
    assert tail.lac == 9


def test_every_poll_names_the_lac_that_is_known():
    tail = Tail(metadata_of((1, 1, 1)), 5)
    tail.wait(0)
    hears(tail, "b0", 8, 1)
    (poll,) = (effect for effect in tail.wait(2) if isinstance(effect, effects.LongPoll))
    assert (poll.previous_lac, poll.wait_ns) == (8, LIMITS.poll_ns)


def test_failed_poll_is_made_up_for_by_another_bookie():
    tail = Tail(metadata_of(), -1)
    tail.wait(0)
    assert polls(tail.on_poll_failed("b0", 1)) == ["b2"]
    # ... and the failed one is left alone for a while.
    assert polls(tail.on_poll_failed("b1", 2)) == []
    assert polls(tail.on_tick(LIMITS.retry_ns + 1)) == ["b0"]


def test_where_too_few_take_polls_looking_again_is_all_there_is_with_growing_pauses():
    """`tailing by polling where a bookie has none`."""
    tail = Tail(metadata_of(), -1)
    tail.wait(0)
    for bookie in ("b0", "b1", "b2"):
        todo = tail.on_poll_failed(bookie, 0)
    now, pauses = 0, []
    while len(pauses) < 8:
        (delay,) = ticks(todo)
        now += delay
        pauses.append(delay)
        todo = tail.on_tick(now)
        assert looks(todo) == 1
        todo = tail.on_refreshed(tail.metadata, -1, now)
    assert pauses == sorted(pauses)
    assert pauses[0] == LIMITS.pause_ns_min
    assert pauses[-1] == LIMITS.pause_ns_max


def test_pause_is_short_again_after_news():
    tail = Tail(metadata_of((1, 1, 1)), -1)
    tail.wait(0)
    todo = tail.on_poll_failed("b0", 0)
    now = 0
    for lac in (-1, -1, -1, -1, 4):
        now += ticks(todo)[0]
        tail.on_tick(now)
        todo = tail.on_refreshed(tail.metadata, lac, now)
    assert tail.lac == 4
    assert ticks(tail.wait(now)) == [LIMITS.pause_ns_min]


def test_p24_answers_that_come_at_once_with_nothing_new_make_no_tight_loop():
    """P24 (#2052): a fenced ledger that is not closed is answered at once, for ever, by some bookies."""
    tail = Tail(metadata_of(), 3)
    todo, now, asked = tail.wait(0), 0, 0
    while now < 60 * SECOND:
        for bookie in polls(todo):
            asked += 1
            todo = tail.on_polled(bookie, 3, now)
        if looks(todo):
            todo = tail.on_refreshed(tail.metadata, 3, now)
        if not polls(todo):
            now += min(ticks(todo), default=SECOND)
            todo = tail.on_tick(now)
    assert asked < 250
    assert tail.is_waiting  # and it does not end either: fenced is not closed
    closed = tail.metadata.closed(3, 100)
    tail.on_refreshed(tail.metadata, 3, now)
    assert looks(tail.on_metadata_changed(now)) == 1
    tail.on_refreshed(closed, 3, now)
    assert tail.is_closed
    assert not tail.is_waiting


@pytest.mark.parametrize("lac", [None, -1, 2, 3, ENTRY_ID_MAX])
def test_only_a_higher_lac_is_news_and_infinity_is_ignored(lac):
    """§2.7: watchers of a fenced ledger get "infinite LAC"."""
    tail = Tail(metadata_of(), 3)
    tail.wait(0)
    tail.on_polled("b0", lac, LIMITS.poll_ns)
    assert (tail.lac, tail.is_waiting) == (3, True)


def test_poll_that_ended_without_news_is_sent_again_at_once():
    tail = Tail(metadata_of((1, 1, 1)), 3)
    tail.wait(0)
    assert polls(tail.on_polled("b0", 3, LIMITS.poll_ns)) == ["b0"]


def test_everything_is_looked_at_again_now_and_then_though_polls_are_out():
    """A bookie that left the ensemble hears of nothing any more, and does not know."""
    tail = Tail(metadata_of(), 3)
    assert ticks(tail.wait(0)) == [LIMITS.look_ns]
    todo = tail.on_tick(LIMITS.look_ns)
    assert looks(todo) == 1
    assert looks(tail.on_tick(LIMITS.look_ns + 1)) == 0  # one look at a time
    changed = metadata_of(bookies=("b0", "b7", "b2"))
    assert polls(tail.on_refreshed(changed, 3, LIMITS.look_ns + 2)) == ["b7"]
    assert tail.lac == 3


def test_metadata_that_changed_without_a_waiting_caller_are_read_before_the_next_wait():
    tail = Tail(metadata_of(), 3)
    tail.wait(0)
    hears(tail, "b0", 4, 1)
    assert tail.on_metadata_changed(2) == []  # no caller waits now
    assert looks(tail.wait(3)) == 1
    assert looks(tail.wait(4)) == 0


def test_metadata_that_changed_during_a_look_are_looked_at_again():
    tail = Tail(metadata_of(), 3)
    tail.wait(0)
    assert looks(tail.on_metadata_changed(1)) == 1
    assert looks(tail.on_metadata_changed(2)) == 0
    assert looks(tail.on_refreshed(tail.metadata, 3, 3)) == 1
    assert looks(tail.on_refreshed(tail.metadata, 3, 4)) == 0


def test_look_that_found_a_higher_lac_is_news():
    tail = Tail(metadata_of(), 3)
    tail.wait(0)
    tail.on_metadata_changed(1)
    tail.on_refreshed(tail.metadata, 4, 2)
    assert (tail.lac, tail.is_waiting) == (4, False)


def test_failed_look_is_tried_again():
    tail = Tail(metadata_of((1, 1, 1)), 3)
    tail.wait(0)
    assert looks(tail.on_metadata_changed(1)) == 1
    todo = tail.on_refresh_failed(AWAY, 2, may_pass=True)
    assert looks(tail.on_tick(2 + ticks(todo)[0])) == 1


def test_requests_stay_bounded_whatever_comes_in_any_order():
    """At most one poll a bookie and one look are ever under way."""
    for order in itertools.permutations(range(4)):
        tail = Tail(metadata_of((3, 2, 2)), -1)
        under_way, looking, now, lac = {"polls": set(), "look": 0}, 0, 0, -1
        todo = tail.wait(now)
        for round_number in range(40):
            for bookie in polls(todo):
                assert bookie not in under_way["polls"]
                under_way["polls"].add(bookie)
            looking += looks(todo)
            assert looking <= 1
            now += SECOND
            event = order[round_number % 4]
            if event == 0 and under_way["polls"]:
                lac += 1
                todo = hears(tail, under_way["polls"].pop(), lac, now) + tail.wait(now)
            elif event == 1 and under_way["polls"]:
                todo = tail.on_poll_failed(under_way["polls"].pop(), now)
            elif event == 2 and looking:
                looking = 0
                todo = tail.on_refreshed(tail.metadata, lac, now) + tail.wait(now)
            else:
                todo = tail.on_tick(now) + tail.on_metadata_changed(now)


def test_hint_that_is_not_proven_is_not_believed_and_its_bookie_is_left_alone():
    """A poll's LAC has no digest. One bookie of three said 1000, and the reader read up to there."""
    tail = Tail(metadata_of(), 3)
    tail.wait(0)
    todo = tail.on_polled("b0", 1000, 1)
    assert [type(effect) for effect in todo if not isinstance(effect, effects.CallAfter)] == [effects.ProveLac]
    assert (tail.lac, tail.is_waiting) == (3, True)
    assert polls(tail.on_tick(2)) == []  # it owes an answer
    todo = tail.on_proven("b0", 3, 3)
    assert (tail.lac, tail.is_waiting) == (3, True)
    assert polls(todo) == ["b2"]
    assert looks(todo) == 1
    assert polls(tail.on_tick(3 + LIMITS.retry_ns)) == ["b0"]


@pytest.mark.parametrize("proven", [None, 2, 3])
def test_bookie_that_lies_for_ever_costs_few_requests(proven):
    tail = Tail(metadata_of((1, 1, 1)), 3)
    todo, now, requests = tail.wait(0), 0, 0
    while now < 60 * SECOND:
        for bookie in polls(todo):
            tail.on_polled(bookie, 1000, now)
            todo = tail.on_proven(bookie, proven, now)
            requests += 2
        while looks(todo):
            requests += 1
            todo = tail.on_refreshed(tail.metadata, 3, now)
        now += min(ticks(todo))
        todo = tail.on_tick(now)
    assert tail.lac == 3
    assert requests < 100


def test_what_is_proven_counts_though_it_is_less_than_the_hint():
    tail = Tail(metadata_of(), 3)
    tail.wait(0)
    tail.on_polled("b0", 1000, 1)
    tail.on_proven("b0", 5, 2)
    assert (tail.lac, tail.is_waiting) == (5, False)


def failing(tail, todo, begin_ns, end_ns, answers=()):
    """Let every look fail until a time; bookies in `answers` answer their polls meanwhile. Return the last effects."""
    now = begin_ns
    while now < end_ns and not any(isinstance(effect, effects.Fail) for effect in todo):
        if looks(todo):
            todo = tail.on_refresh_failed(AWAY, now, may_pass=True)
            continue
        for bookie in polls(todo):
            if bookie not in answers:
                todo = tail.on_poll_failed(bookie, now)
        now += min(ticks(todo))
        for bookie in answers:
            tail.on_polled(bookie, 3, now)
        todo = tail.on_tick(now)
    return todo, now


def test_looks_that_fail_are_repeated_with_pauses_until_the_patience_is_over():
    """Two of three bookies restarted together for 0.3 s, and every follower of the ledger ended."""
    tail = Tail(metadata_of(), 3)
    tail.wait(0)
    todo, now = failing(tail, tail.on_metadata_changed(0), 0, 50 * SECOND)
    assert not any(isinstance(effect, effects.Fail) for effect in todo)
    tail.on_refreshed(tail.metadata, 3, now)  # a bookie answered: the patience begins again
    todo, ended = failing(tail, tail.on_metadata_changed(now), now, now + 200 * SECOND)
    assert todo == [effects.Fail(AWAY)]
    assert LIMITS.patience_ns < ended - now < LIMITS.patience_ns + 2 * LIMITS.look_ns


def test_looks_are_rare_again_once_one_has_succeeded():
    tail = Tail(metadata_of(), 3)
    tail.wait(0)
    tail.on_metadata_changed(0)
    assert ticks(tail.on_refresh_failed(AWAY, 0, may_pass=True)) == [LIMITS.pause_ns_min]
    assert ticks(tail.on_refreshed(tail.metadata, 3, SECOND)) == [LIMITS.look_ns]


def test_tail_lives_on_bookies_alone_while_the_metadata_store_is_away():
    """Its writer does not notice the store's absence either."""
    tail = Tail(metadata_of(), 3)
    tail.wait(0)
    todo, _ = failing(tail, tail.on_metadata_changed(0), 0, 3600 * SECOND, answers=("b0", "b1"))
    assert not any(isinstance(effect, effects.Fail) for effect in todo)


def test_look_that_failed_for_good_ends_the_tail_at_once():
    tail = Tail(metadata_of(), 3)
    tail.wait(0)
    tail.on_metadata_changed(1)
    gone = NoSuchLedger("deleted")
    assert tail.on_refresh_failed(gone, 2, may_pass=False) == [effects.Fail(gone)]


def test_pauses_double_up_to_their_limit():
    tail = Tail(metadata_of((1, 1, 1)), -1)
    tail.wait(0)
    todo = tail.on_poll_failed("b0", 0)
    now, pauses = 0, []
    while LIMITS.pause_ns_max not in pauses:
        (delay,) = ticks(todo)
        pauses.append(delay)
        now += delay
        tail.on_tick(now)
        tail.on_poll_failed("b0", now)
        todo = tail.on_refreshed(tail.metadata, -1, now)
    expected = [LIMITS.pause_ns_min]
    while expected[-1] < LIMITS.pause_ns_max:
        expected.append(min(2 * expected[-1], LIMITS.pause_ns_max))
    assert pauses == expected


def test_nothing_is_asked_while_no_caller_waits_or_the_ledger_is_closed():
    tail = Tail(metadata_of(), -1)
    assert tail.on_tick(0) == tail.on_metadata_changed(0) == []
    assert not tail.is_waiting
    tail.wait(0)
    assert tail.is_waiting
    assert tail.on_refreshed(metadata_of().closed(3, 30), 3, 0) == []
    assert (tail.is_closed, tail.is_waiting, tail.lac) == (True, False, 3)
    assert tail.wait(0) == []


def test_news_end_the_wait_and_the_next_wait_asks_again():
    tail = Tail(metadata_of((1, 1, 1)), 4)
    assert polls(tail.wait(0)) == ["b0"]
    hears(tail, "b0", 7, SECOND)
    assert (tail.lac, tail.is_waiting) == (7, False)
    (poll,) = [effect for effect in tail.wait(2 * SECOND) if isinstance(effect, effects.LongPoll)]
    assert poll == effects.LongPoll("b0", 7, LIMITS.poll_ns)


def test_search_for_bookies_begins_at_the_readers_own_slot():
    """Readers spread over an ensemble."""
    for first_slot in range(5):
        tail = Tail(metadata_of((5, 5, 5)), -1, first_slot=first_slot)
        assert polls(tail.wait(0)) == [f"b{first_slot}"]


def test_bookie_that_answers_polls_keeps_the_patience_though_looks_fail():
    tail = Tail(metadata_of((1, 1, 1)), -1)
    tail.wait(0)
    heard = LIMITS.patience_ns - SECOND
    tail.on_polled("b0", None, heard)
    todo = tail.on_refresh_failed(AWAY, heard + LIMITS.patience_ns, may_pass=True)
    assert effects.Fail(AWAY) not in todo
    assert tail.on_refresh_failed(AWAY, heard + LIMITS.patience_ns + 1, may_pass=True) == [effects.Fail(AWAY)]


def test_poll_that_took_half_its_time_is_sent_again_at_once_and_a_shorter_one_after_a_pause():
    for took, again in ((LIMITS.poll_ns // 2, ["b0"]), (LIMITS.poll_ns // 2 - 1, [])):
        tail = Tail(metadata_of((1, 1, 1)), -1)
        tail.wait(0)
        assert polls(tail.on_polled("b0", -1, took)) == again


@pytest.mark.parametrize("hint", [2**63 - 1, ENTRY_ID_MAX + 1], ids=["infinite", "above all ids"])
def test_bookie_with_an_impossible_hint_is_neither_asked_for_proof_nor_polled_for_a_while(hint):
    tail = Tail(metadata_of((1, 1, 1)), 5)
    tail.wait(0)
    todo = tail.on_polled("b0", hint, 1)
    assert effects.ProveLac("b0") not in todo
    assert (polls(todo), ticks(todo)) == ([], [LIMITS.pause_ns_min])


def test_proof_that_comes_after_another_bookies_news_delays_no_poll_and_needs_no_look():
    tail = Tail(metadata_of(), 5)
    tail.wait(0)
    for bookie in ("b0", "b1"):
        tail.on_polled(bookie, 9, 1)
    for bookie in ("b1", "b0"):
        tail.on_proven(bookie, 9, 2)
    todo = tail.wait(3)
    assert (polls(todo), looks(todo)) == (["b0", "b1"], 0)


def test_hint_that_another_bookie_has_proven_already_needs_no_proof_and_delays_no_poll():
    tail = Tail(metadata_of(), 5)
    tail.wait(0)
    hears(tail, "b0", 9, 1)
    tail.wait(2)
    todo = tail.on_polled("b1", 9, 3)
    assert effects.ProveLac("b1") not in todo
    assert (polls(todo), looks(todo)) == (["b1"], 0)
