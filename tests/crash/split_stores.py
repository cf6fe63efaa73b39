"""One key-value store for each ledger directory: its creation, and directories that are lost, full, late or closed.

Each function runs a short script of a bookie with `DbLedgerStorage` and several ledger directories, and raises a
Violation if a promise is broken.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Sequence
from random import Random

from bkspark.errors import StorageDamaged
from bkspark.wire.status import Status
from bookie_service.storage import layout
from bookie_service.storage.disks import FileSystemSpace
from bookie_service.storage.io.key_values import KeyValueOptions
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.crash.audit import Violation, audit
from tests.crash.campaign import reopened
from tests.crash.full_disks import Trouble
from tests.crash.history import NEVER, History
from tests.crash.images import Loss, crash_image
from tests.crash.metadata_view import DoubtfulMetadataView
from tests.crash.simulated_files import Fault, Inode, SimulatedDisk, os_error
from tests.crash.twins import BookieTwin, Setup

LEDGERS = range(1, 7)
NAMES = ("positions.commit", "positions")
"""What a ledger directory has of the index."""
_FULL = FileSystemSpace(2, 1 << 40, 0)


def split_setup(directories: int) -> Setup:
    """Return a bookie with a store in each of several directories."""
    return Setup(
        ledger_directories=directories,
        store=StoreOptions(StorageClass.DB, 6144, AppendOptions(2600), open_files_max=4),
    )


def small_tables_setup(directories: int) -> Setup:
    """Return such a bookie whose stores have memory tables smaller than one flush, so that a flush syncs midway."""
    key_values = KeyValueOptions(write_buffer_bytes=2048)
    store = StoreOptions(StorageClass.DB, 60_000, AppendOptions(260_000), open_files_max=4, key_values=key_values)
    return Setup(ledger_directories=directories, store=store)


def put(twin: BookieTwin, first: int, ledger_ids: range = LEDGERS) -> None:
    """Add four entries to each ledger, and have a checkpoint tried."""
    for ledger_id in ledger_ids:
        twin.add(ledger_id, [(entry_id, b"%d" % ledger_id * 40) for entry_id in range(first, first + 4)])
    twin.checkpoint()


def filled(directories: int) -> BookieTwin:
    """Return a bookie whose stores have rows."""
    setup = split_setup(directories)
    twin = BookieTwin(setup.new_disk(), setup, History())
    put(twin, 0)
    twin.fence(2)
    twin.checkpoint()
    return twin


def audit_all(twin: BookieTwin, *, except_for: Callable[[int], bool] = lambda ledger_id: False) -> None:
    """Audit a bookie: every acknowledged entry must be served.

    `except_for(ledger_id)`: the ledger's home cannot be read; it must get errors, and no negative answer.
    """
    audit(twin, twin.history, errors_allowed=True, may_hide_unknown=True)
    for ledger_id, ledger in twin.history.ledgers.items():
        for entry_id, entry in ledger.entries.items():
            status = twin.read(ledger_id, entry_id)[0]
            expected = Status.EIO if except_for(ledger_id) else Status.EOK
            if entry.acknowledged != NEVER and status != expected:
                raise Violation(f"ledger {ledger_id} entry {entry_id}: answered {status}, expected {expected}")


def crash_creation(directories: int, share: float = 1.0) -> int:
    """Crash at each change of a first start and of the first rows; return how many images were started."""
    setup = split_setup(directories)
    disk, random, chosen, images = setup.new_disk(), Random(1), Random(2), 0
    history = History()

    def crash(operation: str, path: str) -> None:
        nonlocal images
        if chosen.random() >= share:
            return
        for loss in Loss:
            image, after = crash_image(disk, loss, random), history.after_crash()
            images += 1
            try:
                twin = reopened(image, setup, after)
                audit_all(twin)
                put(twin, 4)
                twin.stop()
                audit_all(reopened(image, setup, after.after_crash()))
            except Violation as violation:
                raise Violation(f"{loss.value} before {operation} {path}: {violation}") from violation

    disk.before_operation = crash
    twin = BookieTwin(disk, setup, history)
    put(twin, 0)
    disk.before_operation = None
    return images


def lose_each_store(directories: int) -> None:
    """Lose a store, the file beside it, or both, in each directory: the bookie must not start without it."""
    stopped = filled(directories)
    # Then only one home has rows.
    few = BookieTwin(split_setup(directories).new_disk(), split_setup(directories), History())
    put(few, 0, range(directories, directories + 1))
    for twin in (stopped, few):
        twin.stop()
        for place in range(directories):
            for names in (NAMES, NAMES[:1], NAMES[1:]):
                image = crash_image(twin.disk, Loss.LOST, Random(1))
                current = image.directory(layout.current(f"/ledgers{place}"))
                for name in names:
                    del current.cached[name], current.durable[name]
                _refused(image, twin, f"/ledgers{place}/")


def lose_records(directories: int) -> None:
    """The file beside a store, or beside each, is lost or damaged, and all other disks fail, or none does.

    The bookie must not start: such a store must not pass for the only one.
    """
    twin = filled(directories)
    twin.stop()
    places = range(directories)
    for lost, is_damaged in itertools.product([*([place] for place in places), list(places)], (False, True)):
        for failing in ((), [place for place in places if place not in lost]):
            image = crash_image(twin.disk, Loss.LOST, Random(1))
            for place in lost:
                current = image.directory(layout.current(f"/ledgers{place}"))
                if is_damaged:
                    record = current.cached[NAMES[0]]
                    assert isinstance(record, Inode)
                    record.cached[10] ^= 0xFF
                    record.durable[10] ^= 0xFF
                else:
                    del current.cached[NAMES[0]], current.durable[NAMES[0]]
            image.fault = _first_fault([failing_disk(place) for place in failing])
            _refused(image, twin, f"/ledgers{lost[0]}/")


def exchange_stores(directories: int) -> None:
    """Two directories have each other's store, as after a wrong restore: the bookie must not start."""
    twin = BookieTwin(split_setup(directories).new_disk(), split_setup(directories), History())
    # Then both have the same number of commits.
    put(twin, 0)
    twin.stop()
    image = crash_image(twin.disk, Loss.LOST, Random(1))
    one, other = (image.directory(layout.current(f"/ledgers{place}")) for place in (0, 1))
    for first, second in ((one.cached, other.cached), (one.durable, other.durable)):
        first[NAMES[1]], second[NAMES[1]] = second[NAMES[1]], first[NAMES[1]]
    _refused(image, twin, "/ledgers0/")


