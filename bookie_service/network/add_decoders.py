"""Turns the frames of adds into what the engine takes."""

from __future__ import annotations

import numpy as np

from bkspark.wire import v2, v3, v3_adds
from bkspark.wire.flags import HIGH_PRIORITY, RECOVERY_ADD
from bkspark.wire.framing import LENGTH_BYTES
from bookie_service.engine.add_batch import AddBatch
from bookie_service.network.response_encoders import V2_RESPONSES, V3Responses

_V2_ITEM_AT = v2.ADD_HEAD_BYTES - LENGTH_BYTES
_V2_KEY_OFFSET = v2.WORD_BYTES - _V2_ITEM_AT


def v2_add_batch(requests: v2.Requests, start: int, end: int) -> AddBatch:
    """Return requests[start:end], all of them adds, without a copy."""
    rows = slice(start, end)
    item_starts = requests.starts[rows] + _V2_ITEM_AT
    return AddBatch(
        requests.ledger_ids[rows],
        requests.entry_ids[rows],
        requests.flags[rows],
        item_starts,
        requests.ends[rows] - item_starts,
        item_starts + _V2_KEY_OFFSET,
        V2_RESPONSES,
    )


def v3_add_batch(adds: v3_adds.AddRequests) -> AddBatch:
    """Return adds that came in V3."""
    flags = HIGH_PRIORITY if adds.priority > 0 else 0
    is_deferred = adds.write_flags & v3.DEFERRED_SYNC != 0
    if adds.is_recovery:
        flags |= RECOVERY_ADD
        # Recovery adds are always synced.
        is_deferred = False
    item_starts = adds.body_starts - LENGTH_BYTES
    return AddBatch(
        adds.ledger_ids,
        adds.entry_ids,
        np.full(len(adds), flags, np.int32),
        item_starts,
        adds.body_ends - item_starts,
        adds.key_starts,
        V3Responses(adds.txn_ids),
        is_deferred,
        adds.bypasses_journal and is_deferred,
    )
