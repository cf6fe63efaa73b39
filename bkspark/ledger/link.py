"""The way from a writer to the bookie in one slot of its ensemble."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from bkspark.errors import BookKeeperError
from bkspark.net.pool import Channel
from bkspark.net.v3_channel import BookieV3Channel
from bkspark.wire import v2

FORCE_PAUSE_S = 0.05
"""Before a bookie is asked again to sync that refused load."""
REACH_S = 2.0
"""How long a writer that closes its ledger waits for bookies that it has not reached yet."""


class Link:
    """The way to the bookie in one slot; what is sent before it is connected waits in `backlog`."""

    __slots__ = ("backlog", "bookie", "channel", "connecting")

    def __init__(self, bookie: str) -> None:
        self.bookie = bookie
        """Constant."""
        self.channel: Channel | None = None
        """The connection; None until it may be used. Set once, by `Fanout`."""
        self.backlog: list[bytes | memoryview] = []
        """What was sent before there was a connection, in order; empty from then on."""
        self.connecting: asyncio.Task[None] | None = None
        """Makes the connection. Set once, by `Fanout`."""


async def reach(links: Iterable[Link]) -> None:
    """Return when nothing waits to be sent for want of a connection, or REACH_S are over.

    A quorum acknowledged the whole of a short ledger, perhaps, before the last bookie was connected: closed now, the
    ledger would lack that bookie's copies until somebody repairs it.
    """
    waiting = [link.connecting for link in links if link.backlog and link.connecting is not None]
    if waiting:
        await asyncio.wait(waiting, timeout=REACH_S)


async def forced(channel: BookieV3Channel, ledger_id: int, timeout_s: float) -> bool:
    """Have a bookie sync what it acknowledged of a ledger; return False where it did not. A busy one is waited for."""
    try:
        async with asyncio.timeout(timeout_s):
            while (status := await channel.force(ledger_id, timeout_s)) == v2.Status.ETOOMANYREQUESTS:
                await asyncio.sleep(FORCE_PAUSE_S)
            return status == v2.EOK
    except (BookKeeperError, TimeoutError):
        return False
