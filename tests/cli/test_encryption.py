"""Commands write and read encrypted ledgers with a key file; without one they show entries as encrypted."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from bkspark.wire.encrypted_entries import TAG_BYTES
from tests.cli.console import Console, assert_one_line

pytestmark = pytest.mark.cluster
CLEAR = "one in clear\ntwo in clear\n"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"2026-11 {base64.b64encode(b'k' * 32).decode()}\n")
    return path


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines"
    path.write_text(CLEAR)
    return path


def test_a_ledger_is_written_and_read_with_keys_and_shown_without(
    console: Console, keys: Path, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = console.json("ledger", "write", lines, "--encryption-key-file", keys)["ledger"]
    assert console.text("ledger", "read", ledger, "--encryption-key-file", keys) == CLEAR
    shown = f"(encrypted with key '2026-11', {len('one in clear') + TAG_BYTES} bytes)\n"
    assert console.text("ledger", "read", ledger) == shown * 2
    assert console.text("shell", "readledger", "-l", ledger, "-m") == shown * 2
    records = console.records("ledger", "read", ledger)
    assert [(record["entry"], record["encryptedWith"]) for record in records] == [(0, "2026-11"), (1, "2026-11")]
    bookie = console.json("ledger", "show", ledger)["fragments"][0]["bookies"][0]
    assert console.text("ledger", "read", ledger, "--bookie", bookie) == shown * 2
    assert console.text("ledger", "read", ledger, "--bookie", bookie, "--encryption-key-file", keys) == CLEAR
    monkeypatch.setenv("BKSPARK_ENCRYPTION_KEY_FILE", str(keys))
    assert console.text("ledger", "read", ledger) == CLEAR


def test_a_log_is_written_and_read_with_keys_and_shown_without(console: Console, keys: Path, lines: Path) -> None:
    console.json("log", "append", "encrypted-log", lines, "--encryption-key-file", keys)
    assert console.text("log", "read", "encrypted-log", "--encryption-key-file", keys) == CLEAR
    assert console.text("log", "read", "encrypted-log").count("(encrypted with key '2026-11', ") == 2
    assert {record["encryptedWith"] for record in console.records("log", "read", "encrypted-log")} == {"2026-11"}


def test_entries_for_another_program_are_an_error_without_the_key(console: Console, keys: Path, lines: Path) -> None:
    """A format without a place for "this is encrypted" would give a program ciphertext for data."""
    console.json("log", "append", "piped-log", lines, "--encryption-key-file", keys)
    (ledger,) = console.json("log", "show", "piped-log")["ledgers"]
    for command in (("log", "read", "piped-log"), ("ledger", "read", ledger["ledger"])):
        as_frames = (*command, "--format", "length-prefixed")
        assert "two in clear" in console.text(*as_frames, "--encryption-key-file", keys)
        assert_one_line(console.fails(1, *as_frames), "'2026-11'", "--encryption-key-file", "--format json")


def test_a_wrong_key_is_one_line_that_names_option_and_key(
    console: Console, keys: Path, lines: Path, tmp_path: Path
) -> None:
    ledger = console.json("ledger", "write", lines, "--encryption-key-file", keys)["ledger"]
    other = tmp_path / "other"
    other.write_text(f"2026-12 {base64.b64encode(b'o' * 32).decode()}\n")
    failed = console.fails(1, "ledger", "read", ledger, "--encryption-key-file", other)
    assert_one_line(failed, "'2026-11'", f"--encryption-key-file {other}")
    other.write_text("no keys here\n")
    assert_one_line(console.fails(2, "ledger", "read", ledger, "--encryption-key-file", other), "line 1")
