"""Which ledgers of a bookie are certainly deleted: the proofs of `gc_policy`, gathered from the metadata store.

One round of proofs takes these steps, in this order: list the bookie's own ledgers; let the session catch up with all
earlier writes; list all ledgers of the cluster; let the session catch up once more; read directly each own ledger that
is missing in the listing. A client creates a ledger's metadata before it writes here. So such a session finds a ledger
that exists, even if the session's server lags behind the others.

A ledger is dropped after two rounds. Scheduled passes make one round each, at least an interval apart. A pass that an
operator requests makes both rounds at once: the operator does not want to wait, and the brake on mass deletion applies
nevertheless.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol, TypeVar, TypeVarTuple

import numpy as np

from bookie_service.gc import gc_policy
from bookie_service.gc.gc_policy import BRAKE_PASSES, MissingLedgers
from bookie_service.storage import ledger_id_sets
from bookie_service.storage.ledgers.interface import LedgerIndex

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class RunInThread(Protocol):
    """Calls a function on another thread."""

    def __call__(self, function: Callable[[*Arguments], T], /, *arguments: *Arguments) -> Awaitable[T]:
        """Return what `function(*arguments)` returns."""


class DeletedLedgersView(Protocol):
    """Queries to the metadata store. Each method raises BookKeeperError if the answer is unknown."""

    async def catch_up(self) -> None:
        """Return when the session sees everything that any client wrote before the call."""

    def listed(self) -> AsyncIterator[np.ndarray]:
        """Yield the ids of all ledgers, ascending, in int64 arrays."""

    async def is_deleted(self, ledger_id: int) -> bool:
        """Return whether a direct read says that a ledger does not exist."""


class DeletionProofs:
    """Gathers proofs, pass after pass. For one event loop."""

    def __init__(
        self,
        index: LedgerIndex,
        metadata_view: DeletedLedgersView,
        interval_s: float,
        deleted_share_max: float,
        run_in_thread: RunInThread,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`run_in_thread(function, *arguments)` calls a function on another thread."""
        self._index = index
        self._metadata_view = metadata_view
        self._share_max = deleted_share_max
        """`CollectionOptions.deleted_share_max`. Constant."""
        self._in_thread = run_in_thread
        self._clock_s = clock_s
        self._missing = MissingLedgers(interval_s)

    async def deleted(
        self, pace: Callable[[], Awaitable[None]], on_kept: Callable[[str], None], *, is_forced: bool
    ) -> np.ndarray:
        """Return the ledgers that are certainly deleted, ascending.

        Args:
            pace: `pace()` is awaited before each direct read.
            on_kept: `on_kept(why)` is called with each reason for which something is not dropped.

        Raises:
            BookKeeperError: the store failed, and nothing is known.
        """
        now_s = self._clock_s()
        proven = await self._round(pace, on_kept, now_s)
        if is_forced:
            again = await self._round(pace, on_kept, now_s)
        else:
            again = self._missing.proven_before(now_s)
        return await self._in_thread(ledger_id_sets.common, proven, again)

    def forget(self, ledger_ids: Sequence[int]) -> None:
        """Forget ledgers, ascending, that were dropped: their proofs do not hold for later ones with these ids."""
        self._missing.forget(np.array(ledger_ids, np.int64))

    async def _round(
        self, pace: Callable[[], Awaitable[None]], on_kept: Callable[[str], None], now_s: float
    ) -> np.ndarray:
        own = await self._in_thread(self._index.ledger_ids)
        if not len(own):
            return own
        await self._metadata_view.catch_up()
        unlisted = gc_policy.UnlistedLedgers(own)
        async for page in self._metadata_view.listed():
            unlisted.note(page)
        missing = await self._in_thread(unlisted.ledger_ids)
        await self._in_thread(self._missing.note, missing, now_s)
        reason = await self._in_thread(self._brake, own, missing, unlisted.listed_count)
        if reason is not None:
            on_kept(reason)
            are_listed = unlisted.listed_count > 0
            missing = await self._in_thread(self._missing.missing_for, BRAKE_PASSES) if are_listed else missing[:0]
        if not len(missing):
            return missing
        await self._metadata_view.catch_up()
        deleted = []
        # One by one, because a list of a million ids would block the event loop.
        for ledger_id in map(int, missing):
            await pace()
            if await self._metadata_view.is_deleted(ledger_id):
                deleted.append(ledger_id)
            else:
                on_kept(f"ledger {ledger_id} is not in the listing of all ledgers, but exists: it is kept")
        proven = np.array(deleted, np.int64)
        await self._in_thread(self._note_proven, missing, proven, now_s)
        return proven

    def _note_proven(self, missing: np.ndarray, proven: np.ndarray, now_s: float) -> None:
        self._missing.forget(ledger_id_sets.without(missing, proven))
        self._missing.note_proven(proven, now_s)

    def _brake(self, own: np.ndarray, missing: np.ndarray, listed_count: int) -> str | None:
        """Return why nothing may be dropped yet, or None. Only ledgers with entries count."""
        is_listing_empty = listed_count == 0
        missing_count = len(self._index.holding_entries(missing))
        if missing_count <= (0 if is_listing_empty else gc_policy.BRAKE_LEDGERS_MIN):
            return None
        own_count = len(self._index.holding_entries(own))
        return gc_policy.brake(own_count, missing_count, self._share_max, is_listing_empty=is_listing_empty)
