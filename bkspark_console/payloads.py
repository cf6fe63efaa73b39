"""Entries as text for people: text, JSON, MessagePack, Arrow or hexadecimal. Limited, and safe for any bytes. PURE.

A client of the cluster writes an entry, so it may contain anything. A payload that is large, deeply nested, or not what
it claims to be is shown as text or hexadecimal.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack
import pyarrow as pa

from bkspark.arrow_sizes import uncompressed_bytes
from bkspark.entries import EntryBatch

FORMATS = ("auto", "text", "json", "msgpack", "arrow", "hex")
CHARACTERS_MAX = 4_000
PARSED_BYTES_MAX = 256 * 1024
"""A larger payload is not parsed; only its beginning is shown."""
ARROW_BYTES_MAX = 4 << 20
"""The most bytes of one Arrow batch after decompression."""
ARROW_ROWS_SHOWN = 20
_HEX_BYTES_SHOWN = 1_024
_HEX_WIDTH = 16


@dataclass(frozen=True, slots=True)
class ShownPayload:
    """A payload as text. format: its format. is_cut: whether a part of it is not shown."""

    format: str
    text: str
    is_cut: bool = False


class _NotThis(ValueError):
    """The payload does not have the format."""


def shown(payload: bytes, wanted: str = "auto") -> ShownPayload:
    """Return a payload in one of FORMATS. `auto` takes the first that fits; one that does not fit becomes `hex`."""
    tries = ("arrow", "json", "text", "msgpack") if wanted == "auto" else (wanted,)
    for name in tries:
        try:
            text, is_cut = _READERS[name](payload)
        except _NotThis:
            continue
        is_cut = is_cut or len(text) > CHARACTERS_MAX
        return ShownPayload(name, visible(text[:CHARACTERS_MAX]), is_cut)
    text, is_cut = _hex(payload)
    return ShownPayload("hex", text, is_cut)


def shown_in(batch: EntryBatch, row: int, wanted: str = "auto") -> ShownPayload:
    """Return a payload of a batch as `shown`. For an encrypted payload, return the name of its key instead."""
    if batch.sealed_with is not None:
        return ShownPayload("encrypted", f"encrypted with key {batch.sealed_with!r}")
    return shown(batch[row], wanted)


def visible(text: str) -> str:
    """Return a text with visible characters only, because an override of the writing direction could disguise it."""
    return "".join(each if each.isprintable() or each in "\t\n\r" else f"\\u{ord(each):04x}" for each in text)


def _text(payload: bytes) -> tuple[str, bool]:
    part = payload[: 4 * CHARACTERS_MAX]
    try:
        text = part.decode()
    except UnicodeDecodeError as error:
        # The cut may be inside a character.
        if len(part) == len(payload) or error.start < len(part) - 4:
            raise _NotThis from None
        text = part[: error.start].decode()
    if any(not (each.isprintable() or each in "\t\n\r") for each in text):
        raise _NotThis
    return text, len(part) < len(payload)


def _json(payload: bytes) -> tuple[str, bool]:
    if len(payload) > PARSED_BYTES_MAX or (
        payload[:1].strip() not in (b"{", b"[") and payload.lstrip()[:1] not in (b"{", b"[")
    ):
        raise _NotThis
    try:
        return json.dumps(json.loads(payload), indent=2, ensure_ascii=False), False
    except (ValueError, RecursionError):
        raise _NotThis from None


def _msgpack(payload: bytes) -> tuple[str, bool]:
    if len(payload) > PARSED_BYTES_MAX:
        raise _NotThis
    try:
        value = msgpack.unpackb(payload, strict_map_key=False)
        if not isinstance(value, (dict, list)):
            # Nearly every byte is a number in MessagePack, so a number proves nothing.
            raise _NotThis
        return json.dumps(_plain(value), indent=2, ensure_ascii=False), False
    except _NotThis:
        raise
    except Exception:
        # For damaged bytes msgpack raises its own errors, Python's and datetime's.
        raise _NotThis from None


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return f"0x{value[:64].hex()}{'…' if len(value) > 64 else ''}"
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


def _hex(payload: bytes) -> tuple[str, bool]:
    lines = []
    for at in range(0, min(len(payload), _HEX_BYTES_SHOWN), _HEX_WIDTH):
        part = payload[at : at + _HEX_WIDTH]
        letters = "".join(chr(each) if 32 <= each < 127 else "." for each in part)
        lines.append(f"{at:06x}  {part.hex(' '):<47}  {letters}")
    return "\n".join(lines), len(payload) > _HEX_BYTES_SHOWN


def _arrow(payload: bytes) -> tuple[str, bool]:
    if payload[:4] != b"\xff\xff\xff\xff":
        raise _NotThis
    try:
        if sum(map(uncompressed_bytes, pa.ipc.MessageReader.open_stream(payload))) > ARROW_BYTES_MAX:
            schema = pa.ipc.open_stream(payload).schema
            return f"{schema}\n\n(its rows are larger than {ARROW_BYTES_MAX} bytes)", True
        lines, count = [], 0
        with pa.ipc.open_stream(payload) as reader:
            schema = reader.schema
            for batch in reader:
                # Offsets and lengths of hostile bytes may point outside the payload.
                batch.validate(full=True)
                for row in batch.slice(0, max(0, ARROW_ROWS_SHOWN - count)).to_pylist():
                    lines.append(json.dumps(_plain(row), ensure_ascii=False))
                count += batch.num_rows
        head = ", ".join(f"{field.name}: {field.type}" for field in schema)
        return f"{count} rows of {head}\n" + "\n".join(lines), count > ARROW_ROWS_SHOWN
    except Exception:
        # pyarrow raises its own errors, and flatbuffers of hostile bytes cause struct's and Python's.
        raise _NotThis from None


_READERS: dict[str, Callable[[bytes], tuple[str, bool]]] = {
    "text": _text,
    "json": _json,
    "msgpack": _msgpack,
    "arrow": _arrow,
    "hex": _hex,
}
