"""Requests for lists of entries: one list is built at a time while the others wait. For the event loop.

A list names everything that the bookie holds of a ledger. It is built in steps on a thread. Pauses between the steps
are longer than the steps, so lists use only a small share of the processor. Connections take turns, list by list. The
number of waiting lists is limited: in total, per address, and per connection (`shares`).

The authorization rules may change meanwhile, so a list is judged before it is built and before it is sent. If its
ledger must be looked up for that, the others go on.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from bkspark.errors import StorageDamaged
from bkspark.wire.status import Status
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


class ListAuthorization(Protocol):
    """The part of the authorization that lists use; see `authorization.Authorization`."""

    def known_status_of(self, client: ListClient, ledger_id: int) -> Status | None:
        """Return EOK if a connection may still read a ledger; None: it is not known before `find` has called back."""

    def find(self, client: ListClient, ledger_ids: Sequence[int], on_found: Callable[[], None]) -> None:
        """Look up some ledgers of which a connection's status is not known, and call back in a later call."""


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
        authorization: ListAuthorization | None = None,
    ) -> None:
        """`authorization` None: every list is allowed."""
        self._authorization = authorization
        self._places = Shares(limits)
        """How many lists wait, by connection and address, below `limits`."""
        self._in_thread = run_in_thread
        self._clock = clock
        self._waiting: OrderedDict[ListClient, deque[Listing]] = OrderedDict()
        """Waiting lists of each connection, in the order of their turns."""
        self._unjudged: dict[Listing, None] = {}
        """Lists whose ledger is looked up, because it is not known whether they are allowed."""
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
        others = [*self._unjudged, *([] if self._present is None else [self._present])]
        return [*self._waiting, *(listing.client for listing in others)]

    def add(self, listing: Listing) -> bool:
        """Build a list when its turn comes; False: too many lists wait."""
        if not self._places.take(listing.client):
            return False
        self._waiting.setdefault(listing.client, deque()).append(listing)
        self._begin()
        return True

    def _begin(self) -> None:
        if not self._is_busy:
            self._is_busy = True
            self._step()

    def _step(self) -> None:
        """Continue with the current list, or begin the next one, if there is one."""
        if self._present is not None and not self._present.client.is_open:
            self._places.give(self._present.client)
            self._present = None
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
        """Begin a list of the connection whose turn it is; False: it is refused or must wait, and the next step tries
        another."""
        client, listings = self._waiting.popitem(last=False)
        listing = listings.popleft()
        if listings:
            self._waiting[client] = listings
        steps = None
        try:
            if self._is_allowed(listing, self._wait_first):
                steps = listing.begin()
                if steps is None:
                    self._places.give(client)
        except Exception as unexpected:
            self._places.give(client)
            refuse_after(unexpected, client, lambda: listing.refuse(Status.EIO))
        if steps is None:
            client.call_later(0.0, self._step)
            return False
        self._present, self._steps = listing, steps
        return True

    def _wait_first(self, listing: Listing) -> None:
        """Let a list be the next one of its connection."""
        self._waiting.setdefault(listing.client, deque()).appendleft(listing)
        self._begin()

    def _is_allowed(self, listing: Listing, go_on: Callable[[Listing], None]) -> bool:
        """Return whether a list is allowed. Otherwise it is refused, or `go_on` is called with it once it is known to
        be allowed."""
        client, authorization = listing.client, self._authorization
        status = None if authorization is None else authorization.known_status_of(client, listing.ledger_id)
        if authorization is None or status == Status.EOK:
            return True
        if status is None:
            authorization.find(client, (listing.ledger_id,), lambda: self._on_found(listing, go_on))
            self._unjudged[listing] = None
        else:
            listing.refuse(status)
            self._places.give(client)
        return False

    def _on_found(self, listing: Listing, go_on: Callable[[Listing], None]) -> None:
        del self._unjudged[listing]
        if not listing.client.is_open:
            self._places.give(listing.client)
            return
        try:
            if self._is_allowed(listing, go_on):
                go_on(listing)
        except Exception as unexpected:
            self._places.give(listing.client)
            refuse_after(unexpected, listing.client, lambda: listing.refuse(Status.EIO))

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
        listing = self._present
        assert listing is not None
        listing.client.call_later(_PAUSES * report.seconds, self._step)
        if report.is_done:
            self._present = None
            self._answer(listing, report.error)

    def _answer(self, listing: Listing, error: Exception | None) -> None:
        try:
            if error is not None:
                raise error
            if self._is_allowed(listing, self._finish):
                self._finish(listing)
        except (StorageDamaged, OSError) as damage:
            self._places.give(listing.client)
            listing.refuse(failed(damage))
        except Exception as unexpected:
            self._places.give(listing.client)
            refuse_after(unexpected, listing.client, lambda: listing.refuse(Status.EIO))

    def _finish(self, listing: Listing) -> None:
        listing.finish()
        self._places.give(listing.client)
