"""Planted protocol defects, and in how many random schedules the simulator notices each.

`python -m tests.simulation.mutants [--schedules N] [--name PART] [--markdown]` prints who killed what, and the score;
docs/simulation.md keeps the table. EQUIVALENT names defects that change nothing that was promised, with the argument.
"""

from __future__ import annotations

import argparse
import functools
import gc
import inspect
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bkspark.wire.status import Status
from tests.core import test_relaxed
from tests.simulation import planted, planted_metadata
from tests.simulation import planted_copies as copies
from tests.simulation import planted_relaxed as rx
from tests.simulation.plan import Plan, plan_of, relaxed_plan_of
from tests.simulation.schedule import run_plan

SCHEDULES_MAX = 40_000
"""What a mutant may survive before it counts as not noticed."""

_UNFITTING = "exception: TypeError"
"""How a complaint begins if a planted function does not take the arguments that the product gives."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A defect; `plant()` is a context in which the product has it, `plans` makes the schedules that look for it.

    first_seed: where the tests begin to look, as one that strikes rarely takes long to find.
    """

    name: str
    bug: str
    plant: Callable[[], AbstractContextManager[Any]]
    plans: Callable[[int], Plan] = plan_of
    first_seed: int = 1


def _relaxed(name: str, bug: str, plant: Callable[[], AbstractContextManager[Any]], first_seed: int = 1) -> Mutant:
    return Mutant(f"relaxed: {name}", bug, plant, relaxed_plan_of, first_seed)


