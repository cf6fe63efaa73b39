"""Logs and ledgers of numbers, and the rows that readers return of them, without a Spark session."""

from pyspark.sql.types import StructType

from bkspark.spark.options import SourceOptions
from bkspark.spark.read import BookKeeperReader

VALUE = StructType().add("value", "string")


def append(client, log: str, *values: int) -> None:
    with client.log(log).open_for_writing() as writer:
        writer.append_many([b"%d" % value for value in values])


def options(cluster, log: str, **others: str) -> SourceOptions:
    return SourceOptions.parse({"uri": cluster.uri, "log": log, **others})


def rows(reader, partitions) -> list[int]:
    return [
        int(value)
        for partition in partitions
        for batch in reader.read(partition)
        for value in batch["value"].to_pylist()
    ]


def ledger(client, values, **kwargs) -> int:
    with client.create(**kwargs) as writer:
        writer.append_many([b"%d" % value for value in values])
    return writer.ledger_id


def found(cluster, **chosen: str) -> list[int]:
    reader = BookKeeperReader(VALUE, SourceOptions.parse({"uri": cluster.uri, **chosen}))
    return rows(reader, reader.partitions())
