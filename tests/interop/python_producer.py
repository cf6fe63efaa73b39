"""Topics produced by Pulsar's Python client, which is its C++ client: `fill`. Needs the package pulsar-client."""

from __future__ import annotations

import contextlib
import random

import pulsar
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String

CODECS = {
    "NONE": pulsar.CompressionType.NONE,
    "LZ4": pulsar.CompressionType.LZ4,
    "ZLIB": pulsar.CompressionType.ZLib,
    "ZSTD": pulsar.CompressionType.ZSTD,
    "SNAPPY": pulsar.CompressionType.SNAPPY,
}
MESSAGES = 17
CLICKS = 5
SEND_MS = 120_000
MESSAGE_BYTES_MAX = 1 << 20
"""The broker's `maxMessageSize`: the client cuts larger messages into chunks."""


class Click(Record):
    """What the topics with schemas hold."""

    number = Integer()
    page = String()


def fill(url: str, namespace: str) -> list[str]:
    """Return the topics: each codec, batched, in batches of one, not batched, and in chunks; with and without keys,
    properties, event times and bytes; and records of Avro and JSON."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    found = []
    with contextlib.closing(client):
        for name, codec in CODECS.items():
            for kind in ("batched", "ones", "single"):
                topic = f"{namespace}/python-{name}-{kind}"
                producer = client.create_producer(
                    topic,
                    compression_type=codec,
                    send_timeout_millis=SEND_MS,
                    batching_enabled=kind != "single",
                    batching_max_messages=5,
                    batching_max_publish_delay_ms=60_000,
                )
                _produce(producer, is_batch_of_one=kind == "ones")
                found.append(topic)
            topic = f"{namespace}/python-{name}-chunks"
            producer = client.create_producer(
                topic,
                compression_type=codec,
                send_timeout_millis=SEND_MS,
                batching_enabled=False,
                chunking_enabled=True,
            )
            for number in range(3):
                # Random bytes, which no codec shrinks.
                value = random.Random(number).randbytes(MESSAGE_BYTES_MAX * number + 50)
                producer.send(value, partition_key=f"key {number}")
            producer.close()
            found.append(topic)
        for kind, schema in (("avro", AvroSchema(Click)), ("json", JsonSchema(Click))):
            for name, codec in CODECS.items():
                for way in ("batched", "single"):
                    topic = f"{namespace}/python-{name}-{kind}-{way}"
                    _produce_clicks(client, topic, schema, codec, is_batched=way == "batched")
                    found.append(topic)
    return found


def _produce_clicks(
    client: pulsar.Client,
    topic: str,
    schema: AvroSchema | JsonSchema,
    codec: pulsar.CompressionType,
    *,
    is_batched: bool,
) -> None:
    producer = client.create_producer(
        topic,
        schema=schema,
        compression_type=codec,
        send_timeout_millis=SEND_MS,
        batching_enabled=is_batched,
        batching_max_messages=2,
        batching_max_publish_delay_ms=60_000,
    )
    for number in range(CLICKS):
        producer.send_async(Click(number=number, page=f"/{number}ü"), lambda result, _: None)
    producer.flush()
    producer.close()


def _produce(producer: pulsar.Producer, *, is_batch_of_one: bool) -> None:
    for number in range(MESSAGES):
        producer.send_async(
            b"x" * (number * number * 40) if number % 6 else bytes([number, 0, 0xFF]),
            lambda result, _: None,
            properties={"number": str(number), "ä": "ö"} if number % 3 == 0 else None,
            partition_key=f"key {number} ü" if number % 4 else None,
            ordering_key="o" if number % 5 == 1 else None,
            event_timestamp=1_600_000_000_000 + number if number % 2 else None,
        )
        if is_batch_of_one:
            producer.flush()
    producer.flush()
    producer.close()


def acknowledge_within_batches(url: str, topic: str, subscription: str) -> list[int]:
    """Produce the numbers 0 to 14 in batches of five; acknowledge 0 to 6, 8 and 12, each by itself. Return what another
    consumer of the subscription gets then."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    with contextlib.closing(client):
        consumer = _consumer(client, topic, subscription)
        producer = client.create_producer(
            topic, batching_enabled=True, batching_max_messages=5, batching_max_publish_delay_ms=60_000
        )
        for number in range(15):
            producer.send_async(b"%d" % number, lambda result, _: None)
        producer.flush()
        for _ in range(15):
            message = consumer.receive(SEND_MS)
            if int(message.data()) in (*range(7), 8, 12):
                consumer.acknowledge(message)
        consumer.close()
        again = _consumer(client, topic, subscription)
        return sorted(int(again.receive(SEND_MS).data()) for _ in range(6))


def _consumer(client: pulsar.Client, topic: str, subscription: str) -> pulsar.Consumer:
    return client.subscribe(
        topic, subscription, pulsar.ConsumerType.Shared, batch_index_ack_enabled=True, receiver_queue_size=100
    )
