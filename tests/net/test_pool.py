"""The connections of a client: which bookies it avoids, and what is left of connections that are not used any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bkspark.errors import BookieUnavailable, ClientClosed, ConfigurationError, MetadataError
from bkspark.net.channel import BookieChannel
from bkspark.net.pool import AVOID_FAILED_S, BookiePool, NetOptions, resolver
from bkspark.wire.adds import WireProtocol
from tests.ledger.fanning import Wire
from tests.simulation.virtual_loop import run_in_virtual_time

ADDRESSES = {"a": ("10.0.0.1", 3181), "b": ("10.0.0.2", 3181)}
NET = NetOptions(connect_timeout_s=5.0)


@pytest.mark.parametrize("wrong", [{"connect_timeout_s": 0.0}, {"read_timeout_s": -1.0}, {"frame_bytes_max": 10}])
def test_settings_that_cannot_work_are_refused_by_their_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        NetOptions(**wrong)


class Bookies:
    """Bookies without sockets, of which some cannot be reached."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.is_hanging = False
        self.connected = 0

    async def connect(self, make: Callable[[], Any], host: str, port: int) -> tuple[Wire, Any]:
        if self.is_hanging:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(0.1)
        if self.failure is not None:
            raise self.failure
        self.connected += 1
        protocol, wire = make(), Wire()
        protocol.connection_made(wire)
        return wire, protocol


def play(test: Callable[[BookiePool, Bookies], Awaitable[None]], protocol: WireProtocol = WireProtocol.V2) -> None:
    """Run a test's coroutine with a pool, in virtual time."""
    bookies = Bookies()

    async def run() -> None:
        pool = BookiePool(resolver(ADDRESSES), NET, protocol)
        try:
            await test(pool, bookies)
        finally:
            await pool.close()

    run_in_virtual_time(run(), bookies.connect)


@pytest.mark.parametrize("failure", ["refused", "time-out", "no address", "wrong port"])
def test_bookie_that_cannot_be_reached_is_avoided_for_a_while(failure: str) -> None:
    async def test(pool: BookiePool, bookies: Bookies) -> None:
        bookie = "c" if failure == "no address" else "a"
        bookies.failure = OverflowError("port") if failure == "wrong port" else ConnectionRefusedError()
        bookies.is_hanging = failure == "time-out"
        with pytest.raises(BookieUnavailable):
            await pool.channel(bookie)
        assert pool.avoided == {bookie}
        await asyncio.sleep(AVOID_FAILED_S - 0.001)
        assert pool.avoided == {bookie}
        await asyncio.sleep(0.001)
        assert pool.avoided == frozenset()

    play(test)


def test_bookie_that_is_reached_again_is_not_avoided_any_more() -> None:
    async def test(pool: BookiePool, bookies: Bookies) -> None:
        bookies.failure = ConnectionRefusedError()
        for bookie in ADDRESSES:
            with pytest.raises(BookieUnavailable):
                await pool.channel(bookie)
        bookies.failure = None
        await pool.channel("b")
        assert pool.avoided == {"a"}

    play(test)


@pytest.mark.parametrize("protocol", list(WireProtocol))
@pytest.mark.parametrize(
    "happens", ["another bookie registers there", "it moves", "it moves to another port", "the metadata store fails"]
)
def test_bookie_that_is_elsewhere_when_the_connection_is_made_is_not_asked(
    protocol: WireProtocol, happens: str
) -> None:
    """A new bookie at a lost one's address says truly that it has no entry, and a recovery would count that answer."""
    channels: list[Any] = []

    async def connect(make: Callable[[], Any], host: str, port: int) -> tuple[Wire, Any]:
        channel, wire = make(), Wire()
        channel.connection_made(wire)
        channels.append(channel)
        return wire, channel

    async def resolve(bookie: str) -> tuple[str, int]:
        if not channels or happens == "nothing":
            return ADDRESSES["a"]
        if happens == "it moves":
            return ADDRESSES["b"]
        if happens == "it moves to another port":
            return ADDRESSES["a"][0], 3182
        if happens == "the metadata store fails":
            raise MetadataError("no connection")
        raise BookieUnavailable("its address is that of bookie b now", bookie=bookie)

    async def run() -> None:
        nonlocal happens
        pool = BookiePool(resolve, NET, protocol, asks_again=True)
        expected = MetadataError if happens == "the metadata store fails" else BookieUnavailable
        with pytest.raises(expected):
            await pool.channel("a")
        assert [channel.lost is None for channel in channels] == [False]
        happens = "nothing"
        assert (await pool.channel("a")).lost is None
        await pool.close()

    run_in_virtual_time(run(), connect)


