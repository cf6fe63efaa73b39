"""Directory 1 is full; all ledgers of home 1 (whose entries are there) are deleted; does a pass free it?"""
import errno, sys
from bookie_service.storage.disks import FileSystemSpace
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.crash.full_disks import Trouble
from tests.crash.history import History
from tests.crash.metadata_view import DoubtfulMetadataView
from tests.crash.twins import BookieTwin, Setup
setup = Setup(ledger_directories=2, store=StoreOptions(StorageClass.DB, 6144, AppendOptions(2600), open_files_max=4))
twin = BookieTwin(setup.new_disk(), setup, History())
for first in range(0, 40, 4):
    for l in range(1, 7): twin.add(l, [(e, b"%d" % l * 40) for e in range(first, first + 4)])
    twin.checkpoint()
logs = lambda: sorted(p for p in twin.disk.visible_files() if p.endswith(".log") and p.startswith("/ledgers1"))
print("logs in the directory before:", len(logs()), type(twin.store.index).__name__)
t = Trouble(("/ledgers1",), errno.ENOSPC); t.begin(twin.disk); twin.bookie.look_at_disks()
for l in range(1, 7): twin.add(l, [(40, b"z")])
twin.checkpoint()
for l in (1, 3, 5): twin.history.delete(l)
for _ in range(3):
    twin.checkpoint(); r = twin.collect(DoubtfulMetadataView(twin.history.ledgers))
print("logs in the full directory after 3 passes:", len(logs()), "ledgers left:", twin.store.index.ledger_ids().tolist())
