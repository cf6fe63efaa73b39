"""The requests of a connection, step by step in order of arrival, in either protocol.

A step either changes nothing (`reads.Reading`) or is a `StateChange`. An unexpected error while a step is decoded or a
reading runs ends only that request or that connection. An unexpected error of a change passes through and ends the
process, because it may leave state half changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from bkspark.errors import ProtocolError
from bkspark.wire.single_add import SingleAdd
from bookie_service.engine.authorization import ALLOWED, ConnectionRights, Verdict
from bookie_service.engine.bookie import Bookie
from bookie_service.engine.bookie_environment import BookieClient
from bookie_service.engine.containment import end_undecodable
from bookie_service.engine.reads import Reading
from bookie_service.engine.turns import ENDLESS, Turn
from bookie_service.network.changes import AllowedSingleAdd, JudgedChange, StateChange, add_needs

FEW = 4
"""Up to this many requests are served one by one, as Python numbers: arrays of a few elements cost more."""


Step = Reading | StateChange


class RequestStream(ABC):
    """The requests of one protocol in a receive buffer."""

    def __init__(
        self, bookie: Bookie, client: BookieClient, count: int, rights: ConnectionRights | None = None
    ) -> None:
        """`rights` judge each request; None: every request is allowed."""
        self._bookie = bookie
        self._client = client
        self._rights = rights
        self._count = count
        """How many requests the receive buffer has. Constant."""
        self._row = 0
        """The next request. Requests before it were accepted."""
        self._reading: Reading | None = None
        """A reading of requests before `_row` that is not answered completely; None: there is none."""

    @property
    def is_reading(self) -> bool:
        """Whether a reading is not answered completely."""
        return self._reading is not None

    @abstractmethod
    def _next(self, octets: np.ndarray) -> tuple[Step, int]:
        """Return the step that begins with request `_row`, and how many requests it has if it is a reading.

        It changes nothing.

        Raises:
            ProtocolError: the next frame is not a request, or is not served.
        """

    def _add_single(self, octets: np.ndarray, add: SingleAdd) -> StateChange | None:
        """Return the step of a single add; None: the add must be submitted as a run."""
        rights = self._rights
        if rights is not None and not rights.allows(add.ledger_id, add_needs(is_recovery=add.is_recovery)):
            return None
        return AllowedSingleAdd(self._bookie, self._client, octets, add) if self._bookie.takes_single(add) else None

    def serve(self, octets: np.ndarray, turn: Turn = ENDLESS) -> bool:
        """Pass requests on as far as the turn, the bookie and the peer allow; False: call again (see `Connection`).

        Args:
            octets: the receive buffer; its bytes keep their offsets between calls, but may move to other memory.

        Raises:
            ProtocolError: the next frame is not a request, or is not served. The connection must be closed.
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
        """Perform a change, or keep a reading to be answered; False: there is no room now, or the request must wait."""
        verdict = ALLOWED
        try:
            step, count = self._next(octets)
            if self._rights is not None and isinstance(step, Reading | JudgedChange) and step.needed:
                asked = count
                verdict, count = self._rights.judge(step.needed, step.ledgers(), asked)
                if count < asked and verdict is not Verdict.WAIT:
                    step.keep(count)
                if isinstance(step, Reading):
                    step.judged_by = self._rights.rules
        except ProtocolError:
            raise
        except Exception as error:
            end_undecodable(self._client, error)
            return False
        if verdict is not ALLOWED:
            if verdict is Verdict.WAIT:
                return False
            if isinstance(step, Reading):
                self._bookie.reads.refuse(step, verdict.status)
            else:
                assert isinstance(step, JudgedChange)
                step.refuse(verdict.status)
            self._row += count
            turn.spend()
            return True
        if isinstance(step, StateChange):
            taken = step.perform()
            count = count if taken is None else taken
        elif self._bookie.reads.is_full:
            self._bookie.resume_later(self._client)
            return False
        else:
            self._reading = step
        self._row += count
        turn.spend()
        return count > 0
