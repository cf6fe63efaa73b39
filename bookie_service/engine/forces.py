"""Forces that wait for a flush: they cover adds that bypassed the journal and are only in the write cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bkspark.wire.status import Status
from bookie_service.engine.bookie_environment import BookieClient
from bookie_service.engine.deferrals import Deferrals
from bookie_service.engine.responses import Parts


@dataclass(frozen=True, slots=True)
class WaitingForce:
    """A force of a ledger. `encode`: returns the answer with a status."""

    client: BookieClient
    ledger_id: int
    encode: Callable[[Status], Parts]


class Forces:
    """The forces of one bookie that wait for a flush."""

    def __init__(self, deferrals: Deferrals, most: int) -> None:
        """`most`: how many may wait."""
        self._deferrals = deferrals
        self._most = most
        self._waiting: list[WaitingForce] = []
        """Forces that wait for a flush to begin."""
        self._flushing: list[WaitingForce] = []
        """Forces that the running flush carries out."""

    def must_wait(self, ledger_id: int) -> bool:
        """Return whether adds of a ledger become durable only by a flush."""
        return self._deferrals.is_unflushed(ledger_id) or self._deferrals.is_flushing(ledger_id)

    @property
    def is_full(self) -> bool:
        """Whether a further force must be refused."""
        return len(self._waiting) + len(self._flushing) >= self._most

    def clients(self) -> Iterable[BookieClient]:
        """Return the clients whose forces wait for a flush."""
        return (force.client for force in (*self._waiting, *self._flushing))

    @property
    def need_flush(self) -> bool:
        """Whether forces wait for a flush to begin."""
        return bool(self._waiting)

    def add(self, force: WaitingForce) -> None:
        """Let a force wait for the flush that covers the adds of its ledger."""
        waiting = self._waiting if self._deferrals.is_unflushed(force.ledger_id) else self._flushing
        waiting.append(force)

    def on_flush_begun(self) -> None:
        """Note that a flush which advances the marks has begun: it covers the adds of all waiting forces.

        If the last flush failed to advance the marks, its forces wait for this one.
        """
        self._flushing, self._waiting = self._flushing + self._waiting, []

    def on_flush_done(self) -> list[WaitingForce]:
        """Return the forces that the flush carried out, which has ended."""
        done, self._flushing = self._flushing, []
        return done
