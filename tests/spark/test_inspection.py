"""Tables about the cluster tell what the client finds; without a Spark session but for one."""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql.types import StructType

from bkspark.blocking import run
from bkspark.errors import ConfigurationError
from bkspark.log import heads
from bkspark.log.formats import log_path
from bkspark.log.schemas import SchemaChange, StoredSchema
from bkspark.metadata.paths import ledger_path
from bkspark.metadata.uri import LedgerManager, MetadataUri
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
    logs = SourceOptions.parse({"uri": cluster.uri, "inspect": "logs"})
    ViewReader(StructType().add("log", "string", nullable=False), logs)
    with pytest.raises(ConfigurationError, match="column 'version' of the view 'logs' is null where"):
        ViewReader(StructType().add("version", "long", nullable=False), logs)


@contextmanager
def node_with(client, path: str, data: bytes) -> Iterator[None]:
    """Replace what a node holds, and restore it at the end."""

    async def change(new: bytes) -> bytes:
        tree = await client.asynchronous.tree()
        before, stat = await tree.get(path)
        await tree.set(path, new, stat.version)
        return before

    before = run(lambda: change(data))
    try:
        yield
    finally:
        run(lambda: change(before))


def log_with_schema(client, column: str) -> tuple[str, str]:
    """Create a log that remembers a schema; return its name, and the path of the schema's node.

    `column`: its column. Equal schemas have one name, by which a process keeps them.
    """
    name = f"log-{uuid.uuid4().hex[:12]}"
    client.log(name).create()
    text = StructType().add(column, "integer").json()
    stored = StoredSchema("json", text)
    run(lambda: client.log(name).asynchronous.publish([], schema=SchemaChange(stored, None)))
    return name, f"{log_path(name)}/schemas/{stored.name}"


def test_log_that_cannot_be_read_is_a_row_with_its_error(cluster, client, monkeypatch):
    """One damaged node of one log was the end of the whole table."""
    monkeypatch.setattr(heads, "_schemas", {})
    good, _ = log_with_schema(client, "a")
    other = f"log-{uuid.uuid4().hex[:12]}"
    client.log(other).create()
    for path_of, known in ((lambda log, schema: schema, True), (lambda log, schema: log_path(log), False)):
        bad, schema = log_with_schema(client, "damaged")
        with node_with(client, path_of(bad, schema), b"damaged"):
            heads._schemas.clear()
            found = {row["log"]: row for row in view(cluster, "logs")}
            assert "metadata node" in found[bad]["error"]
            assert (found[bad]["schema"], found[bad]["schemas"]) == (None, None)
            assert (found[bad]["ledgers"] == 0) == known
            assert (found[good]["schema"], found[good]["error"]) == ("a int", None)
            assert found[other]["error"] is None
            table = view(cluster, "consumers")
            assert [row["error"] is None for row in table if row["log"] == bad] == [False] * (not known)
        client.log(bad).delete()


def test_node_with_an_impossible_name_is_a_row_with_its_error(cluster, client):
    path = "/bkspark/logs/not a log"

    async def add() -> None:
        await (await client.asynchronous.tree()).create(path, make_parents=True)

    async def remove() -> None:
        await (await client.asynchronous.tree()).delete(path)

    run(add)
    try:
        (row,) = (row for row in view(cluster, "logs") if row["log"] == "not a log")
        assert "not a log" in row["error"]
    finally:
        run(remove)


def test_reader_that_cannot_be_read_is_a_row_with_its_error(cluster, client):
    name, other = (f"log-{uuid.uuid4().hex[:12]}" for _ in range(2))
    for log in (name, other):
        client.log(log).create()
        for reader in ("r", "s"):
            run(lambda log=log, reader=reader: client.log(log).asynchronous.register_consumer(reader))
    with node_with(client, f"{log_path(name)}/consumers/r", b"damaged"):
        found = {(row["log"], row["consumer"]): row for row in view(cluster, "consumers")}
        assert f"{name}/consumers/r" in found[name, "r"]["error"]
        assert found[name, "r"]["position"] is found[name, "r"]["expires"] is None
        for each in ((name, "s"), (other, "r"), (other, "s")):
            assert (found[each]["error"], found[each]["entries_behind"]) == (None, 0)


def test_log_whose_retention_is_damaged_is_a_row_with_its_error(cluster, client):
    good, bad = (f"log-{uuid.uuid4().hex[:12]}" for _ in range(2))
    for name in (good, bad):
        client.log(name).create()
        client.log(name).set_retention(age_s=60)

    async def head() -> bytes:
        return (await (await client.asynchronous.tree()).get(log_path(bad)))[0]

    members = json.loads(run(head))
    for wrong in ({"age_ms": 0, "bytes": None}, {"age_ms": 5}, {"age_ms": "7d", "bytes": None}, [1], 10**40, True):
        with node_with(client, log_path(bad), json.dumps({**members, "retention": wrong}).encode()):
            for table in ("logs", "consumers"):
                found = {row["log"]: row for row in view(cluster, table) if row["log"] in (good, bad)}
                assert "metadata node" in found[bad]["error"], (wrong, table)
                assert table == "consumers" or found[good]["retention_ms"] == 60_000
    client.log(bad).delete()


def test_ledger_whose_metadata_are_damaged_is_a_row_with_its_error(cluster, client):
    bad, good = (client.create(ensemble=1, write_quorum=1, ack_quorum=1) for _ in range(2))
    for writer in (bad, good):
        writer.close()
    path = f"{MetadataUri.parse(cluster.uri).root}{ledger_path(bad.ledger_id, LedgerManager.HIERARCHICAL)}"
    with node_with(client, path, b"damaged"):
        for name in ("ledgers", "fragments"):
            found = {row["ledger_id"]: row for row in view(cluster, name)}
            assert str(bad.ledger_id) in found[bad.ledger_id]["error"]
            assert found[good.ledger_id]["error"] is None
            others = [value for key, value in found[bad.ledger_id].items() if key not in ("ledger_id", "error")]
            assert set(map(type, others)) == {type(None)}


@pytest.mark.spark
@pytest.mark.every_spark
def test_view_is_a_table_of_spark(spark, cluster):
    table = spark.read.format("bookkeeper").option("uri", cluster.uri).option("inspect", "bookies").load()
    assert table.filter("state = 'available'").count() >= 3
