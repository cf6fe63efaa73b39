"""`python -m tests.simulation`: a campaign of simulated schedules, or one of them again.

    --seed N --budget SECONDS --json   schedules from seed N on, for this long; one JSON object on stdout
    --replay N [--shrink]              one schedule: its plan, what the checkers say, the smallest plan that still fails

Exit code 1 when a checker found something or a quota was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

from tests.simulation.campaign import QUOTAS, RELAXED_QUOTAS, Tally, run_campaign
from tests.simulation.plan import Plan, plan_of, relaxed_plan_of
from tests.simulation.schedule import run_plan
from tests.simulation.shrink import shrink

_QUOTAS_APPLY_FROM = 1_000
"""Schedules below which shares say nothing."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds to run for (default 60)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one a core")
    parser.add_argument("--relaxed", action="store_true", help="ledgers with relaxed durability")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one schedule and show it")
    parser.add_argument("--shrink", action="store_true", help="with --replay: find the smallest plan that still fails")
    options = parser.parse_args(arguments)
    if options.budget <= 0 or options.processes < 1:
        parser.error("--budget and --processes must be above 0")
    plans = relaxed_plan_of if options.relaxed else plan_of
    if options.replay is not None:
        return _replay(plans(options.replay), options.shrink)
    began = time.monotonic()
    tally = run_campaign(options.seed, options.budget, options.processes, plans)
    report = tally.report(options.seed, time.monotonic() - began)
    if options.json:
        print(json.dumps(report))
    else:
        for name, value in report.items():
            print(f"{name:14} {value}")
    return _verdict(tally, options.relaxed)


def _verdict(tally: Tally, is_relaxed: bool) -> int:
    option = "--relaxed " if is_relaxed else ""
    for seed in sorted(tally.failing):
        print(f"seed {seed} fails: python -m tests.simulation {option}--replay {seed} --shrink", file=sys.stderr)
    quotas = RELAXED_QUOTAS if is_relaxed else QUOTAS
    unmet = tally.unmet(quotas) if tally.schedules >= _QUOTAS_APPLY_FROM else []
    if unmet:
        print(f"too few schedules with: {', '.join(unmet)}", file=sys.stderr)
    return 1 if tally.violations or unmet else 0


def _replay(plan: Plan, is_to_shrink: bool) -> int:
    outcome = run_plan(plan)
    if outcome.violations and is_to_shrink:
        plan = shrink(plan)
        outcome = run_plan(plan)
    print(plan.describe())
    for _, stored, by in outcome.ledger.changes:
        metadata = stored.metadata
        fragments = ", ".join(f"{it.first_entry}: {' '.join(it.bookies)}" for it in metadata.fragments)
        print(f"version {stored.version} by {by}: {metadata.state.name} {fragments} last entry {metadata.last_entry}")
    print(f"acknowledged up to {outcome.ledger.last_acknowledged}; faults {dict(outcome.history.faults)}")
    for line in outcome.violations:
        print(f"VIOLATION {line}")
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
