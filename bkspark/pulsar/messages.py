"""Messages: the messages in entries: payloads decompressed, batches split. PURE.

The payload of an entry is compressed as a whole. That of a batch is, once decompressed, for each message

    u32 k | k bytes SingleMessageMetadata | payload_size bytes

and a message of a batch has its own key, properties, event time and null value. It has no key of the entry, which
shows that of the batch's first message.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from bkspark.pulsar import entries as entry_fields
from bkspark.pulsar.compression import decompress
from bkspark.pulsar.entries import UNCOMPRESSED_BYTES_MAX, Entries, MalformedEntry
from bkspark.pulsar.fields import Fields, MalformedFields, fields_of
from bkspark.pulsar.slices import big_endian

# Numbers of SingleMessageMetadata's fields.
(
    PROPERTIES,
    KEY,
    PAYLOAD_SIZE,
    COMPACTED_OUT,
    EVENT_TIME,
    KEY_IS_BASE64,
    ORDERING_KEY,
    SEQUENCE,
    NULL_VALUE,
    NULL_KEY,
) = range(1, 11)
_NUMBERS = (PAYLOAD_SIZE, COMPACTED_OUT, EVENT_TIME, KEY_IS_BASE64, SEQUENCE, NULL_VALUE, NULL_KEY)
_PAYLOAD_SIZE_TAG = PAYLOAD_SIZE << 3
_SIZE = struct.Struct(">I").unpack_from
_SIZE_BYTES = 4
_VARINT_BYTES_MAX = 9
CHUNKED_BYTES_MAX = 1 << 30
"""Limit of the payload of a message in chunks; of all others it is UNCOMPRESSED_BYTES_MAX."""
RUN_MIN = 8
"""Messages of one size that are found together, on average, before others are looked at one by one."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The payload of a chunked message, whole and still compressed, and the position of its first chunk."""

    payload: memoryview
    ledger_id: int
    entry_id: int


@dataclass(frozen=True, eq=False)
class Messages:
    """Messages in order; arrays have an item for each.

    entry        index of its entry in `entries`
    single       index of its metadata in `singles`; -1 for a message that is not of a batch
    batch_index  index in its batch; -1 for a message that is not of a batch, whose `batch_size` is 0
    starts, ends its payload is content[starts[i]:ends[i]]
    """

    entries: Entries
    content: memoryview
    entry: np.ndarray
    batch_index: np.ndarray
    batch_size: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    single: np.ndarray
    singles: Fields
    joined: Mapping[int, Joined]

    def __len__(self) -> int:
        return len(self.entry)

    def select(self, is_wanted: np.ndarray) -> Messages:
        """Return those that are wanted."""
        if is_wanted.all():
            return self
        return self._of(is_wanted)

    def part(self, places: slice) -> Messages:
        """Return the messages at some places."""
        return self if places.start == 0 and places.stop >= len(self) else self._of(places)

    def _of(self, chosen: np.ndarray | slice) -> Messages:
        names = ("entry", "batch_index", "batch_size", "starts", "ends", "single")
        return replace(self, **{name: getattr(self, name)[chosen] for name in names})

    def numbers(self, of_entry: int, of_single: int) -> np.ndarray:
        """Return int64 (n,): a number of the message's own metadata, or that of its entry if it has no own one."""
        found = self.entries.metadata.value(of_entry)[self.entry]
        if self.singles.is_absent(of_single):
            return found
        batched = np.flatnonzero(self.single >= 0)
        if len(batched):
            rows = self.single[batched]
            own = self.singles.has(of_single)[rows]
            found[batched] = np.where(own, self.singles.value(of_single)[rows], found[batched])
        return found

    @property
    def is_null(self) -> np.ndarray:
        """bool (n,): messages without a value, which is not an empty one."""
        if self.entries.metadata.is_absent(entry_fields.NULL_VALUE) and self.singles.is_absent(NULL_VALUE):
            return np.zeros(len(self), bool)
        return self.numbers(entry_fields.NULL_VALUE, NULL_VALUE) != 0

    @property
    def sequence_ids(self) -> np.ndarray:
        """int64 (n,): a batch's message without its own one has the batch's, plus its index in the batch."""
        found = self.numbers(entry_fields.SEQUENCE, SEQUENCE)
        batched = np.flatnonzero(self.single >= 0)
        if len(batched):
            lacks = batched[~self.singles.has(SEQUENCE)[self.single[batched]]]
            found[lacks] += self.batch_index[lacks]
        return found

    @property
    def indexes(self) -> np.ndarray:
        """int64 (n,): the broker's index of each message, derived from that of its entry's last one; -1 without one."""
        last = self.entries.indexes[self.entry]
        return np.where((last >= 0) & (self.single >= 0), last - self.batch_size + 1 + self.batch_index, last)


