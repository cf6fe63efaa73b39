"""A channel keeps nothing of requests for which no caller waits any more."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from bkspark.errors import RequestTimeout
from bkspark.net.channel import BookieChannel
from bkspark.net.pool import BookiePool, NetOptions, resolver
from bkspark.wire.adds import WireProtocol
from bkspark.wire.digest import DigestType, EntryDigest

DIGEST = EntryDigest(DigestType.CRC32C, b"")


@pytest.mark.parametrize("protocol", list(WireProtocol))
def test_channel_forgets_requests_that_a_silent_bookie_does_not_answer(protocol: WireProtocol) -> None:
    """Each ledger whose last entry was not returned kept its place: a reader of many ledgers grew for ever."""

    async def test() -> None:
        has_left = asyncio.Event()

        async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()
            has_left.set()

        silent = await asyncio.start_server(hear, "127.0.0.1", 0)
        address = silent.sockets[0].getsockname()
        pool = BookiePool(resolver({"silent": address}), NetOptions(read_timeout_s=0.01), protocol)
        channel = await pool.channel("silent")
        for ledger_id in range(3):
            calls = [channel.read_last_entry(ledger_id, DIGEST), channel.read_entries(ledger_id, np.arange(2), DIGEST)]
            if isinstance(channel, BookieChannel):
                calls.append(channel.batch_read(ledger_id, 0, 5, 1000, DIGEST))
            for call in calls:
                with pytest.raises(RequestTimeout):
                    await call
        assert channel._groups == {}
        if isinstance(channel, BookieChannel):
            assert (channel._last_reads, channel._batches) == ({}, {})
        else:
            assert channel._asked == {}
        await pool.close()
        await has_left.wait()
        silent.close()

    asyncio.run(test())
