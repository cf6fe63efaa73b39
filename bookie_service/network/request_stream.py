"""The requests of a connection, step by step in order of arrival, in either protocol.

A step either changes nothing (`reads.Reading`) or is a `StateChange`. Decoding a step and running a reading are
contained: an unexpected error there ends one request or one connection. An error of a change may leave state half
changed, and passes through: it ends the process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bookie_service.engine.bookie import Bookie, BookieClient
from bookie_service.engine.containment import decoded
from bookie_service.engine.reads import Reading
from bookie_service.engine.turns import ENDLESS, Turn


@dataclass(frozen=True, slots=True)
class StateChange:
    """Requests that change state; `perform()` returns how many were taken, None: all, 0: wait for `resume`."""

    perform: Callable[[], int | None]


Step = Reading | StateChange


class RequestStream(ABC):
    """The requests of one protocol in a receive buffer."""

    def __init__(self, bookie: Bookie, client: BookieClient, count: int) -> None:
        self._bookie = bookie
        self._client = client
        self._count = count
        self._row = 0
        """Number of requests that were accepted."""
        self._reading: Reading | None = None
        """The reading of requests before `_row` that is begun and not answered."""

    @property
    def is_reading(self) -> bool:
        """Whether a reading is answered in part."""
        return self._reading is not None

    @abstractmethod
    def _next(self, octets: np.ndarray) -> tuple[Step, int]:
        """Return the step that begins with request `_row`, and how many requests a reading has. Changes nothing.

        Raises:
            ProtocolError: the next frame is not a request, or is not served.
        """

    def serve(self, octets: np.ndarray, turn: Turn = ENDLESS) -> bool:
        """Pass requests on, as far as the turn, the bookie and the peer allow; False: call again, see `Connection`.

        Args:
            octets: the receive buffer; its bytes keep their offsets between calls, but may move to other memory.

        Raises:
            ProtocolError: the next frame is not a request, or is not served; the connection is closed in response.
        """
        while self._client.is_open and (self._reading is not None or self._row < self._count):
            if not self._client.is_taking or turn.is_over:
                return False
            if self._reading is None and not self._begin(octets, turn):
                return False
            if self._reading is not None and self._bookie.reads.answer(self._reading, turn):
                self._reading = None
        return True

    def _begin(self, octets: np.ndarray, turn: Turn) -> bool:
        """Perform a change, or store a reading to be answered; False: there is no room for it now."""
        found = decoded(self._client, lambda: self._next(octets))
        if found is None:
            return False
        step, count = found
        if isinstance(step, StateChange):
            taken = step.perform()
            count = count if taken is None else taken
        elif self._bookie.takes_reads(self._client):
            self._reading = step
        else:
            return False
        self._row += count
        turn.spend()
        return count > 0