def messages_of(
    entries: Entries, rows: np.ndarray, joined: Mapping[int, Joined], *, is_raw: np.ndarray | None = None
) -> Messages:
    """Return the messages of some entries.

    Args:
        rows: places of the entries to take, ascending.
        joined: whole payloads of chunked messages, by the place of the entry that has the last chunk.
        is_raw: bool (n,), entries to take as one message each with the payload as it is stored: encrypted ones.

    Raises:
        MalformedEntry: a payload does not decompress to its size, or is not the batch that its metadata say.
    """
    raw = np.zeros(len(entries), bool) if is_raw is None else is_raw
    content, starts, ends = _contents(entries, rows, joined, raw)
    data = np.frombuffer(content, np.uint8)
    is_batch = (entries.is_batch & ~raw)[rows]
    counts = np.where(is_batch, entries.metadata.int32(entry_fields.BATCH_MESSAGES)[rows], 1)
    total = int(counts.sum())
    entry = np.repeat(rows, counts)
    batched = np.repeat(is_batch, counts)
    first = np.cumsum(counts) - counts
    batch_index = np.where(batched, np.arange(total) - np.repeat(first, counts), -1)
    batch_size = np.where(batched, np.repeat(counts, counts), 0)
    of_batches = np.flatnonzero(is_batch)
    batches = (starts[of_batches], ends[of_batches], counts[of_batches], rows[of_batches])
    try:
        meta_starts, meta_ends, payload_ends = _walk(content, *batches, is_guessed=True)
        singles = _single_fields(data, meta_starts, meta_ends, payload_ends, entry[batched])
    except MalformedEntry:
        # The guessed sizes may be wrong: before an entry is reported as malformed, each of its messages is parsed.
        meta_starts, meta_ends, payload_ends = _walk(content, *batches, is_guessed=False)
        singles = _single_fields(data, meta_starts, meta_ends, payload_ends, entry[batched])
    message_starts, message_ends = np.repeat(starts, counts), np.repeat(ends, counts)
    message_starts[batched], message_ends[batched] = meta_ends, payload_ends
    single = np.full(total, -1, np.int64)
    single[batched] = np.arange(len(meta_starts))
    messages = Messages(
        entries, content, entry, batch_index, batch_size, message_starts, message_ends, single, singles, joined
    )
    if singles.is_absent(COMPACTED_OUT):
        return messages
    is_left = np.ones(total, bool)
    is_left[batched] = ~singles.flag(COMPACTED_OUT)
    return messages.select(is_left)


def outlines_of(entries: Entries, rows: np.ndarray, joined: Mapping[int, Joined]) -> Messages:
    """Return the messages of some entries without their payloads and what batches have of their own: nothing is
    decompressed. For entries that are not of a compacted ledger, from whose batches messages may be gone."""
    is_batch = entries.is_batch[rows]
    counts = np.where(is_batch, entries.metadata.int32(entry_fields.BATCH_MESSAGES)[rows], 1)
    total = int(counts.sum())
    batched = np.repeat(is_batch, counts)
    places = np.arange(total)
    batch_index = np.where(batched, places - np.repeat(np.cumsum(counts) - counts, counts), -1)
    batch_size = np.where(batched, np.repeat(counts, counts), 0)
    nothing = np.zeros(total, np.int64)
    singles = Fields(total, _NUMBERS, (KEY, ORDERING_KEY), (PROPERTIES,))
    single = np.where(batched, places, -1)
    return Messages(
        entries,
        memoryview(b""),
        np.repeat(rows, counts),
        batch_index,
        batch_size,
        nothing,
        nothing,
        single,
        singles,
        joined,
    )


