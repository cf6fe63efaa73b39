"""`bkspark ledger list --long`, `locate`, `read --bookie`, `repair`, `dump` and `restore`, on real processes."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bkspark.blocking import Client
from bkspark.cli import ledger_listing
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from tests.cli.console import Console
from tests.cluster import Cluster, GuestCluster

pytestmark = pytest.mark.cluster


def repair(uri: str, ledger_id: int, code: int = 0) -> tuple[dict[str, Any], str]:
    line = [sys.executable, "-m", "bkspark.cli", "ledger", "repair", str(ledger_id), "--uri", uri, "--json"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if done.stdout else {}, done.stderr


def test_a_repair_connects_as_the_clients_configuration_says(tmp_path: Path, cluster: Cluster) -> None:
    file = tmp_path / "no-such-file"
    with Client(cluster.uri) as client, client.create() as writer:
        writer.append(b"entry")
    line = [sys.executable, "-m", "bkspark.cli", "ledger", "repair", str(writer.ledger_id), "--uri", cluster.uri]
    done = subprocess.run(
        [*line, "--client-config", str(file)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, str(file) in done.stderr) == (2, True), done.stderr


def test_ledgers_are_listed_filtered_and_sorted(
    zookeeper: ZooKeeperProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with GuestCluster(zookeeper, tmp_path, bookies=3) as cluster, Client(cluster.uri) as client:
        console = Console(cluster.uri, monkeypatch, capfd)
        sizes = {}
        for count in (5, 50, 20):
            with client.create(ensemble=2, write_quorum=2, ack_quorum=2) as writer:
                writer.append_many([b"x" * 100] * count)
            sizes[writer.ledger_id] = count * 100
        small, large, middle = sizes
        opened = client.create(ensemble=1, write_quorum=1, ack_quorum=1)
        opened.append(b"x")
        log = client.log("listed-events")
        log.create()
        with log.open_for_writing() as writing:
            writing.append(b"y")

        def listed(*options: object) -> list[int]:
            return console.json("ledger", "list", *options)["ledgers"]

        assert listed()[:3] == [small, large, middle]
        assert listed("--sort", "size", "--limit", 2) == [large, middle]
        assert listed("--open") == [opened.ledger_id]
        assert listed("--after", large, "--limit", 1) == [middle]
        assert listed("--older-than", "1d") == []
        (of_log,) = listed("--log", "listed-events")
        (holder,) = opened.metadata.fragments[0].bookies
        of_bookie = listed("--bookie", holder)
        assert opened.ledger_id in of_bookie
        for ledger_id in sizes:
            assert (ledger_id in of_bookie) == (holder in client.metadata(ledger_id).fragments[0].bookies)
        busiest = max((listed("--bookie", each.id) for each in cluster.bookies), key=len)
        assert len(busiest) > 1
        with monkeypatch.context() as patched:
            # As with many ledgers: those that match come in several parts.
            patched.setattr(ledger_listing, "LEDGERS_AT_ONCE", 1)
            names = [each.id for each in cluster.bookies if listed("--bookie", each.id) == busiest]
            assert listed("--bookie", names[0], "--limit", 1) == busiest[:1]
        long = console.json("ledger", "list", "--long", "--sort", "age")["ledgers"]
        facts = {each["ledger"]: each for each in long}
        assert {id: facts[id]["length"] for id in sizes} == sizes
        assert facts[of_log]["log"] == "listed-events"
        assert facts[opened.ledger_id]["state"] == "OPEN"
        assert facts[small]["quorums"] == [2, 2, 2]
        assert [each["age_s"] for each in long] == sorted((each["age_s"] for each in long), reverse=True)
        text = console.text("ledger", "list", "--long", "--limit", 1)
        assert text.splitlines()[0].split()[:3] == ["ledger", "state", "E/Qw/Qa"]
        assert "is not a time such as" in console.fails(2, "ledger", "list", "--older-than", "old").err
        opened.abandon()


def test_copies_are_located_read_one_by_one_and_repaired(
    zookeeper: ZooKeeperProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with GuestCluster(zookeeper, tmp_path, bookies=4) as cluster:
        console = Console(cluster.uri, monkeypatch, capfd)
        with Client(cluster.uri) as client:
            with client.create(ensemble=3, write_quorum=2, ack_quorum=2) as writer:
                writer.append_many([b"entry %d" % number for number in range(9)])
            ledger_id, ensemble = writer.ledger_id, writer.metadata.fragments[0].bookies
        found = console.json("ledger", "locate", ledger_id)
        assert found["complete"] is True
        assert [(each["bookie"], each["expected"], each["missing"]) for each in found["copies"]] == [
            (bookie, 6, 0) for bookie in ensemble
        ]
        # E = 3, Qw = 2: the bookie in slot 0 has entries e with e % 3 in (0, 2).
        lines = console.text("ledger", "read", ledger_id, "--bookie", ensemble[0]).splitlines()
        assert lines == [f"entry {number}" for number in range(9) if number % 3 != 1]
        part = console.text("ledger", "read", ledger_id, "--bookie", ensemble[0], "--from", 2, "--to", 5)
        assert part.splitlines() == ["entry 2", "entry 3", "entry 5"]
        other = next(each for each in cluster.bookies if each.id not in ensemble)
        assert "has no entry at bookie" in console.fails(2, "ledger", "read", ledger_id, "--bookie", other.id).err
        assert repair(cluster.uri, ledger_id)[0] == {"ledger": ledger_id, "missing_copies": 0, "bookies": []}
        assert "does not exist" in repair(cluster.uri, 10**6, code=1)[1]
        lost = next(each for each in cluster.bookies if each.id == ensemble[1])
        lost.stop()
        assert console.fails(1, "ledger", "locate", ledger_id).out.count(ensemble[1]) >= 1
        repaired, _ = repair(cluster.uri, ledger_id)
        assert repaired == {"ledger": ledger_id, "missing_copies": 6, "bookies": [ensemble[1]]}
        after = console.json("ledger", "locate", ledger_id)
        assert after["complete"] is True
        assert [each["bookie"] for each in after["copies"]] == [ensemble[0], other.id, ensemble[2]]


def test_open_ledger_whose_end_is_not_known_is_not_called_complete(
    zookeeper: ZooKeeperProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without any bookie, `locate` said that nothing was missing, and `read --bookie` printed nothing: both with 0."""
    with GuestCluster(zookeeper, tmp_path, bookies=2) as cluster:
        console = Console(cluster.uri, monkeypatch, capfd)
        with Client(cluster.uri) as client:
            writer = client.create(ensemble=2, write_quorum=2, ack_quorum=2)
            for number in range(3):
                writer.append(b"entry %d" % number)
            ledger_id = writer.ledger_id
            writer.abandon()
        # The last entry is not confirmed yet.
        assert [each["expected"] for each in console.json("ledger", "locate", ledger_id)["copies"]] == [2, 2]
        for each in cluster.bookies:
            each.kill()
        found = console.records_of(1, "ledger", "locate", ledger_id)
        assert found["complete"] is False
        assert {each["bookie"] for each in found["copies"]} == {each.id for each in cluster.bookies}
        assert all("cannot be reached" in each["problem"] for each in found["copies"])
        assert console.fails(1, "ledger", "read", ledger_id, "--bookie", cluster.bookies[0].id).out == ""


