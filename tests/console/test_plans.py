"""Maintenance, restart and drain of a bookie, step by step, as a user of the console does them."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import pytest

from bkspark.blocking import Client
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.client import Client as AsyncClient
from bkspark.metadata.bookie_plans import DRAIN, BookiePlans
from tests.cluster import GuestCluster
from tests.console.process import HTTP, ConsoleProcess, Page
from tests.polling import wait_until

pytestmark = pytest.mark.cluster


def test_a_bookie_is_maintained_restarted_and_drained_by_the_steps(zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    with (
        GuestCluster(zookeeper, tmp_path, bookies=4, settings=HTTP) as cluster,
        ConsoleProcess("--uri", cluster.uri) as console,
        Client(cluster.uri) as client,
    ):
        with client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
            writer.append_many([b"x" * 1000] * 300)
        bookie = client.metadata(writer.ledger_id).fragments[0].bookies[0]
        visitor = console.visitor()
        csrf = visitor.get(f"/operations/{bookie}").csrf

        def step(name: str, **form: str) -> Page:
            return visitor.post(f"/operations/{bookie}/{name}", {"csrf": csrf, **form})

        def says(words: str) -> bool:
            return words in visitor.get(f"/operations/{bookie}").words

        def up_since() -> str:
            text = visitor.get(f"/operations/{bookie}").text
            return text.partition("Up since</dt><dd><small>")[2].partition("<")[0]

        assert "It may be stopped" in step("check").words
        assert step("maintenance", kind="maintenance", minutes="5", reason="new memory").status == 303
        wait_until(lambda: says("Plan maintenance") and says("new memory") and says("State readonly"), "the plan")
        assert step("maintenance", kind="quarantine").status == 502, "it has a plan already"
        before = up_since()
        assert step("restart").status == 303
        wait_until(lambda: up_since() not in ("–", before) and says("State readonly"), "the bookie to be up again")
        assert bookie in client.metadata(writer.ledger_id).fragments[0].bookies, "its copies are not replaced"
        assert step("end").status == 303
        wait_until(lambda: says("Plan none") and says("State available"), "the end of the maintenance")

        for wrong in ({"minutes": "-1"}, {"minutes": "x"}, {"kind": "drain"}, {"reason": "a\nb"}):
            assert step("maintenance", **wrong).status == 400, wrong
        assert step("drain", mib_per_s="fast").status == 400
        preview = step("preview").words
        assert "It would copy 1 fragments of 1 ledgers" in preview, preview[preview.find("Drain") :][:600]
        assert step("drain", reason="old host").status == 303
        ended = re.compile(rf"drain {bookie}( at \S+)? done")
        wait_until(lambda: ended.search(visitor.get(f"/operations/{bookie}").words), "the drain to end")
        holders = client.metadata(writer.ledger_id).fragments[0].bookies
        assert bookie not in holders
        assert len(client.open(writer.ledger_id).read(0, 299)) == 300
        audit = visitor.get("/audit?change=drain").words
        assert f"drain bookie {bookie}" in audit
        assert "(for console:127.0.0.1)" in audit
        assert says("seconds left 0")
        # Any program may write the node: a page shows what it can.
        asyncio.run(_store_progress(cluster.uri, bookie, {"bytes": "many", "bytes_left": [], "ledgers": 10**300}))
        wait_until(lambda: says("bytes many"), "the progress of a strange process")
        asyncio.run(_store_progress(cluster.uri, bookie, {"bytes": 5, "bytes_left": 7}))
        wait_until(lambda: says("bytes left 7"), "the progress of a strange process")
        asyncio.run(_store_progress(cluster.uri, bookie, {"ledgers_left": 1, "seconds_left": None}))
        wait_until(lambda: says("seconds left unknown"), "the progress of another process")


async def _store_progress(uri: str, bookie: str, progress: dict[str, object]) -> None:
    """Store the progress of a drain, as the process does that carries it out."""
    async with AsyncClient(uri) as client:
        plans = BookiePlans(await client.tree(), client.uri)
        assert await plans.update(bookie, DRAIN, lambda plan: replace(plan, progress=progress)) is not None
