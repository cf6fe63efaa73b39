"""Limbo (`storage.ledgers.limbo`) while the bookie serves: ledgers enter it, are reported, and leave it.

At the start all index files are checked, so a ledger whose index file is lost goes into limbo now, and not at its first
use. Then, at intervals, each ledger in limbo is compared with its metadata:

* if this bookie lacks entries of fragments that receive no more entries, the ledger is listed as under-replicated, and
  autorecovery, ours or Apache's, copies the entries to this bookie or to another one;
* a closed ledger that lacks nothing leaves limbo, fenced, because its fence may have been lost and a late writer must
  not succeed;
* a deleted ledger leaves limbo, also fenced.

A ledger for which this cannot be determined stays in limbo, which is always safe.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from bkspark.errors import BookKeeperError, StorageDamaged
from bkspark.wall_clock import wall_clock_ms
from bookie_service.cluster.ledger_shares import HeldShare, LedgerShare
from bookie_service.engine.pacing import pause_s
from bookie_service.formats.index import UNKNOWN_KEY
from bookie_service.storage.io.files import is_disk_failure
from bookie_service.storage.ledgers.interface import IndexView, LedgerStorage

logger = logging.getLogger(__name__)

_OPEN_FILES_MAX = 16
_LEDGERS_AT_ONCE = 10_000
"""How many ledgers leave limbo together, because the whole list is written each time."""
_LOGGED_MAX = 10
"""How many ledgers get a log line of their own."""


class LedgerShareView(Protocol):
    """Queries to the metadata store. Each method raises BookKeeperError if the answer is unknown."""

    async def share(self, ledger_id: int) -> LedgerShare:
        """Return what this bookie must hold of a ledger."""

    async def report(self, ledger_id: int, now_ms: int) -> None:
        """List a ledger as under-replicated at this bookie."""


class LimboCheck:
    """Checks the ledgers in limbo every `interval_s`, on the event loop, until `cancel`."""

    def __init__(
        self,
        store: LedgerStorage,
        metadata_view: LedgerShareView,
        interval_s: float,
        reads_per_s: int,
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        """`reads_per_s`: rate of metadata reads. `flush()` returns when earlier changes are durable, if they can be."""
        self._store = store
        """The storage of the bookie's ledgers."""
        self._metadata_view = metadata_view
        self._interval_s = interval_s
        self._reads_per_s = reads_per_s
        self._flush = flush
        self._task = asyncio.ensure_future(self._run())
        """Checks until `cancel`. Constant."""

    def cancel(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        await self._find_lost()
        while True:
            try:
                await self.check()
            except (BookKeeperError, OSError) as error:
                count = len(self._store.limbo)
                logger.warning("it is unknown which ledgers are complete: %d stay in limbo: %s", count, error)
            except Exception:
                logger.exception("ledgers in limbo cannot be checked because of an unexpected error")
            await asyncio.sleep(self._interval_s)

    async def _find_lost(self) -> None:
        """Put ledgers whose index file is lost or cut into limbo."""
        try:
            lost = await asyncio.to_thread(self._store.index.all_lost)
            new = [ledger_id for ledger_id in lost if ledger_id not in self._store.limbo]
            await asyncio.to_thread(self._store.limbo.begin, new)
        except OSError as error:
            # Each of them is also noticed when it is used.
            logger.error("it is unknown which index files are lost: %s", error)
            return
        for ledger_id in new[:_LOGGED_MAX]:
            logger.error("ledger %d is in limbo: %s", ledger_id, self._loss(ledger_id))
        if len(new) > _LOGGED_MAX:
            logger.error("%d more ledgers are in limbo: their index files are lost or cut", len(new) - _LOGGED_MAX)

    def _loss(self, ledger_id: int) -> str:
        try:
            return self._store.index.lost(ledger_id)
        except OSError as error:
            return str(error)

    async def check(self) -> None:
        """Check all ledgers in limbo once.

        Raises:
            BookKeeperError, OSError: some were not checked.
        """
        for some in _pieces(self._store.limbo.ledger_ids):
            began = time.monotonic()
            leaving: list[int] = []
            reported = 0
            for done, ledger_id in enumerate(some):
                await asyncio.sleep(pause_s(done, self._reads_per_s, time.monotonic() - began))
                share = await self._metadata_view.share(ledger_id)
                if share.is_deleted:
                    leaving.append(ledger_id)
                elif not await asyncio.to_thread(self._holds, ledger_id, share.parts):
                    await self._metadata_view.report(ledger_id, wall_clock_ms())
                    reported += 1
                elif share.is_closed:
                    leaving.append(ledger_id)
            ended = await self._fenced(leaving)
            if ended:
                await asyncio.to_thread(self._store.end_limbo, ended)
            if ended or reported:
                logger.warning(
                    "%d ledgers in limbo were checked: %d are complete again or deleted; %d lack entries and are "
                    "listed as under-replicated",
                    len(some),
                    len(ended),
                    reported,
                )

    async def _fenced(self, ledger_ids: Sequence[int]) -> list[int]:
        """Fence ledgers; return those that are durably fenced."""
        is_flush_needed = False
        known: list[int] = []
        for ledger_id in ledger_ids:
            try:
                ledger = self._store.ledger(ledger_id)
            except OSError as error:
                if not is_disk_failure(error):
                    raise
                # Whether it is fenced is unknown while its disk fails. It stays in limbo.
                continue
            known.append(ledger_id)
            if ledger is None:
                # This bookie holds nothing of it, and must not; but its writer may not know this yet.
                ledger = self._store.create_ledger(ledger_id, UNKNOWN_KEY)
            if not ledger.fenced:
                self._store.fence(ledger)
                is_flush_needed = True
        if is_flush_needed:
            await self._flush()
        return [ledger_id for ledger_id, _ in self._store.droppable(known)]

    def _holds(self, ledger_id: int, parts: Sequence[HeldShare]) -> bool:
        view = self._store.index.view(_OPEN_FILES_MAX)
        try:
            return all(holds(view, ledger_id, part) for part in parts)
        except StorageDamaged:
            return False  # the layout of its positions is unknown, so none of its entries can be read
        except OSError as error:
            if not is_disk_failure(error):
                raise
            return False  # its disk fails, so other bookies must have its entries
        finally:
            view.close()


def holds(index: IndexView, ledger_id: int, share: HeldShare) -> bool:
    """Return whether an index has a position for every entry of a share. The cost depends on its positions.

    Raises:
        StorageDamaged: the index of the ledger cannot be read.
    """
    held = 0
    for first, positions in index.extents(ledger_id, share.first_entry, share.end_entry):
        held += int(share.includes(first + np.flatnonzero(positions)).sum())
    return held == share.count


def _pieces(ledger_ids: np.ndarray) -> Iterator[list[int]]:
    for first in range(0, len(ledger_ids), _LEDGERS_AT_ONCE):
        yield ledger_ids[first : first + _LEDGERS_AT_ONCE].tolist()
