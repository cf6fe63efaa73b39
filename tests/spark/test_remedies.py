"""The advice in a message works, and nearly right input gets an error. Without a Spark session."""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace
from functools import partial

import msgpack
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from bkspark.blocking import Client
from bkspark.errors import ConfigurationError, DataLoss, UnauthorizedAccess
from bkspark.log.positions import Position
from bkspark.spark.options import SourceOptions
from bkspark.spark.read import BookKeeperReader
from bkspark.spark.source import BookKeeperDataSource
from bkspark.spark.stream import BookKeeperStreamReader

URI = "zk://127.0.0.1:2181/ledgers"
VALUE = StructType().add("value", "string")
KAFKAS = '{"topic": {"0": 23, "1": -2}}'


@pytest.fixture
def log(client: Client) -> str:
    """A log of three ledgers of two entries each."""
    name = f"log-{uuid.uuid4().hex[:12]}"
    for first in (0, 2, 4):
        with client.log(name).open_for_writing() as writer:
            writer.append_many([b"%d" % number for number in (first, first + 1)])
    return name


def options(cluster, **given: str) -> SourceOptions:
    return SourceOptions.parse({"uri": cluster.uri, **given})


def positions(client: Client, log: str) -> list[Position]:
    return [position for batch in client.log(log).read() for position in batch.positions]


# ---- lost data ----


@pytest.mark.cluster
def test_stream_with_a_checkpoint_is_not_advised_to_change_an_option_that_it_ignores(cluster, client, log):
    """It begins at its checkpoint: startingOffsets=earliest, which was advised, it had already."""
    stream = BookKeeperStreamReader(VALUE, options(cluster, log=log, startingOffsets="earliest"))
    noted = stream.initialOffset()
    client.log(log).truncate(positions(client, log)[3])
    with pytest.raises(DataLoss) as lost:
        stream.latestOffset(noted)
    message = str(lost.value)
    assert message.startswith(f"the checkpoint's offset: log {log} begins at ")
    assert message.endswith(": start the query with a new checkpoint, or allow the loss (failOnDataLoss=false)")
    assert "earliest" not in message
    # Both remedies work.
    assert BookKeeperStreamReader(VALUE, options(cluster, log=log, startingOffsets="earliest")).initialOffset()
    lenient = BookKeeperStreamReader(VALUE, options(cluster, log=log, failOnDataLoss="false"))
    assert lenient.partitions(noted, lenient.latestOffset(noted))


@pytest.mark.cluster
def test_batch_read_is_advised_to_use_the_remaining_entries(cluster, client, log):
    first, *_, last = positions(client, log)
    client.log(log).truncate(last)
    gone = str(replace(first, entry_id=1))
    for option, instead in (("startingOffsets", "earliest"), ("endingOffsets", "latest")):
        with pytest.raises(DataLoss, match=f"overwritten: use {instead}, or allow the loss"):
            BookKeeperReader(VALUE, options(cluster, log=log, **{option: gone})).partitions()
        assert BookKeeperReader(VALUE, options(cluster, log=log, **{option: instead})).partitions()


@pytest.mark.cluster
@pytest.mark.parametrize("is_stream", [False, True])
def test_ledger_that_is_gone_from_a_log_can_be_started_after(cluster, client, log, is_stream):
    given = options(cluster, log=log, startingOffsets="earliest")
    stream = BookKeeperStreamReader(VALUE, given)
    start = stream.initialOffset()
    end = stream.latestOffset(start)
    client.delete(client.log(log).show()["ledgers"][0]["ledger"])
    after = " with startingOffsets, with a new checkpoint, or" if is_stream else " with startingOffsets, or"
    plan = partial(stream.partitions, start, end) if is_stream else BookKeeperReader(VALUE, given).partitions
    with pytest.raises(DataLoss, match=f"does not exist any more: start after it{after} allow the loss"):
        plan()


# ---- offsets ----


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
@pytest.mark.parametrize("selection", [{"log": "a"}, {"logsPattern": "a.*"}])
def test_offsets_of_kafkas_form_are_refused_at_load(option, selection):
    with pytest.raises(ConfigurationError) as refused:
        BookKeeperDataSource({"uri": URI, **selection, option: KAFKAS})
    message = str(refused.value)
    assert f"option '{option}' is " in message
    assert "Kafka's form (topic, partition, offset)" in message
    assert "earliest, latest, -N, or a position" in message
    assert ("names and one of these each" in message) is ("logsPattern" in selection)


