"""The V3 protocol of BookKeeper: protobuf messages (`bookkeeper_protocol.proto`), and adds whole batches at a time.

A frame body is a serialised Request or Response. Everything but adds goes through protobuf's classes. Adds have a codec
of their own, as each of them would cost several objects otherwise. It rests on how every known peer writes an add:
fields by ascending number, each once, numbers in as few bytes as they need:

    request   0a H  08 03  10 02  18 txnId  [20 priority]
              aa 06 A  08 ledger  10 entry  1a 14 master key (20)  22 B  entry  [28 write flags]  [a0 06 01: recovery]
              [c2 0c ...: context]
    response  0a H  08 03  10 02  18 txnId  10 status
              aa 06 A  08 status  10 ledger  18 entry

Frames of equal length that differ only in the numbers' values are a run, found and decoded by array operations over the
first frame as a template. A frame in any other form is no error: it is left to protobuf's classes.

Ids are int64 as protobuf writes them: below 0 in ten bytes. `txnId`, below 2**63 here, matches responses to requests.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from google.protobuf.message import DecodeError

from bkspark.errors import ProtocolError
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire.digest import MASTER_KEY_BYTES, SealedEntries
from bkspark.wire.framing import LENGTH_BYTES, FrameTable, equal_step

FIRST_BYTE = 0x0A
"""A V3 body begins with the tag of its header field; a V2 body begins with its version, 0 to 2."""
HIGH_PRIORITY = 100
"""What Apache's client sends for requests that a read-only bookie may take; anything above 0 counts."""
DEFERRED_SYNC = 1
"""Write flag: acknowledge an add before its fsync."""


class Status(enum.IntEnum):
    """Status codes of V3 responses."""

    EOK = 0
    ENOLEDGER = 402
    ENOENTRY = 403
    EBADREQ = 404
    EIO = 501
    EUA = 502
    EBADVERSION = 503
    EFENCED = 504
    EREADONLY = 505
    ETOOMANYREQUESTS = 506
    EUNKNOWNLEDGERSTATE = 507


Buffer = bytes | bytearray | memoryview

_VARINT_BYTES_MAX = 10
_VARINT, _BYTES = 0, 2
_HEADER, _STATUS, _ADD, _CONTEXT = 1, 2, 101, 200
_VERSION, _OPERATION, _TXN_ID, _PRIORITY = 1, 2, 3, 4
_LEDGER, _ENTRY, _KEY, _BODY, _WRITE_FLAGS, _FLAG = 1, 2, 3, 4, 5, 100
_ADD_HEAD = bytes((0x08, protocol.VERSION_THREE, 0x10, protocol.ADD_ENTRY))
_ADD_TAG = b"\xaa\x06"
_RECOVERY = b"\xa0\x06\x01"
_WIDTH_LIMITS = np.array([1 << (7 * width) for width in range(1, 9)], np.int64)
"""From the i-th on a number takes more than i + 1 bytes; from 2**63 on, and below 0, ten."""

# What of a byte two frames of one run have in common.
_SAME, _WIDTH_ONLY, _NOTHING = 0xFF, 0x80, 0x00


# ---- one message at a time ----


def is_v3(body: Buffer | np.ndarray) -> bool:
    """Return whether a frame body of a new connection is V3's; an empty one is not."""
    return len(body) > 0 and body[0] == FIRST_BYTE


def decode_request(body: bytes) -> protocol.Request:
    """Return the request of a frame body.

    Raises:
        ProtocolError: it is none, or lacks the message of its operation.
    """
    try:
        return protocol.Request.FromString(body)
    except DecodeError as error:
        raise ProtocolError(f"a frame of {len(body)} bytes is neither V2 nor a V3 request ({error})") from error


def decode_response(body: bytes) -> protocol.Response:
    """Return the response of a frame body. Raises ProtocolError when it is none."""
    try:
        return protocol.Response.FromString(body)
    except DecodeError as error:
        raise ProtocolError(f"a frame of {len(body)} bytes is no V3 response ({error})") from error


def encode_message(message: protocol.Request | protocol.Response) -> bytes:
    """Return a message as a frame."""
    body = message.SerializeToString()
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def header(operation: int, txn_id: int, priority: int = 0) -> protocol.BKPacketHeader:
    """Return the header of a request or response."""
    made = protocol.BKPacketHeader(version=protocol.VERSION_THREE, operation=operation, txnId=txn_id)
    if priority:
        made.priority = priority
    return made


# ---- server side: adds in ----


