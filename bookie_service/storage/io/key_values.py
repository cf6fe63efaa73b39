"""The interface of an embedded key-value store, with all guarantees that the bookie relies on.

* Keys are ordered as bytes. A call of `write` is visible at once and atomic: a crash keeps all or nothing of it.
* After a crash the store has the calls up to some moment, in order. After `sync` these are all calls before it.
* The contents of a newly opened store are durable.
* Damage to its files is noticed when the damaged part is read, or when the store is opened. A complete older state of
  the store is not noticed; `key_value_index` detects it.
* An OSError of `write` or `sync` for lack of space undoes nothing: visible data stays visible, and the failed call may
  be visible or not. It is enough to repeat the call when there is space again.
* Any number of threads may read while one writes.

`rocks` is the store; the crash campaigns run on a model of exactly these guarantees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from bkspark.options import BYTES_MAX, COUNT_MAX, bounded, check


@dataclass(frozen=True, slots=True)
class KeyValueOptions:
    """Sizes in bytes; only RocksDB uses the last two."""

    cache_bytes: int = bounded(16 * 1024 * 1024, 1, BYTES_MAX, "bytes")
    """Decompressed blocks of the database that stay in memory."""
    write_buffer_bytes: int = bounded(16 * 1024 * 1024, 1, BYTES_MAX, "bytes")
    """Changes that are gathered in memory before they become a sorted file."""
    open_files_max: int = bounded(1000, 1, COUNT_MAX)
    """Files of the database that stay open."""
    block_bytes: int = bounded(64 * 1024, 1024, 64 * 1024 * 1024, "bytes")
    """How much a look-up reads from disk."""
    bloom_bits_per_key: int = bounded(10, 0, 100)
    """Memory for filters that say a key is in no file; 0: no filters."""

    def __post_init__(self) -> None:
        check(self)


Changes = tuple[Sequence[tuple[bytes, bytes]], Sequence[tuple[bytes, bytes]]]
"""The arguments of one call of `write`: keys with values, and removed ranges [first, end), which are removed first."""


class KeyValues(Protocol):
    """An ordered map of bytes. Each method raises OSError if the disk fails, and StorageDamaged if data is damaged."""

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys; None for a missing key."""

    def last(self, first: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """Return the highest key in [first, end), and its value; None: there is no key."""

    def keys(self, first: bytes, end: bytes) -> Iterator[bytes]:
        """Yield the keys in [first, end), ascending."""

    def key_count(self) -> int:
        """Return about how many keys there are."""

    def write(self, puts: Sequence[tuple[bytes, bytes]], removed: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Remove the ranges [first, end), then set keys. Not durable before `sync`. After an OSError no part of it is
        done, or will be."""

    def sync(self) -> None:
        """Make everything that was written durable."""

    def unsynced(self) -> Sequence[Changes]:
        """Return the calls of `write`, in order, that may not be durable. For any thread, beside a `sync`, too."""

    def forget_removed(self, ranges: Sequence[tuple[bytes, bytes]]) -> None:
        """Let reads no longer step over what was removed from ranges [first, end). Costs as much as to rewrite them. No
        other call waits for it. Those that need the store opened again find no space until it ends."""

    def close(self) -> None:
        """Close the files. Changes that were not synced may be lost."""
