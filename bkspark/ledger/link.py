"""BookieLink: the connection from a writer to the bookie in one slot of its ensemble."""

from __future__ import annotations

import asyncio

from bkspark.errors import BookKeeperError
from bkspark.net.pool import Channel
from bkspark.net.v3_channel import BookieV3Channel
from bkspark.wire import v2

FORCE_PAUSE_S = 0.05
"""Pause before a force is repeated at a bookie that refused load."""


class BookieLink:
    """The connection to the bookie in one slot; sends before it is connected wait in `backlog`."""

    __slots__ = ("backlog", "bookie", "channel", "connecting")

    def __init__(self, bookie: str) -> None:
        self.bookie = bookie
        """Constant."""
        self.channel: Channel | None = None
        """The connection; None until it may be used. Set once, by `Fanout`."""
        self.backlog: list[bytes | memoryview] = []
        """Sends from before there was a connection, in order; empty from then on."""
        self.connecting: asyncio.Task[None] | None = None
        """Makes the connection. Set once, by `Fanout`."""


async def force_ledger(channel: BookieV3Channel, ledger_id: int, timeout_s: float) -> bool:
    """Let a bookie sync its acknowledged entries of a ledger; return False if it did not. Waits for a busy bookie."""
    try:
        async with asyncio.timeout(timeout_s):
            while (status := await channel.force(ledger_id, timeout_s)) == v2.Status.ETOOMANYREQUESTS:
                await asyncio.sleep(FORCE_PAUSE_S)
            return status == v2.EOK
    except (BookKeeperError, TimeoutError):
        return False
