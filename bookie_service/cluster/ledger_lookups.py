"""Looks ledgers up in the metadata store for authorization. A few look-ups run at once, and requests share them.

The answer that a ledger does not exist is certain for requests that came before the look-up began, because the server
is made to catch up first. Requests that come while a look-up runs share its answer if the ledger exists. Otherwise
another look-up follows.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from bkspark.errors import BookKeeperError
from bkspark.security.authorization import LedgerFacts
from bkspark.tasks import start_kept
from bookie_service.engine.authorization import Found, Unfound

logger = logging.getLogger(__name__)

LOOKUPS_AT_ONCE = 64
LOOKUP_S_MAX = 4.0
"""Less than the time-outs of clients, so that they get an answer, EIO."""

_DEFECT = "this is a defect of the bookie"

OnFound = Callable[[Found], None]


class LedgerFactsView(Protocol):
    """The query to the metadata store."""

    async def facts(self, ledger_id: int) -> LedgerFacts | None:
        """Return the facts of a ledger; None: it certainly does not exist. Raises BookKeeperError."""


class LedgerLookups:
    """The look-ups of one bookie. For one event loop."""

    def __init__(self, view: LedgerFactsView, seconds_max: float = LOOKUP_S_MAX) -> None:
        self._view = view
        self._seconds_max = seconds_max
        self._waiting: dict[int, list[OnFound]] = {}
        """Callbacks for look-ups that have not begun, by ledger."""
        self._running: dict[int, list[OnFound]] = {}
        """Callbacks that came after the look-up of their ledger had begun, by ledger."""
        self._queue: deque[int] = deque()
        """Ledgers to look up, in order of arrival."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Look-ups in progress; at most LOOKUPS_AT_ONCE."""

    def look_up(self, ledger_id: int, on_found: OnFound) -> None:
        """Call `on_found(result)` in a later turn of the event loop."""
        if ledger_id in self._running:
            self._running[ledger_id].append(on_found)
            return
        if ledger_id not in self._waiting:
            self._waiting[ledger_id] = []
            self._queue.append(ledger_id)
        self._waiting[ledger_id].append(on_found)
        self._begin()

    def close(self) -> None:
        """Begin no more look-ups. No callback is called any more."""
        self._queue.clear()
        for task in self._tasks:
            task.cancel()

    def _begin(self) -> None:
        while self._queue and len(self._running) < LOOKUPS_AT_ONCE:
            ledger_id = self._queue.popleft()
            self._running[ledger_id] = []
            start_kept(self._run(ledger_id, self._waiting.pop(ledger_id)), self._tasks)

    async def _run(self, ledger_id: int, asked: list[OnFound]) -> None:
        found = await self._found(ledger_id)
        late = self._running.pop(ledger_id)
        if isinstance(found, LedgerFacts):
            asked, late = asked + late, []
        if late:
            self._waiting[ledger_id] = late
            self._queue.append(ledger_id)
        for on_found in asked:
            try:
                on_found(found)
            except Exception:
                # The other callbacks are called nevertheless.
                logger.exception("a request that waited for a look-up of ledger %d failed: %s", ledger_id, _DEFECT)
        self._begin()

    async def _found(self, ledger_id: int) -> Found:
        try:
            async with asyncio.timeout(self._seconds_max):
                return await self._view.facts(ledger_id) or Unfound.ABSENT
        except (BookKeeperError, TimeoutError) as error:
            why = str(error) or f"no answer after {self._seconds_max:g} s"
            logger.warning(
                "requests for ledger %d are answered EIO, because its metadata cannot be read: %s",
                ledger_id,
                why,
                extra={"kind": "ledger look-up failed"},
            )
            return Unfound.UNKNOWN
        except Exception:
            logger.exception("a look-up of ledger %d failed: %s", ledger_id, _DEFECT, extra={"kind": "look-up"})
            return Unfound.UNKNOWN
