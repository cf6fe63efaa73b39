"""The driver's check of a stream's columns against what its log remembers, without a Spark session."""

from __future__ import annotations

import json
import logging
import random
import uuid
from typing import TYPE_CHECKING

import msgpack
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from bkspark.blocking import run
from bkspark.errors import ConfigurationError, MalformedPayload, NoSuchLog, SchemaMismatch
from bkspark.log.log import Log
from bkspark.log.schemas import SchemaChange, StoredSchema
from bkspark.spark.connection import connect
from bkspark.spark.evolution import schema_text
from bkspark.spark.options import SourceOptions
from bkspark.spark.source import BookKeeperDataSource
from bkspark.spark.versions import ReadAllAvailable

if TYPE_CHECKING:
    from bkspark.blocking import Client
    from tests.cluster import Cluster

pytestmark = pytest.mark.cluster

ID = StructType().add("id", "integer")


def entry(**columns: object) -> bytes:
    batch = pa.record_batch({name: pa.array([value]) for name, value in columns.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


class WrittenLog:
    """A log whose columns and entries come as from Spark's writes."""

    def __init__(self, cluster: Cluster, client: Client) -> None:
        self.options = {"uri": cluster.uri, "log": f"log-{uuid.uuid4().hex[:12]}"}
        self._client = client
        client.log(self.options["log"]).create()
        self._base: str | None = None

    def write(self, columns: StructType, *entries: bytes, payload_format: str = "arrow") -> None:
        stored = StoredSchema(payload_format, schema_text(columns))
        change = SchemaChange(stored, self._base)
        log = self._log()
        run(lambda: log.publish([], schema=change))
        self._base = stored.name
        with self._client.log(self.options["log"]).open_for_writing() as writer:
            writer.append_many(list(entries))

    def overwrite(self) -> None:
        log = self._log()
        run(lambda: log.overwrite([]))

    def _log(self) -> Log:
        return Log(connect(SourceOptions.parse(self.options)).asynchronous, self.options["log"])


def test_added_columns_are_logged_with_their_position_and_left_out(
    cluster: Cluster, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    log = WrittenLog(cluster, client)
    log.write(ID, entry(id=1))
    source = BookKeeperDataSource({**log.options, "startingOffsets": "earliest"})
    schema = source.schema()
    assert schema == ID
    reader = source.streamReader(schema)
    start = reader.initialOffset()
    log.write(StructType([*ID, *StructType().add("late", "string")]), entry(id=2, late="x"))
    end = reader.latestOffset(start, ReadAllAvailable())
    with caplog.at_level(logging.WARNING):
        partitions = reader.partitions(start, end)
    assert "column 'late string' is new from" in caplog.text
    assert '"ordinal":1' in caplog.text
    assert [batch["id"].to_pylist() for each in partitions for batch in reader.read(each)] == [[1, 2]]


def test_a_read_that_ends_where_the_columns_change_has_those_before(cluster: Cluster, client: Client) -> None:
    """Its end is the position of the first entry with the new columns, which it does not read."""
    log = WrittenLog(cluster, client)
    log.write(ID, entry(id=1))
    log.write(StructType([*ID, *StructType().add("late", "string")]), entry(id=2, late="x"))
    ledgers = [each["ledger"] for each in client.log(log.options["log"]).show()["ledgers"]]
    for ordinal, entry_id, columns in ((0, 1, ["id"]), (1, 0, ["id"]), (1, 1, ["id", "late"])):
        end = {"entry": entry_id, "ledger": ledgers[ordinal], "ordinal": ordinal, "version": 1}
        source = BookKeeperDataSource({**log.options, "endingOffsets": json.dumps(end)})
        assert source.schema().names == columns
        batches = source.reader(source.schema())
        found = [row["id"] for part in batches.partitions() for rows in batches.read(part) for row in rows.to_pylist()]
        assert found == [1, 2][: len(columns)]


def test_a_type_that_changed_ends_the_stream_with_the_position_and_the_remedy(cluster: Cluster, client: Client) -> None:
    log = WrittenLog(cluster, client)
    log.write(ID, entry(id=1))
    source = BookKeeperDataSource({**log.options, "startingOffsets": "earliest"})
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    log.write(StructType().add("id", "long"), entry(id=1 << 40))
    end = reader.latestOffset(start, ReadAllAvailable())
    with pytest.raises(SchemaMismatch, match=r'from \{"entry":0,.*"ordinal":1.*\} on.*start the query again'):
        reader.partitions(start, end)
    again = BookKeeperDataSource({**log.options, "startingOffsets": "earliest"})
    assert again.schema() == StructType().add("id", "long")


def test_a_member_that_is_not_null_and_was_removed_makes_its_column_another_one(
    cluster: Cluster, client: Client
) -> None:
    member = StructType().add("a", "integer", nullable=False).add("b", "integer")
    log = WrittenLog(cluster, client)
    log.write(StructType().add("s", member), entry(s={"a": 1, "b": 2}))
    source = BookKeeperDataSource({**log.options, "failOnDataLoss": "false", "startingOffsets": "earliest"})
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    log.overwrite()
    log.write(StructType().add("s", StructType().add("b", "integer")), entry(s={"b": 3}))
    with pytest.raises(SchemaMismatch, match=r"column 's' is struct<b:int> in log .*start the query again"):
        reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))


@pytest.mark.parametrize("mode", ["FAILFAST", "DROPMALFORMED"])
def test_a_column_that_is_not_null_and_was_removed_ends_the_stream_and_no_row_is_dropped(
    cluster: Cluster, client: Client, mode: str
) -> None:
    """The log was overwritten: each of its rows lacks the column, and would be malformed."""
    log = WrittenLog(cluster, client)
    log.write(StructType().add("id", "integer", nullable=False), entry(id=1))
    options = {**log.options, "mode": mode, "failOnDataLoss": "false"}
    source = BookKeeperDataSource({**options, "startingOffsets": "earliest"})
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    log.overwrite()
    log.write(StructType().add("name", "string"), entry(name="x"))
    end = reader.latestOffset(start, ReadAllAvailable())
    with pytest.raises(
        SchemaMismatch, match=r"'id' is not in log .* from \{.*and this read has it NOT NULL: load again"
    ):
        reader.partitions(start, end)


def test_a_log_may_have_a_column_with_the_name_of_corrupt_records(
    cluster: Cluster, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """As a copy of what a PERMISSIVE read returned has it."""
    log = WrittenLog(cluster, client)
    log.write(StructType().add("id", "integer").add("_corrupt_record", "string"), entry(id=1, _corrupt_record="x"))
    source = BookKeeperDataSource(log.options)
    reader = source.reader(source.schema())
    with caplog.at_level(logging.WARNING):
        partitions = reader.partitions()
    assert caplog.text == ""
    found = [row for each in partitions for batch in reader.read(each) for row in batch.to_pylist()]
    assert found == [{"id": 1, "_corrupt_record": "x"}]


def test_a_named_column_of_another_type_is_refused_with_the_type_to_name(cluster: Cluster, client: Client) -> None:
    log = WrittenLog(cluster, client)
    log.write(ID, entry(id=1))
    source = BookKeeperDataSource({**log.options, "startingOffsets": "earliest"})
    with pytest.raises(SchemaMismatch, match=r"name it int in \.schema\(\), or leave that out, which finds"):
        source.reader(StructType().add("id", "string")).partitions()


def test_a_dialect_of_json_is_refused_of_a_log_of_another_format(cluster: Cluster, client: Client) -> None:
    log = WrittenLog(cluster, client)
    log.write(ID, entry(id=1))
    source = BookKeeperDataSource({**log.options, "jsonDialect": "spark"})
    schema = source.schema()
    for make in (source.reader, source.streamReader):
        with pytest.raises(ConfigurationError, match=r"payloadFormat json only, .* are arrow: remove it"):
            make(schema)


def test_a_column_that_is_named_twice_is_refused_when_the_read_is_planned(cluster: Cluster, client: Client) -> None:
    log = WrittenLog(cluster, client)
    log.write(ID, entry(id=1))
    twice = StructType().add("id", "integer").add("more", "string").add("id", "long")
    for make in (BookKeeperDataSource(log.options).reader, BookKeeperDataSource(log.options).streamReader):
        with pytest.raises(ConfigurationError, match="several columns 'id': name it once, and select it twice"):
            make(twice)


def test_a_missing_log_is_named_as_missing_whatever_columns_are_named(cluster: Cluster) -> None:
    source = BookKeeperDataSource({"uri": cluster.uri, "log": f"log-{uuid.uuid4().hex[:12]}"})
    for columns in (StructType().add("a", "integer"), StructType().add("value", "string")):
        for read in (
            lambda columns=columns: source.reader(columns).partitions(),
            lambda columns=columns: source.streamReader(columns).initialOffset(),
        ):
            with pytest.raises(NoSuchLog, match=source.options["log"]):
                read()


def test_a_stream_that_is_restarted_without_its_log_names_the_log_and_what_is_missing(
    cluster: Cluster, client: Client
) -> None:
    """docs/spark.md: the log must be created first. With a format that was named, the error was a KeyError."""
    log = WrittenLog(cluster, client)
    log.write(ID, entry(id=1))
    options = {**log.options, "failOnDataLoss": "false"}
    client.log(options["log"]).delete()
    with pytest.raises(NoSuchLog, match=r"The format of its entries is stored in it: create it, or set payloadFormat"):
        BookKeeperDataSource(options).streamReader(ID)
    named = BookKeeperDataSource({**options, "payloadFormat": "json"}).streamReader(ID)
    with pytest.raises(NoSuchLog, match=f"log {options['log']} does not exist, and a stream cannot begin without it"):
        named.latestOffset()


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE", "DROPMALFORMED"])
def test_a_stream_of_named_columns_ends_at_a_type_that_none_of_its_values_can_have(
    cluster: Cluster, client: Client, mode: str
) -> None:
    """A lenient mode would leave out all rows from there on, or their values."""
    log = WrittenLog(cluster, client)
    log.write(ID, entry(id=1))
    options = {**log.options, "mode": mode, "failOnDataLoss": "false", "startingOffsets": "earliest"}
    reader = BookKeeperDataSource(options).streamReader(ID)
    start = reader.initialOffset()
    log.overwrite()
    log.write(StructType().add("id", "string"), entry(id="x"))
    with pytest.raises(
        SchemaMismatch, match=r"column 'id' is string in log .* from \{.*name it string in \.schema\(\)"
    ):
        reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))


