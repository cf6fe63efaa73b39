"""A metadata store that does not answer about ledgers."""

from __future__ import annotations

from bkspark.errors import MetadataError
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.tree import Stat


class Away(MemoryTree):
    """A session that cannot read the metadata of ledgers while `is_away`, and counts how often that was tried."""

    is_away = False
    tried = 0

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, 1 << 40, 10.0)

    async def get(self, path: str) -> tuple[bytes, Stat]:
        if self.is_away and "/L" in path:
            self.tried += 1
            raise MetadataError("the metadata store does not answer")
        return await super().get(path)
