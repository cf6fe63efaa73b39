"""(1) end_limbo checks hidden before it waits for `writing`; (2) the collector ends the limbo of a dropped ledger whose removal is not durable."""
import errno, random, threading, time, sys
from bookie_service.storage.ledgers.base import StoreOptions
from tests.crash.split_stores import split_setup, filled, put, _failing
from tests.crash.campaign import reopened
from tests.crash.images import Loss, crash_image
from tests.crash.metadata_view import DoubtfulMetadataView
from tests.crash.simulated_files import os_error
twin = filled(2)
twin.store.limbo.begin([1])
twin.add(1, [(9, b"z")], flags=2)  # recovery add: taken in limbo
# a repair has ended; limbo_check calls end_limbo on a thread, while a flush holds `writing`
twin.disk.fault = None
store = twin.store
store.writing.acquire()
t = threading.Thread(target=store.end_limbo, args=([1],)); t.start(); time.sleep(0.5)
store.writing.release() if False else None
# the flush finds that the disk fails: what CheckpointThread does, with `writing` held already
flush = store.begin_flush()
twin.disk.fault = _failing(1)
store._write_flush(flush)
store._sync_index()
print("hidden:", store.index.is_hidden(1), "in limbo after the flush:", 1 in store.limbo)
store.writing.release(); t.join()
print("in limbo after end_limbo:", 1 in store.limbo)

print("--- (2)")
twin = filled(2)
twin.store.limbo.begin([1, 3]); 
h = twin.history
h.delete(1)
n=[0]
def fault(op, path):
    if path.startswith("/ledgers1/") and op in ("sync_data","write") and "positions/" in path:
        return os_error(errno.EIO, path)
twin.disk.fault = fault
twin.collect(DoubtfulMetadataView(h.ledgers))
print("closed:", list(twin.store.index._closed), "limbo:", twin.store.limbo.ledger_ids)
twin.stop()
twin.disk.fault=None
again = reopened(crash_image(twin.disk, Loss.LOST, random.Random(1)), twin.setup, h.after_crash())
print("after the disk is back: ledger 1 there:", again.store.ledger(1) is not None, "in limbo:", 1 in again.store.limbo, "read of entry 999:", again.read(1, 999)[0])
