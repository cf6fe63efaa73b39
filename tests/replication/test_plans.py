"""Plans of operators, followed by real bookies and auditors: maintenance and its end, quarantine, restarts."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl

from bkspark.blocking import Client
from bkspark.cli.__main__ import main
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.metadata.uri import MetadataUri
from bkspark.version import VERSION
from tests.cli.console import Console
from tests.cluster import GuestCluster
from tests.metadata.severed import SeverableLink
from tests.metadata.stored_nodes import store
from tests.polling import wait_until
from tests.replication.repairing import autorecovery, command

pytestmark = pytest.mark.cluster


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Console:
    return Console("", monkeypatch, capfd)


def states(console: Console, uri: str) -> dict[str, str]:
    return {each["id"]: each["state"] for each in console.json("cluster", "bookies", "--uri", uri)["bookies"]}


def test_copies_of_a_bookie_in_maintenance_are_not_replaced_until_it_ends(
    zookeeper: ZooKeeperProcess, tmp_path: Path, console: Console
) -> None:
    """Operators' complaint: a planned restart starts the re-replication of everything (apache/bookkeeper 58, 574)."""
    with GuestCluster(zookeeper, tmp_path, bookies=4) as cluster, autorecovery(cluster.uri, tmp_path / "repair.log"):
        uri, bookie = cluster.uri, cluster.bookies[0]
        at = ("--uri", uri)
        with Client(uri) as client:
            ids = []
            for _ in range(4):
                with client.create(ensemble=4, write_quorum=2, ack_quorum=2) as writer:
                    writer.append_many([b"x"] * 10)
                ids.append(writer.ledger_id)
        began = console.json("cluster", "maintenance", bookie.id, "--for", "1h", "--reason", "new disk", *at)
        assert began["followed"] is True
        assert states(console, uri)[bookie.id] == "readonly"
        (plan,) = console.json("cluster", "plans", *at)["plans"]
        assert (plan["bookie"], plan["kind"], plan["reason"]) == (bookie.id, "maintenance", "new disk")
        assert plan["until_ms"] > time.time() * 1000
        log = (bookie.dir / "bookie.log").read_text()
        assert re.search(r"audit: \S+@\S+: plan maintenance by \S+ until \S+: new disk", log), log
        # Another plan, or an end of what does not exist, is refused with what there is.
        refused = console.fails(2, "cluster", "quarantine", bookie.id, *at).err
        assert f"has a plan, maintenance by {plan['who']}: end it first" in refused
        assert f"`bkspark cluster maintenance {bookie.id} --end`" in refused
        assert "the plan is maintenance" in console.fails(2, "cluster", "quarantine", bookie.id, "--end", *at).err
        assert "there is no bookie b:1" in console.fails(2, "cluster", "maintenance", "b:1", *at).err
        bookie.stop()
        # The auditor has seen that the bookie is gone when it has listed those of another one that went later.
        other = cluster.bookies[1]
        other.kill()
        with Client(uri) as client:
            wait_until(
                lambda: all(other.id not in str(client.metadata(id).fragments) for id in ids) or _listed(console, uri),
                "the other bookie's ledgers to be listed",
                120,
            )
            missing = {name for each in _listed(console, uri) for name in each["missing"]}
            assert bookie.id not in missing
            assert all(bookie.id in client.metadata(id).fragments[0].bookies for id in ids)
        other.restart()
        bookie.restart()
        assert states(console, uri)[bookie.id] == "readonly", "maintenance lasts over a restart"
        assert console.json("cluster", "maintenance", bookie.id, "--end", *at)["ended"] is True
        assert states(console, uri)[bookie.id] == "available"
        assert console.json("cluster", "plans", *at) == {"plans": []}