def test_metadata_are_dumped_and_restored(cluster: Cluster, console: Console, tmp_path: Path) -> None:
    with Client(cluster.uri, password=b"s3cret") as client:
        with client.create() as writer:
            writer.append(b"kept")
        ledger_id, file = writer.ledger_id, tmp_path / "metadata"
        before = client.metadata(ledger_id)
        console.json("ledger", "dump", ledger_id, file)
        assert stat.S_IMODE(os.stat(file).st_mode) == 0o600, "it has the password"
        assert "exists already" in console.fails(1, "ledger", "restore", ledger_id, file).err
        client.delete(ledger_id)
        console.json("ledger", "restore", ledger_id, file)
        assert client.metadata(ledger_id).fragments == before.fragments
        assert client.open(ledger_id).read(0, 0)[0] == b"kept"
        console.json("ledger", "restore", ledger_id, file, "--update")
        file.write_bytes(b"?")
        wrong = console.fails(2, "ledger", "restore", ledger_id, file, "--update").err
        assert f"FILE {str(file)!r} does not hold metadata of a ledger" in wrong
        assert "header line is missing" in wrong
        assert "cannot be read" in console.fails(2, "ledger", "restore", ledger_id, tmp_path / "none").err
        client.delete(ledger_id)


def test_dump_that_cannot_be_written_keeps_the_one_before(cluster: Cluster, tmp_path: Path) -> None:
    """A full disk left a part of the file, in place of the backup that was there."""
    with Client(cluster.uri) as client, client.create() as writer:
        writer.append(b"kept")
    file, link = tmp_path / "metadata", tmp_path / "latest"
    link.symlink_to(file)
    line = [sys.executable, "-m", "bkspark.cli", "ledger", "dump", str(writer.ledger_id), "--uri", cluster.uri]
    subprocess.run([*line, str(link)], check=True, timeout=120, capture_output=True)
    before = file.read_bytes()
    for target in (file, link):
        # The limit of a file's size is reached in the middle of the file, as the end of a disk may be.
        limited = ["prlimit", f"--fsize={len(before) // 2}", *line, str(target)]
        done = subprocess.run(limited, check=False, timeout=120, capture_output=True, text=True)
        assert (done.returncode, f"FILE {str(target)!r} cannot be written: " in done.stderr) == (2, True), done.stderr
        assert file.read_bytes() == before
    assert {each.name for each in tmp_path.iterdir()} == {"metadata", "latest"}
    piped = subprocess.run([*line, "/dev/stdout", "--json"], check=True, timeout=120, capture_output=True)
    assert piped.stdout.startswith(before), "a pipe is written as it is"


