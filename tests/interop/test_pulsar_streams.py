"""Streams of an unmodified Pulsar broker's topics into logs: each message once, whatever is killed or moved meanwhile.

`make test-pulsar` fetches the broker (235 MB) and runs these; elsewhere they are skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.blocking import Client
from bkspark.cli.child_process import ChildProcess
from tests.cluster import Cluster
from tests.interop import build
from tests.interop.pulsar_broker import PulsarBroker
from tests.interop.topic_copy import CHECKPOINT, PIDS
from tests.polling import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.cluster, pytest.mark.spark, pytest.mark.admission_control]

LOG = "copied"
MESSAGES = 8_000
MESSAGES_A_SECOND = 200
KILLS = 3
SECONDS = 300.0
SETTINGS: dict[str, object] = {
    "bookkeeperExplicitLacIntervalInMills": 100,
    "defaultRetentionTimeInMinutes": -1,
    "defaultRetentionSizeInMB": -1,
    # A ledger is rolled over every second or two.
    "managedLedgerMaxEntriesPerLedger": 30,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "allowAutoTopicCreationType": "non-partitioned",
}


@pytest.fixture
def pulsar_cluster(tmp_path: Path) -> Iterator[Cluster]:
    if build.maven() is None or not build.is_built(build.PULSAR):
        pytest.skip("Pulsar's broker is not here: `make test-pulsar` fetches it with Maven and runs this test")
    with Cluster(tmp_path / "cluster", bookies=3) as cluster:
        yield cluster


@pytest.fixture
def broker(pulsar_cluster: Cluster, tmp_path: Path) -> Iterator[PulsarBroker]:
    broker = PulsarBroker(build.classpath(build.PULSAR), tmp_path / "broker", pulsar_cluster.uri, SETTINGS)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


class Copy:
    """The streaming copy of one topic: its driver is started, killed and started again on one checkpoint."""

    def __init__(self, uri: str, topic: str, folder: Path) -> None:
        self._words = [sys.executable, "-m", "tests.interop.topic_copy", uri, topic, LOG, str(folder)]
        self._folder = folder
        self._driver: ChildProcess | None = None
        folder.mkdir()

    def start(self, until: str = "all") -> ChildProcess:
        (self._folder / PIDS).unlink(missing_ok=True)
        self._driver = ChildProcess("driver", [*self._words, until], self._folder / "driver.log")
        return self._driver

    @property
    def is_within_an_epoch(self) -> bool:
        """Whether an epoch is planned that is not committed: then a kill leaves the most to find out."""
        planned, committed = (self._newest(kind) for kind in ("offsets", "commits"))
        return planned > committed

    @property
    def committed(self) -> int:
        return self._newest("commits")

    def kill(self) -> None:
        """SIGKILL the driver and its JVM."""
        pids = self._folder / PIDS
        for pid in pids.read_text().split() if pids.exists() else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if self._driver is not None:
            self._driver.kill()

    def _newest(self, kind: str) -> int:
        names = [path.name for path in (self._folder / CHECKPOINT / kind).glob("*")]
        return max((int(name) for name in names if name.isdecimal()), default=-1)


def test_each_message_is_in_the_log_once_though_the_driver_is_killed_and_the_topic_moves(
    broker: PulsarBroker, pulsar_cluster: Cluster, tmp_path: Path
) -> None:
    """The producer goes on all the while; ledgers roll over, and the broker unloads the topic after each kill."""
    topic = "persistent://public/default/moving"
    producer = broker.user("steady", topic, MESSAGES, MESSAGES_A_SECOND, program="Topics")
    copy = Copy(pulsar_cluster.uri, topic, tmp_path / "copy")
    try:
        assert next(iter(producer.lines())).startswith("began")
        for _ in range(KILLS):
            before = copy.committed
            driver = copy.start()
            wait_until(
                lambda driver=driver, before=before: driver.exit_code is not None or copy.committed >= before + 2,
                f"the stream to go on; the driver's log is {driver.log_path}",
                SECONDS,
            )
            assert driver.exit_code is None, driver.last_log_line()
            wait_until(lambda: copy.is_within_an_epoch, "an epoch to be under way", SECONDS)
            copy.kill()
            broker.admin("PUT", "persistent/public/default/moving/unload")
        list(producer.lines())
        assert producer.wait(SECONDS)
        assert producer.exit_code == 0, producer.last_log_line()
        driver = copy.start("available")
        assert driver.wait(SECONDS)
        assert driver.exit_code == 0, driver.last_log_line()
        ledgers = json.loads(broker.admin("GET", "persistent/public/default/moving/internalStats"))["ledgers"]
        assert len(ledgers) > KILLS
        with Client(pulsar_cluster.uri) as client:
            copied = [int(bytes(entry)) for batch in client.log(LOG).read() for entry in batch]
    finally:
        copy.kill()
        producer.kill()
    assert sorted(copied) == list(range(MESSAGES))
    assert copied == sorted(copied), "a topic's order is a log's order"
