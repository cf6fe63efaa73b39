"""`bkspark cluster` on a real ZooKeeper."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient

from bkspark.metadata.registration import BookieAddress, encode
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


def test_endpoints_of_a_bookie_show_whether_they_have_tls(console: Console, cluster):
    """The protocol of both is the same with TLS as without it."""
    hosts, _, path = cluster.uri.removeprefix("zk://").partition("/")
    address = BookieAddress("10.0.0.7", 3181, http=("10.0.0.7", 8080), extensions=("tls",), http_tls=True)
    store = KazooClient(hosts)
    store.start()
    try:
        store.create(f"/{path}/available/tls-bookie:3181", encode(address), ephemeral=True)
        found = console.json("cluster", "endpoints", "tls-bookie:3181", "--uri", cluster.uri)
        assert [each["extensions"] for each in found["endpoints"]] == [["tls"], ["tls"]]
        text = console.text("cluster", "endpoints", "tls-bookie:3181", "--uri", cluster.uri)
        assert text.splitlines()[1].split() == ["bookie", "bookie-rpc", "10.0.0.7", "3181", "tls"]
        found = console.json("cluster", "endpoints", cluster.bookies[0].id, "--uri", cluster.uri)
        assert [each["extensions"] for each in found["endpoints"]] == [[]]
    finally:
        store.stop()
        store.close()
