"""Limbo (`storage.limbo`), beside serving: which ledgers belong there, and which may leave it.

At the start all index files are looked at: a ledger of which one is lost is in limbo at its first use, and so that the
operator hears of it, it is now. Then ledgers are let out one by one, as the metadata prove that nothing is missing.

Asks the metadata store for what this bookie should hold of each ledger and looks it up in the index, now and then, as
long as any ledger is in limbo. What cannot be told stays in limbo, which is always safe.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from bkspark.errors import BookKeeperError, StorageDamaged
from bookie_service.collection import HeldShare
from bookie_service.storage.ledger_storage import IndexView, LedgerStorage

logger = logging.getLogger(__name__)

_ENTRIES_PER_LOOKUP = 64 * 1024
_OPEN_FILES_MAX = 16


class ShareCensus(Protocol):
    """What is asked of the metadata store."""

    async def shares(self, ledger_id: int) -> Sequence[HeldShare] | None:
        """Return which entries this bookie must hold of a ledger; None while that is not settled.

        Raises:
            BookKeeperError: nothing is known.
        """


class LimboCheck:
    """Looks at the ledgers in limbo every `interval_s`, on the event loop, until `cancel`."""

    def __init__(self, store: LedgerStorage, census: ShareCensus, interval_s: float) -> None:
        self._store = store
        self._census = census
        self._interval_s = interval_s
        self._task = asyncio.ensure_future(self._run())

    def cancel(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        limbo = self._store.limbo
        await self._find_lost()
        while True:
            try:
                ended = [ledger_id for ledger_id in limbo.ledger_ids() if await self._is_whole(ledger_id)]
                if ended:
                    await asyncio.to_thread(self._store.end_limbo, ended)
                    logger.warning("%d ledgers are whole again, %d are still in limbo", len(ended), len(limbo))
            except (BookKeeperError, OSError) as error:
                logger.warning("it cannot be told which ledgers are whole: %d stay in limbo: %s", len(limbo), error)
            await asyncio.sleep(self._interval_s)

    async def _find_lost(self) -> None:
        for ledger_id in await asyncio.to_thread(self._store.index.all_lost):
            # One that has gone meanwhile is not lost: the store looks again.
            try:
                self._store.ledger(ledger_id)
            except (StorageDamaged, OSError) as error:
                logger.error("ledger %d lost something, and nothing of it can be served: %s", ledger_id, error)

    async def _is_whole(self, ledger_id: int) -> bool:
        shares = await self._census.shares(ledger_id)
        return shares is not None and await asyncio.to_thread(self._holds, ledger_id, shares)

    def _holds(self, ledger_id: int, shares: Sequence[HeldShare]) -> bool:
        view = self._store.index.view(_OPEN_FILES_MAX)
        try:
            return all(holds(view, ledger_id, share) for share in shares)
        finally:
            view.close()


def holds(index: IndexView, ledger_id: int, share: HeldShare) -> bool:
    """Return whether an index has a position of every entry of a share."""
    for first in range(share.first_entry, share.end_entry, _ENTRIES_PER_LOOKUP):
        wanted = share.entries(first, min(first + _ENTRIES_PER_LOOKUP, share.end_entry))
        if not len(wanted):
            continue
        positions = index.positions(ledger_id, first, int(wanted[-1]) + 1 - first)
        if len(positions) <= wanted[-1] - first or not positions[wanted - first].all():
            return False
    return True
