"""Columns that are read off the entries of a log, when later entries have others."""

from __future__ import annotations

import uuid

import msgpack
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from bkspark.errors import MalformedPayload
from bkspark.log.formats import SegmentOwner
from bkspark.spark.options import SourceOptions
from bkspark.spark.source import BookKeeperDataSource
from bkspark.spark.write import BookKeeperWriter


def source(cluster, log: str, payload_format: str, **others: str) -> tuple[BookKeeperDataSource, StructType]:
    """Return a source as Spark holds it when the user named no columns, and the columns found."""
    given = {"uri": cluster.uri, "log": log, "payloadformat": payload_format, **others}
    found = BookKeeperDataSource(given)
    return found, found.schema()


def rows(found: BookKeeperDataSource, schema: StructType) -> list[dict]:
    reader = found.reader(schema)
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def arrow_entry(**columns: list) -> bytes:
    batch = pa.record_batch(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


CHANGED = {
    "arrow": (arrow_entry(a=[1]), arrow_entry(a=[2], b=["x"])),
    "json": (b'{"a": 1}', b'{"a": 2, "b": "x"}'),
    "msgpack": (msgpack.packb({"a": 1}), msgpack.packb({"a": 2, "b": "x"})),
}


@pytest.mark.cluster
@pytest.mark.parametrize("payload_format", CHANGED)
def test_column_that_the_first_entries_lack_is_not_lost_silently(cluster, client, payload_format):
    """Columns that were read off the first entries do not speak for later ones; a schema given by the user does."""
    first, later = CHANGED[payload_format]
    name = f"log-{uuid.uuid4().hex[:12]}"
    with client.log(name).open_for_writing() as writer:
        writer.append_many([first])
    fail_fast = source(cluster, name, payload_format)
    permissive = source(cluster, name, payload_format, mode="PERMISSIVE")
    dropping = source(cluster, name, payload_format, mode="DROPMALFORMED")
    with client.log(name).open_for_writing() as writer:
        writer.append_many([later])
    with pytest.raises(MalformedPayload, match="has a column 'b', which this read does not have: name the columns"):
        rows(*fail_fast)
    kept = later.decode() if payload_format == "json" else later
    assert rows(*permissive) == [{"a": 1, "_corrupt_record": None}, {"a": None, "_corrupt_record": kept}]
    assert rows(*dropping) == [{"a": 1}, {"a": 2}]  # and the task logs what it leaves out
    given = BookKeeperDataSource({"uri": cluster.uri, "log": name, "payloadformat": payload_format})
    assert rows(given, StructType().add("a", "long")) == [{"a": 1}, {"a": 2}]


@pytest.mark.cluster
def test_columns_are_read_off_a_shared_ledger_that_is_still_open(cluster, client):
    """The list of a log says how far an open shared ledger is published, before its bookies tell of a LAC."""
    name = f"log-{uuid.uuid4().hex[:12]}"
    given = {"log": name, "txnAppId": "app", "txnVersion": "0", "payloadFormat": "json"}
    written = SourceOptions.parse({"uri": cluster.uri, **given}, {})
    schema = StructType().add("a", "long")
    writer = BookKeeperWriter(schema, written, False)
    destination = writer.destination
    owner = SegmentOwner("job", writer.job_id, None, 0, 0)
    batch = pa.record_batch({"a": pa.array([5], pa.int64())})
    writer.commit([destination.write(owner, iter([batch]), is_keyed=True)])
    assert rows(*source(cluster, name, "json")) == [{"a": 5}]
