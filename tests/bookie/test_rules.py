"""Rules and the flush policy: pure decisions, one claim each."""

from __future__ import annotations

import numpy as np
import pytest

from bkspark.wire.v2 import HIGH_PRIORITY, RECOVERY_ADD, Status
from bookie_service import rules
from bookie_service.formats.index import ENTRY_ID_MAX, UNKNOWN_KEY
from bookie_service.storage.flush_policy import FlushLimits, FlushReason, flush_reason

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
        ({"entry_id": ENTRY_ID_MAX}, Status.EOK),
        ({"entry_id": ENTRY_ID_MAX + 1}, Status.EBADREQ),
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
        (EAGER, 0, 0, 9999, True, None),
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
