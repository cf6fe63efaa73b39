"""The directories `positions` of two homes are exchanged, their `positions.commit` are not (a restore)."""
import random
from tests.crash.split_stores import filled, LEDGERS
from tests.crash.images import Loss, crash_image
from tests.crash.twins import BookieTwin
twin = filled(2); twin.stop()
image = crash_image(twin.disk, Loss.KEPT, random.Random(1))
a, b = (image.directory(f"/ledgers{i}/current") for i in (0, 1))
for x, y in ((a.cached, b.cached), (a.durable, b.durable)): x["positions"], y["positions"] = y["positions"], x["positions"]
try:
    t = BookieTwin(image, twin.setup, twin.history.after_crash())
    print("started; statuses of ledgers 1..6 (1 no such ledger):", [t.read(l, 0)[0] for l in LEDGERS])
except Exception as e: print(type(e).__name__, e)
