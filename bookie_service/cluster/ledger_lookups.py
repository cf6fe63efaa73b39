"""Looks ledgers up in the metadata store for authorization. A few look-ups run at once, and requests share them.

Those who ask take turns, so a client that asks for very many ledgers does not delay the clients of other hosts.

The answer that a ledger does not exist is certain for requests that came before the look-up began, because the server
is made to catch up first. Requests that come while a look-up runs share its answer if the ledger exists. Otherwise
another look-up follows.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
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
        """A look-up that takes longer counts as not answered."""
        self._waiting: dict[int, list[OnFound]] = {}
        """Callbacks for look-ups that have not begun, by ledger."""
        self._running: dict[int, list[tuple[OnFound, str]]] = {}
        """Callbacks that came after the look-up of their ledger had begun, with their askers, by ledger."""
        self._queues: OrderedDict[str, deque[int]] = OrderedDict()
        """Ledgers to look up, in order of arrival, by asker. Askers are in the order of their turns."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Look-ups in progress; at most LOOKUPS_AT_ONCE."""

    def look_up(self, ledger_id: int, on_found: OnFound, asker: str) -> None:
        """Call `on_found(result)` in a later turn of the event loop. `asker`: an address, or a principal."""
        if ledger_id in self._running:
            self._running[ledger_id].append((on_found, asker))
            return
        self._enqueue(ledger_id, on_found, asker)
        self._begin()

    def close(self) -> None:
        """Begin no more look-ups. No callback is called any more."""
        self._queues.clear()
        for task in self._tasks:
            task.cancel()

    def _enqueue(self, ledger_id: int, on_found: OnFound, asker: str) -> None:
        self._waiting.setdefault(ledger_id, []).append(on_found)
        # Also if another one has asked for it, which may have to wait longer.
        self._queues.setdefault(asker, deque()).append(ledger_id)

    def _begin(self) -> None:
        while self._queues and len(self._running) < LOOKUPS_AT_ONCE:
            asker, ledger_ids = self._queues.popitem(last=False)
            ledger_id = ledger_ids.popleft()
            if ledger_ids:
                self._queues[asker] = ledger_ids
            asked = self._waiting.pop(ledger_id, None)
            if asked is not None:
                self._running[ledger_id] = []
                start_kept(self._run(ledger_id, asked), self._tasks)

    async def _run(self, ledger_id: int, asked: list[OnFound]) -> None:
        found = await self._found(ledger_id)
        late = self._running.pop(ledger_id)
        if isinstance(found, LedgerFacts):
            asked = asked + [on_found for on_found, _ in late]
        else:
            for on_found, asker in late:
                self._enqueue(ledger_id, on_found, asker)
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
