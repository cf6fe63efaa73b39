"""What scenarios need: a bookie on a disk that can crash, adds to it, damage, and a crash before each operation."""

from __future__ import annotations

from random import Random

from bookie_service.storage.journal.journal import JournalOptions
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.crash.audit import audit
from tests.crash.campaign import Starts, reopened
from tests.crash.history import History
from tests.crash.images import Loss, crash_image
from tests.crash.simulated_files import Inode, SimulatedDisk
from tests.crash.twins import BookieTwin, Setup

ROOMY = Setup(
    store=StoreOptions(cache_half_bytes=1 << 16, append=AppendOptions(1 << 20), open_files_max=2),
    journal=JournalOptions(file_bytes_max=1 << 20, preallocate_bytes=4096, alignment_bytes=1, backups_max=0),
)


WRONG_KEY = b"a key of another one"


def new_bookie(setup: Setup = ROOMY) -> BookieTwin:
    return BookieTwin(setup.new_disk(), setup, History())


def restarted(twin: BookieTwin, loss: Loss = Loss.LOST, seed: int = 0) -> BookieTwin:
    """Crash a bookie, start it on what is left, and hold it against what it promised."""
    twin.disk.before_operation = None
    history = twin.history.after_crash()
    new = reopened(crash_image(twin.disk, loss, Random(seed)), twin.setup, history)
    audit(new, history)
    return new


def put(twin: BookieTwin, ledger_id: int, ids: range, size: int = 30, flags: int = 0) -> None:
    """Add entries and wait until they are acknowledged."""
    twin.add(ledger_id, [(entry_id, bytes([entry_id % 251]) * size) for entry_id in ids], flags)
    twin.settle()


def file_at(disk: SimulatedDisk, name: str) -> tuple[str, Inode]:
    """Return (path, file) of the only file whose path ends so."""
    found = [(path, inode) for path, inode in disk.visible_files().items() if path.endswith(name)]
    assert len(found) == 1, (name, sorted(disk.visible_files()))
    return found[0]


def overwrite(inode: Inode, offset: int, data: bytes) -> None:
    """Damage a file, durably."""
    inode.cached[offset : offset + len(data)] = inode.durable[offset : offset + len(data)] = data


def crash_everywhere(twin: BookieTwin, act: object, audits: int = 1) -> int:
    """Run `act()` and crash the bookie before each of its operations, in every way; return how many there were."""
    boundaries = 0
    starts = Starts()

    def crash(operation: str, path: str) -> None:
        nonlocal boundaries
        boundaries += 1
        history = twin.history.after_crash()
        for loss in Loss:
            for seed in range(audits):
                starts.audit(crash_image(twin.disk, loss, Random(seed)), twin.setup, history)

    twin.disk.before_operation = crash
    try:
        act()
    finally:
        twin.disk.before_operation = None
    return boundaries


def operations_of(disk: SimulatedDisk, act: object) -> list[tuple[str, str]]:
    """Return (operation, path) of everything that `act()` changed."""
    found: list[tuple[str, str]] = []
    disk.before_operation = lambda operation, path: found.append((operation, path))
    act()
    disk.before_operation = None
    return found
