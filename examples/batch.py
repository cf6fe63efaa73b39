"""Write a DataFrame to a log, read it back, and read the same entries by ledger.

python examples/batch.py zk://127.0.0.1:2181/ledgers      # `bkspark local --bookies 3` prints the URI
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql


def write_orders(spark: SparkSession, uri: str, log: str) -> None:
    """Replace the log's content by a thousand orders; readers see all of them or what was there before."""
    orders = spark.range(1000).select(
        sql.col("id").alias("order"),
        (sql.col("id") % 7).cast("string").alias("customer"),
        (sql.col("id") * 1.25).cast("decimal(10,2)").alias("amount"),
    )
    orders.write.format("bookkeeper").options(uri=uri, log=log).mode("overwrite").save()


def revenue(spark: SparkSession, uri: str, log: str) -> DataFrame:
    """Return the sum by customer; the columns are read off the log's first entry."""
    orders = spark.read.format("bookkeeper").options(uri=uri, log=log).load()
    return orders.groupBy("customer").agg(sql.sum("amount").alias("revenue")).orderBy("customer")


def entries(spark: SparkSession, uri: str, log: str) -> DataFrame:
    """Return how many entries and bytes each ledger of the log has: raw entries, whatever they hold."""
    raw = spark.read.format("bookkeeper").options(uri=uri, log=log).schema("ledger_id bigint, value binary").load()
    return raw.groupBy("ledger_id").agg(sql.count("*").alias("entries"), sql.sum(sql.length("value")).alias("bytes"))


def main(spark: SparkSession, uri: str, log: str = "orders") -> None:
    write_orders(spark, uri, log)
    revenue(spark, uri, log).show()
    entries(spark, uri, log).show()


if __name__ == "__main__":
    main(SparkSession.builder.appName("batch").getOrCreate(), sys.argv[1])
