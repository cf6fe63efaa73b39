"""BookieLink: the connection from a writer to the bookie in one slot of its ensemble."""

from __future__ import annotations

import asyncio

from bkspark.errors import BookKeeperError
from bkspark.net.pool import Channel
from bkspark.net.v3_channel import BookieV3Channel
from bkspark.wire import v2

FORCE_PAUSE_S = 0.05
"""Pause before a force is repeated that a bookie refused because of its load."""


class BookieLink:
    """The connection to the bookie in one slot. Until it is made, adds wait in `backlog`; the window bounds them."""

    __slots__ = ("backlog", "bookie", "channel", "connecting")

    def __init__(self, bookie: str) -> None:
        self.bookie = bookie
        """The bookie id. Constant: a replaced bookie gets another link."""
        self.channel: Channel | None = None
        """The connection; None until it is made and ownership is confirmed. Set once, by `Fanout`."""
        self.backlog: list[bytes | memoryview] = []
        """Frames of adds that wait for the connection, in order. Emptied by `Fanout` when it is made."""
        self.connecting: asyncio.Task[None] | None = None
        """The task that makes the connection. Set once, by `Fanout`."""


async def force_ledger(channel: BookieV3Channel, ledger_id: int, timeout_s: float) -> bool:
    """Make a bookie sync its acknowledged entries of a ledger; return whether it did within `timeout_s`.

    A force that the bookie refuses because of its load is repeated until then.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while (status := await channel.force(ledger_id, timeout_s)) == v2.Status.ETOOMANYREQUESTS:
                await asyncio.sleep(FORCE_PAUSE_S)
            return status == v2.EOK
    except (BookKeeperError, TimeoutError):
        return False
