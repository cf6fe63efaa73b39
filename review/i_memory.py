"""Directory 1 stays full while new ledgers of home 0 come and are flushed: what stays in memory? (_LEDGERS_MAX is 1000 here)"""
import errno, tracemalloc
from bookie_service.storage.ledgers import base
base._LEDGERS_MAX = 1000
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.logs.log_appender import AppendOptions
from bookie_service.storage.journal.journal import JournalOptions
from tests.crash.full_disks import Trouble
from tests.crash.history import History
from tests.crash.twins import BookieTwin, Setup
import tests.crash.simulated_key_values as s
setup = Setup(ledger_directories=2, store=StoreOptions(StorageClass.DB, 60000, AppendOptions(2600000), open_files_max=4), journal=JournalOptions(file_bytes_max=200000, preallocate_bytes=1024, backups_max=0))
twin = BookieTwin(setup.new_disk(), setup, History())
twin.add(1, [(0, b"x")]); twin.add(2, [(0, b"x")]); twin.checkpoint()
t = Trouble(("/ledgers1",), errno.ENOSPC); t.begin(twin.disk); twin.bookie.look_at_disks()
twin.add(1, [(1, b"x")]); twin.checkpoint()
n = 2
for _ in range(4):
    for _ in range(1000):
        n += 2; twin.add(n, [(0, b"x")])
    twin.checkpoint(); twin.checkpoint()
    j = sum(len(i.cached) for p, i in twin.disk.visible_files().items() if p.startswith("/journal") and p.endswith(".txn"))
    print("new ledgers", n // 2 - 1, "in memory:", len(twin.store._ledgers), "unmarked:", len(twin.store._unmarked), "journal bytes", j)
