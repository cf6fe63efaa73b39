"""The console while parts of the cluster are away: it says so, and goes on when they are back."""

from __future__ import annotations

from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bkspark.blocking import Client
from bkspark.ids import parse_host_port
from bkspark.metadata.registration import BookieAddress, decode, encode
from tests.cluster import Cluster
from tests.console.process import HTTP, ConsoleProcess
from tests.polling import wait_until

pytestmark = pytest.mark.cluster


def test_dead_bookies_and_a_dead_metadata_store_are_shown_as_such(tmp_path: Path) -> None:
    log = tmp_path / "console.log"
    with (
        Cluster(tmp_path / "cluster", bookies=2, settings=HTTP) as cluster,
        ConsoleProcess("--uri", cluster.uri, log=log) as console,
    ):
        visitor, dead = console.visitor(), cluster.bookies[0]
        with Client(cluster.uri) as client, client.create(ensemble=2, write_quorum=2, ack_quorum=2) as writer:
            writer.append_many([b"one", b"two"])
        assert "Healthy" in visitor.get("/").words
        dead.kill()
        wait_until(lambda: "Degraded" in visitor.get("/").words, "the overview to say so")
        for path in ("/bookies", f"/bookies/{dead.id}", "/repair", "/slow", "/operations", f"/operations/{dead.id}"):
            assert visitor.get(path).status == 200, path
        page = visitor.get(f"/ledgers/{writer.ledger_id}")
        assert 'class="cell available"' in page.text
        assert any(f'class="cell {state}"' in page.text for state in ("unreachable", "down"))
        checked = visitor.post(f"/ledgers/{writer.ledger_id}/copies", {"csrf": page.csrf, "depth": "lists"})
        assert "Not every copy was found" in checked.words
        assert f"{dead.id} 0 to 1 unknown" in checked.words
        refused = visitor.post(f"/bookies/{dead.id}/read-only", {"csrf": page.csrf, "read_only": "yes"})
        assert refused.status == 502
        dead.restart()
        wait_until(lambda: "Healthy" in visitor.get("/").words, "the bookie to serve again")
        assert visitor.get(f"/bookies/{dead.id}").status == 200

        cluster.zookeeper.stop()
        answered = visitor.get("/ledgers")
        assert answered.status == 503, answered.words
        assert "503:" in answered.words
        assert visitor.get("/healthz").status == 200
        cluster.zookeeper.start()
        wait_until(lambda: visitor.get("/").status == 200, "the console to be connected again")
    text = log.read_text()
    assert "Traceback" not in text
    assert len(text.splitlines()) < 60


def test_a_change_for_one_bookie_never_reaches_another(tmp_path: Path) -> None:
    """Without access control each bookie registers 127.0.0.1: on another host, that is the bookie of that host."""
    there, forwarded = "192.0.2.7:3181", "127.0.0.1:9"
    with (
        Cluster(tmp_path / "cluster", bookies=1, settings=HTTP) as cluster,
        ConsoleProcess("--uri", cluster.uri) as console,
    ):
        here, store = cluster.bookies[0], KazooClient(cluster.zookeeper.connect_string)
        store.start()
        try:
            registered = decode(store.get(f"/ledgers/available/{here.id}")[0], here.id)
            for bookie in (there, forwarded):
                other = encode(BookieAddress(*parse_host_port(bookie), http=registered.http))
                store.create(f"/ledgers/available/{bookie}", other, ephemeral=True)
            visitor = console.visitor()
            for bookie, why in (
                (there, "it has no HTTP server that this host can ask"),
                (forwarded, f"is the HTTP server of bookie {here.id}"),
            ):
                page = wait_until(lambda: visitor.get(f"/bookies/{bookie}"), "the page")  # noqa: B023
                assert why in page.words
                refused = visitor.post(f"/bookies/{bookie}/read-only", {"csrf": page.csrf, "read_only": "yes"})
                assert refused.status == 502
                assert why in refused.words
            assert here.id not in store.get_children("/ledgers/available/readonly")
        finally:
            store.stop()
            store.close()


def test_audit_names_the_bookies_whose_changes_it_cannot_show(tmp_path: Path) -> None:
    """One that refused the console was left out silently: a list of changes that is not whole must say so."""
    access = tmp_path / "access"
    access.write_text("token read reader a-token-that-the-console-lacks\n")
    access.chmod(0o600)
    settings = {**HTTP, "httpServerAccessFile": str(access)}
    with (
        Cluster(tmp_path / "cluster", bookies=1, settings=settings) as cluster,
        ConsoleProcess("--uri", cluster.uri) as console,
    ):
        words = console.visitor().get("/audit").words
        why = f"bookie {cluster.bookies[0].id}: this needs the role read"
        assert f"Changes of these bookies are not shown: {why}" in words
