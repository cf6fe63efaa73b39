"""Decides whether a request may proceed. Pure functions of what is known of the ledger; results are `Status`.

An add is checked in this order (O6: a refused request leaves no trace): ids that cannot be stored and a LAC that no
correct client sends (EBADREQ), a read-only bookie, a wrong master key, a fenced ledger.
"""

from __future__ import annotations

import hmac

import numpy as np

from bkspark.wire.flags import HIGH_PRIORITY, RECOVERY_ADD
from bkspark.wire.layout import MASTER_KEY_BYTES
from bkspark.wire.status import EOK, Status
from bookie_service.formats.index import STORED_ENTRY_ID_MAX, UNKNOWN_KEY, decode_lac


def add_statuses(
    ledger_id: int,
    entry_ids: np.ndarray,
    flags: np.ndarray,
    keys_match: bool | np.ndarray,
    lacs_are_right: bool | np.ndarray,
    *,
    fenced: bool,
    read_only: bool,
    takes_recovery_adds: bool = True,
    in_limbo: bool = False,
) -> int | np.ndarray:
    """Return the status of each add of one ledger, int32, or one status for all; EOK: it may be journaled.

    Args:
        keys_match: a bool per add, or one for all: the add carries the ledger's master key.
        lacs_are_right: a bool per add, or one for all: the LAC is possible for the entry (`bkspark.wire.lac`).
        fenced: only recovery adds pass.
        read_only: only high-priority adds pass, and only if `takes_recovery_adds`.
        in_limbo: only recovery adds pass, because a fence may have been lost (docs/protocol.md §6.10). Others get EIO,
            which clients take for a failure of this bookie alone.
    """
    lowest, highest = _bounds(entry_ids)
    is_plain = keys_match is True and lacs_are_right is True and not (fenced or read_only or in_limbo)
    if is_plain and are_ids(ledger_id, lowest, highest):
        return EOK
    statuses = np.zeros(len(entry_ids), np.int32)
    if fenced:
        statuses[(flags & RECOVERY_ADD) == 0] = Status.EFENCED
    elif in_limbo:
        statuses[(flags & RECOVERY_ADD) == 0] = Status.EIO
    statuses[np.logical_not(keys_match)] = Status.EUA
    if read_only:
        statuses[((flags & HIGH_PRIORITY) == 0) | (not takes_recovery_adds)] = Status.EREADONLY
    statuses[(entry_ids < 0) | (entry_ids > STORED_ENTRY_ID_MAX) | np.logical_not(lacs_are_right)] = Status.EBADREQ
    if ledger_id < 0:
        statuses[:] = Status.EBADREQ
    return statuses


def refused_if_new(statuses: int | np.ndarray) -> int | np.ndarray:
    """Return the statuses of adds to a ledger that may not begin now: EOK becomes ETOOMANYREQUESTS."""
    too_many = int(Status.ETOOMANYREQUESTS)
    return too_many if isinstance(statuses, int) else np.where(statuses == EOK, too_many, statuses).astype(np.int32)


def are_ids(ledger_id: int, lowest_entry: int, highest_entry: int) -> bool:
    """Return whether entries with these ids can be stored."""
    return ledger_id >= 0 and lowest_entry >= 0 and highest_entry <= STORED_ENTRY_ID_MAX


def _bounds(entry_ids: np.ndarray) -> tuple[int, int]:
    return int(entry_ids.min()), int(entry_ids.max())


def absence_status(*, is_known: bool, in_limbo: bool) -> Status:
    """Return the answer to a read of an entry that is not held. For a ledger in limbo it is not a certain negative."""
    if in_limbo:
        return Status.EUNKNOWNLEDGERSTATE
    return Status.ENOENTRY if is_known else Status.ENOLEDGER


def fence_status(ledger_id: int, stored_key: bytes | None, given_key: bytes) -> Status:
    """Return EOK when a fence may be set; `stored_key` None: the ledger is unknown and will be created fenced."""
    if ledger_id < 0:
        return Status.EBADREQ
    return Status.EOK if stored_key is None or opens(stored_key, given_key) else Status.EUA


def opens(stored_key: bytes, given_key: bytes) -> bool:
    """Return whether a master key opens a ledger. The time it takes reveals nothing about the right key."""
    return stored_key == UNKNOWN_KEY or hmac.compare_digest(stored_key, given_key)


def explicit_lac_status(
    ledger_id: int, stored_key: bytes | None, given_key: bytes, packet: bytes, *, read_only: bool, is_deleted: bool
) -> Status:
    """Return EOK when an explicit LAC may be stored. A fence does not prevent it, because it names confirmed entries.

    Args:
        stored_key: None: the ledger is unknown and will be created.
        is_deleted: the ledger was fenced here and then dropped.
    """
    try:
        named, lac = decode_lac(packet)
    except ValueError:
        return Status.EBADREQ
    if ledger_id < 0 or named != ledger_id or not 0 <= lac <= STORED_ENTRY_ID_MAX:
        return Status.EBADREQ
    if read_only:
        return Status.EREADONLY
    if is_deleted:
        return Status.ENOLEDGER
    if len(given_key) != MASTER_KEY_BYTES:
        # It would become the key of an unknown ledger, and the journal has no room for another length.
        return Status.EUA
    return Status.EOK if stored_key is None or opens(stored_key, given_key) else Status.EUA