def _contents(
    entries: Entries, rows: np.ndarray, joined: Mapping[int, Joined], raw: np.ndarray
) -> tuple[memoryview, np.ndarray, np.ndarray]:
    """Return a buffer with the decompressed payloads, and where each entry's payload begins and ends in it."""
    starts, ends = entries.payload_starts[rows], entries.payload_ends[rows]
    view = entries.data.data
    is_plain = (entries.compressions[rows] == 0) | raw[rows]
    if is_plain.all() and not joined:
        return view, starts, ends
    parts = []
    wrong: dict[int, str] = {}
    facts = (rows, starts, ends, entries.compressions[rows], entries.uncompressed_sizes[rows], is_plain)
    for row, start, end, codec, size, plain in zip(*(fact.tolist() for fact in facts)):
        part = joined[row].payload if row in joined else view[start:end]
        if not plain:
            limit = CHUNKED_BYTES_MAX if row in joined else UNCOMPRESSED_BYTES_MAX
            try:
                if size > limit:
                    raise ValueError(f"it says to have {size} bytes, more than {limit}")
                part = decompress(codec, part, size)
            except ValueError as error:
                wrong[row] = str(error)
        parts.append(part)
    if wrong:
        raise MalformedEntry(np.array([*wrong]), next(iter(wrong.values())))
    sizes = np.fromiter(map(len, parts), np.int64, len(parts))
    ends = np.cumsum(sizes)
    if len(parts) == 1:
        return parts[0], ends - sizes, ends
    # Arrow's pool gives the same memory again and again, where the heap would take new pages each time.
    whole = np.frombuffer(pa.allocate_buffer(int(sizes.sum())), np.uint8)
    for part, start, end in zip(parts, (ends - sizes).tolist(), ends.tolist()):
        whole[start:end] = np.frombuffer(part, np.uint8)
    return whole.data, ends - sizes, ends


