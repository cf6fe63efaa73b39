"""The index of `DbLedgerStorage`: keys and values in an embedded key-value store. Version 1, all integers big endian.

`positions/` in `current/` of the first ledger directory is a RocksDB database, which checks its own checksums:

    key                              value
    "H", u64 ledger id               the header: one slot of `formats.index`, version 2, without the zeros at its end
    "P", u64 ledger id, u64 n        i64 positions of entries 256 n, 256 n + 1, ... up to the last one held there;
                                     log id << 32 | offset, as in `formats.index`; 0: not held
    "N"                              u64 commit number: how often this index was made durable

The file `positions.commit` beside it, which is written after each of these commits, says which commit the database must
have reached:

    offset  size  field
    0       4     magic "BKSN"
    4       4     i32 version, 1
    8       8     u64 commit number
    16      4     u32 CRC32C of bytes 0 .. 15

A database with a lower number than this file, or without a number, has lost durable data. A crash between the two
writes leaves a higher number. An unreadable file proves nothing: the next commit replaces it.
"""

from __future__ import annotations

import struct

import numpy as np
from crc32c import crc32c

from bookie_service.formats.index import POSITION_BYTES, SLOT_BYTES, LedgerHeader, decode_header, encode_slot

VERSION = 1
DIRECTORY_NAME = "positions"
COMMIT_SUFFIX = ".commit"
COMMIT_NAME = DIRECTORY_NAME + COMMIT_SUFFIX
COMMIT_KEY = b"N"
ENTRIES_PER_BLOCK = 256
HEADERS = (b"H", b"I")
"""The range of keys that has all headers: its first key, and its end."""

_SLOT_VERSION = 2
_LEDGER_KEY = struct.Struct(">cQ")
_BLOCK_KEY = struct.Struct(">cQQ")
_NUMBER = struct.Struct(">Q")
_COMMIT = struct.Struct(">4siQ")
_CRC = struct.Struct(">I")
_MAGIC = b"BKSN"


def header_key(ledger_id: int) -> bytes:
    return _LEDGER_KEY.pack(b"H", ledger_id)


def block_key(ledger_id: int, block: int) -> bytes:
    """Return the key of the positions of entries from `block * ENTRIES_PER_BLOCK` on."""
    return _BLOCK_KEY.pack(b"P", ledger_id, block)


def blocks_of(ledger_id: int) -> tuple[bytes, bytes]:
    """Return the range of keys that has all positions of a ledger: its first key, and its end."""
    return _LEDGER_KEY.pack(b"P", ledger_id), _LEDGER_KEY.pack(b"P", ledger_id + 1)


def block_number(key: bytes) -> int:
    """Return the number of the block that a key of positions names."""
    return int(_BLOCK_KEY.unpack(key)[2])


def ledger_ids(header_keys: list[bytes]) -> np.ndarray:
    """Return the ledgers that keys of headers name, int64."""
    octets = np.frombuffer(b"".join(header_keys), np.uint8).reshape(-1, _LEDGER_KEY.size)
    return octets[:, 1:].copy().view(">u8").ravel().astype(np.int64)


def encode_header(header: LedgerHeader) -> bytes:
    return encode_slot(header, _SLOT_VERSION).rstrip(b"\0")


def decode_stored_header(value: bytes, ledger_id: int) -> LedgerHeader | None:
    """Return the header; None: it fails its checksum.

    Raises:
        ValueError: it has a version that this code does not read.
    """
    return decode_header(value.ljust(SLOT_BYTES, b"\0"), ledger_id)


def encode_block(positions: np.ndarray) -> bytes:
    """Return the value for the positions of a block, int64, from its first entry on. Any of them may be 0."""
    held = np.flatnonzero(positions)
    count = int(held[-1]) + 1 if len(held) else 0
    return positions[:count].astype(">i8").tobytes()


def decode_block(value: bytes) -> np.ndarray:
    """Return the positions from the block's first entry to the last held one, int64."""
    return np.frombuffer(value, ">i8", len(value) // POSITION_BYTES).astype(np.int64)


def encode_commit_number(number: int) -> bytes:
    return _NUMBER.pack(number)


def decode_commit_number(value: bytes | None) -> int:
    """Return the number in a store; 0: there is none."""
    return 0 if value is None else int(_NUMBER.unpack(value)[0])


def encode_commit(number: int) -> bytes:
    """Return the file that says which commit the store must have reached."""
    head = _COMMIT.pack(_MAGIC, VERSION, number)
    return head + _CRC.pack(crc32c(head))


def decode_commit(data: bytes) -> int | None:
    """Return the commit number; None: the file fails its checksum.

    Raises:
        ValueError: the file is whole but of a version that this code does not read.
    """
    if len(data) != _COMMIT.size + _CRC.size or data[:4] != _MAGIC:
        return None
    _, version, number = _COMMIT.unpack_from(data)
    if _CRC.unpack_from(data, _COMMIT.size)[0] != crc32c(data[: _COMMIT.size]):
        return None
    if version != VERSION:
        raise ValueError(f"version {version}, this bookie reads {VERSION}: run the bookie that wrote it")
    return int(number)
