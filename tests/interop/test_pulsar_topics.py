"""Topics of an unmodified Pulsar broker, as our reader finds them in the ledgers and as Pulsar's own reader gets them.

`make test-pulsar` fetches the broker (235 MB) and runs these; elsewhere they are skipped. Topics.java produces.
"""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from bkspark.errors import ConfigurationError, DataLoss, NoSuchLog
from bkspark.spark.options import SourceOptions
from bkspark.spark.source import BookKeeperDataSource
from bkspark.spark.topic_read import TopicReader, topics_schema
from bkspark.spark.topic_stream import TopicStreamReader
from tests.cluster import Cluster
from tests.interop import build
from tests.interop.apache import ApacheCluster
from tests.interop.conftest import Bookies
from tests.interop.pulsar_broker import NEEDS_BROKER, PulsarBroker
from tests.interop.pulsar_messages import as_ours, comparable
from tests.interop.sealed import key_pairs, opened
from tests.polling import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.cluster, NEEDS_BROKER]

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
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "allowAutoTopicCreationType": "non-partitioned",
    # What a subscription acknowledged is stored at once.
    "managedLedgerDefaultMarkDeleteRateLimit": 1000,
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


class Stream:
    """A stream of a topic from its beginning, in micro-batches of a few entries."""

    def __init__(self, cluster: Bookies, topic: str, **options: object) -> None:
        given = {"uri": cluster.uri, "topic": topic, "password": "secret", "startingOffsets": "earliest"}
        more = {name: str(value) for name, value in options.items()}
        parsed = SourceOptions.parse({**given, "maxEntriesPerTrigger": "3", **more})
        self._reader = TopicStreamReader(StructType().add("__messageId", "binary").add("value", "binary"), parsed)
        self._offset = self._reader.initialOffset()

    def ids(self) -> list[bytes]:
        """Return the ids of the messages that follow now."""
        found: list[bytes] = []
        while (end := self._reader.latestOffset(self._offset, self._reader.getDefaultReadLimit())) != self._offset:
            for part in self._reader.partitions(self._offset, end):
                found += [one for rows in self._reader.read(part) for one in rows["__messageId"].to_pylist()]
            self._offset = end
        return found


def compare(cluster: Bookies, topic: str, expected: list[dict[str, Any]], **options: object) -> list[dict[str, Any]]:
    """Compare the rows of a topic with messages in the form of rows, one by one, of a stream too; return the rows."""

    def seen() -> list[dict[str, Any]]:
        return [comparable(row) for row in ours(cluster, topic, valueFormat="raw", includeMetadata=True, **options)]

    wait_until(lambda: len(seen()) == len(expected), f"the end of {topic} to be confirmed", 30)
    found = seen()
    for row, wanted in zip(found, expected, strict=True):
        assert {name: row[name] for name in wanted} == wanted, topic
    if "readCompacted" not in options:
        stream = Stream(cluster, topic, valueFormat="raw", **options)
        assert stream.ids() == [row["__messageId"] for row in found], topic
    return found