def test_rolling_restart_goes_on_after_an_outage_of_the_metadata_store(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """It ended with an error about a node, while a bookie was stopped, although its steps have minutes of time."""

    async def restart(cluster: GuestCluster) -> tuple[int | None, str]:
        host, port = zookeeper.connect_string.split(":")
        bookie = cluster.bookies[0]
        root = MetadataUri.parse(cluster.uri).root
        before, log, stops = bookie.pid, bookie.dir / "bookie.log", "the bookie stops: it restarts"
        async with SeverableLink(host, int(port)) as link:
            keys = tmp_path / "client.conf"
            keys.write_text("zkTimeout=4000\n")
            running = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "bkspark.cli", "cluster", "restart", bookie.id, "--despite", "too_few_bookies"),
                *("--uri", f"zk://127.0.0.1:{link.port}{root}", "--client-config", str(keys)),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            assert running.stdout is not None
            said = ""
            while line := (await running.stdout.readline()).decode():
                said += line
                if line.rstrip().endswith(": restarts"):
                    await asyncio.to_thread(wait_until, lambda: stops in log.read_text(), "the bookie to stop")
                    link.cut()
                if "waits: metadata_unavailable" in line:
                    link.restore()
            assert bookie.pid == before, "it restarts in place"
            return await running.wait(), said

    with GuestCluster(zookeeper, tmp_path / "cluster", bookies=2) as cluster:
        code, said = asyncio.run(asyncio.wait_for(restart(cluster), 240))
    assert "waits: metadata_unavailable" in said, said
    assert (code, said.splitlines()[-1]) == (0, "1 bookies were restarted"), said


def _listed(console: Console, uri: str) -> list[dict[str, object]]:
    return console.json("cluster", "underreplicated", "--uri", uri)["ledgers"]


def holder_of_an_only_copy(uri: str) -> str:
    """Write a ledger whose entries have one copy each; return the bookie that holds it."""
    with Client(uri) as client, client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
        writer.append(b"the only copy")
        (holder,) = writer.metadata.fragments[0].bookies
    return holder


def test_maintenance_ends_by_itself_and_is_refused_for_the_last_copy(
    zookeeper: ZooKeeperProcess, tmp_path: Path, console: Console
) -> None:
    with GuestCluster(zookeeper, tmp_path, bookies=2) as cluster:
        at = ("--uri", cluster.uri)
        holder = holder_of_an_only_copy(cluster.uri)
        assert "last_copy" in console.fails(10, "cluster", "maintenance", holder, *at).err
        assert states(console, cluster.uri)[holder] == "available"
        console.json("cluster", "maintenance", holder, "--despite", "last_copy", "--for", "2s", *at)
        wait_until(lambda: states(console, cluster.uri)[holder] == "available", "maintenance to end by itself")
        # The restart failed, because it took a plan whose time is over for one in force.
        assert console.json("cluster", "plans", *at) == {"plans": []}
        assert console.json("cluster", "restart", holder, "--despite", "last_copy", *at)["done"] is True


def test_maintenance_of_both_bookies_with_the_copies_of_a_ledger_is_refused(
    zookeeper: ZooKeeperProcess, tmp_path: Path, console: Console
) -> None:
    """Each of two operators was allowed to stop one, and then no copy could be read."""
    with GuestCluster(zookeeper, tmp_path, bookies=3) as cluster:
        at = ("--uri", cluster.uri)
        with Client(cluster.uri) as client, client.create(ensemble=2, write_quorum=2, ack_quorum=2) as writer:
            writer.append(b"two copies")
            first, second = writer.metadata.fragments[0].bookies
        console.json("cluster", "maintenance", first, *at)
        assert "is not in maintenance" in console.fails(10, "cluster", "maintenance", second, *at).err
        refused = console.records_of(10, "cluster", "health", "--can-stop", second, *at)["can_stop"]
        assert [each["code"] for each in refused["reasons"]] == ["last_copy"]
        console.json("cluster", "maintenance", first, "--end", *at)
        console.json("cluster", "maintenance", second, *at)


