"""Drivers killed with SIGKILL at random moments, restarted on their checkpoint: nothing lost, nothing twice."""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bkspark.blocking import Client
from tests.polling import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

ROOT = Path(__file__).parents[2]
KILLS = 2
BURST = 2_000
SECONDS = 180


class Driver:
    """The copying driver as a process group of its own: Python, JVM and Python workers die together."""

    def __init__(self, uri: str, source: str, target: str, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.spark.copy_job", uri, source, target, str(folder)]
        self._log = (folder / "driver.log").open("ab")
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL, start_new_session=True
        )

    def wait_for_entries(self, client: Client, log: str, count: int) -> None:
        """Wait until the log holds so many entries, as its list of closed ledgers tells."""

        def is_there() -> bool:
            assert self._process.poll() is None, "the driver ended by itself: see driver.log"
            return entry_count(client, log) >= count

        wait_until(is_there, f"{count} entries in log {log}", SECONDS)

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()


def entry_count(client: Client, log: str) -> int:
    return sum(ledger["last_entry"] + 1 for ledger in client.log(log).show()["ledgers"])


@pytest.mark.parametrize("seed", [11])
@pytest.mark.admission_control
def test_stream_through_driver_kills_copies_every_entry_once(cluster, client, tmp_path, seed):
    chance = random.Random(seed)
    source, target = f"source-{tmp_path.name}-{seed}", f"target-{tmp_path.name}-{seed}"
    client.log(source).create()
    client.log(target).create()
    sent = 0
    for kill in range(KILLS + 1):
        driver = Driver(cluster.uri, source, target, tmp_path)
        try:
            before = entry_count(client, target)
            with client.log(source).open_for_writing() as log:
                log.append_many([b"%d" % n for n in range(sent, sent + BURST)])
            sent += BURST
            if kill == KILLS:
                driver.wait_for_entries(client, target, sent)
            else:
                # At least one epoch of this run is published; then anywhere in the next ones.
                driver.wait_for_entries(client, target, before + 1)
                wait_until(lambda: chance.random() < 0.05, "a random moment")
        finally:
            driver.kill()
    found = Counter(payload for batch in client.log(target).read() for payload in batch)
    assert found == Counter(b"%d" % n for n in range(sent)), f"seed {seed}"
