"""`bkspark cluster` on a real ZooKeeper."""

from __future__ import annotations

import pytest

from tests.cli.console import Console

pytestmark = pytest.mark.cluster


def test_init_makes_a_cluster_once_and_other_commands_find_it(console: Console, cluster):
    uri = cluster.uri.replace("/ledgers", "/elsewhere/ledgers")
    output = console.fails(1, "ledger", "list", "--uri", uri)
    assert "bkspark cluster init" in output.err
    made = console.json("cluster", "init", "--uri", uri)
    assert made == {"uri": uri, "created": True, "instance_id": made["instance_id"]}
    assert console.json("cluster", "init", "--uri", uri) == {**made, "created": False}
    assert console.json("ledger", "list", "--uri", uri) == {"ledgers": []}
