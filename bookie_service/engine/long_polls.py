"""Reads that wait until the LAC of a ledger advances. For the event loop.

A poll that waits is woken once: when the LAC passes the one that its client has, when the ledger is fenced, or when its
time is over. It is then answered like any other reading, in a later turn of the event loop, because code that changes a
ledger only reports the change. Polls of a closed connection are forgotten. The number of waiting polls is limited: in
total, per address, and per connection (`shares`). A change costs what it wakes, however many other polls wait.
"""

from __future__ import annotations

import itertools
import logging
from abc import abstractmethod
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from bkspark.ids import NO_ENTRY
from bkspark.wire.status import Status
from bookie_service.engine.authorization import KnownStatusOf, always_allowed
from bookie_service.engine.reads import ReadClient, Reading, Reads
from bookie_service.engine.shares import Peer, ShareLimits, Shares
from bookie_service.engine.turns import Turn, Turns

logger = logging.getLogger(__name__)


class PollTimer(Protocol):
    """A planned call."""

    def cancel(self) -> None: ...


class PollClient(ReadClient, Peer, Protocol):
    """The part of a connection that its long polls use."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> PollTimer:
        """Call back after this time, even if the connection is closed by then."""


class Poll(Reading):
    """A reading that waits until the LAC of `ledger_id` is above `previous_lac`."""

    client: PollClient
    ledger_id: int
    previous_lac: int

    @abstractmethod
    def wake(self, lac: int | None) -> None:
        """Continue: the LAC advanced to this entry id, or did not advance (None)."""


@dataclass(eq=False, slots=True)
class _Waiter:
    poll: Poll
    """The read that waits."""
    number: int
    """How many polls began to wait before it."""
    timer: PollTimer | None = None
    """Ends the wait. None: the wait has not begun."""


def _order(waiter: _Waiter) -> tuple[int, int]:
    return waiter.poll.previous_lac, waiter.number


class LongPolls:
    """All waiting polls of a bookie."""

    def __init__(
        self,
        limits: ShareLimits,
        seconds_max: float,
        lac_of: Callable[[int], int],
        reads: Reads,
        turns: Turns,
        status_of: KnownStatusOf = always_allowed,
    ) -> None:
        """`seconds_max`: no poll waits longer. `lac_of(ledger id)` returns the LAC of a ledger as known in memory.

        `status_of(connection, ledger)` is asked after the wait, and when the rules change; the poll is refused if it
        returns another status than EOK. None: it is not known, and `reads` finds it out before the poll is answered.
        """
        self._status_of = status_of
        self._places = Shares(limits)
        """How many polls wait, by connection and address, below `limits`."""
        self._seconds_max = seconds_max
        self._lac_of = lac_of
        self._reads = reads
        self._turns = turns
        self.by_ledger: dict[int, list[_Waiter]] = {}
        """The waiting polls of each ledger, by the LACs that their clients have. Only this class changes it."""
        self._numbers = itertools.count()
        """Gives each poll its number."""
        self._by_client: dict[PollClient, dict[_Waiter, None]] = {}
        """Waiting polls of each client; a client without one has no entry."""
        self._touched: dict[int, bool] = {}
        """Ledgers that changed since their polls were last checked, and whether they were fenced."""
        self._due: deque[tuple[_Waiter, int | None]] = deque()
        """Polls to answer, each with the LAC; None: its time is over."""
        self._unreviewed: deque[_Waiter] = deque()
        """Polls to check against changed rules. Filled by `review`, emptied turn by turn."""
        self._is_queued = False
        """Whether `_wake_some` is planned."""

    def __len__(self) -> int:
        return len(self._places)

    def wait(self, poll: Poll, seconds: float) -> bool:
        """Let a poll wait until its LAC advances or its time is over; False: too many polls wait already."""
        if not self._places.take(poll.client):
            return False
        waiter = _Waiter(poll, next(self._numbers))
        insort(self.by_ledger.setdefault(poll.ledger_id, []), waiter, key=_order)
        self._by_client.setdefault(poll.client, {})[waiter] = None
        waiter.timer = poll.client.call_later(min(seconds, self._seconds_max), lambda: self._time_is_over(waiter))
        return True

    def clients(self) -> Iterable[PollClient]:
        """Return the connections that have a waiting poll."""
        return self._by_client.keys()

    def touch(self, ledger_id: int, *, is_fenced: bool = False) -> None:
        """Note that the LAC of a ledger may have advanced, or that the ledger was fenced."""
        if ledger_id in self.by_ledger:
            self._touched[ledger_id] = is_fenced or self._touched.get(ledger_id, False)
            self._queue()

    def forget(self, client: PollClient) -> None:
        """Forget the polls of a closed connection."""
        for waiter in list(self._by_client.get(client, ())):
            self._remove(waiter)

    def review(self) -> None:
        """Refuse, in later turns, the polls that changed authorization rules no longer allow."""
        self._unreviewed = deque(waiter for waiters in self.by_ledger.values() for waiter in waiters)
        if self._unreviewed:
            self._queue()

    def _queue(self) -> None:
        if not self._is_queued:
            self._is_queued = True
            self._turns.go_on(self, self._wake_some)

    def _wake_some(self, turn: Turn) -> None:
        """Wake polls of changed ledgers, as many as the turn has time for."""
        self._is_queued = False
        while not turn.is_over:
            if self._due:
                waiter, lac = self._due.popleft()
                if self._is_waiting(waiter):
                    self._wake(waiter, lac, turn)
            elif self._unreviewed:
                waiter = self._unreviewed.popleft()
                if self._is_waiting(waiter):
                    self._refuse_unless_allowed(waiter)
                turn.spend()
            elif self._touched:
                self._find_due(*self._touched.popitem())
                turn.spend()
            else:
                return
        self._queue()

    def _find_due(self, ledger_id: int, is_fenced: bool) -> None:
        waiters = self.by_ledger.get(ledger_id, [])
        try:
            lac = self._lac_of(ledger_id)
        except Exception:
            # Only reading failed, so nothing is half changed; the polls keep waiting.
            logger.exception("polls that wait for the LAC of ledger %d cannot be answered", ledger_id)
            lac = NO_ENTRY
        passed = bisect_left(waiters, (lac, 0), key=_order)
        self._due.extend((waiter, lac) for waiter in waiters[:passed])
        if is_fenced:
            self._due.extend((waiter, None) for waiter in waiters[passed:])

    def _is_waiting(self, waiter: _Waiter) -> bool:
        return waiter in self._by_client.get(waiter.poll.client, ())

    def _refuse_unless_allowed(self, waiter: _Waiter) -> bool:
        """Return whether a poll may still be answered; otherwise it is refused."""
        status = self._status_of(waiter.poll.client, waiter.poll.ledger_id)
        if status is None or status == Status.EOK:
            return True
        self._remove(waiter)
        waiter.poll.wake(None)
        self._reads.refuse(waiter.poll, status)
        return False

    def _time_is_over(self, waiter: _Waiter) -> None:
        if self._is_waiting(waiter) and self._refuse_unless_allowed(waiter):
            self._remove(waiter)
            waiter.poll.wake(None)
            self._reads.later(waiter.poll)

    def _wake(self, waiter: _Waiter, lac: int | None, turn: Turn) -> None:
        if self._refuse_unless_allowed(waiter):
            self._remove(waiter)
            waiter.poll.wake(lac)
            self._reads.enqueue(waiter.poll, turn)
        turn.spend()

    def _remove(self, waiter: _Waiter) -> None:
        assert waiter.timer is not None
        waiter.timer.cancel()
        poll = waiter.poll
        self._places.give(poll.client)
        waiters = self.by_ledger[poll.ledger_id]
        del waiters[bisect_left(waiters, _order(waiter), key=_order)]
        if not waiters:
            del self.by_ledger[poll.ledger_id]
        del self._by_client[poll.client][waiter]
        if not self._by_client[poll.client]:
            del self._by_client[poll.client]
