"""A hold that begins a sync on its way (half a memory table), then the disk fails: its later rows are in no limbo."""
import errno, random, sys
from bookie_service.storage.io.key_values import KeyValueOptions
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.crash.audit import audit
from tests.crash.campaign import reopened
from tests.crash.history import History, NEVER
from tests.crash.images import Loss, crash_image
from tests.crash.simulated_files import os_error
from tests.crash.twins import BookieTwin, Setup
setup = Setup(ledger_directories=2, store=StoreOptions(StorageClass.DB, 60000, AppendOptions(260000), open_files_max=4,
              key_values=KeyValueOptions(write_buffer_bytes=2048)))
twin = BookieTwin(setup.new_disk(), setup, History())
ids = range(1, 41)
for l in ids: twin.add(l, [(0, b"x")])   # acknowledged
n = 0
def fault(op, path):
    global n
    if path.startswith("/ledgers1/current/positions/") and op == "write":
        n += 1
    return os_error(errno.EIO, path) if n > 1 and path.startswith("/ledgers1/") else None
twin.disk.fault = fault
twin.checkpoint()
print("closed:", dict(twin.store.index._closed), "writes seen", n)
print("in limbo while closed:", [l for l in ids if l % 2 and l in twin.store.limbo], "clean", twin.store.is_clean)
twin.stop()
twin.disk.fault = None
again = reopened(crash_image(twin.disk, Loss.LOST, random.Random(1)), setup, twin.history.after_crash())
bad = []
for l in ids:
    for e, entry in twin.history.ledger(l).entries.items():
        if entry.acknowledged != NEVER:
            s = again.read(l, e)[0]
            if s: bad.append((l, e, s, l in again.store.limbo))
print("acknowledged entries not served after the disk is back (ledger, entry, status, in limbo):", bad[:30], len(bad))
audit(again, twin.history, errors_allowed=True)
