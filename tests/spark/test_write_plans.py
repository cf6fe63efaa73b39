"""What a write is to record of its columns: in a log that has nothing, entries without a schema, or a schema."""

from __future__ import annotations

import asyncio

import pytest
from pyspark.sql import types as t

from bkspark.log.formats import LogHead, SchemaRef, SegmentFacts
from bkspark.log.heads import HeadStore
from bkspark.log.snapshot import LogSnapshot
from bkspark.metadata.memory import MemoryStore
from bkspark.spark.evolution import schema_of_text
from bkspark.spark.log_schemas import Remembered, WritePlan, planned_write
from bkspark.spark.options import SourceOptions

ROWS = t.StructType([t.StructField("id", t.LongType(), False), t.StructField("name", t.StringType())])
OPTIONAL = t.StructType([t.StructField("id", t.LongType()), t.StructField("name", t.StringType())])
RECORDED = (SchemaRef(0, 1, "0" * 32),)


def log_with(*ledgers: SegmentFacts, schemas: tuple[SchemaRef, ...] = ()) -> LogSnapshot:
    head = LogHead(log_id="a" * 16, root="/ledgers", changes=("a" * 16,), tail=ledgers, schemas=schemas)
    return LogSnapshot.of_head(HeadStore(MemoryStore().session(), "/ledgers"), "clicks", head)


def plan(
    snapshot: LogSnapshot | None, found: Remembered | None = None, *, is_overwrite: bool = False, **options: str
) -> WritePlan:
    given = SourceOptions.parse({"uri": "zk://h:1/l", "log": "clicks", **options}).for_write()
    return asyncio.run(planned_write(given, ROWS, snapshot, found, is_overwrite=is_overwrite))


def recorded(made: WritePlan) -> t.StructType:
    return schema_of_text(made.change.stored.schema, "clicks")


@pytest.mark.parametrize("snapshot", [None, log_with()], ids=["no log", "no ledger"])
def test_first_write_records_not_null(snapshot: LogSnapshot | None) -> None:
    made = plan(snapshot)
    assert recorded(made) == ROWS
    assert made.change.base is None


@pytest.mark.parametrize("found", [None, Remembered("arrow", t.StructType())], ids=["nothing", "the format"])
def test_first_append_to_entries_without_a_schema_lets_their_columns_be_null(found: Remembered | None) -> None:
    """Entries that are there already may have nulls in any column."""
    made = plan(log_with(SegmentFacts(7, 9, 100)), found)
    assert recorded(made) == OPTIONAL
    assert not made.entries["id"].nullable


def test_replaced_schema_is_derived_from_the_present_one() -> None:
    """Otherwise a schema that another job records meanwhile would be replaced, too."""
    snapshot = log_with(SegmentFacts(7, 9, 100), schemas=RECORDED)
    made = plan(snapshot, is_overwrite=True, overwriteSchema="true")
    assert recorded(made) == ROWS
    assert made.change.base == RECORDED[0].name
