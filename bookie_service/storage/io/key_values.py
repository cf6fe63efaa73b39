"""The interface of an embedded key-value store, and all guarantees that the bookie relies on.

* Keys are ordered as bytes. A call of `write` is visible at once and atomic: a crash keeps all of it or nothing.
* A crash keeps the calls up to some moment, in their order; after `sync` these are all calls.
* The contents of a newly opened store are durable.
* Damage to its files is noticed when the damaged part is read, or when the store is opened. A complete older state of
  the store is not noticed; `key_value_index` detects it by itself.
* An OSError of `write` or `sync` for lack of space undoes nothing: visible data stays visible, the failed call may be
  visible or not, and it only needs to be repeated when there is space again.
* Any number of threads may read, while one writes.

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
    write_buffer_bytes: int = bounded(16 * 1024 * 1024, 1, BYTES_MAX, "bytes")
    open_files_max: int = bounded(1000, 1, COUNT_MAX)
    block_bytes: int = bounded(64 * 1024, 1024, 64 * 1024 * 1024, "bytes")
    bloom_bits_per_key: int = bounded(10, 0, 100)

    def __post_init__(self) -> None:
        check(self)


class KeyValues(Protocol):
    """An ordered map of bytes. Every method raises OSError when the disk fails, StorageDamaged when data is damaged."""

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys, None for missing keys."""

    def last(self, first: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """Return the highest key from `first` on and before `end`, and its value; None when there is none."""

    def keys(self, first: bytes, end: bytes) -> Iterator[bytes]:
        """Yield the keys from `first` on and before `end`, ascending."""

    def key_count(self) -> int:
        """Return about how many keys there are."""

    def write(self, puts: Sequence[tuple[bytes, bytes]], removed: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Remove the ranges (first, end), then set keys; not durable before `sync`. After an OSError nothing of that is
        done, nor will be."""

    def sync(self) -> None:
        """Make everything written durable."""

    def close(self) -> None:
        """Close the files; changes that were not synced may be lost."""
