"""A bookie's files hold entries and master keys: they are for its user alone, and for a group where a key says so."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.cli.bookie import bookie_command
from bkspark.wire.status import Status
from bookie_service.storage.io.files import LocalFiles
from tests.bookie.child import START_S, STOP_S, BookieChild
from tests.permissions import open_to_others

STORAGES = ("SortedLedgerStorage", "InterleavedLedgerStorage", "DbLedgerStorage")


@contextlib.contextmanager
def running_without_umask(bookie: BookieChild) -> Iterator[None]:
    bookie.directory.mkdir(exist_ok=True)
    command = bookie_command(bookie.settings, json=True)
    with (
        open(bookie.directory / "bookie.log", "ab") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, umask=0) as process,
    ):
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, bookie.log_text()
            assert json.loads(line)["id"] == bookie.id
            yield
        finally:
            process.terminate()
            process.wait(STOP_S)


def write(bookie: BookieChild) -> None:
    with bookie.connect() as peer:
        for ledger_id in (5, 1 << 40):
            assert set(peer.add(ledger_id, 0, [b"x" * 1000] * 50)) == {Status.EOK}


@pytest.mark.cluster
@pytest.mark.parametrize("storage", STORAGES)
def test_nothing_that_a_bookie_makes_is_open_to_others(tmp_path: Path, uri: str, storage: str) -> None:
    bookie = BookieChild(
        tmp_path / "bookie", uri, ledgerStorageClass=storage, flushInterval="50", logSizeLimit="1048576",
        entryLogPerLedgerEnabled="true", gcWaitTime="100", minorCompactionInterval="0", majorCompactionInterval="0",
    )  # fmt: skip
    for _ in range(2):
        with running_without_umask(bookie):
            write(bookie)
            assert open_to_others(bookie.directory / "journal") == []
            assert open_to_others(bookie.directory / "ledgers") == []
    made = [path.name for path in bookie.directory.rglob("*")]
    assert {"VERSION", "lastMark", "current"} <= set(made)
    assert any(name.endswith(".txn") for name in made)
    for part in (bookie.directory / "journal", bookie.directory / "ledgers"):
        assert open_to_others(part) == []
        assert stat.S_IMODE(part.stat().st_mode) == 0o700


@pytest.mark.cluster
def test_files_that_a_journal_keeps_as_backups_are_not_open_to_others(tmp_path: Path, uri: str) -> None:
    """Also those that it takes again as new ones (`journalReuseFiles`)."""
    for reuse in ("false", "true"):
        bookie = BookieChild(
            tmp_path / reuse, uri, journalMaxSizeMB="1", journalMaxBackups="2", journalReuseFiles=reuse,
            flushInterval="50", journalPreAllocSizeMB="1",
        )  # fmt: skip
        journal = bookie.directory / "journal"
        for life in range(2):
            with running_without_umask(bookie), bookie.connect() as peer:
                for first in range(0, 16, 4):
                    assert set(peer.add(7 + life, first, [b"x" * 500_000] * 4)) == {Status.EOK}
                assert open_to_others(journal) == []
            # The stop moves the mark to the end, so all files except the newest are before it.
            backups = len(list(journal.rglob("*.txn"))) - 1
            assert backups == 2 or (backups > 2 and reuse == "true")
            assert open_to_others(journal) == []


@pytest.mark.long_except(
    "True-DbLedgerStorage", "False-SortedLedgerStorage", reason="each storage makes its files with the same functions"
)
@pytest.mark.cluster
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("group", [False, True])
def test_what_a_rebuild_makes_is_not_open_to_others(tmp_path: Path, uri: str, storage: str, group: bool) -> None:
    """The index of every ledger comes back, in files and directories that the rebuild makes."""
    group_id = max({os.getegid(), *os.getgroups()})
    changes = {"permittedFileGroup": str(group_id)} if group else {}
    bookie = BookieChild(tmp_path / "bookie", uri, ledgerStorageClass=storage, flushInterval="50", **changes)
    with running_without_umask(bookie):
        write(bookie)
    current = bookie.directory / "ledgers" / "current"
    index = [path for path in current.iterdir() if path.is_dir()]
    assert index
    for path in index:
        shutil.rmtree(path)
    command = [*bookie_command(bookie.settings, json=False), "--rebuild-index", "all"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False, umask=0)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in index if path.exists()], "the rebuild made its directories again"
    for part in (current, bookie.directory / "journal" / "current"):
        assert open_to_others(part, group_id=group_id if group else None) == []
    with running_without_umask(bookie), bookie.connect() as peer:
        assert peer.read(5, 49).status == Status.EOK
        assert open_to_others(current, group_id=group_id if group else None) == []


@pytest.mark.cluster
@pytest.mark.parametrize("storage", STORAGES)
def test_a_group_may_read_the_files_where_a_key_names_it(tmp_path: Path, uri: str, storage: str) -> None:
    group_id = max({os.getegid(), *os.getgroups()})  # one that is perhaps not the first one of this user
    bookie = BookieChild(
        tmp_path / "bookie", uri, ledgerStorageClass=storage, flushInterval="50", permittedFileGroup=str(group_id)
    )
    with running_without_umask(bookie):
        write(bookie)
    for part in (bookie.directory / "journal", bookie.directory / "ledgers"):
        assert open_to_others(part / "current", group_id=group_id) == []
    logs = list((bookie.directory / "journal").rglob("*.txn"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in logs} == {0o640}


@pytest.mark.cluster
def test_directories_that_were_open_to_others_are_closed_at_the_start_with_one_line(tmp_path: Path, uri: str) -> None:
    """Those of an older release, or of Apache's bookies."""
    bookie = BookieChild(tmp_path / "bookie", uri)
    with bookie.running():
        write(bookie)
    folders = [bookie.directory / part / "current" for part in ("journal", "ledgers")]
    for folder in folders:
        folder.chmod(0o755)
    with bookie.running():
        pass
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
    log = (bookie.directory / "bookie.log").read_text()
    lines = [line for line in log.splitlines() if "had mode 0755, and has 0700 now" in line]
    assert len(lines) == 1
    assert all(str(folder) in lines[0] for folder in folders)
    with bookie.running():
        pass
    assert (bookie.directory / "bookie.log").read_text().count("had mode") == 2  # both in that line


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_a_directory_of_another_user_is_left_as_it_is_and_reported(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    folder.chmod(0o755)
    os.chown(folder, 65534, 65534)
    said = LocalFiles().protect(str(folder))
    assert said == f"directory {folder} has mode 0755 and belongs to user 65534: others may read it"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_protecting_a_private_directory_changes_nothing(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert LocalFiles().protect(str(tmp_path)) is None
    tmp_path.chmod(0o500)
    assert LocalFiles().protect(str(tmp_path)) is None
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o500
