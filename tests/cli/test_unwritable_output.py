"""Commands whose output cannot be written: its reader has left (`| head -1`), or the disk is full."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bkspark.blocking import Client
from tests.cluster import Cluster

pytestmark = pytest.mark.cluster

COMMANDS = (
    "ledger list --long",
    "ledger read LEDGER --format json",
    "cluster bookies",
    "bookie CONFIGURATION state",
    "bookie CONFIGURATION state --json",
    "bookie CONFIGURATION --collect",
    "dump marks CONFIGURATION",
    "dump journal JOURNAL",
    "shell -conf FILE lastmark",
    "shell -conf FILE listfilesondisc",
    "shell -conf FILE listbookies -a",
    "shell help",
)
"""One command for each way to print: of a client, of a program that replaces the command, and of the shell. None whose
exit code judges the cluster, because tests that share it have ledgers and bookies of their own there."""


@pytest.fixture(scope="module")
def words(shared_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the words in capitals mean."""
    bookie = shared_cluster.bookies[0]
    file = tmp_path_factory.mktemp("configuration") / "bk_server.conf"
    keys = {"journalDirectories": bookie.dir / "journal", "ledgerDirectories": bookie.dir / "ledgers"}
    file.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    with Client(shared_cluster.uri) as client, client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
        writer.append(b"one")
    return {
        "LEDGER": str(writer.ledger_id),
        "FILE": str(file),
        "CONFIGURATION": f"--config {file}",
        "JOURNAL": str(bookie.dir / "journal"),
    }


def command_line(command: str, words: dict[str, str]) -> list[str]:
    for name, text in words.items():
        command = command.replace(name, text)
    return [sys.executable, "-m", "bkspark.cli", *command.split()]


def run(command: str, words: dict[str, str], uri: str, output: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command_line(command, words),
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        # Python takes an empty PYTHONUNBUFFERED for one that is not set. The rest of the output is written at the end.
        env={**os.environ, "PYTHONUNBUFFERED": "", "BKSPARK_URI": uri},
        check=False,
    )


def failed(command: str) -> int:
    """Return the exit code of a command whose output cannot be written: Apache's shell has one of its own for a command
    that it runs as another process."""
    return 255 if command == "shell -conf FILE lastmark" else 1


@pytest.mark.parametrize("command", COMMANDS)
def test_reader_that_has_left_ends_a_command_silently_that_works_otherwise(
    cluster: Cluster, words: dict[str, str], command: str
) -> None:
    """`bkspark bookie state | head -1` ended with a traceback."""
    done = run(command, words, cluster.uri, subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
    reader, output = os.pipe()
    os.close(reader)
    try:
        done = run(command, words, cluster.uri, output)
    finally:
        os.close(output)
    assert (done.returncode, done.stderr) == (failed(command), "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a file that is always full is Linux's")
@pytest.mark.parametrize("command", COMMANDS)
def test_full_disk_is_one_line(cluster: Cluster, words: dict[str, str], command: str) -> None:
    with open("/dev/full", "w") as output:
        done = run(command, words, cluster.uri, output.fileno())
    assert done.returncode == failed(command)
    assert re.fullmatch(r"(bkspark|bkspark cluster|bkspark dump|bookie): .*No space left on device\n", done.stderr)
