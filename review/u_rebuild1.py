import itertools, logging
logging.disable(50)
from random import Random
import tests.bookie.test_split_index as t
from tests.crash.images import Loss, crash_image, images_of_crashes
from tests.crash.twins import BookieTwin
disk, h = t._with_one_store()
cur = disk.directory("/ledgers0/current")
for names in (cur.cached, cur.durable): del names["positions"]
n = ref = 0
for name, image in itertools.islice(images_of_crashes(disk, lambda: t._rebuild(disk)), 0, None, 6):
    n += 1
    try:
        w = BookieTwin(crash_image(image, Loss.KEPT, Random(0)), t.SETUP, h.after_crash())
        s = [w.read(l, e)[0] for l in t.LEDGERS for e in range(4)]
        if any(s): print("STARTED with losses", name, s)
    except Exception: ref += 1
    t._rebuild(image)
    w = BookieTwin(image, t.SETUP, h.after_crash())
    s = [w.read(l, e)[0] for l in t.LEDGERS for e in range(4)]
    if any(s) or not w.is_in_doubt: print("BAD after retry", name, s, w.is_in_doubt)
print("images", n, "refused", ref, "split", t._is_split(disk))
