"""What the bookie asks of an embedded key-value store, and all that it may rely on.

* Keys are ordered as bytes. A call of `write` is visible at once and atomic: a crash keeps all of it or nothing.
* A crash keeps the calls up to some moment, in their order; after `sync` that is all of them.
* What a newly opened store shows is durable.
* Damage to its files is noticed when what was damaged is read, or when the store is opened; not so a whole older state
  of the store, which `key_value_index` finds by itself.
* An OSError of `write` or `sync` for want of space takes nothing back: what was visible stays so, the call that failed
  may be visible or not, and repeating it is all that is needed when there is space again.
* Any number of threads may read, while one writes.

`rocks` is the store; the crash campaigns run on a model of just these sentences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from bkspark.options import BYTES_MAX, COUNT_MAX, bounded, check


@dataclass(frozen=True, slots=True)
class KeyValueOptions:
    """Sizes in bytes; the last two are of interest to RocksDB alone."""

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
        """Return the values of keys, None for those that are not there."""

    def last(self, first: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """Return the highest key at or behind `first` and before `end`, and its value; None when there is none."""

    def keys(self, first: bytes, end: bytes) -> Iterator[bytes]:
        """Yield the keys from `first` on and before `end`, ascending."""

    def write(self, puts: Sequence[tuple[bytes, bytes]], removed: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Remove the ranges (first, end), then set keys; not durable before `sync`. After an OSError nothing of that is
        done, nor will be."""

    def sync(self) -> None:
        """Make everything written durable."""

    def close(self) -> None:
        """Let go of the files; what was not synced may be lost."""