@pytest.mark.parametrize("full", [False, True], ids=["an operator", "a full disk"])
def test_end_of_a_plan_does_not_wait_for_another_reason(
    zookeeper: ZooKeeperProcess, tmp_path: Path, console: Console, full: bool
) -> None:
    """The command waited for 20 s and failed where an operator's reason looked like a plan."""
    settings = {"diskUsageThreshold": "0.0001", "diskUsageWarnThreshold": "0.0001"} if full else {}
    with GuestCluster(zookeeper, tmp_path, bookies=1, settings=settings) as cluster:
        (bookie,) = cluster.bookies
        at = ("--uri", cluster.uri)
        if not full:
            ledgers = next(path for path in bookie.dir.rglob("control")).parent.parent
            command = [sys.executable, "-m", "bkspark.cli", "bookie", "--set", f"ledgerDirectories={ledgers}"]
            subprocess.run([*command, "read-only", "drain by hand"], check=True, timeout=60, capture_output=True)
        assert console.json("cluster", "maintenance", bookie.id, *at)["followed"] is True
        assert console.json("cluster", "maintenance", bookie.id, "--end", *at)["ended"] is True
        assert states(console, cluster.uri)[bookie.id] == "readonly"


def test_bookie_in_quarantine_gets_no_new_ledger_and_keeps_its_writers(
    zookeeper: ZooKeeperProcess, tmp_path: Path, console: Console
) -> None:
    with GuestCluster(zookeeper, tmp_path, bookies=2) as cluster, Client(cluster.uri) as client:
        at = ("--uri", cluster.uri)
        writer = client.create(ensemble=1, write_quorum=1, ack_quorum=1)
        writer.append(b"before")
        (bookie,) = writer.metadata.fragments[0].bookies
        assert console.json("cluster", "quarantine", bookie, "--reason", "slow disk", *at)["followed"] is True
        with Client(cluster.uri) as later:  # the watch of the first client may come late
            for _ in range(6):
                with later.create(ensemble=1, write_quorum=1, ack_quorum=1) as other:
                    other.append(b"x")
                    assert bookie not in other.metadata.fragments[0].bookies
        assert writer.append(b"after") == 1
        assert len(writer.metadata.fragments) == 1, "its writer did not have to leave"
        writer.close()
        console.json("cluster", "quarantine", bookie, "--end", *at)
        assert states(console, cluster.uri)[bookie] == "available"


def test_bookie_restarts_in_place_by_command(zookeeper: ZooKeeperProcess, tmp_path: Path, console: Console) -> None:
    with GuestCluster(zookeeper, tmp_path, bookies=1) as cluster:
        bookie = cluster.bookies[0]
        with Client(cluster.uri) as client, client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
            writer.append(b"kept")
        log, pid = bookie.dir / "bookie.log", bookie.pid
        ledgers = next(path for path in bookie.dir.rglob("control")).parent.parent
        command = [sys.executable, "-m", "bkspark.cli", "bookie", "--set", f"ledgerDirectories={ledgers}", "restart"]
        subprocess.run(command, check=True, timeout=60)
        wait_until(lambda: log.read_text().count(" serves: ") == 2, "the bookie to serve again")
        assert (bookie.is_running, bookie.pid) == (True, pid)
        assert "audit: control:" in log.read_text()
        assert "the bookie stops: it restarts" in log.read_text()
        with Client(cluster.uri) as client:
            assert client.open(writer.ledger_id).read(0, 0)[0] == b"kept"
        assert main(["cluster", "health", "--uri", cluster.uri]) == 0


