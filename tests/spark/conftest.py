"""A Spark session for the run, and logs and options that each test has for itself."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.warm_python import warm_python
from tests.spark_settings import INTERPRETED, SHORT_JVM, spark_home

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from bkspark.blocking import Client
    from tests.cluster import Cluster
    from tests.pulsar.stored import StoredTopic

CORES = 2
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": SHORT_JVM,
    **INTERPRETED,
    "spark.sql.session.timeZone": "America/New_York",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.stopTimeout": "60s",
}
"""The time zone is an unusual one, so that a timestamp which passes through local time is noticed."""


def session(folder: Path, python: str = sys.executable) -> SparkSession:
    """Return a local session that keeps its files in `folder` and starts `python` for its Python processes."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = python
    os.environ["SPARK_HOME"] = str(spark_home(folder))
    builder = SparkSession.builder.master(f"local[{CORES}, 2]").appName("tests")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    builder = builder.config("spark.local.dir", str(folder / "local"))
    spark = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this Spark cannot do."""
    from bkspark.spark.versions import HAS_ADMISSION_CONTROL, SPARK_VERSION

    lacking = {"admission_control": not HAS_ADMISSION_CONTROL, "plans_once": SPARK_VERSION.startswith("4.0.")}
    for marker in (marker for marker, is_lacking in lacking.items() if is_lacking):
        skip = pytest.mark.skip(reason=f"Spark {SPARK_VERSION} lacks what marker {marker} stands for")
        for item in items:
            if item.get_closest_marker(marker):
                item.add_marker(skip)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two cores; a failed task is tried a second time."""
    folder = tmp_path_factory.mktemp("spark")
    with warm_python(folder) as python:
        spark = session(folder, python)
        # Programs that tests start have an interpreter as users have it.
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        gateway = spark.sparkContext._gateway
        yield spark
        spark.stop()
        gateway.shutdown()
        # The JVM ends with its standard input.
        gateway.proc.stdin.close()
        gateway.proc.wait(120)


class Table:
    """One log of the cluster, by the connector and by the client."""

    def __init__(self, spark: SparkSession, uri: str, log: str) -> None:
        self.spark = spark
        self.uri = uri
        self.log = log

    def write(self, frame: DataFrame, mode: str = "append", **options: Any) -> None:
        self.options(frame.write.format("bookkeeper").mode(mode), options).save()

    def read(self, schema: str | StructType | None = None, **options: Any) -> DataFrame:
        reader = self.options(self.spark.read.format("bookkeeper"), options)
        return (reader if schema is None else reader.schema(schema)).load()

    def stream(self, schema: str | StructType | None = None, **options: Any) -> DataFrame:
        reader = self.options(self.spark.readStream.format("bookkeeper"), options)
        return (reader if schema is None else reader.schema(schema)).load()

    def options(self, target: Any, options: dict[str, Any]) -> Any:
        target = target.option("uri", self.uri).option("log", self.log)
        for name, value in options.items():
            target = target.option(name, value)
        return target


@pytest.fixture
def table(spark: SparkSession, cluster: Cluster) -> Table:
    """A log that does not exist yet."""
    return Table(spark, cluster.uri, f"log-{uuid.uuid4().hex[:12]}")


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    """A client of the cluster, to write what Spark reads and look at what it wrote."""
    from bkspark.blocking import Client

    with Client(cluster.uri) as client:
        yield client


@pytest.fixture
def topic(client: Client) -> StoredTopic:
    """A topic of Apache Pulsar that does not exist yet."""
    from tests.pulsar.stored import StoredTopic

    return StoredTopic(client, f"public/default/t-{uuid.uuid4().hex[:12]}")


@pytest.fixture
def has_transactions(client: Client, topic: StoredTopic) -> Iterator[None]:
    """The topic may have transactions: brokers have stored a snapshot of them."""
    from tests.pulsar.stored import transaction_snapshots

    with transaction_snapshots(client, topic):
        yield


@pytest.fixture
def read(cluster: Cluster, topic: StoredTopic) -> Callable[..., list[dict[str, Any]]]:
    """Reads the topic; returns its rows."""
    from tests.spark.topic_reads import rows_of

    return partial(rows_of, cluster.uri, topic.name)


@pytest.fixture
def ledger_of(client: Client) -> Callable[..., int]:
    """Makes a closed ledger of the given entries; returns its id."""

    def make(entries: Any, **options: Any) -> int:
        with client.create(**({"ensemble": 3, "write_quorum": 3, "ack_quorum": 2} | options)) as writer:
            writer.append_many(entries)
        return writer.ledger_id

    return make
