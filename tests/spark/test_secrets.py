"""Secrets reach Spark by the names of files: local ones, those that Spark distributes, and credentials of Hadoop."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bkspark.errors import ConfigurationError
from bkspark.spark.credentials import distribute_credential
from tests.spark.hadoop_credentials import add_credential

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Table

pytestmark = pytest.mark.spark
PROVIDERS = "hadoop.security.credential.provider.path"


@pytest.fixture
def provider(spark: SparkSession, tmp_path: Path) -> Any:
    """A key store of Hadoop's with two credentials; the session's configuration names it."""
    path = f"localjceks://file{tmp_path}/store.jceks"
    configuration = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
    configuration.set(PROVIDERS, path)
    for alias, value in (("ledger.password", "s3cret of Hadoop"), ("other.password", "another")):
        add_credential(spark, alias, value)
    yield path
    configuration.unset(PROVIDERS)


def test_a_log_is_written_read_and_followed_with_the_password_of_a_file(
    table: Table, spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "password"
    path.write_text("s3cret of a file\n")
    table.write(spark.range(5), passwordFile=str(path))
    assert table.read(passwordFile=str(path)).count() == 5
    query = (
        table.stream(passwordFile=str(path), startingOffsets="earliest")
        .writeStream.format("memory")
        .queryName("of_password_file")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert spark.table("of_password_file").count() == 5
    assert table.read(password="s3cret of a file").count() == 5


def test_a_name_alone_is_a_file_that_spark_distributes(table: Table, spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "distributed-password").write_text("s3cret of addFile")
    spark.sparkContext.addFile(str(tmp_path / "distributed-password"))
    table.write(spark.range(3), passwordFile="distributed-password")
    assert table.read(passwordFile="distributed-password").count() == 3


def test_a_credential_of_hadoop_reaches_driver_and_tasks(table: Table, spark: SparkSession, provider: Any) -> None:
    name = distribute_credential(spark, "ledger.password")
    table.write(spark.range(4), passwordFile=name)
    assert table.read(passwordFile=name).count() == 4
    assert table.read(password="s3cret of Hadoop").count() == 4
    assert distribute_credential(spark, "other.password") != name


def test_only_its_user_reads_a_credential_that_was_distributed(spark: SparkSession, provider: Any) -> None:
    from pyspark import SparkFiles

    path = Path(SparkFiles.get(distribute_credential(spark, "ledger.password")))
    assert path.read_text() == "s3cret of Hadoop"
    # Spark makes the application's directory for its user alone.
    assert any(stat.S_IMODE(folder.stat().st_mode) & 0o077 == 0 for folder in path.parents)


def test_a_credential_that_is_missing_and_one_in_clear_are_refused(spark: SparkSession, provider: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"'no\.such' is in no provider of hadoop"):
        distribute_credential(spark, "no.such")
    configuration = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
    configuration.set("in.clear", "shown to all")
    with pytest.raises(ConfigurationError, match=r"'in\.clear' is in no provider"):
        distribute_credential(spark, "in.clear")
    configuration.set(PROVIDERS, "localjceks://file/no/such/folder/store.jceks")
    with pytest.raises(ConfigurationError) as caught:
        distribute_credential(spark, "ledger.password")
    assert "\n" not in str(caught.value)
