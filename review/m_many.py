import time
from tests.crash import split_stores as s
def t(what, f):
    b=time.time()
    try: print(what, "ok", f(), "%.0fs" % (time.time()-b), flush=True)
    except BaseException as e: print(what, type(e).__name__, str(e)[:300], flush=True)
s.LEDGERS = range(1, 14)
t("fill 5/3", lambda: s.fill_disk(5, 3))
t("fill 12/11 late", lambda: s.fill_disk(12, 11, lateness=0.4))
t("collect 5/0", lambda: s.collect_beside_a_closed_home(5, 0))
t("collect 12/7", lambda: s.collect_beside_a_closed_home(12, 7))
t("lose 5", lambda: s.lose_each_store(5))
t("creation 12", lambda: s.crash_creation(12, 0.03))
