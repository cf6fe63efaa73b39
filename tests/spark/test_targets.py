"""How rows are written to one log, without a session: what is refused in the tasks."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from bkspark.errors import MalformedPayload
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
