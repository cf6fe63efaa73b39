"""What a log remembers of its columns: reads need no option, and a write that does not fit is refused on the driver."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgpack
import pyarrow as pa
import pytest

from tests.polling import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bkspark.blocking import Client
    from tests.spark.conftest import Table

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

RICH = (
    "id BIGINT NOT NULL COMMENT 'key', name STRING, price DECIMAL(12,2), day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, "
    "raw BINARY, flag BOOLEAN, small TINYINT, real FLOAT, tags ARRAY<STRING>, by MAP<STRING, INT>, "
    "inner STRUCT<a: INT NOT NULL, b: ARRAY<STRUCT<c: DOUBLE>>>"
)


def rich(spark: SparkSession) -> DataFrame:
    """A DataFrame of many types, with NOT NULL, comments and metadata."""
    from pyspark.sql.types import StructField, StructType, _parse_datatype_string

    schema = _parse_datatype_string(RICH)
    assert isinstance(schema, StructType)
    fields = [
        StructField(each.name, each.dataType, each.nullable, {"unit": "euro", "digits": 2})
        if each.name == "price"
        else each
        for each in schema
    ]
    rows = spark.sql(
        "SELECT id, CAST(id AS STRING) name, CAST(id AS DECIMAL(12,2)) price, DATE'2024-02-29' day, "
        "TIMESTAMP'2024-02-29 12:00:00' at, TIMESTAMP_NTZ'2024-02-29 12:00:00' local, CAST('x' AS BINARY) raw, "
        "id > 1 flag, CAST(id AS TINYINT) small, CAST(id AS FLOAT) real, array('a', NULL) tags, map('k', 1) by, "
        "named_struct('a', 1, 'b', array(named_struct('c', 1.5D))) inner FROM range(5)"
    ).collect()
    return spark.createDataFrame(rows, StructType(fields))


def reasons(error: pytest.ExceptionInfo[BaseException]) -> str:
    return str(error.value)


# ---- what is written is what is read ----


@pytest.mark.every_spark
@pytest.mark.parametrize("payload_format", [None, "arrow", "json", "msgpack"])
def test_a_plain_read_returns_the_dataframe_that_was_written(
    spark: SparkSession, table: Table, payload_format: str | None
) -> None:
    frame = rich(spark)
    table.write(frame, **({} if payload_format is None else {"payloadFormat": payload_format}))
    found = table.read()
    assert found.schema == frame.schema
    assert [field.metadata for field in found.schema] == [field.metadata for field in frame.schema]
    assert sorted(found.collect()) == sorted(frame.collect())


@pytest.mark.parametrize("kind", ["string", "binary"])
def test_one_column_named_value_is_read_back_as_it_was_written(spark: SparkSession, table: Table, kind: str) -> None:
    frame = spark.sql(f"SELECT CAST(concat('row ', id) AS {kind}) AS value FROM range(3)")
    table.write(frame)
    assert table.read().schema == table.read().schema
    assert sorted(table.read().collect()) == sorted(frame.collect())
    assert table.read(payloadFormat="raw").columns == ["ledger_id", "entry_id", "value", "log", "position"]
    assert table.read("position string, value string").where("position IS NOT NULL").count() == 3


def test_named_columns_need_no_payload_format(spark: SparkSession, table: Table) -> None:
    table.write(spark.range(3).selectExpr("id", "CAST(id AS STRING) s"))
    assert sorted(table.read("s string, id bigint").collect()) == [("0", 0), ("1", 1), ("2", 2)]
    assert table.read("entry_id bigint, id bigint").where("entry_id IS NOT NULL").count() == 3
    assert "position" in table.read(includeMetadata="true").columns
    raw = table.read("entry_id bigint, value binary").first()
    assert raw is not None
    assert raw.value[:4] == b"\xff\xff\xff\xff"  # the entry itself, an Arrow stream


@pytest.mark.every_spark
def test_an_empty_dataframe_gives_the_log_its_columns(spark: SparkSession, table: Table) -> None:
    frame = rich(spark).limit(0)
    table.write(frame)
    assert table.read().schema == frame.schema
    assert table.read().collect() == []
    table.write(rich(spark))
    assert table.read().count() == 5


def test_two_thousand_columns_are_remembered(spark: SparkSession, table: Table) -> None:
    frame = spark.range(2).selectExpr(*(f"id + {i} AS a_column_with_a_long_name_{i}" for i in range(2000)))
    table.write(frame)
    found = table.read()
    assert found.columns == frame.columns
    assert found.selectExpr("sum(a_column_with_a_long_name_1999)").first()[0] == 2 * 1999 + 1  # type: ignore[index]


@pytest.mark.every_spark
def test_sql_views_and_tables_find_the_columns(spark: SparkSession, table: Table) -> None:
    table.write(spark.range(3).selectExpr("id", "CAST(id AS STRING) s"))
    given = f"uri '{table.uri}', log '{table.log}'"
    names = f"'uri' = '{table.uri}', 'log' = '{table.log}'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW remembered USING bookkeeper OPTIONS ({given})")
    assert spark.sql("SELECT sum(id), max(s) FROM remembered").collect() == [(3, "2")]
    spark.sql("DROP TABLE IF EXISTS remembered_table")
    spark.sql(f"CREATE TABLE remembered_table USING bookkeeper OPTIONS ({given})")
    try:
        assert spark.sql(f"SELECT sum(id), max(s) FROM remembered_table WITH ({names})").collect() == [(3, "2")]
        spark.sql(f"INSERT INTO remembered_table WITH ({names}) VALUES (7, 'seven')")
        assert spark.sql(f"SELECT s FROM remembered_table WITH ({names}) WHERE id = 7").collect() == [("seven",)]
    finally:
        spark.sql("DROP TABLE remembered_table")


# ---- appends are checked ----


@pytest.mark.every_spark
@pytest.mark.parametrize(
    ("select", "options", "words"),
    [
        ("CAST(id AS STRING) id, 's' s", {}, "column 'id' is string, but log .* has it as bigint: cast it"),
        ("id, 's' s, 1 typo", {}, "column 'typo int' is not in log .*: set mergeSchema=true"),
        ("'s' s", {}, "column 'id bigint' is missing, but NOT NULL"),
        ("CAST(id AS DECIMAL(20,0)) id, 's' s", {}, r"set mergeSchema=true to make it decimal\(20,0\)"),
        ("id, 's' s", {"payloadFormat": "json"}, "is json, but log .* has arrow entries"),
        ("CAST(id AS STRING) value", {}, "column 'value string' is not in log"),
    ],
)
def test_an_append_that_does_not_fit_is_refused_before_any_task(
    spark: SparkSession, table: Table, client: Client, select: str, options: dict[str, Any], words: str
) -> None:
    table.write(spark.range(3).selectExpr("id", "'s' s"))
    before = client.log(table.log).show()
    with pytest.raises(Exception, match=words):
        table.write(spark.range(2).selectExpr(*_parts(select)), **options)
    assert client.log(table.log).show() == before
    assert table.read().count() == 3


def _parts(select: str) -> list[str]:
    parts, depth, part = [], 0, ""
    for character in select:
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            parts.append(part)
            part = ""
        else:
            part += character
    return [*parts, part]


@pytest.mark.every_spark
def test_a_null_in_a_column_that_is_not_null_fails_the_write(spark: SparkSession, table: Table) -> None:
    table.write(spark.range(3).selectExpr("id", "named_struct('a', 1) inner"))
    table.write(spark.sql("SELECT IF(id < 9, id, NULL) id, named_struct('a', 2) inner FROM range(2)"))
    with pytest.raises(Exception, match=r"column 'id' holds a null that log .* does not take \(NOT NULL\)"):
        table.write(spark.sql("SELECT IF(id > 0, id, NULL) id, named_struct('a', 2) inner FROM range(2)"))
    with pytest.raises(Exception, match=r"column 'inner' holds a null that log"):
        table.write(spark.sql("SELECT id, named_struct('a', IF(id > 0, 1, NULL)) inner FROM range(2)"))
    assert table.read().count() == 5


def test_an_empty_dataframe_first_lets_later_rows_have_nulls(spark: SparkSession, table: Table) -> None:
    table.write(spark.createDataFrame([], "id bigint, name string"))
    table.write(spark.sql("SELECT 1L id, 'never null' name"))
    table.write(spark.sql("SELECT 2L id, CAST(NULL AS STRING) name"))
    assert sorted(table.read().collect()) == [(1, "never null"), (2, None)]


def test_an_append_may_leave_columns_out_and_narrow_them(spark: SparkSession, table: Table) -> None:
    table.write(spark.sql("SELECT IF(id < 9, id, NULL) id, IF(id < 9, 's', NULL) s FROM range(1)"))
    table.write(spark.sql("SELECT CAST(7 AS INT) ID"))
    found = table.read()
    assert found.columns == ["id", "s"]
    assert sorted(found.collect()) == [(0, "s"), (7, None)]


@pytest.mark.every_spark
def test_merge_schema_adds_columns_and_widens_types(spark: SparkSession, table: Table) -> None:
    table.write(spark.sql("SELECT 1 id, CAST(1 AS FLOAT) x, named_struct('a', 1) inner"))
    table.write(
        spark.sql("SELECT 5000000000L id, 2.5D x, named_struct('a', 2, 'b', 'new') inner, 'late' s"), mergeSchema="true"
    )
    table.write(spark.sql("SELECT 3 id, CAST(3 AS FLOAT) x, named_struct('a', 3) inner"))
    found = table.read()
    assert [f"{each.name} {each.dataType.simpleString()}" for each in found.schema] == [
        "id bigint",
        "x double",
        "inner struct<a:int,b:string>",
        "s string",
    ]
    assert sorted(found.collect()) == [
        (1, 1.0, (1, None), None),
        (3, 3.0, (3, None), None),
        (5_000_000_000, 2.5, (2, "new"), "late"),
    ]


@pytest.mark.every_spark
def test_overwrite_schema_replaces_the_columns(spark: SparkSession, table: Table) -> None:
    table.write(spark.range(3).selectExpr("id", "'s' s"))
    with pytest.raises(Exception, match=r"but log .* has it as bigint"):
        table.write(spark.sql("SELECT 'x' id, 's' s"), mode="overwrite")
    with pytest.raises(Exception, match="goes with mode overwrite"):
        table.write(spark.sql("SELECT 'x' id"), overwriteSchema="true")
    table.write(spark.sql("SELECT 'x' id"), mode="overwrite", overwriteSchema="true", payloadFormat="json")
    assert table.read().collect() == [("x",)]
    table.write(spark.sql("SELECT 'y' id"))
    assert table.read().schema.simpleString() == "struct<id:string>"


def test_a_read_to_an_earlier_end_has_the_columns_of_its_range(spark: SparkSession, table: Table) -> None:
    table.write(spark.sql("SELECT 1 id"))
    end = table.read(includeMetadata="true").first()["position"]  # type: ignore[index]
    table.write(spark.sql("SELECT 2 id, 'late' s"), mergeSchema="true")
    assert table.read().columns == ["id", "s"]
    assert table.read(endingOffsets=end).columns == ["id"]


def test_logs_of_a_pattern_are_read_with_the_columns_of_all(spark: SparkSession, table: Table) -> None:
    from tests.spark.conftest import Table

    other = Table(spark, table.uri, f"{table.log}-other")
    table.write(spark.sql("SELECT 1 id, 's' s"))
    other.write(spark.sql("SELECT 2L id, true flag"))
    reader = spark.read.format("bookkeeper").options(uri=table.uri, logsPattern=f"{table.log}.*")
    found = reader.load()
    assert found.schema.simpleString() == "struct<id:bigint,s:string,flag:boolean>"
    assert sorted(found.collect(), key=str) == [(1, "s", None), (2, None, True)]
    other.write(spark.sql("SELECT 'x' id"), mode="overwrite", overwriteSchema="true")
    with pytest.raises(Exception, match="no type holds both"):
        reader.load()


# ---- streams ----


@pytest.mark.every_spark
def test_a_stream_continues_when_columns_are_added(
    spark: SparkSession, table: Table, tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    table.write(spark.sql("SELECT 1 id"))
    query = (
        table.stream(startingOffsets="earliest")
        .writeStream.format("memory")
        .queryName("additive")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        wait_until(lambda: spark.table("additive").count() == 1, "the rows")
        table.write(spark.sql("SELECT 2 id, 'late' s"), mergeSchema="true")
        wait_until(lambda: spark.table("additive").count() == 2, "the rows")
    finally:
        query.stop()
    assert sorted(spark.table("additive").collect()) == [(1,), (2,)]


@pytest.mark.every_spark
def test_a_stream_ends_at_a_column_that_contradicts_its_own(spark: SparkSession, table: Table, tmp_path: Any) -> None:
    table.write(spark.sql("SELECT 1 id"))
    options = {"startingOffsets": "earliest"}

    def run() -> None:
        frame = table.stream(**options)
        if stale:
            frame = table.stream("id int", **options)
        query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
        try:
            query.processAllAvailable()
            table.write(spark.sql("SELECT 5000000000L id"), mergeSchema="true")
            query.processAllAvailable()
        finally:
            query.stop()

    stale = False
    with pytest.raises(Exception, match=r"column 'id' is bigint in log .* from .* on, and this read has it as int"):
        run()


def test_a_streaming_sink_gives_its_log_the_columns(spark: SparkSession, table: Table, tmp_path: Any) -> None:
    from tests.spark.conftest import Table

    table.write(spark.range(10).selectExpr("id", "'s' s"))
    copy = Table(spark, table.uri, f"{table.log}-copy")
    for _ in range(2):
        writer = table.stream(startingOffsets="earliest").writeStream.format("bookkeeper")
        writer = writer.options(uri=copy.uri, log=copy.log, checkpointLocation=str(tmp_path / "c"))
        writer.trigger(availableNow=True).start().awaitTermination()
        assert copy.read().schema == table.read().schema
        assert sorted(copy.read().collect()) == sorted(table.read().collect())
        table.write(spark.range(3).selectExpr("id", "'t' s"))


# ---- logs without a schema ----


def test_columns_come_from_the_first_and_the_last_entries_of_others(
    spark: SparkSession, table: Table, client: Client
) -> None:
    with client.log(table.log).open_for_writing() as writer:
        writer.append_many([json.dumps({"a": i}).encode() for i in range(2000)])
        writer.append_many([json.dumps({"a": i, "b": "late"}).encode() for i in range(2000)])
    found = table.read(payloadFormat="json")
    assert found.schema.simpleString() == "struct<a:bigint,b:string>"
    assert found.where("b IS NULL").count() == found.where("b IS NOT NULL").count() == 2000
    assert table.read(payloadFormat="json", endingOffsets="-2000").columns == ["a"]


@pytest.mark.parametrize("mode", ["DROPMALFORMED", "PERMISSIVE"])
def test_no_lenient_mode_loses_the_rows_of_a_column(
    spark: SparkSession, table: Table, client: Client, mode: str
) -> None:
    with client.log(table.log).open_for_writing() as writer:
        writer.append_many([json.dumps({"a": i}).encode() for i in range(1500)])
        writer.append_many([json.dumps({"a": i, "b": "middle"}).encode() for i in range(10)])
        writer.append_many([json.dumps({"a": i}).encode() for i in range(1500)])
    found = table.read(payloadFormat="json", mode=mode)
    assert found.count() == 3010
    if mode == "PERMISSIVE":
        assert found.where("_corrupt_record IS NOT NULL").count() == 10
    else:
        assert found.where("a IS NOT NULL").count() == 3010


def test_a_log_that_others_wrote_gets_no_entries_of_another_format(
    spark: SparkSession, table: Table, client: Client
) -> None:
    with client.log(table.log).open_for_writing() as writer:
        writer.append_many([b'{"a":1}'])
    with pytest.raises(Exception, match="set payloadFormat to the format of its entries"):
        table.write(spark.sql("SELECT 2 a, 's' s"))
    table.write(spark.sql("SELECT 2 a"), payloadFormat="json")
    assert sorted(table.read().collect()) == [(1,), (2,)]
    assert table.read().schema.simpleString() == "struct<a:int>"


@pytest.mark.parametrize("payload_format", ["json", "msgpack"])
def test_entries_of_others_may_lack_what_an_append_has_in_each_row(
    spark: SparkSession, table: Table, client: Client, payload_format: str
) -> None:
    with client.log(table.log).open_for_writing() as writer:
        writer.append_many([b'{"a":1}' if payload_format == "json" else b"\x81\xa1a\x01"])
    table.write(spark.sql("SELECT 2 a, 's' s"), payloadFormat=payload_format)
    assert sorted(table.read().collect()) == [(1, None), (2, "s")]


@pytest.mark.parametrize("payload_format", ["json", "msgpack"])
def test_columns_that_only_entries_of_others_have_are_remembered_with_the_first_append(
    spark: SparkSession, table: Table, client: Client, payload_format: str
) -> None:
    """With all digits of whole numbers, and the words of a double."""
    inner = {"p": 1, "q": "y"}
    others = [{"a": 1, "more": "x", "inner": inner, "id": 2**64 - 1, "ratio": "NaN"}, {"a": 2, "id": 1, "ratio": 0.5}]
    pack = json.dumps if payload_format == "json" else msgpack.packb
    with client.log(table.log).open_for_writing() as writer:
        writer.append_many([entry if isinstance(entry := pack(row), bytes) else entry.encode() for row in others])
    table.write(spark.sql("SELECT 3 A, named_struct('p', 3) inner, DATE'2024-02-29' day"), payloadFormat=payload_format)
    found = table.read()
    added = "more:string,id:decimal(20,0),ratio:double"
    assert found.schema.simpleString() == f"struct<a:int,inner:struct<p:int,q:string>,day:date,{added}>"
    assert [(row.a, row.inner, row.more, row.id, str(row.ratio)) for row in sorted(found.collect())] == [
        (1, (1, "y"), "x", 2**64 - 1, "nan"),
        (2, None, None, 1, "0.5"),
        (3, (3, None), None, None, "None"),
    ]


def test_rows_of_a_type_that_entries_of_others_contradict_are_refused(
    spark: SparkSession, table: Table, client: Client
) -> None:
    with client.log(table.log).open_for_writing() as writer:
        writer.append_many([b'{"a":"text"}', b"no json"])
    with pytest.raises(Exception, match=r"column 'a int' is not what entries of log .* have"):
        table.write(spark.sql("SELECT 3 a"), payloadFormat="json")
    table.write(spark.sql("SELECT 'more' a"), payloadFormat="json")
    assert sorted(row.a for row in table.read(mode="DROPMALFORMED").collect()) == ["more", "text"]


def test_a_log_of_others_takes_rows_with_custom_metadata(spark: SparkSession, table: Table, client: Client) -> None:
    with client.log(table.log).open_for_writing() as writer:
        writer.append_many([arrow_entry(id=1), arrow_entry(id=2, s="late")])
    table.write(spark.sql("SELECT 3L id"), **{"ledgerMetadata.team": "x"})
    assert sorted(table.read().collect()) == [(1, None), (2, "late"), (3, None)]


def test_columns_of_a_few_entries_of_arrow_are_those_of_the_first_and_the_last(table: Table, client: Client) -> None:
    with client.log(table.log).open_for_writing() as writer:
        writer.append_many([arrow_entry(id=1, early=True), arrow_entry(id=2, s="late")])
    found = table.read(payloadFormat="arrow")
    assert found.schema.simpleString() == "struct<id:bigint,early:boolean,s:string>"
    assert sorted(found.collect()) == [(1, True, None), (2, None, "late")]


def arrow_entry(**columns: object) -> bytes:
    batch = pa.record_batch({name: pa.array([value]) for name, value in columns.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def test_a_read_of_nothing_of_a_truncated_log_has_its_columns(
    spark: SparkSession, table: Table, client: Client
) -> None:
    table.write(spark.sql("SELECT 1 id"))
    table.write(spark.sql("SELECT 2 id, 'late' s"), mergeSchema="true")
    (position,) = [row.position for row in table.read(includeMetadata="true").collect() if row.id == 2]
    client.log(table.log).truncate(position)
    assert table.read(endingTimestamp="1").columns == ["id", "s"]


# ---- what is shown ----


def test_the_table_of_logs_shows_formats_schemas_and_versions(
    spark: SparkSession, table: Table, client: Client
) -> None:
    table.write(spark.sql("SELECT 1 id"))
    table.write(spark.sql("SELECT 2 id, 'late' s"), mergeSchema="true")
    logs = spark.read.format("bookkeeper").options(uri=table.uri, inspect="logs").load()
    row = logs.where(f"log = '{table.log}'").first()
    assert row is not None
    assert (row.payload_format, row.schema) == ("arrow", "id int NOT NULL, s string")
    assert [(each.number, each.first_ordinal, each.format) for each in row.schemas] == [
        (1, 0, "arrow"),
        (2, 1, "arrow"),
    ]
    assert [each["number"] for each in client.log(table.log).show()["schemas"]] == [1, 2]
