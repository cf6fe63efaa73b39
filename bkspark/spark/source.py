"""BookKeeperDataSource: `format("bookkeeper")`, and its registration.

Spark imports this module whenever it looks for data sources, in a process that has ten seconds to start. So it imports
only pyspark's classes: options, readers and writers, and with them Arrow and the client, are imported on demand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from bkspark.spark.frozen import freeze_imported_modules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class BookKeeperDataSource(DataSource):
    """Ledgers and logs of Apache BookKeeper, in batch and as a stream, read and written.

    Spark makes one per load, save or start, on the driver, and calls by keyword: `options`, `schema`, `overwrite`.

    Raises:
        ConfigurationError: an option is unknown or wrong.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        from bkspark.spark.options import SourceOptions

        freeze_imported_modules()
        self.options = dict(options)
        """The options as Spark passed them. Constant."""
        self._parsed = SourceOptions.parse(options)
        """The checked options. Replaced by `schema` with what it inferred."""
        self._parsed.check_at_load()

    @classmethod
    def name(cls) -> str:
        return "bookkeeper"

    def schema(self) -> StructType:
        """Return the columns of a read when the user names none; see `columns` and `inspection`."""
        self._parsed.check_named()
        if self._parsed.inspect is not None:
            from bkspark.spark.inspection import schema_of_view

            return schema_of_view(self._parsed.inspect)
        if self._parsed.reads_topics or self._parsed.payload_format == "pulsar":
            from bkspark.spark.topic_read import topics_schema

            self._parsed = replace(self._parsed, columns_inferred=True)
            return topics_schema(self._parsed)
        from bkspark.spark.inference import schema_for

        # Spark requests the schema first, and then uses a copy of this object to request a reader.
        schema, self._parsed = schema_for(self._parsed)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        self._parsed.check_named()
        if self._parsed.inspect is not None:
            from bkspark.spark.inspection import ViewReader

            return ViewReader(schema, self._parsed)
        freeze_imported_modules()
        if self._parsed.reads_topics:
            from bkspark.spark.topic_read import TopicReader

            return TopicReader(schema, self._parsed)
        if self._parsed.payload_format == "pulsar":
            from bkspark.spark.topic_read import TopicLedgersReader

            return TopicLedgersReader(schema, self._parsed)
        from bkspark.spark.inference import with_found_format
        from bkspark.spark.read import BookKeeperReader

        return BookKeeperReader(schema, with_found_format(schema, self._parsed))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        self._parsed.check_named()
        if self._parsed.reads_topics:
            from bkspark.spark.topic_stream import TopicStreamReader

            return TopicStreamReader(schema, self._parsed)
        if self._parsed.ledgers is not None:
            from bkspark.spark.ledger_stream import LedgerStreamReader

            return LedgerStreamReader(schema, self._parsed)
        from bkspark.spark.inference import with_found_format
        from bkspark.spark.stream import BookKeeperStreamReader

        return BookKeeperStreamReader(schema, with_found_format(schema, self._parsed))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from bkspark.spark.write import BookKeeperWriter

        freeze_imported_modules()
        return BookKeeperWriter(schema, self._parsed, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from bkspark.spark.write import BookKeeperStreamWriter

        freeze_imported_modules()
        return BookKeeperStreamWriter(schema, self._parsed, overwrite)


def register(spark: SparkSession) -> None:
    """Register `format("bookkeeper")` in one session, also for writes that the calling thread starts.

    Raises:
        ConfigurationError: Spark's Python workers cannot import bkspark; the message says what to set.
    """
    from bkspark.spark.python_workers import check_workers

    check_workers(spark)
    # Spark looks for a write's source in the thread's active session, which may be another one. This is the only method
    # of a session that makes it the active one.
    spark.createDataFrame([], "nothing int")
    try:
        spark.dataSource.register(BookKeeperDataSource)
    except AnalysisException as error:
        # Spark 4.0 and 4.1 do not let a source replace the same one that they discovered themselves.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
