"""The web console on a bookie of Apache's: it shows what that bookie tells, and changes nothing at it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("jinja2")

from bkspark.blocking import Client
from bkspark.cli.ports import free_ports
from tests.console.process import ConsoleProcess
from tests.interop.apache import ApacheCluster
from tests.interop.peer import Peer
from tests.polling import wait_until


def test_the_console_reads_from_apaches_bookie_and_never_changes_it(classpath: str, peer: Peer, tmp_path: Path) -> None:
    (http_port,) = free_ports(1)
    settings = {
        "httpServerEnabled": "true",
        "httpServerPort": str(http_port),
        "httpServerClass": "org.apache.bookkeeper.http.vertx.VertxHttpServer",
        "statsProviderClass": "org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider",
        # As long as the console waits between two samples: none of them meets an empty window.
        "prometheusStatsLatencyRolloverSeconds": "10",
    }
    with ApacheCluster(classpath, tmp_path, peer, apache=1, settings=settings) as apache:
        bookie = apache.bookies[0].id
        with Client(apache.uri) as client, client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
            writer.append_many([b"entry %d" % number for number in range(50)])
        with ConsoleProcess("--uri", apache.uri) as console:
            visitor = console.visitor()
            wait_until(lambda: "this console only reads" in visitor.get(f"/bookies/{bookie}").words, "its HTTP server")
            page = visitor.get(f"/bookies/{bookie}")
            assert "State available" in page.words
            assert "Make it read-only" not in page.text
            checked = visitor.post(f"/ledgers/{writer.ledger_id}/copies", {"csrf": page.csrf, "depth": "read"})
            assert "Every bookie has the copies that it must have" in checked.words
            assert "entry 49" in visitor.get(f"/ledgers/{writer.ledger_id}/entries").words
            steps = visitor.get(f"/operations/{bookie}").words
            assert "the console can change nothing here" in steps
            for path, form in (
                (f"/bookies/{bookie}/read-only", {"read_only": "yes"}),
                (f"/bookies/{bookie}/collect", {"level": "major"}),
                ("/repair/switch", {"enabled": "no"}),
                (f"/operations/{bookie}/maintenance", {"kind": "maintenance"}),
            ):
                refused = visitor.post(path, {"csrf": page.csrf, **form})
                assert refused.status == 502, path
            assert "Healthy" in visitor.get("/").words
            with Client(apache.uri) as client, client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
                writer.append_many([b"more"] * 100)
            wait_until(lambda: _add_p99(visitor.get("/bookies").text) > 0, "the latency of adds", 60)


def _add_p99(text: str) -> float:
    cell = text.partition('data-label="Add p99 ms" class="n">')[2].partition("<")[0]
    return 0.0 if cell in ("", "–") else float(cell.replace(",", ""))
