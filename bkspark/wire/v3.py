"""The V3 protocol of BookKeeper: protobuf messages (`bookkeeper_protocol.proto`), and adds whole batches at a time.

A frame body is a serialised Request or Response. Everything but adds goes through protobuf's classes. Adds have their
own codec, because each of them would otherwise cost several objects. It relies on how every known peer writes an add:
fields by ascending number, each once, numbers in as few bytes as they need:

    request   0a H  08 03  10 02  18 txnId  [20 priority]
              aa 06 A  08 ledger  10 entry  1a 14 master key (20)  22 B  entry  [28 write flags]  [a0 06 01: recovery]
              [c8 3e 01: not to be journaled]  [c2 0c ...: context]
    response  0a H  08 03  10 02  18 txnId  10 status
              aa 06 A  08 status  10 ledger  18 entry  [c8 3e LastAddSynced]

Frames of equal length that differ only in the numbers' values are a run, found and decoded by array operations over the
first frame as a template (requests: `v3_adds`). Protobuf's classes decode a frame in any other form.

Field 1001, `c8 3e`, is our own extension (docs/relaxed-durability.md); Apache's peers ignore it.

Ids are int64 as protobuf writes them: below 0 in ten bytes. `txnId`, below 2**63 here, matches responses to requests.
"""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass
from functools import partial

import numpy as np
from google.protobuf.message import DecodeError

from bkspark.errors import ProtocolError
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire.digest import SealedEntries
from bkspark.wire.flags import AddFlags
from bkspark.wire.framing import LENGTH_BYTES, FrameTable
from bkspark.wire.layout import MASTER_KEY_BYTES
from bkspark.wire.status import Status
from bkspark.wire.v3_fields import (
    SAME,
    WIDTH_ONLY,
    NotOfTheForm,
    Walk,
    big_endian,
    equal_widths,
    fields,
    order_of_few_pieces,
    rows_of,
    run_of,
    skip_header,
    values_in,
    varint,
    walked,
    widths,
)

FIRST_BYTE = 0x0A
"""A V3 body begins with the tag of its header field; a V2 body begins with its version, 0 to 2."""
URGENT_PRIORITY = 100
"""Priority that Apache's client sends for requests that a read-only bookie may accept; any value above 0 counts."""
DEFERRED_SYNC = 1
"""Write flag: acknowledge an add before its fsync."""


class StatusCode(enum.IntEnum):
    """The codes of V3 responses, by the names of `Status`."""

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


_STATUSES = np.full(max(StatusCode) + 1, int(Status.EIO), np.int32)
_CODES = np.full(max(Status) + 1, int(StatusCode.EIO), np.int64)
for _code in StatusCode:
    _STATUSES[_code] = Status[_code.name]
    _CODES[Status[_code.name]] = _code


def statuses_of(codes: np.ndarray) -> np.ndarray:
    """Return the statuses that codes mean, int32. An unknown code becomes EIO: it is not a certain answer."""
    known = (codes >= 0) & (codes < len(_STATUSES))
    return np.where(known, _STATUSES[np.where(known, codes, 0)], np.int32(Status.EIO))


def code_of(status: int) -> int:
    """Return what V3 sends for a status."""
    return int(_CODES[status])


def codes_of(statuses: int | np.ndarray) -> np.ndarray:
    """Return what V3 sends for each status, int64."""
    return _CODES[statuses]


@dataclass(slots=True)
class TxnIds:
    """Generates unique txnIds for all connections of a client."""

    next_id: int = 0
    """The first id that was not given out. Only grows."""

    def reserve(self, count: int) -> int:
        """Return the first of `count` consecutive ids."""
        first = self.next_id
        self.next_id += count
        return first


Buffer = bytes | bytearray | memoryview

_HEADER, _STATUS, _ADD = 1, 2, 101
_VERSION, _OPERATION, _TXN_ID = 1, 2, 3
_LAST_SYNCED = 1001
_ADD_HEAD = bytes((0x08, protocol.VERSION_THREE, 0x10, protocol.ADD_ENTRY))
_ADD_TAG = b"\xaa\x06"
_RESPONSE_TAGS = {protocol.READ_ENTRY: b"\xa2\x06", protocol.ADD_ENTRY: _ADD_TAG}
_RECOVERY = b"\xa0\x06\x01"
_BYPASS_JOURNAL = b"\xc8\x3e\x01"
_LAST_SYNCED_TAG = b"\xc8\x3e"
_LONG_RUN = 64
"""Shorter runs of answers in frames of one form are decoded together with the answers after them."""


# ---- one message at a time ----


def decode_request(body: bytes) -> protocol.Request:
    """Return the request of a frame body.

    Raises:
        ProtocolError: it is not a request, or lacks a required field; an unknown version or operation counts as a
            missing one.
    """
    try:
        request = protocol.Request.FromString(body)
    except DecodeError as error:
        raise ProtocolError(f"a frame of {len(body)} bytes is neither V2 nor a V3 request ({error})") from error
    _check_complete(request, "request")
    return request


