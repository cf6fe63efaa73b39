"""A thousand writers in one process, and calls that are cancelled at any moment."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import weakref
from collections.abc import Awaitable, Callable

import pytest

from bkspark.client import Client
from bkspark.core.metadata import LedgerState
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import ClientClosed, LedgerClosed, LedgerFenced, MetadataError, SessionExpired
from bkspark.metadata.zookeeper_options import ZooKeeperOptions
from tests.ledger.in_process import InProcessCluster, run
from tests.polling import until

WRITERS = 1_000
TURNS = (0, 1, 2, 3, 5, 8, 13, 34)
"""Turns of the event loop after which a call is cancelled."""


@pytest.mark.slow
def test_a_thousand_open_writers_share_threads_and_connections(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        async with await client.create() as first:
            await first.append(b"connected")
        threads, connections = threading.active_count(), _connections(await client.context())
        writers = [await client.create(ensemble=1, write_quorum=1, ack_quorum=1) for _ in range(WRITERS)]
        for number in range(2):
            await asyncio.gather(*(writer.append(b"%d" % number) for writer in writers))
        assert {writer.last_entry for writer in writers} == {1}
        assert threading.active_count() <= threads
        assert _connections(await client.context()) == connections
        closed = await asyncio.gather(*(writer.close() for writer in writers))
        assert {metadata.last_entry for metadata in closed} == {1}
        assert len({writer.ledger_id for writer in writers}) == WRITERS

    run(tmp_path, test)


def test_single_append_goes_out_at_once_and_calls_made_meanwhile_travel_together(tmp_path):
    """What waits for company that does not come costs latency."""

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        async with await client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
            assert await writer.append(b"connected") == 0
            sent = []
            send, writer._send = writer._send, lambda sealed, *rest: (sent.append(len(sealed)), send(sealed, *rest))
            calls = [writer.append(b"%d" % number) for number in range(1, 9)]
            first = asyncio.ensure_future(calls[0])
            await asyncio.sleep(0)
            assert sent == [1]
            assert await asyncio.gather(first, *calls[1:]) == list(range(1, 9))
            assert sent == [1, 7]

    run(tmp_path, test, bookies=1)


def _connections(context: object) -> int:
    return len(context.pool._channels)  # type: ignore[attr-defined]


async def cancelled_after(turns: int, call: Awaitable[object]) -> bool:
    """Cancel a call after some turns of the event loop; say whether that was before its end."""
    task = asyncio.ensure_future(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


async def settled(tasks_before: int) -> None:
    """Wait until no more tasks are there than before."""
    await until(lambda: len(asyncio.all_tasks()) <= tasks_before, f"no more than {tasks_before} tasks")


def at_every_moment(tmp_path, test: Callable[[InProcessCluster, int], Awaitable[None]]) -> None:
    """Run a test with one cluster, once for each of TURNS."""

    async def all_turns(cluster: InProcessCluster) -> None:
        for turns in TURNS:
            await test(cluster, turns)

    run(tmp_path, all_turns)


def test_cancelled_append_takes_no_other_with_it_and_leaves_ids_dense(tmp_path):
    async def test(cluster, turns):
        client = cluster.client(writer=WriterOptions(pending_entries_max=2))
        writer = await client.create()
        others = [asyncio.ensure_future(writer.append(b"kept %d" % number)) for number in range(4)]
        for call in (writer.append(b"maybe"), writer.append_many([b"maybe"] * 5)):
            await cancelled_after(turns, call)
        assert await asyncio.gather(*others) == sorted(other.result() for other in others)
        last = await writer.append(b"last")
        assert (await writer.close()).last_entry == last
        reader = await client.open(writer.ledger_id)
        entries = list(await reader.read(0, last))
        assert [entries[other.result()] for other in others] == [b"kept %d" % number for number in range(4)]
        assert {*entries} <= {*(b"kept %d" % number for number in range(4)), b"maybe", b"last"}

    at_every_moment(tmp_path, test)


def test_cancelled_close_leaves_the_ledger_closed_or_to_be_recovered_and_nothing_running(tmp_path):
    async def test(cluster, turns):
        client = cluster.client()
        await client.connect()
        before = len(asyncio.all_tasks())
        writer = await client.create()
        acknowledged = await writer.append(b"0")
        if await cancelled_after(turns, writer.close()) and turns:
            with pytest.raises((ClientClosed, LedgerClosed)):
                await writer.append(b"late")
        await settled(before + 3)  # of each connection the pool keeps what made it
        metadata = await client.recover(writer.ledger_id)
        assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, acknowledged)

    at_every_moment(tmp_path, test)


def test_close_ends_a_ledger_to_which_others_append_after_all_acknowledged_entries(tmp_path):
    async def test(cluster):
        client = cluster.client()
        for appenders in (0, 1, 2, 3):
            writer = await client.create()
            heard = [await writer.append(b"0")]

            async def append_on(writer=writer, heard=heard):
                while True:
                    heard.append(await writer.append(b"more"))

            tasks = [asyncio.ensure_future(append_on()) for _ in range(appenders)]
            while len(heard) < 10 * appenders:
                await asyncio.sleep(0)
            closed = await asyncio.gather(writer.close(), writer.close())
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(error) for error in ended} <= {LedgerClosed}
            assert {metadata.last_entry for metadata in closed} == {max(heard)}
            assert sorted(heard) == list(range(len(heard)))

    run(tmp_path, test)


def test_sync_and_close_wait_for_entries_that_wait_for_company(tmp_path):
    async def test(cluster):
        client = cluster.client()
        for end in ("sync", "close"):
            writer = await client.create()
            calls = [asyncio.ensure_future(writer.append(b"%d" % number)) for number in range(5)]
            await asyncio.sleep(0)
            await getattr(writer, end)()
            assert [call.done() and call.result() for call in calls] == list(range(5))
            writer.abandon()

    run(tmp_path, test)


@pytest.mark.parametrize("recover", [False, True])
def test_cancelled_open_gives_everything_back_and_can_be_repeated(tmp_path, recover):
    async def test(cluster, turns):
        client = cluster.client()
        writer = await client.create()
        await writer.append_many([b"%d" % number for number in range(20)])
        writer.abandon()
        pool = (await client.context()).pool
        before = len(asyncio.all_tasks())
        await cancelled_after(turns, client.open(writer.ledger_id, recover=recover))
        await settled(before + 3)
        assert pool._reserved == {}
        reader = await client.open(writer.ledger_id, recover=True)
        assert [entry async for batch in reader.batches() for entry in batch] == [b"%d" % i for i in range(20)]

    at_every_moment(tmp_path, test)


def test_cancelled_creation_leaves_a_client_that_works(tmp_path):
    async def test(cluster, turns):
        client = cluster.client()
        await cancelled_after(turns, client.create())
        async with await client.create() as writer:
            assert await writer.append(b"0") == 0

    at_every_moment(tmp_path, test)


def test_cancelled_close_of_a_client_leaves_no_connection_open(tmp_path):
    async def test(cluster, turns):
        client = cluster.client()
        tree = await client.tree()
        await (await client.create()).append(b"0")
        channels = [task.result() for task in (await client.context()).pool._channels.values()]
        assert len(channels) == 3
        await cancelled_after(turns, client.close())
        await client.close()
        assert all(channel.lost is not None for channel in channels)
        with pytest.raises(SessionExpired):
            await tree.exists("/")

    at_every_moment(tmp_path, test)


def test_failure_of_what_a_cancelled_caller_waited_for_is_not_warned_about(tmp_path):
    async def test(cluster):
        said = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context["message"]))
        pool = (await cluster.client().context()).pool
        writer = await cluster.client().create()
        before = asyncio.all_tasks()
        kept = asyncio.ensure_future(writer.append(b"goes out at once"))
        await asyncio.sleep(0)
        await cancelled_after(1, writer.append(b"would travel with others"))
        writer.abandon()
        with pytest.raises(ClientClosed):
            await kept
        await cancelled_after(1, pool.channel("127.0.0.1:1"))
        await asyncio.wait(asyncio.all_tasks() - before)
        del pool, writer, kept
        gc.collect()
        assert said == []

    run(tmp_path, test)


def test_fenced_writer_is_released_without_a_close(tmp_path):
    async def test(cluster):
        writer = await cluster.client(writer=WriterOptions(explicit_lac_interval_s=3600.0)).create()
        await writer.append(b"0")
        await cluster.client().recover(writer.ledger_id)
        with pytest.raises(LedgerFenced):
            await writer.append(b"1")
        gone = weakref.ref(writer)
        del writer

        def is_gone() -> bool:
            gc.collect()
            return gone() is None

        await until(is_gone, "a fenced writer to be let go of")

    run(tmp_path, test)


def test_calls_under_way_when_their_client_is_closed_say_so(tmp_path):
    """Not CancelledError, which would look as if the caller had been cancelled."""

    async def test(cluster, turns):
        other = await cluster.client().create()
        await other.append_many([b"0"] * 10)
        client = cluster.client()
        writer = await client.create()
        calls = [writer.append(b"0"), writer.append_many([b"0"] * 20_000), client.open(other.ledger_id)]
        tasks = [asyncio.ensure_future(call) for call in calls]
        for _ in range(turns):
            await asyncio.sleep(0)
        await client.close()
        ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        assert {type(error) for error in ended if isinstance(error, BaseException)} <= {ClientClosed}
        # So soon nothing can have been acknowledged.
        assert turns > 2 or isinstance(ended[1], ClientClosed)
        with pytest.raises(ClientClosed):
            await writer.close()

    at_every_moment(tmp_path, test)


def test_closed_client_connects_no_more(tmp_path):
    async def test(cluster):
        client = cluster.client()
        await client.connect()
        await client.close()
        await client.close()
        for call in (client.connect, client.create, client.logs, client.log("clicks").latest):
            with pytest.raises(ClientClosed, match="make another"):
                await call()

    run(tmp_path, test)


def test_callers_that_wait_for_the_connection_together_share_its_failure():
    """Each tried again when the one before had failed: ten requests waited ten times as long for a silent store."""

    async def test() -> None:
        silent = socket.create_server(("127.0.0.1", 0), backlog=64)  # it accepts connections, and says nothing
        uri = f"zk://127.0.0.1:{silent.getsockname()[1]}/ledgers"
        client = Client(uri, zookeeper=ZooKeeperOptions(timeout_s=0.5))
        try:
            failed = await asyncio.gather(*(client.context() for _ in range(10)), return_exceptions=True)
            assert isinstance(failed[0], MetadataError)
            assert all(each is failed[0] for each in failed)
            with pytest.raises(MetadataError) as later:
                await client.context()
            assert later.value is not failed[0]
        finally:
            await client.close()
            silent.close()

    asyncio.run(test())


def test_callers_that_wait_for_the_connection_go_on_when_the_first_is_cancelled():
    async def test() -> None:
        silent = socket.create_server(("127.0.0.1", 0), backlog=64)
        uri = f"zk://127.0.0.1:{silent.getsockname()[1]}/ledgers"
        client = Client(uri, zookeeper=ZooKeeperOptions(timeout_s=0.5))
        try:
            first, second = (asyncio.ensure_future(client.context()) for _ in range(2))
            await asyncio.sleep(0)
            first.cancel()
            with pytest.raises(MetadataError):
                await second
            assert first.cancelled()
        finally:
            await client.close()
            silent.close()

    asyncio.run(test())