def _first_fault(faults: Sequence[Fault]) -> Fault:
    return lambda operation, path: next(filter(None, (fault(operation, path) for fault in faults)), None)


def _refused(image: SimulatedDisk, twin: BookieTwin, path: str) -> None:
    try:
        BookieTwin(image, twin.setup, twin.history.after_crash())
    except StorageDamaged as error:
        if path not in str(error) or "--rebuild-index" not in str(error):
            raise Violation(f"refused, but not by {path} and the remedy: {error}") from error
        return
    except OSError as error:
        if image.fault is None:
            raise Violation(f"refused for a disk that works: {error}") from error
        # The first directory decides, and its disk fails.
        return
    raise Violation(f"a bookie started that has lost what {path} had of the index")


def fill_disk(directories: int, place: int, *, lateness: float = 0.0) -> None:
    """A directory is full for a while: the others continue, and it does when there is space again."""
    twin = filled(directories)
    trouble = Trouble((f"/ledgers{place}",), errno.ENOSPC)
    twin.disk.lateness = lateness
    trouble.begin(twin.disk)
    twin.bookie.look_at_disks()
    for first in (4, 8):
        put(twin, first)
        audit_all(twin)
    fenced = {2, place + 2 * directories}
    twin.fence(max(fenced))
    twin.checkpoint()
    audit_all(twin)
    if not twin.store.index.has_full:
        raise Violation("what is held for a full disk cannot be durable")
    for ledger_id in LEDGERS:
        newest = twin.history.ledger(ledger_id).entries[11]
        is_full = ledger_id % directories == place
        # A disk that is late, too, may not have reported yet that it is full.
        is_known = not (is_full and lateness)
        if is_known and is_full != bool(newest.refused) and ledger_id != 2:
            raise Violation(f"ledger {ledger_id}: an add is {'' if newest.refused else 'not '}refused")
    random = Random(place)
    for loss in (Loss.KEPT, Loss.LOST):
        audit_all(reopened(crash_image(twin.disk, loss, random), twin.setup, twin.history.after_crash()))
    trouble.end(twin.disk)
    twin.disk.lateness = 0.0
    twin.bookie.look_at_disks()
    twin.store.disks.settle()
    twin.checkpoint()
    if twin.store.index.has_full or not twin.store.is_clean:
        raise Violation("there is space again, and the index is not durable")
    put(twin, 12)
    audit_all(twin)
    for ledger_id in LEDGERS:
        if ledger_id not in fenced and twin.history.ledger(ledger_id).entries[12].acknowledged == NEVER:
            raise Violation(f"ledger {ledger_id}: an add is refused, though there is space again")
    twin.stop()
    audit_all(reopened(crash_image(twin.disk, Loss.LOST, random), twin.setup, twin.history.after_crash()))


