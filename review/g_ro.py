import sys
src=open('c_full.py').read()
head=src[:src.index('ix,disks=opened(); disks.waits')]
exec(head)
mode=sys.argv[1]
def bad():
    if mode=="ro": subprocess.check_call(["mount","-o","remount,ro",dirs[1]])
    else: subprocess.check_call(["umount","-l",dirs[1]])
os.makedirs(dirs[1]+"/current",exist_ok=True); os.makedirs(dirs[0]+"/current",exist_ok=True)
dirs=[d+"/current" for d in dirs]; base_d1=dirs[1]
def bad():
    m=os.path.dirname(dirs[1])
    if mode=="ro": subprocess.check_call(["mount","-o","remount,ro",m])
    else: subprocess.check_call(["umount","-l",m])
from bookie_service.storage.io.closed_directories import OpenDirectories
files=OpenDirectories([], None, dirs)
ix,disks=opened(); disks.waits=False
tryit("hold0",lambda: ix.hold(up(1,20,0,100))); tryit("sync0",ix.sync)
if mode=='umount': bad()
for i in range(1,3):
    tryit(f"hold{i}",lambda: ix.hold(up(1,20,100*i,100))); tryit(f"sync{i}",ix.sync)
    print("  full",ix.has_full,"hidden",ix.has_hidden,"closed",dict(ix._closed), "doubt", doubt)
    tryit("header",lambda: ix.header(1) is not None)
tryit("close",ix.close); disks.stop()
if mode=="ro": bad()
def again():
    global ix
    ix,_=opened()
tryit("reopen",again); print("closed",dict(ix._closed)); tryit("header",lambda: ix.header(1) is not None); tryit("header",lambda: ix.header(2) is not None)