def test_lost_connection_is_replaced_by_the_next_caller() -> None:
    async def test(pool: BookiePool, bookies: Bookies) -> None:
        first = await pool.channel("a")
        assert await pool.channel("a") is first
        first.close()
        assert await pool.channel("a") is not first
        assert bookies.connected == 2

    play(test)


@pytest.mark.parametrize("protocol", list(WireProtocol))
def test_connections_of_different_indexes_are_different_connections(protocol: WireProtocol) -> None:
    """A recovery's answers must not be taken for those of another, or for those of the owner."""

    async def test(pool: BookiePool, bookies: Bookies) -> None:
        channels = [await pool.channel("a", connection_index) for connection_index in range(4)]
        assert len(set(channels)) == bookies.connected == 4
        assert [await pool.channel("a", connection_index) for connection_index in range(4)] == channels
        assert await pool.channel("b", 1) not in channels

    play(test, protocol)


def test_caller_that_is_cancelled_does_not_end_the_connection_of_others() -> None:
    async def test(pool: BookiePool, bookies: Bookies) -> None:
        callers = [asyncio.ensure_future(pool.channel("a")) for _ in range(2)]
        await asyncio.sleep(0.05)
        callers[0].cancel()
        channel = await callers[1]
        assert callers[0].cancelled()
        assert await pool.channel("a") is channel
        assert bookies.connected == 1

    play(test)


@pytest.mark.parametrize("protocol", list(WireProtocol))
def test_closed_pool_keeps_no_connection_and_makes_no_other(protocol: WireProtocol) -> None:
    async def test(pool: BookiePool, bookies: Bookies) -> None:
        channel = await pool.channel("a")
        connecting = asyncio.ensure_future(pool.channel("b"))
        await asyncio.sleep(0.05)
        await pool.close()
        assert isinstance(channel.lost, ClientClosed)
        for calling in (connecting, pool.channel("a")):
            with pytest.raises(ClientClosed):
                await calling
        assert bookies.connected == 1

    play(test, protocol)


def test_pool_whose_closing_is_cancelled_leaves_no_connection_open() -> None:
    async def test(pool: BookiePool, bookies: Bookies) -> None:
        channel = await pool.channel("a")
        connecting = asyncio.ensure_future(pool.channel("b"))
        await asyncio.sleep(0.05)
        closing = asyncio.ensure_future(pool.close())
        asyncio.get_running_loop().call_soon(closing.cancel)
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(ClientClosed):
            await connecting
        assert isinstance(channel, BookieChannel)
        assert isinstance(channel.lost, ClientClosed)

    play(test)


def test_reserved_connections_differ_until_they_are_released() -> None:
    async def test(pool: BookiePool, bookies: Bookies) -> None:
        assert [pool.reserve_connection(7) for _ in range(3)] == [1, 2, 3]
        assert pool.reserve_connection(8) == 1
        pool.release(7, 2)
        assert [pool.reserve_connection(7) for _ in range(2)] == [2, 4]
        for index in (1, 2, 3, 4):
            pool.release(7, index)
        pool.release(8, 1)
        assert pool._reserved == {}, "a client that recovers many ledgers does not grow"

    play(test)
