"""Entries of a topic's ledgers: their headers and MessageMetadata, for many entries at once. PURE.

Big-endian, after `Commands` of Pulsar 4.0:

    [ u16 0x0e02 | i32 n | n bytes BrokerEntryMetadata ]   where brokers have interceptors
    [ u16 0x0e01 | u32 crc32c of all that follows ]        absent from very old producers
    u32 m | m bytes MessageMetadata
    payload, to the end

The entry of a compacted ledger is `i32 a | a bytes MessageIdData | i32 b | b bytes` of the above.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import crc32c
import numpy as np

from bkspark.entries import EntryBatch
from bkspark.pulsar.fields import Fields, MalformedFields, fields_of

BROKER_MAGIC, CHECKSUM_MAGIC = 0x0E02, 0x0E01

# Numbers of MessageMetadata's fields.
PRODUCER, SEQUENCE, PUBLISH_TIME, PROPERTIES, REPLICATED_FROM, KEY = 1, 2, 3, 4, 5, 6
COMPRESSION, UNCOMPRESSED_SIZE, BATCH_MESSAGES, EVENT_TIME, ENCRYPTION_KEYS = 8, 9, 11, 12, 13
ENCRYPTION_ALGORITHM, ENCRYPTION_PARAMETER, SCHEMA_VERSION, KEY_IS_BASE64, ORDERING_KEY, DELIVER_AT = (
    14,
    15,
    16,
    17,
    18,
    19,
)
MARKER, TXN_LEAST, TXN_MOST, NULL_VALUE, UUID, CHUNKS, CHUNKED_SIZE, CHUNK, NULL_KEY = (
    20,
    22,
    23,
    25,
    26,
    27,
    28,
    29,
    30,
)
_NUMBERS = (
    SEQUENCE, PUBLISH_TIME, COMPRESSION, UNCOMPRESSED_SIZE, BATCH_MESSAGES, EVENT_TIME, KEY_IS_BASE64, DELIVER_AT,
    MARKER, TXN_LEAST, TXN_MOST, NULL_VALUE, CHUNKS, CHUNKED_SIZE, CHUNK, NULL_KEY,
)  # fmt: skip
_SPANS = (
    PRODUCER, REPLICATED_FROM, KEY, ENCRYPTION_ALGORITHM, ENCRYPTION_PARAMETER, SCHEMA_VERSION, ORDERING_KEY, UUID,
)  # fmt: skip
_REPEATED = (PROPERTIES, ENCRYPTION_KEYS)
BROKER_TIME, INDEX = 1, 2
TXN_COMMIT, TXN_ABORT = 21, 22
"""Kinds of markers that end a transaction."""
_LEDGER, _ENTRY = 1, 2

UNCOMPRESSED_BYTES_MAX = 128 << 20
"""Limit of one entry's payload: an entry that claims more is malformed."""
MESSAGES_MAX = 1_000_000
"""Limit of one batch."""
CHECKS = 16
"""How often the malformed ones of some entries are searched together, before this is done for the halves."""
MESSAGE_BYTES_MIN = 6
"""A message in a batch has at least the size of its metadata, and there the size of its payload."""


class MalformedEntry(ValueError):
    """Entries are not of Pulsar, or are damaged; `rows` are the indexes, in the run, of some of them."""

    def __init__(self, rows: np.ndarray | int, reason: str) -> None:
        super().__init__(reason)
        self.rows = rows


