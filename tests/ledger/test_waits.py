"""How long writers and recoveries wait for bookies, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from bkspark.client import Client
from bkspark.ledger.fanout import DRAIN_S
from bkspark.ledger.writer_run import TICK_S
from tests.simulation.full_cluster import URI, Cluster
from tests.simulation.virtual_loop import run_in_virtual_time


def test_bookie_that_could_not_be_fenced_and_cannot_be_connected_to_does_not_delay_the_close() -> None:
    """Only bookies that are new to the ensemble are waited for: a quorum of the others has the entries."""
    cluster = Cluster(Random(1), 3)
    cluster.network_s = cluster.journal_s = cluster.metadata_s = 0.001
    unreachable, calls = 0, 0

    async def connect(factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> Any:
        nonlocal calls
        if port == unreachable:
            calls += 1
            if calls == 1:
                raise ConnectionRefusedError
            await asyncio.get_running_loop().create_future()
        return await cluster.connect(factory, host, port)

    async def recover() -> float:
        nonlocal unreachable
        await cluster.start()
        async with Client(URI, tree=cluster.session()) as client:
            writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
            await writer.append(b"x")
            writer.abandon()
        unreachable = cluster.bookie(writer.metadata.last_fragment.bookies[2]).port
        async with Client(URI, tree=cluster.session()) as client:
            began_s = asyncio.get_running_loop().time()
            assert (await client.recover(writer.ledger_id)).last_entry == 0
            return asyncio.get_running_loop().time() - began_s

    assert run_in_virtual_time(recover(), connect) < DRAIN_S
    assert calls == 2


def test_add_that_a_bookie_refuses_because_of_its_load_is_sent_again_after_a_short_pause() -> None:
    """Before the next regular tick; and the bookie is not replaced."""
    cluster = Cluster(Random(1), 2)
    cluster.network_s = cluster.journal_s = cluster.metadata_s = 0.0001

    async def write() -> float:
        await cluster.start()
        async with Client(URI, tree=cluster.session()) as client:
            writer = await client.create(ensemble=1, write_quorum=1, ack_quorum=1)
            await writer.append(b"0")
            (name,) = writer.metadata.last_fragment.bookies
            cluster.bookie(name).is_refusing = True
            waiting = await writer.submit([b"1", b"2"])
            await asyncio.sleep(0.002)
            assert not waiting.done()
            cluster.bookie(name).is_refusing = False
            began_s = asyncio.get_running_loop().time()
            await waiting
            took_s = asyncio.get_running_loop().time() - began_s
            assert (await writer.close()).last_fragment.bookies == (name,)
            return took_s

    assert cluster.run(write()) < TICK_S / 10
