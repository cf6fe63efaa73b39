"""Finds decoders, encoders and columns of a payload format by the format's name."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from bkspark.spark.formats.arrow import ArrowDecoder, ArrowEncoder, schema_of_first
from bkspark.spark.formats.compression import UNCOMPRESSED, Compression
from bkspark.spark.formats.decoding import CORRUPT_RECORD, Decoder, MalformedMode
from bkspark.spark.formats.encoding import Encoder
from bkspark.spark.formats.raw import RawDecoder, RawEncoder
from bkspark.spark.formats.rows import RowDecoder, RowEncoder, inferred_columns


def decoder_of(
    format_name: str,
    schema: pa.Schema,
    mode: MalformedMode = MalformedMode.FAILFAST,
    *,
    is_whole: bool = False,
    left_out: frozenset[str] = frozenset(),
    is_sparks: bool = False,
    corrupt_record: str = CORRUPT_RECORD,
) -> Decoder:
    """Return the decoder of `raw`, `json`, `msgpack` or `arrow` for these payload columns; see `Decoder`.

    Args:
        is_sparks: read `json` as Spark's own source does (`spark_json`).

    Raises:
        ConfigurationError: the format cannot provide one of the columns.
    """
    if format_name == "raw":
        return RawDecoder(schema, mode, corrupt_record)
    if format_name == "arrow":
        return ArrowDecoder(schema, mode, is_whole=is_whole, left_out=left_out, corrupt_record=corrupt_record)
    return RowDecoder(
        schema,
        mode,
        is_json=format_name == "json",
        is_whole=is_whole,
        left_out=left_out,
        is_sparks=is_sparks,
        corrupt_record=corrupt_record,
    )


def encoder_of(
    format_name: str,
    schema: pa.Schema,
    entry_bytes: int,
    entry_bytes_max: int,
    compression: Compression = UNCOMPRESSED,
) -> Encoder:
    """Return the encoder of a format for batches of `schema`.

    Args:
        entry_bytes: target size for formats with many rows per entry.
        compression: of `arrow` entries; others are not compressed.

    Raises:
        ConfigurationError: the format cannot hold one of the columns.
    """
    if format_name == "raw":
        return RawEncoder(schema)
    if format_name == "arrow":
        return ArrowEncoder(schema, entry_bytes, entry_bytes_max, compression)
    return RowEncoder(schema, is_json=format_name == "json")


def columns_of(
    format_name: str,
    payloads: Sequence[bytes],
    mode: MalformedMode = MalformedMode.FAILFAST,
    *,
    is_sparks: bool = False,
    takes_all: bool = False,
) -> pa.Schema:
    """Return the columns that the first entries of a `json`, `msgpack` or `arrow` ledger have; at least one entry.

    Args:
        mode: mode of the later read; unless it is FAILFAST, malformed entries do not count here either.
        is_sparks: as for `decoder_of`.
        takes_all: a column of several types has the type that Spark's own source finds.

    Raises:
        ValueError: they do not have the format, or disagree.
    """
    is_lenient = mode is not MalformedMode.FAILFAST
    if format_name == "arrow":
        return schema_of_first(payloads, is_lenient=is_lenient)
    return inferred_columns(
        payloads,
        is_json=format_name == "json",
        is_lenient=is_lenient,
        is_sparks=is_sparks,
        takes_all=takes_all,
    )
