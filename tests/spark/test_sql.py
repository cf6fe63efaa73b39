"""Tables and views in SQL: what Spark lets a Python source do, and what it tells where it does not."""

import pytest
from pyspark.errors import PySparkException

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


@pytest.fixture
def name(spark, table):
    """A name for tables and views that no other test takes; they are dropped afterwards."""
    name = table.log.replace("-", "_")
    yield name
    for statement in (
        f"drop view if exists {name}_view",
        f"drop view if exists {name}",
        f"drop table if exists {name}_t",
    ):
        spark.sql(statement)


def options(table, **more) -> str:
    return ", ".join(f"'{key}' = '{value}'" for key, value in {"uri": table.uri, "log": table.log, **more}.items())


def values(spark, query: str) -> list[str]:
    return sorted(row[0] for row in spark.sql(query).collect())


def refused(spark, statement: str) -> str:
    with pytest.raises(PySparkException) as caught:
        spark.sql(statement).collect()
    return str(caught.value)


def append(table, *texts: str) -> None:
    table.write(table.spark.createDataFrame([(text,) for text in texts], "value string"))


def test_temporary_view_with_options_reads_and_inserts(spark, table, name):
    spark.sql(f"create temporary view {name} (value string) using bookkeeper options ({options(table)})")
    spark.sql(f"insert into {name} values ('a'), ('b')")
    assert values(spark, f"select value from {name}") == ["a", "b"]


def test_temporary_view_with_options_of_a_write_takes_inserts_and_no_queries(spark, table, name):
    """Spark gives a view's options to both, and adds nothing from WITH."""
    small = {"ensembleSize": 1, "writeQuorum": 1, "ackQuorum": 1}
    spark.sql(f"create temporary view {name} (value string) using bookkeeper options ({options(table, **small)})")
    spark.sql(f"insert into {name} values ('a')")
    assert "option 'ackQuorum' has no effect on a batch read" in refused(spark, f"select * from {name}")
    spark.sql(f"create temporary view {name}_view (value string) using bookkeeper options ({options(table)})")
    assert values(spark, f"select value from {name}_view with ('startingOffsets' = 'nonsense')") == ["a"]
    spark.sql(f"insert into {name} with ('ensembleSize' = '1000') values ('b')")
    assert sorted(row.value for row in table.read("value string").collect()) == ["a", "b"]


@pytest.mark.plans_once
def test_temporary_view_is_the_snapshot_of_its_first_query(spark, table, name):
    append(table, "a")
    spark.sql(f"create temporary view {name} (value string) using bookkeeper options ({options(table)})")
    assert values(spark, f"select value from {name}") == ["a"]
    append(table, "b")
    assert values(spark, f"select value from {name}") == ["a"]


def test_table_takes_its_options_from_each_query_and_is_never_stale(spark, table, name):
    spark.sql(f"create table {name}_t (value string) using bookkeeper options ({options(table)})")
    chosen = f"{name}_t with ({options(table)})"
    spark.sql(f"insert into {chosen} values ('a')")
    assert values(spark, f"select value from {chosen}") == ["a"]
    append(table, "b")
    assert values(spark, f"select value from {chosen}") == ["a", "b"]
    reader = spark.read.option("uri", table.uri).option("log", table.log)
    assert sorted(row.value for row in reader.table(f"{name}_t").collect()) == ["a", "b"]
    spark.sql(f"create view {name}_view as select value from {chosen}")
    append(table, "c")
    assert values(spark, f"select value from {name}_view") == ["a", "b", "c"]
    spark.sql(f"insert overwrite {chosen} values ('z')")
    assert values(spark, f"select value from {name}_view") == ["z"]


def test_table_is_written_by_the_writers_that_hand_options_over(spark, table, name):
    spark.sql(f"create table {name}_t (value string) using bookkeeper")
    row, chosen = spark.sql("select 'a' as value"), {"uri": table.uri, "log": table.log}
    row.writeTo(f"{name}_t").options(**chosen).append()
    row.write.format("bookkeeper").options(**chosen).mode("append").saveAsTable(f"{name}_t")
    with pytest.raises(PySparkException, match="Spark does not pass a table's OPTIONS"):
        row.write.options(**chosen).insertInto(f"{name}_t")
    spark.sql(f"drop table {name}_t")
    assert [row.value for row in table.read("value string").collect()] == ["a", "a"]


