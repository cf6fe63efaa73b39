"""What Spark's Python Data Source API got after version 4.0, the oldest that is supported, and what stands in for it.

    4.1   DataSourceStreamArrowWriter. The workers of 4.0 hand a streaming writer Arrow batches too, if it is a batch
          writer for Arrow as well: so the stand-in is both
    4.2   admission control: a source's limit of a micro-batch, Trigger.AvailableNow, the reported latest offset.
          Before, a source is asked for the latest offset alone: it is not told where the batch begins, nor that the
          query is to end. `HAS_ADMISSION_CONTROL` tells; the streaming source refuses what it cannot do right without
    4.3   rows of no columns are counted (`COUNTS_WITHOUT_COLUMNS`). 4.0 makes none; those between were not tried

Readers and writers take these names from here only. Type checkers see the newest Spark's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

__all__ = [
    "COUNTS_WITHOUT_COLUMNS",
    "HAS_ADMISSION_CONTROL",
    "SPARK_VERSION",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
]

SPARK_VERSION: str = pyspark.__version__
_RELEASE = tuple(int(part) for part in SPARK_VERSION.split(".")[:2])

COUNTS_WITHOUT_COLUMNS = _RELEASE >= (4, 3)
HAS_ADMISSION_CONTROL = _RELEASE >= (4, 2)

if TYPE_CHECKING or _RELEASE >= (4, 1):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """Takes Arrow batches in a streaming write of Spark 4.0."""


if TYPE_CHECKING or HAS_ADMISSION_CONTROL:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        """How much a micro-batch may have."""

    class ReadAllAvailable(ReadLimit):
        """No limit."""

    @dataclass(frozen=True)
    class ReadMaxRows(ReadLimit):
        max_rows: int

    @dataclass(frozen=True)
    class ReadMinRows(ReadLimit):
        min_rows: int

    @dataclass(frozen=True)
    class ReadMaxBytes(ReadLimit):
        max_bytes: int

    class SupportsTriggerAvailableNow:
        """Marks a source that is told when a query is to end."""
