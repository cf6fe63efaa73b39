"""Topics as our readers find them in the ledgers, in the form in which the tests compare them with a broker's."""

from __future__ import annotations

import datetime
from typing import Any

from pyspark.sql.types import StructType

from bkspark.spark.options import SourceOptions
from bkspark.spark.topic_read import TopicReader, topics_schema
from bkspark.spark.topic_stream import TopicStreamReader
from tests.interop.conftest import Bookies
from tests.polling import wait_until


def ours(cluster: Bookies, topic: str, **options: object) -> list[dict[str, Any]]:
    """Return the rows of a topic that a batch read finds."""
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
    """Return a row with times in milliseconds, as `as_ours` has them."""

    def milliseconds(value: datetime.datetime | None) -> int | None:
        return None if value is None else round(value.timestamp() * 1000)

    times = {name: milliseconds(row[name]) for name in ("__publishTime", "__eventTime")}
    return {**row, **times, "__messageProperties": dict(row["__messageProperties"])}


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
