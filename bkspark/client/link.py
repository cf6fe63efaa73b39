"""The way from a writer to the bookie in one slot of its ensemble."""

from __future__ import annotations

import asyncio

import numpy as np

from bkspark.errors import BookKeeperError
from bkspark.net.pool import Channel
from bkspark.net.v3_channel import BookieV3Channel
from bkspark.wire import v2
from bkspark.wire.digest import SealedEntries

FORCE_PAUSE_S = 0.05
"""Before a bookie is asked again to sync that refused load."""


class Link:
    """The way to the bookie in one slot; what is sent before it is connected waits in `backlog`."""

    __slots__ = ("backlog", "bookie", "channel")

    def __init__(self, bookie: str) -> None:
        self.bookie = bookie
        self.channel: Channel | None = None
        self.backlog: list[bytes | memoryview] = []


async def forced(channel: BookieV3Channel, ledger_id: int, timeout_s: float) -> bool:
    """Have a bookie sync what it acknowledged of a ledger; return False where it did not. A busy one is waited for."""
    try:
        async with asyncio.timeout(timeout_s):
            while (status := await channel.force(ledger_id, timeout_s)) == v2.Status.ETOOMANYREQUESTS:
                await asyncio.sleep(FORCE_PAUSE_S)
            return status == v2.EOK
    except (BookKeeperError, TimeoutError):
        return False


def frames(entries: SealedEntries, positions: np.ndarray | None) -> bytes | memoryview:
    """Return the frames at some positions in one buffer."""
    if positions is None:
        return entries.buffer
    bounds = entries.offsets
    return b"".join(
        [entries.buffer[start:end] for start, end in zip(bounds[positions].tolist(), bounds[positions + 1].tolist())]
    )
