"""Transactions of a broker that keeps its snapshots of them in segments.

`make test-pulsar` fetches the broker (235 MB) and runs these; elsewhere they are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.spark.options import SourceOptions
from bkspark.spark.topic_read import TopicReader, topics_schema
from tests.cluster import Cluster
from tests.interop.pulsar_broker import NEEDS_BROKER, PulsarBroker, need_broker, running_broker
from tests.polling import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.cluster, NEEDS_BROKER]

TOPIC = "persistent://public/default/segments"
SETTINGS: dict[str, object] = {
    "bookkeeperExplicitLacIntervalInMills": 100,
    "defaultRetentionTimeInMinutes": -1,
    "defaultRetentionSizeInMB": -1,
    "transactionCoordinatorEnabled": "true",
    "transactionBufferSegmentedSnapshotEnabled": "true",
    "allowAutoTopicCreationType": "non-partitioned",
}


@pytest.fixture
def pulsar_cluster(tmp_path: Path) -> Iterator[Cluster]:
    need_broker()
    with Cluster(tmp_path / "cluster", bookies=3) as cluster:
        yield cluster


@pytest.fixture
def broker(pulsar_cluster: Cluster, tmp_path: Path) -> Iterator[PulsarBroker]:
    with running_broker(tmp_path / "broker", pulsar_cluster.uri, SETTINGS) as broker:
        yield broker


def test_transactions_are_found_by_the_snapshots_that_have_segments(
    broker: PulsarBroker, pulsar_cluster: Cluster
) -> None:
    """A topic that no snapshot names would be read as if it had no transactions, and fail."""
    broker.run("transactions", TOPIC, program="Topics")

    def seen(isolation: str) -> list[bytes]:
        options = SourceOptions.parse({"uri": pulsar_cluster.uri, "topic": TOPIC, "isolation": isolation})
        reader = TopicReader(topics_schema(options), options)
        parts = [reader.read(part) for part in reader.partitions()]
        return [value for rows in parts for found in rows for value in found["value"].to_pylist()]

    dumped = [bytes.fromhex(json.loads(line)["value"]) for line in broker.run("dump", TOPIC, program="Topics")]
    assert dumped == [b"plain 0", b"committed"]
    wait_until(lambda: len(seen("read_uncommitted")) == 5, "the end of the topic to be confirmed", 30)
    assert seen("read_committed") == dumped
