"""Columns that describe messages, as Arrow arrays: keys, properties, ids, times. PURE."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from bkspark.pulsar import entries as entry_fields
from bkspark.pulsar import messages as single_fields
from bkspark.pulsar.base64_values import from_base64
from bkspark.pulsar.compression import NAMES
from bkspark.pulsar.fields import Fields, MalformedFields, Occurrences, fields_of
from bkspark.pulsar.malformed import MalformedValues, refuse
from bkspark.pulsar.messages import Messages
from bkspark.pulsar.slices import binary_array, gathered, text_array
from bkspark.wire.framing import items_at

PROPERTIES = pa.map_(pa.string(), pa.string())
ENCRYPTION = pa.struct(
    {
        "keys": pa.list_(pa.string()),
        "dataKeys": pa.list_(pa.binary()),
        "algo": pa.string(),
        "param": pa.binary(),
        "compression": pa.string(),
        "uncompressedSize": pa.int64(),
        "messages": pa.int32(),
        "chunkUuid": pa.string(),
        "chunk": pa.int32(),
        "chunks": pa.int32(),
    }
)
_TIME = pa.timestamp("us", "UTC")
_PROPERTY_KEY, _PROPERTY_VALUE = 1, 2
_KEY_NAME, _KEY_VALUE = 1, 2
_TIME_MS_MAX = (1 << 63) // 1000 - 1


def values(messages: Messages) -> pa.Array:
    """Return the payloads, null for null values."""
    return binary_array(messages.content, messages.starts, messages.ends, ~messages.is_null)


def spans(messages: Messages, of_entry: int, of_single: int | None) -> pa.Array:
    """Return a field of bytes: a message of a batch has its own or none (`of_single` None: its entry's)."""
    if of_single is None:
        return _of_entries(messages, of_entry, messages.entry)
    plain = np.flatnonzero(messages.single < 0)
    batched = np.flatnonzero(messages.single >= 0)
    if len(batched):
        rows = messages.single[batched]
        starts, ends = (bounds[rows] for bounds in messages.singles.span(of_single))
        own = binary_array(messages.content, starts, ends, starts >= 0)
        if not len(plain):
            return own
        return _merged(_of_entries(messages, of_entry, messages.entry[plain]), own, plain, batched)
    return _of_entries(messages, of_entry, messages.entry)


def _of_entries(messages: Messages, number: int, rows: np.ndarray) -> pa.Array:
    starts, ends = messages.entries.metadata.span(number)
    each = binary_array(messages.entries.data.data, starts, ends, starts >= 0)
    return each.take(pa.array(rows))


def _merged(plain: pa.Array, batched: pa.Array, plain_at: np.ndarray, batched_at: np.ndarray) -> pa.Array:
    """Return two arrays merged into one, with each item at its index."""
    if not len(batched_at):
        return plain
    if not len(plain_at):
        return batched
    order = np.empty(len(plain_at) + len(batched_at), np.int64)
    order[plain_at] = np.arange(len(plain_at))
    order[batched_at] = np.arange(len(plain_at), len(order))
    return pa.concat_arrays([plain, batched]).take(pa.array(order))


def keys(messages: Messages) -> pa.Array:
    """Return the keys as bytes: those that were bytes are Base64 in the metadata.

    Raises:
        MalformedValues: keys that should be Base64 are not.
    """
    found = spans(messages, entry_fields.KEY, single_fields.KEY)
    metadata, singles = messages.entries.metadata, messages.singles
    if metadata.is_absent(entry_fields.KEY_IS_BASE64) and singles.is_absent(single_fields.KEY_IS_BASE64):
        return found
    # The key of an entry, and its properties, do not apply to the messages of a batch.
    is_base64 = metadata.flag(entry_fields.KEY_IS_BASE64)[messages.entry]
    batched = messages.single >= 0
    is_base64[batched] = singles.flag(single_fields.KEY_IS_BASE64)[messages.single[batched]]
    if not is_base64.any():
        return found
    coded = np.flatnonzero(is_base64)
    plain = np.flatnonzero(~is_base64)
    try:
        octets = from_base64(found.take(pa.array(coded)))
    except MalformedValues as error:
        raise MalformedValues(coded[error.rows], error.first) from None
    return _merged(found.take(pa.array(plain)), octets, plain, coded)


def properties(messages: Messages) -> pa.Array:
    """Return map<string, string>; if a key occurs twice, the last value counts.

    Raises:
        MalformedValues: messages have a property that is not a pair of texts.
    """
    sources = ((messages.entries.metadata, entry_fields.PROPERTIES), (messages.singles, single_fields.PROPERTIES))
    if not any(len(fields.occurrences(number)) for fields, number in sources):
        nothing = pa.array([], pa.string())
        return pa.MapArray.from_arrays(pa.array(np.zeros(len(messages) + 1, np.int32)), nothing, nothing)
    plain = np.flatnonzero(messages.single < 0)
    batched = np.flatnonzero(messages.single >= 0)
    of_entries = _maps(*sources[0], messages.entries.data, messages.entry, plain)
    of_singles = _maps(*sources[1], np.frombuffer(messages.content, np.uint8), messages.single, batched)
    return _merged(of_entries, of_singles, plain, batched)


def _maps(fields: Fields, number: int, data: np.ndarray, row_of: np.ndarray, places: np.ndarray) -> pa.Array:
    """Return the properties of the messages at some places. Others in `fields` may be malformed.

    Args:
        row_of: the index in `fields` of each message.
    """
    wanted = row_of[places]
    found = _of_rows(fields.occurrences(number), wanted, fields.count)
    try:
        names, texts = _pairs(found, data)
    except MalformedValues as error:
        raise MalformedValues(places[np.isin(wanted, found.rows[error.rows])], error.first) from None
    rows = found.rows
    if len(rows):
        codes = names.dictionary_encode().indices.to_numpy(zero_copy_only=False)
        pairs = rows * (int(codes.max()) + 1) + codes
        # In reverse order the first of equal pairs is the last one.
        _, last = np.unique(pairs[::-1], return_index=True)
        if len(last) < len(rows):
            kept = np.sort(len(rows) - 1 - last)
            rows, names, texts = rows[kept], names.take(pa.array(kept)), texts.take(pa.array(kept))
    offsets = np.searchsorted(rows, np.arange(fields.count + 1)).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(offsets), names, texts).take(pa.array(wanted))