MUTANTS = (
    Mutant("acknowledged by one less", "an add is released at Qa - 1 answers", planted.acknowledged_by_one_less),
    Mutant("acknowledged out of order", "an add is released before lower ids", planted.acknowledged_before_lower_ids),
    Mutant(
        "refusal counted: fenced",
        "'fenced' counts as an acknowledgement",
        planted.acknowledged_by_refusals(Status.EFENCED),
    ),
    Mutant(
        "refusal counted: error",
        "an I/O error counts as an acknowledgement",
        planted.acknowledged_by_refusals(Status.EIO, Status.EREADONLY),
    ),
    Mutant(
        "stale answers counted",
        "a replaced bookie's answer counts for the new one",
        planted.stale_answers_counted,
        first_seed=1000,
    ),
    Mutant("LAC sent too high", "entries carry the last id pushed as LAC", planted.confirmed_too_high),
    Mutant("votes kept", "#4097: votes of a replaced bookie are not withdrawn", planted.votes_kept),
    Mutant("early release", "P13, #3005: released before votes are withdrawn", planted.released_before_withdrawal),
    Mutant("change from LAC", "a new fragment begins at LAC", planted.changed_from_lac),
    Mutant("change from next", "P14: a new fragment begins after pending adds", planted.changed_from_next),
    Mutant("released while changing", "P15, #4651: adds are released during a change", planted.released_while_changing),
    Mutant("used before stored", "P11, #1591: the new ensemble is used before the CAS", planted.used_before_stored),
    Mutant("nothing resent", "the new bookie gets nothing of what is pending", planted.nothing_resent),
    Mutant("only newest resent", "the new bookie gets the newest pending batch alone", planted.only_newest_resent),
    Mutant("resent with other bytes", "P38: what is sent again is not what was sent", planted.resent_with_other_bytes),
    Mutant("newer state overwritten", "P05: a lost CAS is repeated as it was", planted.overwrites_newer_state),
    Mutant("merged into recovery", "P05: a change goes into metadata IN_RECOVERY", planted.merges_into_recovery),
    Mutant("closes over anything", "a lost closing CAS is repeated over any state", planted.closes_over_anything),
    Mutant("closed one short", "the owner closes below its last entry", planted.closed_one_short),
    Mutant("lost answer believed", "a CAS that failed is taken for done", planted.lost_answer_believed),
    Mutant("change never over", "P12: the changing flag stays", planted.change_never_over),
    Mutant("second search forgotten", "P16: a second change never begins", planted.second_search_forgotten),
    Mutant("silence ignored", "a bookie that never answers is waited for", planted.silence_ignored),
    Mutant("too few left ignored", "the writer goes on with less than Qa bookies", planted.too_few_left_ignored),
    Mutant("coverage one less", "P10: coverage by Qw - Qa of each write set", planted.covered_by_one_less),
    Mutant("coverage by any", "P10: the first answer covers", planted.covered_by_any, first_seed=640),
    Mutant("coverage by all", "P08: coverage needs every bookie", planted.covered_by_all),
    Mutant("error covers", "P10: an error counts as heard", planted.error_covers, first_seed=640),
    Mutant(
        "fence not awaited", "reading begins with the fences on their way", planted.fence_not_awaited, first_seed=1215
    ),
    Mutant("wrong ensemble fenced", "the first fragment is fenced, not the last", planted.wrong_ensemble_fenced),
    Mutant("LAC from nothing", "P02: recovery starts at -1 whatever the fragment", planted.lac_from_nothing),
    Mutant("LAC one too high", "recovery trusts LAC + 1", planted.lac_one_too_high),
    Mutant("reads do not fence", "P01, #2614: recovery reads carry no fence", planted.recovery_reads_do_not_fence),
    Mutant("one negative ends", "a single negative is the end", planted.one_negative_ends),
    Mutant("one negative less", "Qw - Qa negatives are the end", planted.one_negative_less),
    Mutant("all negatives needed", "P09: the end needs every replica's word", planted.all_negatives_needed),
    Mutant("error is negative", "P26, #2908: an error or a time-out is a negative", planted.error_is_negative),
    Mutant("undecided is the end", "neither side reached counts as the end", planted.undecided_is_the_end),
    Mutant("recovery LAC moves", "X1: rewritten entries carry a moving LAC", planted.lac_moves, first_seed=1170),
    Mutant("changes published early", "P03: recovery publishes its ensembles", planted.changes_published_early),
    Mutant("reads follow changes", "P04: recovery reads from its own new ensemble", planted.reads_follow_changes),
    Mutant("failed rewrite ends", "P07: a failed write-back is the end", planted.failed_rewrite_is_the_end),
    Mutant("nothing rewritten", "entries found are not written back", planted.nothing_rewritten),
    Mutant("rewriting not awaited", "recovery closes before write-backs are done", planted.rewriting_not_awaited),
    Mutant("recovered one short", "recovery closes below the last entry", planted.recovered_one_short),
    Mutant("recovered one long", "recovery closes above the last entry", planted.recovered_one_long),
    Mutant("end overwritten", "a recoverer closes again over CLOSED", planted.recovery_overwrites_the_end),
    Mutant("changes forgotten", "recovery's ensembles are not published", planted.changes_of_recovery_forgotten),
    Mutant("conflict forgotten", "a recovery that lost a CAS never ends", planted.recovery_never_ends_on_conflict),
    Mutant("rewritten as an owner", "P34: write-backs lack the recovery flag", planted.rewritten_as_an_owner),
    Mutant("reader takes LAP", "a reader takes the last entry held for the LAC", planted.reader_takes_the_last_held),
    Mutant("first negative believed", "a reader asks one replica only", planted.first_negative_believed),
    Mutant("any version written", "metadata is written without its version", planted_metadata.writes_any_version),
    Mutant("lost write is written", "M1: a lost or refused CAS counts as done", planted_metadata.lost_write_is_written),
    Mutant(
        "next version is ours",
        "M1: version + 1 counts as ours, whatever it says",
        planted_metadata.next_version_is_ours,
    ),
    Mutant(
        "own write is a conflict",
        "M1: a CAS whose answer was lost counts as lost, and its client does not recognise it",
        planted_metadata.own_write_is_a_conflict,
        first_seed=900,
    ),
    Mutant("fence not journaled", "S01: a fence is only in memory", planted.fence_not_journaled),
    Mutant(
        "negative before fence",
        "X2: negatives leave before the fence is durable",
        planted.negative_before_fence_durable,
        first_seed=475,
    ),
    Mutant("fence lets adds pass", "a fenced bookie takes its owner's adds", planted.fence_lets_adds_pass),
    Mutant("unknown not fenced", "I6: a fence is not kept for an unknown ledger", planted.unknown_ledger_not_fenced),
    Mutant("answered before synced", "B1: an add is answered from memory", planted.answered_before_synced),
    Mutant("recovery adds refused", "I8: a fenced bookie refuses write-backs", planted.recovery_adds_refused),
    Mutant("last replica left out", "an owner sends entries to Qa bookies alone", copies.last_replica_left_out),
    Mutant("rewritten to Qa", "entries are written back to Qa bookies alone", copies.rewritten_to_ack_quorums),
    Mutant(
        "forgotten at Qa",
        "the bytes of an entry are dropped at Qa answers, though a bookie may yet refuse them",
        copies.bytes_forgotten_at_ack_quorum,
        first_seed=3_750,
    ),
    Mutant(
        "repeated answer counted",
        "an answer that comes twice counts for the next slot",
        copies.repeated_answer_counts_for_the_next_slot,
        first_seed=340,
    ),
    Mutant("LAC never sent", "entries carry -1 as LAC", copies.lac_never_sent),
    Mutant("LAC heard last", "a reader takes the LAC heard last", copies.reader_takes_the_lac_heard_last),
    Mutant("owner's length", "the owner closes with too short a length", copies.owner_closes_with_a_length_too_short),
    Mutant(
        "length heard",
        "recovery closes with the length that came with the LAC",
        copies.recovery_closes_with_the_length_heard,
    ),
    Mutant(
        "loss not reported",
        "a lost connection with adds under way is not a failure",
        copies.lost_connection_not_reported,
        first_seed=225,
    ),
    Mutant(
        "too few left: set 0",
        "striped: too few bookies left is judged by the first write set",
        copies.too_few_left_judged_by_one_write_set,
    ),
    Mutant(
        "rewritten by ticks",
        "written-back entries are acknowledged by the clock's ticks alone",
        copies.rewritten_entries_acknowledged_by_ticks,
        first_seed=360,
    ),
    _relaxed("confirmed by one less", "Qa - 1 bookies have synced what is confirmed", rx.confirmed_by_one_less),
    _relaxed("confirmed by the quickest", "LAC from the highest LastAddSynced", rx.confirmed_by_the_quickest),
    _relaxed("striping ignored", "E > Qw: the rule of E = Qw over all slots", rx.striping_ignored),
    _relaxed("confirmed when acknowledged", "LAC passes what is synced", rx.confirmed_when_acknowledged),
    _relaxed("confirmed when forced", "sync returns before the bookies have answered", rx.confirmed_when_forced),
    _relaxed("force not synced", "a bookie answers a force at once", rx.force_not_synced),
    _relaxed("lost connection ignored", "a bookie that may have lost entries goes on", rx.lost_connection_ignored),
    _relaxed(
        "returning bookie trusted",
        "a force counts for what went another way",
        rx.returning_bookie_trusted,
        first_seed=1710,
    ),
    _relaxed(
        "new bookie inherits",
        "a new bookie has its predecessor's LastAddSynced",
        rx.new_bookie_inherits,
        first_seed=875,
    ),
    _relaxed("cursor over a hole", "LastAddSynced passes an entry that never came", rx.cursor_over_a_hole, 850),
    _relaxed("cursor when taken", "LastAddSynced counts what is not synced", rx.cursor_when_taken),
    _relaxed("cursor outlives a crash", "LastAddSynced counts what a crash took", rx.cursor_outlives_a_crash, 4145),
    _relaxed("older force counts", "the answer to an older force counts", rx.older_force_counts),
    _relaxed("replaced bookie confirms", "LastAddSynced of a replaced bookie counts", rx.replaced_bookie_confirms),
)

