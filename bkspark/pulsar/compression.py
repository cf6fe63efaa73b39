"""The five codecs of Pulsar, for payloads and for nodes of its metadata store. PURE.

    0 NONE    as it is
    1 LZ4     a raw block; its size is stored elsewhere
    2 ZLIB    a zlib stream, which Java leaves unfinished (SYNC_FLUSH, no checksum) and C++ finishes
    3 ZSTD    one frame
    4 SNAPPY  a raw block that begins with its size

A wrong size is an error: pyarrow returns as many bytes as requested, and bytes that LZ4 and Snappy did not fill are
uninitialised memory.

A match of LZ4 with offset 0 is damage, but the decoder does not report it: the bytes of such a match are zeros,
whatever the memory contained. To find it, the block must be parsed from its beginning. In Python, this takes 0.3 to
2 µs for a message, where decompressing takes 0.01 to 0.1 µs. Blocks without two zero bytes need no parsing, but each
batch has them in the sizes of its messages. A search for four zero bytes in the output takes 0.1 to 0.5 µs, and finds
them in most binary values. Therefore a block with offset 0 is not refused.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

import crc32c

if TYPE_CHECKING:
    from collections.abc import Callable

NONE, LZ4, ZLIB, ZSTD, SNAPPY = range(5)
NAMES = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")

# The most bytes that one compressed byte can expand to. Data that claim more are refused before memory is allocated.
_RATIO_MAX = {LZ4: 256, ZLIB: 1032, SNAPPY: 64, ZSTD: 65_536}
_SLACK_BYTES = 64

# After a block's last literals, whose token has no match: a match of four bytes, one byte back.
_LZ4_COPY, _LZ4_COPIED_BYTES = b"\x01\x00", 4


def decompress(codec: int, data: memoryview, size: int) -> memoryview:
    """Return the `size` bytes that `data` decompresses to.

    Raises:
        ValueError: unknown codec, damaged data, or another size.
    """
    if codec == NONE:
        return data
    if not 0 < codec < len(NAMES):
        raise ValueError(f"its compression {codec} is unknown")
    if size > _RATIO_MAX[codec] * len(data) + _SLACK_BYTES:
        raise ValueError(f"{len(data)} bytes of {NAMES[codec]} cannot hold the {size} that its metadata say")
    if codec == ZLIB:
        return _inflated(data, size)
    if codec == SNAPPY:
        _check_snappy_size(data, size)
    if size == 0:
        return _nothing(codec, data)
    if codec == LZ4:
        return _of_lz4(data, size)
    # Arrow's buffers have signed bytes.
    return memoryview(_arrow_decompress(codec, data, size)).cast("B")


def _arrow_decompress(codec: int, data: bytes | memoryview, size: int) -> bytes:
    import pyarrow as pa

    try:
        return _decoder(codec)(data, size)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"its {NAMES[codec]} data are damaged or not of {size} bytes: {error}") from None


_DECODERS: dict[int, Callable[[bytes | memoryview, int], bytes]] = {}


def _decoder(codec: int) -> Callable[[bytes | memoryview, int], bytes]:
    if codec not in _DECODERS:
        import pyarrow as pa

        codecs = {LZ4: "lz4_raw", ZSTD: "zstd", SNAPPY: "snappy"}
        made = pa.Codec(codecs[codec])
        _DECODERS[codec] = lambda data, size: made.decompress(data, size)
    return _DECODERS[codec]


def _of_lz4(data: memoryview, size: int) -> memoryview:
    """Return the `size` bytes that a block decompresses to.

    The decoder does not report how many bytes it wrote. Therefore a sequence of known literals is appended to the
    block: their position in the output shows where the block's output ends. The literals differ from block to block,
    because the memory may still contain those of an earlier one.
    """
    known = struct.pack("<IQ", crc32c.crc32c(data), size)
    whole = b"".join((data, _LZ4_COPY, bytes([len(known) << 4]), known))
    found = memoryview(_arrow_decompress(LZ4, whole, size + _LZ4_COPIED_BYTES + len(known))).cast("B")
    if found[size + _LZ4_COPIED_BYTES :] != known:
        raise ValueError(f"its LZ4 block does not hold the {size} bytes that its metadata say")
    return found[:size]


def _nothing(codec: int, data: memoryview) -> memoryview:
    """Return no bytes, which a peer compresses to a few: all of them are known."""
    if codec == LZ4 and bytes(data) not in (b"", b"\0"):
        raise ValueError("its LZ4 block holds bytes where its metadata say none")
    if codec == SNAPPY and len(data) > 1:
        raise ValueError("its SNAPPY data hold bytes where their size says none")
    if codec == ZSTD and len(data):
        _arrow_decompress(ZSTD, data, 0)
    return memoryview(b"")


def _inflated(data: memoryview, size: int) -> memoryview:
    if not len(data):
        if size:
            raise ValueError(f"its ZLIB data are empty where its metadata say {size} bytes")
        return data
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(data, max(1, size))
        # The end of a finished stream, with its checksum, may be unread.
        more = stream.decompress(stream.unconsumed_tail, 1) if len(found) == size else b""
    except zlib.error as error:
        raise ValueError(f"its ZLIB data are damaged: {error}") from None
    if len(found) != size or more or stream.unused_data:
        raise ValueError(f"its ZLIB data do not hold the {size} bytes that its metadata say")
    return memoryview(found)


def _check_snappy_size(data: memoryview, size: int) -> None:
    found = shift = 0
    for octet in data[:5]:
        found |= (octet & 0x7F) << shift
        if octet < 0x80:
            break
        shift += 7
    else:
        raise ValueError("its SNAPPY data do not begin with a size")
    if found != size:
        raise ValueError(f"its SNAPPY data hold {found} bytes where its metadata say {size}")
