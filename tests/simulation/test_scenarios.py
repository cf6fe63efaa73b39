"""The historic bugs of replication as scenarios on the product's cores: protocol and client (P), hazards (X).

Scenarios of bookies are in tests/bookie, those that need the whole client in tests/ledger: `python -m tests.scenarios`
lists them all. P32 is played without the TLS that this client does not have.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from bkspark.core import effects
from bkspark.core.last_confirmed import LastConfirmed
from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState
from bkspark.core.pipeline import WriterStart, WriterState
from bkspark.core.reader import GroupRead
from bkspark.core.recovery import RecoveryCore, RecoveryState
from bkspark.core.recovery_window import Response
from bkspark.core.writer import WriterCore
from bkspark.errors import BookieUnavailable, BookKeeperError, DigestMismatch, LedgerFenced, NoSuchEntry, ReadFailed
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.memory import Fault, MemoryStore
from bkspark.metadata.uri import MetadataUri
from bkspark.wire.status import Status
from tests.simulation.owner import SimulatedEntries
from tests.simulation.plan import Plan, Step, Trigger, plan_of
from tests.simulation.planted import resent_with_other_bytes
from tests.simulation.play import Play
from tests.simulation.schedule import run_plan
from tests.simulation.small_model import AWAY, FirstOnes

URI = "zk+flat://127.0.0.1:2181/ledgers"


def recovery_of(*fragments: Fragment, quorums: tuple[int, int, int] = (3, 3, 2)) -> RecoveryCore:
    core = RecoveryCore(1, LedgerMetadata(*quorums, fragments).in_recovery(), 1)
    core.start()
    return core


def owner_of(quorums: tuple[int, int, int], adds: int) -> WriterCore:
    bookies = tuple(f"b{i + 1}" for i in range(quorums[0]))
    core = WriterCore(WriterStart(1, LedgerMetadata(*quorums, (Fragment(0, bookies),)), 0), FirstOnes())
    for entry_id in range(adds):
        core.add(SimulatedEntries.of(entry_id, [b"x"], entry_id, core.lac), 1, 0)
    return core


def answer(core: WriterCore, slot: int, *ids: int, status: Status = Status.EOK) -> list[effects.WriterEffect]:
    statuses = np.full(len(ids), status, np.int32)
    return core.on_add_replies(slot, core.slots.ensemble[slot], np.array(ids, np.int64), statuses, 0)


def read_answer(
    core: RecoveryCore, slot: int, entry_id: int, answer: Response, error: BookKeeperError | None = None
) -> list[effects.WriterEffect]:
    """What the bookie in a slot says of one entry; all entries are one byte."""
    ids = np.array([entry_id])
    return core.on_read_answers(slot, ids, np.array([answer], np.uint8), [b"x"], ids + 1, error)


def test_p01_recovery_reads_fence() -> None:
    """The fence to b3 is lost, coverage holds without it: b3 counts in the negative vote, so its read fences it."""
    play = Play()
    play.add()
    play.begin_recovery()
    play.deliver("fence", "recoverer", 0)
    play.deliver("add", "owner", 1)
    play.deliver("fence", "recoverer", 1)
    play.drop("fence", "recoverer", 2)
    play.deliver("fenced")
    play.finish_recovery()
    play.finish()
    assert play.stored.is_closed
    assert play.acknowledged <= play.stored.last_entry


def test_p02_recovery_starts_at_the_last_fragment_whatever_its_bookies_hold() -> None:
    core = recovery_of(Fragment(0, ("b1", "b2", "b3")), Fragment(2000, ("b4", "b5", "b6")))
    core.on_fence_answer(0, Response.NEGATIVE)
    reads = core.on_fence_answer(1, Response.NEGATIVE)
    assert core.lac == 1999
    assert min(int(read.entry_ids.min()) for read in reads) == 2000


def rewritten_to_a_spare() -> Play:
    """Entry 0 is acknowledged by b2 and b3; a recoverer rewrites it, b1 fails and the spare b4 takes its place."""
    play = Play(bookies=4)
    play.add()
    play.drop("add", "owner", 0)
    play.deliver("add", "owner")
    play.deliver("added", "owner")
    assert play.acknowledged == 0
    play.begin_recovery()
    play.deliver("fence")
    play.deliver("fenced")
    while not play.waiting("add", "rewriter"):
        play.deliver("read") if play.waiting("read") else play.deliver("was read")
    play.lose("add", "rewriter", 0)
    play.deliver("failed", "rewriter", 0)
    play.deliver("find", "rewriter")
    return play


def test_p03_recovery_publishes_no_ensemble_before_it_closes() -> None:
    play = rewritten_to_a_spare()
    assert play.stored.last_fragment.bookies == ("b1", "b2", "b3")
    assert not play.state.writes
    play.drop("add", "rewriter")
    play.begin_recovery()
    play.finish_recovery()
    assert play.stored.last_entry == 0


def test_p04_recovery_reads_from_the_ensemble_it_began_with() -> None:
    core = recovery_of(Fragment(0, ("b1", "b2", "b3")))
    core.on_ensemble_changed((Fragment(0, ("b4", "b5", "b6")),))
    core.on_fence_answer(0, Response.NEGATIVE)
    reads = core.on_fence_answer(1, Response.NEGATIVE)
    assert {read.bookie for read in reads} <= {"b1", "b2", "b3"}


@pytest.mark.parametrize("state", [LedgerState.IN_RECOVERY, LedgerState.CLOSED])
def test_p05_owner_never_writes_over_a_recovery(state: LedgerState) -> None:
    core = owner_of((3, 3, 2), 1)
    core.on_bookie_failed(2, "b3", 0)
    core.on_writable_bookies({"b4"})
    theirs = core.metadata.in_recovery() if state is LedgerState.IN_RECOVERY else core.metadata.closed(-1, 0)
    done = core.on_metadata_conflict(theirs, 1)
    assert not any(isinstance(effect, effects.WriteMetadata) for effect in done)
    assert core.state is WriterState.FAILED


def test_p06_renamed_bookies_of_an_older_fragment_are_merged() -> None:
    core = owner_of((3, 3, 2), 2)
    answer(core, 0, 0)
    answer(core, 1, 0)
    core.on_bookie_failed(2, "b3", 0)
    (write,) = core.on_writable_bookies({"b4"})
    core.on_metadata_written(write.metadata, 1)
    core.on_bookie_failed(2, "b4", 0)
    (write,) = core.on_writable_bookies({"b5"})
    repaired = replace(core.metadata, fragments=(Fragment(0, ("b1", "b2", "b9")), core.metadata.fragments[1]))
    core.on_metadata_conflict(repaired, 2)
    (write,) = core.on_writable_bookies({"b5"})
    assert write.expected_version == 2
    assert write.metadata.fragments[0].bookies == ("b1", "b2", "b9")
    assert write.metadata.state is LedgerState.OPEN


def test_p07_failed_rewrite_leaves_the_ledger_in_recovery() -> None:
    """E = Qw = Qa = 2: one replica is gone when the entry is written back, and there is no spare bookie."""
    play = Play((2, 2, 2), bookies=2)
    play.add()
    play.deliver("add")
    play.deliver("added")
    assert play.acknowledged == 0
    play.begin_recovery()
    play.deliver("fence")
    play.deliver("fenced")
    play.crash("b2")
    play.finish_recovery()
    assert play.stored.state is LedgerState.IN_RECOVERY


@pytest.mark.parametrize("dead", ["b1", "b2", "b3"])
def test_p08_recovery_ends_with_a_dead_bookie_in_the_last_ensemble(dead: str) -> None:
    play = Play(bookies=4)
    play.add()
    play.deliver("add")
    play.deliver("added")
    play.crash(dead)
    play.begin_recovery()
    play.finish_recovery()
    assert (play.stored.is_closed, play.stored.last_entry) == (True, 0)


def test_p09_the_end_needs_no_word_from_a_bookie_that_never_answers() -> None:
    play = Play()
    play.begin_recovery()
    play.deliver("fence", "recoverer", 0)
    play.deliver("fence", "recoverer", 1)
    play.deliver("fenced")
    for _ in range(3):
        for kind in ("read", "was read"):
            for slot in (0, 1):
                if play.waiting(kind, "recoverer", slot):
                    play.deliver(kind, "recoverer", slot)
    play.write("recoverer")
    assert (play.stored.is_closed, play.stored.last_entry) == (True, -1)


@pytest.mark.parametrize("error", [AWAY, ReadFailed("EIO"), DigestMismatch("torn")])
def test_p10_error_answers_cover_nothing(error: Exception) -> None:
    """All sets of answers for E <= 6: tests/core/test_striping_quorum.py."""
    core = recovery_of(Fragment(0, ("b1", "b2", "b3")))
    core.on_fence_answer(0, Response.NEGATIVE)
    core.on_fence_answer(1, Response.FAILED, error=error)
    assert core.state is RecoveryState.FENCING
    core.on_fence_answer(2, Response.NEGATIVE)
    assert core.state is RecoveryState.READING


def test_p11_new_bookies_get_nothing_and_nothing_is_released_before_the_change_is_stored() -> None:
    core = owner_of((3, 3, 2), 2)
    answer(core, 1, 0)
    core.on_bookie_failed(0, "b1", 0)
    done = [*core.on_writable_bookies({"b4"}), *answer(core, 2, 0)]
    assert [type(effect) for effect in done] == [effects.WriteMetadata]
    assert core.lac == -1
    done = core.on_metadata_written(done[0].metadata, 1)
    assert {effect.bookie for effect in done if isinstance(effect, effects.SendAdds)} == {"b4"}
    assert core.lac == 0


def test_p12_add_that_is_ripe_when_the_change_ends_is_released_then() -> None:
    core = owner_of((3, 3, 2), 1)
    core.on_bookie_failed(0, "b1", 0)
    answer(core, 1, 0)
    answer(core, 2, 0)
    (write,) = core.on_writable_bookies({"b4"})
    assert effects.Acknowledge(0) in core.on_metadata_written(write.metadata, 1)


def test_p13_votes_are_withdrawn_before_any_entry_is_released() -> None:
    """E2 Qw1 Qa1: entry 1 is complete after entry 0 when its only bookie dies."""
    core = owner_of((2, 1, 1), 2)
    answer(core, 1, 1)
    core.on_bookie_failed(1, "b2", 0)
    (write,) = core.on_writable_bookies({"b3"})
    answer(core, 0, 0)
    core.on_metadata_written(write.metadata, 1)
    assert core.lac == 0
    answer(core, 1, 1)
    assert core.lac == 1


def test_p14_overlapping_changes_leave_no_add_complete_on_bookies_that_are_gone() -> None:
    """E6 Qw2 Qa2: two bookies fail, then two others before the first change is stored."""
    core = owner_of((6, 2, 2), 6)
    for slot in range(6):
        held = [entry_id for entry_id in range(1, 6) if slot in (entry_id % 6, (entry_id + 1) % 6)]
        if held:
            answer(core, slot, *held)
    core.on_bookie_failed(0, "b1", 0)
    core.on_bookie_failed(3, "b4", 0)
    (write,) = core.on_writable_bookies({"b7", "b8", "b9"})
    core.on_bookie_failed(1, "b2", 0)
    core.on_bookie_failed(2, "b3", 0)
    core.on_metadata_written(write.metadata, 1)
    (write,) = core.on_writable_bookies({"b9", "b10"})
    core.on_metadata_written(write.metadata, 2)
    assert core.lac == -1
    assert write.metadata.last_fragment.first_entry == 0
    for slot in range(4):
        answer(core, slot, *[it for it in range(6) if slot in (it % 6, (it + 1) % 6)])
    assert core.lac == 5


def test_p15_answers_of_the_old_ensemble_move_no_lac_under_a_change() -> None:
    core = owner_of((2, 2, 1), 3)
    answer(core, 0, 0)
    assert core.lac == 0
    core.on_bookie_failed(0, "b1", 0)
    (write,) = core.on_writable_bookies({"b3"})
    answer(core, 1, 1, 2)
    assert core.lac == 0
    assert write.metadata.last_fragment.first_entry == 1
    core.on_metadata_written(write.metadata, 1)
    assert core.lac == 2


def test_p16_bookie_that_fails_twice_leaves_no_caller_stuck() -> None:
    core = owner_of((3, 3, 2), 1)
    core.on_bookie_failed(2, "b3", 0)
    (write,) = core.on_writable_bookies({"b4"})
    core.on_metadata_written(write.metadata, 1)
    assert core.on_bookie_failed(2, "b3", 0) == []
    answer(core, 0, 0)
    answer(core, 2, 0)
    assert (core.state, core.lac) == (WriterState.ACTIVE, 0)


def test_p17_failures_during_a_change_are_seen_to_after_it() -> None:
    core = owner_of((3, 3, 2), 1)
    core.on_bookie_failed(2, "b3", 0)
    (write,) = core.on_writable_bookies({"b4", "b5"})
    core.on_bookie_failed(1, "b2", 0)
    assert effects.FindBookies() in core.on_metadata_written(write.metadata, 1)
    (write,) = core.on_writable_bookies({"b4", "b5"})
    core.on_metadata_written(write.metadata, 2)
    assert core.state is WriterState.ACTIVE


def test_p18_fenced_during_a_change_ends_the_writer_once() -> None:
    core = owner_of((3, 3, 2), 1)
    core.on_bookie_failed(2, "b3", 0)
    core.on_writable_bookies({"b4"})
    (fail,) = answer(core, 0, 0, status=Status.EFENCED)
    assert isinstance(fail.error, LedgerFenced)
    assert answer(core, 1, 0, status=Status.EFENCED) == []
    assert core.on_metadata_conflict(core.metadata.in_recovery(), 1) == []


@pytest.mark.parametrize("step", ["recovery begins", "claimed", "fenced", "rewritten", "recovery writes metadata"])
def test_p19_recovery_ends_whenever_its_metadata_answers_are_late(step: str) -> None:
    """One loop runs everything: if an answer were awaited in place, the event that it depends on could never come.

    That nothing waits in place is a rule of layering (tests/test_layering.py).
    """
    stall = (Trigger(step, 1, "stall", (80_000_000,)), Trigger(step, 2, "stall", (80_000_000,)))
    steps = (Step(0, "add", (2,)), Step(1_000_000, "recover", ("recoverer0", 1)))
    plan = Plan(19, steps=steps, triggers=stall, metadata_delay=5_000_000)
    outcome = run_plan(plan, trace=True)
    assert outcome.violations == []
    assert outcome.ledger.changes[-1][2] == "recoverer0"


@pytest.mark.parametrize("fault", list(Fault))
def test_p30_creation_whose_answer_was_lost_is_found_out(fault: Fault) -> None:
    async def create() -> tuple[int, list[int]]:
        store = MemoryStore()
        uri = MetadataUri.parse(URI)
        await BookieRegistry(store.session(), uri).initialize_cluster()
        ledgers = LedgerStore(store.session(), uri)
        store.faults[store.writes] = fault
        metadata = LedgerMetadata(1, 1, 1, (Fragment(0, ("b1",)),))
        try:
            created = (await ledgers.create(metadata, ledger_id=5))[0]
        except Exception:
            created = -1
        return created, [it async for it in ledgers.ids()]

    created, listed = asyncio.run(create())
    assert (created, listed) == ((5, [5]) if fault is Fault.LOST_AFTER else (-1, []))


@pytest.mark.parametrize("seed", range(12))
def test_p31_thirty_percent_loss_closes_at_nothing_that_no_bookie_has(seed: int) -> None:
    plan = replace(plan_of(900 + seed), loss=0.3, datagrams=True, heal_at=2_000_000_000)
    assert run_plan(plan).violations == []


def test_p33_damaged_entry_is_asked_of_the_next_replica() -> None:
    group = GroupRead(1, np.arange(2), ["b1", "b2"])
    assert group.next_replica() == "b1"
    group.on_failure(DigestMismatch("torn"))
    assert group.next_replica() == "b2"
    group.on_entries("b2", 2)
    assert not len(group.missing)


def test_p34_rewritten_entries_pass_the_fence() -> None:
    play = Play()
    play.add()
    play.deliver("add")
    play.begin_recovery()
    play.finish_recovery()
    assert all(disk.fenced for disk in play.state.disks.values())
    assert (play.stored.is_closed, play.stored.last_entry) == (True, 0)


def test_p37_damaged_copy_is_not_a_vote() -> None:
    """Neither for the entry nor against it: another copy decides."""
    core = recovery_of(Fragment(0, ("b1", "b2", "b3")))
    core.on_fence_answer(0, Response.NEGATIVE)
    core.on_fence_answer(1, Response.NEGATIVE)
    read_answer(core, 0, 0, Response.FAILED, DigestMismatch("torn"))
    read_answer(core, 1, 0, Response.NEGATIVE)
    assert core.state is RecoveryState.READING
    read_answer(core, 2, 0, Response.FOUND)
    for slot in (1, 2, 0):
        read_answer(core, slot, 1, Response.NEGATIVE)
    assert core.state is RecoveryState.REWRITING
    assert core.last_entry == 0


def test_p38_entry_that_is_sent_again_with_other_bytes_is_noticed() -> None:
    """Bookies keep what comes, as Apache's do; what the writer sends again is what it sent, and C3 watches over it."""
    steps = (Step(0, "add", (2,)), Step(100_000, "lose", ("b2",)))
    plan = Plan(38, steps=steps, loss=0.0, metadata_delay=1_000_000)
    assert run_plan(plan).violations == []
    with resent_with_other_bytes():
        found = run_plan(plan).violations
    assert any(line.startswith("C3") for line in found), found