def got_by_pulsar(broker: PulsarBroker, topics: list[str], command: str = "dump") -> dict[str, list[dict[str, Any]]]:
    """Return what Pulsar's reader gets of topics, in the form of rows."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in topics}
    for line in broker.run(command, *topics, program="Topics"):
        message = json.loads(line)
        found[message["topic"]].append(as_ours(message))
    return found


def test_every_message_is_the_one_that_pulsars_reader_gets(
    pulsar_cluster: Bookies, consumed: dict[str, list[dict[str, Any]]]
) -> None:
    """Codec x batching x key x properties x null value, chunks of two producers, schemas: message by message."""
    assert sum(map(len, consumed.values())) > 250
    for topic, messages in consumed.items():
        encrypted = "raw" if topic.endswith("/encrypted") else "fail"
        compare(pulsar_cluster, topic, [as_ours(message) for message in messages], encrypted=encrypted)


def matrix(broker: PulsarBroker, command: str, *more: object) -> list[str]:
    """Let Matrix.java produce; return the topics."""
    return [line.partition(" ")[2] for line in broker.run(command, NAMESPACE, *more, program="Matrix")]


API = {
    "methods": [
        {
            "name": "get",
            "request_type_url": "",
            "request_streaming": False,
            "response_type_url": "",
            "response_streaming": True,
            "options": [{"name": "o", "value": {"type_url": "t", "value": b"\1\xff"}}],
            "syntax": "SYNTAX_PROTO2",
        }
    ],
    "options": [],
    "version": "v1",
    "source_context": {"file_name": "a.proto"},
    "mixins": [],
    "syntax": "SYNTAX_PROTO3",
}
NOTHING = {
    "json": {"number": None, "page": None, "spots": None, "tags": None},
    "avro": {"number": None, "page": None, "spots": None, "tags": None},
    "protobuf": dict.fromkeys(["name", *API]),
}


def payloads(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if not name.startswith("__")} for row in rows]


def is_matrix_right(kind: str, found: list[dict[str, Any]]) -> bool:
    """Whether the columns of a topic have what Matrix.java's `schemas` gave its producer."""
    if kind == "string":
        first, second, third, large = (row["value"] for row in found)
        return (first, second, third, len(large)) == ("", "hällo", None, 3500)
    if kind == "rates":
        return [str(row) for row in found] == ["{'part': -inf, 'rate': nan}", "{'part': 0.0, 'rate': 0.0}"]
    if kind in ("inline", "separated"):
        *small, large = ((row["key"], row["value"]) for row in found)
        return small == [("k", 258), (None, 5), ("gone", None)] and (len(large[0]), large[1]) == (3500, 7)
    whole, null, empty = found
    if kind == "protobuf":
        names = ("methods", "options", "version", "source_context", "mixins", "syntax")
        is_whole = {name: whole[name] for name in names} == API and len(whole["name"]) == 3500
        return is_whole and null == NOTHING[kind] and (empty["name"], empty["source_context"]) == ("", None)
    is_whole = {**whole, "page": CLICK["page"]} == CLICK and len(whole["page"]) == 3500
    return is_whole and (null, empty) == (NOTHING[kind], EMPTY)


def test_schemas_of_every_codec_and_way_of_sending_are_columns_and_messages(
    broker: PulsarBroker, pulsar_cluster: Bookies
) -> None:
    """Codec x (single, batched, chunks) x (primitive, JSON, Avro, Protobuf of several files, KEY_VALUE both ways), null
    values, and null keys and values of pairs."""
    pytest.importorskip("fastavro")
    topics = matrix(broker, "schemas")
    assert len(topics) == 5 * 3 * 7
    for topic, messages in got_by_pulsar(broker, topics).items():
        compare(pulsar_cluster, topic, messages)
        found = payloads(ours(pulsar_cluster, topic))
        assert is_matrix_right(topic.rpartition("-")[2], found), (topic, found)


def test_transactions_of_every_codec_and_way_of_sending_are_those_that_a_broker_shows(
    broker: PulsarBroker, pulsar_cluster: Bookies
) -> None:
    topics = matrix(broker, "transactions")
    assert len(topics) == 5 * 3
    for topic, messages in got_by_pulsar(broker, topics).items():
        assert [row["__key"] for row in messages] == [b"k0", b"k1", b"k2", b"k3", b"k6", b"k7", b"k8", b"k9", None]
        found = compare(pulsar_cluster, topic, messages)
        in_transactions = [row["__txnId"] is not None for row in found]
        assert in_transactions == [False, False, True, True, False, False, True, True, False]
        whole = ours(pulsar_cluster, topic, isolation="read_uncommitted")
        assert [row["__key"] for row in whole] == [*(b"k%d" % number for number in range(12)), None]