def decode_response(body: bytes) -> protocol.Response:
    """Return the response of a frame body. Raises ProtocolError when it is not a response, or lacks a required
    field."""
    try:
        response = protocol.Response.FromString(body)
    except DecodeError as error:
        raise ProtocolError(f"a frame of {len(body)} bytes is not a V3 response ({error})") from error
    _check_complete(response, "response")
    return response


def _check_complete(message: protocol.Request | protocol.Response, what: str) -> None:
    # Some of protobuf's implementations leave this to their users.
    if not message.IsInitialized():
        missing = ", ".join(message.FindInitializationErrors())
        raise ProtocolError(f"a V3 {what} lacks {missing}, or has a value there that is not known")


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


# ---- client side: answers of adds in ----


@dataclass(frozen=True, slots=True)
class AddResponses:
    """Answers of adds that came together, as arrays of equal length; statuses are V3's.

    `last_synced`: the LastAddSynced in each, or None.
    """

    txn_ids: np.ndarray
    statuses: np.ndarray
    ledger_ids: np.ndarray
    entry_ids: np.ndarray
    last_synced: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.txn_ids)


def decode_add_responses(octets: np.ndarray, table: FrameTable, first: int) -> AddResponses | None:
    """Return the answers of adds in frames first, first + 1, ... that have the form of frame `first`.

    None: frame `first` is not such an answer in the form that this module specifies; `decode_response` takes it.
    """
    start, end = int(table.starts[first]), int(table.ends[first])
    frame = octets[start:end].tobytes()
    try:
        outer = fields(frame, 0, len(frame))
        head = fields(frame, *outer[_HEADER].span)
        add = fields(frame, *outer[_ADD].span)
        if set(outer) != {_HEADER, _STATUS, _ADD} or set(head) != {1, 2, 3} or set(add) - {_LAST_SYNCED} != {1, 2, 3}:
            return None
        if (head[_VERSION].number, head[_OPERATION].number) != (protocol.VERSION_THREE, protocol.ADD_ENTRY):
            return None
        numbers = (head[_TXN_ID], add[1], add[2], add[3], outer[_STATUS])
        varints = [each.at for each in numbers if each.number >= 0]
        synced = add.get(_LAST_SYNCED)
        if synced is not None and synced.number >= 0:
            varints.append(synced.at)
    except (KeyError, NotOfTheForm):
        return None
    common = np.full(len(frame), SAME, np.uint8)
    for span in varints:
        common[slice(*span)] = WIDTH_ONLY
    rows, _ = run_of(octets, table, first, np.frombuffer(frame, np.uint8), common)
    if len(rows) < min(_LONG_RUN, len(table) - first):
        found = walked(partial(_add_answers, has_synced=synced is not None), octets, table, first)
        if len(found[0]) > len(rows):
            return AddResponses(*found)
    txn_ids, statuses, ledger_ids, entry_ids, _, *last_synced = (values_in(rows, span) for span in varints)
    return AddResponses(txn_ids, statuses, ledger_ids, entry_ids, *last_synced)


def _add_answers(walk: Walk, *, has_synced: bool) -> tuple[np.ndarray, ...]:
    """Return the arrays of answers, all with or all without LastAddSynced, whose numbers may differ in width."""
    head_ends, txn_ids = skip_header(walk, FIRST_BYTE, _ADD_HEAD)
    numbers = [txn_ids]
    walk.keep_at(head_ends)
    walk.bytes(b"\x10")
    walk.number()  # the same as the one within
    walk.bytes(_ADD_TAG)
    add_ends = walk.length()
    for tag in (b"\x08", b"\x10", b"\x18", *([_LAST_SYNCED_TAG] if has_synced else [])):
        walk.bytes(tag)
        numbers.append(walk.number())
    walk.keep_at(add_ends)
    count = walk.count()
    return tuple(each[:count] for each in numbers)


# ---- server side: answers of adds out ----


def encode_add_responses(
    txn_ids: np.ndarray,
    statuses: np.ndarray,
    ledger_ids: np.ndarray,
    entry_ids: np.ndarray,
    last_synced: np.ndarray | None = None,
) -> bytes:
    """Return one response frame per add, back to back; statuses are V3's. `last_synced`: a LastAddSynced for each."""
    return encode_short_responses(protocol.ADD_ENTRY, txn_ids, statuses, ledger_ids, entry_ids, last_synced)


