"""A write without option `log` whose column `log` names the log of each row: all logs show it, or none does."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructField, StructType

from bkspark.blocking import Client
from bkspark.errors import ConfigurationError
from bkspark.spark.options import SourceOptions
from bkspark.spark.source import BookKeeperDataSource
from bkspark.spark.versions import HAS_ADMISSION_CONTROL
from bkspark.spark.write import destination_of
from tests.cluster import Cluster
from tests.spark.spark_key_files import key_file

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


class Logs:
    """Logs whose names begin alike, written by their names in a column and read by their pattern."""

    def __init__(self, spark: SparkSession, cluster: Cluster, client: Client) -> None:
        self.spark = spark
        self.uri = cluster.uri
        self.client = client
        self.prefix = f"routed-{uuid.uuid4().hex[:8]}-"

    def frame(self, *rows: tuple[str | None, Any], columns: str = "log string, value int") -> DataFrame:
        """Return rows of (end of the log's name, value)."""
        named = [(None if log is None else self.prefix + log, *values) for log, *values in rows]
        return self.spark.createDataFrame(named, columns)

    def write(self, frame: DataFrame, mode: str = "append", **options: str) -> None:
        frame.write.format("bookkeeper").option("uri", self.uri).options(**options).mode(mode).save()

    def content(self, **options: str) -> dict[str, list[Any]]:
        """Return the values of each log, by the end of its name."""
        named = {"uri": self.uri, "logsPattern": f"{self.prefix}.*", "includeMetadata": "true"} | options
        rows = self.spark.read.format("bookkeeper").options(**named).load().select("log", "value").collect()
        found: dict[str, list[Any]] = {}
        for row in rows:
            found.setdefault(row.log.removeprefix(self.prefix), []).append(row.value)
        return {log: sorted(values) for log, values in sorted(found.items())}

    def names(self) -> list[str]:
        """Return the ends of the names of the logs that hold ledgers."""
        return [
            name.removeprefix(self.prefix)
            for name in self.client.logs()
            if name.startswith(self.prefix) and self.client.log(name).show()["ledgers"]
        ]


@pytest.fixture
def logs(spark: SparkSession, cluster: Cluster, client: Client) -> Iterator[Logs]:
    return Logs(spark, cluster, client)


@pytest.mark.every_spark
def test_rows_go_to_the_logs_that_they_name(logs: Logs) -> None:
    logs.write(logs.frame(("a", 1), ("b", 2), ("a", 3), ("c", 4)))
    logs.write(logs.frame(("c", 5), ("d", 6)))
    assert logs.content() == {"a": [1, 3], "b": [2], "c": [4, 5], "d": [6]}


def test_the_column_is_not_part_of_the_payload(logs: Logs) -> None:
    logs.write(logs.frame(("a", 1)))
    read = logs.spark.read.format("bookkeeper").options(uri=logs.uri, log=f"{logs.prefix}a").load()
    assert read.schema.simpleString() == "struct<value:int>"


@pytest.mark.parametrize("payload_format", ["raw", "json", "arrow", "msgpack"])
@pytest.mark.parametrize("inline", ["0", "512k"])
def test_every_payload_format_is_routed(logs: Logs, payload_format: str, inline: str) -> None:
    rows = logs.frame(("a", "x"), ("b", "y"), columns="log string, value string")
    logs.write(rows, payloadFormat=payload_format, inlineBytes=inline)
    found = logs.content()
    assert {log: [bytes(v).decode() if not isinstance(v, str) else v for v in found[log]] for log in found} == {
        "a": ["x"],
        "b": ["y"],
    }


def test_with_option_log_a_column_of_that_name_is_data(logs: Logs) -> None:
    logs.write(logs.frame(("a", 1), ("b", 2)), log=f"{logs.prefix}all")
    read = logs.spark.read.format("bookkeeper").options(uri=logs.uri, log=f"{logs.prefix}all").load()
    assert sorted((row.log, row.value) for row in read.collect()) == [(f"{logs.prefix}a", 1), (f"{logs.prefix}b", 2)]
    assert logs.names() == ["all"]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (None, "1 rows have null in column 'log'"),
        ("a/b", "names 'routed-.*a/b', which is not a valid log name"),
        ("x" * 300, "which is not a valid log name"),
    ],
)
def test_one_row_without_a_usable_name_fails_the_whole_write(logs: Logs, bad: str | None, reason: str) -> None:
    with pytest.raises(Exception, match=reason):
        logs.write(logs.frame(("a", 1), (bad, 2), ("b", 3)))
    assert logs.names() == []


@pytest.mark.every_spark
def test_one_log_with_other_columns_fails_the_whole_write_by_name(logs: Logs) -> None:
    logs.write(logs.frame(("b", "text"), columns="log string, value string"))
    with pytest.raises(Exception, match=f"log {logs.prefix}b"):
        logs.write(logs.frame(("a", 1), ("b", 2)))
    assert logs.content() == {"b": ["text"]}


def test_each_log_remembers_columns_of_its_own(logs: Logs) -> None:
    logs.write(logs.frame(("a", 1)))
    logs.write(logs.frame(("b", "text"), columns="log string, value string"))
    logs.write(logs.frame(("a", 2), ("c", 3)))
    with pytest.raises(Exception, match=f"'more int' is not in log {logs.prefix}a"):
        logs.write(logs.frame(("a", 2, 5), columns="log string, value int, more int"))
    logs.write(logs.frame(("a", 4, 5), ("d", 6, 7), columns="log string, value int, more int"), mergeSchema="true")
    read = logs.spark.read.format("bookkeeper").options(uri=logs.uri, log=f"{logs.prefix}a").load()
    assert sorted((row.value, row.more) for row in read.collect()) == [(1, None), (2, None), (4, 5)]


