"""Two registrations with one HTTP address: each bookie is shown with its own metrics."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bkspark.cli.bookie_http import BookieHttpAccess
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.client import Client
from bkspark.metadata.registration import BookieAddress, encode
from bkspark_console.bookie_http import BookieHttp
from bkspark_console.cluster_view import ClusterView
from tests.bookie.child import BookieChild, new_cluster
from tests.console.process import HTTP


@pytest.mark.cluster
def test_metrics_of_another_bookie_at_the_same_address_are_not_shown(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """The page of a bookie that had died showed the disks of the bookie that had its address now."""
    uri = new_cluster(zookeeper.connect_string, f"shared-{tmp_path.name}")
    child, dead = BookieChild(tmp_path / "bookie", uri, **HTTP), "dead-bookie:3181"
    root = re.sub(r"^zk://[^/]*", "", uri)
    store = KazooClient(zookeeper.connect_string)

    async def sampled() -> dict[str, set[str]]:
        """Return the directories that are known of each bookie."""
        async with Client(uri) as client:
            view = ClusterView(client, BookieHttp(BookieHttpAccess(None, None)))
            try:
                await view.sample()
            finally:
                await view.http.close()
            history = view.history
            return {bookie: {path for path, _, _ in history.directories(bookie)} for bookie in history.bookies}

    with child.running():
        store.start()
        try:
            address = BookieAddress("127.0.0.1", child.port, http=("127.0.0.1", child.facts["http_port"]))
            store.create(f"{root}/available/{dead}", encode(address), ephemeral=True)
            found = asyncio.run(sampled())
        finally:
            store.stop()
            store.close()
    assert found == {child.id: {str(tmp_path / "bookie" / kind) for kind in ("journal", "ledgers")}, dead: set()}
