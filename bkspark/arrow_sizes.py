"""Sizes of Arrow IPC messages after decompression, found without decompressing anything. PURE.

A few bytes of LZ4 or Zstandard can expand to gigabytes, and Arrow allocates whatever a message claims. A compressed
buffer of a message's body begins with its uncompressed size:

    i64 size | compressed bytes          size -1: the bytes are not compressed

The message's header, a flatbuffer, says where the buffers are. pyarrow does not offer its content.
"""

from __future__ import annotations

import struct
from typing import Any

# Numbers of fields, and the sizes of numbers, in Arrow's Message.fbs.
_MESSAGE_HEADER, _DICTIONARY_DATA, _BATCH_BUFFERS, _BATCH_COMPRESSION = 2, 1, 2, 3
_BUFFER = struct.Struct("<qq")
"""Where a buffer is in the body, and how long it is."""
_SIZE = struct.Struct("<q")


def uncompressed_bytes(message: Any) -> int:
    """Return how many bytes the body of a pyarrow message takes after decompression, as the message claims.

    Arrow refuses a body whose claims are wrong.

    Raises:
        ValueError: the message is damaged.
    """
    if message.body is None:
        return 0
    if message.type not in ("record batch", "dictionary"):
        return int(message.body.size)
    try:
        return _batch_bytes(message)
    except (struct.error, IndexError):
        raise ValueError("its Arrow message is damaged") from None


def _batch_bytes(message: Any) -> int:
    data = message.metadata.to_pybytes()
    batch = _Table(data, struct.unpack_from("<I", data)[0]).child(_MESSAGE_HEADER)
    if message.type == "dictionary":
        batch = batch.child(_DICTIONARY_DATA)
    if batch.at(_BATCH_COMPRESSION) is None:
        return int(message.body.size)
    start, count = batch.vector(_BATCH_BUFFERS)
    end = start + count * _BUFFER.size
    if end > len(data):
        raise IndexError
    total = 0
    body = memoryview(message.body)
    for offset, length in _BUFFER.iter_unpack(data[start:end]):
        if length:
            claim = _SIZE.unpack_from(body, offset)[0]
            total += length if claim < 0 else claim
    return total


class _Table:
    """A table of a flatbuffer. Fields have numbers."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        """The whole message, and (`_position`) where the table begins in it."""
        self._position = position
        self._fields = position - struct.unpack_from("<i", data, position)[0]

    def at(self, field: int) -> int | None:
        """Return where a field is; None: it is missing."""
        size = struct.unpack_from("<H", self._data, self._fields)[0]
        entry = 4 + 2 * field
        offset = struct.unpack_from("<H", self._data, self._fields + entry)[0] if entry < size else 0
        return self._position + offset if offset else None

    def child(self, field: int) -> _Table:
        at = self.at(field)
        if at is None:
            raise IndexError
        return _Table(self._data, at + struct.unpack_from("<I", self._data, at)[0])

    def vector(self, field: int) -> tuple[int, int]:
        """Return (where the items of a vector are, how many there are)."""
        at = self.at(field)
        if at is None:
            return 0, 0
        start = at + struct.unpack_from("<I", self._data, at)[0]
        return start + 4, struct.unpack_from("<I", self._data, start)[0]
