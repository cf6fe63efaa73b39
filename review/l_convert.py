"""--convert-index of a bookie of main (one store, two directories) finds no space, or a bad disk, in directory 1. Can the bookie start again?"""
import errno, random
from dataclasses import replace
from tests.bookie.test_split_index import _with_one_store, _convert, SETUP
from tests.crash.twins import BookieTwin
from bookie_service.storage.ledgers.storage_class import StorageClass
def tried(what, f):
    try: r = f(); print(what, "ok", r if isinstance(r, int) else "")
    except Exception as e: print(what, "->", type(e).__name__, str(e)[:190])
for code, ops in ((errno.ENOSPC, {"write", "create", "create_directory"}), (errno.EIO, None)):
    disk, h = _with_one_store()
    disk.fault = lambda op, path: OSError(code, errno.errorcode[code], path) if path.startswith("/ledgers1/") and (ops is None or op in ops) else None
    print("---", errno.errorcode[code])
    tried("start before", lambda: BookieTwin(disk, SETUP, h.after_crash()).stop())
    tried("convert (Db)", lambda: _convert(disk))
    tried("start", lambda: BookieTwin(disk, SETUP, h.after_crash()))
    tried("convert again (class as it was: Db)", lambda: _convert(disk))
    tried("convert with Sorted", lambda: _convert(disk, StorageClass.SORTED))
    tried("start", lambda: BookieTwin(disk, SETUP, h.after_crash()))
    tried("start Sorted", lambda: BookieTwin(disk, replace(SETUP, store=replace(SETUP.store, storage_class=StorageClass.SORTED)), h.after_crash()))