def test_encrypted_messages_can_be_decrypted_from_what_the_columns_hold(
    broker: PulsarBroker, pulsar_cluster: Bookies, tmp_path: Path
) -> None:
    """Codec x (single, batched, chunks), with either of two private keys."""
    private_keys = key_pairs(tmp_path, ("one", "two"))
    topics = matrix(broker, "encrypted", tmp_path)
    assert len(topics) == 5 * 3
    for topic, messages in got_by_pulsar(broker, [each for each in topics if not each.endswith("chunks")]).items():
        compare(pulsar_cluster, topic, messages, encrypted="raw")
    for topic in topics:
        with pytest.raises(ConfigurationError, match=r"encrypted for keys (one, two|two, one)"):
            ours(pulsar_cluster, topic)
        assert ours(pulsar_cluster, topic, encrypted="skip") == []
        for name, private_key in private_keys.items():
            found = ours(pulsar_cluster, topic, encrypted="raw", includeMetadata=True)
            wanted = [b"x" * (number * 3500) + b"%d" % number for number in range(3)]
            assert opened(found, name, private_key) == wanted, topic


def test_avro_of_two_versions_has_defaults_unions_and_logical_types(
    broker: PulsarBroker, pulsar_cluster: Bookies
) -> None:
    pytest.importorskip("fastavro")
    topic = f"{NAMESPACE}/evolved"
    broker.run("evolved", topic, program="Matrix")
    at = datetime.datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)
    day = datetime.date(1971, 1, 1)

    def seen() -> list[dict[str, Any]]:
        return payloads(ours(pulsar_cluster, topic))

    wait_until(lambda: len(seen()) == 2, "the end of the topic to be confirmed", 30)
    assert seen() == [
        {
            "i": 1,
            "at": at,
            "price": decimal.Decimal("-1.27"),
            "either": {"member0": 7, "member1": None},
            "day": day,
            "suit": "A",
            "inner": {"x": 0.5, "y": 1.5},
            "note": "none",
            "ids": None,
        },
        {
            "i": 2,
            "at": at,
            "price": decimal.Decimal("-1.26"),
            "either": {"member0": None, "member1": "seven"},
            "day": day,
            "suit": "B",
            "inner": {"x": 1.0, "y": 2.5},
            "note": "here",
            "ids": [1, 1 << 40],
        },
    ]
    compare(pulsar_cluster, topic, got_by_pulsar(broker, [topic])[topic])


def test_topic_whose_schema_was_deleted_gives_bytes(broker: PulsarBroker, pulsar_cluster: Bookies) -> None:
    topic = f"{NAMESPACE}/unschemed"
    broker.run("evolved", topic, program="Matrix")
    broker.admin("DELETE", "schemas/public/default/unschemed/schema")
    broker.run("batches", topic, 10, 10, program="Topics")
    messages = got_by_pulsar(broker, [topic])[topic]
    assert len(compare(pulsar_cluster, topic, messages)) == 12
    assert [row["value"] for row in ours(pulsar_cluster, topic)] == [row["value"] for row in messages]


def test_shadow_topic_names_its_source(broker: PulsarBroker, pulsar_cluster: Bookies, filled: list[str]) -> None:
    source = f"{NAMESPACE}/schema-string"
    broker.admin("PUT", "persistent/public/default/shadow", {"PULSAR.SHADOW_SOURCE": source})
    with pytest.raises(ConfigurationError, match=f"shadow of {source}"):
        ours(pulsar_cluster, f"{NAMESPACE}/shadow")


def test_delayed_messages_are_there_when_they_are_stored(broker: PulsarBroker, pulsar_cluster: Bookies) -> None:
    topic = f"{NAMESPACE}/delayed"
    broker.run("delayed", topic, program="Matrix")
    found = compare(pulsar_cluster, topic, got_by_pulsar(broker, [topic])[topic])
    assert [row["__deliverAt"] is not None for row in found] == [True] * 3


