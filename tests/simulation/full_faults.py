"""What may strike a cluster of the full tier: each fault happens at one bookie, lasts a while, and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bkspark.wire.status import Status
from tests.crash.images import Loss
from tests.simulation.full_cluster import Cluster, FullBookie
from tests.simulation.full_links import TO_BOOKIE, TO_CLIENT, Link
from tests.simulation.history import History, LedgerHistory

SHORT_S = (0.005, 0.03, 0.3)
LONG_S = (0.03, 0.3, 2.0)
"""Below the time-outs of a second, and around them."""
SLOWNESS = (20.0, 100.0)
REPEATS = 0.3

MESSAGES = ("reset", "cut", "late loss", "hold")
"""Faults of connections."""
ANSWERS = ("refuse", "damage", "EIO", "unknown state", "too many reads", "EIO adds", "repeats")
"""Faults of what bookies answer."""
GRAY = ("hang", "hung journal", "slow journal", "failing journal")
"""A bookie that does not do its work, or not in time; its session lives on. With a failing journal it answers new adds
with an error, and those that it has taken late."""
KINDS = ("crash", "crash", "metadata", "damage on disk", *MESSAGES, *ANSWERS, *GRAY)
_STATES: dict[str, tuple[str, object, object, tuple[float, ...]]] = {
    "refuse": ("is_refusing", True, False, (0.02, 0.3)),
    "damage": ("is_damaging", True, False, SHORT_S),
    "EIO": ("read_error", Status.EIO, None, SHORT_S),
    "unknown state": ("read_error", Status.EUNKNOWNLEDGERSTATE, None, SHORT_S),
    "too many reads": ("read_error", Status.ETOOMANYREQUESTS, None, SHORT_S),
    "EIO adds": ("add_error", Status.EIO, None, SHORT_S),
}
"""Faults that are an attribute of a bookie: its name, its value, what it is otherwise, and how long it may last."""
READ_ERRORS = ("damage", "EIO", "unknown state", "too many reads")
"""Those that reads are answered with."""
REPORTED_AT_ONCE = frozenset({"crash", "reset"})
"""Faults that clients learn of without a time-out."""


class Faults:
    """Lets faults happen to a cluster, and tells the ledger's history what they may excuse."""

    def __init__(self, cluster: Cluster, history: History, ledger: LedgerHistory) -> None:
        self.cluster = cluster
        self.random = cluster.random
        self.history = history
        self.ledger = ledger
        # Damages an entry that the quorums can spare, if there is one.
        self.damage_on_disk: Callable[[FullBookie], None] = lambda bookie: None
        # How long the session of a bookie that crashes lives on.
        self.lingers_s: Callable[[], float] = lambda: 0.0
        self._tasks: set[asyncio.Future[None]] = set()

    async def strike(self, kind: str, bookie: FullBookie, who: str = "") -> None:
        """Let a fault happen, and end.

        Args:
            who: the client whose connections a fault of connections meets; "": every client's.
        """
        if kind == "crash":
            await self._crash(bookie)
            return
        seconds, end = self._begin(kind, bookie, who)
        await asyncio.sleep(seconds)
        end()

    def strike_now(self, kind: str, bookie: FullBookie, who: str = "") -> None:
        """Let a fault happen before the bookie serves its next request; a crash comes a turn of the loop later."""
        if kind == "crash":
            self._tasks.add(task := asyncio.ensure_future(self._crash(bookie)))
            task.add_done_callback(self._tasks.discard)
            return
        seconds, end = self._begin(kind, bookie, who)
        asyncio.get_running_loop().call_later(seconds, end)

    async def _crash(self, bookie: FullBookie) -> None:
        self._note("crash", bookie, "")
        await bookie.crash(self.random.choice(list(Loss)), self.lingers_s())
        await asyncio.sleep(self.random.choice((0.01, 0.3, 2.0)))
        await bookie.start()

    def _note(self, kind: str, bookie: FullBookie, who: str) -> None:
        self.history.count_fault(kind)
        if kind in ("refuse", "too many reads"):
            self.ledger.loaded.add(bookie.id)
        elif kind not in ("metadata", "repeats"):
            self.ledger.disturbed.add((who if kind in MESSAGES else "", bookie.id))

    def _begin(self, kind: str, bookie: FullBookie, who: str) -> tuple[float, Callable[[], None]]:
        """Begin a fault; return how long it lasts, and what ends it."""
        self._note(kind, bookie, who)
        choice = self.random.choice
        if kind in MESSAGES:
            self._meet_links(kind, bookie, who)
        elif kind == "metadata":
            self.cluster.lose_a_metadata_answer()
        elif kind == "damage on disk":
            self.damage_on_disk(bookie)
        elif kind == "repeats":
            self.cluster.repeats = REPEATS
            return choice(LONG_S), lambda: setattr(self.cluster, "repeats", 0.0)
        elif kind in GRAY:
            self._slow_down(kind, bookie)
            return choice(LONG_S), lambda: self._speed_up(bookie)
        else:
            attribute, value, normal, seconds = _STATES[kind]
            setattr(bookie, attribute, value)
            return choice(seconds), lambda: setattr(bookie, attribute, normal)
        return 0.0, lambda: None

    def _slow_down(self, kind: str, bookie: FullBookie) -> None:
        if kind == "slow journal":
            bookie.slowness = self.random.choice(SLOWNESS)
        elif kind == "hang":
            bookie.is_hung = True
        else:
            bookie.is_journal_hung = True
            bookie.add_error = Status.EIO if kind == "failing journal" else None

    def _speed_up(self, bookie: FullBookie) -> None:
        bookie.slowness = 1.0
        bookie.add_error = None
        bookie.wake()

    def _meet_links(self, kind: str, bookie: FullBookie, who: str) -> None:
        for link in links_of(self.cluster, bookie, who):
            if kind == "reset":
                link.abort()
            elif kind == "late loss":
                link.lose_late(self.random.choice(LONG_S))
            elif kind == "hold":
                link.hold(self.random.choice((TO_BOOKIE, TO_CLIENT)), self.random.choice(LONG_S))
            else:
                link.is_cut[self.random.randrange(2)] = True

    def end_all(self) -> None:
        """End whatever still lasts, a sync that a slow journal began included, but damage on a disk."""
        self.cluster.repeats = 0.0
        for bookie in self.cluster.bookies:
            bookie.is_damaging = bookie.is_refusing = False
            bookie.read_error = bookie.add_error = None
            bookie.mend()


def links_of(cluster: Cluster, bookie: FullBookie, who: str) -> list[Link]:
    """Return a client's links to a bookie in the order in which they were made; "": every client's."""
    links = [link for link in cluster.links if link.bookie is bookie and who in ("", link.who)]
    return sorted(links, key=lambda it: it.number)
