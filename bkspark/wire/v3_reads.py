"""V3 reads, whole batches at a time; see `v3` for the parts in common with adds.

    request   0a H  08 03  10 01  18 txnId  [20 priority]
              a2 06 R  08 ledger  10 entry  [1a 14 master key (20)  a0 06 01: fence]
              [c2 0c ...: context]
    response  0a H  08 03  10 01  18 txnId  10 status
              a2 06 R  08 status  10 ledger  18 entry as asked  [22 B  entry]  [28 LAC that the bookie knows]

A server decodes a read that waits for the LAC with protobuf's classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire.framing import LENGTH_BYTES, FrameTable
from bkspark.wire.layout import MASTER_KEY_BYTES
from bkspark.wire.placed_entries import NO_TAILS, PlacedEntries, frames_around
from bkspark.wire.v3 import FIRST_BYTE, encode_short_responses
from bkspark.wire.v3_fields import (
    ABSENT,
    NOTHING,
    SAME,
    WIDTH_ONLY,
    Field,
    NotOfTheForm,
    Walk,
    big_endian,
    equal_pieces,
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
from bkspark.wire.v3_single_read import decode_single_read

_HEADER, _READ, _CONTEXT = 1, 100, 200
_VERSION, _OPERATION, _TXN_ID, _PRIORITY = 1, 2, 3, 4
_LEDGER, _ENTRY, _KEY, _FLAG = 1, 2, 3, 100
_STATUS = 2
_READ_STATUS, _READ_LEDGER, _READ_ENTRY, _BODY, _MAX_LAC = 1, 2, 3, 4, 5
_ANSWERED = {_READ_STATUS, _READ_LEDGER, _READ_ENTRY}
_HEAD = bytes((0x08, protocol.VERSION_THREE, 0x10, protocol.READ_ENTRY))
_TAG = b"\xa2\x06"
_READ_FRONT = b"\x08\x00\x10"
_NO_LACS = np.zeros(1, np.int64)
_FENCE = b"\xa0\x06\x01"
_LONG_RUN = 64
"""Shorter runs of reads in frames of one form are decoded together with the reads after them."""


@dataclass(frozen=True, slots=True)
class ReadRequests:
    """Reads that came together, as arrays of equal length in order of arrival.

    `fencing_key`: the master key with which all of them fence the same ledger; None: they do not fence.
    `context`: see `v3_context`, b"" without one.
    """

    txn_ids: np.ndarray
    ledger_ids: np.ndarray
    entry_ids: np.ndarray
    priority: int
    """As in the header of the requests; 0 without one."""
    fencing_key: bytes | None = field(repr=False)
    context: bytes = b""

    def __len__(self) -> int:
        return len(self.txn_ids)


def decode_reads(octets: np.ndarray, table: FrameTable, first: int) -> ReadRequests | None:
    """Return the reads in frames first, first + 1, ... that have the form of frame `first`, at least that one.

    Args:
        octets: uint8 of the buffer that `table` describes.

    Returns:
        None: frame `first` is not a read in the form that this module specifies; `v3.decode_request` decodes it.
    """
    frame = octets[int(table.starts[first]) : int(table.ends[first])].tobytes()
    try:
        outer = fields(frame, 0, len(frame))
        head = fields(frame, *outer[_HEADER].span)
        read = fields(frame, *outer[_READ].span)
        is_known = not (set(outer) - {_HEADER, _READ, _CONTEXT} or set(head) - {1, 2, 3, 4})
        is_read = (head[_VERSION].number, head[_OPERATION].number) == (protocol.VERSION_THREE, protocol.READ_ENTRY)
        fencing_key = _fencing_key(frame, read)
        if not (is_known and is_read):
            return None
        numbers = (head[_TXN_ID], read[_LEDGER], read[_ENTRY])
        spans = [each.at for each in numbers if each.number >= 0]
        priority = head.get(_PRIORITY, ABSENT).number
        context = frame[slice(*outer[_CONTEXT].span)] if _CONTEXT in outer else b""
    except (KeyError, NotOfTheForm):
        return None
    txn_id, _, entry = spans
    common = np.full(len(frame), SAME, np.uint8)
    for span in (txn_id, entry) if fencing_key is not None else spans:
        common[slice(*span)] = WIDTH_ONLY
    rows, _ = run_of(octets, table, first, np.frombuffer(frame, np.uint8), common)
    after = first + len(rows)
    is_plain = fencing_key is None and not context
    if is_plain and len(rows) < _LONG_RUN and after < len(table) and _is_plain(octets, table, after):
        txn_ids, ledger_ids, entry_ids = walked(partial(_plain_reads, priority=priority), octets, table, first)
        if len(txn_ids) > len(rows):
            return ReadRequests(txn_ids, ledger_ids, entry_ids, priority, None)
    txn_ids, ledger_ids, entry_ids = (values_in(rows, span) for span in spans)
    return ReadRequests(txn_ids, ledger_ids, entry_ids, priority, fencing_key, context)


def _is_plain(octets: np.ndarray, table: FrameTable, row: int) -> bool:
    """Return whether a frame is a read that does not fence: otherwise a walk would find nothing more."""
    read = decode_single_read(octets[int(table.starts[row]) : int(table.ends[row])].tobytes())
    return read is not None and read.fencing_key is None


def _plain_reads(walk: Walk, priority: int) -> tuple[np.ndarray, ...]:
    """Return txnIds, ledgers and entries of reads with one priority, whose numbers may differ in width."""
    head_ends, txn_ids = skip_header(walk, FIRST_BYTE, _HEAD)
    walk.keep(walk.number(walk.field(0x20)) == priority)
    walk.keep_at(head_ends)
    walk.bytes(_TAG)
    read_ends = walk.length()
    walk.bytes(b"\x08")
    ledger_ids = walk.number()
    walk.bytes(b"\x10")
    entry_ids = walk.number()
    walk.keep_at(read_ends)
    count = walk.count()
    return txn_ids[:count], ledger_ids[:count], entry_ids[:count]


def _fencing_key(frame: bytes, read: Mapping[int, Field]) -> bytes | None:
    """Return the master key of a read that fences, None for a plain read.

    Raises:
        NotOfTheForm: it is neither.
    """
    if set(read) == {_LEDGER, _ENTRY}:
        return None
    if set(read) != {_LEDGER, _ENTRY, _KEY, _FLAG} or read[_FLAG].number != protocol.ReadRequest.FENCE_LEDGER:
        raise NotOfTheForm
    key = frame[slice(*read[_KEY].span)]
    if len(key) != MASTER_KEY_BYTES:
        raise NotOfTheForm
    return key


def encode_read_failures(txn_ids: np.ndarray, status: int, ledger_ids: np.ndarray, entry_ids: np.ndarray) -> bytes:
    """Return one response without an entry per read, back to back; `status` is V3's, and not EOK."""
    return encode_short_responses(
        protocol.READ_ENTRY, txn_ids, np.full(len(txn_ids), status, np.int64), ledger_ids, entry_ids
    )


