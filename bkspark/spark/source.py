"""BookKeeperDataSource: `format("bookkeeper")`, and its registration.

Spark imports this module whenever it looks for data sources; readers and writers, and with them Arrow and the client,
are imported on demand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from bkspark.spark.options import SourceOptions
from bkspark.spark.workers import freeze_imported_modules


class BookKeeperDataSource(DataSource):
    """Ledgers and logs of Apache BookKeeper, in batch and as a stream, read and written.

    Spark makes one per load, save or start, on the driver, and calls by keyword: `options`, `schema`, `overwrite`.

    Raises:
        ConfigurationError: an option is unknown or wrong.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        freeze_imported_modules()
        self.options = dict(options)
        self._parsed = SourceOptions.parse(options)
        self._parsed.check_at_load()

    @classmethod
    def name(cls) -> str:
        return "bookkeeper"

    def schema(self) -> StructType:
        """Return the columns of a read when the user names none; see `columns` and `inspection`."""
        if self._parsed.inspect is not None:
            from bkspark.spark.inspection import schema_of_view

            return schema_of_view(self._parsed.inspect)
        from bkspark.spark.read import schema_for

        schema = schema_for(self._parsed)
        # Spark requests the schema first, and then uses a copy of this object to request a reader.
        self._parsed = replace(self._parsed, columns_inferred=True)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        if self._parsed.inspect is not None:
            from bkspark.spark.inspection import ViewReader

            return ViewReader(schema, self._parsed)
        from bkspark.spark.read import BookKeeperReader

        freeze_imported_modules()
        return BookKeeperReader(schema, self._parsed)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from bkspark.spark.stream import BookKeeperStreamReader

        return BookKeeperStreamReader(schema, self._parsed)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from bkspark.spark.write import BookKeeperWriter

        freeze_imported_modules()
        return BookKeeperWriter(schema, self._parsed, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from bkspark.spark.write import BookKeeperStreamWriter

        freeze_imported_modules()
        return BookKeeperStreamWriter(schema, self._parsed, overwrite)


def register(spark: SparkSession) -> None:
    """Make `format("bookkeeper")` known to one session, and to writes that the calling thread starts in it."""
    # Spark looks for a write's source in the thread's active session, which may be another one; of all methods of a
    # session, only this one makes it active.
    spark.createDataFrame([], "nothing int")
    try:
        spark.dataSource.register(BookKeeperDataSource)
    except AnalysisException as error:
        # Spark 4.0 and 4.1 do not let a source replace the same one that they discovered themselves.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
