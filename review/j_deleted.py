"""Directory 1 is full. Ledgers of home 0, written since, are deleted in the metadata: are they dropped, and their logs removed?"""
import errno
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.crash.full_disks import Trouble
from tests.crash.history import History
from tests.crash.metadata_view import DoubtfulMetadataView
from tests.crash.twins import BookieTwin, Setup
setup = Setup(ledger_directories=2, store=StoreOptions(StorageClass.DB, 6144, AppendOptions(2600), open_files_max=4))
twin = BookieTwin(setup.new_disk(), setup, History())
twin.add(1, [(0, b"x")]); twin.add(2, [(0, b"x")]); twin.checkpoint()
t = Trouble(("/ledgers1",), errno.ENOSPC); t.begin(twin.disk); twin.bookie.look_at_disks()
twin.add(1, [(1, b"x")]); twin.checkpoint()
ids = range(4, 84, 2)
for l in ids: twin.add(l, [(e, b"%d" % l * 40) for e in range(4)])
twin.checkpoint()
for l in ids: twin.history.delete(l)
for _ in range(3):
    twin.checkpoint(); twin.collect(DoubtfulMetadataView(twin.history.ledgers))
print("ledgers left in the index after 3 passes:", len(twin.store.index.ledger_ids()), "logs in the good directory:", len([p for p in twin.disk.visible_files() if p.endswith(".log") and p.startswith("/ledgers0")]))
