"""Decodes requests of V3 adds, whole batches at a time; `v3` specifies them.

Frames of one size are compared with the first as a template; if entries differ in size, frames with the same fields are
decoded in step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire.framing import FrameTable
from bkspark.wire.layout import MASTER_KEY_BYTES
from bkspark.wire.v3 import FIRST_BYTE
from bkspark.wire.v3_fields import (
    ABSENT,
    NOTHING,
    SAME,
    WIDTH_ONLY,
    NotOfTheForm,
    Walk,
    fields,
    run_of,
    skip_header,
    values_in,
    walked,
)

_HEADER, _ADD, _CONTEXT = 1, 101, 200
_VERSION, _OPERATION, _TXN_ID, _PRIORITY = 1, 2, 3, 4
_LEDGER, _ENTRY, _KEY, _BODY, _WRITE_FLAGS, _FLAG, _BYPASS = 1, 2, 3, 4, 5, 100, 1001
_HEAD = bytes((0x08, protocol.VERSION_THREE, 0x10, protocol.ADD_ENTRY))
_TAG = b"\xaa\x06"
_LONG_RUN = 64
"""Shorter runs of adds of one size are decoded together with the adds of other sizes after them."""


@dataclass(frozen=True, slots=True)
class AddRequests:
    """Adds that came together and have the same flags, as arrays of equal length in order of arrival.

    `key_starts`, `body_starts`, `body_ends`: where the 20-byte master key and the entry lie in the buffer. The ids are
    the request's own; an entry begins with its ids, too, and those count. `context`: see `v3_context`, b"" without one.
    """

    txn_ids: np.ndarray
    ledger_ids: np.ndarray
    entry_ids: np.ndarray
    key_starts: np.ndarray
    body_starts: np.ndarray
    body_ends: np.ndarray
    priority: int
    """As in the header of the requests; 0 without one."""
    is_recovery: bool
    """Whether they pass a fence."""
    write_flags: int
    """As in the requests; 0 without any. DEFERRED_SYNC: they are answered before they are durable."""
    bypasses_journal: bool = False
    """Whether they ask not to be journaled (an extension of ours)."""
    context: bytes = b""

    def __len__(self) -> int:
        return len(self.txn_ids)


def decode_adds(octets: np.ndarray, table: FrameTable, first: int) -> AddRequests | None:
    """Return the adds in frames first, first + 1, ... that have the form of frame `first`, at least that one.

    Args:
        octets: uint8 of the buffer that `table` describes.

    Returns:
        None: frame `first` is not an add in the form that `v3` specifies; `v3.decode_request` decodes it.
    """
    start, end = int(table.starts[first]), int(table.ends[first])
    template = _AddTemplate.of(octets[start:end].tobytes())
    if template is None:
        return None
    flags = template.flags
    rows, starts = run_of(octets, table, first, template.frame, template.common)
    after = first + len(rows)
    if len(rows) < _LONG_RUN and after < len(table) and _has_flags(octets, table, after, flags):
        txn_ids, ledger_ids, entry_ids, key_starts, *body = walked(template.walk, octets, table, first)
        if len(txn_ids) > len(rows):
            return AddRequests(txn_ids, ledger_ids, entry_ids, key_starts, body[0], body[1], *flags)
    return AddRequests(
        values_in(rows, template.txn_id),
        values_in(rows, template.ledger_id),
        values_in(rows, template.entry_id),
        starts + template.key_start,
        starts + template.body[0],
        starts + template.body[1],
        *flags,
    )


def _has_flags(octets: np.ndarray, table: FrameTable, row: int, flags: tuple[object, ...]) -> bool:
    """Return whether a frame is an add with the same flags: otherwise a walk would find nothing more."""
    template = _AddTemplate.of(octets[int(table.starts[row]) : int(table.ends[row])].tobytes())
    return template is not None and template.flags == flags


@dataclass(frozen=True, slots=True)
class _AddTemplate:
    """One decoded add request; (start, end) are offsets in the frame body.

    `common` has, for each byte, the bits that all frames of a run share. `urgency`, `tail` and `context` are the bytes
    after the txnId, after the entry and after the add; `pair` is the message in the context. `key_start`: as
    `AddRequests.key_starts`; priority, is_recovery, write_flags and bypasses_journal are those of `AddRequests`, too.
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
    bypasses_journal: bool
    urgency: bytes
    tail: bytes
    context: bytes
    pair: bytes

    @classmethod
    def of(cls, frame: bytes) -> _AddTemplate | None:
        """Return the template that a frame makes, None when it is not of the form."""
        try:
            outer = fields(frame, 0, len(frame))
            if set(outer) - {_HEADER, _ADD, _CONTEXT}:
                return None
            head = fields(frame, *outer[_HEADER].span)
            add = fields(frame, *outer[_ADD].span)
            is_known = not (set(head) - {1, 2, 3, 4} or set(add) - {1, 2, 3, 4, 5, 100, _BYPASS})
            key, body = add[_KEY], add[_BODY]
            is_add = (head[_VERSION].number, head[_OPERATION].number) == (protocol.VERSION_THREE, protocol.ADD_ENTRY)
            if not (is_known and is_add) or key.span[1] - key.span[0] != MASTER_KEY_BYTES:
                return None
            numbers = (head[_TXN_ID], add[_LEDGER], add[_ENTRY])
            priority, write_flags = head.get(_PRIORITY, ABSENT), add.get(_WRITE_FLAGS, ABSENT)
            flag = add.get(_FLAG, ABSENT)
            if flag.number not in (0, protocol.AddRequest.RECOVERY_ADD):
                return None
            # `number` refuses bytes where a number belongs.
            txn_id, ledger_id, entry_id = (each.at for each in numbers if each.number >= 0)
            bodies = (key.span, body.span)
            pair = outer[_CONTEXT].span if _CONTEXT in outer else (0, 0)
            options = (priority.number, bool(flag.number), write_flags.number, bool(add.get(_BYPASS, ABSENT).number))
        except (KeyError, NotOfTheForm):
            return None
        common = np.full(len(frame), SAME, np.uint8)
        for span in (txn_id, ledger_id, entry_id):
            common[slice(*span)] = WIDTH_ONLY
        for span in bodies:
            common[slice(*span)] = NOTHING
        return cls(
            np.frombuffer(frame, np.uint8),
            common,
            txn_id,
            ledger_id,
            entry_id,
            key.span[0],
            body.span,
            *options,
            frame[txn_id[1] : outer[_HEADER].span[1]],
            frame[body.span[1] : outer[_ADD].span[1]],
            frame[outer[_ADD].span[1] :],
            frame[slice(*pair)],
        )

    @property
    def flags(self) -> tuple[int, bool, int, bool, bytes]:
        """What the adds of a run have in common, as the last fields of `AddRequests`."""
        return self.priority, self.is_recovery, self.write_flags, self.bypasses_journal, self.pair

    def walk(self, walk: Walk) -> tuple[np.ndarray, ...]:
        """Return the arrays of adds that have the template's fields with entries, and so frames, of any size."""
        head_ends, txn_ids = skip_header(walk, FIRST_BYTE, _HEAD)
        walk.bytes(self.urgency)
        walk.keep_at(head_ends)
        walk.bytes(_TAG)
        add_ends = walk.length()
        walk.bytes(b"\x08")
        ledger_ids = walk.number()
        walk.bytes(b"\x10")
        entry_ids = walk.number()
        walk.bytes(bytes((0x1A, MASTER_KEY_BYTES)))
        key_starts = walk.at
        walk.go_to(key_starts + MASTER_KEY_BYTES)
        walk.bytes(b"\x22")
        body_ends = walk.length()
        body_starts = walk.at
        walk.go_to(body_ends)
        walk.bytes(self.tail)
        walk.keep_at(add_ends)
        walk.bytes(self.context)
        count = walk.count()
        return tuple(each[:count] for each in (txn_ids, ledger_ids, entry_ids, key_starts, body_starts, body_ends))
