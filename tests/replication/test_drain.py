"""`bkspark cluster drain` on real processes: no copy is given up; it can be interrupted, continued and cancelled."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.blocking import Client
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.metadata.bookie_plans import BookiePlan
from bookie_service.admin.drain_command import status_line
from tests.cluster import Cluster, GuestCluster
from tests.polling import wait_until
from tests.replication.repairing import WAIT_S, check, command, command_lines, naming

pytestmark = pytest.mark.cluster


@pytest.fixture
def four(zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[Cluster]:
    with GuestCluster(zookeeper, tmp_path, bookies=4) as cluster:
        yield cluster


def written(client: Client, count: int, entries: int = 20, size: int = 1000) -> list[int]:
    """Write closed ledgers on three of four bookies, two copies of each entry."""
    ids = []
    for _ in range(count):
        with client.create(ensemble=3, write_quorum=2, ack_quorum=2) as writer:
            writer.append_many([b"x" * size] * entries)
        ids.append(writer.ledger_id)
    return ids


def test_drain_moves_everything_with_the_bookie_as_a_source(four: Cluster) -> None:
    """Finding H3: decommission gives up a copy first. With a single copy, the bookie itself is the only source."""
    uri, bookie = four.uri, four.bookies[0]
    with Client(uri) as client:
        ids = written(client, 12)
        for _ in range(8):
            with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
                writer.append(b"the only copy")
            ids.append(writer.ledger_id)
        named = naming(client, ids, bookie.id)
        assert "is not being drained" in command(uri, "drain", bookie.id, "--resume", code=2)[1]
        preview, _ = command(uri, "drain", bookie.id, "--dry-run")
        assert preview == command(uri, "drain", bookie.id, "--plan")[0]
        assert (preview["ledgers"], preview["growing"], preview["without_spare"]) == (len(named), 0, 0)
        assert preview["targets"] == sorted(each.id for each in four.bookies[1:])
        assert preview["bytes"] > 0
        facts, progress = command(uri, "drain", bookie.id, "--reason", "to retire")
        assert (facts["ledgers"], facts["drained"]) == (len(named), True)
        assert facts["copied_bytes"] >= preview["bytes"]
        assert f"{len(named)} of {len(named)} ledgers" in progress
        assert naming(client, ids, bookie.id) == []
        assert check(uri)["ok"]
        again, _ = command_lines(uri, "drain", bookie.id, "--resume")
        assert [line["done"] for line in again if "done" in line] == [True]
        assert {"ledgers_done", "ledgers", "bytes_done", "bytes", "bytes_per_s", "seconds_left"} <= again[0].keys()
        assert (again[0]["ledgers_done"], again[0]["ledgers"]) == (len(named), len(named))
        # What is refused leaves no record: nothing was done.
        assert "is serving" in command(uri, "decommission", bookie.id, code=1)[1]
        changes = [each["change"] for each in command(uri, "changes")[0]["changes"]]
        assert not any(each.startswith("decommission") for each in changes), changes
        bookie.stop()
        assert check(uri)["ok"], "nothing is missing without the bookie"
        done, _ = command(uri, "decommission", bookie.id)
        assert done["ledgers"] == 0
        assert command(uri, "plans")[0] == {"plans": []}


def test_drain_is_interrupted_continued_throttled_and_cancelled(four: Cluster) -> None:
    uri, bookie = four.uri, four.bookies[1]
    with Client(uri) as client:
        ids = written(client, 8, entries=100, size=10_000)
        named = naming(client, ids, bookie.id)
        line = [sys.executable, "-m", "bkspark.cli", "cluster", "drain", bookie.id, "--uri", uri]
        slow = subprocess.Popen([*line, "--rate", "200000"], stderr=subprocess.PIPE, text=True)
        try:

            def has_copied() -> bool:
                status = command(uri, "drain", bookie.id, "--status", code=None)[0]
                return bool(status) and status["progress"].get("copied_bytes", 0) > 0

            wait_until(has_copied, "the drain to copy", WAIT_S)
            status, _ = command(uri, "drain", bookie.id, "--status")
            assert status["bytes_per_s"] == 200_000
            assert status["progress"]["ledgers"] == len(named)
            assert status["progress"]["seconds_left"] is not None
            # It printed the rate of before.
            assert command(uri, "drain", bookie.id, "--status", "--rate", "300000")[0]["bytes_per_s"] == 300_000
            slow.send_signal(signal.SIGINT)
            assert slow.wait(30) == 1
            assert "interrupted" in (slow.stderr.read() if slow.stderr else "")
        finally:
            slow.kill()
            slow.wait()
        # The plan is still there: the bookie stays read-only, and another process can cancel the drain while one runs.
        states = {each["id"]: each["state"] for each in command(uri, "bookies")[0]["bookies"]}
        assert states[bookie.id] == "readonly"
        of_it = f"of the drain of bookie {bookie.id}"
        again = subprocess.Popen([*line, "--rate", "400000"], stderr=subprocess.PIPE, text=True)
        try:
            assert again.stderr is not None
            # It says so when it has recorded what the operator did.
            assert any("continues the drain that" in line for line in again.stderr)
            command(uri, "drain", bookie.id, "--cancel")
            assert again.wait(30) == 1
            assert "was cancelled" in again.stderr.read()
            # Neither a rate that was given when a drain is continued nor the continuation itself was recorded.
            changes = [each["change"] for each in command(uri, "changes")[0]["changes"]]
            assert changes[1:3] == [f"continue to drain bookie {bookie.id}", f"set the rate {of_it} to 400000"]
        finally:
            again.kill()
            again.wait()
        assert check(uri)["ok"]
        facts, _ = command(uri, "drain", bookie.id)
        assert facts["drained"] is True
        assert naming(client, ids, bookie.id) == []
        assert check(uri)["ok"]


def test_ledger_that_is_being_written_waits_for_its_writer(four: Cluster) -> None:
    uri = four.uri
    with Client(uri) as client:
        writer = client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        writer.append(b"before")
        bookie = writer.metadata.fragments[0].bookies[0]
        line = [sys.executable, "-m", "bkspark.cli", "cluster", "drain", bookie, "--uri", uri, "--json"]
        waiting = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        try:

            def is_waiting() -> bool:
                status = command(uri, "drain", bookie, "--status", code=None)[0]
                return bool(status) and status["progress"].get("waiting") == [writer.ledger_id]

            wait_until(is_waiting, "the drain to wait for the writer", WAIT_S)
            writer.append(b"the bookie refuses it, and the writer replaces the bookie")
            assert waiting.wait(60) == 0
        finally:
            waiting.kill()
            waiting.wait()
        writer.append(b"the writer was not fenced")
        writer.close()
        assert check(uri)["ok"]


def test_drain_closes_open_ledgers_only_if_asked_and_refuses_what_is_impossible(four: Cluster) -> None:
    uri = four.uri
    with Client(uri) as client:
        writer = client.create(ensemble=4, write_quorum=2, ack_quorum=2)
        writer.append(b"x")
        writer.abandon()
        bookie = four.bookies[0].id
        preview, _ = command(uri, "drain", bookie, "--plan", code=10)
        assert preview["without_spare"] == 1
        facts = command(
            uri, "drain", bookie, "--close-open", "--set", "openLedgerRereplicationGracePeriod=100", code=1
        )[1]
        assert "no spare writable bookie" in facts
        assert f"bookie {bookie} stays read-only" in facts
        assert client.metadata(writer.ledger_id).is_closed
        command(uri, "drain", bookie, "--cancel")
        assert "is not being drained" in command(uri, "drain", bookie, "--status", code=2)[1]
        assert "there is no bookie b:1" in command(uri, "drain", "b:1", code=2)[1]
        # Without any other writable bookie it is not made read-only: the cluster would take no writes at all.
        for other in four.bookies[1:]:
            command(uri, "maintenance", other.id, "--despite", "too_few_bookies", "--despite", "last_copy")
        assert "no other bookie" in command(uri, "drain", bookie, code=2)[1]
        states = {each["id"]: each["state"] for each in command(uri, "bookies")[0]["bookies"]}
        assert states[bookie] == "available"
        four.bookies[0].stop()
        assert "does not run" in command(uri, "drain", bookie, code=2)[1]


def test_time_left_is_unknown_when_only_blocked_ledgers_are_left(four: Cluster) -> None:
    """It was what these have, divided by a rate that fell for ever."""
    uri, bookie = four.uri, four.bookies[0].id
    with Client(uri) as client:
        named = naming(client, written(client, 8), bookie)
        with client.create(ensemble=4, write_quorum=2, ack_quorum=2) as writer:
            writer.append_many([b"x" * 100_000] * 40)
        lines, shown = command_lines(uri, "drain", bookie, code=1)
        last = [line for line in lines if line["ledgers_done"] == len(named)][-1]
        assert list(last["blocked"]) == [str(writer.ledger_id)]
        assert last["bytes"] - last["bytes_done"] > 1_000_000
        assert last["seconds_left"] is None
        assert "MiB/s, time left unknown; 1 are blocked" in shown
        status, _ = command(uri, "drain", bookie, "--status")
        assert status["progress"]["seconds_left"] is None


@pytest.mark.parametrize(
    ("at_ms", "left", "is_said"),
    [(0, 3, True), (0, 0, False), (1 << 60, 3, False), ("soon", 3, False)],
    ids=["silent", "done", "reports", "damaged"],
)
def test_status_says_when_no_process_carries_a_drain_out(at_ms: object, left: int, is_said: bool) -> None:
    """A drain that was killed had the same 22 seconds left for ever."""
    progress = {"ledgers": 5, "ledgers_left": left, "at_ms": at_ms}
    plan = BookiePlan("b:1", "drain", "amy@host", 0, progress=progress)
    assert ("--resume continues it" in status_line(plan)) == is_said


def test_status_names_the_ledgers_that_wait_and_those_that_are_blocked() -> None:
    """The page says so; the line had their numbers alone."""
    blocked = {"7": "ledger 7 entry 0 could not be read\nfrom b:1", "8": "ledger 8: no spare bookie"}
    progress = {"ledgers": 5, "ledgers_left": 4, "waiting": [3, 4], "blocked": blocked}
    lines = status_line(BookiePlan("b:1", "drain", "amy@host", 0, progress=progress)).splitlines()
    assert "MiB/s, time left unknown; 2 wait for their writers; 2 are blocked" in lines[0]
    assert lines[1:] == [
        "  wait for their writers: 3, 4",
        "  ledger 7 is not moved yet: ledger 7 entry 0 could not be read\\nfrom b:1",
        "  ledger 8 is not moved yet: no spare bookie",
    ]


@pytest.mark.parametrize(
    "facts",
    [
        {"ledgers": "many", "bytes": None, "bytes_left": -1, "bytes_per_s": 1.5, "ledgers_left": True},
        {"waiting": 7, "blocked": ["ledger 7"], "seconds_left": "soon", "at_ms": "now"},
        {"waiting": ["7", None], "blocked": {"7": 7}, "copied_bytes": []},
    ],
)
def test_status_leaves_out_what_is_not_of_its_form(facts: dict[str, object]) -> None:
    """Anyone who may write to the metadata store can write a plan; the command ended with a traceback."""
    progress = {"ledgers": 5, "ledgers_left": 2, "bytes": 4 << 20, **facts}
    line = status_line(BookiePlan("b:1", "drain", "amy@host", 0, progress=progress))
    assert line.startswith("b:1: drain by amy@host since ")
    assert "\n" not in line


def test_two_processes_that_drain_a_bookie_count_each_ledger_once(four: Cluster) -> None:
    uri, bookie = four.uri, four.bookies[0].id
    with Client(uri) as client:
        named = naming(client, written(client, 30), bookie)
    command_line = [sys.executable, "-m", "bkspark.cli", "cluster", "drain", bookie, "--uri", uri, "--json"]
    both = [subprocess.Popen(command_line, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    counts = [json.loads(each.communicate(timeout=WAIT_S)[0].splitlines()[-1])["ledgers"] for each in both]
    assert sum(counts) == len(named), counts
