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


def test_bookies_are_listed_with_their_state_and_disk_space(console: Console, cluster):
    cluster.bookies[0].pause()
    try:
        listed = console.json("cluster", "bookies", "--uri", cluster.uri)
    finally:
        cluster.bookies[0].resume()
    found = listed["bookies"]
    facts = {bookie["id"]: bookie for bookie in found}
    silent, *others = (facts[bookie.id] for bookie in cluster.bookies)
    assert (silent["free_bytes"], silent["total_bytes"]) == (None, None)
    for bookie in others:
        assert bookie["state"] == "available"
        assert 0 < bookie["free_bytes"] < bookie["total_bytes"]
        assert bookie["address"] == bookie["id"]
    for name in ("free_bytes", "total_bytes"):
        assert listed[name] == sum(bookie[name] for bookie in others)
    assert f"\n{len(found)} bookies, " in console.text("cluster", "bookies", "--uri", cluster.uri)
