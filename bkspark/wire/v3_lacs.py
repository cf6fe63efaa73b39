"""READ_LAC of V3, whole batches at a time; see `v3` for the parts in common with adds.

request   0a H  08 03  10 07  18 txnId  [20 priority]
          c2 06 R  08 ledger  [c2 0c ...: context]
response  0a H  08 03  10 07  18 txnId  10 status
          c2 06 R  08 status  10 ledger  [1a L  explicit LAC's packet]  [22 B  last entry]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3
from bkspark.wire.framing import LENGTH_BYTES, FrameTable
from bkspark.wire.v3_fields import SAME, WIDTH_ONLY, NotOfTheForm, equal_widths, fields, rows_of, run_of, values_in

_HEADER, _READ_LAC, _CONTEXT = 1, 104, 200
_VERSION, _OPERATION, _TXN_ID = 1, 2, 3
_LEDGER = 1
_HEAD = bytes((0x08, protocol.VERSION_THREE, 0x10, protocol.READ_LAC))
_TAG = b"\xc2\x06"


@dataclass(frozen=True, slots=True)
class LacRequests:
    """READ_LAC requests that came together, as int64 arrays of equal length in order of arrival."""

    txn_ids: np.ndarray
    ledger_ids: np.ndarray

    def __len__(self) -> int:
        return len(self.txn_ids)


def decode_lac_reads(octets: np.ndarray, table: FrameTable, first: int) -> LacRequests | None:
    """Return the READ_LAC requests in frames first, first + 1, ... that have the form of frame `first`, at least that.

    Returns:
        None: frame `first` does not have the form that this module specifies; `v3.decode_request` decodes it.
    """
    start, end = int(table.starts[first]), int(table.ends[first])
    # Most frames have another operation, which one byte shows.
    if end - start <= len(_HEAD) + 1 or octets[start + len(_HEAD) + 1] != protocol.READ_LAC:
        return None
    frame = octets[start:end].tobytes()
    try:
        outer = fields(frame, 0, len(frame))
        head = fields(frame, *outer[_HEADER].span)
        read = fields(frame, *outer[_READ_LAC].span)
        if set(outer) - {_HEADER, _READ_LAC, _CONTEXT} or set(head) - {1, 2, 3, 4} or set(read) != {_LEDGER}:
            return None
        if (head[_VERSION].number, head[_OPERATION].number) != (protocol.VERSION_THREE, protocol.READ_LAC):
            return None
        spans = [each.at for each in (head[_TXN_ID], read[_LEDGER]) if each.number >= 0]
    except (KeyError, NotOfTheForm):
        return None
    common = np.full(len(frame), SAME, np.uint8)
    for span in spans:
        common[slice(*span)] = WIDTH_ONLY
    rows, _ = run_of(octets, table, first, np.frombuffer(frame, np.uint8), common)
    txn_ids, ledger_ids = (values_in(rows, span) for span in spans)
    return LacRequests(txn_ids, ledger_ids)


def encode_lac_failures(txn_ids: np.ndarray, status: int, ledger_ids: np.ndarray) -> bytes:
    """Return one response without LAC and entry per request, back to back; `status` is V3's, and not EOK."""
    statuses = np.full(len(txn_ids), status, np.int64)
    parts = []
    for rows, (txn_width, status_width, ledger_width) in equal_widths((txn_ids, statuses, ledger_ids)):
        inner = 2 + status_width + ledger_width
        head = len(_HEAD) + 1 + txn_width
        body = 2 + head + 1 + status_width + len(_TAG) + 1 + inner
        parts.append(
            rows_of(
                rows.stop - rows.start,
                body.to_bytes(LENGTH_BYTES, "big") + bytes((v3.FIRST_BYTE, head)) + _HEAD + b"\x18",
                (txn_ids[rows], txn_width),
                b"\x10",
                (statuses[rows], status_width),
                _TAG + bytes((inner, 0x08)),
                (statuses[rows], status_width),
                b"\x10",
                (ledger_ids[rows], ledger_width),
            ).tobytes()
        )
    return b"".join(parts)


def encode_lac(txn_id: int, ledger_id: int, packet: bytes, entry: bytes | None) -> bytes:
    """Return the EOK response with an explicit LAC's packet, or b"", and the last entry, if there is one."""
    answer = protocol.ReadLacResponse(status=v3.StatusCode.EOK, ledgerId=ledger_id)
    if packet:
        answer.lacBody = packet
    if entry is not None:
        answer.lastEntryBody = entry
    header = v3.header(protocol.READ_LAC, txn_id & (1 << 64) - 1)
    return v3.encode_message(protocol.Response(header=header, status=v3.StatusCode.EOK, readLacResponse=answer))
