"""Entry formats of the command line: what goes in comes out, in any block sizes, and bad input is one clear error."""

from __future__ import annotations

import base64
import io
import json
import random

import pytest

from bkspark.cli import entry_formats
from bkspark.cli.arguments import ENTRY_BYTES_MAX, OUTPUT_FORMATS
from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError


class Trickle(io.BytesIO):
    """A stream whose read1 gives at most `step` bytes, as a pipe may."""

    def __init__(self, data: bytes, step: int) -> None:
        super().__init__(data)
        self._step = step

    def read1(self, size: int = -1) -> bytes:
        return super().read1(min(size, self._step))


def entries_of(data: bytes, entry_format: str, step: int = 1 << 20) -> list[bytes]:
    batches = entry_formats.read_entries(Trickle(data, step), entry_format, "stdin")
    return [entry for batch in batches for entry in batch]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1 << 20])
def test_lines_are_entries_whatever_the_reads_bring(step):
    assert entries_of(b"one\n\nthree\nlast", "lines", step) == [b"one", b"", b"three", b"last"]


def test_final_newline_adds_no_entry_and_empty_input_has_no_entry():
    assert entries_of(b"a\nb\n", "lines") == [b"a", b"b"]
    assert entries_of(b"\n", "lines") == [b""]
    assert entries_of(b"", "lines") == []
    assert entries_of(b"", "length-prefixed") == []


@pytest.mark.parametrize("entry_format", ["lines", "length-prefixed"])
def test_what_was_formatted_is_parsed_back(entry_format):
    generator = random.Random(7)
    lengths = [0, 0, 1, *(generator.randrange(300) for _ in range(500))]
    payloads = [generator.randbytes(length).replace(b"\n", b" ") for length in lengths]
    text = entry_formats.formatter(entry_format)(EntryBatch.of(payloads))
    for step in (5, 64, 1 << 20):
        assert entries_of(text, entry_format, step) == payloads


def test_format_takes_a_slice_of_a_larger_batch():
    batch = EntryBatch.of([b"zero", b"one", b"", b"three"]).slice(1, 4)
    assert entry_formats.format_lines(batch) == b"one\n\nthree\n"
    assert entry_formats.format_length_prefixed(batch) == b"\0\0\0\3one\0\0\0\0\0\0\0\5three"


def test_empty_batch_formats_to_nothing():
    batch = EntryBatch.of([])
    assert [entry_formats.formatter(name)(batch) for name in OUTPUT_FORMATS] == [b""] * len(OUTPUT_FORMATS)


def test_ids_and_hex_show_entries_of_any_bytes():
    batch = EntryBatch.of([b"\xff\n", b""], 5, first_entry=7)
    assert entry_formats.format_ids(batch) == b"ledger 5 entry 7: 2 bytes\nledger 5 entry 8: 0 bytes\n"
    assert entry_formats.format_hex(batch) == b"ff0a\n\n"


def test_json_lines_carry_entry_id_and_base64():
    lines = entry_formats.format_json(EntryBatch.of([b"\xff\n", b""], 5, first_entry=7)).splitlines()
    records = [json.loads(line) for line in lines]
    assert [(r["entry"], base64.b64decode(r["value"])) for r in records] == [(7, b"\xff\n"), (8, b"")]


def test_length_prefixed_input_cut_inside_an_entry_is_refused_with_its_number():
    whole = entry_formats.format_length_prefixed(EntryBatch.of([b"first", b"second"]))
    for end in range(len(whole)):
        if end in (0, 9):
            continue
        with pytest.raises(ConfigurationError, match=r"bytes into entry [01];"):
            entries_of(whole[:end], "length-prefixed")


@pytest.mark.parametrize("head", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x00\x60\x00\x00"])
def test_length_above_the_limit_is_refused_before_it_is_read(head):
    with pytest.raises(ConfigurationError, match="entry 0 is larger"):
        entries_of(head + b"x" * 100, "length-prefixed")


def test_line_above_the_limit_is_refused_within_bounded_memory():
    with pytest.raises(ConfigurationError, match="stdin: entry 1 is larger"):
        entries_of(b"short\n" + b"x" * (ENTRY_BYTES_MAX + 1) + b"\n", "lines")
