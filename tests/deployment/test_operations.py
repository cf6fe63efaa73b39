"""docs/operations.md: its commands exist, and its procedures do on real processes what the page says."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bkspark.blocking import Client
from bkspark.cli.__main__ import build_parser
from bkspark.errors import MetadataError
from bkspark.metadata.zookeeper_options import ZooKeeperOptions
from bookie_service.settings.configuration import load
from tests.bookie.child import START_S, BookieChild
from tests.cluster import Cluster

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()


def shell_lines() -> list[str]:
    """Return the lines of all sh blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if not line.startswith("#")]


def commands() -> list[str]:
    """Return every complete command of bkspark on the page."""
    inline = re.findall(r"`((?:docker exec NAME )?(?:bkspark|entrypoint) (?:bookie|cluster) [a-z-][^`]*)`", PAGE)
    return [*shell_lines(), *(command for command in inline if not re.search(r"\b[A-Z]{2,}\b|=\.\.\.", command))]


def arguments(line: str) -> list[str] | None:
    """Return what follows `bkspark` in a command line; None: it is another program's."""
    words = shlex.split(line.replace("[", "").replace("]", ""))
    program = next((word for word in words if word in ("bkspark", "entrypoint")), None)
    return None if program is None or words[0] == "useradd" else words[words.index(program) + 1 :]


def test_every_command_of_the_page_is_understood() -> None:
    parsed = [found for line in commands() if (found := arguments(line)) is not None]
    assert len(parsed) > 20
    for each in parsed:
        build_parser().parse_args(each)


STANDS_FOR = {
    "ID": "5",
    "NAME": "clicks",
    "FILE": "file",
    "N": "5",
    "BYTES": "5",
    "TIME": "30m",
    "CODE": "last_copy",
    "SECONDS": "5",
    "OLD": "old:1",
    "NEW": "new:1",
    "KEY=VALUE": "key=value",
    "KIND": "marks",
    "COMMAND": "state",
}
"""What words in capitals may be, in commands that pages show."""


def named_commands(page: str) -> list[str]:
    """Return the commands that the text of a page names, also without their arguments."""
    groups = "bookie|bench|cluster|console|cookie|demo|dump|ledger|local|log|shell|top"
    # Tables name some without the program. Others are also verbs of Apache's shell.
    return re.findall(rf"`((?:bkspark (?:{groups})|cluster|cookie)(?: [^`,]*)?)`", page)


PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_a_page_names_exists(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {}
    for command in named_commands(page.read_text()):
        words = [STANDS_FOR.get(word, word) for word in re.sub(r"[\[\]]|\.\.\.", "", command).split()]
        try:
            build_parser().parse_args(words[words[0] == "bkspark" :])
        except SystemExit as end:
            complaint = capsys.readouterr().err
            # The text is about the command or the option, and leaves out the rest.
            is_part = "arguments are required" in complaint or "expected one argument" in complaint
            if end.code and not is_part:
                wrong[command] = complaint
    assert wrong == {}


def test_files_and_keys_that_the_page_names_exist() -> None:
    for path in set(re.findall(r"\b(?:deploy|requirements)/[\w./*-]+\w", PAGE)):
        assert list(ROOT.glob(path)), path
    (properties,) = re.findall(r"```properties\n(.*?)```", PAGE, re.DOTALL)
    pairs = [tuple(line.split("=", 1)) for line in properties.splitlines()]
    assert load(None, [(key, value) for key, value in pairs]).unused_keys == ()


# ---- procedures ----


@pytest.fixture
def bookies(tmp_path: Path, uri: str) -> list[BookieChild]:
    return [BookieChild(tmp_path / f"bookie{number}", uri) for number in range(3)]


def bkspark(*words: str) -> dict[str, Any]:
    """Run a command, which must succeed; return what it prints."""
    command = [sys.executable, "-m", "bkspark.cli", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def bookie_arguments(bookie: BookieChild) -> list[str]:
    return [word for key, value in bookie.settings.items() for word in ("--set", f"{key}={value}")]


def written(uri: str) -> int:
    """Write a ledger with two copies of each entry, on every bookie; return its id."""
    with (
        Client(uri) as client,
        client.create(ensemble=3, write_quorum=2, ack_quorum=2) as writer,
    ):
        writer.append_many([b"%d" % number for number in range(60)])
        return writer.ledger_id


def read(uri: str, ledger_id: int) -> Iterator[bytes]:
    with Client(uri) as client:
        for batch in client.open(ledger_id, recover=False).batches():
            yield from batch


ENTRIES = [b"%d" % number for number in range(60)]


@pytest.mark.cluster
def test_a_bookie_with_a_lost_disk_is_decommissioned_and_starts_empty(bookies: list[BookieChild]) -> None:
    first, second, third = bookies
    uri = first.uri
    with second.running(), third.running():
        with first.running():
            ledger_id = written(uri)
            assert bkspark("cluster", "health", "--uri", uri)["healthy"]
            # Every entry has a copy elsewhere, and the closed ledger needs no third bookie.
            bkspark("cluster", "health", "--uri", uri, "--can-stop", first.id)
        shutil.rmtree(first.directory / "ledgers")
        code, line = first.refusal()
        assert code == 1
        assert "has lost its contents" in line
        # Two bookies cannot hold a ledger of three.
        spare = BookieChild(first.directory.parent / "spare", uri)
        with spare.running():
            assert bkspark("cluster", "decommission", first.id, "--uri", uri)["decommissioned"]
            shutil.rmtree(first.directory / "journal")
            with first.running():
                assert bkspark("cluster", "check", "--uri", uri)["ok"]
                assert list(read(uri, ledger_id)) == ENTRIES


@pytest.mark.cluster
def test_lost_bookie_of_three_starts_as_a_new_one_that_takes_its_copies(bookies: list[BookieChild]) -> None:
    first, second, third = bookies
    uri = first.uri
    with second.running(), third.running():
        with first.running():
            ledger_id = written(uri)
        command = [sys.executable, "-m", "bkspark.cli", "cluster", "decommission", first.id, "--uri", uri]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
        assert done.returncode == 1
        assert "no spare writable bookie" in done.stderr
        shutil.rmtree(first.directory)
        new = BookieChild(first.directory, uri, bookieId="bookie1-new")
        new.id = "bookie1-new"
        with new.running():
            assert bkspark("cluster", "decommission", first.id, "--uri", uri)["decommissioned"]
            assert bkspark("cluster", "check", "--uri", uri)["ok"]
            assert bkspark("cluster", "health", "--uri", uri)["healthy"]
            assert list(read(uri, ledger_id)) == ENTRIES


@pytest.mark.cluster
def test_a_disk_that_can_be_read_is_copied_and_mounted_at_the_same_path(bookies: list[BookieChild]) -> None:
    first, second, third = bookies
    uri = first.uri
    with second.running(), third.running():
        with first.running():
            ledger_id = written(uri)
        old, new = first.directory / "ledgers", first.directory / "new"
        subprocess.run(["cp", "--archive", f"{old}/.", str(new)], check=True)
        shutil.rmtree(old)
        new.rename(old)
        assert bkspark("bookie", "--check", *bookie_arguments(first))["damaged"] == 0
        with first.running():
            assert bkspark("cluster", "check", "--uri", uri)["ok"]
            assert list(read(uri, ledger_id)) == ENTRIES


@pytest.mark.cluster
def test_a_bookie_with_another_address_keeps_its_old_id(bookies: list[BookieChild], tmp_path: Path) -> None:
    first, second, third = bookies
    uri = first.uri
    with second.running(), third.running():
        with first.running():
            ledger_id = written(uri)
        moved = BookieChild(first.directory, uri, bookieId=first.id)
        assert moved.port != first.port
        moved.id = first.id
        with moved.running():
            listed = {each["id"] for each in bkspark("cluster", "bookies", "--uri", uri)["bookies"]}
            assert listed == {first.id, second.id, third.id}
            assert bkspark("cluster", "check", "--uri", uri)["ok"]
            assert list(read(uri, ledger_id)) == ENTRIES


@pytest.mark.cluster
def test_bookies_are_restarted_one_by_one_while_a_client_writes(bookies: list[BookieChild]) -> None:
    """The three commands of a rolling restart, with a fourth bookie so that open ledgers may lose one."""
    uri = bookies[0].uri
    every = [*bookies, BookieChild(bookies[0].directory.parent / "bookie3", uri)]
    running = [bookie.running() for bookie in every]
    processes = [each.__enter__() for each in running]
    try:
        with Client(uri) as client, client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
            for number, bookie in enumerate(every):
                writer.append_many([b"%d" % number] * 10)
                bkspark("cluster", "health", "--uri", uri, "--can-stop", bookie.id)
                processes[number].stop(START_S)
                writer.append_many([b"%d" % number] * 10)
                running[number] = bookie.running()
                processes[number] = running[number].__enter__()
                waiting = ["cluster", "health", "--uri", uri, "--watch", "--exit-when-healthy"]
                assert bkspark(*waiting)["healthy"]
            ledger_id = writer.ledger_id
        assert len(list(read(uri, ledger_id))) == 80
    finally:
        for each in running:
            each.__exit__(None, None, None)


@pytest.mark.cluster
def test_after_a_restore_of_older_metadata_no_ledger_has_entries_of_a_lost_one(tmp_path: Path) -> None:
    """A new ledger got the id of a lost one, and its recovery found the lost ledger's entries after its own."""
    with Cluster(tmp_path / "cluster", bookies=3) as cluster:
        uri, data, backup = cluster.uri, cluster.zookeeper.directory / "data" / "version-2", tmp_path / "backup"
        kept = written(uri)
        cluster.zookeeper.stop()
        shutil.copytree(data, backup)
        cluster.zookeeper.start()
        written(uri)
        with Client(uri, zookeeper=ZooKeeperOptions(timeout_s=4)) as client:
            # So many that the sessions that begin after the restore are fewer changes.
            for _ in range(60):
                with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
                    lost = writer.ledger_id
            cluster.zookeeper.stop()
            shutil.rmtree(data)
            shutil.copytree(backup, data)
            cluster.zookeeper.start()
            with pytest.raises(MetadataError, match="of a backup, older than what this process has seen, restart this"):
                list(client.ledgers())
        for bookie in cluster.bookies:
            bookie.restart()
        assert bkspark("cluster", "skip-ids", "--above", str(lost), "--uri", uri)["new_ids_above"] >= lost
        with Client(uri) as client:
            writer = client.create(ensemble=3, write_quorum=2, ack_quorum=2)
            writer.append_many([b"new"] * 5)
            assert writer.ledger_id > lost > kept
            # As after the writer has died.
            reader = client.open(writer.ledger_id, recover=True)
            assert [bytes(entry) for batch in reader.batches() for entry in batch] == [b"new"] * 5
            writer.abandon()
        assert list(read(uri, kept)) == ENTRIES
        assert bkspark("cluster", "check", "--uri", uri)["ok"]
