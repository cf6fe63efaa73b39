"""Tail: waits for an open ledger to grow, without fencing it. Decisions only.

Bookies get long polls: each answers when it knows a LAC above the given one, or after a while. Polls are kept at so
many bookies of the last fragment that every write set has (Qw - Qa) + 1 of them. One of these has every LAC that an
acknowledged entry carries. There is at most one poll at a bookie, however often callers wait.

No digest covers the LAC in the answer to a poll, so it is only a hint: the reader then reads the bookie's last entry
and explicit LAC, and uses the LAC that these prove. A bookie with a wrong hint is not polled for a while.

A refresh reads the metadata and the LACs of all bookies. It is made when the metadata may have changed, when a poll
fails, when a hint was not proven, and at intervals. If too few bookies accept polls (they do not support them, or are
unreachable), there are only refreshes, with pauses that double up to a limit.

A refresh may fail because the metadata store or too many bookies are unreachable, as during their restart. It is
repeated with the same pauses. The tail fails when refreshes fail and neither a refresh nor a poll was answered for
`TailLimits.patience_ns`: a writer that does not use the metadata store meanwhile does not notice its failure, and its
readers still get its entries.

After an early answer without news the poll is not repeated at once: some bookies always answer like that when a ledger
is fenced and not closed.

Events: `wait`, `on_polled`, `on_poll_failed`, `on_proven`, `on_metadata_changed`, `on_refreshed`, `on_refresh_failed`,
`on_tick`. Each returns effects. After each of them `lac` and `is_closed` say what is known.
"""

from __future__ import annotations

from dataclasses import dataclass

from bkspark.core import effects
from bkspark.core.metadata import LedgerMetadata
from bkspark.core.quorum import has_coverage
from bkspark.errors import BookKeeperError
from bkspark.options import bounded, check
from bkspark.wire.lac import is_lac

_NS_MAX = 1 << 62


@dataclass(frozen=True, slots=True)
class TailLimits:
    """Times of a tailing reader, in nanoseconds of the clock that its events carry.

    `poll_ns`: how long a bookie may wait before it answers. `look_ns`: interval of refreshes while polls are in flight.
    `pause_ns_min`, `pause_ns_max`: pause before a refresh without polls, and before the next poll of a bookie that had
    no news. `retry_ns`: pause for a bookie whose poll failed or whose hint was not proven. `patience_ns`: how long
    refreshes may fail while no bookie answers.
    """

    poll_ns: int = bounded(5_000_000_000, 0, _NS_MAX)
    look_ns: int = bounded(5_000_000_000, 0, _NS_MAX)
    pause_ns_min: int = bounded(50_000_000, 0, _NS_MAX)
    pause_ns_max: int = bounded(1_000_000_000, 0, _NS_MAX)
    retry_ns: int = bounded(10_000_000_000, 0, _NS_MAX)
    patience_ns: int = bounded(60_000_000_000, 0, _NS_MAX)

    def __post_init__(self) -> None:
        check(self)