def test_x01_rewritten_entries_carry_the_lac_that_recovery_began_with() -> None:
    core = recovery_of(Fragment(0, ("b1", "b2", "b3")))
    core.on_fence_answer(0, Response.FOUND, 1, 1 << 40, last_entry=2)
    core.on_fence_answer(1, Response.FOUND, 1, 1 << 40, last_entry=2)
    lacs = []
    for first in (2, 6):
        done: list[effects.WriterEffect] = []
        for entry_id in range(first, first + 16):
            for slot in range(3):
                done += read_answer(core, slot, entry_id, Response.FOUND)
        lacs += [effect.lac for effect in done if isinstance(effect, effects.RewriteEntries)]
        core.on_rewritten()
    assert lacs == [1, 1]


@pytest.mark.parametrize("seed", range(12))
def test_x02_fences_hold_when_every_bookie_restarts_after_the_recovery(seed: int) -> None:
    """Also those that relied on negative answers. That the answer waits for the fence is tests/bookie's and crash's."""
    plan = plan_of(500 + seed)
    crashes = [Trigger("recovered", 1, "crash", (name, 3_000_000)) for name in plan.names]
    later = Trigger("recovered", 1, "later", (20_000_000, "add", 1))
    plan = replace(plan, sync_mean=20_000_000, triggers=(*plan.triggers, *crashes, later))
    assert run_plan(plan).violations == []


def test_x03_damaged_last_entry_helps_no_coverage() -> None:
    core = LastConfirmed(1, LedgerMetadata(3, 3, 2, (Fragment(0, ("b1", "b2", "b3")),)))
    core.on_nothing(0)
    core.on_failure(DigestMismatch("torn"))
    assert not core.is_covered
    core.on_entry(2, 4, 3, 10)
    assert core.result().lac == 3


def test_negative_of_all_replicas_is_certain_and_of_fewer_is_not() -> None:
    group = GroupRead(1, np.arange(1), ["b1", "b2"])
    group.on_failure(NoSuchEntry("not there"))
    group.on_failure(BookieUnavailable("away"))
    assert isinstance(group.error(), ReadFailed)
