"""What a full or late store lacks is in another ledger directory: crashes at every step, and disks that fail then.

`python -m tests.crash.changes_elsewhere` runs every crash of every script.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from random import Random

from bkspark.errors import StorageDamaged
from bkspark.wire.flags import RECOVERY_ADD
from bkspark.wire.status import Status
from bookie_service.formats import file_places
from bookie_service.formats.kept_changes import file_name
from bookie_service.formats.key_value_index import ENTRIES_PER_BLOCK
from bookie_service.storage import layout
from tests.crash.audit import Violation, audit
from tests.crash.full_disks import Trouble
from tests.crash.history import History
from tests.crash.images import Loss, crash_image
from tests.crash.metadata_view import DoubtfulMetadataView
from tests.crash.simulated_files import Inode, SimulatedDisk, os_error
from tests.crash.split_stores import audit_limbo, failing_disk, filled, put
from tests.crash.twins import BookieTwin

_DELETED = (1, 2)
_FAR_ENTRY = 3 * ENTRIES_PER_BLOCK
"""Its position is in another row than those of the first entries."""
_LATENESS = 0.4


def crash_beside(directories: int, place: int, *, is_late: bool, share: float = 1.0) -> int:
    """Crash at each change of a disk while one directory is full, or any is late, and after it; return how many images
    were started. Each is started with all disks, and without each of them, and then with all.

    What was acknowledged must be served, and nothing of it denied, unless the ledger is in limbo.
    """
    chosen, images = Random(2), 0
    twin = filled(directories)

    def crash(operation: str, path: str) -> None:
        nonlocal images
        if chosen.random() >= share:
            return
        for failing in (None, *range(directories)):
            images += 1
            try:
                _start_each(twin, failing, chosen)
            except Violation as violation:
                how = "all disks" if failing is None else f"no disk of /ledgers{failing}"
                raise Violation(f"crash before {operation} {path}, start with {how}: {violation}") from violation

    twin.disk.before_operation = crash
    _run(twin, place, is_late=is_late)
    twin.disk.before_operation = None
    return images


def _run(twin: BookieTwin, place: int, *, is_late: bool) -> None:
    """Add, fence and delete while a directory is full or disks are late, and after it."""
    directories = twin.setup.ledger_directories
    trouble = Trouble((f"/ledgers{place}",), errno.ENOSPC)
    if is_late:
        twin.disk.lateness = _LATENESS
    else:
        trouble.begin(twin.disk)
    twin.bookie.look_at_disks()
    for ledger_id in _DELETED:
        twin.add(ledger_id, [(_FAR_ENTRY, b"far")], flags=RECOVERY_ADD)
    put(twin, 4)
    if not is_late and (not twin.store.index.has_full or not twin.store.takes_new_ledgers or twin.store._unmarked):
        raise Violation("the marks wait for a full directory, though another one has space")
    twin.fence(place + 2 * directories)
    twin.checkpoint()
    for ledger_id in _DELETED:
        twin.history.delete(ledger_id)
    twin.collect(DoubtfulMetadataView(twin.history.ledgers))
    put(twin, 8, range(3, 9))
    twin.write_lac(place + directories, 7)
    twin.checkpoint()
    if not is_late and (left := set(_DELETED) & set(twin.store.index.ledger_ids().tolist())):
        raise Violation(f"deleted ledgers {left} are not dropped beside a full directory")
    trouble.end(twin.disk)
    twin.disk.lateness = 0.0
    twin.bookie.look_at_disks()
    twin.store.disks.settle()
    for _ in range(2):
        # The second one gives what was removed during the first.
        twin.checkpoint()
    if twin.store.index.has_full or not twin.store.is_clean:
        raise Violation("there is space again, and the index is not durable")
    put(twin, 12, range(3, 9))
    twin.stop()


def _start_each(twin: BookieTwin, failing: int | None, random: Random) -> None:
    loss = random.choice((Loss.KEPT, Loss.LOST))
    disk, history = crash_image(twin.disk, loss, random), twin.history.after_crash()
    if failing is not None:
        disk.fault = failing_disk(failing)
        started = _started(disk, twin, history, is_refusable=True)
        if started is not None:
            audit(started, history, errors_allowed=True, may_hide_unknown=True)
            # Replay may have kept changes of other homes, too.
            put(started, 16, range(5, 9))
            audit(started, history, errors_allowed=True, may_hide_unknown=True)
            history = history.after_crash()
        disk = crash_image(disk, loss, random)
        disk.fault = None
    started = _started(disk, twin, history, is_refusable=False)
    assert started is not None
    audit_limbo(started)
    _audit_deleted(started)
    if failing is None and len(started.store.limbo):
        raise Violation(f"ledgers {started.store.limbo.ledger_ids} are in limbo, and no disk has failed")
    put(started, 20, range(5, 9))
    started.stop()
    history = history.after_crash()
    again = _started(crash_image(disk, Loss.LOST, random), twin, history, is_refusable=False)
    assert again is not None
    audit_limbo(again)


def _audit_deleted(twin: BookieTwin) -> None:
    """A deleted ledger may come back, but whole: another one with its id must not find a part of it."""
    index, gone = twin.store.index, set(_DELETED) - twin.history.ledgers.keys()
    there = set(index.ledger_ids().tolist())
    for ledger_id in gone - there:
        if not index.is_hidden(ledger_id) and any(True for _ in index.extents(ledger_id)):
            raise Violation(f"deleted ledger {ledger_id} came back as positions without a header")
    for ledger_id in gone & there:
        for entry_id in (0, _FAR_ENTRY):
            if twin.read(ledger_id, entry_id)[0] == Status.ENOENTRY:
                raise Violation(f"deleted ledger {ledger_id} came back without entry {entry_id}")


def remove_after_the_file() -> None:
    """A store finds no space once, so a file has what it lacks. Then a ledger of it is deleted, and a crash follows."""
    twin = filled(2)
    twin.add(1, [(_FAR_ENTRY, b"far")])
    twin.checkpoint()
    twin.add(1, [(4, b"newer")])
    twin.disk.fault = lambda operation, path: (
        os_error(errno.ENOSPC, path)
        if operation == "write" and path.startswith("/ledgers1/current/positions/")
        else None
    )
    twin.checkpoint()
    twin.disk.fault = None
    twin.history.delete(1)
    # As a collector does, whose first sync comes before this.
    twin.store.prepare_drop([1], [], 0)
    if twin.store.drop([1]) != [1]:
        raise Violation("a deleted ledger is not dropped, though its changes are durable")
    twin.store.sync_dropped([1])
    for loss in (Loss.KEPT, Loss.LOST):
        image = crash_image(twin.disk, loss, Random(1))
        started = _started(image, twin, twin.history.after_crash(), is_refusable=False)
        assert started is not None
        _audit_deleted(started)


def return_old_file(directories: int, place: int, *, is_recorded: bool = True) -> None:
    """The file is on a disk that fails before it is removed, and comes back when its store has long had more.

    `is_recorded`: there is a record of the places of files, which does not name it.
    """
    twin = filled(directories)
    seen: dict[str, bytes] = {}

    def copy(operation: str, path: str) -> None:
        for each in range(directories):
            current = twin.disk.directory(layout.current(f"/ledgers{each}"))
            file = current.durable.get(file_name(place))
            if isinstance(file, Inode):
                seen[f"/ledgers{each}"] = bytes(file.durable)

    twin.disk.before_operation = copy
    _run(twin, place, is_late=False)
    twin.disk.before_operation = None
    if not seen:
        raise Violation("what a full store lacks was in no other directory")
    image = crash_image(twin.disk, Loss.LOST, Random(1))
    for directory, content in seen.items():
        _put_file(image, layout.current(directory), file_name(place), Inode(content))
    if not is_recorded:
        _put_file(image, layout.current("/journal0"), file_places.FILE_NAME, None)
    started = _started(image, twin, twin.history.after_crash(), is_refusable=False)
    assert started is not None
    audit_limbo(started)
    if set(_DELETED) & set(started.store.index.ledger_ids().tolist()):
        raise Violation("an old file brought a ledger back that was removed durably")


def _put_file(disk: SimulatedDisk, directory: str, name: str, file: Inode | None) -> None:
    """Put a file into a directory, durably; None: remove it."""
    for names in (disk.directory(directory).cached, disk.directory(directory).durable):
        names.pop(name, None)
        if file is not None:
            names[name] = file


def return_attempt(*, is_recorded: bool = True) -> None:
    """A file is in place, but its attempt failed and was not recorded. After a crash a run without its disk uses the
    numbers of its commits again. Then the disk comes back.

    `is_recorded`: there is a record of the places of files then; otherwise the start may be refused.
    """
    twin = filled(3)
    full = Trouble(("/ledgers1",), errno.ENOSPC)
    # The store's memory has positions when its disk is full.
    twin.add(1, [(4, b"newer")])
    full.begin(twin.disk)
    twin.checkpoint()
    twin.bookie.look_at_disks()
    # Each tries to give it to the store, with another number.
    for _ in range(10):
        twin.checkpoint()
    is_renamed = False

    def fault(operation: str, path: str) -> OSError | None:
        nonlocal is_renamed
        if operation in ("create", "write") and path.startswith("/ledgers0/current/positions.kept."):
            return os_error(errno.ENOSPC, path)
        is_renamed = is_renamed or (operation == "rename" and path == "/ledgers2/current/positions.kept.1")
        is_failing = is_renamed and operation == "sync_directory" and path == "/ledgers2/current"
        return os_error(errno.EIO, path) if is_failing else full.fault(operation, path)

    twin.disk.fault = fault
    twin.fence(4)
    twin.checkpoint()
    if not is_renamed:
        raise Violation("the file was not tried in another directory")
    disk, history = crash_image(twin.disk, Loss.KEPT, Random(1)), twin.history.after_crash()
    for failing, first in ((2, 12), (None, 20)):
        disk.fault = None if failing is None else failing_disk(failing)
        is_lost = failing is None and not is_recorded
        if is_lost:
            _put_file(disk, layout.current("/journal0"), file_places.FILE_NAME, None)
        started = _started(disk, twin, history, is_refusable=is_lost)
        if started is None:
            return
        audit_limbo(started, except_for=lambda ledger_id, failing=failing: ledger_id % 3 == failing)
        put(started, first)
        started.stop()
        disk, history = crash_image(disk, Loss.KEPT, Random(1)), history.after_crash()


def _started(disk: SimulatedDisk, twin: BookieTwin, history: History, *, is_refusable: bool) -> BookieTwin | None:
    try:
        started = BookieTwin(disk, twin.setup, history)
    except (StorageDamaged, OSError) as error:
        if not is_refusable:
            raise Violation(f"the bookie does not start: {error}") from error
        return None
    started.begin_run(history.ledgers)
    return started


def scripts() -> list[tuple[str, Callable[[float], int]]]:
    """Return each script with its name; called with the share of crashes, it returns how many images it started."""
    return [
        (
            f"{directories} directories, {place} {'late' if is_late else 'full'}",
            lambda share, which=(directories, place, is_late): crash_beside(
                which[0], which[1], is_late=which[2], share=share
            ),
        )
        for directories in (2, 3)
        for is_late in (False, True)
        for place in range(directories)
    ]


def main() -> None:
    """Run every crash of every script; print one line of counts."""
    print(json.dumps({name: script(1.0) for name, script in scripts()}), flush=True)


if __name__ == "__main__":
    main()
