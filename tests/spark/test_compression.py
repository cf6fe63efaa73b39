"""Compression of arrow entries: the codec belongs to the entry, and what it does not make smaller stays as it is."""

import random

import pyarrow as pa
import pytest

from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError
from bkspark.spark.formats.arrow import ArrowEncoder
from bkspark.spark.formats.compression import Compression
from bkspark.spark.formats.registry import decoder_of
from bkspark.spark.options import SourceOptions


def arrow_entries(batch, codec, level=None, entry_bytes=1 << 20):
    encoder = ArrowEncoder(batch.schema, entry_bytes, 5 << 20, Compression(codec, level))
    (entries,) = encoder.encode(batch)
    return entries


@pytest.mark.parametrize(("codec", "level"), [("none", None), ("lz4", None), ("lz4", 12), ("zstd", 1), ("zstd", 22)])
def test_entries_of_any_codec_are_read_by_any_reader(codec, level):
    batch = pa.record_batch({"id": pa.array(range(5000), pa.int64()), "s": [f"user {i % 7}" for i in range(5000)]})
    entries = arrow_entries(batch, codec, level, entry_bytes=64 << 10)
    assert len(entries) > 1
    assert pa.concat_tables(pa.ipc.open_stream(payload).read_all() for payload in entries).equals(pa.table(batch))
    found = list(decoder_of("arrow", batch.schema).decode(entries))
    assert sum(rows.count for rows in found) == 5000
    plain = arrow_entries(batch, "none", entry_bytes=64 << 10)
    assert codec == "none" or entries.payload_bytes < plain.payload_bytes / 2


def test_one_log_may_hold_entries_of_several_codecs():
    batch = pa.record_batch({"id": pa.array(range(5000), pa.int64())})
    mixed = EntryBatch.joined([arrow_entries(batch, codec) for codec in ("none", "zstd", "lz4")])
    (rows,) = decoder_of("arrow", batch.schema).decode(mixed)
    assert rows.columns[0].to_pylist() == [*range(5000)] * 3


def test_rows_in_memory_at_once_are_bounded_by_their_own_size_and_not_the_compressed_one():
    batch = pa.record_batch({"value": pa.array([b"x" * 1024] * 20_000, pa.binary())})
    entries = arrow_entries(batch, "lz4", entry_bytes=256 << 10)
    assert entries.payload_bytes < 1 << 20
    found = list(decoder_of("arrow", batch.schema).decode(entries))
    assert sum(rows.count for rows in found) == 20_000
    assert max(sum(column.nbytes for column in rows.columns) for rows in found) < 1 << 20


def test_entries_that_compression_does_not_make_smaller_are_written_as_they_are():
    noise = pa.record_batch({"value": pa.array([random.Random(i).randbytes(1000) for i in range(1000)], pa.binary())})
    encoded, plain = (arrow_entries(noise, codec, entry_bytes=32 << 10) for codec in ("zstd", "none"))
    assert len(encoded) == len(plain) >= 20
    sizes = [(len(one), len(other)) for one, other in zip(encoded, plain)]
    # The first one is a try, and so is each that follows fifteen others.
    assert [index for index, (one, other) in enumerate(sizes) if one != other] == list(range(0, len(plain), 16))
    assert encoded.payload_bytes < 1.01 * plain.payload_bytes


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("columns", [1, 100])
def test_rows_that_fit_an_entry_fit_it_with_any_codec(codec, columns):
    """Compression makes random bytes larger, by its own headers."""
    most = 1 << 20

    def entry(codec, size):
        row = pa.record_batch({f"c{i}": pa.array([noise[:size]], pa.binary()) for i in range(columns)})
        (entries,) = ArrowEncoder(row.schema, most, most, Compression(codec)).encode(row)
        return entries.payload_bytes

    noise = random.Random(1).randbytes(most)
    # Buffers are padded to 8 bytes.
    largest = (most - entry("none", 8)) // columns // 8 * 8
    assert entry("none", largest) <= most
    assert entry(codec, largest) <= most


def test_a_row_that_fits_an_entry_only_when_it_is_compressed_is_compressed():
    row = pa.record_batch({"value": pa.array([b"x" * (6 << 20)], pa.binary())})
    assert arrow_entries(row, "none").payload_bytes > 5 << 20
    assert arrow_entries(row, "lz4").payload_bytes < 1 << 20


def test_small_entries_are_not_compressed():
    batch = pa.record_batch({"id": pa.array(range(20), pa.int64()), "s": ["x"] * 20})
    assert list(arrow_entries(batch, "zstd")) == list(arrow_entries(batch, "none"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"compression": "gzip"}, "compression"),
        ({"compression": "lz4", "compressionLevel": "13"}, "lz4 1 to 12, zstd 1 to 22"),
        ({"compression": "none", "compressionLevel": "1"}, "none has no such level"),
        ({"compressionLevel": "0"}, "compressionLevel"),
        ({"compression": "zstd", "payloadFormat": "json"}, "has an effect on payloadFormat arrow only"),
    ],
)
def test_a_codec_or_level_that_has_no_effect_is_refused(given, words):
    with pytest.raises(ConfigurationError, match=words):
        SourceOptions.parse({"uri": "zk://h:1/ledgers", "log": "a", **given}).for_batch_write()


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.every_spark
def test_a_log_of_several_codecs_is_read_without_an_option(spark, table, client):
    lengths = {}
    for codec in ("none", "lz4", "zstd"):
        table.write(spark.range(20_000).selectExpr("id", "concat('user ', id % 7) s").coalesce(1), compression=codec)
        lengths[codec] = client.log(table.log).show()["ledgers"][-1]["length"]
    assert lengths["zstd"] < lengths["lz4"] < lengths["none"] / 2
    table.write(spark.range(20_000).selectExpr("id", "concat('user ', id % 7) s").coalesce(1))
    assert client.log(table.log).show()["ledgers"][-1]["length"] == lengths["lz4"]
    assert table.read().selectExpr("count(*)", "sum(id)").collect() == [(80_000, 4 * 199_990_000)]
    with pytest.raises(Exception, match="has an effect on payloadFormat arrow only"):
        table.write(spark.range(1), mode="overwrite", overwriteSchema="true", payloadFormat="json", compression="zstd")
