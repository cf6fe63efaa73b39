"""Topics of an unmodified Pulsar broker, as our reader finds them in the ledgers and as Pulsar's own reader gets them.

`make test-pulsar` fetches the broker (235 MB) and runs these; elsewhere they are skipped. Topics.java produces.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from typing import Any

import pytest

from bkspark.spark.options import SourceOptions
from bkspark.spark.topic_read import TopicReader, topics_schema
from tests.cluster import Cluster
from tests.interop import build
from tests.interop.apache import ApacheCluster
from tests.interop.conftest import Bookies
from tests.interop.pulsar_broker import PulsarBroker
from tests.polling import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.cluster]

NAMESPACE = "persistent://public/default"
SETTINGS: dict[str, object] = {
    # The last entry of an idle topic is confirmed only then.
    "bookkeeperExplicitLacIntervalInMills": 100,
    "defaultRetentionTimeInMinutes": -1,
    "defaultRetentionSizeInMB": -1,
    "managedLedgerMaxEntriesPerLedger": 4,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "managedLedgerPassword": "secret",
    "managedLedgerInfoCompressionType": "ZSTD",
    "managedLedgerInfoCompressionThresholdInBytes": 0,
    "managedCursorInfoCompressionType": "LZ4",
    "managedCursorInfoCompressionThresholdInBytes": 0,
    "brokerEntryMetadataInterceptors": (
        "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor,"
        "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor"
    ),
    "exposingBrokerEntryMetadataToClientEnabled": "true",
    "transactionCoordinatorEnabled": "true",
    "allowAutoTopicCreationType": "non-partitioned",
    # Apache's bookies take no frame above 5 MiB unless they are set to: a chunk of Pulsar's default size is above it.
    "maxMessageSize": 1 << 20,
}


@pytest.fixture(scope="module", params=["our bookies", "Apache's bookies"])
def pulsar_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bookies]:
    """ZooKeeper and three bookies: what the broker stores is the same on ours and on Apache's."""
    if build.maven() is None or not build.is_built(build.PULSAR):
        pytest.skip("Pulsar's broker is not here: `make test-pulsar` fetches it with Maven and runs this test")
    directory = tmp_path_factory.mktemp("topics-cluster")
    if request.param == "our bookies":
        with Cluster(directory, bookies=3) as cluster:
            yield cluster
        return
    classpath, peer = (request.getfixturevalue(name) for name in ("classpath", "peer"))
    with ApacheCluster(classpath, directory, peer) as apache:
        yield apache


@pytest.fixture(scope="module")
def broker(pulsar_cluster: Bookies, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarBroker]:
    directory = tmp_path_factory.mktemp("pulsar-topics") / "broker"
    broker = PulsarBroker(build.classpath(build.PULSAR), directory, pulsar_cluster.uri, SETTINGS)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


@pytest.fixture(scope="module")
def filled(broker: PulsarBroker) -> list[str]:
    """Topics of every kind of message."""
    return [line.partition(" ")[2] for line in broker.run("fill", NAMESPACE, program="Topics")]


@pytest.fixture(scope="module")
def consumed(broker: PulsarBroker, filled: list[str]) -> dict[str, list[dict[str, Any]]]:
    """What Pulsar's reader gets of them, by topic."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in filled}
    for line in broker.run("dump", *dict.fromkeys(filled), program="Topics"):
        message = json.loads(line)
        found[message["topic"]].append(message)
    return found


def ours(cluster: Bookies, topic: str, **options: object) -> list[dict[str, Any]]:
    given = {"uri": cluster.uri, "topic": topic, "password": "secret"}
    parsed = SourceOptions.parse(given | {name: str(value) for name, value in options.items()})
    reader = TopicReader(topics_schema(parsed), parsed)
    return [row for part in reader.partitions() for found in reader.read(part) for row in found.to_pylist()]


def as_ours(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message of Pulsar's reader in the form of a row."""

    def octets(text: str | None) -> bytes | None:
        return None if text is None else bytes.fromhex(text)

    version = octets(message["schema_version"])
    return {
        "value": octets(message["value"]),
        "__key": octets(message["key"]),
        "__topic": message["topic"],
        "__messageId": octets(message["id"]),
        "__publishTime": message["publish_time"],
        "__eventTime": message["event_time"] or None,
        "__messageProperties": {bytes.fromhex(k).decode(): bytes.fromhex(v).decode() for k, v in message["properties"]},
        "__sequenceId": message["sequence_id"],
        "__producerName": message["producer"],
        "__orderingKey": octets(message["ordering_key"]),
        "__schemaVersion": int.from_bytes(version) if version else None,
        "__index": message["index"],
    }


