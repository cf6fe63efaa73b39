"""How long one look-up takes while a full/late home keeps rows in memory."""
import time, os
from bookie_service.storage.io.kept_key_values import KeptKeyValues
from bookie_service.formats import key_value_index as f
class Store:
    def get(self, keys): return [None]*len(keys)
    def last(self, a, b): return None
    def keys(self, a, b): return iter(())
    def write(self, puts, removed=()): raise OSError(28, "full")
k=KeptKeyValues(Store(),"p",64<<20)
n=0
try:
    while True:
        puts=[]
        for l in range(n,n+1024):
            puts.append((f.header_key(l), b"h"*44)); puts.append((f.block_key(l,0), b"12345678"))
        k.write(puts); n+=1024
except OSError as e: print("kept", len(k._kept), "keys", k._kept_bytes, e)
for what,call in (("last (every look-up of a ledger that is not in memory, every LAC/last-entry read)", lambda: k.last(*f.blocks_of(5))),
                  ("keys of one ledger", lambda: list(k.keys(f.block_key(5,0), f.block_key(6,0)))),
                  ("get", lambda: k.get([f.header_key(5)]))):
    t=time.thread_time(); w=time.time(); call(); print(f"{what}: {1000*(time.thread_time()-t):.1f} ms cpu, {1000*(time.time()-w):.1f} ms wall")
