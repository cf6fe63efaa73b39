"""What the drivers of writer and recovery cores do at the metadata store; no event loop is named, any one runs it."""

from __future__ import annotations

from typing import Protocol

from bkspark.core import effects
from bkspark.core.metadata import LedgerMetadata
from bkspark.errors import BookKeeperError, MetadataVersion
from bkspark.metadata.ledgers import LedgerStore


class MetadataWriting(Protocol):
    """A core whose `WriteMetadata` effects are performed here."""

    def on_metadata_written(self, metadata: LedgerMetadata, version: int) -> list[effects.Effect]: ...

    def on_metadata_conflict(self, current: LedgerMetadata, version: int) -> list[effects.Effect]: ...

    def on_metadata_failed(self, error: BookKeeperError) -> list[effects.Effect]: ...


async def write_metadata(
    ledgers: LedgerStore, core: MetadataWriting, ledger_id: int, effect: effects.WriteMetadata
) -> list[effects.Effect]:
    """Perform a compare-and-set, look at what stands there where it lost, and tell the core; return what it wants."""
    try:
        try:
            written = await ledgers.write(ledger_id, effect.metadata, effect.expected_version)
        except MetadataVersion:
            current = await ledgers.read(ledger_id)
            return core.on_metadata_conflict(current.metadata, current.version)
    except BookKeeperError as error:
        return core.on_metadata_failed(error)
    return core.on_metadata_written(written.metadata, written.version)
