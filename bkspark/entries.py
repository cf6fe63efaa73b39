"""EntryBatch: the one type that carries entries between layers.

A batch is a run of consecutive entries of one ledger in one contiguous buffer:

    buffer   one bytes-like object, payloads back to back, no header or digest
    offsets  int64 array of n + 1 ascending positions; payload i is buffer[offsets[i]:offsets[i + 1]]

Payloads are clear, unless `sealed_with` names the key that a ledger is encrypted with and the reader lacks.

A single entry is a batch of one. There is no object per entry; `batch[i]` creates one on demand.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bkspark.ids import NO_ENTRY

if TYPE_CHECKING:
    import pyarrow as pa

ARROW_DATA_BYTES_MAX = (1 << 31) - 1
"""Arrow's `binary` has int32 offsets, so one array holds less than 2 GiB of data."""


class EntryBatch:
    """Consecutive entries [first_entry, first_entry + len) of one ledger.

    buffer, offsets: payload i is buffer[offsets[i]:offsets[i + 1]].
    sealed_with: the id of the missing key, if the payloads are as they are stored, encrypted; otherwise None.
    """

    __slots__ = ("buffer", "first_entry", "ledger_id", "offsets", "sealed_with")

    def __init__(
        self,
        buffer: bytes | bytearray | memoryview,
        offsets: np.ndarray,
        ledger_id: int = NO_ENTRY,
        first_entry: int = 0,
        sealed_with: str | None = None,
    ) -> None:
        is_array = isinstance(offsets, np.ndarray)
        if not is_array or offsets.dtype != np.int64 or offsets.ndim != 1 or len(offsets) == 0:
            raise ValueError("offsets must be a one-dimensional int64 array of at least one position")
        self.buffer = buffer
        self.offsets = offsets
        self.ledger_id = ledger_id
        self.first_entry = first_entry
        self.sealed_with = sealed_with

    @classmethod
    def of(cls, payloads: Iterable[bytes | memoryview], ledger_id: int = NO_ENTRY, first_entry: int = 0) -> EntryBatch:
        """Return a batch of the given payloads, copied once into one buffer."""
        parts = payloads if isinstance(payloads, Sequence) else list(payloads)
        offsets = np.zeros(len(parts) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=offsets[1:])
        return cls(b"".join(parts), offsets, ledger_id, first_entry)

    @classmethod
    def joined(
        cls,
        parts: Sequence[EntryBatch],
        ledger_id: int = NO_ENTRY,
        first_entry: int = 0,
        memory: Callable[[int], np.ndarray] | None = None,
    ) -> EntryBatch:
        """Return batches joined in order as one, copied into one buffer, with the given ledger and first entry.

        `memory(size)` returns the buffer, an array of uint8. None: the buffer is `bytes`, so the batch can be pickled:
        messages of Spark's tasks contain such batches.
        """
        sizes = np.concatenate([np.diff(part.offsets) for part in parts]) if parts else np.empty(0, np.int64)
        offsets = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        sealed_with = parts[0].sealed_with if parts else None
        if memory is None:
            whole = b"".join(memoryview(part.buffer)[int(part.offsets[0]) : int(part.offsets[-1])] for part in parts)
            return cls(whole, offsets, ledger_id, first_entry, sealed_with)
        data = memory(offsets.item(-1))
        at = 0
        for part in parts:
            end = at + part.payload_bytes
            data[at:end] = np.frombuffer(part.buffer, np.uint8)[part.offsets.item(0) : part.offsets.item(-1)]
            at = end
        return cls(data.data, offsets, ledger_id, first_entry, sealed_with)

    @classmethod
    def from_arrow(cls, array: pa.Array) -> EntryBatch:
        """Return a batch over an Arrow binary, large_binary, string or large_string array, not copied.

        Raises:
            ValueError: the array has a null (an entry is bytes; null has no encoding), or another type.
        """
        import pyarrow as pa

        if array.null_count:
            raise ValueError("an entry cannot be null; filter nulls or choose a payload format")
        if pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type):
            offset_type: type[np.signedinteger] = np.int64
        elif pa.types.is_binary(array.type) or pa.types.is_string(array.type):
            offset_type = np.int32
        else:
            raise ValueError(f"entries come from a binary or string array, not from {array.type}")
        if len(array) == 0:
            return cls(b"", np.zeros(1, np.int64))
        _, offsets_buffer, data = array.buffers()
        width = np.dtype(offset_type).itemsize
        offsets = np.frombuffer(offsets_buffer, offset_type, len(array) + 1, array.offset * width)
        return cls(memoryview(data) if data is not None else b"", offsets.astype(np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> bytes:
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        return bytes(memoryview(self.buffer)[int(self.offsets[index]) : int(self.offsets[index + 1])])

    def __iter__(self) -> Iterator[bytes]:
        view = memoryview(self.buffer)
        bounds = self.offsets.tolist()
        for start, end in itertools.pairwise(bounds):
            yield bytes(view[start:end])

    def __repr__(self) -> str:
        return (
            f"EntryBatch(ledger {self.ledger_id}, entries [{self.first_entry}, {self.end_entry}), "
            f"{self.payload_bytes} bytes)"
        )

    @property
    def end_entry(self) -> int:
        """The entry id after the last one here."""
        return self.first_entry + len(self.offsets) - 1

    @property
    def last_entry(self) -> int:
        """The last entry id here; first_entry - 1 for an empty batch."""
        return self.end_entry - 1

    @property
    def payload_bytes(self) -> int:
        return int(self.offsets[-1] - self.offsets[0])

    def check(self) -> None:
        """Check the rules that the constructor does not check, for batches that callers made.

        Raises:
            TypeError: the buffer is not bytes-like.
            ValueError: the buffer's items are not single bytes, or the offsets do not ascend within it.
        """
        with memoryview(self.buffer) as octets:
            if octets.itemsize != 1 or octets.ndim != 1 or not octets.c_contiguous:
                raise ValueError("the buffer of a batch must be contiguous bytes")
            held = len(octets)
        if self.offsets[0] < 0 or self.offsets[-1] > held or (np.diff(self.offsets) < 0).any():
            raise ValueError(f"the offsets of a batch must ascend from 0 to at most {held}, the size of its buffer")

    def slice(self, start: int, end: int) -> EntryBatch:
        """Return entries [start, end) by position in this batch, over the same buffer."""
        if not 0 <= start <= end <= len(self):
            raise IndexError(f"[{start}, {end}) of a batch of {len(self)}")
        offsets, first_entry = self.offsets[start : end + 1], self.first_entry + start
        return EntryBatch(self.buffer, offsets, self.ledger_id, first_entry, self.sealed_with)

    def split(self, entries_max: int, bytes_max: int) -> Iterator[EntryBatch]:
        """Yield the batch in order as pieces of at most `entries_max` entries and `bytes_max` payload bytes.

        A single entry above `bytes_max` is a piece of its own.
        """
        start, count = 0, len(self)
        if 0 < count <= entries_max and self.payload_bytes <= bytes_max:
            yield self
            return
        while start < count:
            fits = int(np.searchsorted(self.offsets, self.offsets[start] + bytes_max, side="right")) - 1
            end = max(start + 1, min(fits, start + entries_max, count))
            yield self.slice(start, end)
            start = end

    def to_arrow(self) -> pa.Array:
        """Return an Arrow `binary` array of the payloads over the same buffer, not copied.

        Raises:
            ValueError: the payloads together exceed 2 GiB - 1.
        """
        import pyarrow as pa

        base, end = self.offsets.item(0), self.offsets.item(-1)
        if end - base > ARROW_DATA_BYTES_MAX:
            raise ValueError(f"{end - base} bytes of payload do not fit one Arrow binary array")
        offsets = (self.offsets - base).astype(np.int32)
        data = memoryview(self.buffer)[base:end]
        return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def as_batch(entries: Any) -> EntryBatch:
    """Return `entries` as an EntryBatch: a batch, an Arrow array or chunked array, or an iterable of bytes.

    Raises:
        TypeError: it is something else, or an item is not bytes-like.
        ValueError: an array has nulls or is not of binary or text; a batch's offsets do not ascend in its buffer.
    """
    if isinstance(entries, EntryBatch):
        entries.check()
        return entries
    if isinstance(entries, (bytes, bytearray, memoryview, str)):
        raise TypeError("append_many takes many entries; use append for one")
    if hasattr(entries, "combine_chunks"):
        entries = entries.combine_chunks()
    if hasattr(entries, "buffers"):
        return EntryBatch.from_arrow(entries)
    if not hasattr(entries, "__iter__"):
        raise TypeError(f"entries must be an EntryBatch, an Arrow array or many bytes, not {type(entries).__name__}")
    parts = list(entries)
    if not set(map(type, parts)) <= {bytes, bytearray}:
        parts = [_row_of_octets(part) for part in parts]
    return EntryBatch.of(parts)


def _row_of_octets(part: object) -> bytes | bytearray | memoryview:
    """Return `part` as a buffer whose length is its size in bytes; a view of another shape is copied."""
    if isinstance(part, memoryview):
        return part if part.itemsize == 1 and part.ndim == 1 and part.c_contiguous else bytes(part)
    if not isinstance(part, (bytes, bytearray)):
        raise TypeError(f"an entry is bytes, not {type(part).__name__}")
    return part
