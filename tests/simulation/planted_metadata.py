"""Defects at the metadata store for `mutants`, each a context in which the product has it."""

from __future__ import annotations

from typing import Any

from bkspark.core.metadata import LedgerMetadata
from bkspark.core.writer import WriterCore
from bkspark.errors import MetadataError, MetadataVersion
from bkspark.metadata import encoding
from bkspark.metadata.ledgers import LedgerStore, Versioned
from bkspark.metadata.tree import Stat
from tests.planting import Plant, around, both, replaced


def writes_any_version() -> Plant:
    async def write(self: LedgerStore, ledger_id: int, metadata: LedgerMetadata, version: int) -> Versioned:
        stat = await self._tree.set(await self._path(ledger_id), encoding.encode(metadata), -1)
        return Versioned(metadata, stat.version, stat.ctime_ms, stat.mtime_ms)

    return replaced(LedgerStore, "write", write)


def lost_write_is_written() -> Plant:
    async def write_once(self: LedgerStore, path: str, data: bytes, version: int) -> Any:
        try:
            return await self._tree.set(path, data, version)
        except MetadataError:
            return Stat(version + 1, 0, 0, 0, 0, 0)

    return replaced(LedgerStore, "_write_once", write_once)


def next_version_is_ours() -> Plant:
    async def write_once(self: LedgerStore, path: str, data: bytes, version: int) -> Any:
        try:
            return await self._tree.set(path, data, version)
        except MetadataError:
            stat = await self._tree.exists(path)
            if stat is None or stat.version != version + 1:
                raise
            return stat

    return replaced(LedgerStore, "_write_once", write_once)


def own_write_is_a_conflict() -> Plant:
    async def write_once(self: LedgerStore, path: str, data: bytes, version: int) -> Any:
        try:
            return await self._tree.set(path, data, version)
        except MetadataError:
            raise MetadataVersion("another client's") from None

    def on_metadata_conflict(old: Any, self: WriterCore, current: LedgerMetadata, version: int) -> Any:
        # It would look for the ensemble that it proposed, and find that the change is its own.
        self.change._proposed = ()
        return old(self, current, version)

    return both(
        replaced(LedgerStore, "_write_once", write_once),
        around(WriterCore, "on_metadata_conflict", on_metadata_conflict),
    )
