"""`python -m tests.spark.kills`: a streaming copy through kills at every stage of a micro-batch, entry by entry.

    --seed N     decides which victim is killed at which stage, when, and how rows travel (default 1)
    --kills N    how many (default 60); all combinations of stage and victim come once before one comes again

Each kill is ordered, then rows for a few micro-batches come, and all of them must arrive before the next. Starts a
cluster of its own; prints one JSON object. A copy must hold the source's entries, each once and in order (a query
without a shuffle keeps it); nothing may stay registered or stored that the log does not list. With an odd seed the
copy publishes under a name (txnAppId), so that its epochs are known by that and the query's id; at the end a query with
another checkpoint, which uses the same name, must fail and change nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bkspark.blocking import Client, run
from bkspark.errors import NoSuchLedger
from bkspark.log.log import Log
from bkspark.metadata.uri import MetadataUri
from tests.cluster import Cluster
from tests.polling import wait_until
from tests.processes import of_session
from tests.spark.copy_job import ENTRIES_PER_TRIGGER, REFUSED
from tests.spark.killing import FOLDER, PORT, orders

ROOT = Path(__file__).parents[2]
EPOCHS_MIN, EPOCHS_MAX = 3, 6
"""Micro-batches for each kill."""

INLINE_BYTES = ("0", "512k")
"""Rows as ledgers of the tasks, or in their reports: each driver has one way, the next one perhaps the other."""

SECONDS = 600.0


class Driver:
    """A copying driver in a session of its own, with its JVM and its Python workers."""

    def __init__(self, uri: str, source: str, target: str, folder: Path, inline_bytes: str, name: str) -> None:
        port = MetadataUri.parse(uri).hosts[0][1]
        kills = {"BKSPARK_STAGES": "tests.spark.killing:reached", FOLDER: str(folder / "kills"), PORT: str(port)}
        command = [sys.executable, "-m", "tests.spark.copy_job", uri, source, target, str(folder), inline_bytes, name]
        self._log = (folder / "driver.log").open("ab")
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=self._log,
            stderr=self._log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **kills},
        )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> int:
        """Wait until the driver itself is dead; return its exit code."""
        return self._process.wait(SECONDS)

    def end(self) -> None:
        """Kill the driver and whatever it started."""
        if self.is_running:
            self._process.kill()
        self._process.wait()
        for pid in of_session(self._process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._log.close()


@dataclass
class Result:
    """What a campaign did and found."""

    seed: int
    entries: int = 0
    kills: int = 0
    micro_batches: int = 0
    drivers: int = 0
    victims: Counter[str] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


class Campaign:
    """One copy of a log and those who are killed meanwhile. A context manager: it ends what it started."""

    def __init__(
        self,
        cluster: Cluster,
        client: Client,
        folder: Path,
        name: str,
        seed: int,
        epochs: tuple[int, int] = (EPOCHS_MIN, EPOCHS_MAX),
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._folder = folder
        self.source, self.target = f"{name}-source", f"{name}-target"
        self._chance = random.Random(seed)
        self._epochs_a_kill = epochs
        self._rows: list[bytes] = []
        self.application = f"{name}-application" if seed % 2 else ""
        self.result = Result(seed)
        self._drivers: list[Driver] = []
        self._kills = folder / "kills"
        self._kills.mkdir()

    def __enter__(self) -> Campaign:
        for log in (self.source, self.target):
            self._client.log(log).create()
        self._name_bookie()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End every driver."""
        for driver in self._drivers:
            driver.end()

    # ---- kills ----

    def kill(self, stage: str, victim: str) -> None:
        """Kill a victim at a stage of a few micro-batches."""
        order = self._kills / f"{stage}.{victim}"
        taken = order.with_name(f"{order.name}.done")
        order.touch()
        self._feed()
        wait_until(lambda: taken.exists() or not self._is_alive(victim), f"a process to reach {stage}", SECONDS)
        if victim == "driver":
            # Its Python workers live on: they are for the next driver to cope with.
            self._drivers[-1].wait()
        taken.unlink()
        self.result.kills += 1
        self.result.victims[victim] += 1
        self.result.stages[stage] += 1

    def _feed(self) -> None:
        """Append rows for a few micro-batches."""
        count = self._chance.randint(*self._epochs_a_kill) * ENTRIES_PER_TRIGGER
        rows = [b"%d" % number for number in range(len(self._rows), len(self._rows) + count)]
        with self._client.log(self.source).open_for_writing() as log:
            log.append_many(rows)
        self._rows += rows

    def start(self) -> None:
        """Start a driver, which goes on where the one before was killed."""
        inline_bytes = self._chance.choice(INLINE_BYTES)
        self._drivers.append(self._driver(self._folder, inline_bytes))

    def _driver(self, folder: Path, inline_bytes: str) -> Driver:
        return Driver(self._cluster.uri, self.source, self.target, folder, inline_bytes, self.application)

    def go_on(self, victim: str) -> None:
        """Let the copy get through what is left, and bring back who was killed."""
        if victim == "driver":
            self.start()
        wait_until(lambda: self._is_alive("") and self._is_copied(), f"the copy to go on without the {victim}", SECONDS)
        if victim == "bookie":
            self._cluster.revive()
            self._name_bookie()

    def intrude(self) -> None:
        """Run the copy from another checkpoint under the same name, when no other query does: it must be refused."""
        folder = self._folder / "intruder"
        (folder / "kills").mkdir(parents=True)
        before = self._client.log(self.target).show()
        self._drivers.append(self._driver(folder, INLINE_BYTES[-1]))
        code = self._drivers[-1].wait()
        self._drivers.pop().end()
        if code != REFUSED:
            self.result.faults.append(f"a query of another checkpoint under the same name ended with {code}")
        if self._client.log(self.target).show() != before:
            self.result.faults.append("a query of another checkpoint under the same name changed the log")

    def _name_bookie(self) -> None:
        (self._kills / "bookie.pid").write_text(str(self._chance.choice(self._cluster.bookies).pid))

    def _is_alive(self, victim: str) -> bool:
        is_alive = self._drivers[-1].is_running
        if not is_alive and victim != "driver":
            said = (self._folder / "driver.log").read_text(errors="replace")[-2000:]
            raise AssertionError(f"the driver ended by itself: {said}")
        return is_alive

    def _is_copied(self) -> bool:
        listed = run(run(Log(self._client.asynchronous, self.target).snapshot).ledgers)
        ends = [(item.first_entry, item.last_entry) for item in listed if item.last_entry is not None]
        return sum(last - first + 1 for first, last in ends) >= len(self._rows)

    def _epochs(self) -> int:
        head = run(Log(self._client.asynchronous, self.target).snapshot).head
        return max((item[1] + 1 for item in head.last_epochs), default=0)

    # ---- what came of it ----

    def check(self) -> Result:
        """Look for lost, doubled, unordered or remaining rows; no process writes any more."""
        self.result.entries = len(self._rows)
        self.result.micro_batches = self._epochs()
        self.result.drivers = len(self._drivers)
        log = self._client.log(self.target)
        found = [payload for batch in log.read() for payload in batch]
        if found != self._rows:
            self._tell_difference(found)
        # All are dead, and their time to live is over.
        log.vacuum(older_than_s=0)
        if [payload for batch in log.read() for payload in batch] != found:
            self.result.faults.append("a vacuum changed the log")
        attempts = run(Log(self._client.asynchronous, self.target).store).attempts
        pending = run(lambda: attempts.pending(self.target))
        if pending:
            self.result.faults.append(f"{len(pending)} attempts are still registered")
        if orphans := self._orphans():
            self.result.faults.append(f"ledgers {orphans} hold entries and belong to no log")
        return self.result

    def _tell_difference(self, found: Sequence[bytes]) -> None:
        sent, seen = Counter(self._rows), Counter(found)
        lost, more = sorted((sent - seen).elements()), sorted((seen - sent).elements())
        self.result.faults.append(f"{len(lost)} lost {lost[:5]}, {len(more)} too many {more[:5]}, or out of order")

    def _orphans(self) -> list[int]:
        """Return the ledgers made for the copy that hold an entry and are not in it."""
        listed = {item["ledger"] for item in self._client.log(self.target).show()["ledgers"]}
        return [
            ledger_id for ledger_id in self._client.ledgers() if ledger_id not in listed and self._is_left(ledger_id)
        ]

    def _is_left(self, ledger_id: int) -> bool:
        try:
            metadata = self._client.metadata(ledger_id)
        except NoSuchLedger:
            return False
        if metadata.custom_metadata.get("log") != self.target.encode():
            return False
        # Killed between making a ledger and registering it, an attempt leaves an empty one.
        return self._client.open(ledger_id, recover=True).last_entry >= 0


def run_campaign(seed: int, kills: int, folder: Path) -> dict[str, Any]:
    """Run a campaign on a cluster of its own; return its result as JSON."""
    chance = random.Random(seed)
    began_s = time.monotonic()
    with Cluster(folder / "cluster", bookies=3) as cluster, Client(cluster.uri) as client:
        with Campaign(cluster, client, folder, "kills", seed) as campaign:
            campaign.start()
            for number, (stage, victim) in enumerate(itertools.islice(_shuffled(chance), kills)):
                campaign.kill(stage, victim)
                campaign.go_on(victim)
                print(f"{number + 1}/{kills} {victim} at {stage}", file=sys.stderr, flush=True)
            campaign.stop()
            if campaign.application:
                campaign.intrude()
        result = campaign.check()
    return {**vars(result), "seconds": round(time.monotonic() - began_s)}


def _shuffled(chance: random.Random) -> Iterator[tuple[str, str]]:
    while True:
        some = orders()
        chance.shuffle(some)
        yield from some


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bkspark-kills-") as folder:
        result = run_campaign(options.seed, options.kills, Path(folder))
    print(json.dumps(result))
    return 1 if result["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
