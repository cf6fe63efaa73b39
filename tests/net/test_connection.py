"""One connection to a bookie: when it counts as silent, and to whom the answers in one receive buffer belong."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from bkspark.errors import BookieUnavailable
from bkspark.net.channel import BookieChannel
from bkspark.net.connection import AddListener
from bkspark.wire import v2
from bkspark.wire.status import Status
from tests.ledger.fanning import LEDGER, SILENT_S, Wire, answer, play, receive, settled
from tests.ledger.hostile import DIGEST, Asked, decoded, items, reply, sealed


def connected() -> tuple[BookieChannel, Wire]:
    """Return a new connection, and what it sends."""
    channel, wire = BookieChannel("a", 1 << 20, SILENT_S), Wire()
    channel.connection_made(wire)
    return channel, wire


def test_connection_is_silent_from_its_last_bytes_on() -> None:
    async def test() -> None:
        channel, _ = connected()
        await asyncio.sleep(SILENT_S - 1)
        answer(channel, 0)
        await asyncio.sleep(SILENT_S - 1)
        channel.close_if_silent()
        assert channel.lost is None
        await asyncio.sleep(2)
        channel.close_if_silent()
        assert isinstance(channel.lost, BookieUnavailable)

    play(test)


def test_lost_connection_is_reported_once_to_each_writer() -> None:
    async def test() -> None:
        channel, _ = connected()
        reports: list[tuple[int, str]] = []
        for ledger_id in (1, 2):
            channel.listen_adds(
                ledger_id,
                AddListener(lambda *_: None, lambda error, it=ledger_id: reports.append((it, str(error)))),  # type: ignore[misc]
            )
        channel.connection_lost(ConnectionResetError("reset"))
        channel.close()
        assert [ledger_id for ledger_id, _ in reports] == [1, 2]
        assert all("dropped the connection: reset" in error for _, error in reports)
        for ledger_id in (1, 2):
            channel.listen_adds(ledger_id, AddListener(lambda *_: None, lambda _: None))

    play(test)


def test_answers_to_one_entry_in_one_buffer_belong_to_one_read_each() -> None:
    """The reads were sent one after the other, and V2's answers do not name them."""

    async def test() -> None:
        channel, _ = connected()
        reads = [asyncio.ensure_future(channel.read_entries(LEDGER, np.array([3, 4]), DIGEST)) for _ in range(2)]
        await settled()
        found = reply(Asked(v2.READ, LEDGER, 3, b""), body=sealed(LEDGER, 3))
        lacking = reply(Asked(v2.READ, LEDGER, 4, b""), status=Status.ENOENTRY)
        receive(channel, found + found + lacking)
        await settled()
        assert [each.done() for each in reads] == [True, False]
        receive(channel, lacking)
        for each in reads:
            assert (await each).statuses.tolist() == [Status.EOK, Status.ENOENTRY]

    play(test)


ITEM_BYTES = len(items(LEDGER, 0, 1))


@pytest.mark.parametrize(("missing_bytes", "count"), [(0, 3), (1, 2), (ITEM_BYTES, 2), (ITEM_BYTES + 1, 1)])
def test_entries_that_exactly_fill_the_wanted_bytes_are_kept(missing_bytes: int, count: int) -> None:
    async def test() -> None:
        channel, wire = connected()
        body = items(LEDGER, 0, 3)
        bytes_max = v2.BATCH_ACCOUNT_BYTES + len(body) - missing_bytes
        reading = asyncio.ensure_future(channel.batch_read(LEDGER, 0, 5, bytes_max, DIGEST))
        await settled()
        receive(channel, reply(decoded(wire.sent[4:]), body=body))
        assert len((await reading).entries) == count

    play(test)
