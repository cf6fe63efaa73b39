"""Entries of Arrow that expand: compressed zeros, long texts that many rows refer to, nulls that take no bytes."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest

from bkspark.arrow_sizes import uncompressed_bytes
from bkspark.entries import EntryBatch
from bkspark.errors import MalformedPayload
from bkspark.spark.formats.arrow import ArrowEncoder
from bkspark.spark.formats.arrow_limits import ENTRY_BYTES_MAX, bytes_as
from bkspark.spark.formats.compression import Compression
from bkspark.spark.formats.decoding import MalformedMode
from bkspark.spark.formats.registry import decoder_of

GOOD = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
TOO_MANY = ENTRY_BYTES_MAX // 8 + 1000


def payload_of(table: pa.Table, codec: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()


def bomb(codec: str) -> bytes:
    return payload_of(pa.table({"id": np.zeros(TOO_MANY, np.int64)}), codec)


def ids(payloads: list[bytes], mode: MalformedMode) -> list[int | None]:
    decoder = decoder_of("arrow", GOOD.schema, mode)
    return [cell for rows in decoder.decode(EntryBatch.of(payloads)) for cell in rows.columns[0].to_pylist()]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_an_entry_that_expands_beyond_the_limit_is_malformed(codec):
    payloads = [payload_of(GOOD), bomb(codec), payload_of(GOOD, codec)]
    assert len(payloads[1]) < ENTRY_BYTES_MAX // 200
    before = pa.total_allocated_bytes()
    with pytest.raises(MalformedPayload, match=r"entry 1: malformed payload: its rows take 1342.* above the limit"):
        ids(payloads, MalformedMode.FAILFAST)
    assert ids(payloads, MalformedMode.DROPMALFORMED) == [1, 2, 3] * 2
    assert ids(payloads, MalformedMode.PERMISSIVE) == [1, 2, 3, None, 1, 2, 3]
    assert pa.total_allocated_bytes() - before < 1 << 20


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("claim", [1 << 40, 1 << 62, (1 << 63) - 1])
def test_a_buffer_that_claims_a_size_is_not_believed(codec, claim):
    rows = 100_000
    payload = payload_of(pa.table({"id": np.arange(rows)}), codec)
    at = payload.index(struct.pack("<q", 8 * rows))
    damaged = payload[:at] + struct.pack("<q", claim) + payload[at + 8 :]
    with pytest.raises(MalformedPayload, match="above the limit"):
        ids([damaged], MalformedMode.FAILFAST)
    assert sum(map(uncompressed_bytes, pa.ipc.MessageReader.open_stream(damaged))) == claim


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
@pytest.mark.parametrize(
    "table",
    [
        pa.table({}),
        pa.table({"a": pa.array([], pa.string())}),
        pa.table({"a": pa.nulls(10)}),
        pa.table({"a": ["x" * 1000] * 3000, "b": [None, [1, 2], []] * 1000}),
        pa.table({"a": pa.array(["x" * 1000] * 3000).dictionary_encode()}),
        pa.table({f"c{i}": [i] * 40 for i in range(2000)}),
    ],
)
def test_the_size_of_an_entry_is_found_without_decompressing_it(codec, table):
    payload = payload_of(table, codec)
    read = pa.ipc.open_stream(payload).read_all()
    found = sum(map(uncompressed_bytes, pa.ipc.MessageReader.open_stream(payload)))
    # Arrow pads buffers that are not compressed.
    assert read.nbytes <= found <= read.nbytes + 64 * (1 + sum(len(c.chunks) * 3 for c in read.columns))


TEXT = "x" * (1 << 20)
ROWS = 200


def dictionary() -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0] * ROWS, pa.int8()), pa.array([TEXT]))


def views() -> pa.Array:
    view = struct.pack("<i4sii", len(TEXT), TEXT[:4].encode(), 0, 0)
    buffers = [None, pa.py_buffer(view * ROWS), pa.py_buffer(TEXT.encode())]
    return pa.Array.from_buffers(pa.string_view(), ROWS, buffers)


def listed(values: pa.Array, count: int | None = None) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


def empty_structs(count: int) -> pa.Array:
    return pa.StructArray.from_buffers(pa.struct([]), count, [None])


EXPANDING = {
    "dictionary": (dictionary, pa.string()),
    "dictionary in a list": (lambda: listed(dictionary()), pa.list_(pa.string())),
    "dictionary in a struct": (
        lambda: pa.StructArray.from_arrays([dictionary()], ["a"]),
        pa.struct({"a": pa.string()}),
    ),
    "dictionary in a map": (
        lambda: pa.MapArray.from_arrays([0, ROWS], pa.array(map(str, range(ROWS))), dictionary()),
        pa.map_(pa.string(), pa.string()),
    ),
    "views": (views, pa.string()),
    "views in a list": (lambda: listed(views()), pa.list_(pa.string())),
    "a list of nulls": (lambda: listed(pa.nulls(1 << 30)), pa.list_(pa.int64())),
    "lists of one size": (
        lambda: pa.FixedSizeListArray.from_arrays(pa.nulls(1 << 30), 1 << 20),
        pa.list_(pa.string()),
    ),
    "members that are absent": (lambda: listed(empty_structs(1 << 30)), pa.list_(pa.struct({"a": pa.int64()}))),
}


@pytest.mark.parametrize(("make", "wanted"), EXPANDING.values(), ids=EXPANDING)
def test_a_column_that_a_conversion_makes_too_large_is_malformed(make, wanted):
    payload = payload_of(pa.table({"c": make()}))
    decoder = decoder_of("arrow", pa.schema({"c": wanted}))
    assert len(payload) < 3 << 20
    with pytest.raises(MalformedPayload, match=r"its rows take .* bytes in memory, above the limit"):
        list(decoder.decode(EntryBatch.of([payload])))


CONVERTED = [
    (pa.array([1, None, 3], pa.int32()), pa.int64()),
    (pa.array(["a", None, "b" * 30]).dictionary_encode(), pa.string()),
    (pa.array(["a", None, "b" * 30], pa.string_view()), pa.string()),
    (pa.array([[1, 2], None, []], pa.list_(pa.int32())), pa.list_(pa.int64())),
    (pa.array([[1, 2], None], pa.list_(pa.int32(), 2)), pa.list_(pa.int64())),
    (pa.array([{"a": 1}, None]), pa.struct({"a": pa.int64(), "b": pa.string()})),
    (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())), pa.map_(pa.string(), pa.int64())),
    (pa.nulls(5), pa.struct({"a": pa.int64(), "b": pa.list_(pa.int64())})),
    (pa.array([b"ab", None], pa.binary(2)), pa.binary()),
    (pa.array([1.5, None], pa.float32()).dictionary_encode(), pa.float64()),
]


@pytest.mark.parametrize(("array", "wanted"), CONVERTED)
def test_the_size_of_a_conversion_is_an_upper_bound(array, wanted):
    assert array.cast(wanted).nbytes <= bytes_as(array, wanted) + 8 * (len(array) // 8 + 8)


def test_columns_that_an_entry_lacks_share_their_nulls():
    """Ten thousand rows of an early entry, in a log that has two thousand columns now."""
    payload = payload_of(pa.table({"id": np.arange(10_000)}))
    schema = pa.schema([("id", pa.int64()), *((f"c{i}", pa.int64()) for i in range(2000))])
    (rows,) = decoder_of("arrow", schema).decode(EntryBatch.of([payload]))
    assert rows.count == rows.columns[-1].null_count == 10_000
    held = {buffer.address: buffer.size for column in rows.columns for buffer in column.buffers() if buffer is not None}
    assert sum(held.values()) < 1 << 20


def test_nulls_of_columns_that_an_entry_lacks_are_limited():
    """A bit for each row is data, and a text column that is absent takes 32 times that."""
    flags = pa.array(np.zeros(8 * ENTRY_BYTES_MAX // 32 + 8, bool))
    payload = payload_of(pa.table({"flag": flags}), "zstd")
    schema = pa.schema({"flag": pa.bool_(), "text": pa.string()})
    with pytest.raises(MalformedPayload, match="above the limit"):
        list(decoder_of("arrow", schema).decode(EntryBatch.of([payload])))


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_a_row_that_no_reader_takes_is_not_written(codec):
    large = pa.array([np.zeros(ENTRY_BYTES_MAX + 1, np.uint8).data], pa.large_binary()).cast(pa.binary())
    batch = pa.record_batch({"value": large})
    encoder = ArrowEncoder(batch.schema, 1 << 20, 5 << 20, Compression(codec, None))
    with pytest.raises(
        MalformedPayload, match=r"a row takes .* bytes, above the limit of 134217728: split its largest"
    ):
        list(encoder.encode(batch))


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.long(reason="12 s of processor time; the decoder has the limit and the modes above")
def test_an_entry_that_expands_ends_a_read_by_name_or_is_left_out(spark, table, client, tmp_path):
    table.write(spark.range(3).coalesce(1))
    with client.log(table.log).open_for_writing() as writer:
        writer.append(bomb("zstd"))
    table.write(spark.range(3, 5).coalesce(1))
    with pytest.raises(Exception, match=r"entry 0: malformed payload: its rows take \d+ bytes in memory"):
        table.read().collect()
    assert sorted(row.id for row in table.read(mode="DROPMALFORMED").collect()) == [0, 1, 2, 3, 4]
    for mode, rows in (("DROPMALFORMED", 5), ("PERMISSIVE", 6)):
        target = str(tmp_path / mode)
        query = (
            table.stream(mode=mode, startingOffsets="earliest")
            .select("id")
            .writeStream.format("parquet")
            .option("checkpointLocation", f"{target}-checkpoint")
            .trigger(availableNow=True)
            .start(target)
        )
        assert query.awaitTermination(120)
        assert query.exception() is None
        assert spark.read.parquet(target).count() == rows
