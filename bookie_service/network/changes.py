"""Requests that change state, as steps of a connection; an unexpected error of theirs ends the process.

A `JudgedChange` says which rights it needs on which ledgers, and can be refused before it is performed. Other changes
are allowed already, or need no right.
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
        """Return how many requests were taken, None: all; 0: wait for `resume`."""


class JudgedChange(StateChange):
    """Requests that change state, if the peer has the rights."""

    __slots__ = ()

    needed: int
    """The rights that it needs on the ledger of each request."""

    @abstractmethod
    def ledgers(self) -> int | np.ndarray:
        """Return the ledger of all requests, or that of each."""

    @abstractmethod
    def keep(self, count: int) -> None:
        """Reduce to the first `count` requests, at least one."""

    @abstractmethod
    def refuse(self, status: int) -> None:
        """Answer all requests with a status, V2's."""


@dataclass(slots=True)
class Adds(JudgedChange):
    """A run of adds; they all have the recovery flag, or none of them."""

    bookie: Bookie
    client: BookieClient
    octets: np.ndarray
    run: AddBatch
    """Reduced by `keep`."""
    needed: int = field(init=False)

    def __post_init__(self) -> None:
        self.needed = add_needs(is_recovery=bool(self.run.flags.item(0) & RECOVERY_ADD))
        """Set once."""

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
    """An add that is one of few, which `Bookie.takes_single` and which is allowed."""

    bookie: Bookie
    client: BookieClient
    octets: np.ndarray
    add: SingleAdd

    def perform(self) -> int | None:
        return int(self.bookie.add_single(self.client, self.octets, self.add, is_alone=False))


@dataclass(slots=True)
class FencingRead(JudgedChange):
    """Reads, single ones of one ledger or a batch, that fence it first."""

    bookie: Bookie
    client: BookieClient
    ledger_id: int
    key: bytes
    reading: Reading

    needed = FENCE | READ

    def perform(self) -> int | None:
        return self.bookie.fence_and_read(self.client, self.ledger_id, self.key, self.reading)

    def ledgers(self) -> int:
        return self.ledger_id

    def keep(self, count: int) -> None:
        self.reading.keep(count)

    def refuse(self, status: int) -> None:
        self.reading.refuse(status)


@dataclass(slots=True)
class LedgerChange(JudgedChange):
    """One request that changes a ledger, whose answer is a status: an explicit LAC, or a force."""

    client: BookieClient
    ledger_id: int
    change: Callable[[Callable[[Status], Parts]], int | None]
    answer: Callable[[int], bytes]

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
    """A request that changes the connection alone, and that every peer may make."""

    change: Callable[[], None]

    def perform(self) -> int | None:
        self.change()
        return None


def add_needs(*, is_recovery: bool) -> int:
    """Return the rights that an add needs."""
    return WRITE | FENCE if is_recovery else WRITE
