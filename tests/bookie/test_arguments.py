"""Command lines of the server's programs: what is wrong is named, and no value that may be a password is shown."""

from __future__ import annotations

import subprocess
import sys

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
