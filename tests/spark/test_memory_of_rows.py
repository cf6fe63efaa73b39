"""Rows that take far more memory than their entries are made a few at a time."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructField, StructType

from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.entries import EntryBatch
from bkspark.pulsar.schemas import Schema
from bkspark.spark.columns import CUSTOM_METADATA_BYTES_MAX, row_assembler
from bkspark.spark.formats import decoding
from bkspark.spark.formats.decoding import CELLS_MAX, MalformedMode
from bkspark.spark.formats.registry import decoder_of
from bkspark.spark.options import SourceOptions
from bkspark.spark.partitions import LedgerRead
from bkspark.spark.read import BATCH_BYTES, joined
from bkspark.spark.topic_rows import TopicRows
from bkspark.spark.topics import TopicFacts
from bkspark.wire.digest import DigestType
from tests.pulsar.entries import Message, batch, compressed, framed, metadata_of

COLUMNS = 2000
WIDE = pa.schema([(f"c{i}", pa.int64()) for i in range(COLUMNS)])
TOPIC = "persistent://public/default/t"


@pytest.mark.parametrize("payload_format", ["json", "msgpack"])
def test_small_entries_of_many_columns_are_decoded_in_pieces(payload_format):
    count = 3 * CELLS_MAX // COLUMNS
    entry = b'{"c7":1}' if payload_format == "json" else b"\x81\xa2c7\x01"
    pieces = list(decoder_of(payload_format, WIDE).decode(EntryBatch.of([entry] * count)))
    assert sum(piece.count for piece in pieces) == count
    assert max(piece.count for piece in pieces) * COLUMNS <= CELLS_MAX
    assert all(piece.columns[7].to_pylist() == [1] * piece.count for piece in pieces)


def test_pieces_name_their_entries(monkeypatch):
    monkeypatch.setattr(decoding, "CELLS_MAX", 100)
    names = [f"c{i}" for i in range(4)]
    entries = EntryBatch.of([b'{"c0":%d}' % i if i % 3 else b"bad" for i in range(90)], 5, 100)
    good = [i for i in range(90) if i % 3]
    schema = pa.schema([(name, pa.int64()) for name in names])
    pieces = list(decoder_of("json", schema, MalformedMode.DROPMALFORMED).decode(entries))
    assert len(pieces) >= 4
    assert [i for piece in pieces for i in piece.entry_of_row().tolist()] == good
    assert [cell for piece in pieces for cell in piece.columns[0].to_pylist()] == good
    options = SourceOptions.parse(
        {"uri": "zk://h:1/l", "log": "a", "payloadFormat": "json", "mode": "PERMISSIVE", "includeMetadata": "true"}
    )
    columns = StructType([StructField(name, LongType()) for name in (*names, "entry_id")])
    found = pa.Table.from_batches(row_assembler(columns, options).batches(entries, read_of({})))
    assert found["entry_id"].to_pylist() == list(range(100, 190))
    assert found["c0"].to_pylist() == [i if i % 3 else None for i in range(90)]


def read_of(custom: dict[str, bytes]) -> LedgerRead:
    metadata = LedgerMetadata(1, 1, 1, (Fragment(0, ("b:1",)),), DigestType.CRC32C, custom_metadata=custom)
    return LedgerRead(0, 5, 100, 200, metadata, 0, "a")


def test_large_custom_metadata_are_in_few_rows_at_a_time():
    """Column ledger_metadata repeats those of a ledger in each row."""
    options = SourceOptions.parse({"uri": "zk://h:1/l", "log": "a", "payloadFormat": "json", "includeMetadata": "true"})
    schema = StructType([StructField("x", LongType()), StructField("entry_id", LongType())])
    schema.add("ledger_metadata", MapType(StringType(), BinaryType()))
    entries = EntryBatch.of([b'{"x":%d}' % i for i in range(1000)], 5, 100)
    value = b"x" * (CUSTOM_METADATA_BYTES_MAX >> 8)
    batches = list(row_assembler(schema, options).batches(entries, read_of({"k": value})))
    assert max(each.nbytes for each in batches) < 2 * CUSTOM_METADATA_BYTES_MAX
    assert [entry_id for each in batches for entry_id in each["entry_id"].to_pylist()] == list(range(100, 1100))
    assert [x for each in batches for x in each["x"].to_pylist()] == list(range(1000))
    assert all(each["ledger_metadata"][-1].as_py() == [("k", value)] for each in batches)


def test_a_large_batch_is_not_copied_because_a_small_one_comes_before_it():
    small, large = (pa.record_batch({"x": pa.array(range(count), pa.int64())}) for count in (10, 1 << 17))
    found = list(joined(iter([small, large])))
    assert sum(each.num_rows for each in found) == 10 + (1 << 17)
    assert found[0].num_rows == 10
    assert found[1].column(0).buffers()[1].address == large.column(0).buffers()[1].address


def test_large_batches_are_cut_into_equal_parts_but_never_below_a_row():
    row = pa.record_batch({"x": pa.array([bytes(3 * BATCH_BYTES)])})
    assert [each.num_rows for each in joined(iter([row, row]))] == [1, 1]
    five = pa.record_batch({"x": pa.array([bytes(2 * BATCH_BYTES // 5)] * 5)})
    assert [each.num_rows for each in joined(iter([five]))] == [3, 2]
    assert list(joined(iter([]))) == []


# ---- topics ----


def tiny(count: int, codec: int = 3) -> bytes:
    """An entry of many messages without a value."""
    payload = b"\0\0\0\2\x18\0" * count
    metadata = metadata_of(0, num_messages_in_batch=count, compression=codec, uncompressed_size=len(payload))
    return framed(metadata, compressed(codec, payload))


def of_topic(entries: list[bytes], schema: StructType, facts: TopicFacts) -> Iterator[pa.RecordBatch]:
    options = SourceOptions.parse({"uri": "zk://h:1/ledgers", "topic": "t"})
    return TopicRows(schema, options).for_topic(TOPIC, facts, lambda _: iter(())).batches(EntryBatch.of(entries, 5))


@pytest.mark.parametrize("columns", [StructType(), StructType().add("value", "binary").add("__messageId", "binary")])
def test_few_bytes_of_many_messages_are_decoded_in_pieces(columns):
    entries = [tiny(300_000)] * 10
    assert sum(map(len, entries)) < 20_000
    tracemalloc.start()
    try:
        assert sum(each.num_rows for each in of_topic(entries, columns, TopicFacts())) == 3_000_000
        assert tracemalloc.get_traced_memory()[1] < 150 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["JSON", "AVRO"])
def test_small_messages_of_many_fields_are_decoded_in_pieces(kind):
    fields = [{"name": f"c{i}", "type": ["null", "long"], "default": None} for i in range(COLUMNS)]
    definition = json.dumps({"type": "record", "name": "wide", "fields": fields}).encode()
    value = b'{"c7":1}' if kind == "JSON" else b"\0" * 7 + b"\2\2" + b"\0" * (COLUMNS - 8)
    facts = TopicFacts(schemas={0: Schema(0, kind, definition)})
    count = CELLS_MAX // COLUMNS + 10
    schema = StructType([StructField(f"c{i}", LongType()) for i in (7, 8)])
    entry = batch([Message(value)] * count, codec=3, schema_version=b"\0" * 8)
    found = list(of_topic([entry], schema, facts))
    assert [each.num_rows for each in found] == [CELLS_MAX // (COLUMNS + 2), count - CELLS_MAX // (COLUMNS + 2)]
    assert pa.Table.from_batches(found)["c7"].to_pylist() == [1] * count
