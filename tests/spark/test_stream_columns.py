"""Queries that are stopped, and started again from their checkpoint after the columns of their log have changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


class Copy:
    """A query that copies a log, with one checkpoint, until it has read all that is there."""

    def __init__(self, table: Table, folder: Path, sink: str) -> None:
        self._table = table
        self._folder = folder
        self._sink = sink
        self._log = Table(table.spark, table.uri, f"{table.log}-{folder.name}")

    def run(self, schema: str | None = None) -> None:
        """Run the query: with the columns that the log has now, or with those of the program."""
        frame = self._table.stream(schema, startingOffsets="earliest")
        writer = frame.writeStream.option("checkpointLocation", str(self._folder / "checkpoint"))
        if self._sink == "bookkeeper":
            writer = writer.format("bookkeeper").options(uri=self._log.uri, log=self._log.log, mergeSchema="true")
        else:
            writer = writer.format(self._sink).option("path", str(self._folder / "rows"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def rows(self) -> list[dict[str, Any]]:
        found = self._read().collect()
        return sorted((row.asDict() for row in found), key=lambda row: row["id"])

    def _read(self) -> DataFrame:
        if self._sink == "bookkeeper":
            return self._log.read()
        return self._table.spark.read.option("mergeSchema", "true").format(self._sink).load(str(self._folder / "rows"))


@pytest.mark.parametrize("sink", ["parquet", "bookkeeper"])
def test_restarted_query_reads_new_columns_and_the_old_ones_where_it_names_them(
    spark: SparkSession, table: Table, tmp_path: Path, sink: str
) -> None:
    new, old = Copy(table, tmp_path / "new", sink), Copy(table, tmp_path / "old", sink)
    table.write(spark.sql("SELECT 1 id"))
    new.run()
    old.run()
    table.write(spark.sql("SELECT 2 id"))
    table.write(spark.sql("SELECT 3 id, 'late' s"), mergeSchema="true")
    table.write(spark.sql("SELECT 4 id, 'later' s"))
    new.run()
    old.run("id int")
    assert new.rows() == [{"id": 1, "s": None}, {"id": 2, "s": None}, {"id": 3, "s": "late"}, {"id": 4, "s": "later"}]
    assert old.rows() == [{"id": each} for each in (1, 2, 3, 4)]
    old.run()
    table.write(spark.sql("SELECT 5 id, 'last' s"))
    old.run()
    assert old.rows()[3:] == [{"id": 4, "s": None}, {"id": 5, "s": "last"}]


def test_restarted_query_ends_at_values_that_its_columns_cannot_have(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    copy = Copy(table, tmp_path, "parquet")
    table.write(spark.sql("SELECT 1 id"))
    copy.run("id int")
    table.write(spark.sql("SELECT 5000000000L id"), mergeSchema="true")
    for _ in range(2):
        with pytest.raises(Exception, match=r"ledger \d+ entry 0: .*column 'id' is int64, .* the schema, or set mode"):
            copy.run("id int")
    assert copy.rows() == [{"id": 1}]
    with pytest.raises(Exception, match=r"(?s)column 'id' is bigint in log .* from .* on.* name it bigint in \.schema"):
        copy.run("id string")


def test_query_of_a_log_whose_columns_were_replaced_needs_a_new_checkpoint(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    copy = Copy(table, tmp_path, "parquet")
    table.write(spark.sql("SELECT 1 id"))
    copy.run()
    table.write(spark.sql("SELECT 'two' id"), mode="overwrite", overwriteSchema="true")
    for schema in (None, "id int"):
        with pytest.raises(Exception, match=rf"(?s)log {table.log} .*new checkpoint"):
            copy.run(schema)