def test_rolling_restart_restarts_all_and_writers_go_on(
    zookeeper: ZooKeeperProcess, tmp_path: Path, console: Console
) -> None:
    """No ledger loses its quorum: each bookie restarts when all others serve, and no copy is replaced."""
    with GuestCluster(zookeeper, tmp_path, bookies=4) as cluster, autorecovery(cluster.uri, tmp_path / "repair.log"):
        at = ("--uri", cluster.uri)
        with Client(cluster.uri) as client:
            with client.create(ensemble=3, write_quorum=2, ack_quorum=2) as closed:
                closed.append_many([b"x"] * 10)
            ensemble = closed.metadata.fragments[0].bookies
            writer = client.create(ensemble=3, write_quorum=3, ack_quorum=2)
            stopping, written = threading.Event(), []

            def write() -> None:
                # Without a pause it takes a processor from the bookies that restart.
                while not stopping.wait(0.01):
                    written.append(writer.append(b"entry %d" % len(written)))

            thread = threading.Thread(target=write)
            thread.start()
            try:
                last = console.json("cluster", "restart", *at)
                assert last["done"] is True
                done = last["restarted"]
            finally:
                stopping.set()
                thread.join(60)
            assert [each["bookie"] for each in done] == sorted(each.id for each in cluster.bookies)
            for bookie in cluster.bookies:
                assert (bookie.dir / "bookie.log").read_text().count(" serves: ") == 2
            assert len(written) > len(cluster.bookies)
            writer.close()
            reader = client.open(writer.ledger_id)
            assert [bytes(each) for batch in reader.batches() for each in batch] == [
                b"entry %d" % number for number in range(len(written))
            ]
            assert client.metadata(closed.ledger_id).fragments[0].bookies == ensemble, "no copy was replaced"
        assert console.json("cluster", "plans", *at) == {"plans": []}
        assert _listed(console, cluster.uri) == []


def test_restart_names_a_bookie_with_a_plan_before_it_restarts_any(
    zookeeper: ZooKeeperProcess, tmp_path: Path, console: Console
) -> None:
    """It restarted the bookies before this one and then failed, and --dry-run did not mention the plan."""
    with GuestCluster(zookeeper, tmp_path, bookies=2) as cluster:
        first, planned = (bookie.id for bookie in cluster.bookies)
        at = ("--uri", cluster.uri)
        console.json("cluster", "quarantine", planned, *at)
        restart = ("cluster", "restart", first, planned, "--despite", "bookie_readonly", *at)
        for options in ((), ("--dry-run",)):
            assert f"`bkspark cluster quarantine {planned} --end`" in console.fails(2, *restart, *options).err
        assert "it restarts" not in (cluster.bookies[0].dir / "bookie.log").read_text()


def test_restart_refuses_where_the_last_copy_would_be_away(
    zookeeper: ZooKeeperProcess, tmp_path: Path, console: Console
) -> None:
    with GuestCluster(zookeeper, tmp_path, bookies=2) as cluster:
        at = ("--uri", cluster.uri)
        holder = holder_of_an_only_copy(cluster.uri)
        assert "last_copy" in console.fails(10, "cluster", "restart", holder, "--timeout", 0.1, *at).err
        # What would be done is said without doing it.
        (planned,) = console.records_of(10, "cluster", "restart", holder, "--dry-run", *at)["restart"]
        assert (planned["bookie"], planned["reasons"][0]["code"]) == (holder, "last_copy")
        assert "last_copy" in console.fails(10, "cluster", "restart", "--dry-run", *at).out
        other = next(each for each in cluster.bookies if each.id != holder)
        assert console.json("cluster", "restart", other.id, "--dry-run", *at)["restart"][0]["reasons"] == []
        assert "last_copy" in console.fails(10, "cluster", "maintenance", holder, "--dry-run", *at).err
        assert console.json("cluster", "maintenance", other.id, "--dry-run", *at)["dry_run"] is True
        assert console.json("cluster", "plans", *at) == {"plans": []}
        # By a command, as for Apache's bookies; one that fails restarts nothing.
        failing = ("--despite", "last_copy", "--command", "false {bookie}")
        assert f"false {holder} ended with 1" in console.fails(1, "cluster", "restart", holder, *failing, *at).err
        unknown = ("--despite", "last_copy", "--command", "/no/such/program")
        assert "cannot be run" in console.fails(2, "cluster", "restart", holder, *unknown, *at).err
        # It was waited for without a limit.
        stuck = ("--despite", "last_copy", "--command", "sleep 600", "--timeout", 0.5)
        assert "sleep 600 did not end within 0.5 s" in console.fails(10, "cluster", "restart", holder, *stuck, *at).err
        # It was said not to have come back.
        idle = ("--despite", "last_copy", "--command", "true", "--timeout", 0.5)
        said = console.fails(10, "cluster", "restart", holder, *idle, *at).err
        assert f"bookie {holder} is registered as before after 0.5 s: it was not restarted, or hangs" in said
        assert states(console, cluster.uri)[holder] == "available"
        other.kill()
        assert "bookie_" in console.fails(10, "cluster", "restart", holder, "--timeout", 0.1, *at).err


