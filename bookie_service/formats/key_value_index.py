"""The index of `DbLedgerStorage`: keys and values in embedded key-value stores. All integers big endian.

There is one store for each ledger directory, or one store for all in the first directory. The store of a directory is
`positions/` in its `current/`, a RocksDB database, which checks its own checksums:

    key                              value
    "H", u64 ledger id               the header: one slot of `formats.index`, version 2, without the zeros at its end
    "P", u64 ledger id, u64 n        i64 positions of entries 256 n, 256 n + 1, ... up to the last one held there;
                                     log id << 32 | offset, as in `formats.index`; 0: not held
    "N"                              u64 commit number: how often this index was made durable; in one of several stores
                                     also u8 n and u8 number of the directory, as in the file of version 2

The file `positions.commit` beside it, which is written after each of these commits, says which commit the database must
have reached. Version 1, one store for all ledgers:

    offset  size  field
    0       4     magic "BKSN"
    4       4     i32 version, 1
    8       8     u64 commit number
    16      4     u32 CRC32C of bytes 0 .. 15

Version 2, one store for each of n ledger directories. Directory number (ledger id mod n) has everything of a ledger:

    offset  size  field
    0       4     magic "BKSN"
    4       4     i32 version, 2
    8       1     u8 n, from 2 to 255
    9       1     u8 number of this directory, from 0
    10      1     u8 1: the stores are being created, and none of them has rows; otherwise 0
    11      5     u40 commit number
    16      4     u32 CRC32C of bytes 0 .. 15

Both have one size, because a bookie that reads only version 1 refuses a whole file of this size with another version,
and ignores a file of another size.

A database with a lower number than this file, or without a number, has lost durable data. A crash between the two
writes leaves a higher number. An unreadable file of version 1 proves nothing: the next commit replaces it. An
unreadable file beside files of version 2 is refused. If no file can be read, the database says which one of how many
stores it is. Only while the stores are being created it may not say it yet.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from crc32c import crc32c

from bookie_service.formats.index import POSITION_BYTES, SLOT_BYTES, LedgerHeader, decode_header, encode_slot

VERSION = 1
SPLIT_VERSION = 2
STORES_MAX = 255
"""The maximum number of stores; a bookie with more ledger directories has one store."""
DIRECTORY_NAME = "positions"
COMMIT_SUFFIX = ".commit"
COMMIT_NAME = DIRECTORY_NAME + COMMIT_SUFFIX
COMMIT_KEY = b"N"
ENTRIES_PER_BLOCK = 256
HEADERS = (b"H", b"I")
"""The range of keys that has all headers: its first key, and its end."""

_SLOT_VERSION = 2
_LEDGER_KEY = struct.Struct(">cQ")
LEDGER_KEY_BYTES = _LEDGER_KEY.size
"""How many bytes a key begins with that say its kind and its ledger."""
_BLOCK_KEY = struct.Struct(">cQQ")
_NUMBER = struct.Struct(">Q")
_SPLIT_NUMBER = struct.Struct(">QBB")
_COMMIT = struct.Struct(">4siQ")
_SPLIT_COMMIT = struct.Struct(">4siBBBBI")
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


@dataclass(frozen=True, slots=True)
class StoreCommit:
    """What the file beside a store says.

    number: the commit that the store must have reached.
    stores: how many stores the bookie has; 1: one store for all ledgers.
    home: the number of the directory that has this store.
    is_being_created: no store has rows yet.
    """

    number: int
    stores: int = 1
    home: int = 0
    is_being_created: bool = False


def encode_stored_commit(commit: StoreCommit) -> bytes:
    """Return what a store has of a commit itself."""
    if commit.stores == 1:
        return _NUMBER.pack(commit.number)
    return _SPLIT_NUMBER.pack(commit.number, commit.stores, commit.home)


def decode_stored_commit(value: bytes) -> StoreCommit:
    """Return what a store has of its last commit.

    Raises:
        ValueError: it has another size.
    """
    if len(value) == _NUMBER.size:
        return StoreCommit(*_NUMBER.unpack(value))
    if len(value) == _SPLIT_NUMBER.size:
        return StoreCommit(*_SPLIT_NUMBER.unpack(value))
    raise ValueError(f"a commit number of {len(value)} bytes: run the bookie that wrote it")


def encode_commit(number: int) -> bytes:
    """Return the file beside the store of a bookie that has one store for all ledgers."""
    return _sealed(_COMMIT.pack(_MAGIC, VERSION, number))


def encode_store_commit(commit: StoreCommit) -> bytes:
    """Return the file beside one of several stores."""
    high, low = divmod(commit.number, 1 << 32)
    flag = int(commit.is_being_created)
    return _sealed(_SPLIT_COMMIT.pack(_MAGIC, SPLIT_VERSION, commit.stores, commit.home, flag, high, low))


def _sealed(head: bytes) -> bytes:
    return head + _CRC.pack(crc32c(head))


def decode_commit(data: bytes) -> int | None:
    """Return the commit number of the only store; None: the file fails its checksum.

    Raises:
        ValueError: the file is whole but of another version.
    """
    version = _version(data)
    if version is None:
        return None
    if version != VERSION:
        raise _unknown(version, VERSION)
    return int(_COMMIT.unpack_from(data)[2])


def decode_store_commit(data: bytes) -> StoreCommit | None:
    """Return what the file of any version says; None: the file fails its checksum.

    Raises:
        ValueError: the file is whole but of a version that this code does not read, or has impossible numbers.
    """
    version = _version(data)
    if version is None or version == VERSION:
        number = decode_commit(data)
        return None if number is None else StoreCommit(number)
    if version != SPLIT_VERSION:
        raise _unknown(version, SPLIT_VERSION)
    _, _, stores, home, flag, high, low = _SPLIT_COMMIT.unpack_from(data)
    if stores < 2 or home >= stores or flag > 1:
        raise ValueError(f"version {version} with store {home} of {stores} and flag {flag}, which cannot be")
    return StoreCommit((high << 32) + low, stores, home, bool(flag))


def _version(data: bytes) -> int | None:
    if len(data) != _COMMIT.size + _CRC.size or data[:4] != _MAGIC:
        return None
    if _CRC.unpack_from(data, _COMMIT.size)[0] != crc32c(data[: _COMMIT.size]):
        return None
    return int(_COMMIT.unpack_from(data)[1])


def _unknown(version: int, read: int) -> ValueError:
    return ValueError(f"version {version}, this bookie reads {read}: run the bookie that wrote it")
