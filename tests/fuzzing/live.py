"""`python -m tests.fuzzing.live`: hostile frames for a running bookie, in every state of a connection.

    --frames N        frames that the bookie must have looked at, in each state (default 20000)
    --seconds S       or so long in each state, if that ends first
    --storage NAME    SortedLedgerStorage, InterleavedLedgerStorage or DbLedgerStorage; several times (default: all)
    --state NAME      only this state; several times
    --attackers N     processes that attack (default 2)
    --seed N --json

The bookie is a process of its own with a ZooKeeper server; its folders lie in memory (/dev/shm) where there is that, so
that a slow disk is not taken for a stall. Beside the attackers an honest client adds and reads all the time.

Exit code 1 when the bookie ended, neither answered nor closed, failed the honest client, spent more than 50 ms in one
turn of its event loop, held more memory than its budgets allow, or logged more than ten lines a second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bkspark.cli.child_process import ChildProcess
from bkspark.cli.ports import free_ports
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from tests.bookie.child import BookieChild, new_cluster
from tests.bookie.serving import Peer
from tests.fuzzing.attack import STATES, Count, attack, fill
from tests.fuzzing.turns import read_turns

STORAGES = ("SortedLedgerStorage", "InterleavedLedgerStorage", "DbLedgerStorage")
STALL_S_MAX = 0.05
RSS_MIB_MAX = 700
"""The bookie itself, its caches as set below, and its default budgets: 128 MiB received, 256 MiB of replies."""
LOG_LINES_PER_S_MAX = 10.0
HONEST_LEDGER = 5_000_011
SETTINGS = {
    "skipListSizeLimit": str(12 << 20),
    "dbStorage_writeCacheMaxSizeMb": "12",
    "flushInterval": "1000",
    "journalMaxSizeMB": "64",
    "logSizeLimit": str(64 << 20),
    "allowLoopback": "true",
}


class Honest:
    """A client that adds and reads one entry after the other, and measures how long that takes."""

    def __init__(self, connect: Callable[[], Peer]) -> None:
        self.seconds: list[float] = []
        self.failure: str | None = None
        self._stop = threading.Event()
        self._connect = connect
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Honest:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        try:
            with self._connect() as peer:
                entry_id = int(time.time() * 1000) % (1 << 38)
                while not self._stop.wait(0.005):
                    entry_id += 1
                    began = time.perf_counter()
                    assert peer.add(HONEST_LEDGER, entry_id, [b"honest"]) == [0], "an honest add is refused"
                    self.seconds.append(time.perf_counter() - began)
                    if entry_id % 4 == 0:
                        assert peer.read(HONEST_LEDGER, entry_id).status == 0, "an honest read is refused"
        except (AssertionError, OSError) as error:
            self.failure = repr(error)


@dataclass
class Result:
    """What a state came to."""

    storage: str
    state: str
    frames: int = 0
    connections: int = 0
    closed_by_bookie: int = 0
    seconds: float = 0.0
    honest_p50_ms: float = 0.0
    honest_p99_ms: float = 0.0
    stall_ms: float = 0.0
    computed_ms: float = 0.0
    """The most processor time of one of these turns."""
    stalls: int = 0
    rss_mib: int = 0
    log_lines_per_s: float = 0.0
    wrong: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)


def rss_mib(pid: int) -> int:
    """Return the resident memory of a process."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20
    return 0


@contextlib.contextmanager
def bookie(storage: str, room: Path, uri: str, **settings: str) -> Iterator[tuple[BookieChild, ChildProcess, Path]]:
    """Run a watched bookie; give it, its process and the file of its slow turns."""
    child = BookieChild(room / "bookie", uri, ledgerStorageClass=storage, **SETTINGS, **settings)
    child.directory.mkdir()
    turns = room / "turns"
    command = [sys.executable, "-m", "tests.fuzzing.watched_bookie", str(turns)]
    for key, value in child.settings.items():
        command += ["--set", f"{key}={value}"]
    process = ChildProcess(child.id, [*command, "--json"], room / "bookie.log")
    try:
        if next(process.lines(time.monotonic() + 60), None) is None:
            raise RuntimeError(f"the bookie does not start: {process.last_log_line()}")
        yield child, process, turns
    finally:
        process.stop(60)


def _attack(job: tuple[Callable[[str, int, int, float], Count], str, int, int, float]) -> Count | str:
    strike, state, frames, seed, until = job
    try:
        return strike(state, frames, seed, until)
    except Exception as error:
        return repr(error)


def run_state(
    storage: str, state: str, child: BookieChild, process: ChildProcess, turns: Path, options: argparse.Namespace
) -> Result:
    """Attack in one state and judge."""
    strike = partial(attack, child.port)
    return judged(Result(storage, state), strike, partial(Peer, child.port), process, turns, options)


