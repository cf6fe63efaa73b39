"""Random DataFrames through each payload format, mode and codec: what is read is what was written."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from pyspark.errors import PySparkException

from tests.spark.conftest import Table
from tests.spark.generated_frames import FrameAuthor

pytestmark = [pytest.mark.cluster, pytest.mark.spark]

FORMATS, MODES, CODECS = (
    ("arrow", "json", "msgpack"),
    ("FAILFAST", "PERMISSIVE", "DROPMALFORMED"),
    ("none", "lz4", "zstd"),
)


def comparable(value: Any) -> Any:
    """Return a value as it compares: nan is not equal to itself, and maps have no order."""
    if isinstance(value, dict):
        return sorted((repr(comparable(key)), comparable(each)) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return [comparable(each) for each in value]
    return repr(value)


def go_round(spark, cluster, seed: int) -> bool:
    """Write a DataFrame and compare what is read; return False if Spark itself cannot make it, or it was refused."""
    author = FrameAuthor(seed)
    columns = author.columns()
    try:
        frame = spark.createDataFrame(author.rows(columns, author.chance.choice((0, 1, 7))), columns).coalesce(1)
        written = [comparable(row) for row in frame.collect()]
    except PySparkException:
        return False  # a decimal that Spark rounds to more digits than there are
    table = Table(spark, cluster.uri, f"frame-{seed}-{uuid.uuid4().hex[:8]}")
    payload_format, mode = FORMATS[seed % 3], author.chance.choice(MODES)
    codec = {"compression": author.chance.choice(CODECS)} if payload_format == "arrow" else {}
    try:
        table.write(frame, payloadFormat=payload_format, **codec)
    except PySparkException as error:
        # Spark exchanges no void that cannot be null.
        if not any(f"column '{column.name}' has type" in str(error) for column in columns):
            raise
        return False
    options = f"uri '{cluster.uri}', log '{table.log}'"
    spark.sql(f"create or replace temporary view frames using bookkeeper options ({options})")
    frames = [table.read(mode=mode), spark.table("frames")]
    assert frames[1].schema == frame.schema, f"seed {seed}"
    for read in frames:
        # PERMISSIVE adds a column.
        found = [comparable(tuple(row)[: len(columns)]) for row in read.collect()]
        assert found == written, f"seed {seed}, {payload_format}, {mode}: {columns.simpleString()}"
    return True


def test_random_frames_are_read_as_they_were_written(spark, cluster):
    assert sum(go_round(spark, cluster, seed) for seed in range(2))


@pytest.mark.long(reason="more seeds of an ordinary test")
def test_many_random_frames_are_read_as_they_were_written(spark, cluster):
    assert sum(go_round(spark, cluster, seed) for seed in range(1_000, 1_100)) > 70
