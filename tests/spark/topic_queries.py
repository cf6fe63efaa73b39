"""A streaming query over a Pulsar topic."""

from __future__ import annotations

import json

from pyspark.sql.types import StructType

from bkspark.spark.options import SourceOptions
from bkspark.spark.topic_stream import TopicStreamReader
from tests.cluster import Cluster
from tests.pulsar.stored import StoredTopic

SCHEMA = StructType().add("value", "binary")


class Query:
    """A streaming query: its micro-batches one by one, and its checkpoint."""

    def __init__(self, cluster: Cluster, topic: StoredTopic, **options: object) -> None:
        given = {"uri": cluster.uri, "topic": str(topic.name)} | {name: str(value) for name, value in options.items()}
        if given.keys() & {"topics", "topicsPattern"}:
            del given["topic"]
        self._options = SourceOptions.parse(given)
        self.reader = TopicStreamReader(SCHEMA, self._options)
        self.offset = self.reader.initialOffset()

    def restart(self) -> None:
        self.reader = TopicStreamReader(SCHEMA, self._options)
        self.offset = json.loads(json.dumps(self.offset))

    def batch(self, limit: object = None) -> str:
        """Run a micro-batch; return its values."""
        return b" ".join(self.next_values(limit) or ()).decode()

    def next_values(self, limit: object = None) -> list[bytes] | None:
        """Run a micro-batch; return its values, None if there is none. Twice, as after a failure: it is the same."""
        end = self.reader.latestOffset(self.offset, limit or self.reader.getDefaultReadLimit())
        if end == self.offset:
            return None
        found = [self.values(self.reader, end), self.values(self.new_reader(), end)]
        assert found[0] == found[1]
        self.offset = json.loads(json.dumps(end))
        return found[0]

    def new_reader(self) -> TopicStreamReader:
        return TopicStreamReader(SCHEMA, self._options)

    def values(self, reader: TopicStreamReader, end: dict) -> list[bytes]:
        parts = reader.partitions(self.offset, end)
        return [value for part in parts for rows in reader.read(part) for value in rows["value"].to_pylist()]