def test_subscription_is_what_the_broker_says_while_it_is_open_and_after_an_unload(
    broker: PulsarBroker, pulsar_cluster: Bookies
) -> None:
    """Mark-delete, what was acknowledged out of order, the backlog, and where `startingSubscription` begins."""
    topic = f"{NAMESPACE}/acknowledged"
    broker.run("produce", topic, 0, 30)
    broker.run("acknowledge", topic, "some one ü", 30, program="Matrix")
    path = "persistent/public/default/acknowledged"
    (cursor,) = json.loads(broker.admin("GET", f"{path}/internalStats"))["cursors"].values()
    backlog = json.loads(broker.admin("GET", f"{path}/stats?getPreciseBacklog=true"))["subscriptions"]["some one ü"]

    def seen() -> tuple[object, ...]:
        source = BookKeeperDataSource({"uri": pulsar_cluster.uri, "inspect": "subscriptions", "password": "secret"})
        reader = source.reader(source.schema())
        rows = [row for part in reader.partitions() for found in reader.read(part) for row in found.to_pylist()]
        (row,) = [row for row in rows if (row["topic"], row["subscription"]) == (topic, "some one ü")]
        mark = f"{row['mark_delete_ledger']}:{row['mark_delete_entry']}"
        return mark, row["acknowledged_after"], row["backlog_entries"]

    # 0, 1 and 2, then 4, 8 … 28 of 30.
    expected = (cursor["markDeletePosition"], 7, backlog["msgBacklog"])
    assert backlog["msgBacklog"] == 20
    wait_until(lambda: seen() == expected, f"the subscription to be {expected}", 30)
    values = [row["value"] for row in ours(pulsar_cluster, topic, startingSubscription="some one ü")]
    assert values == [b"message %d" % number for number in range(3, 30)]
    broker.admin("PUT", f"{path}/unload")
    wait_until(lambda: seen()[1:] == expected[1:], f"the stored subscription to be {expected}", 30)
    assert [row["value"] for row in ours(pulsar_cluster, topic, startingSubscription="some one ü")] == values
    with pytest.raises(NoSuchLog, match="no subscription 'none'"):
        ours(pulsar_cluster, topic, startingSubscription="none")


def test_messages_of_a_batch_that_are_not_acknowledged_are_those_that_a_broker_delivers(
    broker: PulsarBroker, pulsar_cluster: Bookies
) -> None:
    """The broker counts a batch of which some messages are acknowledged as one entry, and delivers the others again."""
    python_producer = pytest.importorskip("tests.interop.python_producer", exc_type=ImportError)
    topic = f"{NAMESPACE}/within-batches"
    left = python_producer.acknowledge_within_batches(broker.url, topic, "s")
    assert left == [7, 9, 10, 11, 13, 14]
    path = "persistent/public/default/within-batches"

    def seen() -> list[object]:
        source = BookKeeperDataSource({"uri": pulsar_cluster.uri, "inspect": "subscriptions", "password": "secret"})
        reader = source.reader(source.schema())
        rows = [row for part in reader.partitions() for found in reader.read(part) for row in found.to_pylist()]
        (row,) = [row for row in rows if (row["topic"], row["subscription"]) == (topic, "s")]
        return [row[name] for name in ("backlog_entries", "partial_entries", "partial_messages")]

    for _ in ("open", "unloaded"):
        stats = json.loads(broker.admin("GET", f"{path}/stats?getPreciseBacklog=true"))["subscriptions"]["s"]
        wait_until(lambda: seen() == [2, 2, len(left)], "the subscription to be stored", 30)
        assert stats["msgBacklog"] == 2
        values = [int(row["value"]) for row in ours(pulsar_cluster, topic, startingSubscription="s")]
        assert values == list(range(7, 15))
        broker.admin("PUT", f"{path}/unload")


