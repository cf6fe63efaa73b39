"""`bkspark ledger` on a real cluster: what goes in comes out, and every failure is one line that leaves nothing."""

from __future__ import annotations

import base64
import os
import random
import re
import subprocess
import sys
import threading

import pytest

from bkspark.blocking import Client
from tests.cli.console import Console, assert_one_line
from tests.polling import wait_until

pytestmark = pytest.mark.cluster


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(b"one\n\nthree\nlast")
    return path


def test_written_lines_are_read_back(console: Console, lines):
    written = console.json("ledger", "write", lines, "--metadata", "purpose=test")
    assert written == {
        "ledger": written["ledger"],
        "entries": 4,
        "bytes": 12,
        "last_entry": 3,
        "closed": True,
    }
    ledger = written["ledger"]
    assert console.text("ledger", "read", ledger) == "one\n\nthree\nlast\n"
    assert console.text("ledger", "read", ledger, "--from", 2) == "three\nlast\n"
    records = console.records("ledger", "read", ledger, "--from", 1, "--to", 2)
    assert [(r["entry"], base64.b64decode(r["value"])) for r in records] == [(1, b""), (2, b"three")]


def test_length_prefixed_entries_of_all_sizes_survive(console: Console, tmp_path, cluster):
    generator = random.Random(3)
    entries = [
        b"",
        b"\n",
        generator.randbytes(1 << 20),
        *(generator.randbytes(generator.randrange(2000)) for _ in range(999)),
    ]
    source = tmp_path / "entries"
    source.write_bytes(b"".join(len(entry).to_bytes(4, "big") + entry for entry in entries))
    written = console.json("ledger", "write", "--format", "length-prefixed", source)
    assert (written["entries"], written["bytes"]) == (len(entries), sum(map(len, entries)))
    command = [sys.executable, "-m", "bkspark.cli", "ledger", "read", str(written["ledger"]), "--uri", cluster.uri]
    read = subprocess.run([*command, "--format", "length-prefixed"], capture_output=True, check=True)
    assert read.stdout == source.read_bytes()


def test_show_lists_what_the_metadata_store_knows(console: Console, lines, cluster):
    ledger = console.json(
        "ledger", "write", lines, "--ensemble", 2, "--write-quorum", 2, "--digest", "mac", "--metadata", "a=b"
    )["ledger"]
    shown = console.json("ledger", "show", ledger)
    (fragment,) = shown.pop("fragments")
    assert (fragment["first_entry"], fragment["last_entry"]) == (0, 3)
    assert set(fragment["bookies"]) < {bookie.id for bookie in cluster.bookies}
    assert shown.pop("ctime") > 1_600_000_000_000
    assert shown.pop("version") >= 1
    assert shown == {
        "ledger": ledger,
        "state": "CLOSED",
        "ensemble_size": 2,
        "write_quorum": 2,
        "ack_quorum": 2,
        "type": "pd_journal",
        "digest": "mac",
        "last_entry": 3,
        "length": 12,
        "custom_metadata": {"a": "b"},
    }
    text = console.text("ledger", "show", ledger)
    assert "CLOSED" in text
    assert fragment["bookies"][1] in text
    assert re.search(r"^ctime +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$", text, re.MULTILINE)


def test_created_ledger_is_open_until_it_is_recovered_then_deleted(console: Console):
    ledger = console.json("ledger", "create", "--id", random.randrange(10**6, 10**9))["ledger"]
    assert console.json("ledger", "show", ledger)["state"] == "OPEN"
    assert ledger in console.json("ledger", "list")["ledgers"]
    assert console.text("ledger", "read", ledger) == ""
    assert console.json("ledger", "recover", ledger) == {"ledger": ledger, "last_entry": -1, "length": 0}
    assert console.json("ledger", "show", ledger)["state"] == "CLOSED"
    assert console.json("ledger", "delete", ledger) == {"ledger": ledger, "deleted": True}
    assert str(ledger) not in console.text("ledger", "list").split()


