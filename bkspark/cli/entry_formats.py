"""Entries as byte streams, in and out, a batch at a time.

    lines            one entry a line; the newline is not part of it. A last line without newline is an entry.
    length-prefixed  u32 big-endian length, then that many bytes; the only format for entries that hold newlines
    json             out only: one `{"entry": id, "value": base64}` a line
    hex              out only: each payload in hexadecimal digits, one a line
    ids              out only: `ledger 5 entry 0: 100 bytes` a line, without the payload

An entry that is encrypted with a key that the client lacks is written as a line `{"entry": id, "value": base64 of the
stored bytes, "encryptedWith": key id}`, and in format lines as one that says so. In format length-prefixed it is an
error, because a program would take the stored bytes for data.

Lines and length-prefixed entries are parsed and formatted without a Python object for each entry: separators are found,
removed and inserted with arrays. Memory is bounded by the block size and the largest entry.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import BinaryIO

import numpy as np

from bkspark.cli.arguments import ENTRY_BYTES_MAX
from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError, DecryptionFailed, ProtocolError
from bkspark.wire.framing import LENGTH_BYTES, scan_frames

BLOCK_BYTES = 1 << 20
_NEWLINE = 10


def read_entries(source: BinaryIO, entry_format: str, name: str) -> Iterator[EntryBatch]:
    """Yield all entries of a byte stream in order, as batches of about BLOCK_BYTES.

    Args:
        source: read with `read1`, so entries of a pipe come as soon as they are there.
        entry_format: lines or length-prefixed.
        name: what messages call the source.

    Raises:
        ConfigurationError: an entry is above ENTRY_BYTES_MAX, or the stream ends inside a length-prefixed entry.
    """
    take = _take_lines if entry_format == "lines" else _take_length_prefixed
    pending = b""
    taken_count = 0
    while True:
        # Files and stdin have `read1`; typing.BinaryIO does not name it.
        block = source.read1(BLOCK_BYTES)  # type: ignore[attr-defined]
        # Joining copies the rest of the last block, which is at most one entry: complete ones were removed.
        pending = pending + block if pending else block
        batch, consumed = take(pending, taken_count, name, ended=not block)
        taken_count += len(batch)
        if len(batch):
            yield batch
        pending = pending[consumed:]
        if not block:
            return
        if len(pending) > ENTRY_BYTES_MAX + LENGTH_BYTES:
            raise _too_large(name, taken_count)


def _take_lines(data: bytes, taken_count: int, name: str, *, ended: bool) -> tuple[EntryBatch, int]:
    """Return the complete lines of `data` and how many bytes they took."""
    octets = np.frombuffer(data, np.uint8)
    newlines = np.flatnonzero(octets == _NEWLINE)
    consumed = len(data) if ended else (int(newlines[-1]) + 1 if len(newlines) else 0)
    # Entry i ends at its newline's offset, less the number of newlines before it, which are removed.
    ends = newlines - np.arange(len(newlines))
    if ended and consumed and data[-1] != _NEWLINE:
        ends = np.append(ends, consumed - len(newlines))
    offsets = np.concatenate((np.zeros(1, np.int64), ends.astype(np.int64)))
    _check_sizes(offsets, taken_count, name)
    taken = octets[:consumed]
    return EntryBatch(taken[taken != _NEWLINE].tobytes(), offsets), consumed


def _take_length_prefixed(data: bytes, taken_count: int, name: str, *, ended: bool) -> tuple[EntryBatch, int]:
    """Return the complete length-prefixed entries of `data` and how many bytes they took."""
    try:
        table = scan_frames(data, len(data), ENTRY_BYTES_MAX)
    except ProtocolError:
        # An unsigned length of 2 GiB and more reads as negative there; it is too large either way.
        raise _too_large(name, taken_count) from None
    if ended and table.consumed != len(data):
        raise ConfigurationError(
            f"{name}: the input ends {len(data) - table.consumed} bytes into entry {taken_count + len(table)}; "
            f"an entry is a u32 big-endian length and that many bytes (--format length-prefixed)"
        )
    offsets = np.zeros(len(table) + 1, np.int64)
    np.cumsum(table.ends - table.starts, out=offsets[1:])
    keep = np.ones(table.consumed, bool)
    for i in range(1, LENGTH_BYTES + 1):
        keep[table.starts - i] = False
    return EntryBatch(np.frombuffer(data, np.uint8, table.consumed)[keep].tobytes(), offsets), table.consumed


def _check_sizes(offsets: np.ndarray, taken_count: int, name: str) -> None:
    too_large = np.diff(offsets) > ENTRY_BYTES_MAX
    if too_large.any():
        raise _too_large(name, taken_count + int(np.argmax(too_large)))


def _too_large(name: str, entry: int) -> ConfigurationError:
    return ConfigurationError(f"{name}: entry {entry} is larger than {ENTRY_BYTES_MAX} bytes; split it")


def formatter(entry_format: str) -> Callable[[EntryBatch], bytes]:
    """Return the function that turns a batch into the bytes of one of `OUTPUT_FORMATS`."""
    return {
        "lines": format_lines,
        "length-prefixed": format_length_prefixed,
        "json": format_json,
        "hex": format_hex,
        "ids": format_ids,
    }[entry_format]


def format_lines(batch: EntryBatch) -> bytes:
    """Return each payload followed by a newline; for an encrypted entry, a line that says so."""
    if batch.sealed_with is not None:
        sizes = np.diff(batch.offsets).tolist()
        return "".join(f"(encrypted with key {batch.sealed_with!r}, {size} bytes)\n" for size in sizes).encode()
    ends = batch.offsets[1:] - batch.offsets[0]
    return _with_gaps(batch, gaps_at=ends, gap=np.array([_NEWLINE], np.uint8))


def format_length_prefixed(batch: EntryBatch) -> bytes:
    """Return each payload after its u32 big-endian length. Raises DecryptionFailed if the payloads are encrypted."""
    if batch.sealed_with is not None:
        raise DecryptionFailed(
            f"ledger {batch.ledger_id} is encrypted with key {batch.sealed_with!r}: give --encryption-key-file, or "
            "--format json, which marks encrypted entries",
            ledger_id=batch.ledger_id,
        )
    starts = batch.offsets[:-1] - batch.offsets[0]
    lengths = np.diff(batch.offsets).astype(">u4").view(np.uint8)
    return _with_gaps(batch, gaps_at=starts, gap=lengths.reshape(len(batch), LENGTH_BYTES))


def format_json(batch: EntryBatch) -> bytes:
    """Return one JSON object a line for each entry, the payload in base64."""
    return b"".join(
        json.dumps({"entry": batch.first_entry + i, **json_value(value, batch)}).encode() + b"\n"
        for i, value in enumerate(batch)
    )


def format_hex(batch: EntryBatch) -> bytes:
    """Return each payload in hexadecimal digits, as it is stored, and a newline."""
    return "".join(f"{value.hex()}\n" for value in map(bytes, batch)).encode()


def format_ids(batch: EntryBatch) -> bytes:
    """Return a line for each entry with its ids and its size."""
    sizes = np.diff(batch.offsets).tolist()
    lines = (
        f"ledger {batch.ledger_id} entry {entry}: {size} bytes\n" for entry, size in enumerate(sizes, batch.first_entry)
    )
    return "".join(lines).encode()


def json_value(value: bytes, batch: EntryBatch) -> dict[str, str]:
    """Return the keys of a JSON object that show a payload of a batch."""
    shown = {"value": base64.b64encode(value).decode()}
    return shown if batch.sealed_with is None else {**shown, "encryptedWith": batch.sealed_with}


def _with_gaps(batch: EntryBatch, gaps_at: np.ndarray, gap: np.ndarray) -> bytes:
    """Return the payloads with `gap` put in before payload byte gaps_at[i], for each i."""
    width = gap.shape[-1]
    payload = np.frombuffer(batch.buffer, np.uint8, batch.payload_bytes, int(batch.offsets[0]))
    out = np.empty(len(payload) + width * len(batch), np.uint8)
    # Gap i comes after i earlier gaps.
    at = (gaps_at + np.arange(len(batch)) * width)[:, None] + np.arange(width)
    is_payload = np.ones(len(out), bool)
    is_payload[at] = False
    out[at] = gap
    out[is_payload] = payload
    return out.tobytes()