def _of_rows(found: Occurrences, wanted: np.ndarray, count: int) -> Occurrences:
    is_wanted = np.zeros(count, bool)
    is_wanted[wanted] = True
    kept = is_wanted[found.rows]
    return found if kept.all() else Occurrences(found.rows[kept], found.starts[kept], found.ends[kept])


def _pairs(found: Occurrences, data: np.ndarray) -> tuple[pa.Array, pa.Array]:
    try:
        pairs = fields_of(data, found.starts, found.ends, spans=(_PROPERTY_KEY, _PROPERTY_VALUE))
    except MalformedFields as error:
        raise MalformedValues(error.rows, f"one of its properties has {error}") from None
    parts = []
    for number in (_PROPERTY_KEY, _PROPERTY_VALUE):
        starts, ends = pairs.span(number)
        refuse(starts < 0, "one of its properties lacks its key or value")
        parts.append(text_array(binary_array(data.data, starts, ends), "property"))
    return parts[0], parts[1]


def times(milliseconds: np.ndarray, is_valid: np.ndarray | None = None) -> pa.Array:
    """Return timestamps.

    Raises:
        MalformedValues: some are beyond what a timestamp holds.
    """
    is_wrong = (milliseconds < -_TIME_MS_MAX) | (milliseconds > _TIME_MS_MAX)
    refuse(is_wrong, "one of its times is beyond the range of a timestamp")
    mask = None if is_valid is None else ~is_valid
    return pa.array(milliseconds * 1000, pa.int64(), mask=mask).cast(_TIME)


def publish_times(messages: Messages) -> np.ndarray:
    """Return int64 (n,), ms: by the producer's clock."""
    return messages.entries.metadata.value(entry_fields.PUBLISH_TIME)[messages.entry]


def event_times(messages: Messages) -> pa.Array:
    """Return the event times that producers set, null where there is none."""
    number = entry_fields.EVENT_TIME
    if messages.entries.metadata.is_absent(number) and messages.singles.is_absent(single_fields.EVENT_TIME):
        return pa.nulls(len(messages), _TIME)
    found = messages.numbers(number, single_fields.EVENT_TIME)
    return times(found, found != 0)


