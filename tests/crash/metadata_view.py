"""Metadata stores that tell less than there is, or what was: what garbage collection must not believe."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from random import Random

import numpy as np

from bkspark.errors import MetadataError

_DOUBTS = ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.5, 0.0), (1.0, 0.0), (0.0, 0.3), (0.0, 1.0))
"""How much a listing misses, and how often a question fails."""


class DoubtfulMetadataView:
    """Knows which ledgers exist; a listing may lack some, and any question may fail."""

    def __init__(
        self,
        existing: Collection[int],
        random: Random | None = None,
        *,
        after_listing: Callable[[], None] = lambda: None,
        denies_all: bool = False,
        is_down: bool = False,
        lagging: Collection[int] | None = None,
    ) -> None:
        """Without `random` it tells the truth, but that direct reads find nothing at all when it `denies_all`, and that
        nothing is answered when it `is_down`.

        `after_listing()` is called when a listing was made and before it is returned. `lagging`: which ledgers a server
        knows that lags behind. The session talks to it until it catches up, and maybe again when a listing was made:
        then it expired, and the next one began again.
        """
        self._after_listing = after_listing
        self._denies_all = denies_all
        self._is_down = is_down
        self._existing = existing
        self._lagging = existing if lagging is None else lagging
        self._seen = self._lagging
        self._random = random
        self._missed, self._failing = (0.0, 0.0) if random is None else random.choice(_DOUBTS)

    async def catch_up(self) -> None:
        self._fail()
        self._seen = self._existing

    async def listed(self) -> AsyncIterator[np.ndarray]:
        self._fail()
        found = [each for each in sorted(self._seen) if not self._happens(self._missed)]
        self._after_listing()
        if self._happens(0.5):
            self._seen = self._lagging
        yield np.array(found, np.int64)

    async def is_deleted(self, ledger_id: int) -> bool:
        self._fail()
        return self._denies_all or ledger_id not in self._seen

    @contextlib.asynccontextmanager
    async def elsewhere(self, ledger_id: int) -> AsyncIterator[bool]:
        self._fail()
        yield False

    def _happens(self, share: float) -> bool:
        return self._random is not None and self._random.random() < share

    def _fail(self) -> None:
        if self._is_down or self._happens(self._failing):
            raise MetadataError("the store does not answer")
