"""Reads the metadata of many ledgers, for the driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from bkspark.client import Client
from bkspark.errors import NoSuchLedger
from bkspark.log.attempts import CALLS_AT_ONCE
from bkspark.metadata.ledgers import Versioned


async def stored_ledgers(client: Client, ledger_ids: Sequence[int]) -> AsyncIterator[tuple[int, Versioned]]:
    """Yield each ledger and its metadata, in the order given; those that do not exist are left out."""
    ledgers = (await client.context()).ledgers

    async def read(ledger_id: int) -> Versioned | None:
        try:
            return await ledgers.read(ledger_id)
        except NoSuchLedger:
            return None

    for start in range(0, len(ledger_ids), CALLS_AT_ONCE):
        some = ledger_ids[start : start + CALLS_AT_ONCE]
        for ledger_id, stored in zip(some, await asyncio.gather(*map(read, some))):
            if stored is not None:
                yield ledger_id, stored
