"""Everything that a cluster on this machine and its jobs make is for its user alone, whatever the umask is."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.blocking import Client
from bkspark.cli.cluster_process import ClusterProcess
from bkspark.cli.private_files import make_directory, put, write_text
from tests.ledger.other_user import OTHER_UID
from tests.permissions import open_to_others

pytestmark = pytest.mark.cluster
STORAGES = ("SortedLedgerStorage", "InterleavedLedgerStorage", "DbLedgerStorage")


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("storage", STORAGES)
def test_local_cluster_leaves_nothing_that_others_may_read(tmp_path: Path, no_umask: None, storage: str) -> None:
    settings = {"ledgerStorageClass": storage, "flushInterval": "100", "journalPreAllocSizeMB": "1"}
    folder = tmp_path / "above" / "cluster"
    with ClusterProcess(1, folder, settings=settings) as cluster, Client(cluster.uri, password=b"s3cret") as client:
        with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
            writer.append_many([b"entry"] * 1000)
        with client.log("clicks").open_for_writing(ensemble=1, write_quorum=1, ack_quorum=1) as log:
            log.append(b"entry")
        assert open_to_others(tmp_path) == []  # control sockets, too
    assert open_to_others(tmp_path) == []
    # ZooKeeper's data, its log, and those of the bookies are there to be looked at.
    names = {path.name for path in folder.rglob("*")}
    assert {"zookeeper.log", "version-2", "bookie.log", "cluster.json", "VERSION", "lastMark"} <= names


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user")
def test_another_user_finds_no_password_in_the_files_of_a_cluster(tmp_path: Path, no_umask: None) -> None:
    tmp_path.chmod(0o755)
    with ClusterProcess(1, tmp_path / "cluster") as cluster, Client(cluster.uri, password=b"s3cret") as client:
        client.create(ensemble=1, write_quorum=1, ack_quorum=1).close()
    command = ["grep", "--recursive", "--binary-files=text", "--count", "s3cret", str(tmp_path / "cluster")]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert sum(int(line.rpartition(":")[2]) for line in found.stdout.splitlines()) > 0
    found = subprocess.run(command, capture_output=True, text=True, check=False, user=OTHER_UID, group=OTHER_UID)
    assert found.stdout == ""


def test_cluster_of_an_older_release_is_closed_to_others_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "zookeeper"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    make_directory(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert f"directory {folder} had mode 0755, and has 0700 now" in capsys.readouterr().err
    file = folder / "zoo.cfg"
    file.write_text("old")
    file.chmod(0o644)
    write_text(file, "new")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_job_that_fails_leaves_a_log_file_that_only_its_user_can_read(tmp_path: Path, no_umask: None) -> None:
    """The log of a Spark job may show rows."""
    program = (
        "from bkspark.cli.spark_job import SparkJob\n"
        "with SparkJob('no_such_module', 'zk://h/l', {}) as job:\n"
        "    job.result()\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, umask=0
    )
    assert "its log: " in done.stderr
    (log,) = tmp_path.iterdir()
    assert "no_such_module" in log.read_text()
    assert open_to_others(tmp_path) == []


# ---- what a command writes into ----


def test_a_descriptor_is_written_to_and_its_file_is_not_replaced(tmp_path: Path) -> None:
    """The file was replaced: a program that had it open read nothing."""
    with open(tmp_path / "f", "wb+") as file:
        for directory in ("/dev/fd", "/proc/self/fd"):
            put(Path(directory) / str(file.fileno()), b"data")
        file.seek(0)
        assert file.read() == b"datadata"
        put(Path(f"/proc/{os.getpid()}/fd/{file.fileno()}"), b"other")
        file.seek(0)
        assert file.read() == b"other"
    assert [each.name for each in tmp_path.iterdir()] == ["f"]


def test_an_unlinked_file_is_written_to_and_leaves_no_other(tmp_path: Path) -> None:
    """A new file with the password appeared, under the name 'f (deleted)'."""
    with open(tmp_path / "f", "wb+") as file:
        os.unlink(file.name)
        put(Path(f"/dev/fd/{file.fileno()}"), b"data")
        assert list(tmp_path.iterdir()) == []
        file.seek(0)
        assert file.read() == b"data"


def test_what_is_printed_after_the_data_follows_them_in_a_file_on_stdout(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from bkspark.cli.private_files import put; "
        "put(Path('/dev/stdout'), b'data'); print(' printed')"
    )
    with open(tmp_path / "f", "wb") as file:
        subprocess.run([sys.executable, "-c", program], stdout=file, check=True, timeout=60)
    assert (tmp_path / "f").read_bytes() == b"data printed\n"


def test_a_file_in_a_directory_that_is_not_writable_is_written_to() -> None:
    """It could not be replaced, and the dump failed."""
    directory = Path(tempfile.mkdtemp())
    file = directory / "f"
    file.write_bytes(b"before this, it was longer")
    user = os.geteuid()
    try:
        if user == 0:
            os.chown(file, 65534, -1)
        directory.chmod(0o555)
        if user == 0:
            os.seteuid(65534)
        put(file, b"data")
    finally:
        os.seteuid(user)
        directory.chmod(0o700)
    assert file.read_bytes() == b"data"
    assert [each.name for each in directory.iterdir()] == ["f"]
    file.unlink()
    directory.rmdir()


def test_a_file_with_a_long_name_of_wide_characters_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / ("\u6587" * 85)
    put(file, b"data")
    put(file, b"new")
    assert file.read_bytes() == b"new"