def encode_short_responses(
    operation: int,
    txn_ids: np.ndarray,
    statuses: np.ndarray,
    ledger_ids: np.ndarray,
    entry_ids: np.ndarray,
    last_synced: np.ndarray | None = None,
) -> bytes:
    """Return one frame per answer that has a status, a ledger and an entry and no body; statuses are V3's.

    The frames may be in another order.

    Args:
        operation: ADD_ENTRY, which alone may have `last_synced`, or READ_ENTRY.
    """
    tag = _RESPONSE_TAGS[operation]
    operation_head = bytes((0x08, protocol.VERSION_THREE, 0x10, operation))
    txn_ids, statuses = np.asarray(txn_ids, np.int64), np.asarray(statuses, np.int64)
    ledger_ids, entry_ids = np.asarray(ledger_ids, np.int64), np.asarray(entry_ids, np.int64)
    if last_synced is None:
        columns = (txn_ids, statuses, ledger_ids, entry_ids)
        order = order_of_few_pieces(len(txn_ids), [widths(each) for each in columns])
        if order is not None:
            txn_ids, statuses, ledger_ids, entry_ids = (each[order] for each in columns)
    numbers = [txn_ids, statuses, statuses, ledger_ids, entry_ids]
    if last_synced is not None:
        last_synced = np.asarray(last_synced, np.int64)
        numbers.append(last_synced)
    parts = []
    for rows, column_widths in equal_widths(numbers):
        txn_width, status_width, _, ledger_width, entry_width, *synced_width = column_widths
        inner = 3 + status_width + ledger_width + entry_width
        ours: list[bytes | tuple[np.ndarray, int]] = []
        if last_synced is not None:
            ours = [_LAST_SYNCED_TAG, (last_synced[rows], synced_width[0])]
            inner += len(_LAST_SYNCED_TAG) + synced_width[0]
        head = len(operation_head) + 1 + txn_width
        body = 2 + head + 1 + status_width + len(tag) + 1 + inner
        parts.append(
            rows_of(
                rows.stop - rows.start,
                body.to_bytes(LENGTH_BYTES, "big") + bytes((FIRST_BYTE, head)) + operation_head + b"\x18",
                (txn_ids[rows], txn_width),
                b"\x10",
                (statuses[rows], status_width),
                tag + bytes((inner, 0x08)),
                (statuses[rows], status_width),
                b"\x10",
                (ledger_ids[rows], ledger_width),
                b"\x18",
                (entry_ids[rows], entry_width),
                *ours,
            ).tobytes()
        )
    return b"".join(parts)


# ---- client side: adds out ----


def encode_adds(
    entries: SealedEntries,
    ledger_id: int,
    first_txn_id: int,
    master_key: bytes,
    flags: AddFlags = AddFlags(),
    context: bytes = b"",
) -> SealedEntries:
    """Return one request frame per sealed entry (`EntryDigest.seal` without head), with ascending txnIds.

    `context` is a field of each request: `v3_context`.
    """
    count = len(entries.offsets) - 1
    txn_ids = np.arange(first_txn_id, first_txn_id + count)
    entry_ids = np.arange(entries.first_entry, entries.first_entry + count)
    sizes = np.diff(entries.offsets) - LENGTH_BYTES
    tail = (b"\x28" + varint(DEFERRED_SYNC) if flags.is_deferred else b"") + (_RECOVERY if flags.is_recovery else b"")
    tail += _BYPASS_JOURNAL if flags.bypasses_journal else b""
    urgency = b"\x20" + varint(URGENT_PRIORITY) if flags.is_urgent else b""
    ledger = varint(ledger_id)
    before_size = bytes((0x1A, MASTER_KEY_BYTES)) + master_key + b"\x22"
    add_bytes = 2 + len(ledger) + widths(entry_ids) + len(before_size) + widths(sizes) + sizes + len(tail)
    parts: list[Buffer] = [tail + context] * (3 * count)
    frame_sizes = np.empty(count, np.int64)
    bounds = entries.offsets.tolist()
    view = memoryview(entries.buffer)
    # Frames of a piece have the same layout: numbers of equal widths.
    for rows, (txn_width, entry_width, size_width, add_width) in equal_widths((txn_ids, entry_ids, sizes, add_bytes)):
        head = len(_ADD_HEAD) + 1 + txn_width + len(urgency)
        frame_bytes = 2 + head + len(_ADD_TAG) + add_width + add_bytes[rows] + len(context)
        fronts = rows_of(
            rows.stop - rows.start,
            big_endian(frame_bytes),
            bytes((FIRST_BYTE, head)) + _ADD_HEAD + b"\x18",
            (txn_ids[rows], txn_width),
            urgency + _ADD_TAG,
            (add_bytes[rows], add_width),
            b"\x08" + ledger + b"\x10",
            (entry_ids[rows], entry_width),
            before_size,
            (sizes[rows], size_width),
        )
        width = fronts.shape[1]
        front_view = fronts.reshape(-1).data
        frame_sizes[rows] = LENGTH_BYTES + frame_bytes
        parts[3 * rows.start : 3 * rows.stop : 3] = [
            front_view[at : at + width] for at in range(0, len(front_view), width)
        ]
    parts[1::3] = [view[start + LENGTH_BYTES : end] for start, end in itertools.pairwise(bounds)]
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(frame_sizes, out=offsets[1:])
    return SealedEntries.framed(memoryview(b"".join(parts)), offsets, entries.first_entry)
