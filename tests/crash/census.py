"""Metadata stores that tell less than there is: what garbage collection must not believe."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection
from random import Random

import numpy as np

from bkspark.errors import MetadataError


class DoubtfulCensus:
    """Knows which ledgers exist; a listing may lack some, and any question may fail."""

    def __init__(self, existing: Collection[int], random: Random | None = None) -> None:
        """Without `random` it tells the truth."""
        self._existing = existing
        self._random = random
        self._missed = 0.0 if random is None else random.choice((0.0, 0.0, 0.5, 1.0))
        self._failing = 0.0 if random is None else random.choice((0.0, 0.0, 0.3))

    async def listed(self) -> np.ndarray:
        self._fail()
        return np.array([each for each in sorted(self._existing) if not self._happens(self._missed)], np.int64)

    async def is_deleted(self, ledger_id: int) -> bool:
        self._fail()
        return ledger_id not in self._existing

    @contextlib.asynccontextmanager
    async def elsewhere(self, ledger_id: int) -> AsyncIterator[bool]:
        self._fail()
        yield False

    def _happens(self, share: float) -> bool:
        return self._random is not None and self._random.random() < share

    def _fail(self) -> None:
        if self._happens(self._failing):
            raise MetadataError("the store does not answer")
