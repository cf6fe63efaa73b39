"""The demo's parts on real Spark: what it reads, when it calls two tables equal, what it asks."""

from __future__ import annotations

import json

import pytest

from bkspark.errors import ConfigurationError

pytestmark = pytest.mark.spark

ROWS = [("a", 1, None), ("a", 1, None), ("b", None, 2.5)]
SCHEMA = "name string, number int, `odd.name` double"


@pytest.mark.parametrize("kind", ["csv", "jsonl", "json", "parquet"])
def test_a_table_is_read_from_each_kind_of_file(spark, tmp_path, kind):
    from bkspark.spark.demo import is_equal
    from bkspark.spark.demo_input import read_input

    path = tmp_path / f"table.{kind}"
    records = [{"name": name, "number": number} for name, number, _ in ROWS]
    expected = spark.createDataFrame([tuple(record.values()) for record in records], "name string, number int")
    if kind == "csv":
        path.write_text("name,number\n" + "".join(f"{r['name']},{r['number'] or ''}\n" for r in records))
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    elif kind == "json":
        path.write_text(json.dumps(records, indent=1))
    else:
        expected.coalesce(1).write.parquet(str(tmp_path / "folder"))
        next((tmp_path / "folder").glob("*.parquet")).rename(path)
    table, source = read_input(spark, str(path), tmp_path)
    assert source == path.name
    assert is_equal(table.selectExpr("name", "cast(number as int) number"), expected)


@pytest.mark.parametrize(("name", "content"), [("empty.csv", ""), ("broken.json", "this is not json\n")])
def test_a_file_without_a_table_is_named(spark, tmp_path, name, content):
    from bkspark.spark.demo_input import read_input

    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=name):
        read_input(spark, str(path), tmp_path)


def test_tables_are_equal_in_any_order_with_nulls_and_doubles(spark):
    from bkspark.spark.demo import is_equal

    table = spark.createDataFrame(ROWS, SCHEMA)
    assert is_equal(table, spark.createDataFrame(ROWS[::-1], SCHEMA))


@pytest.mark.parametrize(
    "changed",
    [ROWS[1:], [*ROWS, ROWS[2]], [ROWS[0], ROWS[0], ("b", 0, 2.5)], [ROWS[0], ROWS[2], ROWS[2]], []],
    ids=["one lost", "one doubled", "null became zero", "other doubles", "all lost"],
)
def test_tables_that_differ_are_not_equal(spark, changed):
    from bkspark.spark.demo import is_equal

    table = spark.createDataFrame(ROWS, SCHEMA)
    other = spark.createDataFrame(changed, SCHEMA)
    assert not is_equal(table, other)
    assert not is_equal(other, table)


def test_tables_of_other_columns_are_not_equal(spark):
    from bkspark.spark.demo import is_equal

    table = spark.createDataFrame(ROWS, SCHEMA)
    assert not is_equal(table, table.withColumnRenamed("name", "title"))


def test_a_question_is_found_for_any_table(spark):
    from bkspark.spark.demo import ask

    answer = ask(spark.createDataFrame(ROWS, SCHEMA), "table.csv")
    assert answer == {
        "title": "Average number by name, the 20 highest",
        "columns": ["name", "rows", "average number"],
        "rows": [["a", 2, 1.0], ["b", 1, None]],
    }
    assert ask(spark.createDataFrame([(True,)], "flag boolean"), "table.csv")["rows"] == [[1]]


def test_ready_made_rows_are_as_many_as_asked_for_and_the_null_writer_takes_them(spark):
    from bkspark.spark.bench_sources import NullArrowSink, ReadyArrowSource

    spark.dataSource.register(ReadyArrowSource)
    spark.dataSource.register(NullArrowSink)
    reader = spark.read.format("bkspark_ready_arrow").options(rows=25_001, value_size=7, partitions=2)
    rows = reader.load()
    assert rows.count() == 25_001
    assert [row[0] for row in rows.selectExpr("length(value)").distinct().collect()] == [7]
    rows.write.format("bkspark_null_arrow").mode("append").save()
