"""Entries as text: each format, and bytes that are not what they say."""

from __future__ import annotations

import json
import struct

import msgpack
import numpy as np
import pyarrow as pa
import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark_console.ledger_index import custom_of, owner_of
from bkspark_console.payloads import ARROW_BYTES_MAX, CHARACTERS_MAX, FORMATS, shown


def _arrow(table: pa.Table, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


TABLE = pa.table({"city": ["Bern", None], "n": [1, 2]})


@pytest.mark.parametrize(
    ("payload", "name", "part"),
    [
        (b"plain text", "text", "plain text"),
        ("Grüße".encode(), "text", "Grüße"),
        (b'{"a": [1, 2]}', "json", '"a": ['),
        (msgpack.packb({"a": 1, "b": b"\x00\xff"}), "msgpack", "0x00ff"),
        (_arrow(TABLE), "arrow", "2 rows of city: string, n: int64"),
        (_arrow(TABLE, compression="zstd"), "arrow", "Bern"),
        (bytes(range(256)), "hex", "00 01 02"),
        (b"", "text", ""),
        (b"\x00", "hex", "00"),
    ],
)
def test_the_format_of_a_payload_is_found(payload: bytes, name: str, part: str) -> None:
    found = shown(payload)
    assert (found.format, part in found.text) == (name, True), found


@pytest.mark.parametrize("wanted", FORMATS)
def test_a_payload_that_has_not_the_wanted_format_is_shown_in_hexadecimal(wanted: str) -> None:
    assert shown(b"\xc1\x00\xff", wanted).format == "hex"


def test_long_payloads_are_cut() -> None:
    for payload in (
        b"x" * 10_000_000,
        b'{"a": "' + b"x" * 100_000 + b'"}',
        "ü".encode() * 1_000_000,
        b"\xff" * 100_000,
    ):
        found = shown(payload)
        assert found.is_cut
        assert len(found.text) <= max(CHARACTERS_MAX, 6_000)


def test_text_with_control_characters_is_not_shown_as_text() -> None:
    """An escape sequence or a right-to-left override must not disguise what an entry says."""
    assert shown(b"a\x1b[2Jb").format == "hex"
    assert shown("abc\u202edef".encode()).format == "hex"
    assert "\u202e" not in shown(b'{"a": "\\u202e"}').text


def test_nested_payloads_do_not_exhaust_the_stack() -> None:
    assert shown(b"[" * 200_000).format == "text"
    assert shown(b"\x91" * 200_000 + b"\x01").format == "hex"


def test_a_compressed_batch_that_claims_to_be_large_is_not_decompressed() -> None:
    rows = 4 * ARROW_BYTES_MAX // 8
    payload = _arrow(pa.table({"zeros": np.zeros(rows, np.int64)}), compression="zstd")
    assert len(payload) < ARROW_BYTES_MAX // 100
    found = shown(payload)
    assert (found.format, found.is_cut) == ("arrow", True)
    assert "its rows are larger" in found.text


def test_hostile_arrow_bytes_give_text_or_hexadecimal_but_no_error() -> None:
    generator = np.random.default_rng(5)
    for original in (_arrow(TABLE), _arrow(TABLE, compression="lz4")):
        for _ in range(300):
            payload = bytearray(original)
            for at in generator.integers(4, len(payload), 3).tolist():
                payload[at] = int(generator.integers(0, 256))
            assert shown(bytes(payload)).text is not None
        for end in range(0, len(original), 7):
            assert shown(original[:end]).format in FORMATS
    assert shown(b"\xff\xff\xff\xff" + struct.pack("<i", 1 << 30)).format == "hex"


def test_json_of_numbers_that_are_not_finite_stays_text() -> None:
    found = shown(b'{"a": 1e999, "b": NaN}')
    assert found.format == "json"
    assert json.loads(found.text)["a"] == float("inf")


def test_custom_metadata_of_a_ledger_have_visible_characters_only() -> None:
    """A writer chooses them: an override of the writing direction made an owner look like another one."""
    odd = {"application": "pay\u202erolls".encode(), "\u202ename": b"\x1b[31m\xff"}
    metadata = LedgerMetadata(1, 1, 1, (Fragment(0, ("b:1",)),), custom_metadata=odd)
    assert custom_of(metadata) == [("application", "pay\\u202erolls"), ("\\u202ename", "\\u001b[31m\ufffd")]
    assert owner_of(metadata) == "pay\\u202erolls"
