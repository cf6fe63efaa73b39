"""Lists of entries that are being made: one at a time, while others wait. For the event loop.

A list goes through all that the bookie holds of a ledger. It does so in steps on a thread, with pauses that are longer
than the steps, so that what it costs is a small share of the process, whatever is asked for. How many wait is bounded:
all together, of one address, and of one connection (`shares`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from bkspark.errors import StorageDamaged
from bkspark.wire.v2 import Status
from bookie_service.containment import refuse_after
from bookie_service.reads import ReadClient, failed
from bookie_service.shares import Peer, ShareLimits, Shares

STEP_S = 0.001
_PAUSES = 4
"""A pause is so many times as long as the step before it: lists take a fifth of a processor at most."""

Apart = Callable[[Callable[[], "StepReport"], Callable[["StepReport"], None]], None]
"""Runs the first on a thread, and calls the second with its result, back on the event loop."""


class ListClient(ReadClient, Peer, Protocol):
    """A connection, as lists see it."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> object:
        """Call back after a time, whether the connection is gone or not."""


class Listing(Protocol):
    """A list that is to be made."""

    client: ListClient

    def steps(self) -> Iterator[None]:
        """Make the list, a little between two yields; on a thread, and without any change but to itself."""

    def finish(self) -> None:
        """Send the list."""

    def refuse(self, status: int) -> None:
        """Answer with a status, V2's."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a step came to; `error`: it failed."""

    seconds: float
    is_done: bool = False
    error: Exception | None = None


class EntryLists:
    """All lists of a bookie that are being made, or wait for that."""

    def __init__(self, limits: ShareLimits, apart: Apart, clock: Callable[[], float] = time.monotonic) -> None:
        self._places = Shares(limits)
        self._apart = apart
        self._clock = clock
        self._waiting: deque[Listing] = deque()
        self._steps: Iterator[None] | None = None
        self._is_busy = False

    def __len__(self) -> int:
        return len(self._places)

    def add(self, listing: Listing) -> bool:
        """Make a list when its turn comes; False: too many wait."""
        if not self._places.take(listing.client):
            return False
        self._waiting.append(listing)
        if not self._is_busy:
            self._is_busy = True
            self._step()
        return True

    def _step(self) -> None:
        """Go on with the list that waits for longest, if there is one."""
        while self._waiting and not self._waiting[0].client.is_open:
            self._drop()
        self._is_busy = bool(self._waiting)
        if self._waiting:
            self._steps = self._steps or self._waiting[0].steps()
            self._apart(self._run, self._on_step)

    def _drop(self) -> Listing:
        """Be done with the list that waits for longest."""
        self._steps = None
        listing = self._waiting.popleft()
        self._places.give(listing.client)
        return listing

    def _run(self) -> StepReport:
        """Go on with the list for about `STEP_S`; on a thread."""
        assert self._steps is not None
        began = self._clock()
        try:
            for _ in self._steps:
                if self._clock() - began >= STEP_S:
                    return StepReport(self._clock() - began)
        except Exception as error:
            return StepReport(self._clock() - began, is_done=True, error=error)
        return StepReport(self._clock() - began, is_done=True)

    def _on_step(self, report: StepReport) -> None:
        # The pause comes behind each step, the last one of a list too: many short lists cost no more than a long one.
        self._waiting[0].client.call_later(_PAUSES * report.seconds, self._step)
        if report.is_done:
            self._answer(self._drop(), report.error)

    def _answer(self, listing: Listing, error: Exception | None) -> None:
        try:
            if error is not None:
                raise error
            listing.finish()
        except (StorageDamaged, OSError) as damage:
            listing.refuse(failed(damage))
        except Exception as unexpected:
            refuse_after(unexpected, listing.client, lambda: listing.refuse(Status.EIO))