def test_overwriting_replaces_the_named_logs_and_no_others(logs: Logs) -> None:
    logs.write(logs.frame(("a", 1), ("b", 2), ("c", 3)))
    logs.write(logs.frame(("a", 4), ("b", 5)), mode="overwrite")
    assert logs.content() == {"a": [4], "b": [5], "c": [3]}


@pytest.mark.every_spark
def test_a_version_is_published_once_in_all_logs(logs: Logs) -> None:
    once = {"txnAppId": f"app-{logs.prefix}", "txnVersion": "3"}
    for _ in range(2):
        logs.write(logs.frame(("a", 1), ("b", 2)), **once)
    logs.write(logs.frame(("a", 3), ("b", 4)), **(once | {"txnVersion": "4"}))
    assert logs.content() == {"a": [1, 3], "b": [2, 4]}


def test_compressed_rows_of_many_tasks_keep_their_order_within_a_task(logs: Logs) -> None:
    frame = logs.spark.range(0, 20_000, numPartitions=2).select(
        F.concat(F.lit(logs.prefix), (F.col("id") % 7).cast("string")).alias("log"), F.col("id").alias("value")
    )
    logs.write(frame, compression="zstd", inlineBytes="4k", entryTargetBytes="2k")
    for number in range(7):
        read = logs.spark.read.format("bookkeeper").options(uri=logs.uri, log=f"{logs.prefix}{number}").load()
        assert [row.value for row in read.collect()] == list(range(number, 20_000, 7))


@pytest.mark.parametrize("inline", ["0", "512k"])
def test_routed_rows_of_encrypted_ledgers_are_read_with_the_key(logs: Logs, tmp_path: Path, inline: str) -> None:
    keys = key_file(tmp_path / "keys", "2026-11")
    logs.write(logs.frame(("a", 1), ("b", 2)), encryptionKeyFile=keys, inlineBytes=inline)
    assert logs.content(encryptionKeyFile=keys) == {"a": [1], "b": [2]}
    with pytest.raises(Exception, match="DecryptionFailed"):
        logs.content()


def test_a_log_with_another_password_fails_the_whole_write_by_name(logs: Logs) -> None:
    logs.write(logs.frame(("b", 1)), password="secret")
    with pytest.raises(Exception, match=f"is not the one that log {logs.prefix}b is written"):
        logs.write(logs.frame(("a", 2), ("b", 3)))
    assert logs.names() == ["b"]


@pytest.mark.every_spark
def test_a_stream_routes_each_epoch_once(logs: Logs, tmp_path) -> None:
    source = f"{logs.prefix[:-1]}source"
    one_entry = {"maxEntriesPerTrigger": "1"} if HAS_ADMISSION_CONTROL else {}
    into = logs.frame(*[(str(i % 3), i) for i in range(30)])
    into.withColumnRenamed("log", "target").write.format("bookkeeper").options(uri=logs.uri, log=source).mode(
        "append"
    ).save()

    def run(checkpoint: str, **options: str) -> None:
        read = logs.spark.readStream.format("bookkeeper").options(
            uri=logs.uri, log=source, startingOffsets="earliest", **one_entry
        )
        rows = read.load().withColumnRenamed("target", "log")
        query = (
            rows.writeStream.format("bookkeeper")
            .options(uri=logs.uri, checkpointLocation=str(tmp_path / checkpoint), **options)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run("one")
    expected = {str(i): list(range(i, 30, 3)) for i in range(3)}
    assert logs.content() == expected
    run("one")
    assert logs.content() == expected


# ---- refused before any task ----


@pytest.mark.parametrize(
    ("schema", "options", "reason"),
    [
        ("value integer", {}, "option 'log' is missing, and no column 'log' names .*: give option 'log'"),
        ("log integer, value integer", {}, "column 'log' is int, and the name of a row's log is a string"),
        ("log string, LOG string, value integer", {}, "columns 'log', 'LOG' could all name a row's log"),
        ("log string", {}, "only column 'log'"),
        ("log string, value integer", {"ifExists": "error"}, "option 'ifExists' is error, and goes with option 'log'"),
        ("log string, value integer", {"payloadFormat": "raw"}, "value"),
    ],
)
def test_what_cannot_be_routed_is_refused_on_the_driver(
    cluster: Cluster, schema: str, options: dict[str, str], reason: str
) -> None:
    parsed = SourceOptions.parse({"uri": cluster.uri, **options})
    fields = [part.strip().split() for part in schema.split(",")]
    columns = StructType()
    for name, kind in fields:
        columns = columns.add(name, kind)
    with pytest.raises(ConfigurationError, match=reason):
        destination_of(columns, parsed, is_overwrite=False)


def test_a_read_that_names_nothing_is_refused_at_load() -> None:
    source = BookKeeperDataSource({"uri": "zk://127.0.0.1:1/ledgers"})
    for ask in (
        source.schema,
        lambda: source.reader(StructType([StructField("a", StringType())])),
        lambda: source.streamReader(StructType()),
    ):
        with pytest.raises(ConfigurationError, match=r"nothing to read or write is named.*a column 'log'"):
            ask()
