"""Ownership: whether a ledger is still its writer's, asked for each connection that is younger than the last answer.

The bookie at the other end of a new connection may not be the one that the writer knew. While a writer idles its
bookies may be taken away, its ledger be recovered, closed and moved, and blank bookies start at the same addresses:
they know of no fence, take its adds, and so acknowledge entries after the ledger's end (P20, #4812).
Ledgers are moved before a blank bookie starts, so metadata that were read *after* the connection was made tell of it.
Until they were, nothing goes out on that connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bkspark.core.metadata import LedgerMetadata
from bkspark.metadata.ledgers import LedgerStore


class Ownership:
    """What a writer knows of its ledger's metadata, and since when; `now` is the clock of connections, in seconds."""

    def __init__(self, ledgers: LedgerStore, ledger_id: int, now: Callable[[], float]) -> None:
        self._ledgers = ledgers
        """The client's."""
        self._ledger_id = ledger_id
        """Constant."""
        self._now = now
        """Constant."""
        self._known_at = now()
        """When the metadata were last asked for, or the ledger was created. Grows, by `confirm` alone."""
        self._asking = asyncio.Lock()
        """Held while the store is asked: others share the answer."""

    async def confirm(self, connected_at: float) -> LedgerMetadata | None:
        """Return the metadata as they stood after `connected_at`; None where it was asked since then already.

        Connections made at about the same time share one look at the store.

        Raises:
            NoSuchLedger: it was deleted.
            MetadataError: the store is away.
        """
        async with self._asking:
            if connected_at <= self._known_at:
                return None
            asked_at = self._now()
            stored = await self._ledgers.read_caught_up(self._ledger_id)
            self._known_at = asked_at
            return stored.metadata
