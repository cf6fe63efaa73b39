"""Spark on a cluster that serves only TLS, with the program of docs/security.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.tls.options import FACTORY_CLASS
from tests.cluster import Cluster
from tests.security.certificates import Authority

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

PAGE = Path(__file__).parents[2] / "docs" / "security.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page has its certificates: tls/ca.pem, tls/bookie.*, tls/client.*."""
    folder = tmp_path_factory.mktemp("tls")
    (folder / "tls").mkdir()
    authority = Authority(folder / "tls")
    for name in ("bookie", "client"):
        authority.issue(name).pem()
    return folder


@pytest.fixture(scope="module")
def closed_cluster(folder: Path) -> Iterator[Cluster]:
    settings = {
        "tlsProviderFactoryClass": FACTORY_CLASS,
        "tlsRequired": "true",
        "tlsClientAuthentication": "true",
        "tlsKeyStore": f"{folder}/tls/bookie.key",
        "tlsCertificatePath": f"{folder}/tls/bookie.pem",
        "tlsTrustStore": f"{folder}/tls/ca.pem",
    }
    with Cluster(folder / "cluster", settings=settings) as cluster:
        yield cluster


def test_program_of_the_security_page_writes_reads_and_streams(spark, closed_cluster, folder, tmp_path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    # Large enough for a scan, which reads a bookie's files where there is no TLS.
    df = spark.range(20_000).selectExpr("id", "repeat('x', 100) AS text")
    names = {"spark": spark, "df": df, "uri": closed_cluster.uri, "folder": str(folder)}
    exec(program, names)
    assert sorted(row.id for row in names["rows"]) == list(range(20_000))
    options = {"uri": closed_cluster.uri, **names["tls"]}
    stream = spark.readStream.format("bookkeeper").options(log="events", startingOffsets="earliest", **options).load()
    writer = stream.writeStream.format("bookkeeper").options(log="copy", **options)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination(120)
    assert query.exception() is None
    assert spark.read.format("bookkeeper").options(log="copy", **options).load().count() == 20_000


def test_read_without_tls_of_a_closed_cluster_fails(spark, closed_cluster, folder) -> None:
    """Bookies answer a first request that can be answered, and close the connection."""
    options = {"uri": closed_cluster.uri, "log": "events"}
    with pytest.raises(Exception, match=r"it may serve only TLS|dropped the connection"):
        spark.read.format("bookkeeper").options(**options).load().collect()


def test_read_with_an_untrusted_authority_fails_with_the_reason(spark, closed_cluster, folder, tmp_path) -> None:
    tls = {"tlsProviderFactoryClass": FACTORY_CLASS, "tlsTrustStore": Authority(tmp_path, "other").pem}
    options = {"uri": closed_cluster.uri, "log": "events", **tls}
    with pytest.raises(Exception, match="its certificate is refused"):
        spark.read.format("bookkeeper").options(**options).load().collect()
