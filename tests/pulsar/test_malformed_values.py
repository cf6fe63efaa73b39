"""Decoders of many values name the malformed ones, so that the others are decoded together and not one by one."""

from __future__ import annotations

import itertools
import json
import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bkspark.pulsar.base64_values import from_base64
from bkspark.pulsar.malformed import MALFORMED, MalformedValues
from bkspark.pulsar.schemas import Schema
from bkspark.pulsar.values import decoder_of, key_value_decoder
from tests.pulsar.native_schemas import native

FIELDS = [
    {"name": "a", "type": "string"},
    {"name": "n", "type": "int"},
    {"name": "d", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}]},
]
RECORD = json.dumps({"type": "record", "name": "R", "fields": FIELDS}).encode()
BIG, LATE = 5_000_000_000, 1 << 62

CASES: list[tuple[Schema, list[bytes | None], list[bytes]]] = [
    (Schema(0, "JSON", RECORD), [b'{"a":"x","n":1}', b'{"a":"y","n":2.0}', None, b"null"],
     [b"{", b"[]", b'{"a":1,"n":1}', b'{"a":"x","n":5000000000}', b'{"a":"x","n":0.5}', b"\xff"]),
    (Schema(0, "AVRO", RECORD), [b"\x02x\x02\x00", b"\x02y\x04\x02\x02\x01", None],
     [b"", b"\xff", b"\x02x\x02\x00\x00"]),
    (Schema(0, "STRING"), [b"a", b"", None], [b"\xff", b"a\xc3"]),
    (Schema(0, "STRING", b"", {"__charset": "UTF-16"}), [b"\0a", b"", None], [b"\0", b"\xd8\0"]),
    (Schema(0, "INT32"), [bytes(4), b"\0\0\0\1", None], [b"", bytes(3), bytes(8)]),
    (Schema(0, "DATE"), [bytes(8), None], [b"", struct.pack(">q", LATE)]),
    (Schema(0, "LOCAL_DATE"), [bytes(8), None], [b"", struct.pack(">q", BIG)]),
    (Schema(0, "TIMESTAMP"), [bytes(8), None], [b"", struct.pack(">q", LATE)]),
    (Schema(0, "INSTANT"), [bytes(12), None], [b"", struct.pack(">qi", 0, -1), struct.pack(">qi", LATE, 0)]),
    (Schema(0, "LOCAL_DATE_TIME"), [bytes(16), None], [struct.pack(">qq", LATE, 0), struct.pack(">qq", 0, LATE)]),
    (native("ManagedLedgerInfo"), [b"", None], [b"\xff\xff", b"\x0a"]),
]  # fmt: skip


def mixed(good: list[Any], bad: list[Any], count: int = 40) -> tuple[list[Any], np.ndarray]:
    """Return values of both kinds, and which of them are bad."""
    chances = random.Random(3)
    is_bad = np.array([chances.random() < 0.4 for _ in range(count)])
    return [chances.choice(bad if each else good) for each in is_bad], is_bad


def left_out_until_good(decode: Callable[[np.ndarray], pa.Array], count: int) -> tuple[pa.Array, np.ndarray, int]:
    """Leave out the values that errors name, until there is no error: the others, their places, and how often."""
    places = np.arange(count)
    for errors in itertools.count():
        try:
            return decode(places), places, errors
        except MalformedValues as error:
            rows = error.rows
        assert len(rows)
        assert (np.diff(rows) > 0).all()
        places = np.delete(places, rows)
    raise AssertionError("unreachable")


@pytest.mark.parametrize(("schema", "good", "bad"), CASES, ids=lambda each: getattr(each, "kind", ""))
def test_all_malformed_values_are_named_in_a_few_looks(
    schema: Schema, good: list[bytes | None], bad: list[bytes]
) -> None:
    decode = decoder_of(schema)
    values, is_bad = mixed(good, bad)
    alone = [decode(pa.array([value], pa.binary()))[0] for value in good]
    for value in bad:
        with pytest.raises(MALFORMED):
            decode(pa.array([value], pa.binary()))
    held = pa.array(values, pa.binary())
    found, places, errors = left_out_until_good(lambda some: decode(held.take(pa.array(some))), len(values))
    assert places.tolist() == np.flatnonzero(~is_bad).tolist()
    assert found.to_pylist() == [alone[good.index(values[place])].as_py() for place in places.tolist()]
    assert errors <= 3


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_malformed_keys_and_values_of_key_value_messages_are_named(encoding: str) -> None:
    schema = Schema(
        0, "KEY_VALUE", properties={"kv.encoding.type": encoding}, key=Schema(0, "STRING"), value=Schema(0, "INT32")
    )
    decode = key_value_decoder(schema, schema)
    pairs = [(b"k", bytes(4)), (None, bytes(4)), (b"k", None), (b"\xff", bytes(4)), (b"k", b"123"), (b"\xff", b"123")]
    wrong = [False, False, False, True, True, True]

    def inline(part: bytes | None) -> bytes:
        return struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part

    if encoding == "INLINE":
        given = [(None, inline(key) + inline(value)) for key, value in pairs]
        given += [(None, body) for body in (b"", b"\0\0\0\1", b"\0\0\0\x09k", inline(b"k") + inline(bytes(4)) + b"x")]
        wrong += [True] * 4
    else:
        given = pairs
    keys, values = (pa.array(part, pa.binary()) for part in zip(*given))
    found, places, errors = left_out_until_good(
        lambda some: decode(values.take(pa.array(some)), keys.take(pa.array(some))), len(given)
    )
    assert places.tolist() == [0, 1, 2]
    assert found.to_pylist() == [{"key": "k", "value": 0}, {"key": None, "value": 0}, {"key": "k", "value": None}]
    assert errors <= 5


def test_keys_that_are_not_base64_are_named() -> None:
    bad = [b"a", b"ab", b"ab c", b"a===", b"=abc", b"ab=c", b"ab-_", b"abc\n"]
    values, is_bad = mixed([b"QUJD", b"QUI=", b"QQ==", b"", None], bad)
    with pytest.raises(MalformedValues, match="not Base64") as raised:
        from_base64(pa.array(values, pa.binary()))
    assert raised.value.rows.tolist() == np.flatnonzero(is_bad).tolist()


def test_error_says_what_is_wrong_with_the_first_malformed_value() -> None:
    decode = decoder_of(Schema(0, "JSON", RECORD))
    values = [b'{"a":"x","n":1}', b'{"a":"x","n":5000000000}', b'{"a":7,"n":1}']
    with pytest.raises(MalformedValues, match="its field 'n' is '5000000000', which cannot be int32") as raised:
        decode(pa.array(values))
    assert raised.value.rows.tolist() == [1, 2]
