"""Commands take the ledger password from a file: arguments are shown to every user of the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkspark.blocking import Client
from tests.cli.console import Console, assert_one_line

pytestmark = pytest.mark.cluster


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text("s3cret\n")
    return path


def test_a_ledger_is_written_and_read_with_the_password_of_a_file(
    console: Console, cluster, tmp_path: Path, password_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = tmp_path / "lines"
    lines.write_text("one\n")
    ledger = console.json("ledger", "write", lines, "--password-file", password_file)["ledger"]
    with Client(cluster.uri, password=b"s3cret") as client:
        assert list(next(iter(client.open(ledger).batches()))) == [b"one"]
    assert console.text("ledger", "read", ledger, "--password-file", password_file) == "one\n"
    monkeypatch.setenv("BKSPARK_PASSWORD_FILE", str(password_file))
    assert console.text("ledger", "read", ledger) == "one\n"
    assert_one_line(console.fails(1, "ledger", "read", ledger, "--password", "another"), "password")


def test_two_passwords_and_a_file_that_cannot_be_read_are_one_line_each(
    console: Console, tmp_path: Path, password_file: Path
) -> None:
    both = console.fails(2, "ledger", "read", 1, "--password", "x", "--password-file", password_file)
    assert_one_line(both, "exclude each other")
    missing = console.fails(2, "ledger", "read", 1, "--password-file", tmp_path / "missing")
    assert_one_line(missing, "No such file")
