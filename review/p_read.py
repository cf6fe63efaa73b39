"""One key of store 1 cannot be read (a bad sector; nothing else fails, no write fails)."""
import errno
import numpy as np
from tests.crash.split_stores import filled
from tests.crash.simulated_key_values import SimulatedKeyValues
from bookie_service.formats import key_value_index as f
twin = filled(2)
bad = {f.header_key(1001), f.header_key(1)}
get = SimulatedKeyValues.get
def failing(self, keys):
    if "/ledgers1/" in self._file.path and bad & set(keys): raise OSError(errno.EIO, "bad sector", self._file.path)
    return get(self, keys)
SimulatedKeyValues.get = failing
import logging; logging.disable(50)
print("read of ledger 1001 (its row's block is bad):", twin.read(1001, 0)[0], "closed:", list(twin.store.index._closed), "ledger 3:", twin.read(3, 0)[0])
print("absent([1001]):", twin.store.absent(np.array([1001])), "closed:", list(twin.store.index._closed), "ledger 3:", twin.read(3, 0)[0])
