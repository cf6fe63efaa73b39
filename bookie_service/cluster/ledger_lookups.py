"""Looks ledgers up in the metadata store for authorization. A few look-ups run at once, and requests share them.

Those who ask take turns, so a client that asks for very many ledgers does not delay the clients of other hosts.

The answer that a ledger does not exist is certain for requests that came before the look-up began, because the server
is made to catch up first. Requests that come while a look-up runs share its answer, unless the ledger does not exist.
Then another look-up follows.

If a look-up fails after the store has answered nothing for half of the time that a look-up may take, the store is
silent. Then no request waits for it: the answer is at once that nothing is known, until the store answers a small read
that is repeated meanwhile, or a look-up that still runs. A slow store is not taken for silent while each of its answers
takes less than the whole time: then its last answer came in the second half of the look-up that failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
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

PROBE_PAUSE_S = 0.5
"""The pause before a silent store is asked again."""

_DEFECT = "this is a defect of the bookie"

OnFound = Callable[[Found], None]


class LedgerFactsView(Protocol):
    """The query to the metadata store."""

    async def facts(self, ledger_id: int, on_answer: Callable[[], None]) -> LedgerFacts | None:
        """Return the facts of a ledger; None: it certainly does not exist. Raises BookKeeperError.

        `on_answer()` is called after each answer of the store but the last one.
        """

    async def ping(self) -> None:
        """Return when the store has answered a small read. Raises BookKeeperError: it failed."""


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
        """Look-ups in progress, at most LOOKUPS_AT_ONCE, and the probe of a silent store."""
        self._answered_at = -math.inf
        """When the store last answered, by the event loop's clock; at first: never. Set by `_on_answer`."""
        self._is_silent = False
        """Whether the store is silent. Set by `_fall_silent`, cleared by `_on_answer`."""
        self._is_probing = False
        """Whether `_probe` runs."""
        self._is_closed = False
        """Whether `close` was called. Set once."""

    def look_up(self, ledger_id: int, on_found: OnFound, asker: str) -> None:
        """Call `on_found(result)` in a later turn of the event loop. `asker`: an address, or a principal."""
        if ledger_id < 0:
            self._report_later(ledger_id, [on_found], Unfound.ABSENT)
            return
        if self._is_silent:
            self._report_later(ledger_id, [on_found], Unfound.UNKNOWN)
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

    def _report_later(self, ledger_id: int, asked: list[OnFound], found: Found) -> None:
        """Report a result in a later turn."""
        asyncio.get_running_loop().call_soon(self._report, ledger_id, asked, found)

    def _on_answer(self) -> None:
        """Note that the store has answered, whatever it found."""
        self._answered_at = asyncio.get_running_loop().time()
        if self._is_silent:
            self._is_silent = False
            logger.info("the metadata store answers again")

    def _fall_silent(self) -> None:
        """Let no request wait any more, until the store answers."""
        logger.warning("requests for ledgers that are not known are answered EIO, until the metadata store answers")
        self._is_silent = True
        waiting, self._waiting = self._waiting, {}
        self._queues.clear()
        for ledger_id, asked in waiting.items():
            self._report_later(ledger_id, asked, Unfound.UNKNOWN)
        if not self._is_probing:
            self._is_probing = True
            start_kept(self._probe(), self._tasks)

    async def _probe(self) -> None:
        """Ask a silent store again and again, until it answers."""
        try:
            while self._is_silent:
                await asyncio.sleep(PROBE_PAUSE_S)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._seconds_max):
                        await self._ping()
        finally:
            self._is_probing = False

    async def _ping(self) -> None:
        try:
            await self._view.ping()
        except Exception as error:
            # Look-ups that follow report what else is wrong.
            if _is_no_answer(error):
                return
        self._on_answer()

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
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._seconds_max):
                found = await self._view.facts(ledger_id, self._on_answer) or Unfound.ABSENT
            self._on_answer()
            return found
        except (BookKeeperError, TimeoutError) as error:
            if not _is_no_answer(error):
                self._on_answer()
            elif not self._is_silent and self._has_been_quiet(began):
                self._fall_silent()
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

    def _has_been_quiet(self, since: float) -> bool:
        """Return whether the store has answered nothing since this time, and for half of the time of a look-up."""
        quiet_s = asyncio.get_running_loop().time() - max(since, self._answered_at)
        return quiet_s >= self._seconds_max / 2


def _is_no_answer(error: Exception) -> bool:
    return isinstance(error, TimeoutError) or (isinstance(error, MetadataError) and error.is_outage)
