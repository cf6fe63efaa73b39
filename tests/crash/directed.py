"""Short scripts that crash where random ones come too seldom. Each raises a Violation when a promise is broken."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from random import Random

import numpy as np

from bkspark.errors import StorageDamaged
from bkspark.wire.flags import RECOVERY_ADD
from bkspark.wire.status import Status
from bookie_service.formats.index import LAYOUT
from bookie_service.storage.disks import FileSystemSpace
from bookie_service.storage.index.per_ledger import PageOptions
from bookie_service.storage.journal.journal import JournalOptions
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.crash.audit import Violation, audit, audit_space
from tests.crash.campaign import Starts, reopened
from tests.crash.history import History
from tests.crash.images import Loss, crash_image
from tests.crash.metadata_view import DoubtfulMetadataView
from tests.crash.relaxed import DeferringClient, defer
from tests.crash.simulated_files import SimulatedDisk, SimulatedFiles
from tests.crash.twins import BookieTwin, Setup


def crash_reused_journals() -> None:
    """Write records of one size into journal files that held such records before, and crash after each.

    Raises:
        Violation: a record that an older file left was read as one of the newer file.
    """
    setup = Setup(journal=JournalOptions(file_bytes_max=2000, preallocate_bytes=1024, backups_max=0, reuse_files=True))
    twin = BookieTwin(setup.new_disk(), setup, History())
    for version in range(30):
        twin.add(1, [(0, bytes([version]) * 400)], RECOVERY_ADD)
        twin.settle()
        if version % 7 == 6:
            twin.checkpoint()
        history = twin.history.after_crash()
        audit(reopened(crash_image(twin.disk, Loss.LOST, Random(version)), setup, history), history)


def single_add_after_a_fence() -> None:
    """Send a fenced ledger one plain add after another, each alone, as its old writer would.

    Raises:
        Violation: one of them was taken.
    """
    setup = Setup()
    twin = BookieTwin(setup.new_disk(), setup, History())
    for entry_id in range(4):
        twin.add(1, [(entry_id, b"before")])
    twin.fence(1)
    twin.settle()
    for entry_id in range(4, 8):
        twin.add(1, [(entry_id, b"behind")])
        if twin.read(1, entry_id)[0] == Status.EOK:
            raise Violation(f"entry {entry_id} was added to a ledger that was fenced before")


def crash_after_a_mark_of_deferred_adds() -> None:
    """Move the mark after adds that nothing else made durable, and cut the power.

    Raises:
        Violation: the mark points after the journal's end, and the start is refused.
    """
    setup = Setup(journal=JournalOptions(file_bytes_max=1 << 20, preallocate_bytes=0, backups_max=0))
    history = History()
    twin = BookieTwin(setup.new_disk(), setup, history)
    client = DeferringClient(history)
    # The first group has the ledger's key, and is synced.
    for entry_ids in (range(3), range(3, 5)):
        defer(twin, client, 1, entry_ids)
        twin.settle()
    twin.checkpoint()
    after = history.after_crash()
    audit(reopened(crash_image(twin.disk, Loss.LOST, Random(0)), setup, after), after)


def lose_newest_journal() -> None:
    """Lose or empty the newest journal file, which holds what was acknowledged since the last checkpoint.

    Raises:
        Violation: the bookie starts without it.
    """
    setup = Setup()
    twin = BookieTwin(setup.new_disk(), setup, History())
    for entry_id in range(5):
        twin.add(1, [(entry_id, bytes(600))])
        twin.settle()
    history = twin.history.after_crash()
    for is_lost in (True, False):
        image = crash_image(twin.disk, Loss.LOST, Random(0))
        path = max(path for path in image.visible_files() if path.endswith(".txn"))
        directory, _, name = path.rpartition("/")
        if is_lost:
            del image.directory(directory).cached[name], image.directory(directory).durable[name]
        else:
            inode = image.visible_files()[path]
            del inode.cached[:], inode.durable[:]
        try:
            restarted = BookieTwin(image, setup, history)
        except StorageDamaged:
            continue
        audit(restarted, history)
        raise Violation(f"{path} is {'lost' if is_lost else 'empty'}, and the bookie did not notice")


def cut_power_after_a_kill_in_a_header_write() -> None:
    """Kill the bookie between a header's write and its sync, start it again, and then cut the power.

    The restarted bookie finds in the page cache what its journal tells, and must not take it for durable.
    """
    setup = Setup()
    twin = BookieTwin(setup.new_disk(), setup, History())
    for ledger_id in (1, 2):
        twin.add(ledger_id, [(0, b"acknowledged")])
    twin.checkpoint()
    twin.write_lac(1, 0)
    twin.fence(2)
    twin.settle()
    killed: list[SimulatedDisk] = []

    def kill(operation: str, path: str) -> None:
        if operation == "sync_data" and path.endswith(".idx"):
            killed.append(crash_image(twin.disk, Loss.KEPT, Random(0)))

    twin.disk.before_operation = kill
    twin.checkpoint()
    history = twin.history.after_crash()
    for disk in killed:
        reopened(disk, setup, history)
        audit(reopened(crash_image(disk, Loss.LOST, Random(0)), setup, history), history)


def crash_before_fence_is_durable() -> None:
    """Send a fencing read and an explicit LAC, and crash before the journal had its turn."""
    setup = Setup()
    twin = BookieTwin(setup.new_disk(), setup, History())
    twin.add(1, [(0, b"acknowledged")])
    twin.settle()
    twin.fence(1)
    twin.write_lac(1, 0)
    history = twin.history.after_crash()
    audit(reopened(crash_image(twin.disk, Loss.LOST, Random(0)), setup, history), history)


def write_late_lac() -> None:
    """Write an explicit LAC, then a lower one that comes late."""
    setup = Setup()
    twin = BookieTwin(setup.new_disk(), setup, History())
    twin.add(1, [(entry_id, b"acknowledged") for entry_id in range(6)])
    for lac in (5, 3):
        twin.write_lac(1, lac)
        twin.settle()
    audit(twin, twin.history)


def crash_striped_ledger() -> None:
    """Write every second entry, flush, then those between; crash after each flush.

    Raises:
        Violation: the second flush took positions of the first away.
    """
    # Pages of eight positions, and room for none: each is read back from its file when it changes.
    setup = Setup(store=StoreOptions(cache_half_bytes=6144, pages=PageOptions(page_bytes=64, pages_max=1)))
    twin = BookieTwin(setup.new_disk(), setup, History())
    for first in (0, 1):
        twin.add(1, [(entry_id, b"striped") for entry_id in range(first, 12 + first, 2)])
        twin.checkpoint()
        history = twin.history.after_crash()
        audit(reopened(crash_image(twin.disk, Loss.LOST, Random(first)), setup, history), history)


def crash_fenced_ledger() -> None:
    """Fence a ledger of which nothing else waits to be flushed, flush others, and crash.

    Raises:
        Violation: the fence was in the journal alone, and that went.
    """
    setup = Setup()
    twin = BookieTwin(setup.new_disk(), setup, History())
    twin.add(1, [(0, b"flushed before")])
    twin.checkpoint()
    twin.fence(1)
    twin.add(2, [(0, b"what there is to flush")])
    twin.checkpoint()
    history = twin.history.after_crash()
    audit(reopened(crash_image(twin.disk, Loss.LOST, Random(0)), setup, history), history)


_ROOMY = Setup(store=StoreOptions(cache_half_bytes=16384, append=AppendOptions(1 << 20), open_files_max=4))

_NEARLY_FULL = FileSystemSpace(2, 1 << 40, 1 << 30)
"""It takes no new logs, and the index of its ledgers."""


def _crashed_everywhere(twin: BookieTwin, act: Callable[[], object]) -> None:
    """Do something and crash before each of its operations, in every way; then again when it is done."""
    image_of = Random(0)

    def crash(operation: str, path: str) -> None:
        history = twin.history.after_crash()
        for loss in Loss:
            image = crash_image(twin.disk, loss, image_of)
            again = reopened(image, twin.setup, history)
            audit(again, history)
            audit_space(again, history.ledgers)
            audit(again, history)

    twin.disk.before_operation = crash
    act()
    crash("end", "")
    twin.disk.before_operation = None
    audit(twin, twin.history)


def crash_compaction_across_directories() -> None:
    """Compact logs of one directory into the other, and crash everywhere in it."""
    setup = Setup(ledger_directories=2, store=_ROOMY.store)
    twin = BookieTwin(setup.new_disk(), setup, History())
    for ledger_id in (1, 2, 3):  # an odd number: the new log of each lies in the other directory
        twin.add(ledger_id, [(entry_id, b"kept") for entry_id in range(4)])
        twin.checkpoint()
        twin.store.seal_logs()
    for log_id in twin.store.logs.rotated()[:2]:
        _crashed_everywhere(twin, lambda log_id=log_id: twin.compact(log_id))


def rewrite_during_compaction() -> None:
    """Write entries again, flushed, between the copying of their log and the moving of their positions."""
    twin = BookieTwin(_ROOMY.new_disk(), _ROOMY, History())
    twin.add(1, [(entry_id, b"first") for entry_id in range(6)])
    twin.checkpoint()
    twin.store.seal_logs()
    (log_id,) = twin.store.logs.rotated()

    def rewrite() -> None:
        twin.add(1, [(entry_id, b"second") for entry_id in range(0, 6, 2)], RECOVERY_ADD)
        twin.checkpoint()

    twin.compact(log_id, between=rewrite)
    audit(twin, twin.history)


def create_during_listing() -> None:
    """Create and flush a ledger after the listing of all ledgers was made, and before it is used (S12)."""
    twin = BookieTwin(_ROOMY.new_disk(), _ROOMY, History())
    twin.add(1, [(0, b"there before")])
    existing = {1}

    def create() -> None:
        existing.add(2)
        twin.add(2, [(0, b"created meanwhile")])
        twin.checkpoint()

    metadata_view = DoubtfulMetadataView(existing, after_listing=create, denies_all=True)
    twin.collect(metadata_view)
    audit(twin, twin.history)


class _ReusedId(DoubtfulMetadataView):
    """After the second direct read of a ledger it is created again."""

    def __init__(self, existing: set[int], create: Callable[[], None]) -> None:
        super().__init__(existing)
        self._create = create
        self._reads = 0

    async def is_deleted(self, ledger_id: int) -> bool:
        is_deleted = await super().is_deleted(ledger_id)
        self._reads += 1
        if self._reads == 2:
            self._create()
        return is_deleted


def create_again_after_direct_read() -> None:
    """Create a deleted ledger again with the same id, and flush it, after the last proof and before the drop."""
    twin = BookieTwin(_ROOMY.new_disk(), _ROOMY, History())
    for ledger_id in (1, 2):
        twin.add(ledger_id, [(0, b"there before")])
    twin.checkpoint()
    twin.history.delete(1)

    def create() -> None:
        del twin.history.deleted[1]
        twin.add(1, [(1, b"created again")])
        twin.checkpoint()

    twin.collect(_ReusedId({2}, create))
    audit(twin, twin.history)


def collect_without_metadata() -> None:
    """Collect garbage while the metadata store does not answer."""
    twin = BookieTwin(_ROOMY.new_disk(), _ROOMY, History())
    twin.add(1, [(0, b"kept")])
    twin.checkpoint()
    twin.collect(DoubtfulMetadataView({1}, is_down=True))
    audit(twin, twin.history)


def collect_open_log() -> None:
    """Delete all ledgers of the log that is being written, collect garbage, and go on writing."""
    twin = BookieTwin(_ROOMY.new_disk(), _ROOMY, History())
    twin.add(1, [(0, b"deleted")])
    twin.checkpoint()
    twin.history.delete(1)
    twin.collect(DoubtfulMetadataView(()), is_forced=False)
    twin.add(2, [(0, b"written behind")])
    twin.checkpoint()
    history = twin.history.after_crash()
    audit(reopened(crash_image(twin.disk, Loss.LOST, Random(0)), twin.setup, history), history)


def read_during_collection() -> None:
    """Read everything between all operations of a pass that rewrites a log; no file stays open from read to read."""
    setup = Setup(store=replace(_ROOMY.store, open_files_max=1))
    twin = BookieTwin(setup.new_disk(), setup, History())
    for ledger_ids in ((1, 2), (3,)):
        for ledger_id in ledger_ids:
            twin.add(ledger_id, [(entry_id, b"of many bytes" * ledger_id) for entry_id in range(4)])
        twin.checkpoint()
        twin.store.seal_logs()
    twin.history.delete(2)
    twin.disk.before_operation = lambda operation, path: audit(twin, twin.history)
    twin.collect(DoubtfulMetadataView({1, 3}))
    twin.disk.before_operation = None
    audit(twin, twin.history)


def crash_held_index() -> None:
    """Flush several times into one index page, which only the last flush makes durable; crash after each.

    Raises:
        Violation: the index lacks what was flushed and the journal no longer has.
    """
    setup = Setup()
    twin = BookieTwin(setup.new_disk(), setup, History())
    for first, advances_checkpoint in ((0, True), (3, False), (6, False), (9, True)):
        twin.add(1, [(entry_id, b"held") for entry_id in range(first, first + 3)])
        twin.settle()
        twin.bookie.checkpoint(advances_checkpoint=advances_checkpoint)
        twin.settle()
        history = twin.history.after_crash()
        audit(reopened(crash_image(twin.disk, Loss.LOST, Random(first)), setup, history), history)


def reread_rewritten_entry() -> None:
    """Write an entry again that single reads before it brought into a cache.

    Raises:
        Violation: the older version is served.
    """
    for storage_class in StorageClass:
        setup = Setup(store=StoreOptions(storage_class, cache_half_bytes=6144))
        twin = BookieTwin(setup.new_disk(), setup, History())
        twin.add(1, [(entry_id, b"first") for entry_id in range(4)])
        twin.checkpoint()
        twin.read(1, 0)
        twin.add(1, [(1, b"second")], RECOVERY_ADD)
        for entry_id in (0, 2):  # that the run in memory may reach over the newer one
            twin.read(1, entry_id)
        twin.checkpoint()
        for entry_id in range(4):
            _, _, content = twin.read(1, entry_id)
            if not twin.history.ledgers[1].entries[entry_id].may_be(content):
                raise Violation(f"{storage_class.short_name}: entry {entry_id}: an older version is served")


def compact_while_written() -> None:
    """Rewrite every rotated log while the newest goes on, shared and per ledger.

    Raises:
        Violation: what followed in a log that was taken away is gone.
    """
    for log_per_ledger in (False, True):
        setup = Setup(store=StoreOptions(cache_half_bytes=6144, append=AppendOptions(log_per_ledger=log_per_ledger)))
        twin = BookieTwin(setup.new_disk(), setup, History())
        for first in range(0, 6, 2):
            for ledger_id in (1, 2):
                twin.add(ledger_id, [(entry_id, b"entry") for entry_id in (first, first + 1)])
            twin.checkpoint()
            for log_id in twin.store.logs.rotated():
                twin.compact(log_id)
        audit(twin, twin.history)


def crash_flush_of_several_logs() -> None:
    """Flush two ledgers, whose entries came by turns, into logs of their own, move the marks, and cut the power.

    Raises:
        Violation: positions lead to bytes that are lost, which the journal does not have any more, or to other entries.
    """
    append = AppendOptions(1 << 20, log_per_ledger=True, active_logs_max=4)
    setup = Setup(store=StoreOptions(StorageClass.INTERLEAVED, cache_half_bytes=16384, append=append))
    twin = BookieTwin(setup.new_disk(), setup, History())
    for entry_id in range(2):
        for ledger_id in (2, 1):
            twin.add(ledger_id, [(entry_id, b"in a log of its own")])
    twin.checkpoint()
    history = twin.history.after_crash()
    audit(reopened(crash_image(twin.disk, Loss.LOST, Random(0)), setup, history), history)


def flush_into_another_directory_than_the_index() -> None:
    """Move the marks over a new log in one directory, whose positions are in the store of another one.

    The directory of the log has no change of its own store, so nothing else in a flush makes the name of the log
    durable before the mark in the first directory is.

    Raises:
        Violation: positions lead to a log whose name is lost.
    """
    setup = Setup(ledger_directories=2, store=replace(_ROOMY.store, storage_class=StorageClass.DB))
    disk = setup.new_disk()
    disk.spaces = {setup.ledger_paths[0]: _NEARLY_FULL}
    twin = BookieTwin(disk, setup, History())
    twin.add(2, [(entry_id, b"away from its index") for entry_id in range(4)])
    _crashed_everywhere(twin, twin.checkpoint)
    if {path.split("/")[1] for path in disk.visible_files() if path.endswith(".log")} != {"ledgers1"}:
        raise AssertionError("the entries are not in the second directory only")


class _Renewing(DoubtfulMetadataView):
    """Its listing misses all, and then the session expires: the next one begins with a server that lags behind."""

    async def listed(self) -> AsyncIterator[np.ndarray]:
        async for _ in super().listed():
            pass
        self._seen = self._lagging
        yield np.empty(0, np.int64)


def collect_by_a_new_session() -> None:
    """Collect garbage when the direct reads come from another session than the listing, which knows less.

    Raises:
        Violation: a ledger goes that exists.
    """
    twin = BookieTwin(_ROOMY.new_disk(), _ROOMY, History())
    twin.add(1, [(0, b"of a ledger that is new")])
    twin.checkpoint()
    twin.collect(_Renewing([1], lagging=()))
    audit(twin, twin.history)


def rewind_key_value_store() -> None:
    """Take from a stopped bookie all that its key-value store ever synced, as an old backup or a lost end would.

    Raises:
        Violation: it starts and denies what it acknowledged.
    """
    setup = Setup(store=StoreOptions(StorageClass.DB, cache_half_bytes=6144))
    twin = BookieTwin(setup.new_disk(), setup, History())
    twin.add(1, [(0, b"entry")])
    twin.checkpoint()
    twin.stop()
    image = crash_image(twin.disk, Loss.LOST, Random(0))
    (store,) = (inode for path, inode in image.visible_files().items() if path.endswith("/positions/positions"))
    store.cached.clear()
    store.durable.clear()
    try:
        reopened_twin = BookieTwin(image, setup, twin.history.after_crash())
    except StorageDamaged:
        return
    audit(reopened_twin, reopened_twin.history)


def lose_index_file() -> None:
    """Cut or remove a stopped bookie's index file by hand.

    Raises:
        Violation: it denies what the file held.
    """
    for size in (None, 0, LAYOUT.positions_at):
        twin = BookieTwin(_ROOMY.new_disk(), _ROOMY, History())
        twin.add(1, [(0, b"entry")])
        twin.checkpoint()
        twin.stop()
        path = next(path for path in twin.disk.visible_files() if path.endswith("/1.idx"))
        files = SimulatedFiles(twin.disk)
        if size is None:
            files.remove(path)
        else:
            files.open(path).truncate(size)
        status, _ = BookieTwin(twin.disk, _ROOMY, twin.history.after_crash()).batch_read(1, 0)
        if status != Status.EIO:
            raise Violation(f"an entry whose index file is lost is answered {status}")


def crash_after_a_drop() -> None:
    """Drop a deleted ledger, crash, and ask for it.

    Raises:
        Violation: the bookie regards it as lost.
    """
    twin = BookieTwin(_ROOMY.new_disk(), _ROOMY, History())
    twin.add(1, [(0, b"deleted")])
    twin.checkpoint()
    twin.history.delete(1)
    twin.collect(DoubtfulMetadataView(()))
    again = reopened(crash_image(twin.disk, Loss.LOST, Random(0)), _ROOMY, twin.history.after_crash())
    status, _ = again.batch_read(1, 0)
    if status != Status.ENOLEDGER:
        raise Violation(f"a ledger that was deleted and dropped is answered {status}")


def _crashed_twice(twin: BookieTwin, act: Callable[[], object], first: Sequence[Loss], second: Sequence[Loss]) -> None:
    """Do something and crash before each of its operations, then before and after each of the recovery's."""
    random, starts = Random(0), Starts()

    def crash(operation: str, path: str) -> None:
        history = twin.history.after_crash()
        for loss in first:
            image = crash_image(twin.disk, loss, random)

            def crash_again(operation: str, path: str, image: SimulatedDisk = image) -> None:
                for loss in second:
                    starts.audit(crash_image(image, loss, random), twin.setup, history)

            image.before_operation = crash_again
            reopened(image, twin.setup, history)
            crash_again("end", "")

    twin.disk.before_operation = crash
    act()
    crash("end", "")
    twin.disk.before_operation = None


def crash_recovery_of_torn_tail() -> None:
    """Crash in the middle of a journal's write, and again in the recovery, which begins another journal file."""
    twin = BookieTwin(_ROOMY.new_disk(), _ROOMY, History())
    twin.add(1, [(0, b"durable")])
    twin.settle()

    def add() -> None:
        twin.add(1, [(1, bytes(700))])
        twin.settle()

    _crashed_twice(twin, add, [Loss.TORN] * 4, [Loss.KEPT])


def cut_power_after_a_kill() -> None:
    """Kill a bookie in the middle of a checkpoint that makes index files, and cut the power after its recovery."""
    twin = BookieTwin(_ROOMY.new_disk(), _ROOMY, History())
    twin.add(1, [(0, b"there before")])
    twin.checkpoint()
    twin.add(2, [(0, b"in a new index file")])
    _crashed_twice(twin, twin.checkpoint, [Loss.KEPT], [Loss.LOST])