def message_ids(messages: Messages, partition: int) -> pa.Array:
    """Return binary: the bytes of Java's MessageId.toByteArray.

    1 ledgerId, 2 entryId, 3 partition if the topic is one, 4 batch_index if of a batch, 6 batch_size; of a chunked
    message, whose id is that of its last chunk, 7 the id of its first one.

    Messages whose fields have the same sizes are made together: the id of each is that of its entry, with a gap for the
    index in the batch.
    """
    if not len(messages):
        return pa.array([], pa.binary())
    entries = messages.entries
    batch_sizes = np.zeros(len(entries), np.int64)
    batch_sizes[messages.entry] = messages.batch_size
    fields = [_field(0x08, entries.ledger_ids), _field(0x10, entries.entry_ids)]
    if partition >= 0:
        fields.append(_field(0x18, np.full(len(entries), partition, np.int64)))
    fields.append(_field(0x30, batch_sizes))
    indexes = _field(0x20, np.arange(messages.batch_index.max(initial=-1) + 1))
    codes = np.zeros(len(entries), np.int64)
    for _, sizes in fields:
        codes = codes << _SIZE_BITS | sizes
    # The last size is for index -1: messages that are not of a batch have no such field.
    kinds = np.append(indexes.sizes, 0)[messages.batch_index]
    if (codes == codes[0]).all():
        examples = np.zeros(1, np.int64)
    else:
        _, examples, layout = np.unique(codes, return_index=True, return_inverse=True)
        kinds = kinds + (layout[messages.entry] << _SIZE_BITS)
    found = np.flatnonzero(np.bincount(kinds)).tolist()
    ids = []
    for kind in found:
        rows: _Places = _EVERY if len(found) == 1 else np.flatnonzero(kinds == kind)
        example, index_size = examples[kind >> _SIZE_BITS], kind & (1 << _SIZE_BITS) - 1
        *before, after = (octets[:, : sizes[example]] for octets, sizes in fields)
        gap = np.zeros((len(entries), index_size), np.uint8)
        octets = gathered(np.hstack([*before, gap, after]), messages.entry[rows])
        if index_size:
            at = sum(part.shape[1] for part in before)
            own = np.ascontiguousarray(indexes.octets[:, :index_size])
            octets[:, at : at + index_size] = gathered(own, messages.batch_index[rows])
        ids.append((rows, octets))
    array = _of_rows_of_octets(ids, len(messages))
    return _with_first_chunks(messages, array, partition) if messages.joined else array


_Places = np.ndarray | slice
_EVERY = slice(None)


class _Field(NamedTuple):
    """A protobuf field of some numbers."""

    octets: np.ndarray
    """uint8 (n, width)."""
    sizes: np.ndarray
    """int64 (n,): how many of the octets are the field, the first ones."""


_SIZE_BITS = 4
"""Bits that the size of a field needs."""


def _field(tag: int, numbers: np.ndarray) -> _Field:
    """Return protobuf fields of numbers that are not negative."""
    width = max(1, -(-int(numbers.max(initial=0)).bit_length() // 7))
    octets = np.empty((len(numbers), 1 + width), np.uint8)
    octets[:, 0] = tag
    for place in range(width):
        octets[:, 1 + place] = numbers >> 7 * place & 0x7F
    # An octet goes on where another one follows.
    follows = numbers[:, None] >> 7 * np.arange(1, width) > 0
    octets[:, 1:-1] |= follows.astype(np.uint8) << 7
    return _Field(octets, 2 + np.count_nonzero(follows, axis=1))


def _of_rows_of_octets(parts: Sequence[tuple[_Places, np.ndarray]], count: int) -> pa.Array:
    """Return a binary array of `count` items from parts of it: the places of some items, ascending, and their octets,
    uint8 (n, size)."""
    sizes = np.empty(count, np.int32)
    for rows, octets in parts:
        sizes[rows] = octets.shape[1]
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    if len(parts) == 1:
        held = parts[0][1]
    else:
        held = np.empty(int(offsets[-1]), np.uint8)
        for rows, octets in parts:
            kind = f"V{octets.shape[1]}"
            items_at(held, kind)[offsets[rows]] = octets.view(kind)[:, 0]
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(held)])


def _with_first_chunks(messages: Messages, ids: pa.Array, partition: int) -> pa.Array:
    found = ids.to_pylist()
    for place, row in enumerate(messages.entry.tolist()):
        if row in messages.joined:
            first = messages.joined[row]
            inner = message_id(first.ledger_id, first.entry_id, partition)
            found[place] += b"\x3a" + _varint(len(inner)) + inner
    return pa.array(found, pa.binary())