def test_write_to_creates_a_table_and_its_replacement_also_replaces_what_the_log_has(spark, table, name):
    """docs/spark.md: "so do `create` and `createOrReplace`, the second of which also replaces what the log has"."""
    chosen = {"uri": table.uri, "log": table.log}

    def writer(value):
        row = spark.sql(f"select '{value}' as value")
        return row.writeTo(f"{name}_t").using("bookkeeper").options(**chosen)

    append(table, "old")
    writer("a").create()
    assert sorted(row.value for row in table.read("value string").collect()) == ["a", "old"]
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        writer("b").create()
    writer("c").createOrReplace()
    assert [row.value for row in table.read("value string").collect()] == ["c"]
    assert values(spark, f"select value from {name}_t with ({options(table)})") == ["c"]
    spark.sql(f"drop table {name}_t")


def test_options_of_a_table_do_not_reach_the_source_and_the_error_says_what_does(spark, table, name):
    append(table, "a")
    spark.sql(f"create table {name}_t using bookkeeper options ({options(table)}) tblproperties ('team' = 'x')")
    assert [column for column, _ in spark.table(f"{name}_t").dtypes] == ["value"]
    for statement in (f"select * from {name}_t", f"insert into {name}_t select * from {name}_t"):
        message = refused(spark, statement)
        assert "Spark does not pass a table's OPTIONS to a Python source" in message
        assert "WITH ('uri' = " in message
    assert "option 'uri' is missing" in refused(spark, f"select * from {name}_t with ('log' = '{table.log}')")


def test_table_as_select_fails_before_anything_is_written(spark, table, name, client):
    before = set(client.ledgers())
    message = refused(
        spark, f"create table {name}_t using bookkeeper options ({options(table)}) as select 'a' as value"
    )
    assert "Spark does not pass a table's OPTIONS to a Python source" in message
    assert set(client.ledgers()) == before
    assert table.log not in client.logs()


def test_inserts_name_columns_and_alterations_of_a_table_leave_its_log_alone(spark, table, name):
    """ALTER TABLE changes the columns of the catalog: rows have null in one that the log lacks."""
    table.write(spark.sql("select 1 id, 'a' name"))
    spark.sql(f"create temporary view {name} using bookkeeper options ({options(table)})")
    spark.sql(f"insert into {name} by name select 'b' name, 2 id")
    spark.sql(f"insert into {name} (name, id) values ('c', 3)")
    spark.sql(f"create table {name}_t (id int comment 'number', name string) using bookkeeper")
    spark.sql(f"insert into {name}_t with ({options(table)}) by name select 'd' name, 4 id")
    assert sorted(map(tuple, table.read().collect())) == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    spark.sql(f"alter table {name}_t add columns (more int)")
    described = [tuple(row) for row in spark.sql(f"describe {name}_t").collect()]
    assert described == [("id", "int", "number"), ("name", "string", None), ("more", "int", None)]
    rows = spark.sql(f"select * from {name}_t with ({options(table)}) where id = 4").collect()
    assert [tuple(row) for row in rows] == [(4, "d", None)]
    assert [row[0] for row in spark.sql(f"show columns in {name}_t").collect()] == ["id", "name", "more"]
    assert table.read().columns == ["id", "name"]


def test_statements_that_spark_does_not_offer_for_the_source_fail_and_leave_the_log_alone(spark, table, name):
    table.write(spark.sql("select 1 id, 'a' name"))
    spark.sql(f"create table {name}_t (id int, name string) using bookkeeper")
    given = f"{name}_t with ({options(table)})"
    statements = {
        f"delete from {given} where id = 1": "does not support deletes",
        f"update {given} set id = 2": "UPDATE TABLE",
        f"merge into {given} using (select 1 id) s on s.id = {name}_t.id when matched then delete": "MERGE INTO TABLE",
        f"truncate table {name}_t": "does not support truncates",
        f"analyze table {name}_t compute statistics": "NOT_SUPPORTED_COMMAND_FOR_V2_TABLE",
        f"msck repair table {name}_t": "NOT_SUPPORTED_COMMAND_FOR_V2_TABLE",
        f"show partitions {name}_t": "PARTITION_MANAGEMENT_IS_UNSUPPORTED",
        f"select * from {name}_t version as of 1 with ({options(table)})": "TIME_TRAVEL",
        f"select * from bookkeeper.`{table.log}` with ({options(table)})": "UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY",
    }
    for statement, part in statements.items():
        assert part in refused(spark, statement), statement
    assert [tuple(row) for row in table.read().collect()] == [(1, "a")]
