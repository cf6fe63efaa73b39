"""`python -m tests.simulation.racks`: a large cluster loses a host and a rack (`full_racks`), and planted defects.

    --seed N --schedules K [--ledgers L] [--json]   K schedules from seed N on, of L ledgers each
    --mutants [--name PART] [--markdown]            what notices each planted defect, and after how many schedules

Without options it runs one schedule of 4,000 ledgers, which has enough copies for the limit of twice a share. Exit code
1 when a checker found something or a defect was not noticed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import sys
import time

from tests.simulation import planted_racks as planted
from tests.simulation.full_racks import RackSchedule
from tests.simulation.mutants import Hunt, Mutant, add_options

LEDGERS = 4000
SMALL = 100
"""Ledgers of a schedule that hunts a defect."""
SCHEDULES_MAX = 20

MUTANTS = (
    Mutant("hosts ignored", "R1: two copies on one host", planted.hosts_ignored),
    # With seed 1 it is noticed, too, but a repair that cannot end costs twelve times as much.
    Mutant("racks ignored", "R1: all copies in one rack", planted.racks_ignored, first_seed=2),
    Mutant("first host takes all", "R3: the first of equally good places is taken", planted.first_host_takes_all),
    Mutant("rate not kept", "R2: copies do not wait for the rate", planted.rate_not_kept),
    Mutant("rate paid twice", "R2: a copy waits twice for the rate", planted.rate_paid_twice),
    Mutant("copied twice", "R2: every fragment is copied twice", planted.copied_twice),
    Mutant("one bookie of a host", "A5: of bookies lost at once one is looked after", planted.one_bookie_of_a_host),
)


def violations_of(seed: int) -> list[str]:
    """Return what the checkers say of a small schedule."""
    return RackSchedule(seed, SMALL).run().violations


HUNT = Hunt(MUTANTS, lambda mutant, seed: violations_of(seed))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.racks", description=__doc__.split("\n")[0])
    add_options(parser, 0)
    parser.add_argument("--ledgers", type=int, default=LEDGERS, help=f"of a schedule (default {LEDGERS})")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each schedule")
    parser.add_argument("--mutants", action="store_true", help="hunt the planted defects")
    options = parser.parse_args(arguments)
    # Bookies and autorecovery log each error that they meet.
    logging.disable()
    if options.mutants:
        options.schedules = options.schedules or SCHEDULES_MAX
        return HUNT.run(options)
    code = 0
    for seed in range(options.seed, options.seed + (options.schedules or 1)):
        began = time.monotonic()
        schedule = RackSchedule(seed, options.ledgers)
        found = schedule.run().violations
        report = {
            "seed": seed,
            "quorums": schedule.quorums,
            "ledgers": options.ledgers,
            "seconds": round(time.monotonic() - began, 1),
            "repairs": [dataclasses.asdict(repair) for repair in schedule.repairs],
            "violations": found,
        }
        print(json.dumps(report) if options.json else "\n".join(f"{name:10} {value}" for name, value in report.items()))
        code = code or int(bool(found))
    return code


if __name__ == "__main__":
    sys.exit(main())