def collect_beside_a_closed_home(directories: int, place: int) -> None:
    """A disk fails whose ledgers have entries on others, garbage is collected, and the disk comes back.

    Every entry of the ledgers that have their home there must still be served.
    """
    twin = filled(directories)
    # New entries go to the other directories, but the rows to their homes.
    twin.disk.spaces = {f"/ledgers{place}": _FULL}
    twin.bookie.look_at_disks()
    for first in range(4, 24, 4):
        put(twin, first)
    twin.stop()
    disk, history = crash_image(twin.disk, Loss.LOST, Random(1)), twin.history.after_crash()
    disk.fault = failing_disk(place)
    twin = BookieTwin(disk, twin.setup, history)
    twin.begin_run(history.ledgers)
    audit_all(twin, except_for=lambda ledger_id: ledger_id % directories == place)
    deleted = [each for each in LEDGERS if each % directories != place]
    for ledger_id in deleted:
        history.delete(ledger_id)
    for _ in range(2):
        twin.collect(DoubtfulMetadataView(history.ledgers))
    if any(each % directories != place for each in twin.store.index.ledger_ids().tolist()):
        raise Violation("deleted ledgers of other disks were not dropped")
    twin.stop()
    disk.fault = None
    again = reopened(crash_image(disk, Loss.LOST, Random(1)), twin.setup, history.after_crash())
    if len(again.store.limbo):
        raise Violation(f"ledgers {again.store.limbo.ledger_ids} are in limbo, and lack nothing")
    audit_all(again)


def fail_within_a_flush(directories: int, place: int, syncs: int, code: int = errno.EIO) -> None:
    """A flush is more than a memory table, and its disk fails after some syncs of the store, then comes back.

    What was acknowledged must be served, or its ledger is in limbo.
    """
    setup, ledger_ids = small_tables_setup(directories), range(1, 40 * directories + 1)
    twin = BookieTwin(setup.new_disk(), setup, History())
    put(twin, 0, ledger_ids)
    for ledger_id in ledger_ids:
        if ledger_id // directories % 2:
            twin.fence(ledger_id)
        else:
            twin.add(ledger_id, [(4, b"%d" % ledger_id)])
    done, failing = 0, failing_disk(place, code)

    def fault(operation: str, path: str) -> OSError | None:
        nonlocal done
        done += operation == "write" and path.startswith(f"/ledgers{place}/current/positions/")
        return failing(operation, path) if done > syncs else None

    twin.disk.fault = fault
    twin.checkpoint()
    if code == errno.EIO:
        audit_limbo(twin, except_for=lambda ledger_id: done > syncs and ledger_id % directories == place)
    twin.stop()
    twin.disk.fault = None
    image = crash_image(twin.disk, Loss.LOST, Random(syncs))
    audit_limbo(reopened(image, setup, twin.history.after_crash()))


def audit_limbo(twin: BookieTwin, *, except_for: Callable[[int], bool] = lambda ledger_id: False) -> None:
    """Audit a bookie: what was acknowledged must be served, unless the ledger is in limbo, or `except_for` as above."""
    audit(twin, twin.history, errors_allowed=True, may_hide_unknown=True)
    for ledger_id, ledger in twin.history.ledgers.items():
        for entry_id, entry in ledger.entries.items():
            status = twin.read(ledger_id, entry_id)[0]
            is_known = not except_for(ledger_id) and not twin.is_in_limbo(ledger_id)
            if is_known and entry.acknowledged != NEVER and status != Status.EOK:
                raise Violation(f"ledger {ledger_id} entry {entry_id}: answered {status}, and it is not in limbo")


def failing_disk(place: int, code: int = errno.EIO) -> Fault:
    """Return the fault of a directory each of whose calls fails."""

    def fault(operation: str, path: str) -> OSError | None:
        return os_error(code, path) if f"{path}/".startswith(f"/ledgers{place}/") else None

    return fault
