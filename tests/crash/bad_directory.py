"""One of a bookie's ledger directories takes no writes any more, and the bookie crashes at any moment after that.

`python -m tests.crash.bad_directory [--share F]` does it for each kind of failure and each directory, at a part of all
moments, and prints one line for each; a violation ends it with exit code 1.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from bkspark.wire.status import Status
from bookie_service.storage.index.per_ledger import PageOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.crash.audit import UNKNOWN_LEDGER, Violation, audit
from tests.crash.campaign import reopened
from tests.crash.history import History
from tests.crash.images import Loss, crash_image
from tests.crash.simulated_files import Fault, SimulatedDisk
from tests.crash.twins import BookieTwin, Setup

CODES = (errno.ENOSPC, errno.EIO, errno.EROFS)
LEDGERS = (1, 2, 3, 4)
_CHANGES = frozenset(
    {"write", "create", "create_directory", "preallocate", "reserve", "rename", "remove", "truncate"}
    | {"sync_data", "sync_directory", "sync_file_system"}
)
_TAKING_SPACE = frozenset({"write", "create", "create_directory", "preallocate", "reserve"})


@dataclass(frozen=True, slots=True)
class Case:
    """Which directory of how many fails, and how; files_synced_singly_max 0: whole file systems are synced.

    is_db: the directory has the index of its ledgers in a key-value store.
    """

    place: int
    directories: int
    code: int
    files_synced_singly_max: int = 128
    is_db: bool = False

    @property
    def setup(self) -> Setup:
        setup = Setup(ledger_directories=self.directories)
        pages = PageOptions(files_synced_singly_max=self.files_synced_singly_max)
        storage_class = StorageClass.DB if self.is_db else StorageClass.SORTED
        return replace(setup, store=replace(setup.store, pages=pages, storage_class=storage_class))

    def hides(self, ledger_id: int) -> bool:
        """Return whether the index of a ledger may be out of reach."""
        return self.is_db and self.code != errno.ENOSPC and ledger_id % self.directories == self.place

    def fault(self, operation: str, path: str) -> OSError | None:
        operations = _TAKING_SPACE if self.code == errno.ENOSPC else _CHANGES
        if operation in operations and (path + "/").startswith(f"/ledgers{self.place}/"):
            return OSError(self.code, os.strerror(self.code), path)
        return None


def cases() -> Iterator[Case]:
    for code in CODES:
        for place in range(2):
            yield Case(place, 2, code)
            yield Case(place, 2, code, is_db=True)
        yield Case(1, 3, code, files_synced_singly_max=0)


def crash_everywhere(case: Case, share: float = 1.0) -> int:
    """Add, flush, fence and go on while a directory fails; crash at each change, restart with it bad and with it whole.

    Args:
        share: the part of all changes that is crashed at.

    Returns:
        How many images were audited.

    Raises:
        Violation: a promise was broken, or the bookie ended or did not start.
    """
    twin = BookieTwin(case.setup.new_disk(), case.setup, History())
    _write(twin, 0)
    disk, random, chosen, images = twin.disk, Random(1), Random(2), 0

    def crash(operation: str, path: str) -> None:
        nonlocal images
        if chosen.random() >= share:
            return
        for loss in Loss:
            for fault in (None, case.fault):
                images += 1
                _audit_image(
                    case,
                    crash_image(disk, loss, random),
                    fault,
                    twin.history,
                    f"{loss.value} before {operation} {path}",
                )

    disk.fault, disk.before_operation = case.fault, crash
    try:
        _write(twin, 4)
        twin.fence(2)
        _write(twin, 8, new_ledger=7)
        _audit(case, twin, is_bad=True)
        twin.stop()
    except OSError as error:
        raise Violation(f"{case}: the bookie ended: {error}") from error
    crash("nothing", "at the end")
    return images


def _write(twin: BookieTwin, first: int, new_ledger: int | None = None) -> None:
    for ledger_id in (*LEDGERS, *([] if new_ledger is None else [new_ledger])):
        twin.add(ledger_id, [(entry_id, b"%d" % entry_id * 40) for entry_id in range(first, first + 4)])
    twin.settle()
    twin.checkpoint()


def _audit_image(case: Case, image: SimulatedDisk, fault: Fault | None, history: History, what: str) -> None:
    image.fault = fault
    what = f"{case}, {what}, the directory is {'whole' if fault is None else 'bad'} then"
    try:
        twin = reopened(image, case.setup, history)
        _audit(case, twin, is_bad=fault is not None)
    except Violation as violation:
        raise Violation(f"{what}: {violation}") from violation


def _audit(case: Case, twin: BookieTwin, *, is_bad: bool) -> None:
    """Audit a bookie while its directory `is_bad`, or after that."""
    # Two index files of a ledger and a torn list: of what is missing nothing certain is said.
    errors_allowed = len(twin.store.limbo) > 0 or (is_bad and any(map(case.hides, LEDGERS)))
    audit(twin, twin.history, errors_allowed=errors_allowed, may_hide_unknown=is_bad and case.hides(UNKNOWN_LEDGER))
    for ledger_id, ledger in twin.history.ledgers.items():
        may_fail = case.hides(ledger_id) and (is_bad or twin.is_in_limbo(ledger_id))
        for entry_id, entry in ledger.entries.items():
            status = twin.read(ledger_id, entry_id)[0]
            if entry.acknowledged >= 0 and status != Status.EOK and not may_fail:
                raise Violation(f"ledger {ledger_id} entry {entry_id}: acknowledged, answered {status}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.bad_directory", description=__doc__.split("\n")[0])
    parser.add_argument("--share", type=float, default=1.0, help="part of all moments that is crashed at (default 1)")
    share = parser.parse_args(arguments).share
    logging.disable()
    for case in cases():
        try:
            print(f"{case}: {crash_everywhere(case, share)} images, 0 violations", flush=True)
        except Violation as violation:
            print(f"violation: {violation}", flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
