"""Columns that describe messages, as Arrow arrays: keys, properties, ids, times. PURE."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa

from bkspark.pulsar import entries as entry_fields
from bkspark.pulsar import messages as single_fields
from bkspark.pulsar.base64_values import from_base64
from bkspark.pulsar.compression import NAMES
from bkspark.pulsar.fields import Fields, MalformedFields, Occurrences, fields_of
from bkspark.pulsar.messages import Messages
from bkspark.pulsar.slices import binary_array, text_array

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
    }
)
_TIME = pa.timestamp("us", "UTC")
_PROPERTY_KEY, _PROPERTY_VALUE = 1, 2
_KEY_NAME, _KEY_VALUE = 1, 2
_TIME_MS_MAX = (1 << 63) // 1000 - 1
_ID_BYTES_MAX = 64


def values(messages: Messages) -> pa.Array:
    """Return the payloads, null for null values."""
    return binary_array(messages.content, messages.starts, messages.ends, ~messages.is_null)


def spans(messages: Messages, of_entry: int, of_single: int | None) -> pa.Array:
    """Return a field of bytes: a message of a batch has its own or none (`of_single` None: its entry's)."""
    if of_single is None:
        return _of_entries(messages, of_entry, messages.entry)
    plain = np.flatnonzero(messages.single < 0)
    batched = np.flatnonzero(messages.single >= 0)
    rows = messages.single[batched]
    starts, ends = (bounds[rows] for bounds in messages.singles.span(of_single))
    own = binary_array(messages.content, starts, ends, starts >= 0)
    return _merged(_of_entries(messages, of_entry, messages.entry[plain]), own, plain, batched)


def _of_entries(messages: Messages, number: int, rows: np.ndarray) -> pa.Array:
    starts, ends = messages.entries.metadata.span(number)
    each = binary_array(messages.entries.data.data, starts, ends, starts >= 0)
    return each.take(pa.array(rows))


def _merged(plain: pa.Array, batched: pa.Array, plain_at: np.ndarray, batched_at: np.ndarray) -> pa.Array:
    """Return two arrays as one, each item at its place."""
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
        ValueError: a key that should be Base64 is not.
    """
    found = spans(messages, entry_fields.KEY, single_fields.KEY)
    # A key of the entry counts for no message of a batch, and neither does what it says of it.
    is_base64 = messages.entries.metadata.flag(entry_fields.KEY_IS_BASE64)[messages.entry]
    batched = messages.single >= 0
    is_base64[batched] = messages.singles.flag(single_fields.KEY_IS_BASE64)[messages.single[batched]]
    if not is_base64.any():
        return found
    coded = np.flatnonzero(is_base64)
    plain = np.flatnonzero(~is_base64)
    return _merged(found.take(pa.array(plain)), from_base64(found.take(pa.array(coded))), plain, coded)


def properties(messages: Messages) -> pa.Array:
    """Return map<string, string>; of a key given twice the last value.

    Raises:
        ValueError: a property is not a pair of texts.
    """
    sources = ((messages.entries.metadata, entry_fields.PROPERTIES), (messages.singles, single_fields.PROPERTIES))
    if not any(len(fields.occurrences(number)) for fields, number in sources):
        nothing = pa.array([], pa.string())
        return pa.MapArray.from_arrays(pa.array(np.zeros(len(messages) + 1, np.int32)), nothing, nothing)
    plain = np.flatnonzero(messages.single < 0)
    batched = np.flatnonzero(messages.single >= 0)
    of_entries = _maps(messages.entries.metadata, entry_fields.PROPERTIES, messages.entries.data)
    data = np.frombuffer(messages.content, np.uint8)
    of_singles = _maps(messages.singles, single_fields.PROPERTIES, data)
    return _merged(
        of_entries.take(pa.array(messages.entry[plain])),
        of_singles.take(pa.array(messages.single[batched])),
        plain,
        batched,
    )


def _maps(fields: Fields, number: int, data: np.ndarray) -> pa.Array:
    found = fields.occurrences(number)
    names, texts = _pairs(found, data)
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
    return pa.MapArray.from_arrays(pa.array(offsets), names, texts)


def _pairs(found: Occurrences, data: np.ndarray) -> tuple[pa.Array, pa.Array]:
    try:
        pairs = fields_of(data, found.starts, found.ends, spans=(_PROPERTY_KEY, _PROPERTY_VALUE))
    except MalformedFields as error:
        raise ValueError(f"one of its properties has {error}") from None
    parts = []
    for number in (_PROPERTY_KEY, _PROPERTY_VALUE):
        starts, ends = pairs.span(number)
        if (starts < 0).any():
            raise ValueError("one of its properties lacks its key or value")
        parts.append(text_array(binary_array(data.data, starts, ends), "property"))
    return parts[0], parts[1]


def times(milliseconds: np.ndarray, is_valid: np.ndarray | None = None) -> pa.Array:
    """Return timestamps.

    Raises:
        ValueError: one is beyond what a timestamp holds.
    """
    if len(milliseconds) and not (np.abs(milliseconds) <= _TIME_MS_MAX).all():
        raise ValueError("one of its times is beyond the range of a timestamp")
    mask = None if is_valid is None else ~is_valid
    return pa.array(milliseconds * 1000, pa.int64(), mask=mask).cast(_TIME)


def publish_times(messages: Messages) -> np.ndarray:
    """Return int64 (n,), ms: by the producer's clock."""
    return messages.entries.metadata.value(entry_fields.PUBLISH_TIME)[messages.entry]


def event_times(messages: Messages) -> pa.Array:
    """Return what producers set, null where they set nothing."""
    found = messages.numbers(entry_fields.EVENT_TIME, single_fields.EVENT_TIME)
    return times(found, found != 0)


def message_ids(messages: Messages, partition: int) -> pa.Array:
    """Return binary: the bytes of Java's MessageId.toByteArray.

    1 ledgerId, 2 entryId, 3 partition if the topic is one, 4 batch_index if of a batch, 6 batch_size; of a chunked
    message, whose id is that of its last chunk, 7 the id of its first one.
    """
    count = len(messages)
    # One row for each byte of an id: rows are written one after the other.
    octets = np.empty((_ID_BYTES_MAX, count), np.uint8)
    used = np.empty((_ID_BYTES_MAX, count), bool)
    ledger_ids = messages.entries.ledger_ids[messages.entry]
    entry_ids = messages.entries.entry_ids[messages.entry]
    always = np.ones(count, bool)
    batched = messages.single >= 0
    facts = (
        (0x08, ledger_ids, always),
        (0x10, entry_ids, always),
        (0x18, np.full(count, max(partition, 0), np.int64), np.full(count, partition >= 0)),
        (0x20, messages.batch_index, batched),
        (0x30, messages.batch_size, always),
    )
    at = 0
    for tag, numbers, is_there in facts:
        octets[at], used[at] = tag, is_there
        at += 1
        rest, goes_on = np.where(is_there, numbers, 0), is_there
        while goes_on.any():
            more = rest >= 0x80
            octets[at] = (rest & 0x7F) | np.where(more, 0x80, 0)
            used[at] = goes_on
            rest, goes_on = rest >> 7, goes_on & more
            at += 1
    octets, used = octets[:at].T.copy(), used[:at].T.copy()
    sizes = used.sum(axis=1)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    ids = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(octets[used])])
    return _with_first_chunks(messages, ids, partition) if messages.joined else ids


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
    """Return the ids of transactions as Pulsar writes them, `(most,least)`; null where there is none."""
    entries = messages.entries
    most = entries.metadata.value(entry_fields.TXN_MOST)[messages.entry].tolist()
    least = entries.metadata.value(entry_fields.TXN_LEAST)[messages.entry].tolist()
    has = entries.has_transaction[messages.entry].tolist()
    return pa.array([f"({m},{n})" if there else None for m, n, there in zip(most, least, has)], pa.string())


def encryptions(messages: Messages) -> pa.Array:
    """Return what is known of encrypted messages; null for all others. `dataKeys` has the key of the payload, encrypted
    with each of the named `keys`, in their order: who holds one of these can decrypt it."""
    entries, rows = messages.entries, messages.entry
    metadata = entries.metadata
    found = metadata.occurrences(entry_fields.ENCRYPTION_KEYS)
    inner = fields_of(entries.data, found.starts, found.ends, spans=(_KEY_NAME, _KEY_VALUE))
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
        cells.append(
            {
                "keys": [name for name, _ in by_row[row]],
                "dataKeys": [data_key for _, data_key in by_row[row]],
                "algo": entries.text(entry_fields.ENCRYPTION_ALGORITHM, row) or None,
                "param": params[place],
                "compression": NAMES[codec] if 0 <= codec < len(NAMES) else str(codec),
                "uncompressedSize": int(metadata.value(entry_fields.UNCOMPRESSED_SIZE)[row] & 0xFFFF_FFFF),
                "messages": int(metadata.int32(entry_fields.BATCH_MESSAGES)[row]) if entries.is_batch[row] else 1,
            }
        )
    return pa.array(cells, ENCRYPTION)
