"""Command lines of the server's programs: what is wrong is named, and no value that may be a password is shown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = (
    ("bookie_service",),
    ("bookie_service", "state"),
    ("bookie_service.replication",),
    ("bookie_service.replication", "autorecovery"),
    ("bookie_service.admin.dump", "journal"),
)


@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join)
def test_an_unknown_option_is_named_without_its_value(program: tuple[str, ...]) -> None:
    refuses(program, "--passwd=s3cret", "--passwd")


@pytest.mark.parametrize(("words", "named"), [("--passwd s3cret", "--passwd"), ("-ps3cret", "-p")])
def test_an_unknown_option_is_named_without_the_word_after_it(words: str, named: str) -> None:
    refuses(("bookie_service",), words, named)


def refuses(program: tuple[str, ...], words: str, named: str) -> None:
    line = [sys.executable, "-m", *program, *words.split()]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"unknown argument {named!r}" in done.stderr
    assert "s3cret" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_negative_number_is_not_taken_for_an_option() -> None:
    line = [sys.executable, "-m", "bookie_service", "limbo", "-1", "--set", "ledgerDirectories=/nowhere"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert "limbo takes the id of the ledger to list after" in done.stderr


@pytest.mark.parametrize(("interface", "code", "why"), [("lo", 2, "allowLoopback=true"), ("absent0", 1, "no such")])
def test_an_address_that_is_never_right_is_a_wrong_configuration(
    tmp_path: Path, interface: str, code: int, why: str
) -> None:
    """systemd starts a bookie again except after exit code 2. An interface may come up later."""
    settings = {
        "metadataServiceUri": "zk://127.0.0.1:1/ledgers",
        "ledgerDirectories": tmp_path / "ledgers",
        "journalDirectories": tmp_path / "journal",
        "listeningInterface": interface,
    }
    line = [sys.executable, "-m", "bookie_service"]
    for key, value in settings.items():
        line += ["--set", f"{key}={value}"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert why in done.stderr.splitlines()[-1]
    assert done.returncode == code
    assert list(tmp_path.iterdir()) == [], "nothing was made"
