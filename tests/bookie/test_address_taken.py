"""A bookie at the address of another one that has just ended answers no client while that one is still registered.

"No such entry" is true for the new bookie. For a client that looks for the earlier one, which may have the entry, it
would be false (docs/protocol.md §4.7).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree
from tests.cluster import ClusterBookie, GuestCluster
from tests.polling import wait_until

EARLIER = "the-earlier-one"
STOPPED = "the bookie has stopped in order"


@pytest.fixture
def cluster(zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[GuestCluster]:
    with GuestCluster(zookeeper, tmp_path, bookies=1) as started:
        yield started


@pytest.mark.parametrize("is_stopped", [False, True])
def test_bookie_listens_only_when_no_other_one_is_registered_at_its_address(
    cluster: GuestCluster, *, is_stopped: bool
) -> None:
    (bookie,) = cluster.bookies
    address = ("127.0.0.1", int(bookie.id.rpartition(":")[2]))
    bookie.stop()

    async def beside_the_earlier_one() -> None:
        uri = MetadataUri.parse(cluster.uri)
        tree = await open_tree(uri)
        try:
            await BookieRegistry(tree, uri).register(EARLIER, BookieAddress(*address))
            bookie.launch()
            await asyncio.to_thread(wait_until, lambda: waits(bookie), "the bookie to wait")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address)
            assert await BookieRegistry(tree, uri).registration(bookie.id) is None
            if is_stopped:
                before = log_of(bookie).count(STOPPED)
                bookie.stop()
                assert log_of(bookie).count(STOPPED) == before + 1, "a signal ends the wait"
        finally:
            await tree.close()

    asyncio.run(beside_the_earlier_one())
    if not is_stopped:
        bookie.wait_until_serving()
        socket.create_connection(address).close()


def waits(bookie: ClusterBookie) -> bool:
    return f"the bookie waits: {EARLIER} is registered at its address" in log_of(bookie)


def log_of(bookie: ClusterBookie) -> str:
    return (bookie.dir / "bookie.log").read_text()
