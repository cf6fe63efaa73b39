"""Verbs of the shell that change a bookie's files, when a configured directory holds those of another bookie."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from bkspark.cli.__main__ import main
from bkspark.metadata import cookies
from bkspark.metadata.cookies import Cookie

PARTS = ("journal", "ledgers")
ID, OTHER_ID = "127.0.0.1:3181", "127.0.0.9:3181"


def configured(directory: Path, owners: tuple[str, str], *keys: str) -> Path:
    """Write the cookies of a stopped bookie, one of whose disks is another host's; return its configuration file.

    `owners`: the bookies that the directories of the journal and of the ledgers belong to.
    """
    for part, owner in zip(PARTS, owners):
        current = directory / part / "current"
        current.mkdir(parents=True)
        cookie = Cookie(owner, (str(directory / "journal"),), (str(directory / "ledgers"),))
        (current / "VERSION").write_bytes(cookies.encode(cookie))
    file = directory / "bk_server.conf"
    places = (f"journalDirectories={directory / 'journal'}", f"ledgerDirectories={directory / 'ledgers'}")
    file.write_text("\n".join((*places, *keys)))
    return file


def owners_of(directory: Path) -> list[str]:
    """Return the bookie that each directory belongs to."""
    paths = [directory / part / "current" / "VERSION" for part in PARTS]
    return [cookies.decode(path.read_bytes(), str(path)).bookie_id for path in paths]


def test_data_of_another_bookie_are_not_deleted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = configured(tmp_path, (ID, OTHER_ID))
    assert main(["shell", "-conf", str(file), "bookieformat", "-f"]) == 1
    assert f"belongs to bookie {OTHER_ID}" in capsys.readouterr().err
    assert owners_of(tmp_path) == [ID, OTHER_ID]
    # A cookie that cannot be read names no bookie, and an earlier run may have deleted one.
    (tmp_path / "ledgers" / "current" / "VERSION").write_bytes(b"?")
    assert main(["shell", "-conf", str(file), "bookieformat", "-f"]) == 0
    assert not (tmp_path / "ledgers" / "current").exists()


def test_cookie_of_another_bookie_is_not_renamed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """B10: with the new cookie, the bookie would serve from the disk of another one."""
    name = socket.getfqdn("127.0.0.1")
    if name == "127.0.0.1":
        pytest.skip("this host has no name for 127.0.0.1")
    # The verb takes the bookie's name from its ledger directory.
    file = configured(tmp_path, (OTHER_ID, ID), "useHostNameAsBookieID=true")
    assert main(["shell", "-conf", str(file), "updatecookie", "-b", "hostname"]) == 255
    assert f"is the cookie of another bookie, {OTHER_ID}: nothing is changed" in capsys.readouterr().err
    assert owners_of(tmp_path) == [OTHER_ID, ID]