def _walk(
    content: memoryview, starts: np.ndarray, ends: np.ndarray, counts: np.ndarray, rows: np.ndarray, *, is_guessed: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return where the metadata of each message of some batches begin and end, and where its payload ends.

    Where a message begins, the one before it says. Messages of one size are common: where `is_guessed`, they are found
    together, and what this finds wrong, parsing the metadata notices.
    """
    data = np.frombuffer(content, np.uint8)
    first = np.cumsum(counts) - counts
    begins = np.empty(int(counts.sum()), np.int64)
    at, done = starts.copy(), np.zeros(len(counts), np.int64)
    if is_guessed:
        _find_runs(content, begins, (at, ends), (first, counts, done))
    wrong = []
    for each in np.flatnonzero((done < counts) | (at != ends)).tolist():
        left, place = int(counts[each] - done[each]), int(first[each] + done[each])
        found = _begins_of(content, int(at[each]), int(ends[each]), left)
        if found is None:
            wrong.append(each)
        else:
            begins[place : place + left] = found
    if wrong:
        reason = f"its payload is not a batch of {int(counts[wrong[0]])} messages, as its metadata say"
        raise MalformedEntry(rows[wrong], reason)
    payload_ends = np.empty_like(begins)
    payload_ends[:-1] = begins[1:]
    has_any = counts > 0
    payload_ends[(first + counts - 1)[has_any]] = ends[has_any]
    meta_starts = begins + _SIZE_BYTES
    meta_ends = meta_starts + big_endian(data, begins, _SIZE_BYTES)
    is_right = meta_ends <= payload_ends
    if not is_right.all():
        wrong_rows = np.unique(np.repeat(rows, counts)[~is_right])
        raise MalformedEntry(wrong_rows, "a message of its batch ends within its metadata")
    return meta_starts, meta_ends, payload_ends


def _find_runs(
    content: memoryview,
    begins: np.ndarray,
    bounds: tuple[np.ndarray, np.ndarray],
    progress: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    """Find messages that follow each other in the same size, in all batches at once, as long as that is many.

    Args:
        begins: takes where messages begin.
        bounds: where each batch goes on, which is moved, and where it ends.
        progress: of each batch: the place of its first message in `begins`, messages in all, and done, which is moved.
    """
    data = np.frombuffer(content, np.uint8)
    (at, ends), (first, counts, done) = bounds, progress
    while True:
        batches = np.flatnonzero(done < counts)
        stride, size_at, size_bytes = _heads(content, at[batches], ends[batches]).T
        batches, stride, size_at, size_bytes = (each[stride > 0] for each in (batches, stride, size_at, size_bytes))
        if not len(batches):
            return
        tried = np.minimum(counts[batches] - done[batches], (ends[batches] - at[batches]) // stride)
        of_batch = np.repeat(np.arange(len(batches)), tried)
        number = np.arange(len(of_batch)) - np.repeat(np.cumsum(tried) - tried, tried)
        places = at[batches][of_batch] + number * stride[of_batch]
        # What counts: the size of the metadata, and the field that has the size of the payload.
        head_sizes = big_endian(data, at[batches], _SIZE_BYTES)
        differs = big_endian(data, places, _SIZE_BYTES) != head_sizes[of_batch]
        for place in range(int(size_bytes.max())):
            offset = size_at + np.minimum(place, size_bytes - 1)
            differs |= data[places + offset[of_batch]] != data[at[batches] + offset][of_batch]
        run = tried.copy()
        np.minimum.at(run, of_batch[differs], number[differs])
        is_found = number < run[of_batch]
        begins[(first[batches] + done[batches])[of_batch[is_found]] + number[is_found]] = places[is_found]
        done[batches] += run
        at[batches] += run * stride
        if run.sum() < RUN_MIN * len(batches):
            return


def _heads(content: memoryview, at: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return int64 (n, 3), the `_head` of each message. Those that look like the first one get its head, unparsed."""
    heads = np.zeros((len(at), 3), np.int64)
    others = np.arange(len(at))
    if len(at):
        stride, size_at, size_bytes = heads[0] = _head(content, at.item(0), ends.item(0))
        if stride:
            data = np.frombuffer(content, np.uint8)
            near = np.flatnonzero(at + stride <= ends)
            is_same = big_endian(data, at[near], _SIZE_BYTES) == _SIZE(content, at.item(0))[0]
            for place in range(size_at, size_at + size_bytes):
                is_same &= data[at[near] + place] == data[at.item(0) + place]
            heads[near[is_same]] = heads[0]
            others = np.flatnonzero(heads[:, 0] == 0)
    for each in others.tolist():
        heads[each] = _head(content, at.item(each), ends.item(each))
    return heads


def _head(content: memoryview, at: int, end: int) -> tuple[int, int, int]:
    """Return the size of the message at a place, and where the field of its payload's size begins in it and how long it
    is; zeros where the message is not whole."""
    nothing = (0, 0, 0)
    try:
        place = at + _SIZE_BYTES
        after = place + _SIZE(content, at)[0]
        while content[place] != _PAYLOAD_SIZE_TAG:
            if content[place] & 7 != 2:
                return nothing
            size, place = _varint(content, place + 1)
            place += size
        size, size_end = _varint(content, place + 1)
    except (IndexError, struct.error):
        return nothing
    after += size
    return (after - at, place - at, size_end - place) if size_end <= after <= end else nothing


def _begins_of(content: memoryview, at: int, end: int, count: int) -> list[int] | None:
    """Return where each message of a batch begins, if they fill [at, end); None where they do not.

    This is the only loop over messages. It may read beyond the batch, which it detects at the end.
    """
    begins = []
    try:
        for _ in range(count):
            begins.append(at)
            place = at + _SIZE_BYTES
            at = place + _SIZE(content, at)[0]
            while content[place] != _PAYLOAD_SIZE_TAG:
                # A field of bytes comes before: a property or the key.
                if content[place] & 7 != 2:
                    return None
                size, place = _varint(content, place + 1)
                place += size
            octet = content[place + 1]
            if octet < 0x80:
                at += octet
            elif (second := content[place + 2]) < 0x80:
                at += (octet & 0x7F) | second << 7
            else:
                at += _varint(content, place + 1)[0]
            if at > end:
                return None
    except (IndexError, struct.error):
        return None
    return begins if at == end else None


def _varint(content: memoryview, place: int) -> tuple[int, int]:
    """Return the number at a place, and where it ends."""
    octet = content[place]
    value, shift = octet & 0x7F, 7
    while octet >= 0x80:
        if shift > 7 * _VARINT_BYTES_MAX:
            raise IndexError
        place += 1
        octet = content[place]
        value |= (octet & 0x7F) << shift
        shift += 7
    return value, place + 1


def _single_fields(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, payload_ends: np.ndarray, entry: np.ndarray
) -> Fields:
    try:
        singles = fields_of(data, starts, ends, numbers=_NUMBERS, spans=(KEY, ORDERING_KEY), repeated=(PROPERTIES,))
    except MalformedFields as error:
        raise MalformedEntry(entry[error.rows], f"a message of its batch has {error}") from None
    is_right = singles.int32(PAYLOAD_SIZE) == payload_ends - ends
    if not is_right.all():
        raise MalformedEntry(np.unique(entry[~is_right]), "a message of its batch gives two sizes of its payload")
    return singles
