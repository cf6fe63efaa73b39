"""Requests for lists of entries: one list is built at a time while the others wait. For the event loop.

A list names everything that the bookie holds of a ledger. It is built in steps on a thread. Pauses between the steps
are longer than the steps, so lists use only a small share of the processor. Connections take turns, list by list. The
number of waiting lists is limited: in total, per address, and per connection (`shares`).
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from bkspark.errors import StorageDamaged
from bkspark.wire.status import Status
from bookie_service.engine.authorization import StatusOf, always_allowed
from bookie_service.engine.containment import refuse_after
from bookie_service.engine.reads import ReadClient, failed
from bookie_service.engine.shares import Peer, ShareLimits, Shares

STEP_S = 0.00025
"""About as long as the event loop may wait for the interpreter while a step runs."""
_PAUSES = 4
"""A pause is this many times as long as the step before it, so lists take at most a fifth of a processor."""

RunInThread = Callable[[Callable[[], "StepReport"], Callable[["StepReport"], None]], None]
"""Runs its first argument on a thread, then calls the second with the result on the event loop."""


class ListClient(ReadClient, Peer, Protocol):
    """The part of a connection that lists use."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> object:
        """Call back after this time, even if the connection is closed by then."""


class Listing(Protocol):
    """A list to be built."""

    client: ListClient
    ledger_id: int

    def begin(self) -> Iterator[None] | None:
        """Read what is in memory; return an iterator that builds the list in small steps, or None if it is refused.

        The steps run on a thread, and change only the list itself.
        """

    def finish(self) -> None:
        """Send the list."""

    def refuse(self, status: int) -> None:
        """Answer with a status."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """The result of a step, which took `seconds`. is_done: no step is left. error: why it failed."""

    seconds: float
    is_done: bool = False
    error: Exception | None = None


class EntryLists:
    """All lists of a bookie that are being built or wait."""

    def __init__(
        self,
        limits: ShareLimits,
        run_in_thread: RunInThread,
        clock: Callable[[], float] = time.monotonic,
        status_of: StatusOf = always_allowed,
    ) -> None:
        """`status_of(connection, ledger)` is asked before a list is built and before it is sent: only EOK allows it."""
        self._status_of = status_of
        self._places = Shares(limits)
        """How many lists wait, by connection and address, below `limits`."""
        self._in_thread = run_in_thread
        self._clock = clock
        self._waiting: OrderedDict[ListClient, deque[Listing]] = OrderedDict()
        """Waiting lists of each connection, in the order of their turns."""
        self._present: Listing | None = None
        """The list that is being built, or None."""
        self._steps: Iterator[None] = iter(())
        """The remaining steps of `_present`."""
        self._is_busy = False
        """Whether a step is running or planned. Cleared when no list is left."""

    def __len__(self) -> int:
        return len(self._places)

    def clients(self) -> list[ListClient]:
        """Return the connections that wait for a list."""
        return [*self._waiting, *([] if self._present is None else [self._present.client])]

    def add(self, listing: Listing) -> bool:
        """Build a list when its turn comes; False: too many lists wait."""
        if not self._places.take(listing.client):
            return False
        self._waiting.setdefault(listing.client, deque()).append(listing)
        if not self._is_busy:
            self._is_busy = True
            self._step()
        return True

    def _step(self) -> None:
        """Continue with the current list, or begin the next one, if there is one."""
        if self._present is not None and not self._present.client.is_open:
            self._end()
        self._forget_closed()
        self._is_busy = self._present is not None or bool(self._waiting)
        if not self._is_busy:
            return
        if self._present is not None or self._begin_next():
            self._in_thread(self._run, self._on_step)

    def _forget_closed(self) -> None:
        """Drop the lists of closed connections, up to the next open one."""
        while self._present is None and self._waiting and not (client := next(iter(self._waiting))).is_open:
            for _ in self._waiting.pop(client):
                self._places.give(client)

    def _begin_next(self) -> bool:
        """Begin a list of the connection whose turn it is; False: it was refused, and the next step tries another."""
        client, listings = self._waiting.popitem(last=False)
        listing = self._present = listings.popleft()
        if listings:
            self._waiting[client] = listings
        try:
            status = self._status_of(client, listing.ledger_id)
            if status == Status.EOK:
                steps = listing.begin()
            else:
                listing.refuse(status)
                steps = None
        except Exception as unexpected:
            refuse_after(unexpected, client, lambda: listing.refuse(Status.EIO))
            steps = None
        if steps is None:
            self._end()
            client.call_later(0.0, self._step)
            return False
        self._steps = steps
        return True

    def _end(self) -> Listing:
        """Finish the current list."""
        listing, self._present = self._present, None
        assert listing is not None
        self._places.give(listing.client)
        return listing

    def _run(self) -> StepReport:
        """Continue with the list for about `STEP_S`. Runs on a thread."""
        began = self._clock()
        try:
            for _ in self._steps:
                if self._clock() - began >= STEP_S:
                    return StepReport(self._clock() - began)
        except Exception as error:
            return StepReport(self._clock() - began, is_done=True, error=error)
        return StepReport(self._clock() - began, is_done=True)

    def _on_step(self, report: StepReport) -> None:
        # A pause follows each step, even the last one of a list: otherwise many short lists would cost more than one
        # long list.
        assert self._present is not None
        self._present.client.call_later(_PAUSES * report.seconds, self._step)
        if report.is_done:
            self._answer(self._end(), report.error)

    def _answer(self, listing: Listing, error: Exception | None) -> None:
        try:
            if error is not None:
                raise error
            status = self._status_of(listing.client, listing.ledger_id)
            if status == Status.EOK:
                listing.finish()
            else:
                listing.refuse(status)
        except (StorageDamaged, OSError) as damage:
            listing.refuse(failed(damage))
        except Exception as unexpected:
            refuse_after(unexpected, listing.client, lambda: listing.refuse(Status.EIO))