def encode_read_responses(
    txn_ids: np.ndarray, ledger_ids: np.ndarray, entries: PlacedEntries, max_lacs: np.ndarray | None
) -> bytes | memoryview:
    """Return the EOK responses to the reads of these entries, in any order.

    txn_ids: int64, one for each; ledger_ids, max_lacs: one for each, or one for all; None: no LAC is known or wanted.
    """
    entry_ids, sizes = entries.entry_ids, entries.sizes
    if (sizes == sizes[0]).all():
        sizes = sizes[:1]
    lacs = _NO_LACS if max_lacs is None else max_lacs
    ledger_widths, entry_widths, size_widths, lac_widths = map(widths, (ledger_ids, entry_ids, sizes, lacs))
    lac_bytes = 0 if max_lacs is None else 1 + lac_widths
    read_bytes = len(_READ_FRONT) + ledger_widths + 1 + entry_widths + 1 + size_widths + sizes + lac_bytes
    columns = [widths(txn_ids), ledger_widths, entry_widths, size_widths, widths(read_bytes), lac_widths]
    order = order_of_few_pieces(len(txn_ids), columns)
    if order is not None:
        entries, txn_ids, entry_ids = entries.take(order), txn_ids[order], entry_ids[order]
        ledger_ids, sizes, lacs, read_bytes = (_some(each, order) for each in (ledger_ids, sizes, lacs, read_bytes))
        columns = [_some(column, order) for column in columns]
    parts = []
    for rows, each in equal_pieces(len(txn_ids), columns):
        txn_width, ledger_width, entry_width, size_width, read_width, lac_width = each
        head = len(_HEAD) + 1 + txn_width
        fronts = rows_of(
            rows.stop - rows.start,
            big_endian(2 + head + 2 + len(_TAG) + read_width + _some(read_bytes, rows)),
            bytes((FIRST_BYTE, head)) + _HEAD + b"\x18",
            (txn_ids[rows], txn_width),
            b"\x10\x00" + _TAG,
            (_some(read_bytes, rows), read_width),
            _READ_FRONT,
            (_some(ledger_ids, rows), ledger_width),
            b"\x18",
            (entry_ids[rows], entry_width),
            b"\x22",
            (_some(sizes, rows), size_width),
        )
        some_lacs = _some(lacs, rows)
        tails = NO_TAILS if max_lacs is None else rows_of(len(some_lacs), b"\x28", (some_lacs, lac_width))
        parts.append(frames_around(fronts, entries.take(rows), tails))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _some(numbers: np.ndarray, rows: slice | np.ndarray) -> np.ndarray:
    """Return those of some rows; one number counts for all rows."""
    return numbers if len(numbers) == 1 else numbers[rows]