@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED"])
def test_a_named_column_that_is_too_narrow_is_refused_where_its_entries_would_be_left_out(
    cluster: Cluster, client: Client, mode: str
) -> None:
    """One value that does not fit makes its whole entry malformed, which FAILFAST reports."""
    log = WrittenLog(cluster, client)
    log.write(StructType().add("id", "long"), entry(id=1), entry(id=1 << 40))
    with pytest.raises(SchemaMismatch, match=r"column 'id' is bigint in log .*name it bigint in \.schema\(\)"):
        BookKeeperDataSource({**log.options, "mode": mode}).reader(ID).partitions()
    reader = BookKeeperDataSource(log.options).reader(ID)
    with pytest.raises(MalformedPayload, match="int32 is expected"):
        [list(reader.read(each)) for each in reader.partitions()]


def test_a_named_column_that_is_too_narrow_is_read_where_its_entries_are_kept_as_corrupt_records(
    cluster: Cluster, client: Client
) -> None:
    """Nothing is lost silently then; only a type that no value can have is refused."""
    log = WrittenLog(cluster, client)
    log.write(StructType().add("id", "long"), entry(id=1), entry(id=1 << 40))
    lenient = {**log.options, "mode": "PERMISSIVE"}
    reader = BookKeeperDataSource(lenient).reader(StructType([*ID, *StructType().add("_corrupt_record", "binary")]))
    rows = [row for each in reader.partitions() for batch in reader.read(each) for row in batch.to_pylist()]
    assert [row["id"] for row in rows] == [1, None]
    assert [row["_corrupt_record"] for row in rows] == [None, entry(id=1 << 40)]
    never = StructType().add("id", "string").add("_corrupt_record", "binary")
    with pytest.raises(SchemaMismatch, match=r"column 'id' is bigint in log .*name it bigint in \.schema\(\)"):
        BookKeeperDataSource(lenient).reader(never).partitions()


