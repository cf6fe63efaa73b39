"""`python -m tests.mutation`: does a test fail for each of many small defects?

    --seed S --mutants N          a sample of the product's mutants, decided by the seed (default 1 and 1500)
    --budget SECONDS              stop then; the next run with the same seed goes on (default: no end)
    --module TEXT                 only modules whose path contains the text; may be given several times
    --id ID                       only these mutants
    --against FILE                run only these whole test files, with --id or --module: what do new tests kill?
    --processes P                 workers; each has a copy of the tree (default: half of the cores)
    --json                        one JSON object on stdout
    --again                       run known survivors again: tests were added
    --fresh                       forget everything that earlier runs found out
    --mutant-seconds SECONDS      leave the most costly tests of a mutant out beyond that (default 120)
    --stale-recordings            do not record tests again because the product changed: for quick looks
    --fast                        leave out tests that start processes, and campaigns: a first look at many mutants
    --tests FOLDER                only the tests of this folder; may be given several times
    --list                        print the survivors as entries for equivalent.toml

Exit code 0 when no sampled mutant survived but those that `equivalent.toml` lists; 1 when one did, when an entry of the
list is stale, or when a listed mutant was killed; 2 when tests fail without any mutant, or nothing could be run.

Why no ready-made tool (looked at in November 2026). *mutmut* 3.8 is well kept, forks a process per mutant and chooses
tests by coverage. But it puts all variants of a function into the same module, with a dispatcher. So functions with
decorators (properties, context managers, cached ones), constants and defaults are left out, and methods become
wrappers, while the planted defects of this repository replace methods. It has no operator for a missing call (sync,
append), a missing guard, handler or lock, or arguments in the wrong order. It chooses tests by function, not by line,
and has no sample with a seed. *cosmic-ray* 8.7 changes the file in place and starts one command with all tests for each
mutant: here some 20 minutes each, three weeks for 1,500. It has no operator for missing statements either, and chooses
no tests.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from typing import Any

from tests.mutation.campaign import Campaign, default_processes, record, workers
from tests.mutation.listed import as_entry, read_list, stale
from tests.mutation.operators import Mutant
from tests.mutation.population import Population
from tests.mutation.recording import Recordings, files_of_tests
from tests.mutation.trees import ROOT

FOLDERS = tuple(
    f"tests/{name}"
    for name in (
        "wire",
        "core",
        "metadata",
        "net",
        "ledger",
        "log",
        "bookie",
        "simulation",
        "crash",
        "replication",
        "security",
    )
)
LEFT_OUT = (
    # They compare documents or generated files with source text: any change of a text would count as noticed.
    "tests/core/test_error_docs.py",
    "tests/bookie/test_configuration_docs.py",
    # They ask whether a planted defect is noticed: a second defect beside it says nothing.
    "tests/simulation/test_mutants.py",
    "tests/crash/test_mutants.py",
)
FAST = "not cluster and not interop and not slow"
"""The markers of the tests that `--fast` records."""
STATE = ROOT / ".mutation"


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    population = Population(ROOT)
    mutants = _chosen(population, options)
    if not mutants:
        print("no mutant is chosen", file=sys.stderr)
        return 2
    if options.fresh:
        shutil.rmtree(STATE / "results", ignore_errors=True)
    (STATE / "results").mkdir(parents=True, exist_ok=True)
    recordings = Recordings(STATE / ("fast-recordings" if options.fast else "recordings"), ROOT)
    results = STATE / "results" / ("chosen.jsonl" if options.id or options.against else f"{options.seed}.jsonl")
    campaign = Campaign(population, recordings, results, options.mutant_seconds, options.against)
    campaign.resume(mutants, again=options.again or bool(options.id or options.against))
    began = time.monotonic()
    with workers(min(options.processes, len(mutants))) as team:
        if not options.against:
            files = files_of_tests(ROOT, tuple(options.tests) or FOLDERS, LEFT_OUT)
            missing = recordings.missing(files, accept_stale=options.stale_recordings)
            record(team, recordings, missing, _say, FAST if options.fast else "")
        campaign.run(team, mutants, options.budget, _say)
    report = {
        "seed": options.seed,
        "seconds": round(time.monotonic() - began, 1),
        **campaign.report(mutants),
        "tests_that_fail": recordings.failed(),
        **_survivors(campaign, mutants, population),
    }
    if options.json:
        print(json.dumps(report))
    else:
        _print(report, mutants, options.list)
    return _exit_code(report)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mutants", type=int, default=1500)
    parser.add_argument("--budget", type=float, default=float("inf"))
    parser.add_argument("--module", action="append", default=[])
    parser.add_argument("--id", action="append", default=[])
    parser.add_argument("--against", action="append", default=[])
    parser.add_argument("--processes", type=int, default=default_processes())
    parser.add_argument("--mutant-seconds", type=float, default=120.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--stale-recordings", action="store_true")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--tests", action="append", default=[])
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args(arguments)
    if options.budget <= 0 or options.processes < 1 or options.mutants < 1 or options.mutant_seconds <= 0:
        parser.error("--budget, --processes, --mutants and --mutant-seconds must be above 0")
    if options.against and not (options.id or options.module):
        parser.error("--against goes with --id or --module")
    return options


def _chosen(population: Population, options: argparse.Namespace) -> list[Mutant]:
    if options.id:
        return [mutant for mutant in population.mutants if mutant.id in options.id]
    if options.module:
        population.mutants = [it for it in population.mutants if any(text in it.module for text in options.module)]
    return population.sample(options.seed, options.mutants)


def _survivors(campaign: Campaign, mutants: list[Mutant], population: Population) -> dict[str, Any]:
    listed = read_list()
    reasons = {entry.key: entry.reason for entry in listed}
    verdicts = {mutant: campaign.verdicts[mutant.id] for mutant in mutants if mutant.id in campaign.verdicts}
    alive = [mutant for mutant, verdict in verdicts.items() if not verdict.killed]
    modules = {mutant.module for mutant in population.mutants}
    return {
        "listed": sum(mutant.key in reasons for mutant in alive),
        "stale": [
            f"{entry.key[0]} {entry.key[1]}: {entry.key[4]}" for entry in stale(listed, population.mutants, modules)
        ],
        "listed_and_killed": [str(it) for it, verdict in verdicts.items() if verdict.killed and it.key in reasons],
        "survivors": [
            {"id": mutant.id, "mutant": str(mutant), "how": verdicts[mutant].how, "tests": verdicts[mutant].tests}
            for mutant in alive
            if mutant.key not in reasons
        ],
    }


def _exit_code(report: dict[str, Any]) -> int:
    if report["broken_controls"] or not report["run"]:
        return 2
    return 1 if report["survivors"] or report["stale"] or report["listed_and_killed"] else 0


def _print(report: dict[str, Any], mutants: list[Mutant], as_entries: bool) -> None:
    by_id = {mutant.id: mutant for mutant in mutants}
    for name, value in report.items():
        if isinstance(value, list):
            print(f"{name:18} {len(value)}")
            for item in value:
                print(f"    {item['id']} {item['how']} {item['mutant']}" if isinstance(item, dict) else f"    {item}")
        else:
            print(f"{name:18} {value}")
    if as_entries:
        for survivor in report["survivors"]:
            print(as_entry(by_id[survivor["id"]]))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
