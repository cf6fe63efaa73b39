"""Nodes of the metadata store that cannot be read: pages say so, show everything else, and offer the remedy."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bkspark.blocking import Client
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.metadata import paths
from tests.cli.console import Console
from tests.cluster import GuestCluster
from tests.console.process import HTTP, ConsoleProcess
from tests.metadata.stored_nodes import store

pytestmark = pytest.mark.cluster

SETTINGS = HTTP | {"autoRecoveryDaemonEnabled": "false"}
"""Autorecovery writes some of the nodes again."""


def test_a_damaged_plan_is_shown_and_removed(zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    """Only HTTP could end it: commands and pages took it for no plan, or failed."""
    with (
        GuestCluster(zookeeper, tmp_path, bookies=1, settings=HTTP) as cluster,
        ConsoleProcess("--uri", cluster.uri) as console,
    ):
        bookie = cluster.bookies[0].id
        asyncio.run(store(cluster.uri, {f"underreplication/plans/{bookie}": b"[]"}))
        visitor = console.visitor()
        page = visitor.get(f"/operations/{bookie}")
        assert f"the plan for bookie {bookie} cannot be read: it is not a JSON object" in page.words
        assert "Plan damaged" in page.words
        assert "damaged" in visitor.get("/operations").words
        assert visitor.get("/slow").status == 200
        form = {"csrf": page.csrf}
        assert visitor.post(f"/operations/{bookie}/end", form).status == 303
        assert "Plan none" in visitor.get(f"/operations/{bookie}").words
        assert visitor.post(f"/operations/{bookie}/end", form).status == 502, "there is none any more"


def test_other_damaged_nodes_hide_no_page(
    zookeeper: ZooKeeperProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        GuestCluster(zookeeper, tmp_path, bookies=1, settings=SETTINGS) as cluster,
        ConsoleProcess("--uri", cluster.uri) as console,
        Client(cluster.uri) as client,
    ):
        bookie = cluster.bookies[0].id
        with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
            writer.append(b"one")
        listing = f"underreplication/ledgers/{paths.underreplication_path(writer.ledger_id)}"
        nodes = {
            "underreplication/lostBookieRecoveryDelay": b"soon",
            "underreplication/checkallledgersctime": b"\xff",
            "underreplication/replicationRateByBytes": b"fast",
            f"cookies/{bookie}": b"?",
            "bookies": b"{",
        }
        asyncio.run(store(cluster.uri, {**nodes, listing: b"?"}))
        visitor = console.visitor()
        repair = visitor.get("/repair")
        assert "lostBookieRecoveryDelay holds b'soon', not a whole number of seconds" in repair.words
        assert "checkallledgersctime cannot be read" in repair.words
        ledger = visitor.get(f"/ledgers/{writer.ledger_id}").words
        assert "1 / 1 / 1" in ledger
        assert "cannot be read" in ledger
        page = visitor.get(f"/bookies/{bookie}").words
        assert "the cookie in metadata node" in page
        assert "Its ledgers search them" in page
        # The remedy is on the page.
        assert visitor.post("/repair/delay", {"csrf": repair.csrf, "seconds": "7"}).status == 303
        assert "lostBookieRecoveryDelay holds" not in visitor.get("/repair").words

        asyncio.run(store(cluster.uri, {f"available/{bookie}": b"\xff"}))
        command = Console(cluster.uri, monkeypatch, capfd)
        output = command.fails(0, "cluster", "bookies")
        assert bookie in output.out
        assert "the racks are not known: the rack map at" in output.err
        assert "the registration of bookie" in command.fails(1, "cluster", "endpoints", bookie).err
        output = command.fails(0, "cluster", "autorecovery", "--enable", "--json")
        assert "replicationRateByBytes holds b'fast'" in output.err
        assert command.json("cluster", "autorecovery", "--rate", "configured")["bytes_per_s"] is None