@pytest.mark.parametrize("mode", ["FAILFAST", "DROPMALFORMED"])
@pytest.mark.parametrize(
    ("payload_format", "row"),
    [("json", b'{"id": 1, "name": "x"}'), ("msgpack", msgpack.packb({"id": 1, "name": "x"}))],
    ids=["json", "msgpack"],
)
def test_the_values_decide_on_a_named_column_that_is_not_null_and_that_the_schema_lacks(
    cluster: Cluster, client: Client, payload_format: str, row: bytes, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Entries that Python appends record no schema: docs/spark.md, "In `json` and `msgpack` the values decide then"."""
    log = WrittenLog(cluster, client)
    log.write(ID, row, payload_format=payload_format)
    wanted = StructType([*ID, *StructType().add("name", "string", nullable=False)])
    reader = BookKeeperDataSource({**log.options, "mode": mode}).reader(wanted)
    with caplog.at_level(logging.WARNING):
        partitions = reader.partitions()
    assert "column 'name' is not in the schema of log" in caplog.text
    found = [row for each in partitions for batch in reader.read(each) for row in batch.to_pylist()]
    assert found == [{"id": 1, "name": "x"}]


@pytest.mark.parametrize("mode", ["FAILFAST", "DROPMALFORMED"])
def test_a_named_column_that_is_not_null_and_that_the_log_lacks_is_refused(
    cluster: Cluster, client: Client, mode: str
) -> None:
    """Otherwise DROPMALFORMED would leave out all rows."""
    log = WrittenLog(cluster, client)
    log.write(ID, entry(id=1))
    wanted = StructType([*ID, *StructType().add("name", "string", nullable=False)])
    reader = BookKeeperDataSource({**log.options, "mode": mode}).reader(wanted)
    with pytest.raises(SchemaMismatch, match=r"'name' is not in log .* NOT NULL: leave it out of \.schema\(\), or let"):
        reader.partitions()


@pytest.mark.parametrize(
    ("stored", "named", "is_logged"), [("arrow", "json", True), ("arrow", "raw", False), ("raw", "json", False)]
)
def test_entries_of_another_format_than_the_named_one_are_logged(
    cluster: Cluster, client: Client, caplog: pytest.LogCaptureFixture, stored: str, named: str, is_logged: bool
) -> None:
    """Raw entries may be anything."""
    log = WrittenLog(cluster, client)
    value = StructType().add("value", "binary")
    log.write(value if stored == "raw" else ID, entry(id=1), payload_format=stored)
    source = BookKeeperDataSource({**log.options, "mode": "DROPMALFORMED", "payloadFormat": named})
    with caplog.at_level(logging.WARNING):
        source.reader(value if named == "raw" else ID).partitions()
    assert ("has arrow entries from {" in caplog.text and "'payloadFormat' is json" in caplog.text) == is_logged


@pytest.mark.parametrize("mode", ["FAILFAST", "DROPMALFORMED"])
def test_a_column_that_no_schema_has_is_not_lost_beside_one_that_was_added(
    cluster: Cluster, client: Client, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver logs the column that was added. Another program appended an entry with one more."""
    log = WrittenLog(cluster, client)
    log.write(ID, entry(id=1))
    source = BookKeeperDataSource({**log.options, "mode": mode, "startingOffsets": "earliest"})
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    log.write(StructType([*ID, *StructType().add("late", "string")]), entry(id=2, late="x"), entry(id=3, unknown="y"))
    partitions = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    if mode == "FAILFAST":
        with pytest.raises(MalformedPayload, match="it has a column 'unknown', which this read does not have"):
            [list(reader.read(each)) for each in partitions]
        return
    with caplog.at_level(logging.WARNING):
        found = [value for each in partitions for batch in reader.read(each) for value in batch["id"].to_pylist()]
    assert found == [1, 2, 3]
    assert "column 'unknown' is left out: ledger" in caplog.text
    assert "column 'late' is left out: ledger" not in caplog.text


def test_a_schema_that_a_log_cannot_remember_is_refused_before_any_task(cluster: Cluster, client: Client) -> None:
    name = f"log-{uuid.uuid4().hex[:12]}"
    metadata = {"comment": random.Random(1).randbytes(1_500_000).hex()}
    columns = StructType().add("id", "integer", metadata=metadata)
    with pytest.raises(ConfigurationError, match="above what a log can remember"):
        BookKeeperDataSource({"uri": cluster.uri, "log": name}).writer(columns, overwrite=False)
    with pytest.raises(NoSuchLog):
        client.log(name).show()
