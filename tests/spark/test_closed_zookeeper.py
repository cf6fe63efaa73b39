"""Spark on a cluster whose nodes in ZooKeeper are closed: batch and stream."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster import Cluster
from tests.security.closed_zookeeper import USERS, ClosedZooKeeper

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> ClosedZooKeeper:
    """The JAAS files of a server that the cluster starts itself."""
    return ClosedZooKeeper(tmp_path_factory.mktemp("users"))


@pytest.fixture(scope="module")
def closed_cluster(users: ClosedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("closed")
    with Cluster(folder, settings=users.login(), zookeeper_jaas=users.server_jaas) as cluster:
        yield cluster


def test_jobs_write_read_and_stream_as_the_clusters_user(spark, closed_cluster, users, tmp_path) -> None:
    options = {"uri": closed_cluster.uri, **users.login()}
    df = spark.range(1_000).selectExpr("id", "repeat('x', 100) AS text")
    df.write.format("bookkeeper").options(log="events", **options).mode("append").save()
    rows = spark.read.format("bookkeeper").options(log="events", **options).load()
    assert sorted(row.id for row in rows.collect()) == list(range(1_000))
    plan = rows._jdf.queryExecution().toString()
    assert not any(password in plan for password in USERS.values())
    stream = spark.readStream.format("bookkeeper").options(log="events", startingOffsets="earliest", **options).load()
    writer = stream.writeStream.format("bookkeeper").options(log="copy", **options)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination(120)
    assert query.exception() is None
    assert spark.read.format("bookkeeper").options(log="copy", **options).load().count() == 1_000
    texts = [path.read_bytes() for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert not any(password.encode() in text for text in texts for password in USERS.values())


def test_job_that_does_not_log_in_fails_and_says_why(spark, closed_cluster) -> None:
    with pytest.raises(Exception, match="names no JAAS file"):
        spark.read.format("bookkeeper").options(uri=closed_cluster.uri, log="events").load().collect()
