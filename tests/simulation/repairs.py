"""`python -m tests.simulation.repairs`: schedules of lost bookies and autorecovery (`full_repairs`), planted defects.

    --seed N --budget SECONDS [--schedules N] --json   schedules from seed N on; one JSON object on stdout
    --replay N                                         one schedule, and what the checkers say
    --mutants [--name PART] [--markdown]               what notices each planted defect, and after how many schedules;
                                                       then, of those that none notices, the directed tests (DIRECTED)

A schedule counts when a bookie was lost and another one was named in its place. Exit code 1 when a checker found
something, something happened too seldom (QUOTAS), or a defect was not noticed.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.interop import test_traps
from tests.metadata import test_underreplication
from tests.replication import test_repair
from tests.simulation import planted_repairs as planted
from tests.simulation.full_repairs import RepairSchedule
from tests.simulation.mutants import Hunt, Mutant

SCHEDULES_MAX = 1_000
"""What a mutant may survive before it counts as not noticed."""

MUTANTS = (
    Mutant("named before copied", "A1: metadata change before the entries are copied", planted.named_before_copied),
    Mutant("acks not awaited", "A1: metadata change with copies under way", planted.acknowledgements_not_awaited),
    Mutant("refusals counted", "A1: a refused copy counts as acknowledged", planted.refusals_counted),
    Mutant("only the beginning", "the last piece of a fragment is not copied", planted.only_the_beginning_copied),
    Mutant(
        "only first slots",
        "an entry goes to the first bookie of its write set",
        planted.only_first_slots_copied,
        first_seed=7,
    ),
    Mutant("last entry left out", "the end of a fragment is taken for exclusive twice", planted.last_entry_left_out),
    Mutant("copied as an owner", "P34: copies lack the recovery flag", planted.copied_as_an_owner),
    Mutant("damage copied", "A1, P37: digests are not checked", planted.damage_copied),
    Mutant("conflicts overwritten", "A4, M2: a lost CAS is repeated as it was", planted.conflicts_overwritten),
    Mutant("names not compared", "A4: a slot is swapped whatever bookie it names by now", planted.names_not_compared),
    Mutant("any version written", "M2: metadata are written without their version", planted.any_version_written),
    Mutant("length changed", "M2: a repair changes more than names", planted.length_changed),
    Mutant("open is settled", "A3: an open last fragment is renamed", planted.last_fragment_taken_for_settled),
    Mutant("empty fragments left", "S36: what has no entries keeps its lost bookie", planted.empty_fragments_left),
    Mutant("grace ignored", "A3: an open ledger is fenced at once", planted.grace_ignored),
    Mutant("claimed blindly", "A3: a ledger is fenced though its owner has moved on", planted.claimed_without_a_look),
    Mutant("never recovered", "A5: open ledgers are left for ever", planted.open_ledgers_never_recovered),
    Mutant("recovered is whole", "A5: what a recovery closed is not repaired", planted.recovered_taken_for_whole),
    Mutant("holes overlooked", "A5: a bookie that serves is said to have everything", planted.holes_overlooked),
    Mutant("serving left alone", "A5: a serving bookie gets nothing it lacks", planted.bookies_that_serve_left_alone),
    Mutant("losses overlooked", "A5: lost bookies are not noticed", planted.lost_bookies_overlooked),
    Mutant("locks kept", "A5: a lock is never given back", planted.locks_kept),
    Mutant("own lock unknown", "M1: a lock whose answer was lost is another worker's", planted.own_lock_not_known),
    Mutant("own vote unknown", "M1: a vote whose answer was lost blocks the election", planted.own_vote_not_known),
    Mutant("deleted kept", "A5: a deleted ledger stays on the list", planted.deleted_ledgers_kept),
    Mutant("no second try", "A5: what failed once is never tried again", planted.failures_never_tried_again),
    Mutant("listed for ever", "A5: a repaired ledger stays on the list", planted.listed_for_ever),
)

DIRECTED: dict[str, Callable[..., None]] = {
    "copied as an owner": test_traps.test_trap_14_a_new_bookie_that_is_fenced_takes_the_copies,
    "own lock unknown": test_underreplication.test_a_lock_whose_answer_was_lost_is_held_and_can_be_given_back,
    "names not compared": test_repair.test_a4_a_slot_that_another_worker_repaired_meanwhile_keeps_its_bookie,
    "claimed blindly": test_repair.test_a3_an_owner_that_leaves_the_lost_bookie_at_the_last_moment_is_not_fenced,
    "recovered is whole": test_repair.test_every_bookie_of_a_recovered_fragment_gets_its_missing_entries,
}
"""Tests that fail with a defect that random schedules do not notice.