@dataclass(frozen=True, slots=True)
class AddRequests:
    """Adds that came together and have the same flags, as arrays of equal length in order of arrival.

    `key_starts`, `body_starts`, `body_ends`: where the 20-byte master key and the entry lie in the buffer. The ids are
    the request's own; an entry begins with its ids, too, and those count.
    """

    txn_ids: np.ndarray
    ledger_ids: np.ndarray
    entry_ids: np.ndarray
    key_starts: np.ndarray
    body_starts: np.ndarray
    body_ends: np.ndarray
    priority: int
    is_recovery: bool
    write_flags: int

    def __len__(self) -> int:
        return len(self.txn_ids)


def decode_adds(octets: np.ndarray, table: FrameTable, first: int) -> AddRequests | None:
    """Return the adds in frames first, first + 1, ... that have the form of frame `first`, at least that one.

    Args:
        octets: uint8 of the buffer that `table` describes.

    Returns:
        None: frame `first` is no add in the form that this module specifies; `decode_request` takes it.
    """
    start, end = int(table.starts[first]), int(table.ends[first])
    template = _AddTemplate.of(octets[start:end].tobytes())
    if template is None:
        return None
    rows, starts = _run(octets, table, first, template.frame, template.common)
    return AddRequests(
        _values(rows, template.txn_id),
        _values(rows, template.ledger_id),
        _values(rows, template.entry_id),
        starts + template.key_start,
        starts + template.body[0],
        starts + template.body[1],
        template.priority,
        template.is_recovery,
        template.write_flags,
    )


@dataclass(frozen=True, slots=True)
class _AddTemplate:
    """One add request taken apart; (start, end) are offsets in the frame body.

    `common` tells for each byte what of it others of a run share.
    """

    frame: np.ndarray
    common: np.ndarray
    txn_id: tuple[int, int]
    ledger_id: tuple[int, int]
    entry_id: tuple[int, int]
    key_start: int
    body: tuple[int, int]
    priority: int
    is_recovery: bool
    write_flags: int

    @classmethod
    def of(cls, frame: bytes) -> _AddTemplate | None:
        """Return the template that a frame makes, None when it is not of the form."""
        try:
            outer = _fields(frame, 0, len(frame))
            if set(outer) - {_HEADER, _ADD, _CONTEXT}:
                return None
            head = _fields(frame, *outer[_HEADER].span)
            add = _fields(frame, *outer[_ADD].span)
            is_known = not (set(head) - {1, 2, 3, 4} or set(add) - {1, 2, 3, 4, 5, 100})
            key, body = add[_KEY], add[_BODY]
            is_add = (head[_VERSION].number, head[_OPERATION].number) == (protocol.VERSION_THREE, protocol.ADD_ENTRY)
            if not (is_known and is_add) or key.span[1] - key.span[0] != MASTER_KEY_BYTES:
                return None
            numbers = (head[_TXN_ID], add[_LEDGER], add[_ENTRY])
            priority, write_flags = head.get(_PRIORITY, _ABSENT), add.get(_WRITE_FLAGS, _ABSENT)
            flag = add.get(_FLAG, _ABSENT)
            if flag.number not in (0, protocol.AddRequest.RECOVERY_ADD):
                return None
            txn_id, ledger_id, entry_id = (each.at for each in numbers if each.varint is not None)
            bodies = (key.span, body.span)
        except (KeyError, _NotOfTheForm):
            return None
        common = np.full(len(frame), _SAME, np.uint8)
        for span in (txn_id, ledger_id, entry_id):
            common[slice(*span)] = _WIDTH_ONLY
        for span in bodies:
            common[slice(*span)] = _NOTHING
        return cls(
            np.frombuffer(frame, np.uint8),
            common,
            txn_id,
            ledger_id,
            entry_id,
            key.span[0],
            body.span,
            priority.number,
            bool(flag.number),
            write_flags.number,
        )


# ---- client side: answers of adds in ----


@dataclass(frozen=True, slots=True)
class AddResponses:
    """Answers of adds that came together, as arrays of equal length; statuses are V3's."""

    txn_ids: np.ndarray
    statuses: np.ndarray
    ledger_ids: np.ndarray
    entry_ids: np.ndarray

    def __len__(self) -> int:
        return len(self.txn_ids)


def decode_add_responses(octets: np.ndarray, table: FrameTable, first: int) -> AddResponses | None:
    """Return the answers of adds in frames first, first + 1, ... that have the form of frame `first`.

    None: frame `first` is not such an answer in the form that this module specifies; `decode_response` takes it.
    """
    start, end = int(table.starts[first]), int(table.ends[first])
    frame = octets[start:end].tobytes()
    try:
        outer = _fields(frame, 0, len(frame))
        head = _fields(frame, *outer[_HEADER].span)
        add = _fields(frame, *outer[_ADD].span)
        if set(outer) != {_HEADER, _STATUS, _ADD} or set(head) != {1, 2, 3} or set(add) != {1, 2, 3}:
            return None
        if (head[_VERSION].number, head[_OPERATION].number) != (protocol.VERSION_THREE, protocol.ADD_ENTRY):
            return None
        numbers = (head[_TXN_ID], add[1], add[2], add[3], outer[_STATUS])
        varints = [each.at for each in numbers if each.number >= 0]
    except (KeyError, _NotOfTheForm):
        return None
    common = np.full(len(frame), _SAME, np.uint8)
    for span in varints:
        common[slice(*span)] = _WIDTH_ONLY
    rows, _ = _run(octets, table, first, np.frombuffer(frame, np.uint8), common)
    txn_ids, statuses, ledger_ids, entry_ids, _ = (_values(rows, span) for span in varints)
    return AddResponses(txn_ids, statuses, ledger_ids, entry_ids)