def test_ledger_left_open_gives_all_entries_after_recovery_only(console: Console, lines):
    ledger = console.json("ledger", "write", "--no-close", lines)["ledger"]
    assert console.json("ledger", "show", ledger)["state"] == "OPEN"
    assert console.text("ledger", "read", ledger, "--unconfirmed") == "one\n\nthree\nlast\n"
    assert console.json("ledger", "show", ledger)["state"] == "OPEN"
    assert console.text("ledger", "read", ledger, "--recover") == "one\n\nthree\nlast\n"
    assert console.json("ledger", "recover", ledger) == {"ledger": ledger, "last_entry": 3, "length": 12}


def test_follow_prints_entries_as_they_are_confirmed_and_ends_with_the_ledger(console: Console, cluster):
    with Client(cluster.uri) as client, client.create() as writer:
        command = [sys.executable, "-m", "bkspark.cli", "ledger", "read", str(writer.ledger_id), "--follow"]
        follower = subprocess.Popen([*command, "--uri", cluster.uri], stdout=subprocess.PIPE, text=True)
        assert follower.stdout is not None
        try:
            writer.append(b"first")
            writer.append(b"second")  # carries the confirmation of the first
            assert follower.stdout.readline() == "first\n"
            writer.append_many([b"third", b"fourth"])
            writer.close()
            assert follower.communicate(timeout=180)[0] == "second\nthird\nfourth\n"
            assert follower.returncode == 0
        finally:
            follower.kill()
            follower.wait()


def test_entries_of_a_pipe_are_written_as_they_come_and_confirmed_in_a_while(console: Console, cluster):
    """Without an interval readers would see the first entry with the second one."""
    ledger = random.randrange(10**6, 10**9)
    command = [sys.executable, "-m", "bkspark.cli", "ledger", "write", "--id", str(ledger), "--uri", cluster.uri]
    command += ["--explicit-lac-interval", "0.05"]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert writer.stdin is not None
    try:
        writer.stdin.write("early\n")
        writer.stdin.flush()
        with Client(cluster.uri) as client:
            wait_until(lambda: ledger in client.ledgers(), "the ledger to be created")
            wait_until(lambda: client.open(ledger).last_unconfirmed == 0, "the first entry to be stored")
            wait_until(lambda: client.open(ledger).last_entry == 0, "the first entry to be confirmed")
        assert writer.communicate("late\n", timeout=180)[0].startswith(f"ledger {ledger}: 2 entries")
    finally:
        writer.kill()
        writer.wait()


def test_reader_that_leaves_early_ends_the_command_quietly(console: Console, cluster, tmp_path):
    source = tmp_path / "many"
    source.write_bytes(b"a line of some length\n" * 100_000)
    ledger = console.json("ledger", "write", source)["ledger"]
    read_end, write_end = os.pipe()
    command = [sys.executable, "-m", "bkspark.cli", "ledger", "read", str(ledger), "--uri", cluster.uri]
    reader = subprocess.Popen(command, stdout=write_end, stderr=subprocess.PIPE)
    os.close(write_end)
    assert os.read(read_end, 10) == b"a line of "
    os.close(read_end)
    assert reader.communicate(timeout=180)[1] == b""
    assert reader.returncode == 1


@pytest.mark.parametrize("ledger_type", ["vd_journal", "vd_bypass_journal"])
def test_ledger_with_relaxed_durability_is_shown_as_such_and_synced_when_the_command_ends(
    console: Console, lines, ledger_type
):
    for options in ((), ("--no-close",)):
        written = console.json("ledger", "write", lines, "--type", ledger_type, *options)
        assert written["last_entry"] == 3
        assert console.json("ledger", "show", written["ledger"])["type"] == ledger_type
        assert console.text("ledger", "read", written["ledger"], "--recover") == "one\n\nthree\nlast\n"