A worker that claims blindly, or replaces a slot that has another bookie by now, must meet the owner or another worker
between a read and the following compare-and-set, and a worker stops when its lock is gone; what a recovery left is
listed again by the next audit.
"""

QUOTAS = {
    "swaps": 1.0,
    "crash": 0.4,
    "racks": 0.2,
    "second loss": 0.05,
    "read-only": 0.03,
    "damage": 0.1,
    "kill": 0.1,
    "expire": 0.1,
    "delete": 0.1,
    "metadata": 0.1,
    "refuse": 0.1,
    "cut": 0.1,
    "owner ended early": 0.2,
}
"""How often each must have happened, in a campaign's runs: a share of them."""

QUOTAS_FROM_RUNS = 100
"""In fewer runs what is rare may be missing by chance."""


@dataclass(slots=True)
class Tally:
    """What a range of seeds came to. `failing` maps a seed to what the checkers said."""

    runs: int = 0
    schedules: int = 0
    swaps: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    failing: dict[int, list[str]] = field(default_factory=dict)

    def missing(self) -> dict[str, float]:
        """Return what happened too seldom for its quota, and how often."""
        seen = {**self.faults, "swaps": self.swaps}
        return {name: seen.get(name, 0) for name, share in QUOTAS.items() if seen.get(name, 0) < share * self.runs}

    def add(self, other: Tally) -> None:
        """Add what another process counted."""
        self.runs += other.runs
        self.schedules += other.schedules
        self.swaps += other.swaps
        self.faults.update(other.faults)
        self.failing.update(other.failing)


def run_seeds(first: int, step: int, count: int | None, seconds: float | None) -> Tally:
    """Run every `step`-th seed from `first` on: a number of seeds, or for a time."""
    ends = None if seconds is None else time.monotonic() + seconds
    tally, seed = Tally(), first
    while (count is None or tally.runs < count) and (ends is None or time.monotonic() < ends):
        outcome = RepairSchedule(seed).run()
        swaps = outcome.history.faults.pop("swaps", 0)
        tally.runs += 1
        tally.schedules += swaps > 0
        tally.swaps += swaps
        tally.faults.update(outcome.history.faults)
        if outcome.violations:
            tally.failing[seed] = outcome.violations
        seed += step
    return tally


def violations_of(seed: int) -> list[str]:
    """Return what the checkers say of the schedule of a seed."""
    return RepairSchedule(seed).run().violations


HUNT = Hunt(MUTANTS, lambda mutant, seed: violations_of(seed), DIRECTED)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.repairs", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--budget", type=float, help="seconds to run for (default 60)")
    parser.add_argument("--schedules", type=int, help="runs in each process instead; of a mutant, what it may survive")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one a core")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one schedule and show what the checkers say")
    parser.add_argument("--mutants", action="store_true", help="hunt the planted defects")
    parser.add_argument("--name", default="", help="with --mutants: only those whose name contains this")
    parser.add_argument("--markdown", action="store_true", help="with --mutants: print a table")
    options = parser.parse_args(arguments)
    # Bookies and autorecovery log each error that they meet.
    logging.disable()
    if options.replay is not None:
        found = violations_of(options.replay)
        print("\n".join(found) or "nothing is wrong")
        return 1 if found else 0
    if not options.mutants:
        return _campaign(options)
    options.schedules = options.schedules or SCHEDULES_MAX
    return HUNT.run(options)


def _campaign(options: argparse.Namespace) -> int:
    began, tally, processes = time.monotonic(), Tally(), options.processes
    seconds = options.budget or (60.0 if options.schedules is None else None)
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        work = [(options.seed + i, processes, options.schedules, seconds) for i in range(processes)]
        for part in [pool.apply_async(run_seeds, each) for each in work]:
            tally.add(part.get())
    report = {
        "seed": options.seed,
        "seconds": round(time.monotonic() - began, 1),
        "runs": tally.runs,
        "schedules": tally.schedules,
        "swaps": tally.swaps,
        "violations": len(tally.failing),
        "faults": dict(sorted(tally.faults.items())),
        "quotas missed": tally.missing() if tally.runs >= QUOTAS_FROM_RUNS else {},
        "failing": {str(seed): found for seed, found in sorted(tally.failing.items())},
    }
    print(json.dumps(report) if options.json else "\n".join(f"{name:10} {value}" for name, value in report.items()))
    return 1 if tally.failing or report["quotas missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
