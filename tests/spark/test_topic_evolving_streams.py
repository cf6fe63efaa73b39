"""Streams of topics whose schema gets versions while they run: the columns are those with which a stream began."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bkspark.spark.source import BookKeeperDataSource
from tests.cluster import Cluster
from tests.pulsar.entries import Message, single
from tests.pulsar.stored import StoredTopic

pytestmark = pytest.mark.cluster

NUMBER = ("n", "int")
TEXT = ("t", "string")
MORE = ("more", "long")


def record(*fields: tuple[str, Any]) -> bytes:
    """Return the schema of a record whose fields have no defaults."""
    kinds = [{"name": name, "type": kind} for name, kind in fields]
    return json.dumps({"type": "record", "name": "R", "fields": kinds}).encode()


class Stream:
    """A streaming query with the columns that the topic has when it begins."""

    def __init__(self, cluster: Cluster, topic: StoredTopic, **options: str) -> None:
        self._given = {"uri": cluster.uri, "topic": str(topic.name), "startingOffsets": "earliest", **options}
        self._columns = BookKeeperDataSource(self._given).schema()
        self.payload = [name for name in self._columns.names if not name.startswith("__")]
        self.start()
        self._offset = self._reader.initialOffset()

    def start(self) -> None:
        """Start the query again, with the columns of its checkpoint."""
        self._reader = BookKeeperDataSource(self._given).streamReader(self._columns)

    def rows(self) -> list[dict[str, Any]]:
        """Run a micro-batch; return the payload's columns."""
        end = self._reader.latestOffset(self._offset, self._reader.getDefaultReadLimit())
        tasks = self._reader.partitions(self._offset, end)
        found = [row for task in tasks for rows in self._reader.read(task) for row in rows.to_pylist()]
        self._offset = end
        return [{name: row[name] for name in self.payload} for row in found]


def message(value: bytes, version: int) -> bytes:
    return single(Message(value), version, schema_version=version.to_bytes(8))


VALUES = {
    "JSON": (b'{"n":1,"t":"a"}', b'{"n":2,"t":"b","more":9}', b'{"n":3}', b'{"more":4}'),
    "AVRO": (b"\x02\x02a", b"\x04\x02b\x12", b"\x06", b"\x08"),
}


@pytest.mark.parametrize("kind", list(VALUES))
def test_new_columns_are_ignored_and_dropped_ones_are_null(cluster: Cluster, topic: StoredTopic, kind: str) -> None:
    if kind == "AVRO":
        pytest.importorskip("fastavro")
    versions = [(kind, record(*fields), {}) for fields in ((NUMBER, TEXT), (NUMBER, TEXT, MORE), (NUMBER,), (MORE,))]
    values = VALUES[kind]
    topic.schemas(versions[0])
    topic.ledger([message(values[0], 0)])
    stream = Stream(cluster, topic)
    assert stream.payload == ["n", "t"]
    assert stream.rows() == [{"n": 1, "t": "a"}]
    topic.schemas(*versions[:2])
    topic.ledger([message(values[1], 1), message(values[0], 0)])
    assert stream.rows() == [{"n": 2, "t": "b"}, {"n": 1, "t": "a"}]
    topic.schemas(*versions[:3])
    topic.ledger([message(values[2], 2), message(values[1], 1)])
    assert stream.rows() == [{"n": 3, "t": None}, {"n": 2, "t": "b"}]
    topic.schemas(*versions)
    stream.start()
    topic.ledger([message(values[3], 3), message(values[2], 2), message(values[0], 0)])
    assert stream.rows() == [{"n": None, "t": None}, {"n": 3, "t": None}, {"n": 1, "t": "a"}]


def test_columns_of_a_new_stream_are_those_of_the_newest_version(cluster: Cluster, topic: StoredTopic) -> None:
    topic.schemas(("JSON", record(NUMBER, TEXT), {}), ("JSON", record(NUMBER, MORE), {}))
    topic.ledger([message(b'{"n":1,"t":"a"}', 0), message(b'{"n":2,"more":3}', 1)])
    stream = Stream(cluster, topic)
    assert stream.payload == ["n", "more"]
    assert stream.rows() == [{"n": 1, "more": None}, {"n": 2, "more": 3}]


def test_fields_of_a_struct_are_those_with_which_the_stream_began(cluster: Cluster, topic: StoredTopic) -> None:
    def nested(*fields: tuple[str, Any]) -> tuple[str, bytes, dict]:
        inner = {**json.loads(record(*fields)), "name": "I"}
        return "JSON", record(("s", inner), ("many", {"type": "array", "items": "I"})), {}

    versions = [nested(NUMBER, TEXT), nested(NUMBER, TEXT, MORE), nested(NUMBER), nested(MORE)]
    topic.schemas(versions[0])
    topic.ledger([message(b'{"s":{"n":1,"t":"a"},"many":[{"n":2}]}', 0)])
    stream = Stream(cluster, topic)
    assert stream.rows() == [{"s": {"n": 1, "t": "a"}, "many": [{"n": 2, "t": None}]}]
    topic.schemas(*versions[:2])
    topic.ledger([message(b'{"s":{"n":1,"t":"b","more":7},"many":[{"t":"c"}]}', 1)])
    assert stream.rows() == [{"s": {"n": 1, "t": "b"}, "many": [{"n": None, "t": "c"}]}]
    topic.schemas(*versions[:3])
    topic.ledger([message(b'{"s":{"n":3},"many":null}', 2), message(b'{"s":{"n":1,"t":"a"}}', 0)])
    assert stream.rows() == [{"s": {"n": 3, "t": None}, "many": None}, {"s": {"n": 1, "t": "a"}, "many": None}]
    topic.schemas(*versions)
    topic.ledger([message(b'{"s":{"more":3}}', 3), message(b'{"s":null}', 3)])
    assert stream.rows() == [{"s": {"n": None, "t": None}, "many": None}, {"s": None, "many": None}]


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_fields_of_a_value_beside_its_key_are_those_with_which_the_stream_began(
    cluster: Cluster, topic: StoredTopic, encoding: str
) -> None:
    def pair(*fields: tuple[str, Any]) -> tuple[str, bytes, dict]:
        value = record(*fields)
        kinds = {"key.schema.type": "STRING", "value.schema.type": "JSON", "kv.encoding.type": encoding}
        return "KEY_VALUE", bytes(4) + len(value).to_bytes(4) + value, kinds

    def sent(value: bytes, version: int) -> bytes:
        if encoding == "SEPARATED":
            return single(Message(value, "k"), version, schema_version=version.to_bytes(8))
        return message(b"\0\0\0\1k" + len(value).to_bytes(4) + value, version)

    topic.schemas(pair(NUMBER, TEXT))
    topic.ledger([sent(b'{"n":1,"t":"a"}', 0)])
    stream = Stream(cluster, topic)
    assert stream.rows() == [{"key": "k", "value": {"n": 1, "t": "a"}}]
    topic.schemas(pair(NUMBER, TEXT), pair(TEXT, MORE))
    topic.ledger([sent(b'{"t":"b","more":1}', 1), sent(b'{"n":1,"t":"a"}', 0)])
    assert stream.rows() == [{"key": "k", "value": {"n": None, "t": "b"}}, {"key": "k", "value": {"n": 1, "t": "a"}}]
