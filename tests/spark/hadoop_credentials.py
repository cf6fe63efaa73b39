"""Makes credentials of Hadoop, as `hadoop credential create` does, which asks on a terminal only."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def add_credential(spark: SparkSession, alias: str, value: str) -> None:
    """Add a credential to the first provider that the session's Hadoop configuration names."""
    jvm = spark._jvm
    configuration = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
    provider = jvm.org.apache.hadoop.security.alias.CredentialProviderFactory.getProviders(configuration)[0]
    characters = spark.sparkContext._gateway.new_array(jvm.char, len(value))
    for index, character in enumerate(value):
        characters[index] = character
    provider.createCredentialEntry(alias, characters)
    provider.flush()
