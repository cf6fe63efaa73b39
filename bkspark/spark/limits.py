"""What Spark's Python data sources can do at most: a source of ready-made Arrow batches and a writer that drops them.

`bkspark bench spark` measures them in the session in which it measures the connector: the ratio is what the
connector costs.

    bkspark_ready_arrow   rows, value_size, partitions -> `value binary`; every task yields one batch again and again
    bkspark_null_arrow    takes any rows as Arrow batches, keeps none
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

BATCH_BYTES = 8 << 20
BATCH_ROWS_MAX = 10_000


@dataclass(frozen=True)
class ReadyRows(InputPartition):
    """`rows` rows of `value_size` bytes for one task."""

    rows: int
    value_size: int


class ReadyArrowSource(DataSource):
    """Yields rows that exist already: what is left is Spark's own cost."""

    @classmethod
    def name(cls) -> str:
        return "bkspark_ready_arrow"

    def schema(self) -> str:
        return "value binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        rows, value_size, partitions = (int(self.options[name]) for name in ("rows", "value_size", "partitions"))
        return ReadyArrowReader(rows, value_size, partitions)


class ReadyArrowReader(DataSourceReader):
    def __init__(self, rows: int, value_size: int, partitions: int) -> None:
        self._rows = rows
        self._value_size = value_size
        self._partitions = partitions

    def partitions(self) -> list[InputPartition]:
        share, more = divmod(self._rows, self._partitions)
        return [ReadyRows(share + (i < more), self._value_size) for i in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
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


class NullArrowSink(DataSource):
    """Takes rows and drops them."""

    @classmethod
    def name(cls) -> str:
        return "bkspark_null_arrow"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return NullArrowWriter()


class NullArrowWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing was kept, so there is nothing to publish."""