@dataclass(frozen=True, eq=False)
class Entries:
    """Entries of one ledger whose metadata were decoded; arrays have an item for each.

    `rows`: their indexes in the batch that was decoded. `data` holds them all; the payload of entry i is
    data[payload_starts[i]:payload_ends[i]]. `broker_times` and `indexes` are -1 where the broker noted none.
    """

    rows: np.ndarray
    data: np.ndarray
    ledger_ids: np.ndarray
    entry_ids: np.ndarray
    metadata: Fields
    payload_starts: np.ndarray
    payload_ends: np.ndarray
    broker_times: np.ndarray
    indexes: np.ndarray

    def __len__(self) -> int:
        return len(self.entry_ids)

    def part(self, chosen: np.ndarray) -> Entries:
        """Return the entries of these indexes, which ascend."""
        return Entries(
            self.rows[chosen],
            self.data,
            self.ledger_ids[chosen],
            self.entry_ids[chosen],
            self.metadata.part(chosen),
            self.payload_starts[chosen],
            self.payload_ends[chosen],
            self.broker_times[chosen],
            self.indexes[chosen],
        )

    @property
    def is_marker(self) -> np.ndarray:
        return self.metadata.has(MARKER)

    @property
    def is_batch(self) -> np.ndarray:
        """bool (n,): whether the entry is a batch, also one of one message. The presence of the field decides."""
        return self.metadata.has(BATCH_MESSAGES)

    @property
    def is_chunk(self) -> np.ndarray:
        return self.metadata.int32(CHUNKS) > 1

    @property
    def is_encrypted(self) -> np.ndarray:
        found = np.zeros(len(self), bool)
        found[self.metadata.occurrences(ENCRYPTION_KEYS).rows] = True
        return found

    @property
    def has_transaction(self) -> np.ndarray:
        return self.metadata.has(TXN_LEAST) & self.metadata.has(TXN_MOST)

    @property
    def compressions(self) -> np.ndarray:
        return self.metadata.int32(COMPRESSION)

    @property
    def uncompressed_sizes(self) -> np.ndarray:
        """int64 (n,): sizes of payloads without compression."""
        sizes = self.metadata.value(UNCOMPRESSED_SIZE) & 0xFFFF_FFFF
        return np.where(self.compressions == 0, self.payload_ends - self.payload_starts, sizes)

    def text(self, number: int, row: int) -> str:
        """Return a field's bytes of one entry as text, for messages and rare fields."""
        starts, ends = self.metadata.span(number)
        return self.data[max(0, int(starts[row])) : max(0, int(ends[row]))].tobytes().decode("utf-8", "replace")


def decode_entries(batch: EntryBatch, *, is_compacted: bool = False, only: np.ndarray | None = None) -> Entries:
    """Return the metadata of a batch's entries.

    Args:
        is_compacted: they are of a compacted ledger, and contain the ids that they had in the topic.
        only: the indexes of those to decode; None for all.

    Raises:
        MalformedEntry: an entry is not one of Pulsar's, its checksum is wrong, or a required field is missing.
    """
    data = np.frombuffer(batch.buffer, np.uint8)
    chosen = np.arange(len(batch)) if only is None else only
    at, ends = batch.offsets[:-1][chosen], batch.offsets[1:][chosen]
    count = len(chosen)
    ledger_ids = np.full(count, batch.ledger_id, np.int64)
    entry_ids = batch.first_entry + chosen
    if is_compacted:
        ledger_ids, entry_ids, at, ends = _unwrapped(data, at, ends)
    broker_times, indexes = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    magic = _numbers(data, at, ends, 2)
    has_broker = np.flatnonzero(magic == BROKER_MAGIC)
    if len(has_broker):
        start, end = _sized(data, at[has_broker] + 2, ends[has_broker], has_broker, "broker metadata")
        found = _fields(has_broker, data, start, end, numbers=(BROKER_TIME, INDEX))
        for target, number in ((broker_times, BROKER_TIME), (indexes, INDEX)):
            target[has_broker] = np.where(found.has(number), found.value(number), -1)
        at[has_broker] = end
        magic = _numbers(data, at, ends, 2)
    has_checksum = np.flatnonzero(magic == CHECKSUM_MAGIC)
    if len(has_checksum):
        stored = _numbers(data, at[has_checksum] + 2, ends[has_checksum], 4)
        at[has_checksum] += 6
        _check(at[has_checksum] <= ends[has_checksum], has_checksum, "it ends within its checksum")
        _check_sums(data, at, ends, has_checksum, stored)
    rows = np.arange(count)
    start, at = _sized(data, at, ends, rows, "message metadata")
    metadata = _fields(rows, data, start, at, numbers=_NUMBERS, spans=_SPANS, repeated=_REPEATED)
    for number, name in ((PRODUCER, "producer_name"), (SEQUENCE, "sequence_id"), (PUBLISH_TIME, "publish_time")):
        _check(metadata.has(number), rows, f"its metadata have no {name}: it is not a message of Pulsar")
    entries = Entries(chosen, data, ledger_ids, entry_ids, metadata, at, ends, broker_times, indexes)
    messages = metadata.int32(BATCH_MESSAGES)
    # Checked before memory is allocated for them.
    fits = messages * MESSAGE_BYTES_MIN <= entries.uncompressed_sizes
    is_possible = (messages >= 0) & (messages <= MESSAGES_MAX) & fits
    _check(~entries.is_batch | is_possible, rows, "its payload is too small for the messages of its batch")
    return entries


