"""Targets of what users write: options of Spark and of the client, configuration files, checkpoints; and payloads.

Whatever it is, the answer is a value or one error that a user can read, never a traceback.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from bkspark import properties
from bkspark.core.metadata import check_quorums
from bkspark.core.relaxed import RelaxedDurability
from bkspark.entries import EntryBatch
from bkspark.errors import BookKeeperError, ConfigurationError, MalformedPayload
from bkspark.ids import check_bookie_id, parse_host_port
from bkspark.ledger.bookies import PlacementOptions
from bkspark.log.writer import LedgerOptions, RollLimits
from bkspark.spark.formats.decoding import MalformedMode
from bkspark.spark.formats.registry import columns_of, decoder_of, encoder_of
from bkspark.spark.offsets import ManyLogs, OneLog
from bkspark.spark.option_table import OPTIONS
from bkspark.spark.options import SourceOptions
from bookie_service.settings import configuration
from tests.fuzzing.target import Draw, Target

# ---- Spark's options ----


def _pairs(data: bytes) -> dict[str, str]:
    """Return options of lines `name=value`; a byte in place of a name selects one of the existing names."""
    pairs = {}
    for line in data.decode("utf-8", "replace").split("\n"):
        name, _, value = line.partition("=")
        if len(name) == 1:
            name = OPTIONS[ord(name) % len(OPTIONS)].name
        pairs[name] = value
    return pairs


def _spark_options(data: bytes) -> SourceOptions:
    return SourceOptions.parse(_pairs(data), {})


def _uses_are_decided(options: SourceOptions) -> None:
    """Whatever is done with options that were taken, it goes on or ends in an error of ours."""
    repr(options)
    for use in (
        options.check_at_load,
        options.for_batch_read,
        options.for_stream_read,
        options.for_batch_write,
        options.for_stream_write,
    ):
        with contextlib.suppress(ConfigurationError):
            use()


def _spark_option_seeds() -> Iterator[bytes]:
    uri = "uri=zk://h:2181/ledgers"
    for lines in (
        ("log=clicks", "startingOffsets=earliest", 'endingOffsets={"entry":5,"ledger":12,"ordinal":3,"version":1}'),
        ("ledgers=5:10-99", "unconfirmed=true"),
        ("ledgers=[1, 2]", "maxPartitionBytes=64k", "minPartitions=3"),
        ("log=clicks", "payloadFormat=json", "mode=PERMISSIVE", "startingTimestamp=2026-11-21T05:00:00Z"),
        ("log=clicks", "ensembleSize=3", "writeQuorum=3", "ackQuorum=2", "ledgerMetadata.a=b", "saveMode=append"),
        ("logsPattern=clicks-.*", "maxEntriesPerTrigger=10", 'startingOffsets={"clicks-1": -5}'),
        ("inspect=ledgers", "password=secret"),
    ):
        yield "\n".join((uri, *lines)).encode()


def _offset(data: bytes) -> tuple[OneLog | ManyLogs, Any]:
    draw = Draw(data)
    form: OneLog | ManyLogs = OneLog("clicks") if draw.flag() else ManyLogs()
    try:
        value = json.loads(draw.rest())
    except (ValueError, RecursionError):
        raise ConfigurationError("Spark hands over JSON") from None
    return form, form.from_json(value, "the checkpoint")


def _offset_is_canonical(found: tuple[OneLog | ManyLogs, Any]) -> None:
    form, offsets = found
    text = json.dumps(form.to_json(offsets))
    assert json.dumps(form.to_json(form.from_json(json.loads(text), "here"))) == text


def _offset_seeds() -> Iterator[bytes]:
    one = {"entry": 120, "ledger": 17, "log": "clicks", "log_id": "00000000000000aa", "ordinal": 3, "version": 1}
    yield b"\1" + json.dumps(one).encode()
    yield b"\0" + json.dumps({"logs": {"clicks": one}, "version": 1}).encode()


# ---- a bookie's configuration ----


def _configuration(data: bytes) -> configuration.Configuration:
    """As `configuration_files.read` and `configure` do, but no other file is included."""
    try:
        pairs = properties.pairs(data.decode())
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    return configuration.configure(dict(pairs))


def _configuration_seeds() -> Iterator[bytes]:
    served = configuration.served_settings()
    yield b"# comment\nbookiePort: 3181\nledgerDirectories=/a,\\\n    /b\nmetadataServiceUri=zk://h:2181/ledgers\n"
    stated = [f"{key}={it.default}" for key, it in served.items() if it.type != "text" and it.default[:1].isalnum()]
    for first in range(0, len(stated), 8):
        yield "\n".join(stated[first : first + 8]).encode()
    yield b"skipListSizeLimit=4194304\ndbStorage_writeCacheMaxSizeMb=4\ngcDeletedShareMax=0.5\n"


_KEYS = tuple(key.encode() for key in configuration.served_settings())

# ---- the client's ----


def _client_options(data: bytes) -> None:
    draw = Draw(data)
    kind = draw.below(7)
    if kind == 0:
        LedgerOptions(
            draw.int64(),
            draw.int64(),
            draw.int64(),
            draw.choice(("PD_JOURNAL", "VD_JOURNAL", draw.text())),
            {draw.text(): draw.choice((draw.blob(), draw.text())) for _ in range(draw.below(3))},
        )
    elif kind == 1:
        RollLimits(draw.int64(), draw.choice((None, _number(draw))))
    elif kind == 2:
        PlacementOptions(draw.int64(), draw.int64(), _number(draw), _number(draw))
    elif kind == 3:
        RelaxedDurability(draw.flag(), draw.flag(), draw.int64(), _number(draw))
    elif kind == 4:
        check_quorums(draw.int64(), draw.int64(), draw.int64())
    elif kind == 5:
        check_bookie_id(draw.rest().decode("utf-8", "replace"))
    else:
        host, port = parse_host_port(draw.rest().decode("utf-8", "replace"))
        assert parse_host_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}") == (host, port)


def _number(draw: Draw) -> float:
    return draw.choice((0.0, -1.0, 0.5, math.nan, math.inf, -math.inf, 1e308, float(draw.int64())))


# ---- payloads ----

_SCHEMAS = (
    pa.schema([("a", pa.int64()), ("b", pa.string())]),
    pa.schema([("a", pa.decimal128(10, 2)), ("t", pa.timestamp("us", "UTC")), ("f", pa.float32())]),
    pa.schema([("l", pa.list_(pa.int32())), ("s", pa.struct({"x": pa.binary(), "y": pa.date32()}))]),
    pa.schema([("m", pa.map_(pa.string(), pa.float64())), pa.field("n", pa.int8(), nullable=False)]),
    pa.schema([]),
)
_MODES = tuple(MalformedMode)


def _payloads(format_name: str) -> Callable[[bytes], tuple[pa.Schema, MalformedMode, int, list[Any]]]:
    def decode(data: bytes) -> tuple[pa.Schema, MalformedMode, int, list[Any]]:
        draw = Draw(data)
        schema, mode, is_whole = draw.choice(_SCHEMAS), draw.choice(_MODES), draw.flag()
        if mode is MalformedMode.PERMISSIVE and not all(column.nullable for column in schema):
            mode = MalformedMode.DROPMALFORMED
        cut, payload = draw.below(256), draw.rest()
        payloads = [payload[:cut], payload[cut:]] if cut % 2 else [payload]
        batch = EntryBatch.of(payloads, ledger_id=9, first_entry=0)
        with contextlib.suppress(ValueError):
            columns_of(format_name, payloads, mode)
        decoder = decoder_of(format_name, schema, mode, is_whole=is_whole)
        return schema, mode, len(payloads), list(decoder.decode(batch))

    return decode


def _rows_are_sound(found: tuple[pa.Schema, MalformedMode, int, list[Any]]) -> None:
    schema, _, entries, pieces = found
    for rows in pieces:
        assert len(rows.columns) == len(schema)
        for column, field in zip(rows.columns, schema):
            assert (column.type, len(column)) == (field.type, rows.count)
            column.validate(full=True)
        entry_of_row = range(entries) if rows.entry_of_row is None else rows.entry_of_row().tolist()
        assert all(0 <= entry < entries for entry in entry_of_row)


def _never_raises(format_name: str) -> Callable[[bytes], Any]:
    """PERMISSIVE and DROPMALFORMED make something of whatever they are given."""
    decode = _payloads(format_name)

    def decoded(data: bytes) -> Any:
        try:
            return decode(data)
        except MalformedPayload:
            draw = Draw(data)
            draw.choice(_SCHEMAS)
            assert draw.choice(_MODES) is MalformedMode.FAILFAST, "raised in a mode that does not"
            raise

    return decoded


def _payload_seeds(format_name: str) -> Callable[[], Iterator[bytes]]:
    values: dict[str, Any] = {
        "a": [1, None],
        "b": ["x", "y"],
        "t": [datetime(2026, 1, 2, tzinfo=UTC), None],
        "f": [0.5, math.nan],
        "l": [[1, 2], []],
        "s": [{"x": b"1", "y": None}, None],
        "m": [[("k", 1.5)], []],
        "n": [1, 2],
    }

    def seeds() -> Iterator[bytes]:
        for number, schema in enumerate(_SCHEMAS[:-1]):
            cells = dict(values)
            if "t" in schema.names:
                cells["a"] = [Decimal("1.50"), None]
            arrays = [pa.array(cells[name], schema.field(name).type) for name in schema.names]
            batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
            for part in encoder_of(format_name, schema, 1 << 20, 1 << 22).encode(batch):
                for mode, payload in enumerate(part):
                    yield bytes((number, mode, 0, 0)) + payload

    return seeds


def _payload_target(format_name: str, words: tuple[bytes, ...]) -> Target:
    return Target(
        f"payload-{format_name}",
        _never_raises(format_name),
        (MalformedPayload,),
        _rows_are_sound,
        _payload_seeds(format_name),
        words,
        # Arrow's allocator takes memory in large steps, and gives it back later.
        bytes_max=128 << 20,
    )


TARGETS = (
    Target(
        "options-spark",
        _spark_options,
        (ConfigurationError,),
        _uses_are_decided,
        _spark_option_seeds,
        tuple(f"{option.name}=".encode() for option in OPTIONS),
    ),
    Target("options-offsets", _offset, (ConfigurationError,), _offset_is_canonical, _offset_seeds),
    Target("options-bookie", _configuration, (ConfigurationError,), lambda found: None, _configuration_seeds, _KEYS),
    Target(
        "options-client",
        _client_options,
        (BookKeeperError, ValueError),
        None,
        lambda: [b"\5b-1", b"\6h:3181", b"\6[::1]:3181", bytes(20), b"\1" * 20, b"\2" * 20],
    ),
    _payload_target("json", (b'{"a": ', b'"s": {"x"', b"null", b"1e999", b'"2026-01-02T03:04:05Z"')),
    _payload_target("msgpack", (b"\x82\xa1a", b"\xc0", b"\xd6\xff", b"\xc7\x0c\xff")),
    _payload_target("arrow", (b"\xff\xff\xff\xff", b"ARROW1")),
)
