"""Two directories with a store each. The file beside the first store is damaged, missing, or both are missing; the other disk fails."""
import random
from tests.crash.split_stores import split_setup, filled, _failing, LEDGERS
from tests.crash.images import Loss, crash_image
from tests.crash.twins import BookieTwin
from tests.crash.history import NEVER
def attempt(what, change, fault):
    twin = filled(2); twin.stop()
    image = crash_image(twin.disk, Loss.KEPT, random.Random(1))
    change(image)
    image.fault = fault
    h = twin.history.after_crash()
    try:
        t = BookieTwin(image, twin.setup, h)
    except BaseException as e:
        print(what, "-> refused:", type(e).__name__, str(e)[:150]); return
    print(what, "-> STARTED with", type(t.store.index).__name__, "in limbo:", t.store.limbo.ledger_ids, "doubt", t.is_in_doubt)
    print("   statuses of entry 0 of ledgers 1..6 (0 EOK, 1 no such ledger):", [t.read(l, 0)[0] for l in LEDGERS])
    return t
def damage(p):
    def f(image):
        d = image.directory(f"/ledgers{p}/current")
        node = d.cached["positions.commit"]; node.cached[10] ^= 0xff; node.durable[10] ^= 0xff
    return f
def remove(*ps):
    def f(image):
        for p in ps:
            d = image.directory(f"/ledgers{p}/current")
            for n in (d.cached, d.durable): del n["positions.commit"]
    return f
attempt("file 0 missing, disk 1 fails", remove(0), _failing(1))
attempt("file 1 missing, disk 0 fails", remove(1), _failing(0))
attempt("both files missing", remove(0,1), None)
try: attempt("file 0 damaged, disk 1 fails", damage(0), _failing(1))
except Exception as e: print(repr(e))