DIRECTED: dict[str, Callable[..., None]] = {
    "relaxed: older force counts": test_relaxed.test_answer_to_an_earlier_force_counts_for_nothing,
    "relaxed: replaced bookie confirms": test_relaxed.test_what_a_replaced_bookie_says_it_synced_counts_for_nothing,
}
"""Tests that fail with a defect that random schedules do not notice."""

EQUIVALENT = {
    "acknowledged after 'fenced'": "an add that Qa bookies took although one answered 'fenced' is found by every "
    "recovery, as (Qw - Qa) + 1 negatives are not to be had for it: the answer 'unknown' is stricter than need be",
    "own close believed": "the owner closes when nothing is pending, so a recovery that was faster ends at the same "
    "entry and length, whether or not it has stored that yet",
    "no IN_RECOVERY before fencing": "what the owner stores meanwhile makes the recovery's closing CAS fail, and "
    "then it begins again; the claim only saves that second round",
    "conflict at the close: keep what was found": "between claim and close only recoverers write, and all of them "
    "find the same entries; beginning again matters once re-replication renames bookies of an open fragment",
}


@dataclass(frozen=True, slots=True)
class Kill:
    """What noticed a mutant: the seed, how many schedules that took, and what was said.

    Seed None: no schedule did; what was said then is a directed test's, whose name it begins with.
    """

    name: str
    seed: int | None
    schedules: int
    said: str