def comparable(row: dict[str, Any]) -> dict[str, Any]:
    def milliseconds(value: datetime.datetime | None) -> int | None:
        return None if value is None else round(value.timestamp() * 1000)

    times = {name: milliseconds(row[name]) for name in ("__publishTime", "__eventTime")}
    return {**row, **times, "__messageProperties": dict(row["__messageProperties"])}


def test_every_message_is_the_one_that_pulsars_reader_gets(
    pulsar_cluster: Bookies, consumed: dict[str, list[dict[str, Any]]]
) -> None:
    """Codec x batching x key x properties x null value, chunks of two producers, schemas: message by message."""
    assert sum(map(len, consumed.values())) > 250
    for topic, messages in consumed.items():
        options = {"valueFormat": "raw", "includeMetadata": True, "encrypted": "fail"}
        if topic.endswith("/encrypted"):
            options["encrypted"] = "raw"
        found = [comparable(row) for row in ours(pulsar_cluster, topic, **options)]
        expected = [as_ours(message) for message in messages]
        kept = [{name: row[name] for name in wanted} for row, wanted in zip(found, expected)]
        assert len(found) == len(expected), topic
        for row, wanted in zip(kept, expected):
            assert row == wanted, topic


def test_every_message_of_a_python_producer_is_the_one_that_pulsars_reader_gets(
    broker: PulsarBroker, pulsar_cluster: Bookies
) -> None:
    """C++ writes batches of one as batches, ends streams of zlib, and cuts chunks by itself."""
    python_producer = pytest.importorskip("tests.interop.python_producer", exc_type=ImportError)
    topics = python_producer.fill(broker.url, NAMESPACE)
    expected: dict[str, list[dict[str, Any]]] = {name: [] for name in topics}
    for line in broker.run("dump", *topics, program="Topics"):
        message = json.loads(line)
        expected[message["topic"]].append(as_ours(message))
    assert sum(map(len, expected.values())) > 150
    for topic, messages in expected.items():

        def seen(topic: str = topic) -> list[dict[str, Any]]:
            return [comparable(row) for row in ours(pulsar_cluster, topic, valueFormat="raw", includeMetadata=True)]

        wait_until(lambda seen=seen, messages=messages: len(seen()) == len(messages), f"the end of {topic}", 30)
        for row, wanted in zip(seen(), messages):
            assert {name: row[name] for name in wanted} == wanted, topic


@pytest.mark.parametrize("partitions", [2, 50])
def test_chunks_are_joined_however_the_topic_is_cut_into_tasks(
    pulsar_cluster: Bookies, consumed: dict[str, list[dict[str, Any]]], partitions: int
) -> None:
    topic = f"{NAMESPACE}/chunks-LZ4"
    found = ours(pulsar_cluster, topic, minPartitions=partitions)
    assert [row["value"] for row in found] == [bytes.fromhex(each["value"]) for each in consumed[topic]]
    assert max(len(row["value"]) for row in found) > 12_000


UTC = datetime.UTC
PRIMITIVES = {
    "string": ["", "hällo"],
    "bool": [True, False],
    "int8": [-5, 7],
    "int16": [-300],
    "int32": [-70000, 5],
    "int64": [-(1 << 63), 5],
    "float": [1.5],
    "double": [-2.25],
    "date": [datetime.date(1970, 12, 31)],
    "time": [1234],
    "timestamp": [datetime.datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)],
    "instant": [datetime.datetime(1970, 1, 1, 0, 0, 2, 999_999, UTC)],
    "local-date": [datetime.date(1971, 1, 1)],
    "local-time": [1234],
    "local-date-time": [datetime.datetime(1970, 1, 2, 0, 0, 1)],
}
CLICK = {"number": 5, "page": "/ü", "spots": [1, 1 << 40], "tags": [("a", "b")]}
EMPTY = {"number": 0, "page": None, "spots": None, "tags": None}


@pytest.mark.parametrize("name", PRIMITIVES)
def test_primitives_are_the_values_that_were_produced(pulsar_cluster: Bookies, filled: list[str], name: str) -> None:
    assert [row["value"] for row in ours(pulsar_cluster, f"{NAMESPACE}/schema-{name}")] == PRIMITIVES[name]