def test_metadata_dumped_of_an_open_ledger_replace_those_of_the_ledger_restored_from_them(
    cluster: Cluster, console: Console, tmp_path: Path
) -> None:
    """What was dumped has the token of the first creation. The ledger has the token of the second."""
    with Client(cluster.uri) as client:
        writer = client.create()
        ledger_id, file = writer.ledger_id, tmp_path / "metadata"
        console.json("ledger", "dump", ledger_id, file)
        before = client.metadata(ledger_id)
        assert before.ctoken
        client.delete(ledger_id)
        console.json("ledger", "restore", ledger_id, file)
        assert client.metadata(ledger_id).ctoken not in (0, before.ctoken)
        console.json("ledger", "restore", ledger_id, file, "--update")
        assert client.metadata(ledger_id).fragments == before.fragments
        assert client.metadata(ledger_id).ctoken == 0, "changed"
        client.delete(ledger_id)
        writer.abandon()


def test_entries_of_one_copy_are_printed_as_they_are_read(
    zookeeper: ZooKeeperProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """E = 2, Qw = 1: the end of the last fragment is not known without both of its bookies. What is before it is."""
    with GuestCluster(zookeeper, tmp_path, bookies=3) as cluster:
        console = Console(cluster.uri, monkeypatch, capfd)
        with Client(cluster.uri) as client:
            writer = client.create(ensemble=2, write_quorum=1, ack_quorum=1)
            kept, lost = writer.metadata.last_fragment.bookies
            for number in range(4):
                writer.append(b"entry %d" % number)
            next(each for each in cluster.bookies if each.id == lost).stop()
            for number in range(4, 6):
                writer.append(b"entry %d" % number)
            assert writer.metadata.last_fragment.first_entry == 5
            (spare,) = set(writer.metadata.last_fragment.bookies) - {kept}
            writer.abandon()
        read = ("ledger", "read", writer.ledger_id, "--bookie", kept)
        assert console.text(*read).splitlines() == ["entry 0", "entry 2", "entry 4"]
        next(each for each in cluster.bookies if each.id == spare).stop()
        ended = console.fails(1, *read)
        assert ended.out.splitlines() == ["entry 0", "entry 2", "entry 4"]
        assert spare in ended.err


def test_part_of_a_range_that_is_in_the_ledger_is_read_if_that_is_wanted(cluster: Cluster, console: Console) -> None:
    """`bkspark shell readledger` needs it: Apache's shell prints the entries that there are."""
    with Client(cluster.uri) as client, client.create() as writer:
        writer.append_many([b"0", b"1", b"2"])
    read = ("ledger", "read", writer.ledger_id)
    assert "lies after the last confirmed entry" in console.fails(2, *read, "--from", 1, "--to", 9).err
    for first, last, found in ((1, 9, "1\n2\n"), (7, 9, ""), (2, 1, ""), (0, 0, "0\n")):
        assert console.text(*read, "--from", first, "--to", last, "--if-exists") == found