def test_bookies_are_listed_with_version_rack_reason_and_directories(
    zookeeper: ZooKeeperProcess, tmp_path: Path, console: Console
) -> None:
    http = {"httpServerEnabled": "true", "httpServerPort": "0", "httpServerHost": "127.0.0.1"}
    with GuestCluster(zookeeper, tmp_path, bookies=2, settings=http) as cluster:
        at = ("--uri", cluster.uri)
        first, second = (each.id for each in cluster.bookies)
        console.json("cluster", "quarantine", first, "--reason", "slow disk", *at)
        found = {each["id"]: each for each in console.json("cluster", "bookies", *at)["bookies"]}
        assert (found[first]["state"], found[second]["state"]) == ("readonly", "available")
        assert found[first]["reason"].endswith(": slow disk")
        for each in found.values():
            assert (each["version"], each["rack"], each["reachable"]) == (VERSION, "/default-rack", True)
            assert {disk["kind"] for disk in each["directories"]} == {"journal", "ledgers"}
            assert all(0 < disk["used_percent"] < 100 for disk in each["directories"])
        cluster.bookies[1].kill()
        text = console.text("cluster", "bookies", *at)
        assert re.search(rf"^{re.escape(second)} +available +no ", text, re.MULTILINE), text
        assert "slow disk" in text


def test_restart_leaves_the_maintenance_that_another_operator_begins_meanwhile(
    zookeeper: ZooKeeperProcess, tmp_path: Path, console: Console
) -> None:
    """It ended whatever plan the bookie had at the end: the bookie took entries, and another operator stopped it.

    Later it left the plan, and failed because its bookie was read-only.
    """
    with GuestCluster(zookeeper, tmp_path, bookies=1) as cluster:
        (bookie,) = cluster.bookies
        at = ("--uri", cluster.uri)
        ledgers = next(path for path in bookie.dir.rglob("control")).parent.parent
        command = tmp_path / "command"
        bkspark = f"{sys.executable} -m bkspark.cli"
        command.write_text(
            f"{bkspark} cluster maintenance {bookie.id} --reason theirs --despite last_copy --uri '{cluster.uri}'\n"
            f"{bkspark} bookie --set ledgerDirectories={ledgers} restart\n"
        )
        accepted = ("--despite", "no_writable_bookie", "--timeout", 60)
        restarted = console.json("cluster", "restart", "--command", f"sh {command}", *accepted, *at)
        assert [each["bookie"] for each in restarted["restarted"]] == [bookie.id]
        assert [plan["reason"] for plan in console.json("cluster", "plans", *at)["plans"]] == ["theirs"]
        assert states(console, cluster.uri)[bookie.id] == "readonly"


