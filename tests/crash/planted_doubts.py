"""Defects of limbo, of what garbage collection does to ledgers in doubt, and of rebuilds; see `planted`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bookie_service.admin.rebuild import Rebuild
from bookie_service.cluster.limbo_check import LimboCheck
from bookie_service.storage.ledgers.base import BaseLedgerStorage
from bookie_service.storage.ledgers.limbo import Limbo
from tests.crash.planting import skipping
from tests.planting import Plant, both, changed, replaced


def doubt_ignored() -> Plant:
    """Logs of ledgers in doubt are rewritten as any other: what has no position is left out."""
    return both(
        replaced(BaseLedgerStorage, "in_doubt", lambda self, ledger_ids: np.empty(0, np.int64)),
        replaced(BaseLedgerStorage, "any_in_doubt", lambda self: False),
    )


def left_limbo_unfenced() -> Plant:
    async def fenced(self: LimboCheck, ledger_ids: Sequence[int]) -> list[int]:
        return list(ledger_ids)

    return replaced(LimboCheck, "_fenced", fenced)


def left_limbo_early() -> Plant:
    """A ledger leaves limbo when it is fenced in memory, before that is durable."""

    def make(old: Any) -> Any:
        async def fenced(self: LimboCheck, ledger_ids: Sequence[int]) -> list[int]:
            async def flush() -> None:
                """Flush nothing."""

            self._flush = flush
            await old(self, ledger_ids)
            return list(ledger_ids)

        return fenced

    return changed(LimboCheck, "_fenced", make)


def limbo_not_synced() -> Plant:
    return skipping(Limbo, "_write", "sync_data")


def limbo_in_memory() -> Plant:
    """Limbo is not written down: after a crash nothing tells of a ledger that was rebuilt."""

    def write(self: Limbo, ledgers: frozenset[int]) -> None:
        self._ledgers = ledgers

    return replaced(Limbo, "_write", write)


def rebuilt_without_doubt() -> Plant:
    """A rebuilt ledger counts as whole, though its fence may be lost."""
    return replaced(Rebuild, "_begin_doubt", lambda self, chosen: None)


def dropped_in_doubt_unfenced() -> Plant:
    """A ledger in doubt that is deleted and dropped may come back: that it may have been fenced is not remembered."""

    def droppable(self: BaseLedgerStorage, ledger_ids: Sequence[int]) -> list[tuple[int, bool]]:
        settled = [each for each in ledger_ids if self._is_settled(each)]
        found = [(each, self.ledger(each)) for each in settled]
        return [(each, ledger is not None and ledger.fenced) for each, ledger in found]

    return replaced(BaseLedgerStorage, "droppable", droppable)


def absence_certain() -> Plant:
    """What a ledger in limbo does not have was never there."""
    return replaced(Limbo, "__contains__", lambda self, ledger_id: False)
