import os, sys, subprocess, numpy as np, logging, time
logging.basicConfig(level=logging.INFO, format="LOG %(message)s")
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.io.disk_threads import DiskThreads, DiskStalled
from bookie_service.storage.io.key_values import KeyValueOptions
from bookie_service.storage.index.split_index import SplitIndex
from bookie_service.storage.index.split_layout import find_layout
from bookie_service.storage.index.index import LedgerUpdate
from bookie_service.formats.index import LedgerHeader
base="/tmp/split-stores"
dirs=[base+"/d0", base+"/d1"]
for d in dirs: os.makedirs(d, exist_ok=True)
subprocess.check_call(["mount","-t","tmpfs","-o","size=24m","x",dirs[1]])
files=LocalFiles()
options=KeyValueOptions(write_buffer_bytes=1<<20)
doubt=[]
def opened():
    disks=DiskThreads(dirs, 5.0)
    ix=SplitIndex(files,dirs,options,find_layout(files,dirs,lambda:True),disks=disks,begin_doubt=lambda ids: doubt.append(set(ids)))
    return ix, disks
def up(first, n, e, k=1):
    return [LedgerUpdate(l, LedgerHeader(l,1,False,b"k"*20,b""), np.arange(e,e+k), np.arange(1,k+1)+np.random.randint(1,1<<60,k)) for l in range(first, first+n)]
def fill():
    fd=os.open(dirs[1]+"/fill",os.O_CREAT|os.O_WRONLY)
    try:
        while True: os.write(fd, os.urandom(4096))
    except OSError as e: print("filled", e.errno)
    os.close(fd)
def tryit(what, f):
    t=time.time()
    try: r=f(); print(what,"ok",r if not isinstance(r,(list,)) else "", "%.2fs"%(time.time()-t))
    except BaseException as e: print(what, type(e).__name__, e, "%.2fs"%(time.time()-t))
ix,disks=opened(); disks.waits=False
tryit("hold0",lambda: ix.hold(up(1,200,0,100))); tryit("sync0",ix.sync)
fill()
for i in range(1,6):
    tryit(f"hold{i}",lambda: ix.hold(up(1,200,100*i,100))); tryit(f"sync{i}",ix.sync)
    print("  full",ix.has_full,"hidden",ix.has_hidden,"closed",dict(ix._closed), "kept",len(ix._homes[1]._kept._kept))
    tryit("  header",lambda: ix.header(1) is not None); tryit("  last", lambda: ix.last_entry(1))
    tryit("  remove",lambda: ix.remove(199))
if len(sys.argv)>1:
    tryit("close", ix.close); disks.stop()
    print("--- reopen on the full disk")
    ix,disks=opened()
    tryit("header",lambda: ix.header(1) is not None); tryit("last", lambda: ix.last_entry(1))
    tryit("hold",lambda: ix.hold(up(1,200,100,100))); tryit("sync (waits)",ix.sync)
    disks.waits=False
    tryit("hold",lambda: ix.hold(up(1,200,200,100))); tryit("sync",ix.sync)
    print("  full",ix.has_full,"hidden",ix.has_hidden,"closed",dict(ix._closed), "kept",len(ix._homes[1]._kept._kept))
os.unlink(dirs[1]+"/fill")
for i in range(3):
    tryit(f"hold after",lambda: ix.hold(up(1,200,700,10))); tryit("sync after",ix.sync)
    print("  full",ix.has_full,"hidden",ix.has_hidden,"closed",dict(ix._closed), "last",ix.last_entry(1), ix.is_clean)
print("doubt",doubt)