def test_a_damaged_plan_is_listed_and_ended_by_a_command(
    zookeeper: ZooKeeperProcess, tmp_path: Path, console: Console
) -> None:
    """Only HTTP could end it: the commands that end a plan read it first."""
    with GuestCluster(zookeeper, tmp_path, bookies=1) as cluster:
        at, bookie = ("--uri", cluster.uri), cluster.bookies[0].id
        assert "there is no plan" in console.fails(2, "cluster", "plans", "--end", bookie, *at).err
        asyncio.run(store(cluster.uri, {f"underreplication/plans/{bookie}": b"[]"}))
        (damaged,) = console.json("cluster", "plans", *at)["damaged"]
        remedy = f"`bkspark cluster plans --end {bookie}`"
        assert (damaged["bookie"], remedy in damaged["problem"]) == (bookie, True)
        assert re.search(rf"{bookie} +damaged .*cannot be read", console.text("cluster", "plans", *at))
        for words in (("maintenance", bookie, "--end"), ("quarantine", bookie)):
            assert remedy in console.fails(1, "cluster", *words, *at).err, words
        assert remedy in command(cluster.uri, "drain", bookie, "--cancel", code=1)[1]
        ended = console.json("cluster", "plans", "--end", bookie, *at)
        assert ended == {"bookie": bookie, "kind": None, "ended": True, "done": True}
        assert console.json("cluster", "plans", *at) == {"plans": []}
        assert f"end the plan for bookie {bookie}" in console.text("cluster", "changes", *at)
        # Also a plan that can be read, of any kind.
        console.json("cluster", "maintenance", bookie, "--despite", "too_few_bookies", *at)
        assert console.json("cluster", "plans", "--end", bookie, *at)["kind"] == "maintenance"
        assert states(console, cluster.uri)[bookie] == "available"


def test_bookie_that_starts_with_a_damaged_plan_stays_read_only_until_the_plan_is_removed(
    zookeeper: ZooKeeperProcess, tmp_path: Path, console: Console
) -> None:
    """It was in maintenance, and took new entries after its restart."""
    with GuestCluster(zookeeper, tmp_path, bookies=1) as cluster:
        at, bookie = ("--uri", cluster.uri), cluster.bookies[0]
        console.json("cluster", "maintenance", bookie.id, "--reason", "new disk", *at)
        bookie.stop()
        asyncio.run(store(cluster.uri, {f"underreplication/plans/{bookie.id}": b"{"}))
        bookie.restart()
        assert states(console, cluster.uri)[bookie.id] == "readonly"
        health = console.fails(10, "cluster", "health", *at).out
        why = f"bookie_readonly: bookie {bookie.id} is read-only: the plan for bookie {bookie.id} cannot be read"
        assert why in health
        assert f"`bkspark cluster plans --end {bookie.id}` removes it" in health
        console.json("cluster", "plans", "--end", bookie.id, *at)
        wait_until(lambda: states(console, cluster.uri)[bookie.id] == "available", "the bookie to take entries")


def test_restart_that_cannot_be_recorded_leaves_no_plan(
    zookeeper: ZooKeeperProcess, tmp_path: Path, console: Console
) -> None:
    """The bookie stayed read-only, in a maintenance that no command had any more."""
    with GuestCluster(zookeeper, tmp_path, bookies=1) as cluster:
        at, bookie = ("--uri", cluster.uri), cluster.bookies[0].id
        kazoo = KazooClient(zookeeper.connect_string)
        kazoo.start()
        try:
            root = MetadataUri.parse(cluster.uri).root
            kazoo.ensure_path(f"{root}/underreplication")
            kazoo.create(f"{root}/underreplication/changes", acl=[make_acl("world", "anyone", read=True)])
        finally:
            kazoo.stop()
            kazoo.close()
        assert (
            f"not done: restart bookie {bookie}; the audit log"
            in console.fails(1, "cluster", "restart", bookie, *at).err
        )
        assert console.json("cluster", "plans", *at) == {"plans": []}
        wait_until(lambda: states(console, cluster.uri)[bookie] == "available", "the bookie to take entries")