# ---- client side ----


@dataclass(frozen=True, slots=True)
class ReadResponses:
    """Answers of plain reads that came together, as arrays of equal length; statuses are V3's.

    `body_starts`, `body_ends`: where the entry is in the buffer; without meaning if the answer has no entry.
    """

    txn_ids: np.ndarray
    statuses: np.ndarray
    body_starts: np.ndarray
    body_ends: np.ndarray

    def __len__(self) -> int:
        return len(self.txn_ids)


def decode_read_responses(octets: np.ndarray, table: FrameTable, first: int) -> ReadResponses | None:
    """Return the answers of reads in frames first, first + 1, ...; their entries may differ in size.

    Args:
        octets: uint8 of the buffer that `table` describes.

    Returns:
        None: frame `first` is not an answer in the form that this module specifies; `v3.decode_response` decodes it.
    """
    operation_at = int(table.starts[first]) + len(_HEAD) + 1
    if operation_at >= table.ends[first] or octets[operation_at] != protocol.READ_ENTRY:
        return None  # On a writer's connection most answers are others: a cheap check before a walk.
    return _equal_answers(octets, table, first) or _walked_answers(octets, table, first)


def _equal_answers(octets: np.ndarray, table: FrameTable, first: int) -> ReadResponses | None:
    """Return answers that differ only in ids, LAC and bytes of their entries; None if the first two differ
    otherwise."""
    sizes = table.ends[first : first + 2] - table.starts[first : first + 2]
    if len(sizes) < 2 or sizes[0] != sizes[1]:
        return None
    start = int(table.starts[first])
    frame = octets[start : int(table.ends[first])].tobytes()
    try:
        outer = fields(frame, 0, len(frame))
        head = fields(frame, *outer[_HEADER].span)
        read = fields(frame, *outer[_READ].span)
        is_known = set(outer) == {_HEADER, _STATUS, _READ} and set(head) == {_VERSION, _OPERATION, _TXN_ID}
        is_known = is_known and _ANSWERED <= set(read) <= _ANSWERED | {_BODY, _MAX_LAC}
        is_read = (head[_VERSION].number, head[_OPERATION].number) == (protocol.VERSION_THREE, protocol.READ_ENTRY)
        status = read[_READ_STATUS].number
        if not (is_known and is_read) or status >= 1 << 31:
            return None
        numbers = [head[_TXN_ID], read[_READ_ENTRY], read.get(_MAX_LAC, ABSENT)]
        spans = [each.at for each in numbers if each.number >= 0]
        body = read[_BODY].span if _BODY in read else (0, 0)
    except (KeyError, NotOfTheForm):
        return None
    common = np.full(len(frame), SAME, np.uint8)
    for span in spans:
        common[slice(*span)] = WIDTH_ONLY
    common[slice(*body)] = NOTHING
    rows, starts = run_of(octets, table, first, np.frombuffer(frame, np.uint8), common)
    statuses = np.full(len(rows), status, np.int64)
    return ReadResponses(values_in(rows, spans[0]), statuses, starts + body[0], starts + body[1])


