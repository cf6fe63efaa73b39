"""Commands whose output cannot be written: its reader has left (`| head -1`), or the disk is full."""

from __future__ import annotations

import os
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
    "cluster health --json",
    "cluster check",
    "cluster drain BOOKIE --plan",
    "bookie CONFIGURATION state",
    "bookie CONFIGURATION state --json",
    "bookie CONFIGURATION set compactionRate=1000",
    "bookie CONFIGURATION --collect",
    "dump marks CONFIGURATION",
    "dump journal JOURNAL",
    "shell -conf FILE lastmark",
    "shell -conf FILE listfilesondisc",
    "shell -conf FILE listbookies -a",
    "shell help",
)
"""One command for each way to print: of a client, of a program that replaces the command, and of the shell."""


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
        "BOOKIE": bookie.id,
        "FILE": str(file),
        "CONFIGURATION": f"--config {file}",
        "JOURNAL": str(bookie.dir / "journal"),
    }


def command_line(command: str, words: dict[str, str]) -> list[str]:
    for name, text in words.items():
        command = command.replace(name, text)
    return [sys.executable, "-m", "bkspark.cli", *command.split()]


@pytest.mark.parametrize("command", COMMANDS)
def test_reader_that_has_left_is_exit_code_1_without_a_word(cluster: Cluster, words: dict[str, str], command) -> None:
    """`bkspark bookie state | head -1` ended with a traceback."""
    reader, output = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            command_line(command, words),
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "BKSPARK_URI": cluster.uri},
            check=False,
        )
    finally:
        os.close(output)
    assert done.returncode in (1, 255), done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a file that is always full is Linux's")
@pytest.mark.parametrize("command", COMMANDS)
def test_full_disk_is_one_line_and_exit_code_1(cluster: Cluster, words: dict[str, str], command) -> None:
    with open("/dev/full", "w") as output:
        done = subprocess.run(
            command_line(command, words),
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "BKSPARK_URI": cluster.uri},
            check=False,
        )
    assert done.returncode in (1, 255), done.stderr
    assert "No space left on device" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