# ---- server side: answers of adds out ----


def encode_add_responses(
    txn_ids: np.ndarray, statuses: np.ndarray, ledger_ids: np.ndarray, entry_ids: np.ndarray
) -> bytes:
    """Return one response frame per add, back to back; statuses are V3's."""
    txn_ids, statuses = np.asarray(txn_ids, np.int64), np.asarray(statuses, np.int64)
    numbers = (txn_ids, statuses, statuses, np.asarray(ledger_ids, np.int64), np.asarray(entry_ids, np.int64))
    parts = []
    for rows, widths in _equal_widths(numbers):
        txn_width, status_width, _, ledger_width, entry_width = widths
        inner = 3 + status_width + ledger_width + entry_width
        head = len(_ADD_HEAD) + 1 + txn_width
        body = 2 + head + 1 + status_width + len(_ADD_TAG) + 1 + inner
        parts.append(
            _table(
                rows.stop - rows.start,
                body.to_bytes(LENGTH_BYTES, "big") + bytes((FIRST_BYTE, head)) + _ADD_HEAD + b"\x18",
                (txn_ids[rows], txn_width),
                b"\x10",
                (statuses[rows], status_width),
                _ADD_TAG + bytes((inner, 0x08)),
                (statuses[rows], status_width),
                b"\x10",
                (numbers[3][rows], ledger_width),
                b"\x18",
                (numbers[4][rows], entry_width),
            ).tobytes()
        )
    return b"".join(parts)


# ---- client side: adds out ----


def encode_adds(
    entries: SealedEntries,
    ledger_id: int,
    first_txn_id: int,
    master_key: bytes,
    *,
    is_recovery: bool = False,
    write_flags: int = 0,
    priority: int = 0,
) -> SealedEntries:
    """Return one request frame per sealed entry (`EntryDigest.seal` without head), with ascending txnIds."""
    count = len(entries.offsets) - 1
    txn_ids = np.arange(first_txn_id, first_txn_id + count)
    entry_ids = np.arange(entries.first_entry, entries.first_entry + count)
    sizes = np.diff(entries.offsets) - LENGTH_BYTES
    tail = (b"\x28" + _varint(write_flags) if write_flags else b"") + (_RECOVERY if is_recovery else b"")
    urgency = b"\x20" + _varint(priority) if priority else b""
    ledger = _varint(ledger_id)
    parts: list[Buffer] = [tail] * (3 * count)
    frame_sizes = np.empty(count, np.int64)
    bounds = entries.offsets.tolist()
    view = memoryview(entries.buffer)
    # Frames of a piece have the same layout: numbers of equal widths and entries of equal size.
    for rows, widths in _equal_widths((txn_ids, entry_ids), sizes):
        size = int(sizes[rows.start])
        head = len(_ADD_HEAD) + 1 + widths[0] + len(urgency)
        before_entry = bytes((0x1A, MASTER_KEY_BYTES)) + master_key + b"\x22" + _varint(size)
        add = 2 + len(ledger) + widths[1] + len(before_entry) + size + len(tail)
        add_head = _ADD_TAG + _varint(add)
        body = 2 + head + len(add_head) + add
        fronts = _table(
            rows.stop - rows.start,
            body.to_bytes(LENGTH_BYTES, "big") + bytes((FIRST_BYTE, head)) + _ADD_HEAD + b"\x18",
            (txn_ids[rows], widths[0]),
            urgency + add_head + b"\x08" + ledger + b"\x10",
            (entry_ids[rows], widths[1]),
            before_entry,
        )
        width = fronts.shape[1]
        front_view = fronts.reshape(-1).data
        frame_sizes[rows] = LENGTH_BYTES + body
        parts[3 * rows.start : 3 * rows.stop : 3] = [
            front_view[at : at + width] for at in range(0, len(front_view), width)
        ]
    parts[1::3] = [view[start + LENGTH_BYTES : end] for start, end in itertools.pairwise(bounds)]
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(frame_sizes, out=offsets[1:])
    return SealedEntries(memoryview(b"".join(parts)), offsets, entries.first_entry)


# ---- varints and fields ----


