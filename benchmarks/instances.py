"""How adds and reads grow with the bookies of one host: 1, 2 and 4 instances, each with a share of one core.

python -m benchmarks.instances [--entries N] [--rounds N] [--share PERCENT] [--instances N ...]

Starts ZooKeeper and a supervisor (`bkspark bookie --instances N`), and puts each bookie into a control group of its own
that gets `--share` percent of one core (cgroups v1 or v2; needs root). So the bookies limit the rate, and not the
client, which has the rest of the machine. Each bookie gets a ledger (E1) with the same entries of 1 KiB, all written
and then read at the same time. Prints, as JSON, the median rates and what N instances reach of N times one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.servers import Servers
from bkspark.blocking import Client, LedgerWriter
from bkspark.cli.child_process import ChildProcess
from bkspark.errors import ConfigurationError
from bkspark.net.pool import NetOptions
from tests.bookie.child import ports_in_a_row

ENTRY_BYTES = 1024
PIECE_ENTRIES = 500
PERIOD_US = 100_000
"""A quota of 1 % is then the least that the kernel takes, 1 ms."""
START_S = 60.0
_V1, _V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instances", description=__doc__.split("\n")[0])
    parser.add_argument("--entries", type=int, default=60_000, help="of each ledger (default 60,000)")
    parser.add_argument("--rounds", type=int, default=3, help="default 3; medians are shown")
    parser.add_argument("--share", type=float, default=5.0, help="percent of one core for each bookie (default 5)")
    parser.add_argument("--instances", type=int, nargs="+", default=[1, 2, 4], help="default 1 2 4")
    options = parser.parse_args()
    rates: dict[tuple[str, int], list[float]] = {}
    for _ in range(options.rounds):
        for count in options.instances:
            for what, rate in measured(count, options.entries, options.share).items():
                rates.setdefault((what, count), []).append(rate)
    medians = {key: statistics.median(found) for key, found in rates.items()}
    report: dict[str, object] = {"entries": options.entries, "rounds": options.rounds, "share": options.share}
    first = options.instances[0]
    for (what, count), rate in medians.items():
        report[f"{what}/s, {count}"] = round(rate)
        if count != first:
            report[f"{what}, {count}: share of linear"] = round(rate * first / (count * medians[what, first]), 3)
    print(json.dumps(report))


def measured(count: int, entries: int, share: float) -> dict[str, float]:
    """Return the rates of adds and reads of this many instances."""
    with Servers(None) as servers, contextlib.ExitStack() as held:
        pids = held.enter_context(_instances(count, servers.directory, servers.uri))
        client = held.enter_context(Client(servers.uri, net=NetOptions(local_reads=False)))
        writers = _one_for_each_bookie(client, count)
        held.enter_context(_limited(pids, share))
        piece = [os.urandom(ENTRY_BYTES)] * PIECE_ENTRIES
        entries -= entries % PIECE_ENTRIES

        def write(writer: LedgerWriter) -> None:
            for _ in range(entries // PIECE_ENTRIES):
                writer.submit(piece)
            writer.close()

        def read(writer: LedgerWriter) -> None:
            assert sum(map(len, client.open(writer.ledger_id, recover=False).batches())) == entries

        return {"adds": _rate(write, writers, entries), "reads": _rate(read, writers, entries)}


def _rate(work: Callable[[LedgerWriter], None], writers: list[LedgerWriter], entries: int) -> float:
    with ThreadPoolExecutor(len(writers)) as pool:
        began = time.monotonic()
        for done in [pool.submit(work, writer) for writer in writers]:
            done.result()
        return entries * len(writers) / (time.monotonic() - began)


@contextlib.contextmanager
def _instances(count: int, folder: Path, uri: str) -> Iterator[list[int]]:
    """Run bookies under a supervisor; yield their process ids."""
    keys = {
        "bookiePort": str(ports_in_a_row(count)),
        "advertisedAddress": "127.0.0.1",
        "allowLoopback": "true",
        "journalDirectories": str(folder / "journal"),
        "ledgerDirectories": str(folder / "ledgers"),
        "metadataServiceUri": uri,
        "diskUsageThreshold": "0.99",
    }
    command = [sys.executable, "-m", "bkspark.cli", "bookie", "--instances", str(count), "--json"]
    for key, value in keys.items():
        command += ["--set", f"{key}={value}"]
    supervisor = ChildProcess("supervisor", command, folder / "log")
    try:
        line = next(supervisor.lines(time.monotonic() + START_S), None)
        if line is None:
            raise ConfigurationError(f"the bookies do not start: {supervisor.last_log_line()}")
        yield [facts["pid"] for facts in json.loads(line)["instances"]]
    finally:
        supervisor.stop(START_S)


def _one_for_each_bookie(client: Client, count: int) -> list[LedgerWriter]:
    """Return a writer of a ledger on each bookie."""
    found: dict[tuple[str, ...], LedgerWriter] = {}
    while len(found) < count:
        writer = client.create(ensemble=1, write_quorum=1, ack_quorum=1)
        bookies = client.metadata(writer.ledger_id).fragments[0].bookies
        if bookies in found:
            writer.close()
        else:
            found[bookies] = writer
    return list(found.values())


@contextlib.contextmanager
def _limited(pids: list[int], share: float) -> Iterator[None]:
    """Give each process a share of one core, in percent."""
    quota_us = round(PERIOD_US * share / 100)
    groups = []
    try:
        for pid in pids:
            group = (_V1 if _V1.is_dir() else _V2) / f"bkspark-{pid}"
            group.mkdir()
            groups.append(group)
            if _V1.is_dir():
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(quota_us))
            else:
                (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        root = _V1 if _V1.is_dir() else _V2
        for pid, group in zip(pids, groups):
            # The bookies end outside the groups, at full speed.
            with contextlib.suppress(OSError):
                (root / "cgroup.procs").write_text(str(pid))
            group.rmdir()


if __name__ == "__main__":
    main()
