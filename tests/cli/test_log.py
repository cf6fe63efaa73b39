"""`bkspark log` on a real cluster: entries go in and come out in order, and every failure is one line."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
import time
import uuid
from datetime import UTC, datetime

import pytest

from bkspark.blocking import Client, run
from bkspark.log.formats import log_path
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree
from tests.cli.console import Console, assert_one_line
from tests.polling import wait_until

pytestmark = pytest.mark.cluster


@pytest.fixture
def name() -> str:
    return f"log-{uuid.uuid4().hex}"


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(b"one\n\nthree\n")
    return path


def test_appended_lines_are_read_in_order_across_ledgers(console: Console, name, lines):
    first = console.json("log", "append", name, lines)
    assert (first["log"], first["entries"], first["bytes"]) == (name, 3, 8)
    assert first["last_position"]["entry"] == 2
    second = console.json("log", "append", name, lines, "--ensemble", 2, "--digest", "mac")
    assert second["last_position"]["ordinal"] == first["last_position"]["ordinal"] + 1
    assert console.text("log", "read", name) == "one\n\nthree\n" * 2
    assert name in console.text("log", "list").split()
    assert name in console.json("log", "list")["logs"]


def test_show_lists_every_ledger_with_its_end(console: Console, name, lines):
    ledgers = [console.json("log", "append", name, lines)["last_position"]["ledger"] for _ in range(2)]
    shown = console.json("log", "show", name)
    assert list(shown) == ["log", "ledgers", "published", "retention", "schemas", "version"]
    assert shown["ledgers"] == [
        {"ledger": ledger, "first_entry": 0, "last_entry": 2, "state": "CLOSED", "length": 8} for ledger in ledgers
    ]
    assert str(ledgers[1]) in console.text("log", "show", name)


def test_show_names_who_published_and_up_to_which_version(console: Console, cluster, name, lines):
    console.json("log", "append", name, lines)
    assert "version of each name" not in console.text("log", "show", name)
    with Client(cluster.uri) as client:
        log = client.log(name).asynchronous
        run(lambda: log.publish([], publisher=("a query's id", 41)))
        run(lambda: log.publish([], publisher=("import of café", 7, "5b1c-query")))
    shown = console.json("log", "show", name)["published"]
    assert shown == [
        {"name": "a query's id", "version": 41, "query": None},
        {"name": "import of café", "version": 7, "query": "5b1c-query"},
    ]
    lines_shown = console.text("log", "show", name).splitlines()
    assert lines_shown[-1].split() == ["import", "of", "café", "7", "5b1c-query"]


def test_positions_that_read_prints_are_where_it_can_start_and_end(console: Console, name, lines):
    console.json("log", "append", name, lines)
    console.json("log", "append", name, lines)
    records = console.records("log", "read", name)
    assert [base64.b64decode(record["value"]) for record in records] == [b"one", b"", b"three"] * 2
    assert [record["entry"] for record in records] == [0, 1, 2] * 2
    fourth, last = json.dumps(records[3]["position"]), json.dumps(records[5]["position"])
    assert console.text("log", "read", name, "--from", fourth) == "one\n\nthree\n"
    assert console.text("log", "read", name, "--from", fourth, "--to", last) == "one\n\n"
    assert console.text("log", "read", name, "--from", "latest") == ""


def test_truncate_deletes_earlier_entries(console: Console, name, lines):
    for _ in range(3):
        console.json("log", "append", name, lines)
    records = console.records("log", "read", name)
    assert console.json("log", "truncate", name, "--before", json.dumps(records[7]["position"])) == {
        "log": name,
        "deleted": 2,
    }
    assert console.text("log", "read", name) == "\nthree\n"
    assert console.json("log", "show", name)["ledgers"][0]["first_entry"] == 1
    assert_one_line(console.fails(1, "ledger", "show", records[0]["ledger"]), str(records[0]["ledger"]))


def test_truncate_takes_a_time_and_deletes_the_ledgers_closed_before_it(console: Console, name, lines):
    for _ in range(2):
        console.json("log", "append", name, lines)
    for earlier in ("1h", "2000-01-01", "2000-01-01T00:00:00Z"):
        assert console.json("log", "truncate", name, "--before", earlier)["deleted"] == 0
    assert console.json("log", "truncate", name, "--before", "2999-01-01T00:00:00+01:00")["deleted"] == 2
    assert console.text("log", "read", name) == ""


def test_created_log_is_empty_and_deleted_log_takes_its_ledgers_along(console: Console, name, lines):
    assert console.json("log", "create", name) == {"log": name}
    assert console.json("log", "show", name)["ledgers"] == []
    assert console.text("log", "read", name) == ""
    ledger = console.json("log", "append", name, lines)["last_position"]["ledger"]
    assert console.json("log", "vacuum", name)["deleted"] == 0
    assert console.json("log", "delete", name) == {"log": name}
    assert name not in console.json("log", "list")["logs"]
    assert ledger not in console.json("ledger", "list")["ledgers"]


def test_log_whose_writer_is_gone_is_read_whole_after_recovery(console: Console, name, cluster):
    with Client(cluster.uri) as client:
        writer = client.log(name).open_for_writing()
        writer.append_many([b"one", b"two"])
        writer.abandon()
    assert console.text("log", "read", name) == ""
    assert console.text("log", "read", name, "--recover") == "one\ntwo\n"


def test_follow_prints_what_is_appended_meanwhile(console: Console, name, lines, cluster):
    console.json("log", "append", name, lines)
    command = [sys.executable, "-m", "bkspark.cli", "log", "read", name, "--follow", "--uri", cluster.uri]
    follower = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert follower.stdout is not None
    try:
        assert [follower.stdout.readline() for _ in range(3)] == ["one\n", "\n", "three\n"]
        console.json("log", "append", name, lines)
        assert [follower.stdout.readline() for _ in range(3)] == ["one\n", "\n", "three\n"]
    finally:
        follower.kill()
        follower.wait()
        follower.stdout.close()


# ---- failures ----


@pytest.mark.parametrize(
    "command", [["read"], ["show"], ["delete"], ["vacuum"], ["truncate", "--before", "latest"], ["read", "--follow"]]
)
def test_absent_log_is_one_line_that_names_it(console: Console, command):
    output = console.fails(1, "log", command[0], "no-such-log", *command[1:])
    assert_one_line(output, "no-such-log")


@pytest.mark.parametrize("command", [["list"], ["create", "x"], ["show", "x"], ["delete", "x"]])
def test_no_cluster_at_the_uri_is_said_rather_than_that_it_has_no_logs(console: Console, cluster, command):
    """A negative answer is given only when it is certain: a mistyped root has no logs to list, and takes none."""
    uri = cluster.uri.replace("/ledgers", "/mistyped")
    assert_one_line(console.fails(1, "log", *command, "--uri", uri), "there is no cluster at /mistyped")


def test_log_that_exists_is_not_created_again(console: Console, name):
    console.json("log", "create", name)
    assert_one_line(console.fails(1, "log", "create", name), name, "exists")


@pytest.mark.parametrize("bad", ["a/b", "..", ""])
def test_unusable_name_is_one_line(console: Console, bad, lines):
    assert_one_line(console.fails(2, "log", "append", bad, lines), repr(bad))


@pytest.mark.parametrize("position", ["tomorrow", "5", '{"entry":0}'])
def test_unusable_position_is_one_line_that_shows_it(console: Console, name, lines, position):
    console.json("log", "append", name, lines)
    assert_one_line(console.fails(2, "log", "read", name, "--from", position), position)
    assert_one_line(console.fails(2, "log", "truncate", name, "--before", position), position)


@pytest.mark.parametrize("before", ["tomorrow", "-1h", "5"])
def test_what_truncate_takes_is_said(console: Console, name, before):
    output = console.fails(2, "log", "truncate", name, f"--before={before}")
    assert_one_line(output, repr(before), "position", "a time such as", "an age such as 7d")


def test_too_few_bookies_make_no_log(console: Console, name, lines):
    assert_one_line(console.fails(1, "log", "append", name, lines, "--ensemble", 7), "7", "there are 3")
    assert name not in console.json("log", "list")["logs"]


def test_input_wrong_from_the_start_makes_no_log(console: Console, name, tmp_path):
    source = tmp_path / "cut"
    source.write_bytes(b"\0\0\0\5cut")
    output = console.fails(2, "log", "append", name, source, "--format", "length-prefixed")
    assert_one_line(output, "into entry 0")
    assert name not in console.json("log", "list")["logs"]


def test_follow_has_no_end_to_name(console: Console, name):
    output = console.fails(2, "log", "read", name, "--follow", "--to", "earliest")
    assert_one_line(output, "--to earliest", "--follow")


def test_retention_is_set_shown_and_lifted(console: Console, name, lines):
    console.json("log", "append", name, lines)
    assert console.json("log", "retention", name)["retention"] == {"age_ms": None, "bytes": None}
    assert "keeps everything" in console.text("log", "retention", name)
    set_ = console.json("log", "retention", name, "--age", "7d", "--bytes", "1g")
    assert set_ == {"log": name, "retention": {"age_ms": 604_800_000, "bytes": 1 << 30}}
    assert console.json("log", "retention", name, "--bytes", "none")["retention"]["bytes"] is None
    assert "entries of the last 7d" in console.text("log", "retention", name)
    assert "entries of the last 7d" in console.text("log", "show", name)
    assert console.json("log", "show", name)["retention"] == {"age_ms": 604_800_000, "bytes": None}


def test_a_reader_that_cannot_be_read_is_shown_and_removed(console: Console, cluster, name, lines):
    console.json("log", "append", name, lines)

    async def damage(client: Client) -> None:
        await (await client.asynchronous.tree()).set(f"{log_path(name)}/consumers/odd", b"damaged", 0)

    with Client(cluster.uri) as client:
        for reader in ("etl", "odd"):
            client.log(name).register_consumer(reader)
        run(lambda: damage(client))
    output = console.fails(1, "log", "consumers", name)
    assert "etl" in output.out
    assert "consumers/odd is not a registered reader" in output.err
    shown = {each["name"]: each for each in console.records_of(1, "log", "consumers", name)["consumers"]}
    assert (shown["etl"]["error"], shown["odd"]["position"]) == (None, None)
    assert [each["name"] for each in console.json("log", "consumers", name, "--remove", "odd")["consumers"]] == ["etl"]


@pytest.mark.parametrize(
    "arguments", [("--age", "x"), ("--age", "0d"), ("--bytes", "0"), ("--bytes", "ten"), ("--bytes", "5x")]
)
def test_wrong_limits_are_usage_errors(console: Console, name, arguments):
    assert_one_line(console.fails(2, "log", "retention", name, *arguments), *arguments[:1])


def test_expire_removes_ledgers_but_none_that_a_registered_reader_needs(console: Console, cluster, name, lines):
    for _ in range(4):
        console.json("log", "append", name, lines)
    console.json("log", "retention", name, "--bytes", 1)
    with Client(cluster.uri) as client:
        ends = [batch.end for batch in client.log(name).read()]
        client.log(name).register_consumer("etl", ends[1])
    assert console.json("log", "expire", name) == {"logs": [{"log": name, "deleted": 2}]}
    (shown,) = console.json("log", "consumers", name)["consumers"]
    assert (shown["name"], shown["entries_behind"], shown["bytes_behind"]) == ("etl", 6, 16)
    assert shown["position"] == ends[1].to_json()
    assert "etl" in console.text("log", "consumers", name)
    assert console.json("log", "consumers", name, "--remove", "etl")["consumers"] == []
    assert_one_line(console.fails(2, "log", "consumers", name, "--remove", "etl"), "--remove etl")
    everything = console.json("log", "expire")["logs"]
    assert {"log": name, "deleted": 1} in everything
    assert len(console.json("log", "show", name)["ledgers"]) == 1


def test_a_log_that_cannot_be_read_does_not_keep_others_from_expiry(console: Console, cluster, name, lines):
    damaged, later = f"{name}-a", f"{name}-b"
    for log in (damaged, later):
        console.json("log", "append", log, lines)
        console.json("log", "append", log, lines)
        console.json("log", "retention", log, "--bytes", 1)

    async def exchange(data: bytes) -> bytes:
        tree = await open_tree(MetadataUri.parse(cluster.uri))
        try:
            before, stat = await tree.get(log_path(damaged))
            await tree.set(log_path(damaged), data, stat.version)
            return before
        finally:
            await tree.close()

    head = asyncio.run(exchange(b"of a newer version"))
    try:
        output = console.fails(1, "log", "expire", "--json")
    finally:
        asyncio.run(exchange(head))
    assert {"log": later, "deleted": 1} in json.loads(output.out)["logs"]
    assert output.err.startswith(f"log {damaged} was not expired: metadata node")
    assert output.err.count("\n") == 1


def test_truncate_takes_the_time_of_an_append(console: Console, name, lines):
    console.json("log", "append", name, lines)
    moment = _after_now()
    console.json("log", "append", name, lines)
    assert console.json("log", "truncate", name, "--before", moment) == {"log": name, "deleted": 1}
    assert console.text("log", "read", name) == "one\n\nthree\n"


def _after_now() -> str:
    begin = time.time()
    wait_until(lambda: time.time() > begin + 0.002, "the clock to go on")
    return datetime.fromtimestamp(begin + 0.001, UTC).isoformat()
