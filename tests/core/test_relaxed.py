"""Relaxed durability at the writer: the LAC rule against its definition, and the core event by event."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from bkspark.core import effects
from bkspark.core.limits import WriterLimits
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.core.pipeline import WriterStart, WriterState
from bkspark.core.relaxed import RelaxedDurability, confirmed_up_to
from bkspark.core.slots import Phase
from bkspark.core.striping import write_set
from bkspark.core.writer import WriterCore
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import ConfigurationError, NotEnoughBookies
from bkspark.wire.digest import SealedEntries
from bkspark.wire.status import Status

QUORUMS = [(e, w, a) for e in range(1, 7) for w in range(1, e + 1) for a in range(1, w + 1)]
SECOND_NS = 1_000_000_000
LIMITS = WriterLimits.of(WriterOptions())


def by_definition(last_synced, size, write_quorum, ack_quorum):
    """Go from entry to entry until one is synced by fewer than Qa of the bookies that store it."""
    entry = 0
    while sum(last_synced[slot] >= entry for slot in write_set(entry, size, write_quorum)) >= ack_quorum:
        entry += 1
    return entry - 1


@pytest.mark.parametrize(("size", "write_quorum", "ack_quorum"), QUORUMS)
def test_lac_is_the_longest_prefix_that_qa_bookies_of_each_write_set_have_synced(size, write_quorum, ack_quorum):
    """LAC = max(ascending LastAddSynced[0 .. Qw - Qa]), generalised for E > Qw; all E <= 6."""
    source = random.Random(size * 100 + write_quorum * 10 + ack_quorum)
    states = list(itertools.product(range(-1, 3), repeat=size)) if size <= 4 else []
    states += [[source.randrange(-1, 20) for _ in range(size)] for _ in range(60)]
    for last_synced in states:
        expected = by_definition(last_synced, size, write_quorum, ack_quorum)
        assert confirmed_up_to(last_synced, write_quorum, ack_quorum) == expected, last_synced


@pytest.mark.parametrize(("write_quorum", "ack_quorum"), [(w, a) for e, w, a in QUORUMS if e == w])
def test_lac_of_a_ledger_that_is_not_striped_is_the_proposals(write_quorum, ack_quorum):
    """The proposal: sort LastAddSynced ascending; the LAC is the highest of the first (Qw - Qa) + 1."""
    source = random.Random(write_quorum * 10 + ack_quorum)
    for _ in range(200):
        last_synced = [source.randrange(-1, 50) for _ in range(write_quorum)]
        assert confirmed_up_to(last_synced, write_quorum, ack_quorum) == max(
            sorted(last_synced)[: write_quorum - ack_quorum + 1]
        )


class Writer:
    """A core, driven by hand; its log holds every effect."""

    def __init__(self, quorums=(3, 3, 2), force_interval_s=0.0, **options):
        bookies = tuple(f"b{number}" for number in range(1, quorums[0] + 1))
        metadata = LedgerMetadata(*quorums, (Fragment(0, bookies),))
        relaxed = RelaxedDurability(force_interval_s=force_interval_s, **options)
        self.core = WriterCore(WriterStart(5, metadata, 0), random.Random(1), relaxed=relaxed)
        self.log = []

    def take(self, done):
        self.log += done
        return list(done)

    def add(self, count=1):
        sealed = SealedEntries.framed(memoryview(bytes(count)), np.arange(count + 1), self.core.pending.next_entry)
        return self.take(self.core.add(sealed, count, 0))

    def reply(self, slot, *ids, synced=None, status=Status.EOK, bookie=None):
        bookie = bookie or self.core.slots.ensemble[slot]
        statuses = np.full(len(ids), status)
        return self.take(self.core.on_add_replies(slot, bookie, np.array(ids, np.int64), statuses, 0, synced))

    def forced(self, slot):
        """Answer the force that went to a slot last."""
        force = [it for it in self.log if isinstance(it, effects.Force) and it.slot == slot][-1]
        return self.take(self.core.on_forced(force, 0))

    def sync(self):
        return [effect.slot for effect in self.take(self.core.sync()) if isinstance(effect, effects.Force)]

    def fail(self, slot):
        return self.take(self.core.on_bookie_failed(slot, self.core.slots.ensemble[slot], 0))

    def writable(self, *others):
        """Answer FindBookies, and the compare-and-set that follows."""
        done = self.take(self.core.on_writable_bookies({*self.core.slots.ensemble, *others}))
        for effect in [effect for effect in done if isinstance(effect, effects.WriteMetadata)]:
            done += self.take(self.core.on_metadata_written(effect.metadata, effect.expected_version + 1))
        return done


def sent(done, slot):
    ids = []
    for effect in done:
        if isinstance(effect, effects.SendAdds) and effect.slot == slot:
            positions = range(len(effect.entries)) if effect.positions is None else effect.positions.tolist()
            ids += [effect.entries.first_entry + position for position in positions]
    return ids


def test_add_is_acknowledged_from_page_caches_and_confirmed_only_when_synced():
    writer = Writer()
    writer.add(3)
    writer.reply(0, 0, 1, 2, synced=-1)
    writer.reply(1, 0, 1, 2, synced=-1)
    assert (writer.core.pending.acknowledged, writer.core.lac) == (2, -1)
    writer.reply(0, synced=2)
    assert writer.core.lac == -1
    assert writer.reply(1, synced=1) == [effects.Confirm(1)]
    assert writer.core.lac == 1


def test_lac_stays_below_acknowledgements_whatever_bookies_report():
    writer = Writer()
    writer.add(3)
    writer.reply(0, 0, synced=9)
    writer.reply(1, 0, synced=9)
    assert (writer.core.pending.acknowledged, writer.core.lac) == (0, 0)


def test_force_answered_by_qa_bookies_confirms_what_they_had_acknowledged():
    writer = Writer()
    writer.add(3)
    for slot in range(3):
        writer.reply(slot, 0, 1, 2)
    assert writer.sync() == [0, 1, 2]
    writer.add(1)
    writer.reply(0, 3)
    writer.reply(1, 3)
    writer.forced(0)
    assert writer.core.lac == -1
    writer.forced(1)
    assert writer.core.lac == 2


def test_answer_that_was_made_before_a_force_takes_back_nothing_that_the_force_synced():
    writer = Writer()
    writer.add(3)
    for slot in range(3):
        writer.reply(slot, 0, 1, 2, synced=-1)
    writer.sync()
    writer.forced(0)
    writer.reply(0, synced=0)
    assert writer.core.lac == -1
    assert writer.forced(1) == [effects.Confirm(2)]


def test_bookie_that_is_left_out_during_a_force_keeps_no_later_force_waiting():
    writer = Writer()
    writer.add()
    for slot in (0, 1):
        writer.reply(slot, 0)
    assert writer.sync() == [0, 1, 2]
    writer.take(writer.core.on_tick(LIMITS.hold_back_ns_max + 1, congested=[2]))
    assert writer.core.slots.all[2].phase is Phase.LEFT_OUT
    for slot in (0, 1):
        writer.forced(slot)
    assert writer.core.lac == 0
    writer.add()
    for slot in (0, 1):
        writer.reply(slot, 1)
    assert writer.sync() == [0, 1]


def test_sync_of_what_came_during_a_force_asks_again():
    writer = Writer((1, 1, 1))
    writer.add()
    writer.reply(0, 0)
    assert writer.sync() == [0]
    writer.add()
    writer.reply(0, 1)
    assert writer.sync() == []
    assert writer.forced(0) == [effects.Confirm(0), effects.Force(0, "b1", 2)]
    assert writer.forced(0) == [effects.Confirm(1)]


def test_bookie_that_has_not_acknowledged_all_vouches_only_for_what_it_had():
    writer = Writer((2, 2, 1))
    writer.add(2)
    writer.reply(0, 0)
    writer.reply(1, 0, 1)
    writer.sync()
    writer.forced(0)
    assert writer.core.lac == 0
    writer.forced(1)
    assert writer.core.lac == 1


def test_bookie_that_refused_an_entry_vouches_for_nothing():
    writer = Writer((2, 2, 1))
    writer.add(2)
    writer.reply(1, 0, 1)
    writer.reply(0, 0, status=Status.ETOOMANYREQUESTS)
    writer.reply(0, 1)
    writer.sync()
    writer.forced(0)
    assert writer.core.lac == -1


def test_lost_bookie_is_left_out_and_not_replaced_by_default():
    """I14: ensemble change is forbidden."""
    writer = Writer()
    writer.add(2)
    for slot in range(3):
        writer.reply(slot, 0, 1)
    writer.fail(2)
    done = writer.writable("b4")
    assert not any(isinstance(effect, effects.WriteMetadata) for effect in done)
    assert writer.core.slots.ensemble == ("b1", "b2", "b3")
    assert writer.sync() == [0, 1]
    writer.forced(0)
    writer.forced(1)
    assert writer.core.lac == 1


def test_writer_fails_when_fewer_than_qa_bookies_of_a_write_set_are_left():
    writer = Writer((3, 3, 3))
    writer.add()
    writer.fail(0)
    writer.writable("b4")
    assert writer.core.state is WriterState.FAILED
    assert isinstance(writer.core.error, NotEnoughBookies)


def test_connection_lost_with_entries_acknowledged_and_not_synced_counts_as_a_failure():
    writer = Writer()
    writer.add()
    writer.reply(0, 0, synced=-1)
    assert writer.core.has_outstanding(0)
    writer.reply(0, synced=0)
    assert not writer.core.has_outstanding(0)


def left_out_and_back(writer, slot, at_s):
    """A bookie goes away with entries that it had acknowledged, answers a probe, and passes its trial."""
    core, bookie = writer.core, writer.core.slots.ensemble[slot]
    writer.fail(slot)
    writer.take(core.on_writable_bookies(set(core.slots.ensemble) - {bookie}))
    if not core.pending.count:
        # A probe is an entry; one that all others have will do.
        writer.add()
        for other in {0, 1, 2} - {slot}:
            writer.reply(other, core.pending.next_entry - 1)
    writer.take(core.on_tick(at_s * SECOND_NS))
    now_ns = at_s * SECOND_NS + LIMITS.probe_pause_ns_min
    (probe,) = (it for it in writer.take(core.on_tick(now_ns)) if isinstance(it, effects.SendAdds) and it.slot == slot)
    ids = np.arange(len(probe.entries))[probe.positions] + probe.entries.first_entry
    writer.take(core.on_add_replies(slot, bookie, ids, np.zeros(1, np.int32), now_ns, -1))
    writer.take(core.on_tick(now_ns + LIMITS.trial_ns - 1))
    assert not core.slots.may_hold_back(slot)
    writer.take(core.on_tick(now_ns + LIMITS.trial_ns))
    assert core.slots.may_hold_back(slot)


def test_bookie_taken_back_does_not_vouch_for_what_it_may_have_lost():
    writer = Writer((3, 3, 2))
    writer.add(2)
    writer.reply(0, 0, 1)
    writer.reply(2, 0, 1)
    left_out_and_back(writer, 2, 2)
    writer.reply(1, 0)
    writer.sync()
    writer.forced(0)
    writer.forced(2)
    # Entry 1 is on bookie 0 for certain, on bookie 1 not yet, and bookie 2 may have lost both.
    assert writer.core.lac == -1
    writer.forced(1)
    assert writer.core.lac == 0


def test_sync_fails_when_what_was_acknowledged_may_be_lost_on_too_many_bookies():
    writer = Writer((3, 3, 2))
    writer.add()
    for slot in range(3):
        writer.reply(slot, 0)
    left_out_and_back(writer, 1, 2)
    left_out_and_back(writer, 2, 4)
    for slot in writer.sync():
        writer.forced(slot)
    assert writer.core.lac == -1
    assert isinstance(writer.core.error, NotEnoughBookies)
    assert "cannot be synced" in str(writer.core.error)


def test_sync_waits_for_a_slow_bookie_that_makes_up_for_a_lost_one():
    writer = Writer((3, 3, 2))
    writer.add()
    for slot in (0, 2):
        writer.reply(slot, 0)
    writer.fail(2)
    writer.take(writer.core.on_writable_bookies({"b1", "b2"}))
    for slot in writer.sync():
        writer.forced(slot)
    assert writer.core.state is WriterState.ACTIVE
    writer.reply(1, 0)
    forces = [effect for effect in writer.take(writer.core.on_tick(1)) if isinstance(effect, effects.Force)]
    for force in forces:
        writer.forced(force.slot)
    assert writer.core.lac == 0


def test_ensemble_change_begins_after_synced_entries_and_resends_the_others():
    writer = Writer(changes_ensemble=True)
    writer.add(2)
    writer.add(2)
    for slot in range(3):
        writer.reply(slot, 0, 1, 2, 3, synced=0)
    assert (writer.core.pending.acknowledged, writer.core.lac) == (3, 0)
    writer.fail(2)
    done = writer.writable("b4")
    assert writer.core.change.fragments[-1] == Fragment(1, ("b1", "b2", "b4"))
    assert sent(done, 2) == [1, 2, 3]
    # The new bookie has nothing yet, whatever the old one had synced.
    writer.reply(0, synced=3)
    assert writer.core.lac == 0
    writer.reply(2, 1, 2, 3, synced=2)
    assert writer.core.lac == 2


def test_nothing_is_confirmed_while_the_ensemble_changes():
    writer = Writer(changes_ensemble=True)
    writer.add()
    for slot in range(3):
        writer.reply(slot, 0)
    writer.fail(2)
    writer.reply(0, synced=0)
    writer.reply(1, synced=0)
    assert writer.core.lac == -1
    writer.writable("b4")
    assert writer.core.lac == 0


def test_entries_are_kept_until_synced_where_bookies_are_replaced_and_much_of_it_is_forced():
    writer = Writer((1, 1, 1), changes_ensemble=True, unsynced_bytes_max=10)
    for _ in range(5):
        writer.add()
        writer.reply(0, writer.core.pending.next_entry - 1)
    assert writer.core.pending.kept_bytes == 5
    assert effects.Force(0, "b1", 1) in writer.add()
    writer.forced(0)
    assert (writer.core.lac, writer.core.pending.kept_bytes) == (4, 1)


def test_nothing_is_kept_after_acknowledgements_by_default():
    writer = Writer((1, 1, 1))
    writer.add(4)
    writer.reply(0, 0, 1, 2, 3)
    assert writer.core.pending.kept_bytes == 0


def test_striped_ledger_is_confirmed_by_write_set():
    writer = Writer((3, 2, 2))
    writer.add(4)
    writer.reply(0, 0, 2, 3)
    writer.reply(1, 0, 1, 3)
    writer.reply(2, 1, 2)
    assert writer.core.pending.acknowledged == 3
    writer.sync()
    writer.forced(0)
    writer.forced(1)
    assert writer.core.lac == 0
    writer.forced(2)
    assert writer.core.lac == 3


def test_p35_ledger_is_closed_at_what_is_synced():
    writer = Writer((1, 1, 1))
    writer.add(2)
    writer.reply(0, 0, 1, synced=1)
    written = next(effect for effect in writer.core.close() if isinstance(effect, effects.WriteMetadata))
    assert (written.metadata.last_entry, written.metadata.length) == (1, 2)


def test_bookies_are_forced_when_the_lac_has_stood_still_for_long_though_there_is_more():
    writer = Writer((1, 1, 1), force_interval_s=1.0)
    writer.take(writer.core.on_tick(5 * SECOND_NS))
    writer.add()
    writer.reply(0, 0)
    assert writer.take(writer.core.on_tick(5 * SECOND_NS + 1)) == []
    assert writer.take(writer.core.on_tick(6 * SECOND_NS + 1)) == [effects.Force(0, "b1", 1)]
    writer.forced(0)
    assert writer.take(writer.core.on_tick(9 * SECOND_NS)) == []


@pytest.mark.parametrize("options", [{"unsynced_bytes_max": 0}, {"force_interval_s": -1.0}])
def test_options_out_of_range_are_refused_by_name(options):
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        RelaxedDurability(**options)


def test_answer_to_an_earlier_force_counts_for_nothing():
    writer = Writer((2, 2, 1))
    writer.add()
    writer.reply(0, 0)
    writer.reply(1, 0)
    first = next(effect for effect in writer.take(writer.core.sync()) if isinstance(effect, effects.Force))
    writer.take(writer.core.on_force_lost(effects.Force(1, "b2", first.number), 0))
    writer.take(writer.core.on_force_lost(first, 0))
    writer.add()
    writer.reply(0, 1)
    assert [effect.number for effect in writer.log if isinstance(effect, effects.Force)] == [1, 1, 2, 2]
    writer.take(writer.core.on_forced(first, 0))
    assert writer.core.lac == -1
    writer.forced(0)
    assert writer.core.lac == 0


def test_time_without_progress_counts_from_the_last_confirmation():
    writer = Writer((1, 1, 1), force_interval_s=1.0)
    writer.take(writer.core.on_tick(5 * SECOND_NS))
    writer.add()
    writer.reply(0, 0)
    assert writer.take(writer.core.on_tick(6 * SECOND_NS - 1)) == []
    (force,) = writer.take(writer.core.on_tick(6 * SECOND_NS))
    writer.add()
    writer.reply(0, 1)
    assert writer.take(writer.core.on_forced(force, 7 * SECOND_NS)) == [effects.Confirm(0)]
    assert writer.take(writer.core.on_tick(8 * SECOND_NS - 1)) == []
    assert writer.take(writer.core.on_tick(8 * SECOND_NS)) == [effects.Force(0, "b1", 2)]


def test_bookies_are_not_forced_for_time_where_no_interval_is_set():
    writer = Writer((1, 1, 1), force_interval_s=0.0)
    writer.add()
    writer.reply(0, 0)
    assert writer.take(writer.core.on_tick(1000 * SECOND_NS)) == []
    assert writer.sync() == [0]


def test_answer_to_a_force_of_a_bookie_that_was_replaced_counts_for_nothing():
    writer = Writer((1, 1, 1))
    writer.add()
    writer.reply(0, 0)
    writer.sync()
    force = next(effect for effect in writer.log if isinstance(effect, effects.Force))
    for wrong in (effects.Force(0, "b9", force.number), effects.Force(0, "b1", force.number + 1)):
        assert writer.core.on_forced(wrong, 0) == []
        assert writer.core.on_force_lost(wrong, 0) == []
    assert writer.core.lac == -1
    assert writer.core.on_forced(force, 0) == [effects.Confirm(0)]


def test_force_that_went_to_a_bookie_that_is_replaced_delays_no_later_one():
    """It refuses load and lives: nothing else says that it will not answer the force."""
    writer = Writer(changes_ensemble=True)
    writer.add()
    writer.reply(0, 0)
    writer.reply(1, 0)
    writer.reply(2, 0, status=Status.ETOOMANYREQUESTS)
    assert writer.sync() == [0, 1, 2]
    writer.take(writer.core.on_tick(6 * SECOND_NS))
    writer.writable("b4")
    assert writer.core.slots.ensemble == ("b1", "b2", "b4")
    writer.forced(0)
    writer.forced(1)
    assert writer.core.lac == 0
    writer.add()
    for slot in range(3):
        writer.reply(slot, 1)
    assert writer.sync() == [0, 1, 2]


def test_what_a_replaced_bookie_says_it_synced_counts_for_nothing():
    """Its answer comes when another bookie has its slot: metadata name that one, which has synced nothing yet."""
    writer = Writer(changes_ensemble=True)
    writer.add(2)
    writer.reply(0, 0, 1)
    writer.reply(1, 0, 1, synced=1)
    writer.reply(2, 0, 1)
    writer.fail(0)
    writer.writable("b4")
    assert writer.core.slots.ensemble[0] == "b4"
    assert writer.reply(0, synced=1, bookie="b1") == []
    writer.reply(0, 0, 1, synced=-1)
    assert writer.core.lac == -1
    assert writer.reply(0, synced=1) == [effects.Confirm(1)]


def test_answer_to_a_force_after_the_loss_of_its_connection_vouches_for_nothing():
    writer = Writer()
    writer.add(1)
    for slot in range(3):
        writer.reply(slot, 0)
    assert writer.sync() == [0, 1, 2]
    writer.fail(2)
    writer.forced(2)
    assert writer.core.slots.all[2].last_synced == -1
    assert writer.core.lac == -1
