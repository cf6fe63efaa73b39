"""Every command that changes the metadata store alone leaves a record of who, when and what."""

from __future__ import annotations

import getpass
import re
import socket
import time
from pathlib import Path

import pytest

from bkspark.blocking import Client
from bkspark.cli import changes, plans
from bookie_service.admin import live_commands
from tests.cli.console import Console, assert_one_line
from tests.cluster import Cluster

pytestmark = pytest.mark.cluster


def recorded(console: Console) -> list[str]:
    """Return the changes of all records, the latest last."""
    return [each["change"] for each in reversed(console.json("cluster", "changes", "--limit", 1000)["changes"])]


def test_commands_that_change_the_store_leave_who_when_and_what(
    console: Console, cluster: Cluster, tmp_path: Path
) -> None:
    began_ms = time.time_ns() // 1_000_000
    before = len(recorded(console))
    with Client(cluster.uri) as client:
        with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
            writer.append_many([b"a"])
        with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as restored:
            restored.append_many([b"b"])
    ledger, other, bookie = writer.ledger_id, restored.ledger_id, cluster.bookies[0].id
    kept = tmp_path / "metadata"
    console.text("ledger", "dump", other, kept)
    console.text("ledger", "restore", other, kept, "--update")
    console.text("ledger", "recover", other)
    console.text("ledger", "delete", ledger)
    console.text("log", "create", "audited")
    console.text("log", "truncate", "audited", "--before", "30d")
    console.text("log", "vacuum", "audited")
    console.text("log", "delete", "audited")
    console.text("cluster", "autorecovery", "--disable")
    console.text("cluster", "autorecovery", "--enable")
    console.text("cluster", "delay", 7)
    console.text("cluster", "delay", 0)
    console.text("cluster", "audit")
    console.text("cluster", "quarantine", bookie, "--reason", "a look")
    console.text("cluster", "quarantine", bookie, "--end")
    console.text("cluster", "rename", "gone:1", "gone:2", "--if-exists")
    cookie = tmp_path / "cookie"
    directories = ("--journal-dirs", "/j", "--ledger-dirs", "/l")
    console.text("cookie", "generate", "gone:1", *directories, cookie)
    console.text("cookie", "create", "gone:1", cookie)
    console.text("cookie", "update", "gone:1", cookie)
    console.text("cookie", "delete", "gone:1")
    # The age is a time by now.
    made = [re.sub(r"before \d{4}-\S+ \S+,", "before a time,", each) for each in recorded(console)[before:]]
    assert made == [
        f"replace the metadata of ledger {other} from {kept}",
        f"close ledger {other} at entry 0",
        f"delete ledger {ledger}",
        "create log audited",
        "truncate log audited before a time, 0 ledgers deleted",
        "vacuum log audited, 0 ledgers deleted",
        "delete log audited",
        "disable autorecovery",
        "enable autorecovery",
        "set lostBookieRecoveryDelay=7",
        "set lostBookieRecoveryDelay=0",
        "trigger an audit",
        f"quarantine of bookie {bookie} (a look)",
        f"end the quarantine of bookie {bookie}",
        "rename bookie gone:1 to gone:2 in 0 ledgers",
        "create the cookie of bookie gone:1",
        "replace the cookie of bookie gone:1",
        "delete the cookie of bookie gone:1",
    ]
    latest = console.json("cluster", "changes", "--limit", 1)["changes"][0]
    assert latest["who"] == f"command:{getpass.getuser()}@{socket.gethostname()}"
    assert began_ms <= latest["at_ms"] <= time.time_ns() // 1_000_000
    shown = console.text("cluster", "changes", "--limit", 1)
    assert "delete the cookie of bookie gone:1" in shown


def test_request_for_an_audit_sets_no_delay_where_no_auditor_has_set_one(console: Console, cluster: Cluster) -> None:
    """It wrote 0: lostBookieRecoveryDelay of the first auditor's configuration had no effect then."""
    at = ("--uri", cluster.uri.replace("/ledgers", "/unaudited/ledgers"))
    console.text("cluster", "init", *at)
    console.text("cluster", "audit", *at)
    assert console.json("cluster", "delay", *at)["lost_bookie_delay_s"] is None


def test_reading_leaves_no_record(console: Console, cluster: Cluster) -> None:
    before = recorded(console)
    for command in (("cluster", "bookies"), ("cluster", "delay"), ("log", "list")):
        console.text(*command)
    console.fails(1, "ledger", "delete", 1 << 40)
    assert recorded(console) == before


def test_a_bookie_that_serves_keeps_its_id(console: Console, cluster: Cluster) -> None:
    """As in Apache's shell: the source of a rename must not be active. Its ledgers would have no copies."""
    bookie = cluster.bookies[0].id
    with Client(cluster.uri) as client, client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
        writer.append_many([b"a"])
        before = len(recorded(console))
        assert_one_line(console.fails(2, "cluster", "rename", bookie, "127.0.0.1:1"), bookie, "stop it")
        assert_one_line(console.fails(2, "cluster", "rename", "gone:1", "gone:1"), "gone:1", "two different ids")
        assert bookie in client.metadata(writer.ledger_id).fragments[0].bookies
    assert len(recorded(console)) == before


def test_times_that_commands_print_are_those_of_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of changes was in UTC, and plans, drains and bookies in local time: no line says which."""
    try:
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        found = {changes._when(1000), plans._when(1000), live_commands.shown("started_ms", 1000)}
        assert found == {"1970-01-01 09:00:01"}
    finally:
        monkeypatch.undo()
        time.tzset()
