"""Requests that change state, as steps of a connection. An unexpected error of such a step ends the process.

A `JudgedChange` names the rights that it needs on its ledgers, and can be refused before it is performed. Other changes
are already allowed, or need no right.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bkspark.security.authorization import FENCE, READ, WRITE
from bkspark.wire.flags import RECOVERY_ADD
from bkspark.wire.single_add import SingleAdd
from bkspark.wire.status import Status
from bookie_service.engine.add_batch import AddBatch
from bookie_service.engine.bookie import Bookie
from bookie_service.engine.bookie_environment import BookieClient
from bookie_service.engine.reads import Reading
from bookie_service.engine.responses import Parts


class StateChange(ABC):
    """Requests that change state."""

    __slots__ = ()

    @abstractmethod
    def perform(self) -> int | None:
        """Return how many requests were taken; None: all; 0: wait for `resume`."""


class JudgedChange(StateChange):
    """Requests that change state and need rights."""

    __slots__ = ()

    needed: int
    """The rights that the change needs on the ledger of each request."""

    @abstractmethod
    def ledgers(self) -> int | np.ndarray:
        """Return the ledger of all requests, or that of each."""

    @abstractmethod
    def keep(self, count: int) -> None:
        """Reduce to the first `count` requests, at least one."""

    @abstractmethod
    def refuse(self, status: int) -> None:
        """Answer all requests with a status."""


@dataclass(slots=True)
class Adds(JudgedChange):
    """A run of adds. Either all of them have the recovery flag, or none of them has it."""

    bookie: Bookie
    client: BookieClient
    octets: np.ndarray
    """The bytes that the requests came in: entries and master keys are read from there."""
    run: AddBatch
    """The adds that are not refused. Reduced by `keep`."""
    needed: int = field(init=False)
    """The rights that the adds need. Set from their flags."""

    def __post_init__(self) -> None:
        self.needed = add_needs(is_recovery=bool(self.run.flags.item(0) & RECOVERY_ADD))
        """The rights that the adds need. Set once."""

    def perform(self) -> int | None:
        return self.bookie.add(self.client, self.octets, self.run)

    def ledgers(self) -> np.ndarray:
        return self.run.ledger_ids

    def keep(self, count: int) -> None:
        self.run = self.run.take(slice(0, count))

    def refuse(self, status: int) -> None:
        self.bookie.times.note_refused_adds(len(self.run))
        self.client.send((self.run.encode_responses(status),))


@dataclass(slots=True)
class AllowedSingleAdd(StateChange):
    """A single add that is allowed and that `Bookie.takes_single`."""

    bookie: Bookie
    client: BookieClient
    octets: np.ndarray
    """The bytes that the request came in."""
    add: SingleAdd

    def perform(self) -> int | None:
        return int(self.bookie.add_single(self.client, self.octets, self.add, is_alone=False))


@dataclass(slots=True)
class FencingRead(JudgedChange):
    """Reads that fence their ledger first: single reads of one ledger, or a batch read."""

    bookie: Bookie
    client: BookieClient
    ledger_id: int
    key: bytes
    """The ledger's master key, as the client gave it."""
    reading: Reading

    needed = FENCE | READ

    def perform(self) -> int | None:
        return self.bookie.fence_and_read(self.client, self.ledger_id, self.key, self.reading)

    def ledgers(self) -> int:
        return self.ledger_id

    def keep(self, count: int) -> None:
        self.reading.keep(count)

    def refuse(self, status: int) -> None:
        self.bookie.reads.refuse(self.reading, status)


@dataclass(slots=True)
class LedgerChange(JudgedChange):
    """One request that changes a ledger and is answered with a status: an explicit LAC, or a force."""

    client: BookieClient
    ledger_id: int
    change: Callable[[Callable[[Status], Parts]], int | None]
    """Submits the request, and returns what `perform` returns. It is given what encodes the response to a status."""
    answer: Callable[[int], bytes]
    """Encodes the response to a status."""

    needed = WRITE

    def perform(self) -> int | None:
        return self.change(self._parts)

    def ledgers(self) -> int:
        return self.ledger_id

    def keep(self, count: int) -> None:
        assert count == 1

    def refuse(self, status: int) -> None:
        self.client.send(self._parts(status))

    def _parts(self, status: int) -> Parts:
        return (self.answer(status),)


@dataclass(slots=True)
class ConnectionChange(StateChange):
    """A request that changes only the connection, which every peer may make."""

    change: Callable[[], None]

    def perform(self) -> int | None:
        self.change()
        return None


def add_needs(*, is_recovery: bool) -> int:
    """Return the rights that an add needs."""
    return WRITE | FENCE if is_recovery else WRITE
