"""deploy/prometheus and deploy/grafana: promtool accepts the rules, and a bookie has every metric that they name."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml

from tests.bookie.child import BookieChild
from tests.bookie.http_process import HTTP

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "bookies.json"
PROMTOOL = shutil.which("promtool")
FROM_PROMETHEUS = {"up", "ALERTS"}
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool on the PATH: Debian's prometheus has it")


def rules() -> list[dict[str, object]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def expressions() -> list[str]:
    """Return the expressions of all alerts and of all panels."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [str(rule["expr"]) for rule in rules()] + [
        target["expr"] for panel in panels for target in panel.get("targets", [])
    ]


def metrics(expression: str) -> set[str]:
    """Return the names of metrics in an expression: words that are not a function, label or duration."""
    bare = re.sub(r'\{[^}]*\}|\[[^\]]*\]|"[^"]*"|\b(by|without)\s*\([^)]*\)', " ", expression)
    words = re.findall(r"[A-Za-z_:][A-Za-z0-9_:]*(?!\s*\()\b", bare)
    return {word for word in words if "_" in word or word in FROM_PROMETHEUS}


@needs_promtool
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "alerts.yaml"),
        ("check", "config", "--syntax-only", "prometheus.yaml"),
        ("test", "rules", "alerts_test.yaml"),
    ],
)
def test_promtool_accepts(arguments: tuple[str, ...]) -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], cwd=ALERTS.parent, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_in_a_test_and_says_what_to_do() -> None:
    tried = (DEPLOY / "prometheus" / "alerts_test.yaml").read_text()
    page = (DEPLOY.parent / "docs" / "operations.md").read_text()
    for rule in rules():
        assert f'alertname="{rule["alert"]}"' in tried
        assert f"`{rule['alert']}`" in page, f"docs/operations.md does not name {rule['alert']}"
        assert {"summary", "description"} <= dict(rule["annotations"]).keys()  # type: ignore[call-overload]


def test_the_names_in_an_expression_are_found() -> None:
    expression = 'sum by (le, instance) (rate(a_bucket{job=~"x_y"}[5m])) / count(b_c) > 0 or vector(0)'
    assert metrics(expression) == {"a_bucket", "b_c"}


@pytest.mark.cluster
def test_a_bookie_exposes_every_metric_that_alerts_and_panels_name(tmp_path: Path, uri: str) -> None:
    bookie = BookieChild(tmp_path / "bookie", uri, **HTTP, autoRecoveryDaemonEnabled="true")
    with bookie.running(), bookie.connect() as peer:
        peer.add(5, 0, [b"x"])
        peer.read(5, 0)
        with urlopen(f"http://127.0.0.1:{bookie.facts['http_port']}/metrics", timeout=30) as reply:
            text = reply.read().decode()
    exposed = set(re.findall(r"^([A-Za-z_:][A-Za-z0-9_:]*)", text, re.MULTILINE))
    named = set().union(*map(metrics, expressions())) - FROM_PROMETHEUS
    assert len(named) > 20
    assert named <= exposed


def test_panels_of_the_dashboard_do_not_overlap_and_each_says_what_it_shows() -> None:
    board = json.loads(DASHBOARD.read_text())
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    covered: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & covered
        covered |= cells
        assert panel["type"] == "row" or panel["description"]
