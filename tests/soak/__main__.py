"""A real cluster with everything at once for a given time, and a look at everything in the end (docs/soak.md).

    python -m tests.soak --seconds 7200 --dir FOLDER [--seed N] [--no-spark] [--plant DEFECT]

FOLDER gets `report.json`, `samples.jsonl`, `soak.png` and the cluster, which is removed when all was well unless
--keep is given. The exit code is 1 when something was lost, twice, left over or not flat, and when something that a
soak of 15 minutes or more is for never happened.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from tests.soak import flatness, happened, planted, sampling
from tests.soak.drivers import LoadProcess, SparkDriver
from tests.soak.ending import check
from tests.soak.faults import Faults
from tests.soak.load import HEALED_S, SOURCE
from tests.soak.machines import Machines, SoakBookie
from tests.soak.sampling import Role, Samples

FINISH_S = 4 * HEALED_S
"""The load has a time limit for each of its steps; this is for a load that hangs altogether."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, required=True, help="of load and faults; the last look comes on top")
    parser.add_argument("--dir", type=Path, required=True, metavar="FOLDER", help="new or empty")
    parser.add_argument("--seed", type=int, default=1, help="decides the faults")
    parser.add_argument("--no-spark", action="store_true", help="leave the streams out")
    parser.add_argument("--plant", choices=planted.DEFECTS, help="a defect in every bookie, which must be reported")
    parser.add_argument("--keep", action="store_true", help="keep the cluster's files")
    options = parser.parse_args(arguments)
    folder: Path = options.dir.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if next(folder.iterdir(), None) is not None:
        parser.error(f"--dir {str(folder)!r} is not empty; name a new folder")
    report = run(folder, options.seconds, options.seed, with_spark=not options.no_spark, defect=options.plant)
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    for name, value in report.items():
        if name not in ("lines", "happened"):
            print(f"{name}: {value}")
    for name, count in report["happened"].items():
        print(f"  {count:12} {name}")
    for line in report["lines"]:
        print(f"  {line['verdict']:16} {line['role']:16} {line['figure']:16} mean {line['mean']:16.1f}", end="")
        print(f" rise {line['rise']:14.1f} of {line['bound']:14.1f}")
    if report["is_well"] and not options.keep:
        shutil.rmtree(folder / "cluster")
    return 0 if report["is_well"] else 1


def run(
    folder: Path, seconds: float, seed: int, *, with_spark: bool = True, defect: str | None = None
) -> dict[str, Any]:
    """Run a soak in an empty folder, with a defect of `planted.DEFECTS` or without; return the report."""
    cluster = folder / "cluster"
    cluster.mkdir()
    violations: list[str] = []
    spark: list[SparkDriver] = []
    with Machines(cluster, defect=defect) as machines:
        for mode in ("continuous", "available") if with_spark else ():
            driver_folder = cluster / f"spark-{mode}"
            spark.append(SparkDriver(f"spark-{mode}", machines.uri, SOURCE, f"soak-{mode}", driver_folder, mode))
        copies = [driver.target for driver in spark]
        load: LoadProcess | None = None
        samples = Samples(folder / "samples.jsonl", _roles(machines, spark, lambda: [load.pid] if load else []))
        faults = Faults(machines, spark, samples, cluster, Random(seed))
        samples.start()
        began_s = time.monotonic()
        try:
            load = LoadProcess(machines.uri, cluster, copies, lambda said: samples.note(load=_sizes(said)))
            for driver in spark:
                driver.start()
            faults.strike_until(began_s + seconds, lambda: load is not None and load.is_running)
            end_s = time.monotonic() - began_s
            faults.heal()
            samples.note(event="healed")
            of_bookies = happened.of_bookies(bookie.log for bookie in machines.bookies)
            if not load.finish(FINISH_S):
                violations.append(f"the load did not finish: {load.ending()}")
            samples.note(event="load ended")
        finally:
            if load is not None:
                load.stop()
            for driver in spark:
                driver.kill()
            samples.stop()
        violations += faults.ended_by_themselves
        violations += load.said.get("violations", [])
        violations += check(machines, [SOURCE, *copies])
    taken = sampling.load(folder / "samples.jsonl")
    jvm_roles = ["zookeeper", *(driver.name for driver in spark)]
    lines = flatness.judge(taken, end_s, jvm_roles)
    counted = happened.counts(faults.struck, faults.flood_bytes, load.said, of_bookies) | happened.judged(lines)
    never = happened.never(counted)
    is_complete = not never or end_s < happened.EVERYTHING_S
    flatness.draw(taken, folder / "soak.png", end_s, jvm_roles)
    return {
        "seed": seed,
        "seconds": round(end_s),
        "full_disk": "one of two ledger directories"
        if machines.small_disk is not None
        else f"by diskUsageThreshold, as a small disk could not be mounted: {machines.mount_refused}",
        "planted": defect,
        "happened": counted,
        "never_happened": never,
        "errors_of_clients": load.said.get("errors", {}),
        "violations": violations,
        "not_flat": [f"{line.role} {line.figure}" for line in lines if line.is_bad],
        "is_well": is_complete and not violations and not any(line.is_bad for line in lines),
        "lines": [asdict(line) for line in lines],
    }


def _roles(machines: Machines, spark: list[SparkDriver], load_pids: Any) -> list[Role]:
    return [
        *(_role_of(number, bookie) for number, bookie in enumerate(machines.bookies, start=1)),
        Role(
            "zookeeper",
            lambda: [machines.zookeeper.pid],
            [machines.zookeeper.directory],
            machines.zookeeper.directory / "zookeeper.log",
        ),
        Role("load", load_pids, log=machines.zookeeper.directory.parent / "load.log"),
        *(Role(driver.name, driver.pids, [driver.folder / "checkpoint"], driver.log) for driver in spark),
    ]


def _role_of(number: int, bookie: SoakBookie) -> Role:
    return Role(f"bookie{number}", lambda: [bookie.pid], bookie.directories, bookie.log)


def _sizes(said: dict[str, Any]) -> dict[str, Any]:
    """Return what of the load's line goes into the samples: its lists may be long."""
    return {**said, "violations": len(said["violations"])}


if __name__ == "__main__":
    sys.exit(main())
