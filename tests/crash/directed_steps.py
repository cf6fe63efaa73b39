"""Short scripts about drops, full disks and halves of the write cache; see `directed`."""

from __future__ import annotations

import errno
from random import Random

from bkspark.wire.flags import RECOVERY_ADD
from bookie_service.storage.index.per_ledger import PageOptions
from bookie_service.storage.journal.journal import JournalOptions
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.crash.audit import Violation, audit
from tests.crash.campaign import reopened
from tests.crash.history import History
from tests.crash.images import Loss, crash_image
from tests.crash.metadata_view import DoubtfulMetadataView
from tests.crash.simulated_files import os_error
from tests.crash.twins import SILENT, BookieTwin, Setup


def drop_ledger_whose_fence_is_not_before_the_marks() -> None:
    """Drop a ledger of which the journal after the marks has only a fence, and cut the power.

    Raises:
        Violation: replay meets the fence of a ledger without a key.
    """
    twin = _with_ledgers(1, 2)
    twin.fence(2)
    twin.settle()
    twin.bookie.checkpoint(advances_checkpoint=False)
    twin.settle()
    twin.history.delete(2)
    twin.collect(DoubtfulMetadataView([1]), is_forced=False)
    _cut_power(twin)


def drop_fenced_ledgers_one_after_another() -> None:
    """Drop a fenced ledger, then another one.

    Raises:
        Violation: the first one may be created again.
    """
    twin = _with_fenced_ledgers(1, 2)
    for ledger_id in (1, 2):
        twin.history.delete(ledger_id)
        twin.collect(DoubtfulMetadataView(sorted(twin.history.ledgers)))
    audit(twin, twin.history)
    _cut_power(twin)


def write_lac_behind_a_drop() -> None:
    """Send an explicit LAC of a fenced ledger that was dropped.

    Raises:
        Violation: it creates the ledger again, without its fence.
    """
    twin = _with_fenced_ledgers(1)
    key = twin.history.ledger(1).master_key
    twin.history.delete(1)
    twin.collect(DoubtfulMetadataView(()))
    twin.serve_lac(SILENT, 1, 0, key)
    twin.settle()
    audit(twin, twin.history)


def read_what_found_no_space() -> None:
    """Have a checkpoint find no space for an entry log.

    Raises:
        Violation: what it should have written is gone from memory.
    """
    twin = _with_ledgers()
    twin.disk.fault = lambda operation, path: (
        os_error(errno.ENOSPC, path) if operation in ("create", "write", "reserve") and path.endswith(".log") else None
    )
    twin.add(1, [(0, b"entry")])
    twin.checkpoint()
    audit(twin, twin.history)


def checkpoint_twice_between_two_journals() -> None:
    """Let journal files wait to be used again while several checkpoints look at them.

    Raises:
        Violation: one is used twice.
    """
    setup = Setup(journal=JournalOptions(file_bytes_max=1000, preallocate_bytes=512, backups_max=0, reuse_files=True))
    twin = BookieTwin(setup.new_disk(), setup, History())
    try:
        for version in range(12):
            twin.add(1, [(0, bytes([version]) * 300)], RECOVERY_ADD)
            twin.settle()
            if version % 4 > 1:
                twin.checkpoint()
    except FileNotFoundError as error:
        raise Violation(f"a journal file was used twice: {error}") from error


def read_entry_that_is_flushed_again() -> None:
    """Rewrite an entry in the middle of a ledger, begin a flush, rewrite it once more, and read at every step.

    Raises:
        Violation: an older version is served.
    """
    twin = _with_ledgers(1)
    for step in range(2):
        twin.add(1, [(2, b"version %d" % step)], RECOVERY_ADD)
        for journal in twin.journals:
            while not journal.is_idle:
                journal.step()
        audit(twin, twin.history)
        if not step:
            twin.bookie.checkpoint()
            audit(twin, twin.history)


def restart_with_logs_in_two_directories() -> None:
    """Fill a log in each of two ledger directories, restart, and fill another one.

    Raises:
        Violation: it has the id of one that there is.
    """
    setup = Setup(ledger_directories=2)
    twin = BookieTwin(setup.new_disk(), setup, History())
    for version in range(4):
        twin.add(1, [(version, bytes(40))])
        try:
            twin.checkpoint()
        except FileExistsError as error:
            raise Violation(f"a new log has the id of an old one: {error}") from error
        twin.stop()
        twin = reopened(twin.disk, setup, twin.history)
        audit(twin, twin.history)


def collect_while_the_index_waits_for_space() -> None:
    """Flush two new ledgers when their entry logs have space and their index files do not; give the space back, seal
    the logs and collect garbage before the flush is tried again.

    Raises:
        Violation: a log counted as one whose positions the index has, and was deleted.
    """
    append = AppendOptions(log_per_ledger=True, active_logs_max=4)
    setup = Setup(store=StoreOptions(cache_half_bytes=6144, append=append, pages=PageOptions(64, 1)))
    twin = BookieTwin(setup.new_disk(), setup, History())
    for ledger_id in (1, 2):
        twin.add(ledger_id, [(entry_id, b"entry") for entry_id in range(0, 40, 10)])
    twin.disk.fault = _no_space_for_an_index
    twin.checkpoint()
    twin.disk.fault = None
    twin.store.seal_logs()
    twin.collect(DoubtfulMetadataView([1, 2]), is_forced=False)
    twin.checkpoint()
    audit(twin, twin.history)


def _no_space_for_an_index(operation: str, path: str) -> OSError | None:
    takes_space = operation in ("create", "write", "reserve") and path.endswith(".idx")
    return os_error(errno.ENOSPC, path) if takes_space else None


def _with_ledgers(*ledger_ids: int) -> BookieTwin:
    setup = Setup()
    twin = BookieTwin(setup.new_disk(), setup, History())
    for ledger_id in ledger_ids:
        twin.add(ledger_id, [(entry_id, b"entry") for entry_id in range(4)])
    twin.checkpoint()
    return twin


def _with_fenced_ledgers(*ledger_ids: int) -> BookieTwin:
    twin = _with_ledgers(*ledger_ids)
    for ledger_id in ledger_ids:
        twin.fence(ledger_id)
    twin.checkpoint()
    return twin


def _cut_power(twin: BookieTwin) -> None:
    history = twin.history.after_crash()
    audit(reopened(crash_image(twin.disk, Loss.LOST, Random(0)), twin.setup, history), history)
