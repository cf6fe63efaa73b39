"""Look at a cluster that exists, Apache's or ours, and read ledgers that others wrote: nothing is fenced or changed.

python examples/apache_cluster.py zk://zookeeper:2181/ledgers pulsar

The URI is the `metadataServiceUri` of the cluster's bookies. Ledgers are chosen by custom metadata: Pulsar's have
`application=pulsar`, and the topic's name under `pulsar/managed-ledger`; `inspect` shows what there is.
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql


def applications(spark: SparkSession, uri: str) -> DataFrame:
    """Return how many ledgers and bytes each application has, as the ledgers' metadata say."""
    ledgers = spark.read.format("bookkeeper").options(uri=uri, inspect="ledgers").load()
    application = sql.coalesce(sql.col("custom_metadata")["application"].cast("string"), sql.lit("(none)"))
    return ledgers.groupBy(application.alias("application")).agg(
        sql.count("*").alias("ledgers"),
        sql.sum(sql.when(sql.col("state") == "CLOSED", 1).otherwise(0)).alias("closed"),
        sql.sum("length").alias("bytes"),
    )


def entries(spark: SparkSession, uri: str, application: str, password: str = "") -> DataFrame:
    """Return the entries of all ledgers of an application: open ledgers up to what is confirmed."""
    reader = spark.read.format("bookkeeper").options(uri=uri, ledgers="*", password=password)
    reader = reader.option("ledgerMetadata.application", application)
    return reader.schema("ledger_id bigint, entry_id bigint, value binary").load()


def main(spark: SparkSession, uri: str, application: str) -> None:
    applications(spark, uri).orderBy("application").show(truncate=False)
    found = entries(spark, uri, application).groupBy("ledger_id")
    found.agg(sql.count("*").alias("entries"), sql.sum(sql.length("value")).alias("bytes")).orderBy("ledger_id").show()


if __name__ == "__main__":
    main(SparkSession.builder.appName("apache").getOrCreate(), *sys.argv[1:3])