def test_every_message_of_a_python_producer_is_the_one_that_pulsars_reader_gets(
    broker: PulsarBroker, pulsar_cluster: Bookies
) -> None:
    """C++ writes batches of one as batches, ends streams of zlib, and cuts chunks by itself."""
    python_producer = pytest.importorskip("tests.interop.python_producer", exc_type=ImportError)
    expected = got_by_pulsar(broker, python_producer.fill(broker.url, NAMESPACE))
    assert sum(map(len, expected.values())) > 150
    for topic, messages in expected.items():
        compare(pulsar_cluster, topic, messages)
        if "-avro-" in topic or "-json-" in topic:
            found = payloads(ours(pulsar_cluster, topic))
            assert found == [{"number": number, "page": f"/{number}ü"} for number in range(5)], topic


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

    assert payloads(ours(pulsar_cluster, f"{NAMESPACE}/schema-json")) == [CLICK, EMPTY]
    later = [{**each, "weight": None} for each in (CLICK, EMPTY)] + [{**EMPTY, "number": 6, "weight": 0.5}]
    assert payloads(ours(pulsar_cluster, f"{NAMESPACE}/schema-avro")) == later
    inline = payloads(ours(pulsar_cluster, f"{NAMESPACE}/schema-kv-inline"))
    assert inline == [{"key": "k", "value": 258}]
    separated = payloads(ours(pulsar_cluster, f"{NAMESPACE}/schema-kv-separated"))
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


def test_stream_reads_partitions_that_are_added_and_a_topic_that_is_created_again(
    broker: PulsarBroker, pulsar_cluster: Bookies
) -> None:
    """The topic is deleted and created again with other partitions, which a stream that fails on losses reports."""
    topic, path = f"{NAMESPACE}/growing", "persistent/public/default/growing/partitions"
    parts = [f"{topic}-partition-{part}" for part in range(3)]

    def produced(count: int) -> list[bytes]:
        broker.run("batches", topic, 60, 10, program="Topics")
        found = got_by_pulsar(broker, parts[:count])
        return [row["__messageId"] for part in parts[:count] for row in found[part]]

    def wait_for(expected: list[bytes], found: list[bytes], stream: Stream) -> list[bytes]:
        def is_there() -> bool:
            found.extend(stream.ids())
            return len(found) >= len(expected)

        wait_until(is_there, f"{len(expected)} messages of the stream", 30)
        assert sorted(found) == sorted(expected)
        return found

    broker.admin("PUT", path, 1)
    lax = Stream(pulsar_cluster, topic, failOnDataLoss="false")
    strict = Stream(pulsar_cluster, topic)
    found = wait_for(produced(1), [], lax)
    wait_for(found, [], strict)
    broker.admin("POST", path, 3)
    before = list(found)
    found = wait_for(produced(3), found, lax)
    assert len(set(found)) == 120
    wait_for(found, before, strict)
    broker.admin("DELETE", f"{path}?force=true")
    assert lax.ids() == []
    with pytest.raises(DataLoss, match="was deleted"):
        strict.ids()
    broker.admin("PUT", path, 2)
    wait_for(produced(2), [], lax)


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
    expected = got_by_pulsar(broker, [topic], "dump-compacted")[topic]
    assert 43 <= len(expected) < 86
    compare(pulsar_cluster, topic, expected, readCompacted=True)


def test_compacted_view_has_the_last_value_of_each_key_also_while_the_topic_is_compacted(
    broker: PulsarBroker, pulsar_cluster: Bookies
) -> None:
    topic = f"{NAMESPACE}/compacting"
    path = "persistent/public/default/compacting/compaction"
    for _ in range(3):
        broker.run("keyed", topic, program="Topics")
    last = {row["__key"]: row["value"] for row in got_by_pulsar(broker, [topic])[topic]}
    expected = {key: value for key, value in last.items() if value is not None}
    assert len(expected) == 6

    def seen() -> dict[bytes, bytes]:
        rows = ours(pulsar_cluster, topic, readCompacted=True)
        found = {row["__key"]: row["value"] for row in rows}
        return {key: value for key, value in found.items() if value is not None}

    def is_done() -> bool:
        assert seen() == expected
        return b"SUCCESS" in broker.admin("GET", path)

    wait_until(lambda: seen() == expected, "the end of the topic to be confirmed", 30)
    for _ in range(3):
        broker.admin("PUT", path)
        wait_until(is_done, "the topic to be compacted", 60)
        assert seen() == expected
        broker.run("keyed", topic, program="Topics")
        wait_until(lambda: seen() == expected, "the end of the topic to be confirmed", 30)


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
