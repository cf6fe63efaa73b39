"""Holds a restarted bookie against a history: nothing promised is gone, nothing is served that was never written."""

from __future__ import annotations

from bkspark.errors import StorageDamaged
from bkspark.wire.v2 import Status
from tests.crash.history import NEVER, History, LedgerHistory
from tests.crash.twins import BookieTwin, Known, Remembered, is_sealed, lac_packet

UNKNOWN_LEDGER = 1 << 40


class Violation(AssertionError):
    """A promise was broken; the text says which."""


def audit(twin: BookieTwin | Remembered, history: History, *, errors_allowed: bool = False) -> None:
    """Read everything that was ever asked for.

    Args:
        errors_allowed: on a damaged disk EIO is a right answer, and bytes whose digest fails are: the client asks the
            next bookie. A negative answer never is right, nor are bytes of another entry or version.

    Raises:
        Violation: the bookie broke a promise.
    """
    for ledger_id, ledger in history.ledgers.items():
        _audit_ledger(twin, ledger_id, ledger, errors_allowed)
    status, _ = twin.batch_read(UNKNOWN_LEDGER, 0)
    if status != Status.ENOLEDGER:
        raise Violation(f"a ledger that never was is answered {status}")


def observe(twin: BookieTwin, history: History) -> None:
    """Note what is there as promised: a bookie that was restarted served it from durable storage."""
    for ledger_id, ledger in history.ledgers.items():
        for entry_id, entry in ledger.entries.items():
            status, _, content = twin.read(ledger_id, entry_id)
            if status == Status.EOK:
                first = max(entry.acknowledged, 0)
                entry.acknowledged = entry.versions.index(content, first)


def _audit_ledger(twin: BookieTwin | Remembered, ledger_id: int, ledger: LedgerHistory, errors_allowed: bool) -> None:
    ids = sorted(ledger.entries)
    end = ids[-1] + 1 if ids else 0
    known = None
    try:
        known = twin.header(ledger_id)
    except (StorageDamaged, OSError) as error:
        if not errors_allowed:
            raise Violation(f"ledger {ledger_id}: {error}") from error
    else:
        _audit_header(ledger_id, ledger, known)
    answered: dict[int, bytes] = {}
    for entry_id in [*ids, end]:
        if entry_id in answered:
            continue
        status, contents = twin.batch_read(ledger_id, entry_id)
        if status == Status.EOK:
            answered.update(enumerate(contents, entry_id))
        elif status in (Status.ENOENTRY, Status.ENOLEDGER):
            _audit_absence(ledger_id, ledger, entry_id, status)
        elif not (errors_allowed and status == Status.EIO):
            raise Violation(f"ledger {ledger_id} entry {entry_id}: answered {status}")
    for entry_id, content in answered.items():
        if errors_allowed and not is_sealed(content):
            continue
        if entry_id not in ledger.entries or not ledger.entries[entry_id].may_be(content):
            raise Violation(f"ledger {ledger_id} entry {entry_id}: wrong bytes {content[:40]!r}")
    if known is not None:
        _audit_last_entry(twin, ledger_id, ledger, errors_allowed)


def _audit_header(ledger_id: int, ledger: LedgerHistory, known: Known | None) -> None:
    _audit_lac(ledger_id, ledger, b"" if known is None else known.explicit_lac)
    if known is None:
        if ledger.is_acknowledged:
            raise Violation(f"ledger {ledger_id}: forgotten")
        return
    if ledger.fence_acknowledged and not known.fenced:
        raise Violation(f"ledger {ledger_id}: its fence is gone")
    if known.fenced and not ledger.fence_asked:
        raise Violation(f"ledger {ledger_id}: fenced, which nobody asked for")
    if known.master_key != ledger.master_key:
        raise Violation(f"ledger {ledger_id}: master key {known.master_key!r}")


def _audit_lac(ledger_id: int, ledger: LedgerHistory, packet: bytes) -> None:
    lac = int.from_bytes(packet[8:16], "big") if packet else NEVER
    if lac < ledger.lac_acknowledged:
        raise Violation(f"ledger {ledger_id}: explicit LAC {lac}; {ledger.lac_acknowledged} was acknowledged")
    if packet and (lac not in ledger.lacs_asked or packet != lac_packet(ledger_id, lac)):
        raise Violation(f"ledger {ledger_id}: explicit LAC {lac} {packet!r}, which nobody wrote")


def _audit_absence(ledger_id: int, ledger: LedgerHistory, entry_id: int, status: int) -> None:
    entry = ledger.entries.get(entry_id)
    if entry is not None and entry.acknowledged != NEVER:
        raise Violation(f"ledger {ledger_id} entry {entry_id}: acknowledged, but answered {status}")
    if status == Status.ENOLEDGER and ledger.is_acknowledged:
        raise Violation(f"ledger {ledger_id} entry {entry_id}: answered 'no such ledger'")


def _audit_last_entry(twin: BookieTwin | Remembered, ledger_id: int, ledger: LedgerHistory, errors_allowed: bool) -> None:
    sure = max((entry_id for entry_id, entry in ledger.entries.items() if entry.acknowledged != NEVER), default=-1)
    status, entry_id, content = twin.read(ledger_id, -1)
    if status == Status.EIO and errors_allowed:
        return
    if status == Status.ENOENTRY and sure < 0:
        return
    if status != Status.EOK or entry_id < sure:
        raise Violation(f"ledger {ledger_id}: last entry {entry_id}, status {status}; {sure} was acknowledged")
    if errors_allowed and not is_sealed(content):
        return
    if entry_id not in ledger.entries or not ledger.entries[entry_id].may_be(content):
        raise Violation(f"ledger {ledger_id}: last entry {entry_id} was never written like that")
