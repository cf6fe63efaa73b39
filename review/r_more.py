import errno, random, logging
logging.disable(50)
import tests.crash.twins as tw
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.io.key_values import KeyValueOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.crash.campaign import reopened
from tests.crash.full_disks import Trouble
from tests.crash.history import History
from tests.crash.images import Loss, crash_image
from tests.crash.relaxed import defer, DeferringClient
from tests.crash.twins import BookieTwin, Setup, Sent, RecordingClient
from tests.crash.simulated_files import os_error
from bkspark.wire import v2
import numpy as np
setup = Setup(ledger_directories=2, store=StoreOptions(StorageClass.DB, 6144, AppendOptions(2600), open_files_max=4))
twin = BookieTwin(setup.new_disk(), setup, History()); c = DeferringClient(twin.history)
for l in (1, 2): defer(twin, c, l, range(2))
twin.checkpoint()
defer(twin, c, 1, range(2, 4))
twin.disk.fault = lambda op, path: OSError(errno.EIO, "EIO", path) if path.startswith("/ledgers1/") else None
twin.checkpoint()
s = Sent()
with twin.loop.serving(): twin.bookie.force(s, 1, lambda status: (bytes([100 + status]),))
twin.checkpoint()
print("(1) journaled deferred adds, home closed, marks advanced; then force:", [b - 100 for b in s.buffer], "closed", list(twin.store.index._closed), "read:", twin.read(1, 2)[0])

setup2 = Setup(ledger_directories=2, store=StoreOptions(StorageClass.DB, 60000, AppendOptions(260000), open_files_max=4, key_values=KeyValueOptions(write_buffer_bytes=2048)))
twin = BookieTwin(setup2.new_disk(), setup2, History())
import bookie_service.storage.index.key_value_index as kvi
kvi._PUTS_PER_WRITE = 8   # as 1024, for few ledgers
ids = range(1, 81, 2)
for l in ids: twin.add(l, [(0, b"x")])
twin.checkpoint(); twin.checkpoint()
for l in ids: twin.fence(l)
n = 0
def fault(op, path):
    global n
    if path.startswith("/ledgers1/current/positions/") and op == "write": n += 1
    return os_error(errno.EIO, path) if n > 2 and path.startswith("/ledgers1/") else None
twin.disk.fault = fault
twin.checkpoint()
print("(2) closed", list(twin.store.index._closed), "limbo", len(twin.store.limbo), "of", len(ids))
twin.stop(); twin.disk.fault = None
again = reopened(crash_image(twin.disk, Loss.LOST, random.Random(1)), setup2, twin.history.after_crash())
lost = [l for l in ids if twin.history.ledger(l).fence_acknowledged and not again.header(l).fenced and l not in again.store.limbo]
print("    acknowledged fences lost, not in limbo:", lost, "takes adds:", [l for l in lost if not again.refuses_adds(l, again.history.ledger(l).master_key)][:5])

twin = BookieTwin(setup.new_disk(), setup, History())
twin.add(1, [(0, b"x")]); twin.add(2, [(0, b"x")]); twin.checkpoint()
t = Trouble(("/ledgers1",), errno.ENOSPC); t.begin(twin.disk); twin.bookie.look_at_disks()
twin.add(1, [(1, b"x")]); twin.checkpoint()
def fence(l):
    s = Sent(); twin.serve(s, v2.encode_reads(l, np.array([-1]), v2.DO_FENCING, twin.history.ledger(l).master_key)); twin.checkpoint()
    return int.from_bytes(s.buffer[8:12], "big")
print("(3) directory 1 full: fence of known ledger 1:", fence(1), "of unknown ledger 31 (home 1):", fence(31), "of unknown ledger 32:", fence(32))
