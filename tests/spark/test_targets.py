"""How rows are written to one log, without a session: what is refused in the tasks."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from bkspark.errors import MalformedPayload
from bkspark.log.formats import SegmentOwner
from bkspark.spark.columns import all_nullable, arrow_schema
from bkspark.spark.log_schemas import new_log_plan
from bkspark.spark.options import SourceOptions
from bkspark.spark.targets import LogTarget

INNER = StructType([StructField("b", StringType(), False)])
ROWS = StructType([StructField("a", StringType(), False), StructField("s", ArrayType(INNER, True), True)])


@pytest.mark.parametrize("payload_format", ["arrow", "json", "msgpack"])
@pytest.mark.parametrize("row", [{"a": None, "s": []}, {"a": "x", "s": [{"b": None}]}])
def test_a_null_in_a_column_that_the_rows_call_not_null_is_not_written(payload_format: str, row: object) -> None:
    """Spark does not check the rows of a schema (verifySchema=False), and no read would take such an entry."""
    given = {"uri": "zk://h:1/ledgers", "log": "clicks", "payloadFormat": payload_format}
    options = SourceOptions.parse(given).for_batch_write().for_write()
    encode = LogTarget(options, ROWS, new_log_plan(options, ROWS)).encoder()
    batch = pa.RecordBatch.from_pylist([row], arrow_schema(all_nullable(ROWS)))
    with pytest.raises(
        MalformedPayload, match=r"column '[as]' holds a null that log clicks does not take \(NOT NULL\)"
    ):
        list(encode(batch))
    assert list(encode(pa.RecordBatch.from_pylist([{"a": "x", "s": [None, {"b": "y"}]}], arrow_schema(ROWS))))


def test_a_null_in_a_member_that_is_not_null_is_not_written_where_every_column_may_be_null() -> None:
    rows = StructType([StructField("s", ArrayType(INNER, True), True)])
    options = SourceOptions.parse({"uri": "zk://h:1/ledgers", "log": "clicks"}).for_batch_write().for_write()
    encode = LogTarget(options, rows, new_log_plan(options, rows)).encoder()
    with pytest.raises(MalformedPayload, match="column 's' holds a null that log clicks does not take"):
        list(encode(pa.RecordBatch.from_pylist([{"s": [{"b": None}]}], arrow_schema(all_nullable(rows)))))


def test_ledger_that_commits_share_is_durable_whatever_the_type_of_the_ledgers_of_tasks() -> None:
    """Its entries are published while it is open, and nothing syncs it before."""
    given = {"uri": "zk://h:1/ledgers", "log": "clicks", "ledgerType": "VD_JOURNAL"}
    options = SourceOptions.parse(given).for_batch_write().for_write()
    target = LogTarget(options, ROWS, new_log_plan(options, ROWS))
    owner = SegmentOwner("query", "q")
    kinds = [target.ledger_options(owner, is_shared=is_shared).ledger_type for is_shared in (True, False)]
    assert kinds == ["PD_JOURNAL", "VD_JOURNAL"]
