"""Samples of the bookies' metrics, which the console takes at intervals; in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from bkspark.cli.bookie_http import BookieHttpAccess
from bkspark.client import Client
from bkspark.failure_log import MINUTE_S
from bkspark_console.bookie_http import BookieHttp
from bkspark_console.cluster_view import ClusterView
from bkspark_console.history import SAMPLE_S
from bkspark_console.server import sample_often
from tests.ledger.in_process import URI
from tests.replication.paused_workers import AwayTree, play
from tests.replication.worker_parts import Bench


def test_an_outage_of_the_metadata_store_has_a_line_at_once_and_then_one_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each sample had a line: three a minute while ZooKeeper was away."""

    async def test(bench: Bench) -> None:
        tree = bench.cluster.tree
        assert isinstance(tree, AwayTree)
        view = ClusterView(Client(URI, tree=tree), BookieHttp(BookieHttpAccess(None, None)))
        sampling = asyncio.ensure_future(sample_often(view, SAMPLE_S))
        await asyncio.sleep(SAMPLE_S)
        tree.is_away = True
        await asyncio.sleep(3 * MINUTE_S)
        tree.is_away = False
        await asyncio.sleep(2 * SAMPLE_S)
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)
        await view.http.close()

    caplog.set_level("INFO", "bkspark_console.server")
    play(test, AwayTree)
    lines = [record.getMessage() for record in caplog.records if record.name == "bkspark_console.server"]
    assert 3 <= sum("cannot be read now" in line for line in lines) <= 4, lines
    assert lines[-1].endswith("can be read again")
