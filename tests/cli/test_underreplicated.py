"""`bkspark cluster underreplicated`: what is left of each ledger, and that there are more than are shown."""

from __future__ import annotations

import json
import uuid

import pytest

from bkspark.blocking import run
from bkspark.cli.__main__ import main
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.metadata.repair_reports import Postponed, Repairing, RepairReport, RepairReports
from bkspark.metadata.tree import Tree
from bkspark.metadata.underreplication import UnderreplicationStore
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree
from bkspark.wall_clock import wall_clock_ms
from tests.bookie.child import new_cluster


@pytest.mark.cluster
def test_list_has_what_is_left_of_a_repair_and_says_how_many_are_not_shown(
    zookeeper: ZooKeeperProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    uri = new_cluster(zookeeper.connect_string, uuid.uuid4().hex)
    repairs = (Repairing(0, 5000, 2000, wall_clock_ms()), Repairing(1, 100, 300, wall_clock_ms()))
    report = RepairReport(
        "worker-1", wall_clock_ms(), repairs=repairs, postponements=(Postponed(2, "no spare bookie", 4, 77),)
    )

    async def prepare() -> Tree:
        parsed = MetadataUri.parse(uri)
        tree = await open_tree(parsed)
        store = UnderreplicationStore(tree, parsed)
        await store.prepare()
        for ledger_id in range(3):
            await store.mark(ledger_id, ["a:1"], wall_clock_ms())
        await RepairReports(tree, parsed).put(report)
        return tree

    tree = run(prepare)
    try:
        words = ["cluster", "underreplicated", "--uri", uri]
        assert main([*words, "--json"]) == 0
        found = json.loads(capfd.readouterr().out)["ledgers"]
        assert main([*words, "--limit", "2"]) == 0
        assert capfd.readouterr().err == "1 more: --limit N\n"
        assert main([*words, "--limit", "3"]) == 0
        assert capfd.readouterr().err == ""
    finally:
        run(tree.close)
    assert [(each["worker"], each["bytes_left"], each["copied_bytes"]) for each in found] == [
        ("worker-1", 3000, 2000),
        ("worker-1", 0, 300),
        (None, None, None),
    ], "the second estimate was too small"
    last = found[2]
    assert (last["tried_by"], last["last_error"], last["failures"]) == ("worker-1", "no spare bookie", 4)
    assert last["why"] == "a:1 is no longer a bookie of the cluster"