def test_records_are_columns_by_the_newest_schema(pulsar_cluster: Bookies, filled: list[str]) -> None:
    pytest.importorskip("fastavro")

    def payload(row: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in row.items() if not name.startswith("__")}

    assert [payload(row) for row in ours(pulsar_cluster, f"{NAMESPACE}/schema-json")] == [CLICK, EMPTY]
    later = [{**each, "weight": None} for each in (CLICK, EMPTY)] + [{**EMPTY, "number": 6, "weight": 0.5}]
    assert [payload(row) for row in ours(pulsar_cluster, f"{NAMESPACE}/schema-avro")] == later
    inline = [payload(row) for row in ours(pulsar_cluster, f"{NAMESPACE}/schema-kv-inline")]
    assert inline == [{"key": "k", "value": 258}]
    separated = [payload(row) for row in ours(pulsar_cluster, f"{NAMESPACE}/schema-kv-separated")]
    assert separated == [{"key": "k", "value": CLICK}]


def test_messages_of_transactions_are_those_that_a_broker_shows(broker: PulsarBroker, pulsar_cluster: Bookies) -> None:
    topic = f"{NAMESPACE}/transactions"
    broker.run("transactions", topic, program="Topics")

    def seen() -> list[bytes]:
        return [row["value"] for row in ours(pulsar_cluster, topic)]

    dumped = [bytes.fromhex(json.loads(line)["value"]) for line in broker.run("dump", topic, program="Topics")]
    assert dumped == [b"plain 0", b"committed"]
    wait_until(lambda: seen() == dumped, "the end of the topic to be confirmed", 30)
    everything = [row["value"] for row in ours(pulsar_cluster, topic, isolation="read_uncommitted")]
    assert everything == [b"plain 0", b"committed", b"aborted", b"open", b"plain 1"]


def test_partitioned_topic_is_one_also_after_unload_and_terminate(
    broker: PulsarBroker, pulsar_cluster: Bookies
) -> None:
    name = "parts%20%C3%BC"
    broker.admin("PUT", f"persistent/public/default/{name}/partitions", 3)
    topic = f"{NAMESPACE}/parts ü"
    broker.run("batches", topic, 200, 10, program="Topics")
    parts = [f"{topic}-partition-{part}" for part in range(3)]
    dumped = [json.loads(line) for line in broker.run("dump", *parts, program="Topics")]
    assert len(dumped) == 200
    expected = [bytes.fromhex(each["id"]) for each in dumped]

    def seen() -> list[bytes]:
        return [row["__messageId"] for row in ours(pulsar_cluster, topic)]

    wait_until(lambda: seen() == expected, "the end of the topic to be confirmed", 30)
    broker.admin("PUT", f"persistent/public/default/{name}-partition-1/unload")
    assert seen() == expected
    for part in range(3):
        broker.admin("POST", f"persistent/public/default/{name}-partition-{part}/terminate")
    assert seen() == expected


def test_compacted_topic_is_what_pulsars_reader_of_compacted_topics_gets(
    broker: PulsarBroker, pulsar_cluster: Bookies
) -> None:
    """Compacted twice, with messages after the horizon: the ledger that the first one made is gone by then."""
    topic = f"{NAMESPACE}/compacted"
    for _ in range(2):
        broker.run("keyed", topic, program="Topics")
        broker.admin("PUT", "persistent/public/default/compacted/compaction")
        wait_until(
            lambda: b"SUCCESS" in broker.admin("GET", "persistent/public/default/compacted/compaction"),
            "the topic to be compacted",
            60,
        )
    broker.run("keyed", topic, program="Topics")
    dumped = [json.loads(line) for line in broker.run("dump-compacted", topic, program="Topics")]
    expected = [(bytes.fromhex(each["key"]), each["value"] and bytes.fromhex(each["value"])) for each in dumped]
    assert 43 <= len(expected) < 86

    def seen() -> list[tuple[bytes, bytes | None]]:
        return [(row["__key"], row["value"]) for row in ours(pulsar_cluster, topic, readCompacted=True)]

    wait_until(lambda: seen() == expected, "the compacted topic to be the same", 30)


def test_broker_that_is_killed_leaves_what_was_confirmed_and_recovers_the_rest(
    broker: PulsarBroker, pulsar_cluster: Bookies
) -> None:
    topic = f"{NAMESPACE}/killed"
    broker.run("batches", topic, 5000, 100, program="Topics")

    def seen() -> list[bytes]:
        return [row["__messageId"] for row in ours(pulsar_cluster, topic)]

    wait_until(lambda: len(seen()) == 5000, "the end of the topic to be confirmed", 30)
    before = seen()
    broker.kill()
    assert seen() == before
    broker.start()
    broker.run("batches", topic, 100, 100, program="Topics")
    dumped = [bytes.fromhex(json.loads(line)["id"]) for line in broker.run("dump", topic, program="Topics")]
    assert dumped[:5000] == before
    wait_until(lambda: seen() == dumped, "the end of the topic to be confirmed", 30)