def hunt(
    mutant: Mutant, first_seed: int, schedules_max: int, violations: Callable[[int], list[str]] | None = None
) -> Kill:
    """Run schedules of ascending seeds until a checker complains.

    Args:
        violations: what is wrong with the schedule of a seed; None: that of the protocol tier.

    Raises:
        TypeError: the planted function does not take the arguments that the product gives.
    """
    judge = violations or (lambda seed: run_plan(mutant.plans(seed)).violations)
    with mutant.plant():
        for number in range(schedules_max):
            found = judge(first_seed + number)
            if found:
                for complaint in found:
                    if complaint.startswith(_UNFITTING):
                        raise TypeError(f"{mutant.name}: {complaint}")
                return Kill(mutant.name, first_seed + number, number + 1, found[0])
            if number % 500 == 499:
                gc.collect()
    return Kill(mutant.name, None, schedules_max, "")


def complaint_of(test: Callable[..., None]) -> str | None:
    """Return why a test fails; None: it passes. An error that is not a failed assertion is not taken for a kill."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = {"tmp_path": Path(folder)} if "tmp_path" in inspect.signature(test).parameters else {}
        try:
            test(**arguments)
        except AssertionError as error:
            return str(error) or "its assertion fails"
    return None


@dataclass(frozen=True, slots=True)
class Hunt:
    """Planted defects, and what looks for them.

    judge: what is wrong with the schedule of a seed under a mutant. directed: tests for those that no schedule notices.
    """

    mutants: Sequence[Mutant]
    judge: Callable[[Mutant, int], list[str]]
    directed: Mapping[str, Callable[..., None]] = field(default_factory=dict)

    def kill(self, first_seed: int, schedules_max: int, index: int) -> Kill:
        """Hunt one mutant: by schedules, and where none notices it, by its directed test."""
        gc.disable()
        mutant = self.mutants[index]
        kill = hunt(mutant, first_seed, schedules_max, lambda seed: self.judge(mutant, seed))
        test = self.directed.get(mutant.name)
        if kill.seed is None and test is not None:
            with mutant.plant():
                complaint = complaint_of(test)
            if complaint is not None:
                return Kill(mutant.name, None, schedules_max, f"{test.__name__}: {complaint}")
        return kill

    def run(self, options: argparse.Namespace) -> int:
        """Hunt all mutants that `options` choose, print a line for each, and return the exit code."""
        chosen = [index for index, mutant in enumerate(self.mutants) if options.name in mutant.name]
        by_schedules = by_tests = 0
        search = functools.partial(self.kill, options.seed, options.schedules)
        # Plants cannot be sent to another process: the processes have them because they are forks of this one.
        with multiprocessing.get_context("fork").Pool(options.processes, _adopt, (search,)) as pool:
            for index, kill in zip(chosen, pool.imap(_search_in_a_fork, chosen)):
                by_schedules += kill.seed is not None
                by_tests += kill.seed is None and bool(kill.said)
                print(row(kill, self.mutants[index].bug, options.markdown), flush=True)
        print(f"of {len(chosen)} killed: {by_schedules} by random schedules, {by_tests} by directed tests")
        return 0 if by_schedules + by_tests == len(chosen) else 1


_searching: list[Callable[[int], Kill]] = []


def _adopt(search: Callable[[int], Kill]) -> None:
    _searching.append(search)


def _search_in_a_fork(index: int) -> Kill:
    return _searching[-1](index)


def add_options(parser: argparse.ArgumentParser, schedules_max: int) -> None:
    """Add the options of a hunt."""
    parser.add_argument("--name", default="", help="only mutants whose name contains this")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--schedules", type=int, default=schedules_max, help="how many a mutant may survive")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one a core")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/simulation.md")


PROTOCOL_HUNT = Hunt(MUTANTS, lambda mutant, seed: run_plan(mutant.plans(seed)).violations, DIRECTED)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__.split("\n")[0])
    add_options(parser, SCHEDULES_MAX)
    code = PROTOCOL_HUNT.run(parser.parse_args(arguments))
    print(f"{len(EQUIVALENT)} equivalent, by argument")
    return code


def row(kill: Kill, bug: str, is_markdown: bool) -> str:
    """Return one line of the report."""
    checker = kill.said.partition(":")[0] or "-"
    count = str(kill.schedules) if kill.seed is not None else f"> {kill.schedules}"
    if is_markdown:
        return f"| {kill.name} | {bug} | {checker} | {count} |"
    return f"{kill.name:24} {checker:10} {count:>7}  {kill.said[:80] or 'SURVIVED: ' + bug}"


if __name__ == "__main__":
    sys.exit(main())
