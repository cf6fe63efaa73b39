"""Holds a restarted bookie against a history: nothing promised is gone, nothing is served that was never written."""

from __future__ import annotations

from collections.abc import Collection

from bkspark.errors import StorageDamaged
from bkspark.wire.status import Status
from bkspark.wire.v3 import StatusCode
from bookie_service.formats import compaction as intent_format
from bookie_service.formats import entry_log as log_format
from bookie_service.formats import index as index_format
from bookie_service.formats.index import UNKNOWN_KEY
from tests.crash.history import NEVER, History, LedgerHistory
from tests.crash.metadata_view import DoubtfulMetadataView
from tests.crash.twins import BookieTwin, Known, Remembered, is_sealed, lac_packet

UNKNOWN_LEDGER = 1 << 40


class Violation(AssertionError):
    """A promise was broken; the text says which."""


def audit(
    twin: BookieTwin | Remembered, history: History, *, errors_allowed: bool = False, may_hide_unknown: bool = False
) -> None:
    """Read everything that was ever asked for.

    Args:
        errors_allowed: on a damaged disk EIO is a right answer, and bytes whose digest fails are: the client asks the
            next bookie. A negative answer never is right, nor are bytes of another entry or version.
        may_hide_unknown: a failing disk may hide whether there is a ledger with the id `UNKNOWN_LEDGER`.

    Raises:
        Violation: the bookie broke a promise.
    """
    for ledger_id, ledger in history.ledgers.items():
        _audit_ledger(twin, ledger_id, ledger, errors_allowed)
    for ledger_id, ledger in history.deleted.items():
        # Its header or its tombstone tells (P21); damage may take both.
        if ledger.fence_acknowledged and not errors_allowed and not twin.refuses_adds(ledger_id, ledger.master_key):
            raise Violation(f"ledger {ledger_id}: fenced and deleted, but takes an add")
    status, _ = twin.batch_read(UNKNOWN_LEDGER, 0)
    if status != Status.ENOLEDGER and not (may_hide_unknown and status == Status.EIO):
        raise Violation(f"a ledger that never was is answered {status}")


def observe(twin: BookieTwin, history: History) -> None:
    """Note what is there as promised: a bookie that was restarted served it from durable storage."""
    for ledger_id, ledger in history.ledgers.items():
        for entry_id, entry in ledger.entries.items():
            status, _, content = twin.read(ledger_id, entry_id)
            if status == Status.EOK:
                first = max(entry.acknowledged, 0)
                entry.acknowledged = entry.versions.index(content, first)


def audit_space(twin: BookieTwin, existing: Collection[int]) -> None:
    """Collect garbage once, when only the ledgers `existing` are left in the metadata, and look at what stays on disk.

    Raises:
        Violation: a file that nothing needs is still there (B6), or a log of which too little is live.
    """
    twin.collect(DoubtfulMetadataView(existing))
    for path in twin.disk.visible_files():
        name = path.rpartition("/")[2]
        log_id, ledger_id = log_format.parse_file_name(name), index_format.parse_file_name(name)
        is_orphan = (
            name == intent_format.FILE_NAME
            or name.endswith(intent_format.SUFFIX)
            or (log_id is not None and twin.store.logs.path(log_id) != path)
            or (ledger_id is not None and ledger_id not in existing)
        )
        if is_orphan:
            raise Violation(f"{path} is left over after a pass of garbage collection")
    kept = set(twin.store.index.ledger_ids().tolist()) - set(existing)
    if kept:
        raise Violation(f"ledgers {sorted(kept)} are in the index after a pass of garbage collection")
    if not twin.setup.journal.reuse_files:
        _audit_journals(twin)
    for usage in twin.usages():
        if usage.share < twin.setup.collection.major.threshold:
            raise Violation(f"entry log {usage.log_id:x}: {usage.live_bytes} of {usage.log_bytes} bytes live, and kept")


def _audit_journals(twin: BookieTwin) -> None:
    files_max = twin.setup.journals * (1 + twin.setup.journal.backups_max)
    found = [path for path in twin.disk.visible_files() if path.startswith("/journal") and path.endswith(".txn")]
    if len(found) > files_max:
        raise Violation(f"{len(found)} journal files are left when {files_max} are needed: {found}")


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
        # A look at the ledger puts it into limbo if it has lost something.
        if errors_allowed and twin.is_in_limbo(ledger_id):
            _audit_doubt(twin, ledger_id, ledger, known)
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
        elif not (status == Status.EIO and (errors_allowed or ledger.may_be_torn(entry_id))):
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
        raise Violation(f"ledger {ledger_id}: fenced, which no client asked for")
    if known.master_key != ledger.master_key:
        raise Violation(f"ledger {ledger_id}: master key {known.master_key!r}")


def _audit_doubt(twin: BookieTwin | Remembered, ledger_id: int, ledger: LedgerHistory, known: Known | None) -> None:
    """Audit what a bookie says of a ledger in limbo: its header may be lost, and then nothing about it is certain."""
    if not twin.refuses_adds(ledger_id, ledger.master_key):
        raise Violation(f"ledger {ledger_id}: in limbo, and takes an ordinary add")
    status, packet = twin.read_lac(ledger_id)
    if status == StatusCode.EOK:
        _audit_lac(ledger_id, ledger, packet)
    elif status not in (StatusCode.EUNKNOWNLEDGERSTATE, StatusCode.EIO):
        raise Violation(f"ledger {ledger_id}: in limbo, and a read of its explicit LAC is answered {status}")
    if known is not None and known.master_key not in (ledger.master_key, UNKNOWN_KEY):
        raise Violation(f"ledger {ledger_id}: master key {known.master_key!r}")


def _audit_lac(ledger_id: int, ledger: LedgerHistory, packet: bytes) -> None:
    lac = int.from_bytes(packet[8:16], "big") if packet else NEVER
    if lac < ledger.lac_acknowledged:
        raise Violation(f"ledger {ledger_id}: explicit LAC {lac}; {ledger.lac_acknowledged} was acknowledged")
    if packet and (lac not in ledger.lacs_asked or packet != lac_packet(ledger_id, lac)):
        raise Violation(f"ledger {ledger_id}: explicit LAC {lac} {packet!r}, which no client wrote")


def _audit_absence(ledger_id: int, ledger: LedgerHistory, entry_id: int, status: int) -> None:
    entry = ledger.entries.get(entry_id)
    if entry is not None and entry.acknowledged != NEVER:
        raise Violation(f"ledger {ledger_id} entry {entry_id}: acknowledged, but answered {status}")
    if status == Status.ENOLEDGER and ledger.is_acknowledged:
        raise Violation(f"ledger {ledger_id} entry {entry_id}: answered 'no such ledger'")


def _audit_last_entry(
    twin: BookieTwin | Remembered, ledger_id: int, ledger: LedgerHistory, errors_allowed: bool
) -> None:
    sure = max((entry_id for entry_id, entry in ledger.entries.items() if entry.acknowledged != NEVER), default=-1)
    status, entry_id, content = twin.read(ledger_id, -1)
    if status == Status.EIO and (errors_allowed or any(map(ledger.may_be_torn, ledger.entries))):
        return
    if status == Status.ENOENTRY and sure < 0:
        return
    if status != Status.EOK or entry_id < sure:
        raise Violation(f"ledger {ledger_id}: last entry {entry_id}, status {status}; {sure} was acknowledged")
    if errors_allowed and not is_sealed(content):
        return
    if entry_id not in ledger.entries or not ledger.entries[entry_id].may_be(content):
        raise Violation(f"ledger {ledger_id}: last entry {entry_id} was never written like that")