class Tail:
    """Decides which bookies to ask for the LAC of an open ledger, and when; bookies of the last fragment are named by
    id."""

    def __init__(
        self, metadata: LedgerMetadata, lac: int, first_slot: int = 0, limits: TailLimits = TailLimits()
    ) -> None:
        """Begin with the known state.

        Args:
            first_slot: where the search for bookies to ask begins, so that readers spread over an ensemble.
        """
        self.metadata = metadata
        """The ledger's metadata as of the last refresh. Changed by `on_refreshed` alone."""
        self.lac = lac
        """The highest LAC that was proven. Grows."""
        self._first_slot = first_slot
        """The slot at which the search for bookies to poll begins. Constant."""
        self._limits = limits
        """Limits and times, in ns. Constant."""
        self._is_waiting = False
        """Whether `wait` was called and the LAC has not grown since."""
        self._is_looking = False
        """Whether a `Refresh` is unanswered."""
        self._is_stale = False
        """Whether the metadata may have changed since they were last read."""
        self._polls: dict[str, tuple[int, int]] = {}
        """Unanswered long polls, by bookie: when each was sent, and the LAC that it named. One per bookie."""
        self._proving: set[str] = set()
        """Bookies that were asked to prove a hint and have not answered. They get no poll meanwhile."""
        self._backing_off: dict[str, int] = {}
        """Bookies that are not polled before the given time. Past ones are removed by `_ask`."""
        self._pause_ns = limits.pause_ns_min
        """The next pause, between the limits: doubles each time, and is the shortest again when the LAC grows."""
        self._looked_ns: int | None = None
        """When the last refresh ended, or the first caller began to wait; None before that."""
        self._heard_ns = 0
        """When a refresh or a poll was last answered."""
        self._is_failing = False
        """Whether the last refresh failed."""

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is closed, as of the last refresh."""
        return self.metadata.is_closed

    @property
    def is_waiting(self) -> bool:
        """Whether the LAC has not grown, nor the ledger been closed, since `wait`."""
        return self._is_waiting and not self.is_closed

    def wait(self, now_ns: int) -> list[effects.TailEffect]:
        """A caller waits for the LAC to grow."""
        self._is_waiting = True
        if self._looked_ns is None:
            self._looked_ns = self._heard_ns = now_ns
        return self._ask(now_ns)

    def on_polled(self, bookie: str, hint: int | None, now_ns: int) -> list[effects.TailEffect]:
        """A bookie answered a long poll; `hint` is the LAC in the answer, or None."""
        sent_ns, named = self._polls.pop(bookie, (now_ns, self.lac))
        self._heard_ns = now_ns
        # Some bookies answer "infinite" when a ledger is fenced: that confirms nothing.
        if hint is not None and named < hint and is_lac(hint):
            if hint > self.lac and bookie not in self._proving:
                self._proving.add(bookie)
                return [effects.ProveLac(bookie), *self._ask(now_ns)]
        elif now_ns - sent_ns < self._limits.poll_ns // 2:
            self._backing_off[bookie] = now_ns + self._next_pause()
        return self._ask(now_ns)

    def on_proven(self, bookie: str, lac: int | None, now_ns: int) -> list[effects.TailEffect]:
        """A bookie was asked to prove its hint; `lac` is the LAC that digests prove, or None."""
        self._proving.discard(bookie)
        if lac is not None and lac > self.lac:
            self._learn(lac)
        elif self.is_waiting:
            self._backing_off[bookie] = now_ns + self._limits.retry_ns
            self._is_stale = True
        return self._ask(now_ns)

    def on_poll_failed(self, bookie: str, now_ns: int) -> list[effects.TailEffect]:
        """A long poll failed: the bookie is unreachable, refused it, or does not support it."""
        self._polls.pop(bookie, None)
        self._backing_off[bookie] = now_ns + self._limits.retry_ns
        return self._ask(now_ns)

    def on_metadata_changed(self, now_ns: int) -> list[effects.TailEffect]:
        """The ledger's metadata may have changed: it may be closed, or have other bookies."""
        self._is_stale = True
        return self._ask(now_ns)

    def on_refreshed(self, metadata: LedgerMetadata, lac: int, now_ns: int) -> list[effects.TailEffect]:
        """A `Refresh` has read the metadata and a LAC."""
        self._is_looking = self._is_failing = False
        self._looked_ns = self._heard_ns = now_ns
        self.metadata = metadata
        if lac > self.lac:
            self._learn(lac)
        return self._ask(now_ns)

    def on_refresh_failed(self, error: BookKeeperError, now_ns: int, *, may_pass: bool) -> list[effects.TailEffect]:
        """`Refresh` failed; `may_pass`: because a peer is unreachable, not for a permanent reason."""
        self._is_looking = False
        self._looked_ns = now_ns
        if not may_pass or now_ns - self._heard_ns > self._limits.patience_ns:
            return [effects.Fail(error)]
        self._is_failing = True
        return self._ask(now_ns)

    def on_tick(self, now_ns: int) -> list[effects.TailEffect]:
        """A time that `CallAfter` asked for has come."""
        return self._ask(now_ns)

    # ---- decisions ----

    def _learn(self, lac: int) -> None:
        self.lac = lac
        self._is_waiting = False
        self._pause_ns = self._limits.pause_ns_min

    def _next_pause(self) -> int:
        pause_ns = self._pause_ns
        self._pause_ns = min(2 * pause_ns, self._limits.pause_ns_max)
        return pause_ns

    def _refresh(self) -> list[effects.TailEffect]:
        self._is_looking = True
        self._is_stale = False
        return [effects.Refresh()]

    def _ask(self, now_ns: int) -> list[effects.TailEffect]:
        """Send missing polls, refresh if it is due, and request a tick for the next due time."""
        if not self.is_waiting:
            return []
        self._backing_off = {bookie: until for bookie, until in self._backing_off.items() if until > now_ns}
        chosen, is_covered = self._choose()
        done: list[effects.TailEffect] = []
        for bookie in chosen:
            if bookie not in self._polls and bookie not in self._proving:
                self._polls[bookie] = (now_ns, self.lac)
                done.append(effects.LongPoll(bookie, self.lac, self._limits.poll_ns))
        assert self._looked_ns is not None
        is_rare = is_covered and not self._is_failing
        look_ns = self._looked_ns + (self._limits.look_ns if is_rare else self._pause_ns)
        times = [*self._backing_off.values()]
        if not self._is_looking:
            if self._is_stale:
                done += self._refresh()
            elif look_ns <= now_ns:
                self._next_pause()
                done += self._refresh()
            else:
                times.append(look_ns)
        if times:
            done.append(effects.CallAfter(min(times) - now_ns))
        return done

    def _choose(self) -> tuple[list[str], bool]:
        """Return the bookies to have polls at, and whether they cover every write set."""
        metadata = self.metadata
        bookies = metadata.last_fragment.bookies
        size = len(bookies)
        chosen: list[int] = []
        for step in range(size):
            slot = (self._first_slot + step) % size
            if bookies[slot] in self._backing_off:
                continue
            chosen.append(slot)
            if has_coverage(chosen, metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum):
                return [bookies[slot] for slot in self._needed(chosen)], True
        return [bookies[slot] for slot in chosen], False

    def _needed(self, chosen: list[int]) -> list[int]:
        """Return the chosen slots, which cover every write set, without those that are not needed for it."""
        metadata = self.metadata
        for slot in tuple(chosen):
            rest = [other for other in chosen if other != slot]
            if has_coverage(rest, metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum):
                chosen = rest
        return chosen
