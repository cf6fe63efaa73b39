"""The limits of Spark's Python data sources: a source of ready-made Arrow batches and a writer that drops them.

`bkspark bench spark` measures them in the session in which it measures the connector: the ratio is what the
connector costs.

    bkspark_ready_arrow   rows, value_size, partitions -> `value binary`; every task yields the same batch repeatedly.
                          As a stream, in micro-batches of rows_per_trigger (all rows without it)
    bkspark_null_arrow    takes any rows as Arrow batches, keeps none; batch and stream
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from bkspark.spark.versions import DataSourceStreamArrowWriter, SupportsTriggerAvailableNow

BATCH_BYTES = 8 << 20
BATCH_ROWS_MAX = 10_000


@dataclass(frozen=True)
class ReadyRows(InputPartition):
    """`rows` rows of `value_size` bytes for one task."""

    rows: int
    value_size: int


class ReadyArrowSource(DataSource):
    """A source that yields ready-made rows, so that only Spark's own cost is measured."""

    @classmethod
    def name(cls) -> str:
        return "bkspark_ready_arrow"

    def schema(self) -> str:
        return "value binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyArrowReader(self._count("rows"), self._count("value_size"), self._count("partitions"))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        rows = self._count("rows")
        rows_per_trigger = int(self.options.get("rows_per_trigger", rows))
        return ReadyArrowStreamReader(rows, self._count("value_size"), self._count("partitions"), rows_per_trigger)

    def _count(self, name: str) -> int:
        return int(self.options[name])


def _shares(rows: int, value_size: int, partitions: int) -> list[InputPartition]:
    share, more = divmod(rows, partitions)
    return [ReadyRows(share + (i < more), value_size) for i in range(partitions)]


def _batches(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield one batch until the partition's rows are out."""
    assert isinstance(partition, ReadyRows)
    batch_rows = max(1, min(BATCH_ROWS_MAX, BATCH_BYTES // partition.value_size))
    value = os.urandom(partition.value_size)
    batch = pa.record_batch([pa.array([value] * batch_rows, pa.binary())], names=["value"])
    left = partition.rows
    while left >= batch_rows:
        yield batch
        left -= batch_rows
    if left:
        yield batch.slice(0, left)


class ReadyArrowReader(DataSourceReader):
    """Yields `rows` rows from batches that are made once, in `partitions` tasks."""

    def __init__(self, rows: int, value_size: int, partitions: int) -> None:
        self._rows = rows
        self._value_size = value_size
        """Bytes of the value in each row."""
        self._partitions = partitions

    def partitions(self) -> list[InputPartition]:
        return _shares(self._rows, self._value_size, self._partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _batches(partition)


class ReadyArrowStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Yields `rows` rows, `rows_per_trigger` in a micro-batch. An offset is the number of rows before it."""

    def __init__(self, rows: int, value_size: int, partitions: int, rows_per_trigger: int) -> None:
        self._rows = rows
        self._value_size = value_size
        """Bytes of the value in each row."""
        self._partitions = partitions
        """Tasks of each micro-batch."""
        self._rows_per_trigger = rows_per_trigger

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"rows": 0}

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:  # noqa: N802
        return {"rows": min(self._rows, start["rows"] + self._rows_per_trigger)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Does nothing: the source always ends."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return _shares(end["rows"] - start["rows"], self._value_size, self._partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _batches(partition)


class NullArrowSink(DataSource):
    """A sink that accepts rows and drops them."""

    @classmethod
    def name(cls) -> str:
        return "bkspark_null_arrow"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return NullArrowWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return NullArrowStreamWriter()


def _drop(batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
    for _ in batches:
        pass
    return WriterCommitMessage()


class NullArrowWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _drop(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Does nothing: no rows were kept, so there is nothing to publish."""


class NullArrowStreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _drop(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Does nothing: no rows were kept, so there is nothing to publish."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Does nothing: no rows were kept, so there is nothing to remove."""
