"""Adds with DEFERRED_SYNC that bypass the journal, and their force, while directory 1 is full, or fails."""
import errno, random, sys
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.crash.campaign import reopened
from tests.crash.full_disks import Trouble
from tests.crash.history import History
from tests.crash.images import Loss, crash_image
from tests.crash.relaxed import defer, DeferringClient
from tests.crash.twins import BookieTwin, Setup, Sent
setup = Setup(ledger_directories=2, store=StoreOptions(StorageClass.DB, 6144, AppendOptions(2600), open_files_max=4))
def begin():
    twin = BookieTwin(setup.new_disk(), setup, History()); c = DeferringClient(twin.history)
    for l in (1, 2): defer(twin, c, l, range(2), bypasses_journal=True)
    twin.checkpoint()
    return twin, c
def force(twin, l):
    s = Sent()
    with twin.loop.serving(): twin.bookie.force(s, l, lambda status: (bytes([100 + status]),))
    for _ in range(4): twin.checkpoint()
    return [b - 100 for b in s.buffer]
twin, c = begin()
t = Trouble(("/ledgers1",), errno.ENOSPC); t.begin(twin.disk); twin.bookie.look_at_disks()
# ledger 1 has one fence or add since the disk is full
defer(twin, c, 1, range(2, 3), bypasses_journal=True); twin.checkpoint()
defer(twin, c, 2, range(2, 4), bypasses_journal=True)
print("directory 1 full: force of ledger 2, whose home is directory 0:", force(twin, 2) or "no answer")
t.end(twin.disk)
twin, c = begin()
defer(twin, c, 1, range(2, 4), bypasses_journal=True)
twin.disk.fault = lambda op, path: OSError(errno.EIO, "EIO", path) if path.startswith("/ledgers1/") else None
print("directory 1 fails: force of ledger 1, whose home it is:", force(twin, 1) or "no answer", "read of entry 2:", twin.read(1, 2)[0], "limbo", twin.store.limbo.ledger_ids)
twin.stop(); twin.disk.fault = None
again = reopened(crash_image(twin.disk, Loss.LOST, random.Random(1)), setup, twin.history.after_crash())
print("after the disk is back: read of forced entry 2 of ledger 1:", again.read(1, 2)[0], "(0 EOK)")
