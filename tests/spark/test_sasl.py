"""Spark on a cluster whose bookies serve authenticated clients alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.security.client_keys import PROVIDER, PROVIDER_CLASS
from bookie_service.settings.authentication import KEY, SASL_CLASS
from tests.cluster import Cluster
from tests.security.sasl_serving import PASSWORD, jaas_file, jaas_text

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


@pytest.fixture(scope="module")
def jaas(tmp_path_factory: pytest.TempPathFactory) -> str:
    return jaas_file(tmp_path_factory.mktemp("jaas") / "jaas.conf", jaas_text())


@pytest.fixture(scope="module")
def closed_cluster(jaas: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {KEY: SASL_CLASS, "saslJaasConfig": jaas, "authenticationRequired": "true"}
    with Cluster(tmp_path_factory.mktemp("cluster"), settings=settings) as cluster:
        yield cluster


def test_options_write_and_read_and_no_plan_has_the_password(spark, closed_cluster, jaas, capfd) -> None:
    sasl = {PROVIDER: PROVIDER_CLASS, "saslJaasConfig": jaas}
    options = {"uri": closed_cluster.uri, "log": "events", **sasl}
    # Large enough for a scan, which has a connection of its own where there is no authentication.
    df = spark.range(20_000).selectExpr("id", "repeat('x', 100) AS text")
    df.write.format("bookkeeper").options(**options).mode("append").save()
    found = spark.read.format("bookkeeper").options(**options).load()
    assert sorted(row.id for row in found.collect()) == list(range(20_000))
    found.explain(True)
    printed = capfd.readouterr()
    assert "events" in printed.out or "bookkeeper" in printed.out
    assert PASSWORD not in printed.out + printed.err


def test_read_that_is_not_authenticated_fails_with_the_reason(spark, closed_cluster, tmp_path) -> None:
    options = {"uri": closed_cluster.uri, "log": "events"}
    with pytest.raises(Exception, match=r"authenticated clients|dropped the connection"):
        spark.read.format("bookkeeper").options(**options).load().collect()
    wrong = jaas_file(Path(tmp_path) / "wrong.conf", jaas_text(password="wrong password"))
    sasl = {PROVIDER: PROVIDER_CLASS, "saslJaasConfig": wrong}
    with pytest.raises(Exception, match=r"authentication with bookie .* failed") as caught:
        spark.read.format("bookkeeper").options(**options, **sasl).load().collect()
    assert "wrong password" not in str(caught.value)
