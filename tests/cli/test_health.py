"""`bkspark cluster health` on a cluster of its own: healthy, with a dead bookie, and healthy again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bkspark.blocking import Client
from bkspark.cli.__main__ import main
from tests.cluster import Cluster

pytestmark = pytest.mark.cluster


def test_health_names_what_is_wrong_and_says_whether_a_bookie_may_be_stopped(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Cluster(tmp_path, bookies=3) as cluster:

        def health(*options: str, code: int) -> dict[str, Any]:
            assert main(["cluster", "health", "--uri", cluster.uri, "--json", *options]) == code
            return json.loads(capfd.readouterr().out.splitlines()[-1])

        answer = health(code=0)
        assert answer["healthy"] is True
        assert answer["reasons"] == []
        assert answer["underreplicated"] == 0
        assert {each["id"] for each in answer["bookies"]} == {each.id for each in cluster.bookies}
        assert all(each["reachable"] and each["free_bytes"] > 0 for each in answer["bookies"])
        with Client(cluster.uri) as client:
            with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
                writer.append(b"the only copy")
            holder = client.metadata(writer.ledger_id).fragments[0].bookies[0]
        refused = health("--can-stop", holder, code=10)
        assert refused["healthy"] is True
        assert refused["can_stop"]["safe"] is False
        assert [each["code"] for each in refused["can_stop"]["reasons"]] == ["last_copy"]
        other = next(each for each in cluster.bookies if each.id != holder)
        assert health("--can-stop", other.id, code=0)["can_stop"] == {
            "bookie": other.id,
            "safe": True,
            "ledgers": 0,
            "reasons": [],
        }
        assert health("--can-stop", "127.0.0.1:1", code=10)["can_stop"]["reasons"][0]["code"] == "unknown_bookie"
        # At once, not when its session has ended (finding M1: a dead bookie was "available").
        other.kill()
        degraded = health(code=10)
        assert (degraded["healthy"], degraded["reasons"][0]["subject"]) == (False, other.id)
        assert degraded["reasons"][0]["code"] in ("bookie_unreachable", "bookie_down")
        assert main(["cluster", "health", "--uri", cluster.uri]) == 10
        text = capfd.readouterr().out
        assert text.startswith("degraded: 2 of 3 bookies serve")
        assert other.id in text
        other.restart()
        assert health("--watch", "--exit-when-healthy", code=0)["healthy"] is True