def well_formed(batch: EntryBatch, *, is_compacted: bool = False, only: np.ndarray | None = None) -> Iterator[Entries]:
    """Yield the metadata of a batch's entries, or `only` of those of these indexes, without the malformed ones, in one
    or more parts, in order."""
    rows = np.arange(len(batch)) if only is None else only
    for _ in range(CHECKS):
        if not len(rows):
            return
        try:
            yield decode_entries(batch, is_compacted=is_compacted, only=rows)
        except MalformedEntry as error:
            rows = np.delete(rows, error.rows)
        else:
            return
    # Each of the entries may be wrong in another place, and a check finds those that are wrong in one.
    middle = len(rows) // 2
    yield from well_formed(batch, is_compacted=is_compacted, only=rows[:middle])
    yield from well_formed(batch, is_compacted=is_compacted, only=rows[middle:])


def _unwrapped(
    data: np.ndarray, at: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the ids in the topic of a compacted ledger's entries, and the positions of the topic's entries in them."""
    rows = np.arange(len(at))
    start, end = _sized(data, at, ends, rows, "message id")
    ids = _fields(rows, data, start, end, numbers=(_LEDGER, _ENTRY))
    for number in (_LEDGER, _ENTRY):
        _check(ids.has(number) & (ids.value(number) >= 0), rows, "its message id is not that of an entry")
    start, inner_end = _sized(data, end, ends, rows, "entry")
    _check(inner_end == ends, rows, "it holds more than an id and an entry: it is not of a compacted ledger")
    return ids.value(_LEDGER), ids.value(_ENTRY), start, inner_end


def _fields(
    rows: np.ndarray, data: np.ndarray, starts: np.ndarray, ends: np.ndarray, **wanted: tuple[int, ...]
) -> Fields:
    try:
        return fields_of(data, starts, ends, **wanted)
    except MalformedFields as error:
        raise MalformedEntry(rows[error.rows], f"its metadata have {error}") from None


def _numbers(data: np.ndarray, at: np.ndarray, ends: np.ndarray, size: int) -> np.ndarray:
    """Return int64 (n,), unsigned numbers of `size` bytes; -1 where the entry ends before."""
    if not len(data):
        return np.full(len(at), -1, np.int64)
    found = np.zeros(len(at), np.int64)
    for place in range(size):
        found = found << 8 | data.take(at + place, mode="clip")
    return np.where(at + size <= ends, found, -1)


def _sized(
    data: np.ndarray, at: np.ndarray, ends: np.ndarray, rows: np.ndarray, what: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return where parts begin and end that follow their size of four bytes."""
    sizes = _numbers(data, at, ends, 4)
    starts = at + 4
    _check((sizes >= 0) & (sizes <= ends - starts), rows, f"it ends within its {what}")
    return starts, starts + sizes


def _check_sums(data: np.ndarray, at: np.ndarray, ends: np.ndarray, rows: np.ndarray, stored: np.ndarray) -> None:
    view = data.data
    is_right = [
        crc32c.crc32c(view[start:end]) == wanted
        for start, end, wanted in zip(at[rows].tolist(), ends[rows].tolist(), stored.tolist())
    ]
    _check(np.array(is_right, bool), rows, "its checksum is wrong: the producer or the broker damaged it")


def _check(is_right: np.ndarray, rows: np.ndarray, reason: str) -> None:
    if not is_right.all():
        raise MalformedEntry(rows[~is_right], reason)
