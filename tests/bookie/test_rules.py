"""Rules and the flush policy: pure decisions, one claim each."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from bkspark.wire.flags import HIGH_PRIORITY, RECOVERY_ADD
from bkspark.wire.status import Status
from bookie_service.engine import rules
from bookie_service.formats.index import STORED_ENTRY_ID_MAX, UNKNOWN_KEY
from bookie_service.storage.journal.flush_policy import FlushLimits, FlushReason, flush_reason

KEY, OTHER = b"k" * 20, b"o" * 20
BOTH = RECOVERY_ADD | HIGH_PRIORITY


def status(
    *,
    ledger_id: int = 5,
    entry_id: int = 0,
    flags: int = 0,
    key: bool = True,
    lac: bool = True,
    fenced: bool = False,
    read_only: bool = False,
    takes_recovery_adds: bool = True,
) -> int:
    return int(
        rules.add_statuses(
            ledger_id,
            np.array([entry_id]),
            np.array([flags]),
            np.array([key]),
            np.array([lac]),
            fenced=fenced,
            read_only=read_only,
            takes_recovery_adds=takes_recovery_adds,
        )[0]
    )


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, Status.EOK),
        ({"fenced": True}, Status.EFENCED),
        ({"fenced": True, "flags": RECOVERY_ADD}, Status.EOK),
        ({"fenced": True, "flags": HIGH_PRIORITY}, Status.EFENCED),
        ({"key": False}, Status.EUA),
        ({"key": False, "flags": BOTH}, Status.EUA),
        ({"key": False, "fenced": True}, Status.EUA),
        ({"read_only": True}, Status.EREADONLY),
        ({"read_only": True, "flags": RECOVERY_ADD}, Status.EREADONLY),
        ({"read_only": True, "flags": BOTH}, Status.EOK),
        ({"read_only": True, "flags": BOTH, "takes_recovery_adds": False}, Status.EREADONLY),
        ({"read_only": True, "flags": BOTH, "key": False}, Status.EUA),
        ({"read_only": True, "fenced": True, "flags": HIGH_PRIORITY}, Status.EFENCED),
        ({"entry_id": -1, "key": False}, Status.EBADREQ),
        ({"entry_id": STORED_ENTRY_ID_MAX}, Status.EOK),
        ({"entry_id": STORED_ENTRY_ID_MAX + 1}, Status.EBADREQ),
        ({"ledger_id": -1}, Status.EBADREQ),
        ({"lac": False}, Status.EBADREQ),
        ({"lac": False, "key": False, "fenced": True, "read_only": True}, Status.EBADREQ),
    ],
)
def test_add_is_judged(facts: dict[str, int], expected: Status) -> None:
    assert status(**facts) == expected


def test_adds_of_one_run_are_judged_one_by_one() -> None:
    statuses = rules.add_statuses(
        5,
        np.array([0, 1, -1, 3]),
        np.array([0, RECOVERY_ADD, RECOVERY_ADD, RECOVERY_ADD]),
        np.array([True, True, True, False]),
        True,
        fenced=True,
        read_only=False,
    )
    assert statuses.tolist() == [Status.EFENCED, Status.EOK, Status.EBADREQ, Status.EUA]


@pytest.mark.parametrize(
    ("ledger_id", "stored", "expected"),
    [
        (5, None, Status.EOK),
        (5, KEY, Status.EOK),
        (5, OTHER, Status.EUA),
        (5, UNKNOWN_KEY, Status.EOK),
        (-1, None, Status.EBADREQ),
    ],
)
def test_fence_is_judged(ledger_id: int, stored: bytes | None, expected: Status) -> None:
    assert rules.fence_status(ledger_id, stored, KEY) == expected


EAGER = FlushLimits(bytes_max=100, age_ns_max=2000)
FEW = FlushLimits(bytes_max=100, entries_max=5, age_ns_max=2000)
PATIENT = FlushLimits(bytes_max=100, age_ns_max=2000, flush_when_idle=False)


@pytest.mark.parametrize(
    ("limits", "group_bytes", "group_entries", "age_ns", "queue_empty", "expected"),
    [
        (EAGER, 0, 0, 0, True, FlushReason.IDLE),
        (PATIENT, 0, 0, 1999, True, None),
        (PATIENT, 0, 0, 2000, True, FlushReason.AGE),
        (EAGER, 1, 1, 0, True, FlushReason.IDLE),
        (EAGER, 1, 99, 0, False, None),
        (EAGER, 100, 1, 0, False, FlushReason.BYTES),
        (EAGER, 1, 1, 2000, False, FlushReason.AGE),
        (FEW, 1, 4, 0, False, None),
        (FEW, 1, 5, 0, False, FlushReason.ENTRIES),
        (PATIENT, 1, 1, 0, True, None),
        (PATIENT, 1, 1, 1999, True, None),
        (PATIENT, 1, 1, 2000, True, FlushReason.AGE),
        (PATIENT, 100, 1, 0, True, FlushReason.BYTES),
    ],
)
def test_group_is_flushed_for_a_reason(
    limits: FlushLimits,
    group_bytes: int,
    group_entries: int,
    age_ns: int,
    queue_empty: bool,
    expected: FlushReason | None,
) -> None:
    assert flush_reason(limits, group_bytes, group_entries, age_ns, queue_empty) is expected


# ---- the short cut for what nothing bars, and what is judged without an add ----


@pytest.mark.parametrize(
    ("ledger_id", "lowest", "highest", "expected"),
    [
        (0, 0, 0, True),
        (1 << 62, 0, STORED_ENTRY_ID_MAX, True),
        (-1, 0, 0, False),
        (5, -1, 0, False),
        (5, -1, -1, False),
        (5, 0, STORED_ENTRY_ID_MAX + 1, False),
        (-1, -1, STORED_ENTRY_ID_MAX + 1, False),
    ],
)
def test_ids_are_of_entries_that_can_be_stored(ledger_id: int, lowest: int, highest: int, expected: bool) -> None:
    assert rules.are_ids(ledger_id, lowest, highest) is expected


def judged(
    ledger_id: int, *entry_ids: int, flags: int = 0, keys: bool = True, lacs: bool = True, **facts: bool
) -> list[int]:
    """Statuses of adds of which only these facts are known for all at once."""
    statuses = {"fenced": False, "read_only": False} | facts
    count = len(entry_ids)
    found = rules.add_statuses(ledger_id, np.array(entry_ids), np.full(count, flags), keys, lacs, **statuses)
    return np.broadcast_to(found, count).tolist()


def test_adds_that_nothing_bars_are_judged_at_once() -> None:
    assert judged(5, 0) == [Status.EOK]
    assert judged(5, 3, 0, STORED_ENTRY_ID_MAX) == [Status.EOK] * 3
    assert judged(0, 0, 1) == [Status.EOK] * 2


@pytest.mark.parametrize("entry_ids", [(0,), (4, 0, 9)])
def test_short_cut_lets_nothing_pass_that_is_barred(entry_ids: tuple[int, ...]) -> None:
    def all_are(status: Status) -> list[int]:
        return [status] * len(entry_ids)

    assert judged(-1, *entry_ids) == all_are(Status.EBADREQ)
    assert judged(5, *entry_ids, keys=False) == all_are(Status.EUA)
    assert judged(5, *entry_ids, lacs=False) == all_are(Status.EBADREQ)
    assert judged(5, *entry_ids, fenced=True) == all_are(Status.EFENCED)
    assert judged(5, *entry_ids, in_limbo=True) == all_are(Status.EIO)
    assert judged(5, *entry_ids, in_limbo=True, flags=RECOVERY_ADD) == all_are(Status.EOK)
    assert judged(5, *entry_ids, in_limbo=True, flags=HIGH_PRIORITY) == all_are(Status.EIO)
    assert judged(5, *entry_ids, in_limbo=True, keys=False) == all_are(Status.EUA)
    assert judged(5, *entry_ids, fenced=True, flags=HIGH_PRIORITY) == all_are(Status.EFENCED)
    assert judged(5, *entry_ids, in_limbo=True, fenced=True) == all_are(Status.EFENCED)
    assert judged(5, *entry_ids, read_only=True) == all_are(Status.EREADONLY)
    assert judged(5, *entry_ids, read_only=True, flags=HIGH_PRIORITY) == all_are(Status.EOK)
    assert judged(5, *entry_ids, fenced=True, flags=RECOVERY_ADD) == all_are(Status.EOK)


def test_one_entry_of_a_run_that_cannot_be_stored_is_refused_alone() -> None:
    assert judged(5, 0, -1, 2) == [Status.EOK, Status.EBADREQ, Status.EOK]
    assert judged(5, 0, STORED_ENTRY_ID_MAX + 1) == [Status.EOK, Status.EBADREQ]


def test_absence_is_certain_unless_the_ledger_is_in_limbo() -> None:
    assert rules.absence_status(is_known=True, in_limbo=False) is Status.ENOENTRY
    assert rules.absence_status(is_known=False, in_limbo=False) is Status.ENOLEDGER
    assert rules.absence_status(is_known=True, in_limbo=True) is Status.EUNKNOWNLEDGERSTATE
    assert rules.absence_status(is_known=False, in_limbo=True) is Status.EUNKNOWNLEDGERSTATE


def lac_status(
    ledger_id: int = 5,
    stored: bytes | None = KEY,
    *,
    named: int | None = None,
    lac: int = 7,
    packet: bytes | None = None,
    read_only: bool = False,
    is_deleted: bool = False,
) -> Status:
    packet = struct.pack(">qq", ledger_id if named is None else named, lac) if packet is None else packet
    return rules.explicit_lac_status(ledger_id, stored, KEY, packet, read_only=read_only, is_deleted=is_deleted)


def test_explicit_lac_is_judged() -> None:
    assert lac_status() is lac_status(0) is lac_status(stored=None) is lac_status(stored=UNKNOWN_KEY) is Status.EOK
    assert lac_status(lac=0) is lac_status(lac=STORED_ENTRY_ID_MAX) is Status.EOK
    for wrong in (
        lac_status(-1),
        lac_status(named=6),
        lac_status(lac=-1),
        lac_status(lac=STORED_ENTRY_ID_MAX + 1),
        lac_status(packet=b""),
        lac_status(lac=-1, read_only=True),
    ):
        assert wrong is Status.EBADREQ
    assert lac_status(stored=OTHER) is Status.EUA
    assert lac_status(read_only=True) is lac_status(read_only=True, is_deleted=True) is Status.EREADONLY
    assert lac_status(is_deleted=True) is lac_status(stored=OTHER, is_deleted=True) is Status.ENOLEDGER


def test_ledger_0_is_a_ledger() -> None:
    assert judged(0, 0, fenced=True, flags=RECOVERY_ADD) == [Status.EOK]
    assert judged(0, 0, fenced=True) == [Status.EFENCED]
    assert rules.fence_status(0, KEY, KEY) is Status.EOK
    assert rules.fence_status(-1, KEY, KEY) is Status.EBADREQ
