"""Features of Spark's Python Data Source API since version 4.0, the oldest supported one, and their replacements.

    4.1   DataSourceStreamArrowWriter. The workers of 4.0 also pass Arrow batches to a streaming writer if it is a batch
          writer for Arrow as well: so the replacement is both
    4.2   admission control: a source's limit of a micro-batch, Trigger.AvailableNow, the reported latest offset.
          Before, Spark only requests the latest offset from a source: it passes neither the batch's beginning nor the
          end of the query. `HAS_ADMISSION_CONTROL` says which; without it the streaming source refuses options that it
          cannot implement correctly
    4.3   rows of no columns are counted (`COUNTS_WITHOUT_COLUMNS`). 4.0 returns no rows; those between
          were not tested

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
        """The limit of a micro-batch."""

    class ReadAllAvailable(ReadLimit):
        """No limit."""

    @dataclass(frozen=True)
    class ReadMaxRows(ReadLimit):
        """At most this many rows."""

        max_rows: int

    @dataclass(frozen=True)
    class ReadMinRows(ReadLimit):
        """At least this many rows."""

        min_rows: int

    @dataclass(frozen=True)
    class ReadMaxBytes(ReadLimit):
        """At most this many bytes."""

        max_bytes: int

    class SupportsTriggerAvailableNow:
        """Marks a source that supports Trigger.AvailableNow."""
