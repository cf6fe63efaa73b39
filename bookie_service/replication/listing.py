"""Reads the metadata of all ledgers, one group of ledgers at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from bkspark.core.copies import names
from bkspark.core.metadata import LedgerMetadata
from bkspark.errors import BookKeeperError, NoSuchLedger
from bkspark.metadata.ledgers import LedgerStore
from bookie_service.replication.unexpected_errors import UnexpectedErrors

READ_AT_ONCE = 64
"""How many metadata nodes `read_naming` reads together."""

Listed = tuple[int, LedgerMetadata | BookKeeperError]
"""A ledger's id, and its metadata or why they cannot be decoded."""


async def read_all(ledgers: LedgerStore, at_once: int, unexpected: UnexpectedErrors) -> AsyncIterator[list[Listed]]:
    """Yield every ledger, in groups that are read together. Ledgers that are deleted meanwhile are left out.

    Raises:
        MetadataError: the store failed, and there may be more ledgers.
    """
    group: list[int] = []
    async for ledger_id in ledgers.ids():
        group.append(ledger_id)
        if len(group) == at_once:
            yield await _read(ledgers, group, unexpected)
            group = []
    yield await _read(ledgers, group, unexpected)


async def read_naming(ledgers: LedgerStore, bookie: str, unexpected: UnexpectedErrors) -> AsyncIterator[Listed]:
    """Yield the ledgers that name a bookie, and those whose metadata cannot be read. Raises as `read_all`."""
    async for some in read_all(ledgers, READ_AT_ONCE, unexpected):
        for ledger_id, metadata in some:
            if isinstance(metadata, BookKeeperError) or names(metadata, bookie):
                yield ledger_id, metadata


async def _read(ledgers: LedgerStore, ledger_ids: list[int], unexpected: UnexpectedErrors) -> list[Listed]:
    async def read(ledger_id: int) -> Listed | None:
        try:
            return ledger_id, (await ledgers.read(ledger_id)).metadata
        except NoSuchLedger:
            return None
        except Exception as error:
            return ledger_id, unexpected.of_ledger(error, f"reading the metadata of ledger {ledger_id}", ledger_id)

    return [each for each in await asyncio.gather(*map(read, ledger_ids)) if each is not None]
