"""Tables about the cluster tell what the client finds; without a Spark session but for one."""

from __future__ import annotations

import pickle
import uuid

import pytest
from pyspark.sql.types import StructType

from bkspark.blocking import run
from bkspark.errors import ConfigurationError
from bkspark.spark.inspection import ViewReader, schema_of_view
from bkspark.spark.options import SourceOptions

pytestmark = pytest.mark.cluster


def view(cluster, name: str, schema: StructType | None = None) -> list[dict]:
    options = SourceOptions.parse({"uri": cluster.uri, "inspect": name})
    reader = ViewReader(schema_of_view(name) if schema is None else schema, options)
    partitions = pickle.loads(pickle.dumps(reader.partitions()))
    return [row for partition in partitions for batch in reader.read(partition) for row in batch.to_pylist()]


def test_ledgers_and_fragments_show_open_and_closed_ones(cluster, client):
    with client.create(ensemble=3, write_quorum=2, ack_quorum=2, metadata={"team": "x"}) as writer:
        writer.append_many([b"one", b"two"])
    closed = writer.ledger_id
    left_open = client.create(ensemble=2, write_quorum=2, ack_quorum=1)
    left_open.append_many([b"three"])
    ledgers = {row["ledger_id"]: row for row in view(cluster, "ledgers")}
    assert list(ledgers) == sorted(client.ledgers())
    found = ledgers[closed]
    assert (found["state"], found["last_entry"], found["length"], found["digest"]) == ("CLOSED", 1, 6, "crc32c")
    assert (found["ensemble_size"], found["write_quorum"], found["ack_quorum"]) == (3, 2, 2)
    assert found["custom_metadata"] == [("team", b"x")]
    assert found["created"] <= found["changed"]
    open_one = ledgers[left_open.ledger_id]
    assert (open_one["state"], open_one["last_entry"], open_one["length"]) == ("OPEN", None, None)
    fragments = {row["ledger_id"]: row for row in view(cluster, "fragments")}
    assert (fragments[closed]["first_entry"], fragments[closed]["last_entry"]) == (0, 1)
    assert fragments[closed]["bookies"] == list(client.metadata(closed).fragments[0].bookies)
    assert fragments[left_open.ledger_id]["last_entry"] is None
    left_open.abandon()


def test_logs_show_their_ledgers(cluster, client):
    name = f"log-{uuid.uuid4().hex[:12]}"
    client.log(name).create()
    with client.log(name).open_for_writing() as writer:
        writer.append_many([b"one"])
    (found,) = (row for row in view(cluster, "logs") if row["log"] == name)
    assert found["ledgers"] == len(client.log(name).show()["ledgers"]) == 1
    assert found["start"] == str(client.log(name).earliest())
    assert found["published"] == []
    log = client.log(name).asynchronous
    run(lambda: log.publish([], publisher=("q1", 41)))
    run(lambda: log.publish([], publisher=("app", 7, "q2")))
    (found,) = (row for row in view(cluster, "logs") if row["log"] == name)
    assert found["published"] == client.log(name).show()["published"]
    assert found["published"][1] == {"name": "app", "version": 7, "query": "q2"}


def test_bookies_show_which_serve(cluster):
    ids = {bookie.id for bookie in cluster.bookies}
    found = {row["bookie"]: row for row in view(cluster, "bookies") if row["bookie"] in ids}
    assert {row["state"] for row in found.values()} == {"available"}
    assert {row["address"] for row in found.values()} == ids


def test_schema_of_a_view_may_leave_columns_out_but_not_invent_any(cluster):
    chosen = StructType().add("State", "string").add("bookie", "string")
    assert list(view(cluster, "bookies", chosen)[0]) == ["State", "bookie"]
    with pytest.raises(ConfigurationError, match="'size bigint' is not in the view 'bookies'"):
        view(cluster, "bookies", StructType().add("size", "long"))
    with pytest.raises(ConfigurationError, match="'state int' is not in the view"):
        view(cluster, "bookies", StructType().add("state", "integer"))


def test_column_may_be_not_null_where_it_never_is(cluster):
    options = SourceOptions.parse({"uri": cluster.uri, "inspect": "bookies"})
    reader = ViewReader(StructType().add("bookie", "string", nullable=False), options)
    (batch,) = reader.read(reader.partitions()[0])
    assert not batch.schema.field("bookie").nullable
    with pytest.raises(ConfigurationError, match="column 'address' of the view 'bookies' is null where"):
        ViewReader(StructType().add("address", "string", nullable=False), options)


@pytest.mark.spark
@pytest.mark.every_spark
def test_view_is_a_table_of_spark(spark, cluster):
    table = spark.read.format("bookkeeper").option("uri", cluster.uri).option("inspect", "bookies").load()
    assert table.filter("state = 'available'").count() >= 3