def message_id(ledger_id: int, entry_id: int, partition: int) -> bytes:
    """Return the bytes of the id of a message that is not of a batch."""
    parts = [b"\x08", _varint(ledger_id), b"\x10", _varint(entry_id)]
    if partition >= 0:
        parts += [b"\x18", _varint(partition)]
    return b"".join([*parts, b"\x30\x00"])


def _varint(value: int) -> bytes:
    octets = bytearray()
    while value >= 0x80:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)


def schema_versions(messages: Messages) -> np.ndarray:
    """Return int64 (n,): the version of the topic's schema that a message was written with; -1 without a version."""
    entries = messages.entries
    starts, ends = entries.metadata.span(entry_fields.SCHEMA_VERSION)
    found = np.full(len(entries), -1, np.int64)
    sizes = ends - starts
    for size in (8, 64):  # 64: before Pulsar 2.4, of which the first eight count
        rows = np.flatnonzero((starts >= 0) & (sizes == size))
        number = np.zeros(len(rows), np.int64)
        for place in range(8):
            number = number << 8 | entries.data[starts[rows] + place]
        found[rows] = number
    return found[messages.entry]


def transactions(messages: Messages) -> pa.Array:
    """Return the ids of transactions as Pulsar writes them, `(most,least)`; null for messages without one."""
    entries = messages.entries
    most = entries.metadata.value(entry_fields.TXN_MOST)[messages.entry].tolist()
    least = entries.metadata.value(entry_fields.TXN_LEAST)[messages.entry].tolist()
    has = entries.has_transaction[messages.entry].tolist()
    return pa.array([f"({m},{n})" if there else None for m, n, there in zip(most, least, has)], pa.string())


def encryptions(messages: Messages) -> pa.Array:
    """Return what is known of encrypted messages; null for all others. `dataKeys` has the key of the payload, encrypted
    with each of the named `keys`, in their order: who holds one of these can decrypt it. Each chunk of a message is
    encrypted by itself: `chunkUuid` names the message, `chunk` counts from 0. In other messages these are null.
    """
    entries, rows = messages.entries, messages.entry
    metadata = entries.metadata
    found = _of_rows(metadata.occurrences(entry_fields.ENCRYPTION_KEYS), rows, len(entries))
    inner = fields_of(entries.data, found.starts, found.ends, spans=(_KEY_NAME, _KEY_VALUE))
    refuse(~inner.has(_KEY_NAME), "one of its encryption keys lacks its name")
    names, data_keys = (
        binary_array(entries.data.data, starts, ends, starts >= 0)
        for starts, ends in (inner.span(_KEY_NAME), inner.span(_KEY_VALUE))
    )
    pairs = zip(found.rows.tolist(), text_array(names, "encryption key").to_pylist(), data_keys.to_pylist())
    by_row = {row: [pair for _, *pair in group] for row, group in itertools.groupby(pairs, lambda it: it[0])}
    params = spans(messages, entry_fields.ENCRYPTION_PARAMETER, None).to_pylist()
    cells: list[dict[str, object] | None] = []
    for place, row in enumerate(rows.tolist()):
        if row not in by_row:
            cells.append(None)
            continue
        codec = int(entries.compressions[row])
        is_chunk = bool(entries.is_chunk[row])
        cells.append(
            {
                "keys": [name for name, _ in by_row[row]],
                "dataKeys": [data_key for _, data_key in by_row[row]],
                "algo": entries.text(entry_fields.ENCRYPTION_ALGORITHM, row) or None,
                "param": params[place],
                "compression": NAMES[codec] if 0 <= codec < len(NAMES) else str(codec),
                "uncompressedSize": int(metadata.value(entry_fields.UNCOMPRESSED_SIZE)[row] & 0xFFFF_FFFF),
                "messages": int(metadata.int32(entry_fields.BATCH_MESSAGES)[row]) if entries.is_batch[row] else 1,
                "chunkUuid": entries.text(entry_fields.UUID, row) if is_chunk else None,
                "chunk": int(metadata.int32(entry_fields.CHUNK)[row]) if is_chunk else None,
                "chunks": int(metadata.int32(entry_fields.CHUNKS)[row]) if is_chunk else None,
            }
        )
    return pa.array(cells, ENCRYPTION)