def _walked_answers(octets: np.ndarray, table: FrameTable, first: int) -> ReadResponses | None:
    walk = Walk(octets, table, first)
    head_ends, txn_ids = skip_header(walk, FIRST_BYTE, _HEAD)
    walk.keep_at(head_ends)
    walk.bytes(b"\x10")
    walk.number()  # the same as the one within
    walk.bytes(_TAG)
    read_ends = walk.length()
    walk.bytes(b"\x08")
    statuses = walk.number()
    walk.bytes(b"\x10")
    walk.number()
    walk.bytes(b"\x18")
    walk.number()
    body_ends = walk.length(walk.field(0x22))
    body_starts = walk.at
    walk.go_to(body_ends)
    walk.number(walk.field(0x28))
    walk.keep_at(read_ends)
    count = walk.count()
    if not count:
        return None
    return ReadResponses(txn_ids[:count], statuses[:count], body_starts[:count], body_ends[:count])


def read_message(ledger_id: int, entry_id: int, fencing_key: bytes | None = None) -> protocol.ReadRequest:
    """Return the message that reads one entry; with a key, it fences the ledger first."""
    message = protocol.ReadRequest(ledgerId=ledger_id, entryId=entry_id)
    if fencing_key is not None:
        message.flag = protocol.ReadRequest.FENCE_LEDGER
        message.masterKey = fencing_key
    return message


def encode_reads(
    ledger_id: int,
    entry_ids: np.ndarray,
    first_txn_id: int,
    fencing_key: bytes | None = None,
    priority: int = 0,
    context: bytes = b"",
) -> bytes:
    """Return one READ frame per entry id, with ascending txnIds; given a key (20 bytes), they fence the ledger.

    `context` is a field of each request: `v3_context`.
    """
    count = len(entry_ids)
    txn_ids = np.arange(first_txn_id, first_txn_id + count)
    entry_ids = np.asarray(entry_ids, np.int64)
    urgency = b"\x20" + varint(priority) if priority else b""
    fence = b"" if fencing_key is None else bytes((0x1A, MASTER_KEY_BYTES)) + fencing_key + _FENCE
    ledger = varint(ledger_id)
    parts = []
    for rows, (txn_width, entry_width) in equal_widths((txn_ids, entry_ids)):
        head = len(_HEAD) + 1 + txn_width + len(urgency)
        read = 2 + len(ledger) + entry_width + len(fence)
        body = 2 + head + len(_TAG) + 1 + read + len(context)
        parts.append(
            rows_of(
                rows.stop - rows.start,
                body.to_bytes(LENGTH_BYTES, "big") + bytes((FIRST_BYTE, head)) + _HEAD + b"\x18",
                (txn_ids[rows], txn_width),
                urgency + _TAG + bytes((read,)) + b"\x08" + ledger + b"\x10",
                (entry_ids[rows], entry_width),
                fence + context,
            ).tobytes()
        )
    return b"".join(parts)