def judged(
    result: Result,
    strike: Callable[[str, int, int, float], Count],
    connect: Callable[[], Peer],
    process: ChildProcess,
    turns: Path,
    options: argparse.Namespace,
) -> Result:
    """Attack in one state, by `strike(state, frames, seed, until)` in each attacker, and judge."""
    began, before, lines = time.monotonic(), len(read_turns(turns)), _lines(process.log_path)
    until = began + options.seconds
    share = -(-options.frames // options.attackers)
    jobs = [
        (strike, result.state, share, hash((options.seed, number)) % (1 << 30), until)
        for number in range(options.attackers)
    ]
    with Honest(connect) as honest, multiprocessing.get_context("spawn").Pool(options.attackers) as pool:
        pending = pool.map_async(_attack, jobs, chunksize=1)
        while not pending.ready():
            pending.wait(0.2)
            result.rss_mib = max(result.rss_mib, rss_mib(process.pid))
            if process.exit_code is not None:
                break
        if process.exit_code is None:
            for outcome in pending.get():
                if isinstance(outcome, str):
                    result.wrong.append(outcome)
                else:
                    result.frames += outcome.looked_at
                    result.connections += outcome.connections
                    result.closed_by_bookie += outcome.closed_by_bookie
        else:
            result.wrong.append(f"the bookie ended with {process.exit_code}: {process.last_log_line()}")
    result.seconds = round(time.monotonic() - began, 1)
    judge(result, honest, read_turns(turns)[before:], _lines(process.log_path) - lines)
    return result


def judge(result: Result, honest: Honest, slow: list[Any], lines: int) -> None:
    if honest.failure is not None:
        result.wrong.append(f"the honest client: {honest.failure}")
    times = sorted(honest.seconds) or [0.0]
    result.honest_p50_ms = round(statistics.median(times) * 1000, 2)
    result.honest_p99_ms = round(times[int(len(times) * 0.99)] * 1000, 2)
    result.stall_ms = round(max((turn.seconds for turn in slow), default=0.0) * 1000, 1)
    result.stalls = sum(turn.seconds > STALL_S_MAX for turn in slow)
    result.computed_ms = round(max((turn.processor_seconds for turn in slow), default=0.0) * 1000, 1)
    result.slow = [
        f"{turn.seconds * 1000:.0f} ms, {turn.processor_seconds * 1000:.0f} ms of processor: {turn.ran}"
        for turn in sorted(slow, key=lambda it: -it.seconds)[:3]
    ]
    result.log_lines_per_s = round(lines / max(1.0, result.seconds), 1)
    if result.stalls:
        result.wrong.append(
            f"{result.stalls} turns above {STALL_S_MAX * 1000:.0f} ms, the longest {result.stall_ms} ms"
        )
    if result.rss_mib > RSS_MIB_MAX:
        result.wrong.append(f"{result.rss_mib} MiB of memory, the budgets allow {RSS_MIB_MAX}")
    if result.log_lines_per_s > LOG_LINES_PER_S_MAX:
        result.wrong.append(f"{result.log_lines_per_s} log lines a second, {LOG_LINES_PER_S_MAX:.0f} are allowed")


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    results = []
    with room_with_zookeeper() as (room, zookeeper):
        for storage in options.storage or STORAGES:
            place = room / storage
            place.mkdir()
            with bookie(storage, place, new_cluster(zookeeper.connect_string, storage)) as (child, process, turns):
                fill(child.port)
                for state in options.state or STATES:
                    result = run_state(storage, state, child, process, turns, options)
                    results.append(result)
                    show(result)
                    if process.exit_code is not None:
                        break
            if process.exit_code not in (0, None):
                results[-1].wrong.append(f"the bookie's exit code after SIGTERM is {process.exit_code}")
            subprocess.run(["rm", "-rf", str(place)], check=True)
    return report(results, as_json=options.json)


@contextlib.contextmanager
def room_with_zookeeper() -> Iterator[tuple[Path, ZooKeeperProcess]]:
    """Give a temporary folder, in memory where there is that, and a ZooKeeper server."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="bkspark-live-", dir=memory) as name:
        room = Path(name)
        (room / "zookeeper").mkdir()
        with ZooKeeperProcess(room / "zookeeper", port=free_ports(1)[0]) as zookeeper:
            yield room, zookeeper


def report(results: list[Result], *, as_json: bool) -> int:
    """Print what a run came to; return its exit code."""
    wrong = sum(bool(result.wrong) for result in results)
    if as_json:
        frames = sum(result.frames for result in results)
        print(json.dumps({"frames": frames, "wrong": wrong, "states": [asdict(result) for result in results]}))
    return 1 if wrong else 0


def show(result: Result) -> None:
    print(
        f"{result.storage} {result.state}: {result.frames} frames on {result.connections} connections in "
        f"{result.seconds} s; honest p50 {result.honest_p50_ms} ms, p99 {result.honest_p99_ms} ms; longest turn "
        f"{result.stall_ms} ms, {result.computed_ms} ms of processor; {result.rss_mib} MiB; "
        f"{result.log_lines_per_s} log lines/s",
        file=sys.stderr,
    )
    for line in (*(f"    WRONG {it}" for it in result.wrong), *(f"    {it}" for it in result.slow if result.stalls)):
        print(line, file=sys.stderr, flush=True)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing.live", description=__doc__.split("\n")[0])
    parser.add_argument("--storage", action="append", choices=STORAGES)
    return parse_attack(parser, list(STATES), arguments)


def parse_attack(parser: argparse.ArgumentParser, states: list[str], arguments: list[str] | None) -> argparse.Namespace:
    """Return the options that every attack on a running bookie has, beside those of the parser."""
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--state", action="append", choices=states)
    parser.add_argument("--attackers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.frames < 1 or options.seconds <= 0 or options.attackers < 1:
        parser.error("--frames, --seconds and --attackers must be above 0")
    return options


if __name__ == "__main__":
    sys.exit(main())
