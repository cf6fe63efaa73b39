"""How near writes to three bookies come to what the disk allows, and what the processes use meanwhile.

    python -m benchmarks.write_limit [--rounds N] [--seconds S] [--sizes BYTES ...] [--dir DIR] [--profile]
        [--set KEY=VALUE ...]

E3/Qw3/Qa2, one client in a process of its own, all three bookies on one disk. A round measures the disk before and
after the load: three writers that sync groups of 1 MiB, as three journals do. The limit is that bandwidth divided
by the bytes that the bookies write for an entry, journals and entry logs together, from `/proc/PID/io`. A second
limit is the rate at which the bookies' own writes and syncs go without bookies (`bare_writes`): new blocks of files,
which the file system has to note, journals and entry logs at the same time. Prints one JSON object: for each size of
entry the medians over rounds of the rate, its share of both limits, processor time of an entry, the cores that all
processes together keep busy, and the resident sets. `--profile` adds what each thread of the last round did or waited
for (`thread_waits`); it slows the load down a little. `--set` changes the configuration of the bookies.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.bare_writes import bare_bytes_per_s
from benchmarks.bookie_load import ITEM_BYTES_MORE
from benchmarks.limits import measure_disk
from benchmarks.relaxed import processor_s, written_bytes
from benchmarks.servers import Servers
from benchmarks.thread_waits import Shares, ThreadWaits

SIZES = (100, 1024, 16 << 10)
GROUP_BYTES = 1 << 20
DISK_S = 1.0
BARE_S = 2.0
BOOKIES = 3
LOOK_S = 0.05
"""How often the memory of the client is looked at."""
QUORUMS = ("--ensemble", "3", "--write-quorum", "3", "--ack-quorum", "2")
_MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.write_limit", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="default 3; medians are shown")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load (default 5)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes of an entry; default 100 1024 16384")
    parser.add_argument("--dir", type=Path, default=None, help="on which disk; default: the temporary folder")
    parser.add_argument("--profile", action="store_true", help="show what each thread did; needs root")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="configuration of the bookies")
    options = parser.parse_args()
    settings = dict(each.split("=", 1) for each in options.set)
    rounds: dict[int, list[dict[str, float]]] = {size: [] for size in options.sizes}
    profiles: dict[str, dict[str, Shares]] = {}
    for _ in range(options.rounds):
        for size in options.sizes:
            figures, profile = measured(size, options.seconds, options.dir, settings, profiles=options.profile)
            rounds[size].append(figures)
            profiles[f"{size} B"] = profile
    report: dict[str, object] = {"rounds": options.rounds, "cores": os.cpu_count()}
    for size, found in rounds.items():
        report[f"{size} B"] = {name: round(statistics.median(each[name] for each in found), 3) for name in found[0]}
    if options.profile:
        report["profiles"] = profiles
    print(json.dumps(report, indent=1))


def measured(
    size: int, seconds: float, parent: Path | None, settings: dict[str, str], *, profiles: bool = False
) -> tuple[dict[str, float], dict[str, Shares]]:
    """Return the figures of one load on new bookies, and what threads did if that is wanted."""
    with Servers(parent) as servers, servers.bookies(BOOKIES, **settings) as bookies:
        pids = [bookie.pid for bookie in bookies]
        disk, bare = [_disk_bytes_per_s(servers.directory)], [_bare_bytes_per_s(servers.directory, seconds)]
        written, used = sum(map(written_bytes, pids)), sum(map(processor_s, pids))
        began = time.monotonic()
        waits = ThreadWaits({f"bookie {number}": pid for number, pid in enumerate(pids, 1)} if profiles else {})
        result, client_rss_kib = _written(servers.uri, size, seconds, waits)
        elapsed_s = time.monotonic() - began
        used = sum(map(processor_s, pids)) - used
        entry_bytes = (sum(map(written_bytes, pids)) - written) / result["entries"]
        disk.append(_disk_bytes_per_s(servers.directory))
        bare.append(_bare_bytes_per_s(servers.directory, seconds))
        journaled_bytes = BOOKIES * (size + ITEM_BYTES_MORE)
        limit = statistics.mean(disk) / entry_bytes
        figures = {
            "entries_per_s": result["entries_per_s"],
            "share_of_limit": result["entries_per_s"] / limit,
            "share_of_bare_writes": result["entries_per_s"] / (statistics.mean(bare) / journaled_bytes),
            "disk_mib_per_s": statistics.mean(disk) / _MIB,
            "bare_writes_mib_per_s": 2 * statistics.mean(bare) / _MIB,
            "written_bytes_per_entry": entry_bytes,
            "bookies_us_per_entry": used / result["entries"] * 1e6,
            "client_us_per_entry": result["client_cpu_s"] / result["entries"] * 1e6,
            "busy_cores": (used + result["client_cpu_s"]) / elapsed_s,
            "client_rss_mib": client_rss_kib / 1024,
            "bookie_rss_mib": max(map(_resident_bytes, pids)) / _MIB,
        }
        return figures, waits.shares() if profiles else {}


def _disk_bytes_per_s(directory: Path) -> float:
    return measure_disk(directory, GROUP_BYTES, BOOKIES, DISK_S)["mib_per_s"] * _MIB


def _bare_bytes_per_s(directory: Path, seconds: float) -> float:
    return bare_bytes_per_s(directory, BOOKIES, min(BARE_S, seconds))


def _written(uri: str, size: int, seconds: float, waits: ThreadWaits) -> tuple[dict[str, float], int]:
    """Return what `bkspark bench write` prints, and the largest resident set of its process in KiB."""
    command = [sys.executable, "-m", "bkspark.cli", "bench", "write", "--uri", uri, "--entry-size", str(size), *QUORUMS]
    client = subprocess.Popen([*command, "--seconds", str(seconds), "--json"], stdout=subprocess.PIPE, text=True)
    printed, peak_kib = None, 0
    with waits.running_with("client", client.pid):
        while printed is None:
            # Not what `wait4` reports: a program inherits the largest resident set of the process that started it.
            peak_kib = max(peak_kib, _peak_kib(client.pid))
            with contextlib.suppress(subprocess.TimeoutExpired):
                printed, _ = client.communicate(timeout=LOOK_S)
    if client.returncode != 0:
        raise subprocess.CalledProcessError(client.returncode, command)
    return json.loads(printed), peak_kib


def _peak_kib(pid: int) -> int:
    """Return the largest resident set that the program of a process has had; 0 if it has just ended."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), 0)


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
