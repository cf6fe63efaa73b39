"""Ownership: whether a ledger still belongs to its writer, checked for each new connection of the writer.

The bookie at the other end of a new connection may not be the one that the writer knew. While a writer is idle, its
bookies may be removed, its ledger may be recovered, closed and copied to others, and empty bookies may start at the
same addresses. These know no fence: they would accept the writer's adds, and so acknowledge entries after the ledger's
end (P20, #4812). Ledgers are copied away before an empty bookie starts, so metadata that are read *after* the
connection was made show the change. Until they were read, nothing is sent on the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bkspark.core.metadata import LedgerMetadata
from bkspark.metadata.ledgers import LedgerStore


class Ownership:
    """Checks that a ledger is still its writer's. `now` is the clock of `Channel.connected_at`, in seconds."""

    def __init__(self, ledgers: LedgerStore, ledger_id: int, now: Callable[[], float]) -> None:
        self._ledgers = ledgers
        """The client's store of ledger metadata."""
        self._ledger_id = ledger_id
        """The id of the ledger. Constant."""
        self._now = now
        """The clock of connections, in seconds. Constant."""
        self._known_at = now()
        """Connections made up to this time are confirmed: when the last read began, or the ledger was created. Grows;
        changed by `confirm` alone."""
        self._asking = asyncio.Lock()
        """Held while the metadata are read, so that concurrent callers share one read."""

    async def confirm(self, connected_at: float) -> LedgerMetadata | None:
        """Return metadata that were read after `connected_at`; None if an earlier call has read them since then.

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
