"""What `spark_vs_kafka.py` compares: our connector, Kafka's, and Spark's own limits, each with its rows and options.

Every contender keeps stored rows of a size, which reads share, and writes to fresh places, which `clear` removes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.spark_jobs import PARTITIONS, Connector, Options
from bkspark.blocking import Client
from bkspark.core.writer_options import WriterOptions
from bkspark.spark.bench_sources import NullArrowSink, ReadyArrowSource

LAC_INTERVAL_S = 0.002
"""After which readers of a row that no other follows may see it; without, the next row tells them."""
_BYTES_SERIALIZER = "org.apache.kafka.common.serialization.ByteArraySerializer"


class BookKeeper:
    """Our connector with one payload format; `quorum` is ensembleSize, writeQuorum and ackQuorum of what it writes.

    It writes without compression, like Kafka's producer: all rows have one value, which lz4 makes 200 times smaller.
    """

    def __init__(
        self, uri: str, server_pids: Sequence[int], payload_format: str, quorum: tuple[int, int, int] = (1, 1, 1)
    ) -> None:
        self.connector = Connector(
            "bookkeeper", {"uri": uri, "payloadFormat": payload_format}, tuple(server_pids), needs_schema=True
        )
        self._uri = uri
        self._format = payload_format
        self._quorum = dict(zip(("ensembleSize", "writeQuorum", "ackQuorum"), quorum))
        self._writing: Options = {**self._quorum, **({"compression": "none"} if payload_format == "arrow" else {})}
        self._fresh = 0

    def stored(self, value_size: int) -> Options:
        """Return where rows of this size are kept."""
        return {"log": f"stored-{self._format}-{value_size}"}

    def storing(self, value_size: int) -> Options:
        """Return how they are written there."""
        return {**self.stored(value_size), **self._writing}

    def fresh(self) -> Options:
        """Return how to write to a place that has nothing yet."""
        self._fresh += 1
        return {"log": f"fresh-{self._format}-{self._fresh}", **self._writing}

    def followed(self) -> Options:
        """Return how a stream reads a place that has nothing yet; `create` makes it."""
        return {"log": self.fresh()["log"], "startingOffsets": "latest"}

    def limit(self, rows: int) -> Options:
        """Return the options of a stream that reads from the start with this many rows in a micro-batch."""
        return {"startingOffsets": "earliest", "maxEntriesPerTrigger": rows}

    def clear(self) -> None:
        """Delete all fresh places."""
        with Client(self._uri) as client:
            for name in client.logs():
                if name.startswith("fresh-"):
                    client.log(name).delete()

    @contextmanager
    def producer(self, place: Options) -> Iterator[Callable[[bytes], None]]:
        """Give a function that appends one row, and returns when it is durable."""
        ensemble, write_quorum, ack_quorum = self._quorum.values()
        with (
            Client(self._uri, writer=WriterOptions(explicit_lac_interval_s=LAC_INTERVAL_S)) as client,
            client.log(str(place["log"])).open_for_writing(
                ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum
            ) as log,
        ):

            def append(value: bytes) -> None:
                log.append_many([value])

            yield append

    def create(self, place: Options) -> None:
        """Make the place, so that a stream can follow it."""
        with Client(self._uri) as client:
            client.log(str(place["log"])).create(exist_ok=True)


class Kafka:
    """Kafka's connector with options of its own; all of one broker share their stored rows."""

    def __init__(self, spark: SparkSession, address: str, broker_pid: int, **options: str | int) -> None:
        self.connector = Connector("kafka", {"kafka.bootstrap.servers": address, **options}, (broker_pid,))
        # The producer and the administrator of Kafka's own client are in Spark's JVM already.
        self._jvm: Any = spark.sparkContext._jvm
        self._address = address
        self._fresh: list[str] = []
        self._made = 0

    def stored(self, value_size: int) -> Options:
        return {"subscribe": f"stored-{value_size}"}

    def storing(self, value_size: int) -> Options:
        return {"topic": f"stored-{value_size}"}

    def fresh(self) -> Options:
        # No name twice: a broker goes on deleting a topic for a while.
        self._made += 1
        self._fresh.append(f"fresh-{id(self)}-{self._made}")
        return {"topic": self._fresh[-1]}

    def followed(self) -> Options:
        return {"subscribe": self.fresh()["topic"], "startingOffsets": "latest"}

    def limit(self, rows: int) -> Options:
        return {"startingOffsets": "earliest", "maxOffsetsPerTrigger": rows}

    def clear(self) -> None:
        admin = self._jvm.org.apache.kafka.clients.admin.Admin.create(self._properties())
        try:
            topics = self._jvm.java.util.ArrayList()
            existing = admin.listTopics().names().get()
            for name in filter(existing.contains, self._fresh):
                topics.add(name)
            admin.deleteTopics(topics).all().get()
        finally:
            admin.close()
        self._fresh.clear()

    @contextmanager
    def producer(self, place: Options) -> Iterator[Callable[[bytes], None]]:
        clients = self._jvm.org.apache.kafka.clients.producer
        producer = clients.KafkaProducer(self._properties())
        try:
            yield lambda value: producer.send(clients.ProducerRecord(str(place["subscribe"]), value)).get()
        finally:
            producer.close()

    def create(self, place: Options) -> None:
        topic = self._jvm.org.apache.kafka.clients.admin.NewTopic
        admin = self._jvm.org.apache.kafka.clients.admin.Admin.create(self._properties())
        try:
            topics = self._jvm.java.util.ArrayList()
            topics.add(topic(str(place["subscribe"]), PARTITIONS, 1))
            admin.createTopics(topics).all().get()
        finally:
            admin.close()

    def _properties(self) -> Any:
        properties = self._jvm.java.util.HashMap()
        properties["bootstrap.servers"] = self._address
        properties["key.serializer"] = properties["value.serializer"] = _BYTES_SERIALIZER
        return properties


class Limits:
    """What Spark's Python sources can do at most: ready-made batches, and a sink that drops them."""

    def __init__(self, spark: SparkSession, rows: dict[int, int]) -> None:
        """`rows` says how many are stored for each size."""
        spark.dataSource.register(ReadyArrowSource)
        spark.dataSource.register(NullArrowSink)
        self.connector = Connector(ReadyArrowSource.name(), {"partitions": PARTITIONS}, needs_schema=True)
        self.sink = Connector(NullArrowSink.name())
        self._rows = rows

    def stored(self, value_size: int) -> Options:
        return {"rows": self._rows[value_size], "value_size": value_size}

    def limit(self, rows: int) -> Options:
        return {"rows_per_trigger": rows}
