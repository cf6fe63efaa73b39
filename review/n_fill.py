import time
from tests.crash import split_stores as s
def t(what, f):
    b=time.time()
    try: print(what, "ok", f(), "%.0fs" % (time.time()-b), flush=True)
    except BaseException as e: print(what, type(e).__name__, str(e)[:300], flush=True)
class Big: pass
import dataclasses
old = s.split_setup
def split_setup(n):
    x = old(n); return dataclasses.replace(x, store=dataclasses.replace(x.store, cache_half_bytes=30000))
s.split_setup = split_setup
L = range(1, 14)
s.LEDGERS = L
s.put.__defaults__ = (L,)
for n, p, late in ((5,3,0.0),(12,11,0.0),(3,0,0.5),(12,4,0.5)):
    t(f"fill {n}/{p} {late}", lambda: s.fill_disk(n, p, lateness=late))
