"""Ownership: whether a ledger still belongs to its writer, checked for each connection that is newer than the last
answer.

The bookie at the other end of a new connection may not be the one that the writer knew. While a writer is idle, its
bookies may be removed, its ledger may be recovered, closed and moved, and blank bookies may start at the same
addresses: they know no fence, accept its adds, and so acknowledge entries after the ledger's end (P20, #4812). Ledgers
are moved before a blank bookie starts, so metadata that are read *after* the connection was made show it. Until then
nothing is sent on that connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bkspark.core.metadata import LedgerMetadata
from bkspark.metadata.ledgers import LedgerStore


class Ownership:
    """The metadata that a writer knows, and their age; `now` is the clock of connections, in seconds."""

    def __init__(self, ledgers: LedgerStore, ledger_id: int, now: Callable[[], float]) -> None:
        self._ledgers = ledgers
        """The client's."""
        self._ledger_id = ledger_id
        """Constant."""
        self._now = now
        """Constant."""
        self._known_at = now()
        """When the metadata were last requested, or the ledger was created. Grows, by `confirm` alone."""
        self._asking = asyncio.Lock()
        """Held while the metadata are read: others share the answer."""

    async def confirm(self, connected_at: float) -> LedgerMetadata | None:
        """Return the metadata from after `connected_at`; None if they were already read since then.

        Connections made at about the same time share one read of the store.

        Raises:
            NoSuchLedger: it was deleted.
            MetadataError: the store is unreachable.
        """
        async with self._asking:
            if connected_at <= self._known_at:
                return None
            asked_at = self._now()
            stored = await self._ledgers.read_caught_up(self._ledger_id)
            self._known_at = asked_at
            return stored.metadata
