"""Looks ledgers up in the metadata store for authorization. A few look-ups run at once, and requests share them.

Those who ask take turns, so a client that asks for very many ledgers does not delay the clients of other hosts.

The answer that a ledger does not exist is certain for requests that came before the look-up began, because the server
is made to catch up first. Requests that come while a look-up runs share its answer, unless the ledger does not exist.
Then another look-up follows.

If the store does not answer in time, and has answered no other look-up meanwhile, it is silent. Then no request waits
for it: the answer is at once that nothing is known, until a look-up that is repeated meanwhile is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

from bkspark.errors import BookKeeperError, MetadataError
from bkspark.security.authorization import LedgerFacts
from bkspark.tasks import start_kept
from bookie_service.engine.authorization import Found, Unfound

logger = logging.getLogger(__name__)

LOOKUPS_AT_ONCE = 64
LOOKUP_S_MAX = 4.0
"""Less than the time-outs of clients, so that they get an answer, EIO."""

SILENT_S_MIN = 1.0
"""A look-up that fails sooner does not show that the store is silent: its session may have been lost a moment ago."""
PROBE_PAUSE_S = 0.5
"""The pause before a silent store is asked again."""

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
        self._answers = 0
        """How many look-ups the store has answered. Only grows."""
        self._is_silent = False
        """Whether the store is silent. Cleared by `_probe`."""
        self._is_closed = False
        """Whether `close` was called. Set once."""

    def look_up(self, ledger_id: int, on_found: OnFound, asker: str) -> None:
        """Call `on_found(result)` in a later turn of the event loop. `asker`: an address, or a principal."""
        if self._is_silent:
            self._give_up(ledger_id, [on_found])
            return
        if ledger_id in self._running:
            self._running[ledger_id].append((on_found, asker))
            return
        self._enqueue(ledger_id, on_found, asker)
        self._begin()

    def close(self) -> None:
        """Begin no more look-ups. No callback is called any more."""
        self._is_closed = True
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

    def _give_up(self, ledger_id: int, asked: list[OnFound]) -> None:
        """Report in a later turn that nothing is known."""
        asyncio.get_running_loop().call_soon(self._report, ledger_id, asked, Unfound.UNKNOWN)

    def _fall_silent(self, ledger_id: int) -> None:
        """Let no request wait any more, until the store answers a look-up of this ledger."""
        self._is_silent = True
        self._queues.clear()
        waiting, self._waiting = self._waiting, {}
        for each, asked in waiting.items():
            self._give_up(each, asked)
        start_kept(self._probe(ledger_id), self._tasks)

    async def _probe(self, ledger_id: int) -> None:
        while self._is_silent:
            await asyncio.sleep(PROBE_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_max):
                    self._is_silent = not await self._answers_now(ledger_id)
        logger.info("the metadata store answers again")

    async def _answers_now(self, ledger_id: int) -> bool:
        """Return whether the store answers a look-up, whatever it finds."""
        try:
            await self._view.facts(ledger_id)
        except Exception as error:
            # After another error a request shows it, as before.
            return not _is_outage(error)
        return True

    async def _run(self, ledger_id: int, asked: list[OnFound]) -> None:
        found = await self._found(ledger_id)
        late = self._running.pop(ledger_id)
        if found is Unfound.ABSENT:
            for on_found, asker in late:
                self._enqueue(ledger_id, on_found, asker)
        else:
            asked = asked + [on_found for on_found, _ in late]
        self._report(ledger_id, asked, found)
        self._begin()

    def _report(self, ledger_id: int, asked: list[OnFound], found: Found) -> None:
        for on_found in () if self._is_closed else asked:
            try:
                on_found(found)
            except Exception:
                # The other callbacks are called nevertheless.
                logger.exception("a request that waited for a look-up of ledger %d failed: %s", ledger_id, _DEFECT)

    async def _found(self, ledger_id: int) -> Found:
        began, answers = asyncio.get_running_loop().time(), self._answers
        try:
            async with asyncio.timeout(self._seconds_max):
                found = await self._view.facts(ledger_id) or Unfound.ABSENT
            self._answers += 1
            return found
        except (BookKeeperError, TimeoutError) as error:
            waited_s = asyncio.get_running_loop().time() - began
            is_late = isinstance(error, TimeoutError) or (_is_outage(error) and waited_s >= SILENT_S_MIN)
            if is_late and self._answers == answers and not self._is_silent:
                self._fall_silent(ledger_id)
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


def _is_outage(error: Exception) -> bool:
    return isinstance(error, MetadataError) and error.is_outage