class _NotOfTheForm(Exception):
    """A frame that protobuf's classes must look at."""


@dataclass(frozen=True, slots=True)
class _Field:
    """Where a field's value lies, and the number of a varint."""

    at: tuple[int, int]
    varint: int | None

    @property
    def span(self) -> tuple[int, int]:
        """Raises _NotOfTheForm where a varint stands in place of bytes."""
        if self.varint is not None:
            raise _NotOfTheForm
        return self.at

    @property
    def number(self) -> int:
        """Raises _NotOfTheForm where bytes stand in place of a varint."""
        if self.varint is None:
            raise _NotOfTheForm
        return self.varint


_ABSENT = _Field((0, 0), 0)


def _fields(frame: bytes, start: int, end: int) -> dict[int, _Field]:
    """Return the fields of a message at frame[start:end] by number.

    Raises:
        _NotOfTheForm: a field comes twice, has a wire type that adds do not use, or does not end within the message.
    """
    found: dict[int, _Field] = {}
    while start < end:
        tag, start = _read_varint(frame, start, end)
        value_start = start
        number, start = _read_varint(frame, start, end)
        field = _Field((value_start, start), number)
        if tag & 7 == _BYTES:
            field = _Field((start, start + number), None)
            start += number
        if tag & 7 not in (_VARINT, _BYTES) or tag >> 3 in found or start > end:
            raise _NotOfTheForm
        found[tag >> 3] = field
    return found


def _read_varint(frame: bytes, start: int, end: int) -> tuple[int, int]:
    value = 0
    for index in range(min(_VARINT_BYTES_MAX, end - start)):
        byte = frame[start + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if index and not byte:
                raise _NotOfTheForm  # padded with zeros
            return value, start + index + 1
    raise _NotOfTheForm


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    octets = bytearray()
    while value >= 0x80:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)


def _run(
    octets: np.ndarray, table: FrameTable, first: int, frame: np.ndarray, common: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return frames first, ... as rows, as long as they agree with `frame` in what is common; and their starts."""
    size = len(frame)
    lengths = table.ends[first:] - table.starts[first:]
    count = len(lengths) if bool((lengths == size).all()) else int(np.argmax(lengths != size))
    starts = table.starts[first : first + count]
    if count > 1 and equal_step(starts) == size + LENGTH_BYTES:
        begin = int(starts[0])
        rows = np.lib.stride_tricks.as_strided(octets[begin:], (count, size), (size + LENGTH_BYTES, 1))
    else:
        rows = octets[starts[:, None] + np.arange(size)]
    compared = np.flatnonzero(common)
    mask = common[compared]
    agrees = ((rows[:, compared] & mask) == (frame[compared] & mask)).all(axis=1)
    if not agrees.all():
        count = int(np.argmin(agrees))
    return rows[:count], starts[:count]


def _values(rows: np.ndarray, span: tuple[int, int]) -> np.ndarray:
    """Return the numbers whose varints lie in columns `span` of the rows, int64."""
    values = np.zeros(len(rows), np.uint64)
    for index, column in enumerate(range(*span)):
        values |= (rows[:, column] & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * index)
    return values.view(np.int64)


def _widths(values: np.ndarray) -> np.ndarray:
    """Return how many bytes the varint of each int64 takes."""
    return np.where(values < 0, _VARINT_BYTES_MAX, 1 + np.searchsorted(_WIDTH_LIMITS, values, side="right"))


def _equal_widths(numbers: Sequence[np.ndarray], *same: np.ndarray) -> Iterator[tuple[slice, tuple[int, ...]]]:
    """Yield pieces in which the varints of each column have one width, and `same` columns one value; and the widths."""
    widths = [_widths(column) for column in numbers]
    count = len(numbers[0])
    differs = np.zeros(max(0, count - 1), bool)
    for column in (*widths, *same):
        differs |= column[1:] != column[:-1]
    edges = [0, *(np.flatnonzero(differs) + 1).tolist(), count]
    for start, end in itertools.pairwise(edges):
        if start < end:
            yield slice(start, end), tuple(int(column[start]) for column in widths)


def _table(count: int, *pieces: bytes | tuple[np.ndarray, int]) -> np.ndarray:
    """Return uint8 rows made of constant bytes and of varints: (values, width) each."""
    width = sum(len(piece) if isinstance(piece, bytes) else piece[1] for piece in pieces)
    rows = np.empty((count, width), np.uint8)
    at = 0
    for piece in pieces:
        if isinstance(piece, bytes):
            rows[:, at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)
            continue
        values, octets = piece[0].view(np.uint64), piece[1]
        for index in range(octets):
            more = 0x80 if index < octets - 1 else 0
            rows[:, at + index] = (values >> np.uint64(7 * index)).astype(np.uint8) & 0x7F | more
        at += octets
    return rows
