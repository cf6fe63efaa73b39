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
from tests.interop.apache import ApacheCluster
from tests.interop.conftest import Bookies
from tests.interop.pulsar_broker import NEEDS_BROKER, PulsarBroker, need_broker, running_broker
from tests.interop.topic_copy import CHECKPOINT, PIDS
from tests.polling import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.cluster, pytest.mark.spark, pytest.mark.admission_control, NEEDS_BROKER]

LOG = "copied"
MESSAGES = 8_000
MESSAGES_A_SECOND = 200
KILLS = 3
BROKER_KILL = 1
"""The round in which the broker is killed, too, while the stream runs."""
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


@pytest.fixture(params=["our bookies", "Apache's bookies"])
def pulsar_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bookies]:
    """ZooKeeper and three bookies, ours and then Apache's."""
    need_broker()
    if request.param == "our bookies":
        with Cluster(tmp_path / "cluster", bookies=3) as cluster:
            yield cluster
        return
    classpath, peer = (request.getfixturevalue(name) for name in ("classpath", "peer"))
    with ApacheCluster(classpath, tmp_path / "cluster", peer) as apache:
        yield apache


@pytest.fixture
def broker(pulsar_cluster: Bookies, tmp_path: Path) -> Iterator[PulsarBroker]:
    with running_broker(tmp_path / "broker", pulsar_cluster.uri, SETTINGS) as broker:
        yield broker


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

    def wait_until_it_goes_on(self, driver: ChildProcess) -> None:
        before = self.committed
        wait_until(
            lambda: driver.exit_code is not None or self.committed >= before + 2,
            f"the stream to go on; the driver's log is {driver.log_path}",
            SECONDS,
        )
        assert driver.exit_code is None, driver.last_log_line()

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


def test_each_message_is_in_the_log_once_though_driver_and_broker_are_killed_and_the_topic_moves(
    broker: PulsarBroker, pulsar_cluster: Bookies, tmp_path: Path
) -> None:
    """The producer goes on all the while; ledgers roll over, and the broker unloads the topic after each kill."""
    topic = "persistent://public/default/moving"
    producer = broker.user("steady", topic, MESSAGES, MESSAGES_A_SECOND, program="Topics")
    copy = Copy(pulsar_cluster.uri, topic, tmp_path / "copy")
    try:
        assert next(iter(producer.lines())).startswith("began")
        for kill in range(KILLS):
            driver = copy.start()
            copy.wait_until_it_goes_on(driver)
            if kill == BROKER_KILL:
                broker.kill()
                broker.start()
                copy.wait_until_it_goes_on(driver)
            wait_until(lambda: copy.is_within_an_epoch, "an epoch to be under way", SECONDS)
            copy.kill()
            broker.admin("PUT", "persistent/public/default/moving/unload")
        list(producer.lines())
        assert producer.wait(SECONDS)
        assert producer.exit_code == 0, producer.last_log_line()
        driver = copy.start("available")
        assert driver.wait(SECONDS)
        assert driver.exit_code == 0, driver.last_log_line()
        lines = broker.run("dump", topic, program="Topics")
        consumed = [int(bytes.fromhex(json.loads(line)["value"])) for line in lines]
        ledgers = json.loads(broker.admin("GET", "persistent/public/default/moving/internalStats"))["ledgers"]
        assert len(ledgers) > KILLS
        with Client(pulsar_cluster.uri) as client:
            copied = [int(bytes(entry)) for batch in client.log(LOG).read() for entry in batch]
    finally:
        copy.kill()
        producer.kill()
    assert copied == consumed, "a topic's order is a log's order"
    # A producer sends again what a killed broker did not answer: it may be in the topic twice.
    assert list(dict.fromkeys(copied)) == list(range(MESSAGES))
