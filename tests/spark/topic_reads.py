"""Reads of Pulsar's topics in tests: plans and tasks, without a Spark session."""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import StructType

from bkspark.spark.options import SourceOptions
from bkspark.spark.source import BookKeeperDataSource
from bkspark.spark.topic_read import TopicReader, topics_schema
from tests.pulsar.entries import Message, single

VALUE = "value binary"


def columns_of(text: str) -> StructType:
    """Return the schema of such a text; Spark's own reading of it needs a JVM."""
    names = {"bigint": "long", "int": "integer"}
    schema = StructType()
    for column in text.split(", "):
        name, kind = column.split()
        schema.add(name, names.get(kind, kind))
    return schema


def rows_of(
    uri: str, topic: object, columns: str | StructType | None = None, /, **options: object
) -> list[dict[str, Any]]:
    """Return the rows of a batch read of a topic, or of those that the options name instead."""
    given = {"uri": uri} | {name: str(value) for name, value in options.items()}
    if not given.keys() & {"topics", "topicsPattern"}:
        given.setdefault("topic", str(topic))
    parsed = SourceOptions.parse(given)
    schema = columns_of(columns) if isinstance(columns, str) else columns
    schema = topics_schema(parsed) if schema is None else schema
    reader = TopicReader(schema, parsed)
    return [row for part in reader.partitions() for found in reader.read(part) for row in found.to_pylist()]


def table(uri: str, view: str, **options: str) -> list[dict[str, Any]]:
    """Return the rows of a table about topics."""
    source = BookKeeperDataSource({"uri": uri, "inspect": view, **options})
    reader = source.reader(source.schema())
    return [row for part in reader.partitions() for rows in reader.read(part) for row in rows.to_pylist()]


def values(rows: list[dict[str, Any]]) -> list[Any]:
    return [row["value"] for row in rows]


def numbered(*numbers: int) -> list[bytes]:
    return [single(Message(b"%d" % number), number) for number in numbers]