@pytest.mark.parametrize("text", ['{"entry": 1}', "{}", '{"ordinal": -1, "ledger": 0, "entry": 0, "version": 1}'])
def test_json_that_is_not_a_position_is_refused_at_load(text):
    with pytest.raises(ConfigurationError, match="option 'startingOffsets': position"):
        BookKeeperDataSource({"uri": URI, "log": "a", "startingOffsets": text})
    with pytest.raises(ConfigurationError, match="option 'startingOffsets': log a: position"):
        BookKeeperDataSource({"uri": URI, "logsPattern": "a|b", "startingOffsets": f'{{"a": {text}}}'})


def test_positions_and_words_do_not_matter_for_load():
    position = '{"ordinal": 0, "ledger": 7, "entry": 3, "version": 1}'
    BookKeeperDataSource({"uri": URI, "log": "a", "startingOffsets": position})
    many = f'{{"a": {position}, "b": "-10", "c": "earliest"}}'
    BookKeeperDataSource({"uri": URI, "logsPattern": "a|b|c", "startingOffsets": many})


# ---- passwords ----


@pytest.mark.cluster
def test_ledgers_of_several_passwords_get_advice_to_choose(cluster, client):
    mark = uuid.uuid4().hex
    with client.create(ensemble=1, write_quorum=1, ack_quorum=1, metadata={"mark": mark}) as writer:
        writer.append(b"x")
    with Client(cluster.uri, password=b"other") as other:
        with other.create(ensemble=1, write_quorum=1, ack_quorum=1) as foreign:
            foreign.append(b"x")
        with pytest.raises(UnauthorizedAccess) as refused:
            BookKeeperReader(VALUE, options(cluster, ledgers="*")).partitions()
        other.delete(foreign.ledger_id)  # others read `*` here, too
    assert "choose the ledgers that have it, by their ids or by ledgerMetadata.KEY" in str(refused.value)
    chosen = options(cluster, ledgers="*", **{"ledgerMetadata.mark": mark})
    assert len(BookKeeperReader(VALUE, chosen).partitions()) == 1


# ---- columns ----


def stored(payload_format: str, rows: list[dict]) -> list[bytes]:
    if payload_format == "json":
        return [str(row).replace("'", '"').replace("None", "null").encode() for row in rows]
    if payload_format == "msgpack":
        return [msgpack.packb(row) for row in rows]
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return [sink.getvalue().to_pybytes()]


def read(cluster, ledger_id: int, payload_format: str, columns: str) -> list[dict]:
    schema = StructType()
    for name in columns.split():
        schema = schema.add(name, "long")
    reader = BookKeeperReader(schema, options(cluster, ledgers=str(ledger_id), payloadFormat=payload_format))
    partitions = reader.partitions()
    return [row for each in partitions for batch in reader.read(each) for row in batch.to_pylist()]


@pytest.mark.cluster
@pytest.mark.parametrize("payload_format", ["arrow", "json", "msgpack"])
def test_misspelt_column_is_warned_of_and_one_that_is_null_is_not(cluster, ledger_of, caplog, payload_format):
    ledger_id = ledger_of(stored(payload_format, [{"amount": 5, "note": None}, {"amount": 6, "note": None}]))
    with caplog.at_level(logging.WARNING, "bkspark.spark.columns"):
        assert read(cluster, ledger_id, payload_format, "amount note") == [
            {"amount": 5, "note": None},
            {"amount": 6, "note": None},
        ]
        assert caplog.messages == []
        assert read(cluster, ledger_id, payload_format, "amuont") == [{"amuont": None}] * 2
    (message,) = caplog.messages
    assert message == (
        f"column 'amuont' of the schema is null in every row that this task read: ledger {ledger_id} entry 0 has the "
        "columns ['amount', 'note']: did you mean 'amount'?"
    )


@pytest.mark.cluster
def test_column_that_only_later_entries_have_is_not_warned_of(cluster, ledger_of, caplog):
    ledger_id = ledger_of(stored("json", [{"a": 1}, {"a": 2, "b": 3}]))
    with caplog.at_level(logging.WARNING, "bkspark.spark.columns"):
        assert read(cluster, ledger_id, "json", "a b") == [{"a": 1, "b": None}, {"a": 2, "b": 3}]
    assert caplog.messages == []