def test_striped_ledger_with_relaxed_durability_must_be_asked_for(console: Console):
    command = ("ledger", "create", "--type", "vd_journal", "--write-quorum", 2)
    assert_one_line(console.fails(2, *command), "ensemble 3", "--striped")
    assert_one_line(console.fails(2, "ledger", "create", "--striped"), "PD_JOURNAL", "no relaxed durability")
    ledger = console.json(*command, "--striped", "--changes-ensemble")["ledger"]
    assert console.json("ledger", "show", ledger)["type"] == "vd_journal"


# ---- failures ----


def test_wrong_password_is_one_line_for_every_way_to_open(console: Console, lines):
    ledger = console.json("ledger", "write", "--no-close", "--password", "right", lines)["ledger"]
    for command in (["read", ledger], ["read", ledger, "--recover"], ["recover", ledger]):
        assert_one_line(console.fails(1, "ledger", *command, "--password", "wrong"), "password", str(ledger))
    assert console.json("ledger", "show", ledger)["state"] == "OPEN"
    assert console.text("ledger", "read", ledger, "--recover", "--password", "right") == "one\n\nthree\nlast\n"


@pytest.mark.parametrize("command", ["read", "show", "recover", "delete"])
def test_absent_ledger_is_one_line_that_names_it(console: Console, command):
    assert_one_line(console.fails(1, "ledger", command, 987654321987), "987654321987", "not exist")


def test_too_few_bookies_create_nothing(console: Console, lines):
    before = console.json("ledger", "list")
    for command in (["create"], ["write", lines]):
        output = console.fails(1, "ledger", *command, "--ensemble", 9)
        assert_one_line(output, "9", "there are 3", "start more bookies")
    assert console.json("ledger", "list") == before


def test_taken_ledger_id_is_one_line_and_the_ledger_stays(console: Console, lines):
    ledger = console.json("ledger", "write", lines)["ledger"]
    assert_one_line(console.fails(1, "ledger", "create", "--id", ledger), str(ledger), "exists")
    assert console.text("ledger", "read", ledger) == "one\n\nthree\nlast\n"


def test_range_beyond_the_end_is_refused_not_cut(console: Console, lines):
    ledger = console.json("ledger", "write", lines)["ledger"]
    assert_one_line(console.fails(2, "ledger", "read", ledger, "--to", 4), "--to 4", "3")
    assert_one_line(console.fails(2, "ledger", "read", ledger, "--from", 4), "--from 4", "3")


def test_input_cut_inside_an_entry_leaves_no_ledger(console: Console, tmp_path):
    source = tmp_path / "cut"
    source.write_bytes(b"\0\0\0\5whole\0\0\0\5cut")
    before = console.json("ledger", "list")
    output = console.fails(2, "ledger", "write", "--format", "length-prefixed", source)
    assert "7 bytes into entry 1" in output.err.splitlines()[-1]
    assert console.json("ledger", "list") == before


def test_writing_goes_on_when_a_bookie_is_killed_half_way(console: Console, cluster):
    ledger = random.randrange(10**6, 10**9)
    command = [sys.executable, "-m", "bkspark.cli", "ledger", "write", "--json", "--id", str(ledger)]
    writer = subprocess.Popen(
        [*command, "--uri", cluster.uri], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert writer.stdin is not None
    half = b"".join(b"line %d\n" % number for number in range(20_000))
    try:
        writer.stdin.write(half)
        writer.stdin.flush()
        with Client(cluster.uri) as client:
            wait_until(lambda: ledger in client.ledgers(), "the ledger to be created")
            wait_until(lambda: client.open(ledger).last_entry > 0, "entries to be confirmed")
        feeder = threading.Thread(target=lambda: (writer.stdin.write(half), writer.stdin.close()))
        feeder.start()
        cluster.bookies[1].kill()
        feeder.join(60)
        assert writer.wait(60) == 0
    finally:
        writer.kill()
        writer.wait()
    assert console.text("ledger", "read", ledger).encode() == half * 2
